# The end of block devices over a disk that answers nothing: of an export that is removed, and of a server that is stopped
# under load, or while it starts. Each takes the bound of a drain and little more, is logged, and leaves no thread that waits
# for ever.
. /functions
lost=timeout=1,timeout_nsec=3600s
config() { # EXPORT...
    echo 'listen = "unix:/tmp/nbd.sock"
        bounds.drain = "1s"
        [[device]]
        name = "lost"
        device = "faults,'$lost',space=200:memory,size=64"' >/tmp/toml
    for export in "$@"; do printf '[[export]]\nname = "%s"\ndevice = "lost"\n' "${export%:*}" >>/tmp/toml; done
    sed -i 's/name = "disk"/&\nublk = 0/' /tmp/toml
}
# Readers and writers whose requests are in the device: none has ended for a while.
ended() { awk '{ print $1, $5 }' /sys/block/ublkb0/stat; }
hold() {
    dd if=/dev/ublkb0 of=/dev/null bs=4k iflag=direct 2>/dev/null &
    dd if=/dev/zero of=/dev/ublkb0 bs=4k count=1000 2>/dev/null &
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
kill $first || true
begin=$(now)
wait $first || true
echo "a server is stopped while it starts: $((($(now) - begin) * 10)) ms"
cat /tmp/first
[ ! -e /dev/ublkc1 ]
unreachable >/tmp/unreachable
cat /tmp/unreachable
[ ! -s /tmp/unreachable ]
rmmod ublk_drv
