//! The figures of devices in the formats of Linux: counts as in `/sys/block/X/stat`, `/proc/diskstats` and
//! `/sys/block/X/inflight`, and histograms of latencies in powers of two of a microsecond, as biolatency of the BPF
//! tools prints them.
//!
//! Times are exact sums of nanoseconds, printed in whole milliseconds, whereas Linux samples field 10 at the
//! beginnings and ends of requests. Field 11 is the sum of fields 4, 8, 15 and 17, as Linux has it since 5.0.

use blkmq_server::control::{DeviceStat, Stages, Times};
use serde::Serialize;
use std::fmt::Write;

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

/// Operations, in the order of the counts.
const OPS: [&str; 4] = ["Read", "Write", "Discard", "Flush"];
/// The maximum width of a bar, in characters.
const STARS: u64 = 40;

/// The choice of histograms to show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// `-Q`: includes the time before the device.
    pub queued: bool,
    /// `-F`: one histogram for each operation.
    pub by_op: bool,
}

/// A histogram.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Histogram {
    /// The name of the device or export.
    pub name: String,
    /// The operation, or `None` if operations are not separated.
    op: Option<&'static str>,
    /// I/Os by latency in microseconds: slots for 0 to 1, 2 to 3, 4 to 7 and so on, in powers of two.
    pub slots: Vec<u64>,
}

/// The histograms of an interval, omitting those without I/Os.
pub fn histograms(name: &str, before: &Stages, now: &Stages, choice: Choice) -> Vec<Histogram> {
    let of = |stages: &Stages, op: usize| -> Times {
        if choice.queued { stages.total[op].clone() } else { stages.device[op].clone() }
    };
    let each = |op: usize| slots(&of(now, op).since(&of(before, op)));
    let named = |op, slots| Histogram { name: name.to_owned(), op, slots };
    let mut all: Vec<Histogram> = if choice.by_op {
        (0..4).map(|op| named(Some(OPS[op]), each(op))).collect()
    } else {
        let mut sum = Vec::new();
        (0..4).for_each(|op| add(&mut sum, &each(op)));
        vec![named(None, sum)]
    };
    all.retain(|one| !one.slots.is_empty());
    all
}

fn add(sum: &mut Vec<u64>, more: &[u64]) {
    sum.resize(sum.len().max(more.len()), 0);
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
}

/// Converts bucketed times to slots. A time counts in the slot of its whole microseconds; for a bucket, its upper end
/// decides.
fn slots(times: &Times) -> Vec<u64> {
    let mut slots = Vec::new();
    for (end, count) in &times.buckets {
        let slot = (end / 1000).max(1).ilog2() as usize;
        slots.resize(slots.len().max(slot + 1), 0);
        slots[slot] += count;
    }
    slots
}

/// Formats the histograms. An interval without I/O gives an empty line, which shows that it has passed; and only a
/// write reveals that the reader has gone.
pub fn histograms_text(all: &[Histogram]) -> String {
    let mut out = String::new();
    if all.is_empty() {
        out.push('\n');
    }
    for Histogram { name, op, slots } in all {
        let op = op.map(|op| format!(", flags = {op}")).unwrap_or_default();
        let most = slots.iter().copied().max().unwrap_or(0).max(1);
        // Writing to a text does not fail.
        let _ = writeln!(out, "disk = {name}{op}");
        let _ = writeln!(out, "{:>10}{:>20} : count    distribution", "", "usecs");
        for (slot, count) in slots.iter().enumerate() {
            let (from, to) = (if slot == 0 { 0 } else { 1u64 << slot }, (2u64 << slot) - 1);
            let stars = "*".repeat((count * STARS / most) as usize);
            let _ = writeln!(out, "{from:>10} -> {to:<15}  : {count:<8} |{stars:<40}|");
        }
        out.push('\n');
    }
    out
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

    fn stages() -> Stages {
        let times =
            |buckets: &[(u64, u64)]| Times { buckets: buckets.to_vec(), ..Times::default() };
        let mut stages = Stages::default();
        stages.device[0] = times(&[(999, 1), (1_500, 2), (3_999, 4), (4_000, 8)]);
        stages.device[1] = times(&[(65_000, 3)]);
        stages.total[0] = times(&[(1_000_000, 15)]);
        stages
    }

    #[test]
    fn times_are_counted_by_powers_of_two() {
        let none = Stages::default();
        let of = |queued, by_op| histograms("d", &none, &stages(), Choice { queued, by_op });
        assert_eq!(of(false, false)[0].slots, [3, 4, 8, 0, 0, 0, 3]);
        let apart = of(false, true);
        assert_eq!(apart.iter().map(|it| it.op).collect::<Vec<_>>(), [Some("Read"), Some("Write")]);
        assert_eq!(of(true, false)[0].slots[9], 15);
        let same = Choice { queued: false, by_op: false };
        assert_eq!(histograms("d", &stages(), &stages(), same), []);
    }

    #[test]
    fn an_interval_without_io_is_an_empty_line() {
        assert_eq!(histograms_text(&[]), "\n");
    }

    #[test]
    fn it_is_printed_as_biolatency_prints() {
        let all =
            histograms("d", &Stages::default(), &stages(), Choice { queued: false, by_op: true });
        let text = histograms_text(&all);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "disk = d, flags = Read");
        assert_eq!(
            lines[1],
            "               usecs : count    distribution".replacen("     ", "               ", 1)
        );
        let bar = "*".repeat(40);
        assert_eq!(lines[4], format!("         4 -> 7                : 8        |{bar}|"));
    }
}
