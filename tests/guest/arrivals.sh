# Requests of known priorities, which must reach the server's scheduler as they are. The guest's own must not order them.
echo none >/sys/block/vda/queue/scheduler
as() { # CLASS-AND-LEVEL FROM INTO COUNT FLAG...
    priority=$1 from=$2 into=$3 count=$4
    shift 4
    # shellcheck disable=SC2086 # two words
    ionice $priority dd if=$from of=$into bs=4k count=$count "$@" 2>/dev/null
}
dd if=/dev/vda of=/dev/null bs=4k count=10 iflag=direct 2>/dev/null
as "-c 1 -n 2" /dev/vda /dev/null 20 iflag=direct
as "-c 2 -n 6" /dev/vda /dev/null 30 iflag=direct
as "-c 3" /dev/vda /dev/null 40 iflag=direct
as "-c 3" /dev/zero /dev/vda 50 oflag=direct
mkfs.ext4 -q /dev/vda
mount /dev/vda /mnt
as "-c 3" /dev/zero /mnt/file 100
sync
umount /mnt
