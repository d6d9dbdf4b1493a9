//! Rates computed from the counts at two times, with the names and formulas of iostat; which export waited behind which
//! between them; and the figures of devices in the formats of Linux.
//!
//! | column | from |
//! |---|---|
//! | r/s, w/s, d/s | completed requests |
//! | rkB/s, wkB/s | their bytes, in KiB |
//! | %rrqm, %wrqm | merged I/Os in percent of merged I/Os and requests |
//! | r_await, w_await | milliseconds from arrival to completion, for a request |
//! | r_wait, w_wait | of which before the device |
//! | aqu-sz | average number of requests waiting or in service |
//! | %short | the part of its floor that an export did not get |
//! | err/s | requests and flushes that failed |
//! | held | unfinished requests at the end of the interval |
//! | oldest | the age of the oldest of them in milliseconds |
//! | share, due | percent of the device's time that an export had, and was due by weight among exports with requests |
//!
//! The table is followed by the exports and devices that are not well, with the reason, and the state of promises.
//!
//! The formats of Linux are counts as in `/sys/block/X/stat`, `/proc/diskstats` and `/sys/block/X/inflight`, and
//! histograms of latencies in powers of two of a microsecond, as biolatency of the BPF tools prints them. Times are
//! exact sums of nanoseconds, printed in whole milliseconds, whereas Linux samples field 10 at the beginnings and ends
//! of requests. Field 11 is the sum of fields 4, 8, 15 and 17, as Linux has it since 5.0.

use super::table;
use crate::top::rates::{Of, OfExport, between as rows, state_lines};
use blkmq_server::control::{
    DeviceStat, ExportStat, ExportWait, Figures, FloorStat, Stages, Stat, Times, Waits,
};
use blkmq_terminal::paper::{Paper, push_line};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The rates of an interval.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Rates {
    /// The length of the interval in seconds.
    seconds: f64,
    /// Exports, followed by devices.
    pub rows: Vec<Row>,
    /// One line for each export or device that is not well, and for each promise.
    said: Vec<String>,
}

/// The rates of an export or a device.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Row {
    /// `export` or `device`.
    kind: &'static str,
    /// The name.
    pub name: String,
    /// Requests per second: reads, writes, discards.
    pub ios: [f64; 3],
    /// KiB per second: reads, writes, discards.
    pub kib: [f64; 3],
    /// Percentage of I/Os that were merged: reads, writes, discards.
    pub merged: [f64; 3],
    /// Average milliseconds per request: reads, writes, discards.
    pub await_ms: [f64; 3],
    /// Average milliseconds of a request before the device: reads, writes, discards.
    wait_ms: [f64; 3],
    /// Average number of requests waiting or in service.
    pub queue: f64,
    /// The percentage of its floor that an export did not get, in the seconds in which it always had requests.
    short: f64,
    /// The floor of an export if it was missed in the interval, or else `None`.
    missed: Option<Missed>,
    /// Failed requests and flushes per second.
    errors: f64,
    /// Unfinished requests at the end of the interval, and the age of the oldest in milliseconds.
    held: u64,
    oldest_ms: f64,
    /// The percentage of the device's time that an export used, and the percentage due to it by weight among exports
    /// with requests.
    share: f64,
    due: f64,
    /// The condition, and the reason if it is not well.
    state: &'static str,
    why: String,
}

/// A floor that was missed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Missed {
    /// The floor, such as `200 IOPS`.
    floor: String,
    /// The number of seconds judged, and of those in which the floor was missed.
    judged: u64,
    seconds: u64,
    /// The most frequent cause, as an identifier and as a clause.
    cause: &'static str,
    pub text: &'static str,
}

/// Computes the rates between two counts.
pub fn between(before: &Stat, now: &Stat) -> Rates {
    let seconds = now.at.saturating_sub(before.at) as f64 / 1e9;
    let shown = rows(before, now);
    let part = |name: &str| {
        let of = shown.iter().filter(|row| row.name == name).find_map(|row| match row.of {
            Of::Export(OfExport { share, due, .. }) => Some((100.0 * share, 100.0 * due)),
            Of::Device(_) => None,
        });
        of.unwrap_or_default()
    };
    let export = |it: &ExportStat| {
        let before = before.exports.iter().find(|old| old.name == it.name);
        let figures = before.map(|old| old.figures).unwrap_or_default();
        let short = it.short_time.saturating_sub(before.map_or(0, |old| old.short_time));
        let short = if seconds > 0.0 { short as f64 / 1e7 / seconds } else { 0.0 };
        let errors = failed(&it.errors, before.map(|old| &old.errors), seconds);
        let none = FloorStat::default();
        let (judged, seconds_missed, cause) =
            it.floor.since(before.map_or(&none, |old| &old.floor));
        let missed = cause.map(|cause| Missed {
            floor: it.floor.promised.clone(),
            judged,
            seconds: seconds_missed,
            cause: cause.name(),
            text: cause.text(),
        });
        let (held, oldest_ms) = (it.held.in_flight + it.held.waiting, it.held.oldest as f64 / 1e6);
        let row = row("export", &it.name, &figures, &it.figures, seconds);
        let ((share, due), state) = (part(&it.name), it.condition.state.name());
        let why = it.condition.why.clone();
        Row { short, errors, missed, held, oldest_ms, share, due, state, why, ..row }
    };
    let device = |(it, before): (&DeviceStat, &DeviceStat)| {
        let errors = failed(&it.errors, Some(&before.errors), seconds);
        let (held, oldest_ms) =
            (it.in_flight.iter().sum::<u64>() + it.waiting, it.oldest as f64 / 1e6);
        let row = row("device", &it.name, &before.figures, &it.figures, seconds);
        let (state, why) = (it.condition.state.name(), it.condition.why.clone());
        Row { errors, held, oldest_ms, state, why, ..row }
    };
    let devices = now.devices.iter().zip(&before.devices).map(device);
    let rows = now.exports.iter().map(export).chain(devices).collect();
    let said = state_lines(before, now).into_iter().map(|line| line.text).collect();
    Rates { seconds, rows, said }
}

/// Returns failures per second.
fn failed(now: &[u64; 4], before: Option<&[u64; 4]>, seconds: f64) -> f64 {
    let sum = |all: &[u64; 4]| all.iter().sum::<u64>();
    let grown = sum(now).saturating_sub(before.map_or(0, sum));
    if seconds > 0.0 { grown as f64 / seconds } else { 0.0 }
}

fn row(kind: &'static str, name: &str, before: &Figures, now: &Figures, seconds: f64) -> Row {
    let grown = now.since(before);
    let over = |part: f64, all: f64| if all > 0.0 { part / all } else { 0.0 };
    let each = |f: &dyn Fn(usize) -> f64| [f(0), f(1), f(2)];
    let ios = |at: usize| grown.ios[at] as f64;
    let merged = |at: usize| grown.merged[at] as f64;
    let wait = |at: usize| grown.wait[at] as f64;
    let all = |at: usize| wait(at) + grown.service[at] as f64;
    Row {
        kind,
        name: name.to_owned(),
        ios: each(&|at| over(ios(at), seconds)),
        kib: each(&|at| over(grown.bytes[at] as f64 / 1024.0, seconds)),
        merged: each(&|at| 100.0 * over(merged(at), merged(at) + ios(at))),
        await_ms: each(&|at| over(all(at) / 1e6, ios(at))),
        wait_ms: each(&|at| over(wait(at) / 1e6, ios(at))),
        queue: over((0..3).map(all).sum::<f64>() / 1e9, seconds),
        ..Row::default()
    }
}

/// The columns of [`text`].
const COLUMNS: &str = ",name,r/s>,rkB/s>,%rrqm>,r_await>,r_wait>,w/s>,wkB/s>,%wrqm>,w_await>,w_wait>,\
    aqu-sz>,%short>,err/s>,held>,oldest>,share>,due>,state";

/// Formats the rates as a table of at most `width` columns.
pub fn text(rates: &Rates, width: usize) -> String {
    let mut out = table(COLUMNS);
    for row in &rates.rows {
        let mut cells = vec![row.kind.to_owned(), row.name.clone()];
        for at in 0..2 {
            let figures =
                [row.ios[at], row.kib[at], row.merged[at], row.await_ms[at], row.wait_ms[at]];
            cells.extend(figures.map(|figure| format!("{figure:.2}")));
        }
        cells.extend([row.queue, row.short, row.errors].map(|figure| format!("{figure:.2}")));
        cells.extend([row.held.to_string(), format!("{:.2}", row.oldest_ms)]);
        cells.extend([row.share, row.due].map(|figure| format!("{figure:.1}")));
        cells.push(row.state.to_owned());
        out.row(&cells);
    }
    let mut paper = Paper::new(width);
    paper.table(&out);
    paper.push('\n');
    rates.said.iter().for_each(|line| push_line(&mut paper, 0, line));
    for row in &rates.rows {
        if let Some(Missed { floor, judged, seconds, text, .. }) = &row.missed {
            let name = &row.name;
            let line = format!(
                "{name}: floor {floor} missed in {seconds} of {judged} seconds; cause: {text}"
            );
            push_line(&mut paper, 0, &line);
        }
    }
    paper.finish()
}

/// The waits of an interval.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Interval {
    /// The length of the interval in seconds.
    seconds: f64,
    /// Rows, grouped by export. The export that waited longest comes first, and so does its longest wait.
    pub rows: Vec<WaitRow>,
}

/// The time for which an export waited behind another one, or behind itself.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct WaitRow {
    /// The number of the device, counted from 1.
    device: usize,
    /// The export that waited.
    export: String,
    /// The export that had requests at the device; `None` while the device was idle.
    behind: Option<String>,
    /// The duration in milliseconds.
    waited_ms: f64,
    /// The percentage of the interval. It may exceed 100 if a device has several elevators.
    waited: f64,
}

type Export<'a> = (usize, &'a str);

fn export(wait: &ExportWait) -> Export<'_> {
    (wait.device, &wait.export)
}

/// The waits between two moments, without those of zero duration.
pub fn waited_between(before: &Waits, now: &Waits) -> Interval {
    let mut grown: BTreeMap<(Export<'_>, Option<&str>), u64> = BTreeMap::new();
    // Removed exports share a name, so a pair may occur more than once.
    for wait in &now.waits {
        *grown.entry((export(wait), wait.behind.as_deref())).or_default() += wait.time;
    }
    for wait in &before.waits {
        let time = grown.entry((export(wait), wait.behind.as_deref())).or_default();
        *time = time.saturating_sub(wait.time);
    }
    grown.retain(|_, time| *time > 0);
    let mut sums: BTreeMap<Export<'_>, u64> = BTreeMap::new();
    for ((export, _), time) in &grown {
        *sums.entry(*export).or_default() += time;
    }
    let mut grown = Vec::from_iter(grown);
    grown.sort_by_key(|((export, _), time)| (Reverse(sums[export]), *export, Reverse(*time)));
    let seconds = now.at.saturating_sub(before.at) as f64 / 1e9;
    let row = |((export, behind), time): ((Export<'_>, Option<&str>), u64)| WaitRow {
        device: export.0,
        export: export.1.to_owned(),
        behind: behind.map(str::to_owned),
        waited_ms: time as f64 / 1e6,
        waited: if seconds > 0.0 { time as f64 / 1e7 / seconds } else { 0.0 },
    };
    Interval { seconds, rows: grown.into_iter().map(row).collect() }
}

/// Formats the waits as a table of at most `width` columns.
pub fn waits_text(interval: &Interval, width: usize) -> String {
    let mut out = table("device>,export,behind,waited (ms)>,%>");
    for row in &interval.rows {
        let behind = match row.behind.as_deref() {
            None => "(nothing)",
            Some(other) if other == row.export => "(itself)",
            Some(other) => other,
        };
        out.row(&[
            row.device.to_string(),
            row.export.clone(),
            behind.to_owned(),
            format!("{:.1}", row.waited_ms),
            format!("{:.1}", row.waited),
        ]);
    }
    out.render_within(width) + "\n"
}

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
pub fn sysfs_stat(device: &DeviceStat) -> String {
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
    use blkmq_server::control::{Figures, Stat, Times};
    use std::collections::BTreeMap;

    #[test]
    fn rates_are_those_of_iostat() {
        let figures = Figures {
            ios: [100, 50, 0],
            bytes: [409_600, 51_200, 0],
            merged: [0, 150, 0],
            wait: [100_000_000, 0, 0],
            service: [300_000_000, 500_000_000, 0],
        };
        let stat = |at, figures| Stat {
            at,
            exports: vec![ExportStat {
                name: "a".into(),
                figures,
                short_time: figures.ios[0] * 5_000_000,
                errors: [figures.ios[0], 0, 0, 2],
                floor: FloorStat {
                    promised: "200 IOPS".into(),
                    seconds: at / 1_000_000_000,
                    missed: BTreeMap::from([
                        ("slots".into(), 3),
                        ("device".into(), 3 + at / 2_000_000_000),
                    ]),
                    ..FloorStat::default()
                },
                ..ExportStat::default()
            }],
            devices: vec![],
        };
        let rates = between(&stat(5, Figures::default()), &stat(2_000_000_005, figures));
        assert!((rates.seconds - 2.0).abs() < 1e-9);
        let row = &rates.rows[0];
        assert_eq!((row.ios, row.kib), ([50.0, 25.0, 0.0], [200.0, 25.0, 0.0]));
        assert_eq!((row.merged, row.await_ms), ([0.0, 75.0, 0.0], [4.0, 10.0, 0.0]));
        assert_eq!((row.wait_ms, row.queue), ([1.0, 0.0, 0.0], 0.45));
        assert!((row.short - 25.0).abs() < 1e-9, "half a second of two: {row:?}");
        assert!((row.errors - 50.0).abs() < 1e-9, "of all operations: {row:?}");
        let missed = row.missed.as_ref().expect("more of one cause");
        assert_eq!((missed.judged, missed.seconds, missed.cause), (2, 1, "device"));
        let wide = text(&rates, 200);
        let line = "a: floor 200 IOPS missed in 1 of 2 seconds; cause: the device holds too much";
        assert_eq!(wide.lines().last(), Some(line));
        assert!(wide.lines().next().is_some_and(|line| line.contains("r_await")), "{wide}");
        let narrow = text(&rates, 60);
        assert!(
            narrow.lines().all(|line| line.len() <= 60) && narrow.contains("aqu-sz"),
            "{narrow}"
        );
    }

    #[test]
    fn nothing_between_is_no_rate() {
        let stat = Stat { exports: vec![ExportStat::default()], ..Stat::default() };
        let rates = between(&stat, &stat);
        assert_eq!((rates.rows[0].ios, rates.rows[0].queue), ([0.0; 3], 0.0));
    }

    fn waits(at: u64, of: &[(&str, Option<&str>, u64)]) -> Waits {
        let one = |(export, behind, ms): &(&str, Option<&str>, u64)| ExportWait {
            device: 1,
            export: (*export).to_owned(),
            behind: behind.map(str::to_owned),
            time: ms * 1_000_000,
        };
        Waits { at, waits: of.iter().map(one).collect() }
    }

    #[test]
    fn the_export_that_waited_most_is_first_with_its_longest_wait() {
        let before = waits(5, &[("a", Some("b"), 1000), ("b", Some("a"), 70)]);
        let now = [
            ("a", None, 100),
            ("a", Some("b"), 1000),
            ("b", Some("a"), 1070),
            ("b", Some("b"), 20),
            ("a", Some("a"), 300),
            ("a", Some("a"), 200),
        ];
        let interval = waited_between(&before, &waits(2_000_000_005, &now));
        let rows = interval.rows.iter();
        let rows = rows.map(|row| (&*row.export, row.behind.as_deref(), row.waited_ms, row.waited));
        let expected = [
            ("b", Some("a"), 1000.0, 50.0),
            ("b", Some("b"), 20.0, 1.0),
            ("a", Some("a"), 500.0, 25.0),
            ("a", None, 100.0, 5.0),
        ];
        assert_eq!(rows.collect::<Vec<_>>(), expected);
        let text = waits_text(&interval, 100);
        let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let lines: Vec<_> = text.lines().map(cells).collect();
        assert_eq!(lines[2], ["1", "b", "a", "1000.0", "50.0"]);
        assert_eq!(lines[3][2], "(itself)");
        assert_eq!(lines[5][1..3], ["a", "(nothing)"]);
    }

    #[test]
    fn no_wait_is_no_row() {
        let same = waits(7, &[("a", Some("b"), 1000)]);
        let interval = waited_between(&same, &same);
        assert_eq!((interval.seconds, interval.rows.len()), (0.0, 0));
        assert!(waits_text(&interval, 100).starts_with("device"));
    }

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
        assert_eq!(sysfs_stat(&device()).split_whitespace().count(), 17);
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
