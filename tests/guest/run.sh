#!/usr/bin/env bash
# run.sh SCRIPT [SOCKET]: runs SCRIPT in user-mode Linux, with the disk behind SOCKET as /dev/vda. PROGRAMS has paths of
# further programs for the guest. See README.md.
set -euo pipefail
script=$(realpath "$1")
socket=${2:-}
programs=
for program in ${PROGRAMS:-}; do programs="$programs $(realpath "$program")"; done
cd "$(dirname "$0")"
here=$PWD
cd ../../target/guest
kernel=$PWD/uml/usr/bin/linux.uml
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root"/{bin,dev,lib64,mnt,modules,proc,root,sys,tmp,usr}
ln -s ../bin "$root/usr/bin"
ln -s ../bin "$root/usr/sbin"
ln -s bin "$root/sbin"
cp uml/usr/lib/uml/modules/*/kernel/drivers/block/{nbd,virtio_blk}.ko "$root/modules"
cp "$(command -v busybox)" "$root/bin"
for program in nbd-client mkfs.ext4 e2fsck $programs; do
    path=$(PATH=$PATH:/sbin:/usr/sbin command -v "$program")
    cp -L "$path" "$root/bin"
    for library in $(ldd "$path" | grep -o '/[^ ]*'); do
        mkdir -p "$root$(dirname "$library")"
        cp -L -n "$library" "$root$library"
    done
done
cp "$here/init" "$root/init"
cp "$script" "$root/script"
chmod +x "$root/init"
(cd "$root" && find . -print0 | cpio -0 -o -H newc --quiet) >"$work/initramfs"
# The guest's console is this script's output. A hung guest is ended.
set -- mem=256M initrd="$work/initramfs" rdinit=/init con=null con0=null,fd:2 con1=fd:0,fd:1 quiet
[ -z "$socket" ] || set -- "$@" "virtio_uml.device=$socket:2"
TMPDIR=/dev/shm timeout --kill-after=1 "${GUEST_SECONDS:-60}" setsid --wait "$kernel" "$@" </dev/null >"$work/out" 2>&1 ||
    true
tr -d '\r' <"$work/out" | grep -v '^$' || true
grep -q '^guest: passed' "$work/out"
