# Files on the disk of a vhost-user back end that is killed again and again. The disk has grown when that is over.
mkfs.ext4 -q /dev/vda
mount /dev/vda /mnt
size=$(cat /sys/block/vda/size)
number=0
while [ "$(cat /sys/block/vda/size)" = "$size" ]; do
    seq $number $((number + 20000)) >/mnt/$number
    sync /mnt/$number
    number=$((number + 1))
done
umount /mnt
e2fsck -fn /dev/vda
echo 3 >/proc/sys/vm/drop_caches
mount /dev/vda /mnt
for file in $(seq 0 $((number - 1))); do seq $file $((file + 20000)) | cmp - /mnt/$file; done
umount /mnt
end=$(($(cat /sys/block/vda/size) / 8 - 1))
dd if=/dev/urandom of=/tmp/block bs=4k count=1 2>/dev/null
dd if=/tmp/block of=/dev/vda bs=4k seek=$end conv=fsync 2>/dev/null
echo 3 >/proc/sys/vm/drop_caches
dd if=/dev/vda bs=4k skip=$end 2>/dev/null | cmp - /tmp/block
dmesg | grep 'I/O error' && exit 1
echo "files: $number, grown to $((end * 4 / 1024 + 1)) MiB"
