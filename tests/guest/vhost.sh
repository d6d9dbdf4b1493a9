# A file system on the disk of a vhost-user back end: written, read back from the disk, discarded, checked.
grep -q . /sys/block/vda/serial
grep -q 'write back' /sys/block/vda/queue/write_cache
mkfs.ext4 -q /dev/vda
mount /dev/vda /mnt
for number in 1 2 3 4; do dd if=/dev/urandom of=/mnt/$number bs=64k count=40 2>/dev/null; done
cp -r /lib64 /mnt/tree
sums() { find /mnt -type f | sort | xargs md5sum; }
sums >/tmp/before
umount /mnt
echo 3 >/proc/sys/vm/drop_caches
mount /dev/vda /mnt
sums >/tmp/after
cmp /tmp/before /tmp/after
rm /mnt/1 /mnt/2
fstrim -v /mnt
sync
umount /mnt
e2fsck -fn /dev/vda
echo "files: $(wc -l </tmp/after)"
