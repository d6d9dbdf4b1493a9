//! Warnings: when a run is unreliable, and the remedy.
//!
//! A warning is about the measurement, not about the scheduler: slow is a finding, noisy is a warning. Runs with the
//! same weakness share one warning, which quotes the worst of them.

use super::label::Varying;
use super::model::{DeviceKind, Report, Run};
use super::number::{nanos, percent};
use super::queue::Imbalance;
use std::fmt;

/// Shorter measurements mean little: caches warm up and timers tick for longer.
const SHORT_NS: u64 = 1_000_000_000;
/// With fewer I/Os, a 99.9th percentile is a single I/O.
const FEW_IOS: u64 = 1_000;
/// Repetitions whose range exceeds this share of their median cannot distinguish schedulers.
const NOISY: f64 = 0.10;
/// The values of `access`, up to its options, with which a descheduled thread can block all others.
const SPIN: [&str; 2] = ["spin", "serialised"];

/// One reason for doubt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Warning {
    /// The kind of weakness.
    doubt: Doubt,
    /// The affected runs, as indexes in [`Report::runs`]; empty for a weakness of the machine.
    pub runs: Vec<usize>,
    /// The observation, a sentence.
    problem: String,
}

/// Weaknesses of a measurement, the gravest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Doubt {
    /// A signal cut the run short.
    Cut,
    /// The queue's counters contradict each other.
    Imbalance,
    /// A job ended with an error.
    Failed,
    /// Measured for less than a second.
    Short,
    /// Too few I/Os for percentiles.
    Few,
    /// Repetitions differ widely.
    Noisy,
    /// The processors were busy before the run began.
    Busy,
    /// Threads that spin outnumber the cores.
    SpinOversubscribed,
    /// A latency beyond the histogram's range.
    Clipped,
    /// Latency was not measured.
    Untimed,
    /// The frequency of the processor follows the load.
    Frequency,
    /// The machine is a guest.
    Virtual,
}

impl Doubt {
    /// The advice about it, a sentence.
    #[must_use]
    fn advice(self) -> &'static str {
        match self {
            Self::Cut => "Compare it with no run that has had its whole time.",
            Self::Imbalance => {
                "Do not use these figures; this is a bug in blkmq, please report it."
            }
            Self::Failed => {
                "Find the cause before using the figures; they cover only part of the work."
            }
            Self::Short => "Measure longer: runtime=10 or more, with ramp_time=1.",
            Self::Few => "Raise runtime or size until thousands of I/Os are done.",
            Self::Noisy => {
                "Stop other programs, raise runtime, and repeat; smaller differences mean nothing."
            }
            Self::Busy => "Wait until the machine is idle, or stop what else is running.",
            Self::SpinOversubscribed => {
                "Use at most as many threads as cores, or another access; a spinner waits for a thread \
                 that is not running."
            }
            Self::Clipped => "Read the highest percentiles as lower bounds; the maximum is exact.",
            Self::Untimed => "Leave out gtod_reduce and disable_clat to see latencies.",
            Self::Frequency => {
                "Choose the governor 'performance' for figures that can be repeated."
            }
            Self::Virtual => {
                "Compare only figures of one session, and expect the neighbours in the highest percentiles."
            }
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.problem, self.doubt.advice())
    }
}

/// All doubts about the report, the gravest first.
#[must_use]
pub fn warnings(report: &Report) -> Vec<Warning> {
    let mut found = of_machine(report);
    let varying = Varying::of(report);
    // Virtual time has no caches to warm up, and a CPU for each thread.
    let real = |doubt: &Doubt| !matches!(doubt, Doubt::Short | Doubt::SpinOversubscribed);
    for doubt in OF_RUNS.into_iter().filter(|doubt| report.seed.is_none() || real(doubt)) {
        let weak: Vec<(usize, Fact)> = report
            .runs
            .iter()
            .enumerate()
            .filter_map(|(index, run)| Some((index, fact(doubt, run, report)?)))
            .collect();
        let worst = weak.iter().reduce(|a, b| if b.1.badness > a.1.badness { b } else { a });
        if let Some((index, fact)) = worst {
            let name = varying.run_name(&report.runs[*index]);
            let others = match weak.len() - 1 {
                0 => String::new(),
                1 => " One other run has the same weakness.".into(),
                n => format!(" {n} other runs have the same weakness."),
            };
            found.push(Warning {
                doubt,
                runs: weak.iter().map(|(index, _)| *index).collect(),
                problem: format!("{name}: {}{others}", fact.text),
            });
        }
    }
    found.sort_by_key(|w| w.doubt);
    found
}

const OF_RUNS: [Doubt; 9] = [
    Doubt::Cut,
    Doubt::Imbalance,
    Doubt::Failed,
    Doubt::Short,
    Doubt::Few,
    Doubt::Noisy,
    Doubt::SpinOversubscribed,
    Doubt::Clipped,
    Doubt::Untimed,
];

/// A weakness of one run, and its severity relative to others of the same kind.
struct Fact {
    badness: f64,
    text: String,
}

fn of_machine(report: &Report) -> Vec<Warning> {
    let machine = &report.machine;
    let cpu_bound = report.runs.iter().any(|run| run.device.kind.is_cpu_bound());
    let machine_wide = |doubt, problem| Warning { doubt, runs: vec![], problem };
    let busy = machine.load_average.filter(|load| *load > f64::from(machine.cores)).map(|load| {
        let cores = machine.cores;
        let problem = format!("The load average before the run was {load:.1} on {cores} cores.");
        machine_wide(Doubt::Busy, problem)
    });
    let governor = machine.governor.as_ref().filter(|g| cpu_bound && *g != "performance");
    let frequency = governor.map(|governor| {
        let problem = format!("The processor's frequency governor is '{governor}'.");
        machine_wide(Doubt::Frequency, problem)
    });
    let guest = machine.hypervisor.as_ref().map(|host| {
        let problem =
            format!("This is a virtual machine (vendor: {host}), which shares its processors.");
        machine_wide(Doubt::Virtual, problem)
    });
    busy.into_iter().chain(frequency).chain(guest).collect()
}

/// Returns whether the report is a status, whose partial runs have not ended.
fn is_status(report: &Report) -> bool {
    report.partial.is_some_and(|partial| partial.signal.is_none())
}

fn fact(doubt: Doubt, run: &Run, report: &Report) -> Option<Fact> {
    let cores = report.machine.cores;
    let (is_weak, badness, text) = match doubt {
        Doubt::Cut => {
            let time = nanos(run.elapsed_ns as f64);
            let text = if is_status(report) {
                format!("not ended after {time}.")
            } else {
                format!("cut short by a signal after {time}.")
            };
            (run.is_partial, 0.0, text)
        }
        // I/Os that were given up leave the counts unequal; another message reports them. Counts balance only at the
        // end.
        Doubt::Imbalance if run.is_partial && is_status(report) => return None,
        Doubt::Imbalance if run.jobs.iter().any(|job| job.unfinished > 0) => return None,
        Doubt::Imbalance => (true, 0.0, imbalance(run.counters.imbalance()?)),
        Doubt::Failed => {
            let job = run.jobs.iter().find(|job| job.error != 0)?;
            let first = job.verify.as_ref().and_then(|verify| verify.first.as_ref());
            let first = first.map(|first| format!(" ({first})")).unwrap_or_default();
            (true, 0.0, format!("job {} ended with error {}{first}.", job.name, job.error))
        }
        Doubt::Short => {
            let ns = run.elapsed_ns as f64;
            (run.elapsed_ns < SHORT_NS, -ns, format!("measured for only {}.", nanos(ns)))
        }
        Doubt::Few => {
            let ios = run.total_ios();
            (ios < FEW_IOS, -(ios as f64), format!("only {ios} I/Os were done."))
        }
        Doubt::Noisy => {
            let spread = run.spread()?;
            let text = format!("the repetitions lie {} apart.", percent(spread));
            (spread > NOISY, spread, text)
        }
        Doubt::SpinOversubscribed => {
            let name = run.access.split(':').next().unwrap_or_default();
            let is_weak = SPIN.contains(&name) && run.threads > cores;
            let text = format!("{} threads spin on {cores} cores.", run.threads);
            (is_weak, f64::from(run.threads), text)
        }
        Doubt::Clipped => {
            let latency = run.latency()?;
            let max = latency.0.max() as f64;
            (
                latency.is_clipped(),
                max,
                format!("a latency of {} exceeds the histogram.", nanos(max)),
            )
        }
        Doubt::Untimed => {
            let untimed = |d: &super::job::Direction| d.is_untimed();
            let is_weak =
                run.jobs.iter().any(|job| job.directions().iter().any(|(_, d)| untimed(d)));
            (is_weak, 0.0, "latency was not measured.".into())
        }
        Doubt::Busy | Doubt::Frequency | Doubt::Virtual => return None,
    };
    is_weak.then_some(Fact { badness, text })
}

fn imbalance(found: Imbalance) -> String {
    match found {
        Imbalance::Bios { submitted, completed } => {
            format!("{submitted} bios were submitted and {completed} completed.")
        }
        Imbalance::Dispatches { expected, dispatched } => {
            format!("bios less merges make {expected} requests, and {dispatched} were dispatched.")
        }
        Imbalance::Requests { dispatched, completed } => {
            format!("{dispatched} requests were dispatched and {completed} completed.")
        }
    }
}

/// The limits of figures from such a device, even if they are measured well.
#[must_use]
pub fn limits_of(kind: DeviceKind) -> &'static str {
    match kind {
        DeviceKind::Null => {
            "The null device has no positional cost: this shows the cost of the block layer, not which \
             scheduler suits a disk."
        }
        DeviceKind::Memory => {
            "A memory device has no positional cost, and the I/Os of a bench carry no bytes: this shows the cost of the \
             block layer, not which scheduler suits a disk."
        }
        DeviceKind::Model => {
            "The device is a model: differences show what scheduling can do for such a device, absolute \
             figures are the model's."
        }
        DeviceKind::File => {
            "The figures hold for this device, this workload and this moment; another device can reverse \
             the order."
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::job::{Latency, Verified};
    use super::super::sample;
    use super::*;

    fn doubts(change: impl Fn(&mut Report)) -> Vec<Doubt> {
        let mut report = sample::single();
        change(&mut report);
        warnings(&report).into_iter().map(|w| w.doubt).collect()
    }

    #[test]
    fn a_clean_run_is_believed() {
        assert_eq!(doubts(|_| {}), []);
    }

    #[test]
    fn each_weakness_is_found() {
        type Change = fn(&mut Report);
        let cases: [(Doubt, Change); 12] = [
            (Doubt::Cut, |r| r.runs[0].is_partial = true),
            (Doubt::Imbalance, |r| r.runs[0].counters.completed -= 1),
            (Doubt::Failed, |r| r.runs[0].jobs[0].error = 5),
            (Doubt::Short, |r| r.runs[0].elapsed_ns = 999_999_999),
            (Doubt::Few, |r| r.runs[0].jobs[0].read.total_ios = 999),
            (Doubt::Noisy, |r| r.runs[0].repetitions = vec![94.0, 100.0, 105.0]),
            (Doubt::Busy, |r| r.machine.load_average = Some(2.1)),
            (Doubt::SpinOversubscribed, |r| {
                r.runs[0].access = "spin".into();
                r.runs[0].threads = 3;
            }),
            (Doubt::Clipped, |r| {
                let clat = &mut r.runs[0].jobs[0].read.clat;
                clat.get_or_insert_with(Latency::default).0.record(1 << 41);
            }),
            (Doubt::Untimed, |r| {
                r.runs[0].jobs[0].read.clat = None;
                r.runs[0].jobs[0].read.lat = None;
            }),
            (Doubt::Frequency, |r| r.machine.governor = Some("powersave".into())),
            (Doubt::Virtual, |r| r.machine.hypervisor = Some("someone".into())),
        ];
        for (doubt, change) in cases {
            assert_eq!(doubts(change), [doubt]);
        }
    }

    #[test]
    fn wrong_contents_are_named() {
        let mut report = sample::single();
        let job = &mut report.runs[0].jobs[0];
        job.error = 84;
        job.verify = Some(Verified { bytes: 0, errors: 1, first: Some("offset 4096".into()) });
        let found = warnings(&report);
        assert!(found[0].problem.contains("ended with error 84 (offset 4096)."), "{found:?}");
    }

    #[test]
    fn limits_are_inclusive() {
        assert_eq!(doubts(|r| r.runs[0].elapsed_ns = 1_000_000_000), []);
        assert_eq!(doubts(|r| r.runs[0].repetitions = vec![95.0, 100.0, 105.0]), []);
        assert_eq!(doubts(|r| r.machine.load_average = Some(2.0)), []);
        assert_eq!(doubts(|r| r.machine.governor = Some("performance".into())), []);
    }

    #[test]
    fn runs_with_one_weakness_share_a_warning_that_quotes_the_worst() {
        let mut report = sample::comparison();
        report.runs[1].elapsed_ns = 500_000_000;
        report.runs[4].elapsed_ns = 20_000_000;
        let found = warnings(&report);
        // The sample's four spinning threads on two cores cause the other warning.
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!((found[0].doubt, &found[0].runs[..]), (Doubt::Short, &[1, 4][..]));
        assert_eq!(
            found[0].to_string(),
            "mq-deadline (combining), 2 threads: measured for only 20.0 ms. One other run has the same \
             weakness. Measure longer: runtime=10 or more, with ramp_time=1."
        );
        assert_eq!((found[1].doubt, &found[1].runs[..]), (Doubt::SpinOversubscribed, &[8][..]));
    }
}
