# Two file systems, ext4 and xfs, on two exports of one disk as block devices, under load that fio verifies, with fsync and
# discards, while the scheduler is switched from one to the next. Then shares, a floor and a goal between block devices of a disk
# that takes one request at a time.
. /functions
ctl() { blkmqctl --control=/tmp/nbd.sock.control "$@"; }
mkdir -p /mnt/ext4 /mnt/xfs
start --device=memory,size=512,discard=1,cache_size=8 --listen=unix:/tmp/nbd.sock --log=warn \
    --export=first,ublk=0,size=128m,queues=2 --export=second,ublk=1,offset=128m
await -b /dev/ublkb1
mkfs.ext4 -q /dev/ublkb0
mkfs.xfs -q /dev/ublkb1
mount /dev/ublkb0 /mnt/ext4
mount /dev/ublkb1 /mnt/xfs
verified() {
    fio --eta=never --minimal --output=/tmp/fio --ioengine=libaio --direct=1 --rw=randrw --bsrange=4k-64k --size=$size --iodepth=8 --fsync=16 \
        --verify=crc32c --verify_fatal=1 --name=ext4 --directory=/mnt/ext4 --name=xfs --directory=/mnt/xfs
}
size=1m
[ "$FORM" = short ] || size=16m
for scheduler in none mq-deadline kyber bfq mclock; do
    ctl switch $scheduler >/dev/null
    begin=$(now)
    verified || { cat /tmp/fio; exit 1; }
    rm /mnt/ext4/* /mnt/xfs/* -rf
    fstrim /mnt/ext4
    fstrim /mnt/xfs
    echo "$scheduler: verified on ext4 and xfs, $((($(now) - begin) * 10)) ms"
done
umount /mnt/ext4 /mnt/xfs
e2fsck -fn /dev/ublkb0 >/dev/null 2>&1
xfs_repair -n /dev/ublkb1 >/dev/null 2>&1
for number in 0 1; do [ "$(awk '{ print ($12 > 0) ($16 > 0) }' /sys/block/ublkb$number/stat)" = 11 ]; done
dmesg | grep 'I/O error' && exit 1
gone
grep ' ERROR\| WARN' /tmp/log && exit 1

# A request takes 8 ms, and the disk has one at a time: it is what the devices wait for. Reads are counted, and not seconds, in
# which an emulated machine may do little.
slow() { # SETTINGS OF EACH EXPORT...
    number=0
    for settings in "$@"; do
        set -- "$@" "--export=disk$number,ublk=$number,$settings"
        shift
        number=$((number + 1))
    done
    start --device=memory,size=64,irqmode=2,completion_nsec=8000000,submit_queues=1,hw_queue_depth=1 "$@" \
        --listen=unix:/tmp/nbd.sock --log=warn --scheduler=mclock
    for each in $(seq 0 $((number - 1))); do
        await -b /dev/ublkb$each
        plain ublkb$each
    done
}
most=800
[ "$FORM" = short ] || most=4000
reads() { awk '{ print $1 }' /sys/block/ublkb?/stat | tr '\n' ' '; }
since() { echo "$before $(reads)" | awk '{ for (at = 1; at <= NF / 2; at++) printf "%d ", $(at + NF / 2) - $at }'; }
load() { # DEPTH-OF-EACH...: the reads of each device while all of them have load, and the time in hundredths of a second.
    job=0
    set -- $(for depth in "$@"; do echo "--name=job$job --filename=/dev/ublkb$job --iodepth=$depth"; job=$((job + 1)); done)
    fio --eta=never --output-format=json --output=/tmp/fio --ioengine=libaio --direct=1 --rw=randread --bs=4k --time_based \
        --runtime=600 "$@" &
    loader=$!
    for tick in $(seq 100); do [ "$(awk '{ print ($9 > 0) }' /sys/block/ublkb1/stat)" = 1 ] && break; sleep 0.1; done
    sleep 1
    before=$(reads)
    begin=$(now)
    while [ "$(since | awk '{ print $1 + $2 + $3 }')" -lt $most ]; do sleep 0.3; done
    counts=$(since)
    taken=$(($(now) - begin))
    kill -INT $loader
    wait $loader || true
}
slow weight=300 weight=100
for scheduler in mclock bfq; do
    ctl switch $scheduler >/dev/null
    [ $scheduler = mclock ] || ctl set iosched/low_latency 0 >/dev/null
    load 32 32
    echo "$scheduler, weights 3 to 1: $counts reads in $((taken * 10)) ms"
    # A turn of bfq takes up to 125 ms, so a count of few reads is off by a turn of either device; so it is by NBD.
    echo "$counts" | awk -v of=$scheduler$FORM '{
        ratio = $1 / $2
        print "  ratio", ratio
        exit of != "bfqshort" && (ratio < 2.85 || ratio > 3.15)
    }'
done

# A floor of a sixth of that rate, and a goal for one read at a time, beside a flood of a thousand times the weight.
floor=$(echo "$counts" | awk -v taken=$taken '{ print int(($1 + $2) * 100 / taken / 6) }')
gone
slow weight=1000 weight=1,reserve_iops=$floor weight=1,p99_read=500ms
load 32 32 1
goals=$(ctl get blkmq/goals)
echo "a floor of $floor IOPS and a goal of 500 ms: $counts reads in $((taken * 10)) ms"
echo "  $goals"
# Of the windows before the controller has found its balance some are missed.
echo "$counts" | awk -v floor=$floor -v taken=$taken '{ exit $2 * 10000 < floor * taken * 95 || $3 * 50 < taken }'
echo "$goals" | awk -F '[ =]' '{ for (at = 1; at <= NF; at++) of[$at] = $(at + 1); exit of["missed"] * 3 > of["windows"] }'
gone
rmmod ublk_drv
