//! Computes the figures of an interval from the counts at its ends, which `columns.rs` formats; and the condition of
//! exports and the state of their promises, as the lines that `list`, `stat` and `top` print below their tables.

use blkmq_server::control::{
    Bounded, Condition, DeviceStat, ExportStat, Figures, FloorStat, GoalStat, Held, Stages, Stat,
    Times, time,
};
use std::collections::BTreeMap;

/// The reads and writes among the operations of [`Stages`].
const READS_AND_WRITES: usize = 2;

/// The growth of a device's or export's counts in an interval, and its state at the end.
#[derive(Clone, Debug)]
pub struct Row {
    pub name: String,
    /// The number of the device, counted from 1.
    pub device: usize,
    /// The length of the interval in seconds.
    pub seconds: f64,
    pub figures: Figures,
    /// Times of reads and writes in the queue, at the device, and in total.
    pub times: [Times; 3],
    /// The unfinished requests at the end of the interval.
    pub held: Held,
    /// The number of failed requests.
    pub errors: u64,
    /// The condition at the end of the interval.
    pub condition: Condition,
    pub of: Of,
}

/// The figures of one kind of row.
#[derive(Clone, Debug)]
pub enum Of {
    Device(OfDevice),
    Export(OfExport),
}

#[derive(Clone, Debug)]
pub struct OfDevice {
    pub scheduler: String,
    pub flushes: u64,
    pub flush_time: u64,
    pub busy: u64,
}

#[derive(Clone, Debug)]
pub struct OfExport {
    pub weight: u32,
    pub connections: usize,
    /// Nanoseconds for which the floor was not kept.
    pub short: u64,
    /// The device time charged, in nanoseconds.
    pub charged: u64,
    /// The share of the device's time, the share due by weight among exports with requests, and the share of the
    /// bytes.
    pub share: f64,
    pub due: f64,
    pub bytes: f64,
}

impl Row {
    pub fn is_export(&self) -> bool {
        matches!(self.of, Of::Export(_))
    }
}

/// The rows of the interval between two counts: each device, followed by its exports. Exports that did not exist at the
/// beginning are omitted.
pub fn between(before: &Stat, now: &Stat) -> Vec<Row> {
    let seconds = now.at.saturating_sub(before.at) as f64 / 1e9;
    let mut rows = Vec::new();
    for (number, (one, old)) in (1..).zip(now.devices.iter().zip(&before.devices)) {
        rows.push(device(number, one, old, seconds));
        let old = |name: &str| before.exports.iter().find(|old| old.name == name);
        let exports = now.exports.iter().filter(|one| one.device == number);
        let pairs = exports.filter_map(|one| old(&one.name).map(|old| (one, old)));
        let mut exports: Vec<Row> = pairs.map(|(one, old)| export(one, old, seconds)).collect();
        divide(&mut exports);
        rows.append(&mut exports);
    }
    rows
}

fn device(number: usize, now: &DeviceStat, before: &DeviceStat, seconds: f64) -> Row {
    Row {
        name: now.name.clone(),
        device: number,
        seconds,
        figures: now.figures.since(&before.figures),
        times: times(&now.stages, &before.stages),
        of: Of::Device(OfDevice {
            scheduler: now.scheduler.clone(),
            flushes: now.flushes.saturating_sub(before.flushes),
            flush_time: now.flush_time.saturating_sub(before.flush_time),
            busy: now.busy_time.saturating_sub(before.busy_time),
        }),
        held: Held {
            in_flight: now.in_flight.iter().sum(),
            waiting: now.waiting,
            oldest: now.oldest,
            waited: 0,
        },
        errors: failed(&now.errors, &before.errors),
        condition: now.condition.clone(),
    }
}

fn export(now: &ExportStat, before: &ExportStat, seconds: f64) -> Row {
    Row {
        name: now.name.clone(),
        device: now.device,
        seconds,
        figures: now.figures.since(&before.figures),
        times: times(&now.stages, &before.stages),
        held: now.held,
        errors: failed(&now.errors, &before.errors),
        condition: now.condition.clone(),
        of: Of::Export(OfExport {
            weight: now.weight,
            connections: now.connections,
            short: now.short_time.saturating_sub(before.short_time),
            charged: now.charged.saturating_sub(before.charged),
            share: 0.0,
            due: 0.0,
            bytes: 0.0,
        }),
    }
}

fn failed(now: &[u64; 4], before: &[u64; 4]) -> u64 {
    now.iter().sum::<u64>().saturating_sub(before.iter().sum())
}

fn times(now: &Stages, before: &Stages) -> [Times; 3] {
    let of = |stage: fn(&Stages) -> &[Times; 4]| {
        let pairs = stage(now).iter().zip(stage(before)).take(READS_AND_WRITES);
        sum(pairs.map(|(now, before)| now.since(before)))
    };
    [of(|it| &it.queue), of(|it| &it.device), of(|it| &it.total)]
}

fn sum(all: impl Iterator<Item = Times>) -> Times {
    let mut buckets = BTreeMap::new();
    let mut whole = Times::default();
    for times in all {
        whole.count += times.count;
        whole.sum += times.sum;
        for (end, count) in times.buckets {
            *buckets.entry(end).or_insert(0) += count;
        }
    }
    whole.buckets = buckets.into_iter().collect();
    whole
}

/// Computes the shares of the exports of one device.
fn divide(exports: &mut [Row]) {
    let moved = |row: &Row| row.figures.bytes.iter().sum::<u64>();
    // The device time used, and the weight if the export has requests.
    let claim = |row: &Row| match row.of {
        Of::Export(OfExport { charged, weight, .. }) => {
            let asks = charged > 0 || row.held.in_flight + row.held.waiting > 0;
            (charged, if asks { u64::from(weight) } else { 0 })
        }
        Of::Device(_) => (0, 0),
    };
    let bytes_of_all: u64 = exports.iter().map(moved).sum();
    let claims = exports.iter().map(claim);
    let (time, weights) = claims.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    for row in exports {
        let (own, (had, weight)) = (moved(row), claim(row));
        if let Of::Export(of) = &mut row.of {
            (of.share, of.due) = (part(had, time), part(weight, weights));
            of.bytes = part(own, bytes_of_all);
        }
    }
}

/// Returns `part / whole`, or 0 if the whole is 0.
pub fn part(part: u64, whole: u64) -> f64 {
    if whole > 0 { part as f64 / whole as f64 } else { 0.0 }
}

/// A line. Bad news comes first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StateLine {
    pub text: String,
    /// Whether something is wrong.
    pub is_bad: bool,
}

/// The lines of the interval between two counts: first one for each device and export that is not well, then the
/// promises.
pub fn state_lines(before: &Stat, now: &Stat) -> Vec<StateLine> {
    let seconds = now.at.saturating_sub(before.at) as f64 / 1e9;
    let devices = now.devices.iter().map(|it| (&it.name, &it.condition));
    let exports = now.exports.iter().map(|it| (&it.name, &it.condition));
    let ill = devices.chain(exports).filter(|(_, condition)| !condition.state.is_well());
    let bad = |(name, Condition { state, why }): (&String, &Condition)| StateLine {
        text: format!("{}: {}: {why}", named(name), state.name()),
        is_bad: true,
    };
    let mut lines = Vec::from_iter(ill.map(bad));
    for one in &now.exports {
        let old = before.exports.iter().find(|old| old.name == one.name);
        let mut parts = promised(&one.goals, &one.floor);
        if let Some(old) = old.filter(|_| seconds > 0.0) {
            parts.extend(ceilings(&one.max, &one.figures.since(&old.figures), seconds));
        }
        if !parts.is_empty() {
            let text = format!("{}: {}", named(&one.name), parts.join("; "));
            lines.push(StateLine { text, is_bad: false });
        }
    }
    for device in now.devices.iter().filter(|it| !it.bounded.is_empty()) {
        let text = format!("{}: left beside goals: {}", device.name, bounded(&device.bounded));
        lines.push(StateLine { text, is_bad: false });
    }
    lines
}

fn named(export: &str) -> &str {
    if export.is_empty() { "(unnamed)" } else { export }
}

/// The goals and the floor of an export, and their state.
pub fn promised(goals: &[GoalStat], floor: &FloorStat) -> Vec<String> {
    let mut parts = Vec::from_iter(goals.iter().map(goal));
    if !floor.promised.is_empty() {
        let state = if floor.state.is_empty() { "idle" } else { &floor.state };
        parts.push(format!("floor {} {state}", floor.promised));
    }
    parts
}

fn goal(goal: &GoalStat) -> String {
    let GoalStat { word, target, state, p99, windows, missed } = goal;
    let mut text = format!("goal {word} {} {state}", time(*target));
    if *windows > 0 {
        text += &format!(" at {}, missed in {missed} of {windows} windows", time(*p99));
    }
    text
}

/// The use of each ceiling that is set.
fn ceilings(max: &str, came: &Figures, seconds: f64) -> Vec<String> {
    let ios = |at: usize| came.ios[at] + came.merged[at];
    let used = |word: &str| match word {
        "rbps" => Some(came.bytes[0]),
        "wbps" => Some(came.bytes[1]),
        "riops" => Some(ios(0)),
        "wiops" => Some(ios(1) + ios(2)),
        "bps" => Some(came.bytes[0] + came.bytes[1]),
        "iops" => Some(ios(0) + ios(1) + ios(2)),
        _ => None,
    };
    let all = max.split_whitespace().filter_map(|word| word.split_once('='));
    let one = |(word, limit): (&str, &str)| {
        let (used, limit) = (used(word)? as f64 / seconds, limit.parse::<u64>().ok()? as f64);
        Some(if word.ends_with("iops") {
            format!("{word} {used:.0} of {limit:.0}")
        } else {
            format!("{word} {} of {}", bytes(used), bytes(limit))
        })
    };
    all.filter_map(one).collect()
}

fn bytes(number: f64) -> String {
    let units = [(1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")];
    let (of, unit) = units.into_iter().find(|(of, _)| number >= *of).unwrap_or((1.0, "B/s"));
    format!("{:.1} {unit}", number / of)
}

/// Describes the bounds of exports without a goal.
fn bounded(bounds: &Bounded) -> String {
    let one = |(name, bound): (&String, &u64)| match name.as_str() {
        "length" => format!("requests of {} KiB", bound / 1024),
        "depth" => format!("{bound} requests at the device"),
        "lighter" => format!("{} for lighter exports", bytes(*bound as f64)),
        "equal" => format!("{} for exports as heavy", bytes(*bound as f64)),
        _ => format!("{} for {name} exports", bytes(*bound as f64)),
    };
    Vec::from_iter(bounds.iter().map(one)).join(", ")
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use blkmq_server::control::{DeviceStat, State};

    /// Returns counts at two moments, 2 s apart: of two exports with weights 300 and 100, the first has read 100
    /// requests of 4 KiB and written 50, and the second has done nothing.
    pub fn two() -> [Stat; 2] {
        let times = |count, end| Times { count, sum: count * end, buckets: vec![(end, count)] };
        let mut stages = Stages::default();
        (stages.queue[0], stages.device[0]) = (times(100, 1_000_000), times(100, 3_000_000));
        (stages.total[0], stages.total[1]) = (times(100, 4_000_000), times(1, 90_000_000));
        let figures = Figures {
            ios: [100, 50, 0],
            bytes: [409_600, 51_200, 0],
            merged: [0, 150, 0],
            wait: [100_000_000, 0, 0],
            service: [300_000_000, 500_000_000, 0],
        };
        let gold = ExportStat {
            held: Held { in_flight: 2, waiting: 3, oldest: 4_000_000, waited: 3_000_000 },
            errors: [6, 0, 0, 0],
            charged: 900_000_000,
            condition: Condition { state: State::Errors, why: "6 requests failed".into() },
            name: "gold".into(),
            device: 1,
            weight: 300,
            connections: 2,
            figures,
            stages: stages.clone(),
            ..ExportStat::default()
        };
        let rest =
            ExportStat { name: "rest".into(), device: 1, weight: 100, ..ExportStat::default() };
        let disk = DeviceStat {
            oldest: 4_000_000,
            errors: [0; 4],
            name: "disk".into(),
            scheduler: "bfq".into(),
            figures,
            stages,
            flushes: 4,
            flush_time: 8_000_000,
            in_flight: [3, 1],
            busy_time: 1_000_000_000,
            waiting: 5,
            ..DeviceStat::default()
        };
        let now = Stat { at: 2_000_000_005, exports: vec![gold, rest], devices: vec![disk] };
        let empty = |one: &ExportStat| ExportStat {
            figures: Figures::default(),
            stages: Stages::default(),
            charged: 0,
            errors: [0; 4],
            ..one.clone()
        };
        let before = Stat {
            at: 5,
            exports: now.exports.iter().map(empty).collect(),
            devices: vec![DeviceStat::default()],
        };
        [before, now]
    }

    #[test]
    fn exports_stand_behind_their_device_with_their_shares() {
        let [before, now] = two();
        let rows = between(&before, &now);
        let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["disk", "gold", "rest"]);
        let of = |at: usize| match rows[at].of {
            Of::Export(OfExport { share, due, .. }) => (share, due),
            Of::Device(_) => panic!("an export"),
        };
        assert_eq!((of(1), of(2)), ((1.0, 1.0), (0.0, 0.0)));
        assert_eq!(rows[1].times[0].quantile(0.99), Some(1_000_000));
        assert_eq!(rows[1].times[2].buckets, [(4_000_000, 100), (90_000_000, 1)]);
    }

    #[test]
    fn an_export_that_came_meanwhile_has_no_row() {
        let [mut before, now] = two();
        before.exports.remove(0);
        let rows = between(&before, &now);
        assert!(rows.iter().all(|row| row.name != "gold"));
    }

    #[test]
    fn bad_news_comes_first_and_promises_have_units() {
        let gold = ExportStat {
            name: "gold".into(),
            max: "rbps=20000000 wbps=max riops=500".into(),
            goals: vec![GoalStat {
                word: "p99_read".into(),
                target: 80_000_000,
                state: "met".into(),
                p99: 61_440_000,
                windows: 18,
                missed: 9,
            }],
            floor: FloorStat {
                promised: "200 IOPS".into(),
                state: "kept".into(),
                ..Default::default()
            },
            ..ExportStat::default()
        };
        let condition = Condition { state: State::Starved, why: "its requests wait".into() };
        let silver = ExportStat { name: "silver".into(), condition, ..ExportStat::default() };
        let mut device = DeviceStat { name: "disk".into(), ..DeviceStat::default() };
        device.bounded.insert("lighter".into(), 243_827);
        device.bounded.insert("depth".into(), 4);
        let before = Stat {
            at: 0,
            exports: vec![gold.clone(), silver.clone()],
            devices: vec![device.clone()],
        };
        let mut now = Stat { at: 2_000_000_000, ..before.clone() };
        now.exports[0].figures.ios[0] = 900;
        now.exports[0].figures.merged[0] = 90;
        now.exports[0].figures.bytes[0] = 3_600_000;
        let lines = state_lines(&before, &now);
        assert!(lines[0].is_bad && !lines[1].is_bad);
        let texts = Vec::from_iter(lines.iter().map(|line| line.text.as_str()));
        assert_eq!(
            texts,
            [
                "silver: starved: its requests wait",
                "gold: goal p99_read 80.0 ms met at 61.4 ms, missed in 9 of 18 windows; floor 200 IOPS kept; rbps 1.8 \
                 MB/s of 20.0 MB/s; riops 495 of 500",
                "disk: left beside goals: 4 requests at the device, 243.8 kB/s for lighter exports",
            ]
        );
    }
}
