//! The table of `bench --threads` and `bench --layers`: the figures of each run, and their ratios to the other side,
//! each with its bound.
//!
//! A ratio is taken within a round, and the median of the ratios decides. A rate is better above 1, a cost below it.
//! CPU time is that of the load's threads while they measure, as each program reports it. So it does not include the
//! start of a program, which takes fio longer than ours.

use super::Row;
use crate::Result;
use crate::bench::report::{check, jobs, median};
use serde_json::Value;
use std::fmt;

/// A run of ours, and that of the other side, such as fio, in the same round.
pub(super) struct Round {
    pub(super) ours: Sample,
    pub(super) beside: Sample,
}

/// A scheduler or a load in a row.
pub(super) struct Line {
    pub(super) row: Row,
    pub(super) what: &'static str,
    pub(super) bounds: Bounds,
    pub(super) rounds: Vec<Round>,
}

/// The limit of a ratio to the other side's figure.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
    /// The ratio is only shown.
    None,
}

pub(super) struct Bounds {
    rate: Bound,
    /// CPU time for an I/O.
    cpu: Bound,
    p99: Bound,
}

impl Bounds {
    /// The bounds of a stripe of two files compared with the files.
    pub(super) fn of_a_layer() -> Self {
        Self { rate: Bound::AtLeast(0.97), cpu: Bound::AtMost(1.1), p99: Bound::None }
    }

    /// Policies that keep an account of each program may cost more. Beside busy loops the kernel divides the CPUs, and
    /// only the rate is judged.
    pub(super) fn of(scheduler: &str, busy: bool) -> Self {
        let (rate, cost) = match scheduler {
            "bfq" | "mclock" => (0.92, 1.3),
            _ => (0.97, 1.15),
        };
        if busy {
            return Self { rate: Bound::AtLeast(0.95), cpu: Bound::None, p99: Bound::None };
        }
        Self { rate: Bound::AtLeast(rate), cpu: Bound::AtMost(cost), p99: Bound::AtMost(cost) }
    }
}

/// How many figures have bounds, and how many keep them.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Within {
    kept: u32,
    all: u32,
}

impl Within {
    /// Counts a ratio, and returns the mark to print behind it. A missing ratio counts as out of bounds.
    fn mark(&mut self, ratio: Option<f64>, bound: Bound) -> &'static str {
        let is_kept = match bound {
            Bound::None => return "",
            Bound::AtLeast(least) => ratio.is_some_and(|it| it >= least),
            Bound::AtMost(most) => ratio.is_some_and(|it| it <= most),
        };
        self.all += 1;
        self.kept += u32::from(is_kept);
        if is_kept { "" } else { "*" }
    }
}

impl fmt::Display for Within {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} figures within their bounds", self.kept, self.all)
    }
}

impl Line {
    /// The ratio of a figure in each round, where the other side's is not zero.
    fn ratios(&self, figure: fn(&Sample) -> f64) -> Vec<f64> {
        let ratio = |round: &Round| figure(&round.ours) / figure(&round.beside);
        self.rounds.iter().map(ratio).filter(|ratio| ratio.is_finite()).collect()
    }

    /// The medians of a figure: (ours, the other side's).
    fn both(&self, figure: fn(&Sample) -> f64) -> [f64; 2] {
        let of = |side: fn(&Round) -> &Sample| {
            let figures: Vec<f64> = self.rounds.iter().map(|round| figure(side(round))).collect();
            median(&figures).unwrap_or(f64::NAN)
        };
        [of(|round| &round.ours), of(|round| &round.beside)]
    }

    /// The line, with its marks counted in `within`.
    fn shown(&self, within: &mut Within) -> String {
        let bounds = &self.bounds;
        let mut judged = |ratios: &[f64], bound| {
            let middle = median(ratios);
            let mark = within.mark(middle, bound);
            middle.map_or_else(|| format!("-{mark}"), |it| format!("{it:.3}{mark}"))
        };
        let rates = self.ratios(|it| it.rate);
        let rate = judged(&rates, bounds.rate);
        let cpu = judged(&self.ratios(|it| it.cpu), bounds.cpu);
        let p99 = judged(&self.ratios(|it| it.p99), bounds.p99);
        let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
        let most = rates.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let [our_rate, other_rate] = self.both(|it| it.rate / 1e3);
        let [our_cpu, other_cpu] = self.both(|it| it.cpu);
        let [ours, other] = self.both(|it| it.switches);
        format!(
            "| {} | {} | {rate} ({least:.2}-{most:.2}) | {our_rate:.1}, {other_rate:.1} | {cpu} \
             ({our_cpu:.2}, {other_cpu:.2}) | {p99} | {ours:.2}, {other:.2} |\n",
            self.row, self.what,
        )
    }
}

/// The table, with the head of its second column and the names of both sides.
pub(super) fn table(lines: &[Line], heads: [&str; 3], within: &mut Within) -> String {
    let [what, ours, other] = heads;
    let mut table = format!(
        "| threads x depth | {what} | rate (from-to) | k IOPS: {ours}, {other} | CPU per I/O (us: {ours}, {other}) | p99 | \
         context switches per I/O: {ours}, {other} |\n|---|---|---|---|---|---|---|\n",
    );
    lines.iter().for_each(|line| table += &line.shown(within));
    table
}

/// The figures of a run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Sample {
    /// I/Os in a second.
    pub(super) rate: f64,
    /// Microseconds of CPU time for an I/O.
    pub(super) cpu: f64,
    /// Microseconds of the 99th percentile, submission included: at depth 1 our submission is part of the system call
    /// that sleeps.
    pub(super) p99: f64,
    /// Context switches for an I/O.
    pub(super) switches: f64,
}

impl Sample {
    /// Reads a report of one group of threads.
    ///
    /// # Errors
    /// If the job failed, did no I/O or lacks a field, or there is more than one.
    pub(super) fn read(report: &Value) -> Result<Self> {
        let [job] = &jobs(report)?[..] else { return Err("a report of several groups".into()) };
        check(job)?;
        let number = |of: &Value, name: &str| {
            of[name].as_f64().ok_or_else(|| format!("a report without {name}"))
        };
        let done = |direction: &&Value| direction["total_ios"].as_u64().is_some_and(|ios| ios > 0);
        let direction = ["read", "write"].map(|name| &job[name]).into_iter().find(done);
        let direction = direction.ok_or("a run without I/O")?;
        let ios = number(direction, "total_ios")?;
        // Percentages are of the time of all threads, in milliseconds.
        let time = number(job, "job_runtime")? * 1e3;
        let share = (number(job, "usr_cpu")? + number(job, "sys_cpu")?) / 100.0;
        let percentiles = &direction["lat_ns"]["percentile"];
        Ok(Self {
            rate: number(direction, "iops")?,
            cpu: share * time / ios,
            p99: number(percentiles, "99.000000")? / 1e3,
            switches: number(job, "ctx")? / ios,
        })
    }

    /// Combines two concurrent runs: the sum of the rates, the mean cost of an I/O, and the longer of the times.
    pub(super) fn and(self, other: Self) -> Self {
        let rate = self.rate + other.rate;
        let mean = |one: f64, two: f64| (one * self.rate + two * other.rate) / rate;
        Self {
            rate,
            cpu: mean(self.cpu, other.cpu),
            p99: self.p99.max(other.p99),
            switches: mean(self.switches, other.switches),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::HEADS;
    use super::*;
    use serde_json::json;

    fn sample(rate: f64, cpu: f64, p99: f64, switches: f64) -> Sample {
        Sample { rate, cpu, p99, switches }
    }

    /// Three rounds whose median ratios are 0.95 of the rate, 1.2 of the CPU time and 1.1 of the 99th percentile.
    fn line(scheduler: &'static str, busy: bool) -> Line {
        let round = |rate, cpu, p99| Round {
            ours: sample(rate * 1e5, cpu * 10.0, p99 * 100.0, 1.25),
            beside: sample(1e5, 10.0, 100.0, 1.0),
        };
        let rounds = vec![round(0.5, 9.0, 9.0), round(0.95, 1.2, 1.1), round(1.25, 0.5, 0.5)];
        let (row, bounds) = (Row { threads: 4, depth: 8 }, Bounds::of(scheduler, busy));
        Line { row, what: scheduler, bounds, rounds }
    }

    #[test]
    fn figures_that_miss_their_bounds_are_marked_and_counted() {
        let mut within = Within::default();
        let table = table(&[line("none", false), line("bfq", false)], HEADS, &mut within);
        let lines: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "| 4x8 | none | 0.950* (0.50-1.25) | 95.0, 100.0 | 1.200* (12.00, 10.00) | 1.100 | 1.25, 1.00 |",
                "| 4x8 | bfq | 0.950 (0.50-1.25) | 95.0, 100.0 | 1.200 (12.00, 10.00) | 1.100 | 1.25, 1.00 |",
            ]
        );
        assert_eq!(within.to_string(), "4 of 6 figures within their bounds");
    }

    #[test]
    fn beside_busy_loops_only_the_rate_is_judged() {
        let mut within = Within::default();
        let table = table(&[line("none", true)], HEADS, &mut within);
        assert!(table.ends_with(
            "| 0.950 (0.50-1.25) | 95.0, 100.0 | 1.200 (12.00, 10.00) | 1.100 | 1.25, 1.00 |\n"
        ));
        assert_eq!(within, Within { kept: 1, all: 1 });
    }

    #[test]
    fn bounds_hold_at_their_limits() {
        let mark = |ratio, bound| Within::default().mark(Some(ratio), bound);
        let Bounds { rate, cpu, p99 } = Bounds::of("mq-deadline", false);
        assert_eq!((mark(0.97, rate), mark(0.9699, rate)), ("", "*"));
        assert_eq!((mark(1.15, cpu), mark(1.1501, cpu)), ("", "*"));
        assert_eq!((mark(1.15, p99), mark(1.1501, p99)), ("", "*"));
        let Bounds { rate, cpu, p99 } = Bounds::of("mclock", false);
        assert_eq!((mark(0.92, rate), mark(0.9199, rate)), ("", "*"));
        assert_eq!((mark(1.3, cpu), mark(1.3001, cpu)), ("", "*"));
        assert_eq!((mark(1.3, p99), mark(1.3001, p99)), ("", "*"));
        assert_eq!(mark(0.9499, Bounds::of("mclock", true).rate), "*");
    }

    /// fio's CPU time is zero in a run that is too short to be charged for.
    #[test]
    fn the_ratio_of_a_missing_figure_is_missed() {
        let (ours, fio) = (sample(1e5, 1.0, 1.0, 1.0), sample(1e5, 0.0, 1.0, 1.0));
        let line = Line { rounds: vec![Round { ours, beside: fio }], ..line("none", false) };
        let mut within = Within::default();
        let shown = line.shown(&mut within);
        assert!(shown.contains("| -* (1.00, 0.00) |"), "{shown}");
        assert_eq!(within, Within { kept: 2, all: 3 });
    }

    fn report(name: &str, error: i32, ios: u64) -> Value {
        let direction = json!({
            "total_ios": ios, "iops": 50_000.5, "runtime": 2_000,
            "lat_ns": { "percentile": { "50.000000": 1, "99.000000": 108_032 } },
        });
        let mut job = json!({ "error": error, "usr_cpu": 3.0, "sys_cpu": 9.5, "ctx": 150_000,
                              "job_runtime": 8_000,
                              "read": { "total_ios": 0, "runtime": 0 },
                              "write": { "total_ios": 0, "runtime": 0 } });
        job[name] = direction;
        json!({ "jobs": [job] })
    }

    #[test]
    fn a_run_is_read_in_either_direction() {
        for name in ["read", "write"] {
            let sample = Sample::read(&report(name, 0, 100_000)).unwrap();
            // 12.5 % of the two seconds of four threads is one second.
            let wanted = Sample { rate: 50_000.5, cpu: 10.0, p99: 108.032, switches: 1.5 };
            assert_eq!(sample, wanted, "{name}");
        }
    }

    #[test]
    fn rates_of_two_runs_add_up_and_costs_are_those_of_an_io() {
        let one = Sample { rate: 3e4, cpu: 8.0, p99: 100.0, switches: 1.0 };
        let other = Sample { rate: 1e4, cpu: 12.0, p99: 50.0, switches: 2.0 };
        let both = Sample { rate: 4e4, cpu: 9.0, p99: 100.0, switches: 1.25 };
        assert_eq!((one.and(other), other.and(one)), (both, both));
    }

    #[test]
    fn a_failed_idle_or_partial_run_is_an_error() {
        let refused = |report: &Value| Sample::read(report).unwrap_err().to_string();
        assert!(refused(&report("read", 5, 100)).contains("error"));
        assert_eq!(refused(&report("read", 0, 0)), "a run without I/O");
        let mut partial = report("read", 0, 100);
        partial["jobs"][0]["ctx"] = Value::Null;
        assert_eq!(refused(&partial), "a report without ctx");
        let job = &report("read", 0, 100)["jobs"][0];
        assert_eq!(refused(&json!({ "jobs": [job, job] })), "a report of several groups");
    }
}
