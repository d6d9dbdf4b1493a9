# The end of block devices over a disk that answers nothing: of an export that is removed, and of a server that is stopped
# under load, or while it starts. Each takes the bound of a drain and little more, is logged, and leaves no thread that waits
# for ever. Then devices that are added to a running server and removed, by blkmqctl and by reloads: 30 times, in the long form
# 1,000 times, after which descriptors, threads, memory and the kernel's objects are as many as before.
. /functions
lost=timeout=1,timeout_nsec=3600s
device=faults,$lost,space=200:memory,size=64
config() { # EXPORT...
    echo 'listen = "unix:/tmp/nbd.sock"
        bounds.drain = "1s"
        [[device]]
        name = "below"
        device = "'$device'"' >/tmp/toml
    for export in "$@"; do printf '[[export]]\nname = "%s"\ndevice = "below"\n' "$export" >>/tmp/toml; done
    sed -i 's/name = "disk"/&\nublk = 0/' /tmp/toml
}
# Readers and writers whose requests are in the device: there are some, and none has ended for a while.
ended() { awk '{ print $1, $5 }' /sys/block/ublkb0/stat; }
hold() {
    dd if=/dev/ublkb0 of=/dev/null bs=4k iflag=direct 2>/dev/null &
    dd if=/dev/zero of=/dev/ublkb0 bs=4k count=1000 2>/dev/null &
    until awk '{ exit !($1 + $2) }' /sys/block/ublkb0/inflight; do sleep 0.1; done
    before=
    while [ "$(ended)" != "$before" ]; do before=$(ended); sleep 0.5; done
}
within() { # SECONDS BEGIN OF-WHAT
    taken=$(($(now) - $2))
    echo "$3: $((taken * 10)) ms"
    [ $taken -le $(($1 * 100)) ]
}
# A server whose device answers not even the partition scan, which kernels before 6.19 do in START_DEV.
blkmqd --device=faults,$lost:memory,size=64 --export=first,ublk=1 --listen=unix:/tmp/other.sock >/tmp/first 2>&1 &
first=$!

config disk other
start /tmp/toml
hold
begin=$(now)
config other
kill -HUP $server
await ! -e /dev/ublkc0
within 5 "$begin" "an export is removed"
grep -c 'takes too long to stop: its requests fail' /tmp/log
kill $server
wait $server

config disk
start /tmp/toml
hold
begin=$(now)
gone
within 5 "$begin" "a server is stopped"
[ "$(grep -c 'takes too long to stop: its requests fail' /tmp/log)" = 2 ]

# Devices of a running server.
device=memory,size=64
ctl() { blkmqctl --control=/tmp/nbd.sock.control "$@"; }
config other
# Buffers of a device that are freed go back to the system, so that the memory of a process is what it uses.
MALLOC_MMAP_THRESHOLD_=65536 blkmqd /tmp/toml >>/tmp/log 2>&1 &
server=$!
await -S /tmp/nbd.sock.control
ctl add disk,ublk=0,size=1m
[ "$(cat /sys/block/ublkb0/size)" = 2048 ]
ctl list | grep '/dev/ublkb0'
ctl diff | grep "'disk': added"
refused ctl add second,ublk=0
grep "is the block device of the export 'disk'" /tmp/other
refused ctl add second,ublk=1,size=1t
ctl list >/tmp/list
refused grep '^second ' /tmp/list
ctl remove disk
[ ! -e /dev/ublkc0 ]
refused ctl remove disk
config other disk && mv /tmp/toml /tmp/with
config other && mv /tmp/toml /tmp/without
cycles() {
    for cycle in $(seq $1); do
        mv /tmp/with /tmp/toml
        kill -HUP $server
        await -b /dev/ublkb0
        mv /tmp/toml /tmp/with
        cp /tmp/without /tmp/toml
        kill -HUP $server
        await ! -e /dev/ublkc0
    done
}
# Objects of the kernel by cache, which frees some of them later: more than one for two cycles is a leak.
objects() {
    echo 3 >/proc/sys/vm/drop_caches
    sleep 1
    awk 'NR > 2 { print $1, $2 }' /proc/slabinfo
}
state() {
    ls /proc/$server/fd | wc -l
    ls /proc/$server/task | wc -l
}
times=30
[ "$FORM" = short ] || times=1000
cycles 10
objects >/tmp/objects
state >/tmp/before
memory=$(awk '/VmRSS/ { print $2 }' /proc/$server/status)
begin=$(now)
cycles $times
objects >/tmp/more
state >/tmp/after
grown=$(($(awk '/VmRSS/ { print $2 }' /proc/$server/status) - memory))
diff /tmp/before /tmp/after
echo "$times devices added and removed in $((($(now) - begin) / 100)) s: $(tr '\n' ' ' </tmp/after)descriptors and threads; $grown KiB more"
awk -v least=$((times / 2)) 'NR == FNR { old[$1] = $2; next } $2 - old[$1] > least { print $1, old[$1], $2 }' \
    /tmp/objects /tmp/more
[ $grown -le 1024 ]
kill $server
wait $server

kill $first || true
begin=$(now)
wait $first || true
echo "a server is stopped while it starts: $((($(now) - begin) * 10)) ms"
cat /tmp/first
[ "$(ls /dev /sys/block /sys/class/ublk-char | grep -c 'ublk[bc]')" = 0 ]
unreachable >/tmp/unreachable
cat /tmp/unreachable
[ ! -s /tmp/unreachable ]
rmmod ublk_drv
