# Rates of reads through a ublk device of blkmqd beside one of rublk's loop target, each in copy mode with one queue, over a file on
# tmpfs, a loop device on it, and null_blk, with 1 and 32 reads in flight: medians of rounds in which both take turns. rublk is not part of this
# repository: PROGRAMS has the path of one, and without it nothing is compared. With EMULATOR="-icount shift=0 -smp 1" a nanosecond of
# the guest is an instruction, whatever else the machine does.
. /functions
command -v rublk >/dev/null || { echo "skipped: rublk is not among PROGRAMS"; exit 0; }
rounds=5
[ "$FORM" = short ] || rounds=15
spent() { # PROCESS: nanoseconds of its threads, those of io_uring's included.
    cat /proc/$1/task/*/schedstat | awk '{ sum += $1 } END { printf "%.0f", sum }'
}
measure() { # OF DEVICE PROCESS DEPTH: a line of the rate, and the nanoseconds of the process for a read.
    before=$(spent $3)
    fio --minimal --ioengine=libaio --direct=1 --rw=randread --bs=4k --number_ios=$reads --iodepth=$4 --name=x --size=60m \
        --norandommap --filename=/dev/$2 >/tmp/fio
    after=$(spent $3)
    echo "$1 $(cut -d';' -f8 /tmp/fio) $(((after - before) / reads))"
}
median() { # OF FIELD
    awk -v of=$1 -v field=$2 '$1 == of { print $field }' /tmp/lines | sort -n | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'
}
compare() { # BACKING
    start --device=uring:$1,direct=1 --export=disk,ublk=0,read-only=1 --scheduler=none --listen=unix:/tmp/nbd.sock --log=warn
    rublk add loop --number 1 --queue 1 --depth 64 --io-buf-size 262144 --file $1 --foreground >/tmp/theirs 2>&1 &
    theirs=$!
    await -b /dev/ublkb1
    for each in 0 1; do plain ublkb$each; done
    for depth in 1 32; do
        reads=$((depth == 1 ? 3000 : 9000))
        : >/tmp/lines
        for round in $(seq $rounds); do
            measure ours ublkb0 $server $depth >>/tmp/lines
            measure theirs ublkb1 $theirs $depth >>/tmp/lines
        done
        ours=$(median ours 2)
        other=$(median theirs 2)
        echo "$1, depth $depth: $ours and $other reads a second, $(awk -v a=$ours -v b=$other 'BEGIN { printf "%.2f", a / b }') times;" \
            "$(median ours 3) and $(median theirs 3) ns of the process for each"
    done
    rublk del --number 1 >/dev/null
    gone
}
dd if=/dev/urandom of=/tmp/disk bs=1M count=64 2>/dev/null
compare /tmp/disk
losetup /dev/loop0 /tmp/disk
compare /dev/loop0
compare /dev/nullb0
