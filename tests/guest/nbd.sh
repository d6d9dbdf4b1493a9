# The kernel's own client of NBD: two connections, a file system, flushes, a discard, a disconnection under load, and
# another connection.
blkmqd --device=memory,size=64,discard=1 --scheduler=mq-deadline --listen=unix:/tmp/nbd.sock --log=warn >/tmp/log 2>&1 &
for number in 1 2 3 4 5 6 7 8 9; do [ -S /tmp/nbd.sock ] || sleep 0.3; done
connect() { nbd-client -N disk -C 2 -unix /tmp/nbd.sock /dev/nbd0 >/dev/null; }
connect
mkfs.ext4 -q /dev/nbd0
mount /dev/nbd0 /mnt
for number in 1 2 3 4; do dd if=/dev/urandom of=/mnt/$number bs=64k count=40 conv=fsync 2>/dev/null; done
sums() { find /mnt -type f | sort | xargs md5sum; }
sums >/tmp/before
umount /mnt
dd if=/dev/nbd0 of=/dev/null bs=4k iflag=direct 2>/dev/null &
nbd-client -d /dev/nbd0 >/dev/null
wait %2 || true
connect
mount /dev/nbd0 /mnt
sums >/tmp/after
cmp /tmp/before /tmp/after
rm /mnt/1 /mnt/2
fstrim -v /mnt
umount /mnt
e2fsck -fn /dev/nbd0
blkdiscard /dev/nbd0
nbd-client -d /dev/nbd0 >/dev/null
grep -v 'a connection' /tmp/log | grep -i 'error\|warn' && exit 1
kill %1
echo "files: $(wc -l </tmp/after)"
