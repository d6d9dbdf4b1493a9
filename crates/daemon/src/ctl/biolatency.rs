//! A histogram of latencies in powers of two of a microsecond, as biolatency of the BPF tools prints it.

use blkmq_server::control::{Stages, Times};
use serde::Serialize;
use std::fmt::Write;

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
    pub op: Option<&'static str>,
    /// I/Os by latency in microseconds: slots for 0 to 1, 2 to 3, 4 to 7 and so on, in powers of two.
    pub slots: Vec<u64>,
}

/// The histograms of an interval, omitting those without I/Os.
pub fn between(name: &str, before: &Stages, now: &Stages, choice: Choice) -> Vec<Histogram> {
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
pub fn text(all: &[Histogram]) -> String {
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
        let of = |queued, by_op| between("d", &none, &stages(), Choice { queued, by_op });
        assert_eq!(of(false, false)[0].slots, [3, 4, 8, 0, 0, 0, 3]);
        let apart = of(false, true);
        assert_eq!(apart.iter().map(|it| it.op).collect::<Vec<_>>(), [Some("Read"), Some("Write")]);
        assert_eq!(of(true, false)[0].slots[9], 15);
        let same = Choice { queued: false, by_op: false };
        assert_eq!(between("d", &stages(), &stages(), same), []);
    }

    #[test]
    fn an_interval_without_io_is_an_empty_line() {
        assert_eq!(text(&[]), "\n");
    }

    #[test]
    fn it_is_printed_as_biolatency_prints() {
        let all =
            between("d", &Stages::default(), &stages(), Choice { queued: false, by_op: true });
        let text = text(&all);
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
