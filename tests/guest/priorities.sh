# Beside four readers of class realtime: the time of 100 reads of class realtime, and of as many of class idle, which is
# given up after six seconds. The guest's own scheduler must not order them. They read behind the four, which an elevator
# would pass by otherwise.
echo none >/sys/block/vda/queue/scheduler
read_as() { # CLASS COUNT FIRST
    ionice -c "$1" dd if=/dev/vda of=/dev/null bs=4k count="$2" skip="$3" iflag=direct 2>/dev/null
}
for reader in 1 2 3 4; do read_as 1 100000 0 & done
sleep 0.3
now() { sed 's/ .*//; s/\.//' /proc/uptime; }
for class in 1 3; do
    begin=$(now)
    read_as $class 100 15000 &
    reads=$!
    for tick in $(seq 120); do kill -0 $reads 2>/dev/null && sleep 0.05; done
    echo "class $class: $((($(now) - begin) * 10)) ms"
    kill $reads 2>/dev/null || true
done
killall dd
