# The kernel's null_blk by a ring whose completions are looked for at the device: contents, flushes and discards under load. A
# disk without queues for that is refused.
. /functions
module=$(echo /modules/*-null_blk.ko)
rmmod null_blk
load() { # OPTIONS OF THE DEVICE
    blkmq bench "--device=uring:/dev/nullb0,iopoll=1$1" --scheduler=none,mq-deadline --rw=randrw --bs=4k,16k --iodepth=16 \
        --numjobs=2 --size=4m --offset_increment=4m --fsync=32 --verify=crc32c --name=polled >/tmp/log 2>&1 || { cat /tmp/log; return 1; }
}
insmod "$module" gb=1 memory_backed=1 discard=1 cache_size=8 poll_queues=1 submit_queues=1 hw_queue_depth=32
[ "$(cat /sys/block/nullb0/queue/io_poll)" = 1 ]
load
load ,hw_queues=2,fixed=0,hw_queue_depth=64
tail -12 /tmp/log
rmmod null_blk
# Without a look at the device, each of these reads takes a second.
insmod "$module" gb=1 irqmode=2 completion_nsec=1000000000 poll_queues=1 submit_queues=1
begin=$(now)
blkmq bench --device=uring:/dev/nullb0,iopoll=1 --scheduler=none --rw=randread --bs=4k --size=512k --name=reads >/tmp/log 2>&1
took=$(($(now) - begin))
echo "128 reads took $took hundredths of a second"
[ $took -lt 6000 ]
rmmod null_blk
insmod "$module" gb=1 poll_queues=0
! load || exit 1
grep "cannot be polled" /tmp/log
