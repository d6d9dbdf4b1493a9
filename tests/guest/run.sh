#!/usr/bin/env bash
# run.sh SCRIPT [SOCKET]: runs SCRIPT in user-mode Linux, with KERNEL=cloud or next in one of Debian's kernels under QEMU, with
# the disk behind SOCKET as /dev/vda. PROGRAMS has paths of further programs for the guest, MODULES has names of further
# modules, OUT is the folder for what the guest leaves in /tmp/out, FORM is long for scripts that have a long form, EMULATOR has
# further options of QEMU. See README.md.
set -euo pipefail
script=$(realpath "$1")
socket=${2:-}
out=${OUT:+$(realpath "$OUT")}
programs=
for program in ${PROGRAMS:-}; do
    programs="$programs $(realpath "$(PATH=$PATH:/sbin:/usr/sbin command -v "$program")")"
done
cd "$(dirname "$0")"
here=$PWD
cd ../../target/guest
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root"/{bin,dev,lib64,mnt,modules,proc,root,sys,tmp,usr}
ln -s ../bin "$root/usr/bin"
ln -s ../bin "$root/usr/sbin"
ln -s bin "$root/sbin"

# The kernel with its modules, in the order of their dependencies, and a command that boots it. The guest's console is
# that command's output.
case ${KERNEL:-uml} in
uml)
    [ -z "$out" ] || { echo "OUT; accepted with KERNEL=cloud or next"; exit 1; }
    cp uml/usr/lib/uml/modules/*/kernel/drivers/block/{nbd,virtio_blk}.ko "$root/modules"
    set -- "$PWD/uml/usr/bin/linux.uml" mem=256M initrd="$work/initramfs" rdinit=/init con=null con0=null,fd:2 \
        con1=fd:0,fd:1 quiet
    [ -z "$socket" ] || set -- "$@" "virtio_uml.device=$socket:2"
    ;;
cloud | next)
    version=$(basename "$KERNEL"/lib/modules/*)
    wanted="virtio_blk nbd loop null_blk mq-deadline ublk_drv ${MODULES:-}"
    # Decompressed here: that takes seconds in an emulated machine.
    /sbin/modprobe -d "$KERNEL" -S "$version" -a --show-depends $wanted | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' |
        while read -r module; do
            number=$((${number:-100} + 1))
            xz -dc "$module" >"$root/modules/$number-$(basename "$module" .xz)"
        done
    set -- qemu-system-x86_64
    if ! command -v "$1" >/dev/null; then
        libraries=$(echo "$PWD/$KERNEL"/usr/lib/*-linux-gnu)
        set -- env LD_LIBRARY_PATH="$libraries" QEMU_MODULE_DIR="$libraries/qemu" "$KERNEL/usr/bin/$1" \
            -L "$KERNEL/usr/share/qemu" -L "$KERNEL/usr/share/seabios"
    fi
    # Both processors on one thread: with two, one may run an instruction that the other is patching, and the kernel panics
    # while it starts (int3 in sched_clock_cpu).
    # shellcheck disable=SC2086 # a list of options
    set -- "$@" -accel tcg,thread=single -cpu max -smp 2 -m 512 -nodefaults -no-user-config -display none -no-reboot \
        -serial stdio -object memory-backend-memfd,id=memory,size=512M,share=on -machine pc,memory-backend=memory \
        -kernel "$KERNEL"/boot/vmlinuz* -initrd "$work/initramfs" \
        ${EMULATOR:-} -append "console=ttyS0 rdinit=/init quiet panic=-1 tsc=reliable random.trust_cpu=1 mitigations=off FORM=${FORM:-short}"
    [ -z "$socket" ] || set -- "$@" -chardev "socket,id=disk,path=$socket,reconnect=1" \
        -device vhost-user-blk-pci,chardev=disk,num-queues=2
    [ -z "$out" ] || set -- "$@" -device virtio-serial-pci -chardev "file,id=out,path=$work/out.tar" \
        -device virtserialport,chardev=out,name=out
    ;;
*)
    echo "KERNEL=$KERNEL; accepted: uml, cloud, next"
    exit 1
    ;;
esac

cp "$(command -v busybox)" "$root/bin"
for program in nbd-client mkfs.ext4 e2fsck $programs; do
    path=$(PATH=$PATH:/sbin:/usr/sbin command -v "$program")
    # The line tables of two programs would fill the half of the guest's memory that an initramfs may have.
    strip --strip-debug "$(realpath "$path")" -o "$root/bin/$(basename "$path")" || cp -L "$path" "$root/bin"
    for library in $(ldd "$path" | grep -o '/[^ ]*'); do
        mkdir -p "$root$(dirname "$library")"
        cp -L -n "$library" "$root$library"
    done
done
cp "$here/init" "$root/init"
cp "$here/functions" "$root/functions"
cp "$script" "$root/script"
chmod +x "$root/init"
(cd "$root" && find . -print0 | cpio -0 -o -H newc --quiet) >"$work/initramfs"
# A hung guest is ended, an emulated one on a busy machine is not.
TMPDIR=/dev/shm timeout --kill-after=1 "${GUEST_SECONDS:-180}" setsid --wait "$@" </dev/null >"$work/log" 2>&1 || true
tr -d '\r' <"$work/log" | grep -v '^$' || true
[ -z "$out" ] || tar -xf "$work/out.tar" -C "$out"
grep -q '^guest: passed' "$work/log"
