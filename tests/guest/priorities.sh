# Four readers of class realtime beside one of class idle, for two seconds. Prints the reads of each class.
# The guest's own scheduler must not order them.
echo none >/sys/block/vda/queue/scheduler
reads() { # CLASS
    end=$(($(date +%s) + 3))
    count=0
    while [ "$(date +%s)" -lt "$end" ]; do
        ionice -c "$1" dd if=/dev/vda of=/dev/null bs=4k count=10 iflag=direct 2>/dev/null
        count=$((count + 10))
    done
    echo "$count" >>"/tmp/reads.$1"
}
for reader in 1 2 3 4; do reads 1 & done
reads 3 &
wait
sum() { awk '{ all += $1 } END { print all + 0 }' "$1"; }
echo "realtime: $(($(sum /tmp/reads.1) / 4))"
echo "idle: $(sum /tmp/reads.3)"
