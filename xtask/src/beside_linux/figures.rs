//! The figures of runs: rates and percentiles by job, their medians with intervals, and the ratios of both sides. They
//! come from the reports of this comparison's runs, or from the output of an earlier comparison, with three digits: a
//! whole comparison takes hours, and may be split.

use super::load::{DEVICES, Job, LOADS, Load, Side};
use super::{Lateness, SCHEDULERS};
use crate::Result;
use serde_json::Value;
use std::collections::BTreeMap;

/// The least ratio of rates at which ours counts as good.
pub(super) const RATE: f64 = 0.95;
/// The greatest ratio of latencies at which ours counts as good.
pub(super) const LATENCY: f64 = 1.15;
/// The name of the cost of an I/O.
const COST: &str = "CPU of the client, us an I/O";
/// How sure an interval of a median should be, where there are enough runs.
const CONFIDENCE: f64 = 0.95;

/// The kind of a figure, which determines how it is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// More is better.
    Rate,
    /// Less is better.
    Latency,
    /// Neither: shares, costs and counts.
    Other,
}

/// The name of a figure: a job and a quantity with its unit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) text: String,
    pub(super) kind: Kind,
}

/// The figures of one run.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample(pub(super) Vec<(Name, f64)>);

impl Sample {
    /// Reads the reports of the jobs, which fio and bench write alike; `moved` is the bytes that the device read and
    /// wrote in a second.
    ///
    /// # Errors
    /// If an I/O failed.
    pub(super) fn of(load: &Load, reports: &[Value], moved: [f64; 2]) -> Result<Self> {
        let mut sample = Self::default();
        let mut cost = 0.0;
        let mut ios = 0.0;
        for (job, report) in load.jobs.iter().zip(reports) {
            if report["error"] != 0 {
                return Err(format!("{}: error {}", job.name, report["error"]).into());
            }
            let others = load
                .jobs
                .iter()
                .zip(reports)
                .filter(|(other, _)| other.writes() == job.writes() && other.name != job.name);
            let others: Vec<f64> = others.map(|(other, report)| own_count(other, report)).collect();
            let counted = job.starves || others.is_empty();
            let moved = moved[usize::from(job.writes())] - others.iter().sum::<f64>();
            sample.job(job, report, counted.then_some(moved.max(0.0)));
            let number = |value: &Value| value.as_f64().unwrap_or(0.0);
            let percent = number(&report["usr_cpu"]) + number(&report["sys_cpu"]);
            cost += percent / 100.0 * number(&report["job_runtime"]) * 1e3;
            ios += number(&report["read"]["total_ios"]) + number(&report["write"]["total_ios"]);
        }
        if load.shares
            && let [first, .., last] = &sample.rates()[..]
            && *first > 0.0
        {
            sample.add(format!("share, {}", load.name), Kind::Other, last / first);
        }
        if ios > 0.0 && !load.jobs.iter().any(|job| job.is_async) {
            sample.add(COST.into(), Kind::Other, cost / ios);
        }
        Ok(sample)
    }

    fn rates(&self) -> Vec<f64> {
        let rates = self.0.iter().filter(|(name, _)| name.kind == Kind::Rate);
        rates.map(|(_, rate)| *rate).collect()
    }

    /// `moved`: bytes a second, if the device counts them for this job alone.
    fn job(&mut self, job: &Job, report: &Value, moved: Option<f64>) {
        let direction = direction(job, report);
        let moved = moved.unwrap_or_else(|| own_count(job, report));
        let rate = if job.is_stream() { moved / 1e6 } else { moved / job.block() };
        self.add(format!("{} {}", job.name, job.unit()), Kind::Rate, rate);
        // `lat` of fio is the time from the system call on, which corresponds to our `clat`: it begins when the I/O is
        // pushed.
        let percentile = |kind: &str| direction[kind]["percentile"]["99.000000"].as_f64();
        let p99 = percentile("lat_ns").or_else(|| percentile("clat_ns"));
        if let Some(p99) = p99.filter(|_| job.has_latency()) {
            self.add(format!("{} p99 ms", job.name), Kind::Latency, p99 / 1e6);
        }
    }

    fn add(&mut self, text: String, kind: Kind, value: f64) {
        self.0.push((Name { text, kind }, value));
    }
}

/// The part of a job's report about the direction in which it moves data.
fn direction<'a>(job: &Job, report: &'a Value) -> &'a Value {
    &report[if job.writes() { "write" } else { "read" }]
}

/// Bytes a second, as the job's client counts them.
fn own_count(job: &Job, report: &Value) -> f64 {
    direction(job, report)["bw_bytes"].as_f64().unwrap_or(0.0)
}

/// A combination that is compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cell {
    pub(super) device: &'static str,
    pub(super) load: &'static str,
    pub(super) scheduler: String,
}

#[derive(Debug, Default)]
pub(super) struct Figures {
    /// In the order in which they were first measured.
    pub(super) cells: Vec<Cell>,
    values: BTreeMap<(Cell, String, Side), Vec<f64>>,
    names: BTreeMap<Cell, Vec<Name>>,
    /// Runs that were dropped because the machine stalled.
    pub(super) dropped: u32,
    /// The number of runs that failed or had to be ended, by combination and side.
    pub(super) overtime: BTreeMap<(Cell, Side), u32>,
    pub(super) kept: u32,
    /// The greatest timer lateness of the runs that were kept, in milliseconds.
    pub(super) worst: f64,
}

impl Figures {
    pub(super) fn keep(&mut self, cell: &Cell, side: Side, sample: Sample, lateness: Lateness) {
        if !self.cells.contains(cell) {
            self.cells.push(cell.clone());
        }
        self.kept += 1;
        self.worst = self.worst.max(lateness.worst);
        let names = self.names.entry(cell.clone()).or_default();
        for (name, value) in sample.0 {
            let key = (cell.clone(), name.text.clone(), side);
            self.values.entry(key).or_default().push(value);
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }

    /// Puts the combinations in the order of devices and loads.
    pub(super) fn sort(&mut self) {
        let device = |name: &str| DEVICES.iter().position(|it| it.name == name);
        let load = |name: &str| LOADS.iter().position(|it| it.name == name);
        let scheduler = |name: &str| SCHEDULERS.iter().position(|it| name.starts_with(it));
        self.cells.sort_by_key(|it| (device(it.device), load(it.load), scheduler(&it.scheduler)));
    }

    pub(super) fn names(&self, cell: &Cell) -> &[Name] {
        self.names.get(cell).map_or(&[], Vec::as_slice)
    }

    /// Every run's.
    pub(super) fn values(&self, cell: &Cell, name: &Name, side: Side) -> &[f64] {
        let key = (cell.clone(), name.text.clone(), side);
        self.values.get(&key).map_or(&[], Vec::as_slice)
    }

    /// Ours by Linux', of medians.
    pub(super) fn ratio(&self, cell: &Cell, name: &Name) -> Option<f64> {
        let of = |side| Middle::of(self.values(cell, name, side)).map(|middle| middle.median);
        let (linux, ours) = (of(Side::Linux)?, of(Side::Ours)?);
        (linux > 0.0).then(|| ours / linux)
    }

    /// Returns whether ours is as good, or `None` if the two are not compared, or were not measured.
    pub(super) fn is_as_good(&self, cell: &Cell, name: &Name) -> Option<bool> {
        let ratio = self.ratio(cell, name)?;
        match name.kind {
            Kind::Rate => Some(ratio >= RATE),
            Kind::Latency => Some(ratio <= LATENCY),
            Kind::Other => None,
        }
    }
}

/// A median and an interval around it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Middle {
    pub(super) median: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    /// The probability that the true median lies within the interval, assuming independent runs.
    pub(super) confidence: f64,
}

impl Middle {
    /// Of the values; `None` if there are none. The ends of the interval are values, too: of six runs the smallest and
    /// the greatest, of nine the second and the eighth.
    pub(super) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let half = count / 2;
        let median = match count {
            0 => return None,
            _ if count % 2 == 1 => sorted[half],
            _ => (sorted[half - 1] + sorted[half]) / 2.0,
        };
        let inner = (0..half).take_while(|cut| confidence(count, *cut) >= CONFIDENCE).last();
        let cut = inner.unwrap_or(0);
        let (low, high) = (sorted[cut], sorted[count - 1 - cut]);
        Some(Self { median, low, high, confidence: confidence(count, cut) })
    }
}

/// The probability that the true median is between the values number `cut` from both ends, of `count`.
fn confidence(count: usize, cut: usize) -> f64 {
    // The number of values below the median is distributed like the heads of as many coins.
    let mut term = 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let mut outside = 0.0;
    for heads in 0..=cut {
        outside += 2.0 * term;
        term *= (count - heads) as f64 / (heads + 1) as f64;
    }
    (1.0 - outside).max(0.0)
}

/// The beginning of a line, before the figures.
struct Head {
    cell: Cell,
    side: Side,
    load: &'static Load,
}

/// Between the figures of a run and the lateness of its timer.
pub(super) const LATE: &str = "; timer late by ";
/// Printed instead of figures.
pub(super) const OVERTIME: &str = "a client failed, or did not end in time";

/// Adds the runs in `text` whose timer was at most `stall` milliseconds late. Other lines are ignored.
pub(super) fn read(text: &str, stall: f64, figures: &mut Figures) {
    for line in text.lines() {
        let Some((head, rest)) = line.split_once(": ").and_then(|(a, b)| Some((head(a)?, b)))
        else {
            continue;
        };
        if rest == OVERTIME {
            *figures.overtime.entry((head.cell, head.side)).or_default() += 1;
            continue;
        }
        let Some((values, late)) = rest.split_once(LATE) else { continue };
        let Some(worst) = number(late) else { continue };
        if worst > stall {
            figures.dropped += 1;
            continue;
        }
        let named = names(head.load).into_iter().filter_map(|name| {
            let value = number(values.split_once(&format!("{} ", name.text))?.1)?;
            Some((name, value))
        });
        let sample = Sample(named.collect());
        figures.keep(&head.cell, head.side, sample, Lateness { worst, sum: 0.0 });
    }
    figures.sort();
}

fn head(text: &str) -> Option<Head> {
    let mut words = text.split(' ');
    let (device, load, scheduler, side) =
        (words.next()?, words.next()?, words.next()?, words.next()?);
    let device = DEVICES.iter().find(|it| it.name == device)?.name;
    let load = LOADS.iter().find(|it| it.name == load)?;
    let side = Side::BOTH.into_iter().find(|it| it.name() == side)?;
    let cell = Cell { device, load: load.name, scheduler: scheduler.to_owned() };
    words.next().is_none().then_some(Head { cell, side, load })
}

/// The number at the beginning of `text`.
fn number(text: &str) -> Option<f64> {
    let end = text.find([',', ' ']).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// The names of the figures that a run of `load` may have, as in [`Sample::of`].
fn names(load: &Load) -> Vec<Name> {
    let mut names = Vec::new();
    let mut add = |text: String, kind| names.push(Name { text, kind });
    for job in load.jobs {
        add(format!("{} {}", job.name, job.unit()), Kind::Rate);
        if job.has_latency() {
            add(format!("{} p99 ms", job.name), Kind::Latency);
        }
    }
    add(format!("share, {}", load.name), Kind::Other);
    add(COST.into(), Kind::Other);
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn load(name: &str) -> &'static Load {
        LOADS.iter().find(|load| load.name == name).unwrap()
    }

    /// Of a job with so many bytes a second.
    fn report(bytes: u64) -> Value {
        let direction = json!({
            "bw_bytes": bytes, "total_ios": 100,
            "lat_ns": { "percentile": { "99.000000": 7_000_000 } },
            "clat_ns": { "percentile": { "99.000000": 9_000_000 } },
        });
        let (read, write) = (direction.clone(), direction);
        json!({ "error": 0, "read": read, "write": write, "usr_cpu": 10.0, "sys_cpu": 10.0, "job_runtime": 1000 })
    }

    #[test]
    fn a_run_has_the_rate_and_the_latency_of_each_job() {
        let sample = Sample::of(load("W2"), &[report(1), report(1)], [204_800.0, 6e7]).unwrap();
        let shown: Vec<String> =
            sample.0.iter().map(|(name, value)| format!("{}: {value}", name.text)).collect();
        let cost = "CPU of the client, us an I/O: 1000";
        assert_eq!(
            shown,
            ["reader IOPS: 50", "reader p99 ms: 7", "writers MB/s: 60", "writers p99 ms: 7", cost]
        );
        let mut failed = report(1);
        failed["error"] = 5.into();
        assert!(Sample::of(load("W1"), &[failed], [0.0, 0.0]).is_err());
    }

    #[test]
    fn shares_are_of_the_last_job_to_the_first() {
        let sample =
            Sample::of(load("W3b"), &[report(409_600), report(1_228_800)], [9e9, 9e9]).unwrap();
        assert_eq!(sample.rates(), [100.0, 300.0], "the device counts both together");
        let (name, share) = &sample.0[4];
        assert_eq!((name.text.as_str(), *share), ("share, W3b", 3.0));
        assert_eq!(name.kind, Kind::Other);
    }

    /// fio reported 330 reads a second for a reader that the device did not serve during its time.
    #[test]
    fn a_job_that_starves_has_what_the_others_leave() {
        let reports = [report(1_351_680), report(1_474_560)];
        let sample = Sample::of(load("W3d"), &reports, [1_478_656.0, 0.0]).unwrap();
        assert_eq!(sample.rates(), [1.0, 360.0]);
        assert!(sample.0.iter().all(|(name, _)| name.text != "idle p99 ms"));
    }

    #[test]
    fn the_interval_of_a_median_is_as_wide_as_it_must_be() {
        assert_eq!(Middle::of(&[]), None);
        let few = Middle::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((few.low, few.median, few.high), (1.0, 2.0, 3.0));
        assert!((few.confidence - 0.75).abs() < 1e-9, "1 - 2/8: {few:?}");
        let six = Middle::of(&[6.0, 5.0, 4.0, 3.0, 2.0, 1.0]).unwrap();
        assert_eq!((six.low, six.median, six.high), (1.0, 3.5, 6.0));
        assert!((six.confidence - (1.0 - 2.0 / 64.0)).abs() < 1e-9);
        let nine: Vec<f64> = (1..=9).map(f64::from).collect();
        let nine = Middle::of(&nine).unwrap();
        assert_eq!((nine.low, nine.high), (2.0, 8.0), "the table of the sign test");
        assert!((nine.confidence - (1.0 - 2.0 * 10.0 / 512.0)).abs() < 1e-9);
    }

    #[test]
    fn ours_is_as_good_within_the_bounds() {
        let cell = Cell { device: "hdd4", load: "W2", scheduler: "bfq".into() };
        let name = |text: &str, kind| Name { text: text.into(), kind };
        let names = [name("r", Kind::Rate), name("l", Kind::Latency), name("o", Kind::Other)];
        let mut figures = Figures::default();
        for (side, values) in [(Side::Linux, [100.0, 100.0, 1.0]), (Side::Ours, [96.0, 116.0, 5.0])]
        {
            let sample = Sample(names.iter().cloned().zip(values).collect());
            figures.keep(&cell, side, sample, Lateness::default());
        }
        let verdicts = names.each_ref().map(|name| figures.is_as_good(&cell, name));
        assert_eq!(verdicts, [Some(true), Some(false), None]);
        assert_eq!(figures.names(&cell), names);
        assert_eq!(figures.kept, 2);
    }

    #[test]
    fn what_was_printed_is_read_again() {
        let text = "written elsewhere: no run\n\
                    hdd4 W3a bfq blkmq: light MB/s 30.3, light p99 ms 4.65, heavy MB/s 91.3, heavy p99 ms 3.24, \
                    share, W3a 3.02, CPU of the client, us an I/O 43.6; timer late by 1.2 ms, 3 in all\n\
                    hdd4 W1 bfq Linux: a client failed, or did not end in time\n\
                    hdd4 W1 bfq blkmq: writers IOPS 366, writers p99 ms 6241; timer late by 51.2 ms, 300 in all\n";
        let mut figures = Figures::default();
        read(text, 50.0, &mut figures);
        let cell = Cell { device: "hdd4", load: "W3a", scheduler: "bfq".into() };
        assert_eq!(figures.cells, std::slice::from_ref(&cell));
        let shown: Vec<_> = figures
            .names(&cell)
            .iter()
            .map(|name| (name.text.as_str(), figures.values(&cell, name, Side::Ours)[0]))
            .collect();
        assert_eq!(
            shown,
            [
                ("light MB/s", 30.3),
                ("light p99 ms", 4.65),
                ("heavy MB/s", 91.3),
                ("heavy p99 ms", 3.24),
                ("share, W3a", 3.02),
                ("CPU of the client, us an I/O", 43.6)
            ]
        );
        assert_eq!((figures.kept, figures.dropped, figures.overtime.len()), (1, 1, 1));
    }
}
