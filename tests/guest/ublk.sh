# A file system on a block device that blkmqd serves by ublk: attributes, data written and read back from the disk, a
# discard, flushes, the end of the server under load, a server that is killed while files are written, again and again, and
# the number taken again.
serve() { # DEVICE, SETTINGS...
    blkmqd "--device=$1" --scheduler=mq-deadline "--export=disk,ublk=0${2:+,$2}" --listen=unix:/tmp/nbd.sock \
        --log=info >>/tmp/log 2>&1 &
    server=$!
    for tick in $(seq 100); do [ -b /dev/ublkb0 ] && return; sleep 0.1; done
    cat /tmp/log
    return 1
}
# The server has ended, and nothing of the device is left.
gone() {
    kill $server
    wait $server || { cat /tmp/log; return 1; }
    [ ! -e /dev/ublkb0 ] && [ ! -e /dev/ublkc0 ]
}
attributes() { # NAME VALUE...
    while [ $# -gt 0 ]; do
        found=$(cat /sys/block/ublkb0/$1)
        [ "$found" = "$2" ] || { echo "$1: '$found', not '$2'"; return 1; }
        shift 2
    done
}
refused() { if "$@" >/tmp/other 2>&1; then echo "$*: not refused"; return 1; fi; }
sums() { find /mnt -type f | sort | xargs md5sum; }

serve memory,size=64,discard=1,cache_size=8 queues=2
attributes size 131072 ro 0 queue/logical_block_size 512 queue/max_hw_sectors_kb 256 queue/write_cache "write back" \
    queue/fua 1 queue/discard_max_hw_bytes 1073741824 queue/write_zeroes_max_bytes 1073741824 queue/rotational 0
[ "$(ls /sys/block/ublkb0/mq | wc -l)" = 2 ]
mkfs.ext4 -q /dev/ublkb0
mount /dev/ublkb0 /mnt
for number in 1 2 3 4; do dd if=/dev/urandom of=/mnt/$number bs=64k count=40 conv=fsync 2>/dev/null; done
cp -r /lib64 /mnt/tree
sums >/tmp/before
umount /mnt
echo 3 >/proc/sys/vm/drop_caches
mount /dev/ublkb0 /mnt
sums >/tmp/after
cmp /tmp/before /tmp/after
rm /mnt/1 /mnt/2
fstrim -v /mnt
sync
umount /mnt
e2fsck -fn /dev/ublkb0
echo "files: $(wc -l </tmp/after)"
blkdiscard /dev/ublkb0
dd if=/dev/ublkb0 bs=1M 2>/dev/null | tr -d '\0' | cmp - /dev/null
gone

# The end under load: the reader gets an error, and nothing waits for ever.
serve memory,size=64 queues=2
(while dd if=/dev/ublkb0 of=/dev/null bs=4k iflag=direct 2>/dev/null; do :; done) &
reader=$!
sleep 1
gone
wait $reader || true

# Blocks of 4 KiB, without a volatile cache, in a region that nothing can be written to.
serve memory,size=64,bs=4096 offset=1m,size=2m,read-only=1
attributes size 4096 ro 1 queue/logical_block_size 4096 queue/physical_block_size 4096 queue/discard_max_hw_bytes 0
refused dd if=/dev/zero of=/dev/ublkb0 bs=4k count=1
gone
serve memory,size=64,cache_size=8 cache=writethrough
attributes queue/write_cache "write through" queue/fua 0
gone

dmesg -c >/dev/null
# A server that is killed leaves its device to the next one: what is mounted stays mounted, and nothing is lost.
killed() {
    kill -9 $server || { tail -n 20 /tmp/log; return 1; }
    wait $server || true
    rm -f /tmp/nbd.sock*
}
serve memory,size=64
refused blkmqd --device=memory,size=64 --export=x,ublk=0 --listen=unix:/tmp/other.sock
grep -q '/dev/ublkb0 is served by another process' /tmp/other
gone
dd if=/dev/zero of=/tmp/disk bs=1M count=64 2>/dev/null
serve uring:/tmp/disk queues=2
mkfs.ext4 -q /dev/ublkb0
mount /dev/ublkb0 /mnt
(
    number=0
    while [ ! -e /tmp/enough ]; do
        seq $number $((number + 20000)) >/mnt/$number && sync /mnt/$number || touch /tmp/failed
        number=$((number + 1))
    done
) &
writer=$!
for round in $(seq 20); do
    sleep 0.$((round % 7 + 1))
    killed
    serve uring:/tmp/disk queues=2
    # Answered by the new server: the kernel cannot take up a device whose tags are half fetched.
    dd if=/dev/ublkb0 of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null
done
touch /tmp/enough
wait $writer
[ ! -e /tmp/failed ]
umount /mnt
e2fsck -fn /dev/ublkb0
echo 3 >/proc/sys/vm/drop_caches
mount /dev/ublkb0 /mnt
files=$(ls /mnt | grep -vc lost)
for number in $(seq 0 $((files - 1))); do seq $number $((number + 20000)) | cmp - /mnt/$number; done
umount /mnt
times=$(grep -c 'left behind is taken up' /tmp/log)
echo "killed 20 times, taken up $times times under $files files"
[ $times -ge 20 ] && [ $files -ge 20 ]
dmesg | grep 'I/O error.*ublkb0' && exit 1
# The disk grows, and so does its device where the kernel has a command for that.
truncate -s 80M /tmp/disk
for tick in $(seq 100); do grep -q 'a device has another size\|a device keeps its size' /tmp/log && break; sleep 0.1; done
case $(uname -r) in
6.[0-9].* | 6.1[0-5].*) attributes size 131072 ;;
*)
    attributes size 163840
    dd if=/dev/urandom of=/dev/ublkb0 bs=1M seek=79 count=1 oflag=direct 2>/dev/null
    dd if=/dev/ublkb0 bs=1M skip=79 iflag=direct 2>/dev/null | cmp -n 1048576 - /tmp/disk 0 82837504
    ;;
esac
# With other settings it is replaced.
killed
serve memory,size=32
for tick in $(seq 100); do grep -q 'no process served is replaced' /tmp/log && break; sleep 0.1; done
for tick in $(seq 100); do [ -b /dev/ublkb0 ] && break; sleep 0.1; done
attributes size 65536
gone
grep ' ERROR\| WARN' /tmp/log | grep -v 'is replaced\|keeps its size\|has been resized' && exit 1
rmmod ublk_drv
refused blkmqd --device=memory,size=64 --export=x,ublk=0 --listen=unix:/tmp/other.sock
grep 'modprobe ublk_drv' /tmp/other
