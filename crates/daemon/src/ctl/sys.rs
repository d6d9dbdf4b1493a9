//! The counts of devices in the formats of the kernel: `/sys/block/X/stat`, `/proc/diskstats` and
//! `/sys/block/X/inflight`.
//!
//! Times are exact sums of nanoseconds, printed in whole milliseconds, whereas Linux samples field 10 at the beginnings
//! and ends of requests. Field 11 is the sum of fields 4, 8, 15 and 17, as Linux has it since 5.0.

use blkmq_server::control::DeviceStat;

/// Nanoseconds in a millisecond.
const MS: u64 = 1_000_000;

/// The 17 fields, in order.
pub fn fields(device: &DeviceStat) -> [u64; 17] {
    let of = &device.figures;
    let time = |op: usize| device.stages.total[op].sum;
    let all = (0..3).map(time).sum::<u64>() + device.flush_time;
    let direction = |op: usize| [of.ios[op], of.merged[op], of.bytes[op] / 512, time(op) / MS];
    let ([r1, r2, r3, r4], [w1, w2, w3, w4]) = (direction(0), direction(1));
    let [d1, d2, d3, d4] = direction(2);
    let now = device.in_flight.iter().sum();
    let (flushes, flush_time) = (device.flushes, device.flush_time / MS);
    let busy = device.busy_time / MS;
    [r1, r2, r3, r4, w1, w2, w3, w4, now, busy, all / MS, d1, d2, d3, d4, flushes, flush_time]
}

/// A line of `/sys/block/X/stat`.
pub fn stat(device: &DeviceStat) -> String {
    let line = fields(device).map(|field| format!("{field:>8}"));
    line.join(" ") + "\n"
}

/// A line of `/proc/diskstats` for device `number`. Its major number is 0, which no real device has.
pub fn diskstats(number: usize, device: &DeviceStat) -> String {
    let fields = fields(device).map(|field| field.to_string()).join(" ");
    // Names contain no spaces there.
    format!("{:>4} {number:>7} {} {fields}\n", 0, device.name.replace(char::is_whitespace, "_"))
}

/// A line of `/sys/block/X/inflight`.
pub fn inflight(device: &DeviceStat) -> String {
    let [reads, writes] = device.in_flight;
    format!("{reads:>8} {writes:>8}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ctl::stat::between;
    use blkmq_server::control::{Figures, Stat, Times};

    fn device() -> DeviceStat {
        let mut device = DeviceStat {
            name: "memory, size=1".into(),
            figures: Figures {
                ios: [100, 50, 2],
                bytes: [409_600, 51_200, 8192],
                merged: [25, 150, 0],
                wait: [100 * MS, 0, 0],
                service: [300 * MS, 500 * MS, 7 * MS],
            },
            flushes: 4,
            flush_time: 8 * MS,
            in_flight: [3, 1],
            busy_time: 900 * MS + 999_999,
            ..DeviceStat::default()
        };
        for (op, sum) in [400, 500, 7].into_iter().enumerate() {
            device.stages.total[op] = Times { sum: sum * MS, ..Times::default() };
        }
        device
    }

    #[test]
    fn the_fields_have_the_kernels_order_and_units() {
        let expected = [100, 25, 800, 400, 50, 150, 100, 500, 4, 900, 915, 2, 0, 16, 7, 4, 8];
        assert_eq!(fields(&device()), expected);
        assert_eq!(stat(&device()).split_whitespace().count(), 17);
        let line = diskstats(1, &device());
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!((words.len(), words[2], words[3]), (20, "memory,_size=1", "100"));
        assert_eq!(inflight(&device()).split_whitespace().collect::<Vec<_>>(), ["3", "1"]);
    }

    /// Compares the formulas of sysstat, applied to the fields, with the columns computed from the counts.
    #[test]
    fn iostats_arithmetic_on_the_fields_gives_our_columns() {
        let of = |at, device| Stat { at, exports: Vec::new(), devices: vec![device] };
        let (before, now) = (of(0, DeviceStat::default()), of(2_000_000_000, device()));
        let row = &between(&before, &now).rows[0];
        let f = fields(&device()).map(|field| field as f64);
        let ms = 2000.0;
        let per_second = [f[0], f[4], f[11]].map(|ios| ios / ms * 1000.0);
        let kib = [f[2], f[6], f[13]].map(|sectors| sectors / 2.0 / ms * 1000.0);
        let merged = [(f[1], f[0]), (f[5], f[4])].map(|(m, ios)| 100.0 * m / (m + ios));
        let waits = [f[3] / f[0], f[7] / f[4], f[14] / f[11]];
        assert_eq!((row.ios, row.kib, row.await_ms), (per_second, kib, waits));
        assert_eq!([row.merged[0], row.merged[1]], merged);
        // Flushes count in field 11 but not in the queue of requests.
        assert!((row.queue - (f[10] - f[16]) / ms).abs() < 1e-9);
    }
}
