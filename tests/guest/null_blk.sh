# The kernel's null_blk beside our devices with the same parameters: the attributes of both are equal. What depends on the
# release of Linux is given: the most sectors, and no queues for polling.
module=$(echo /modules/*-null_blk.ko)
names="size queue/nr_requests queue/logical_block_size queue/hw_sector_size queue/physical_block_size queue/max_sectors_kb
queue/max_hw_sectors_kb queue/max_segments queue/max_segment_size queue/max_discard_segments queue/discard_max_bytes
queue/discard_max_hw_bytes queue/discard_granularity queue/chunk_sectors queue/virt_boundary_mask queue/io_timeout
queue/write_cache queue/fua queue/nomerges mq/0/nr_tags mq/0/nr_reserved_tags"
rmmod null_blk
differences=0
compare() { # NAME KERNEL'S OURS
    [ "$2" = "$3" ] && return
    echo "  $1: null_blk has $2, ours has $3"
    differences=$((differences + 1))
}
row() { # DEVICE MORE-OF-NULL_BLK PARAMETERS...
    device=$1 more=$2
    shift 2
    echo "$device $*"
    insmod "$module" poll_queues=0 $more "$@"
    blkmqd "--device=$device,$(echo "$*" | tr ' ' ,)" --listen=unix:/tmp/null.sock --log=warn >/tmp/log 2>&1 &
    server=$!
    for tick in $(seq 50); do blkmqctl --control=/tmp/null.sock.control get >/tmp/ours 2>/dev/null && break; sleep 0.1; done
    block=$(cat /sys/block/nullb0/queue/logical_block_size)
    for name in $names; do
        theirs=$(cat /sys/block/nullb0/$name)
        # Discards of ours are whole blocks. Our memory has the timeout of any device.
        case $name in
        queue/discard_max*) theirs=$((theirs / block * block)) ;;
        queue/io_timeout) [ $device = null ] || theirs=30000 ;;
        esac
        compare "$name" "$theirs" "$(sed -n "s|^$name=||p" /tmp/ours)"
    done
    compare queues "$(ls /sys/block/nullb0/mq | wc -l)" "$(grep -c '^mq/.*/nr_tags=' /tmp/ours)"
    kill $server
    wait $server || true
    rm -f /tmp/null.sock*
    rmmod null_blk
}
row null "" gb=1 max_sectors=64
row null "" gb=3 bs=4096 submit_queues=2 hw_queue_depth=32 max_sectors=128 irqmode=2 completion_nsec=50000
row null "" gb=1 bs=1024 submit_queues=9 hw_queue_depth=1 max_sectors=255 irqmode=0
row null "" gb=1 bs=8192 submit_queues=0 hw_queue_depth=20000 max_sectors=8 virt_boundary=1
row null "" gb=1 submit_queues=2 shared_tag_bitmap=1 no_sched=1 max_sectors=64 mbps=100
row memory memory_backed=1 gb=1 discard=1 max_sectors=64
row memory memory_backed=1 gb=1 discard=1 bs=2048 max_sectors=64 submit_queues=2
row memory memory_backed=1 gb=1 cache_size=8 max_sectors=64
[ $differences = 0 ]
