# The kernel's record of its own block layer, of a loop device: writers and readers beside each other, one of them with a name
# of two words, a file system with its flushes and discards.
dd if=/dev/zero of=/tmp/disk bs=1M count=0 seek=64 2>/dev/null
losetup /dev/loop0 /tmp/disk
echo mq-deadline >/sys/block/loop0/queue/scheduler
cp /bin/busybox "/tmp/busybox two"
mkdir /tmp/out
blktrace -d /dev/loop0 -D /tmp/out -o trace >/tmp/log 2>&1 &
tracer=$!
for tick in $(seq 100); do [ -d /sys/kernel/debug/block/loop0/trace0 ] || sleep 0.1; done
sleep 0.3
dd if=/dev/zero of=/dev/loop0 bs=4k count=200 oflag=direct 2>/dev/null &
first=$!
dd if=/dev/zero of=/dev/loop0 bs=64k count=60 seek=300 oflag=direct conv=fsync 2>/dev/null &
second=$!
"/tmp/busybox two" dd if=/dev/loop0 of=/dev/null bs=16k count=100 skip=2000 iflag=direct 2>/dev/null &
third=$!
dd if=/dev/loop0 of=/dev/null bs=4k count=100 skip=1001 iflag=direct 2>/dev/null
wait $first $second $third
mkfs.ext4 -q /dev/loop0
mount /dev/loop0 /mnt
dd if=/dev/urandom of=/mnt/file bs=64k count=40 2>/dev/null
sync
umount /mnt
blkdiscard -o 8388608 -l 4194304 /dev/loop0
kill -INT $tracer
wait $tracer
grep 'dropped 0' /tmp/log
