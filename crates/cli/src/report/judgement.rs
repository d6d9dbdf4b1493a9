//! The judgement of a report. Findings are about the schedulers: they interpret the figures of a comparison in
//! sentences, which are the cost of a scheduler, the effect of more threads, and the better way to share the elevator.
//! A difference no larger than that between repetitions is not reported. Nothing is concluded from a single run.
//!
//! Warnings are about the measurement: when a run is unreliable, and the remedy. Slow is a finding, noisy is a warning.
//! Runs with the same weakness share one warning, which quotes the worst of them.

use super::figures::{Served, served};
use super::job::{JobResult, Percentile};
use super::model::{DeviceKind, Report, Run};
use super::wording::{Series, Varying, count, counted, nanos, percent, scheduler, series};

/// The maximum number of names in a readable sentence.
const MOST: usize = 4;
/// A run serves a job worse than another if the rates differ by this factor, beyond the noise.
const WORSE: f64 = 1.5;
/// A job is served worse than the others if its median latency is this many times theirs.
const MUCH_SLOWER: u64 = 10;

/// Returns at most five sentences; none for a single run.
#[must_use]
pub fn findings(report: &Report) -> Vec<String> {
    if report.runs.iter().any(|run| run.is_partial) {
        // A truncated run is not compared.
        let mut whole = report.clone();
        whole.runs.retain(|run| !run.is_partial);
        return findings(&whole);
    }
    if report.runs.len() < 2 {
        return vec![];
    }
    // A simulation assumes the CPU costs, so nothing follows from its rates.
    let of_cpu = || [cost(report), scaling(report), access(report)];
    let of_cpu = report.seed.is_none().then(of_cpu).into_iter().flatten();
    let all = [worst_served(report)].into_iter().chain(of_cpu).chain([merging(report)]);
    all.flatten().collect()
}

/// Reports the job that one run serves much worse than another or, if there is none, a job that every run serves much
/// worse than the other jobs. Says nothing if the processor is the bottleneck.
fn worst_served(report: &Report) -> Option<String> {
    let first = &report.runs[0];
    let is_like = |run: &Run| run.device.text == first.device.text && run.threads == first.threads;
    if first.device.kind.is_cpu_bound() || !report.runs.iter().all(is_like) {
        return None;
    }
    let varying = Varying::of(report);
    let all = served(report);
    let noise = report.runs.iter().filter_map(Run::spread).fold(0.0, f64::max);
    let worst = |rows: &[Served<'_>]| {
        let least = rows.iter().min_by(|a, b| a.iops.total_cmp(&b.iops))?;
        let most = rows.iter().max_by(|a, b| a.iops.total_cmp(&b.iops))?;
        let times = most.iops / least.iops;
        let says = format!(
            "{} does {} {} per second with {}, and {} with {}.",
            least.job,
            count(least.iops),
            least.kind,
            varying.run_name(least.run),
            count(most.iops),
            varying.run_name(most.run)
        );
        (times > WORSE + noise).then_some((times, says))
    };
    let by_job = || all.chunk_by(|a, b| a.job == b.job && a.kind == b.kind);
    // Among equals the first.
    let differing = by_job().filter_map(worst).rev().max_by(|a, b| a.0.total_cmp(&b.0));
    if let Some((_, says)) = differing {
        return Some(says);
    }
    let slow =
        |rows: &&[Served<'_>]| rows.iter().filter_map(|it| it.percentile(Percentile::P50)).min();
    let slowest = by_job().filter(|rows| slow(rows).is_some()).rev().max_by_key(slow)?;
    let half = slow(&slowest)?;
    let others = by_job()
        .filter(|rows| rows[0].job != slowest[0].job)
        .filter_map(|rows| rows.iter().filter_map(|it| it.percentile(Percentile::P50)).max());
    let is_apart = others.max().is_some_and(|other| half > MUCH_SLOWER * other);
    is_apart.then(|| {
        let Served { job, kind, .. } = slowest[0];
        format!(
            "{job} is served worst in every run: half of its {kind} take {} or longer.",
            nanos(half as f64)
        )
    })
}

/// Reports the cost of each scheduler over `none`, with the smallest number of threads.
fn cost(report: &Report) -> Option<String> {
    let fewest = report.runs.iter().map(|run| run.threads).min()?;
    let start = || report.runs.iter().filter(move |run| run.threads == fewest);
    let base = start().find(|run| run.scheduler == "none" && run.iops() > 0.0)?;
    let is_other = |run: &&Run| run.scheduler != "none" && run.iops() > 0.0;
    let all = || start().filter(is_other).filter(|run| run.device.text == base.device.text);
    // Each scheduler with its default scope, unless `none` was measured only with another.
    let bases = |scope: &str| start().any(|it| it.scheduler == "none" && it.scope == scope);
    let is_like =
        |run: &&Run| run.access == base.access && (run.scope == base.scope || !bases(&run.scope));
    let mut others: Vec<&Run> = all().filter(is_like).collect();
    let mut varying = Varying::default();
    if others.is_empty() {
        others = all().collect();
        varying = Varying { threads: false, ..Varying::of(report) };
    }
    if others.is_empty() {
        return None;
    }
    let per_io = |run: &Run| 1e9 / run.iops();
    let in_time = fewest == 1 && base.device.kind.is_cpu_bound();
    // A scheduler measured with several scopes is named with each.
    let scopes = |run: &Run| others.iter().filter(|it| scheduler(it) == scheduler(run)).count();
    let name = |run: &Run| {
        let name = varying.series_name(run);
        let is_ambiguous = !varying.scope && scopes(run) > 1;
        if is_ambiguous { format!("{name} ({})", run.scope) } else { name }
    };
    let clause = |run: &&Run| {
        let name = name(run);
        if in_time && per_io(run) > per_io(base) {
            format!("{name} costs {} more", nanos(per_io(run) - per_io(base)))
        } else {
            format!("{name} does {} of that", percent(run.iops() / base.iops()))
        }
    };
    let (apart, close): (Vec<&Run>, Vec<&Run>) = others.iter().partition(|it| is_apart(base, it));
    // Equality is a statement about noise, which one run does not show.
    let is_repeated = |run: &&Run| base.spread().and(run.spread()).is_some();
    let (same, unclear): (Vec<&Run>, Vec<&Run>) = close.into_iter().partition(is_repeated);
    let names = |runs: &[&Run]| Vec::from_iter(runs.iter().map(|run| name(run)));
    let mut clauses = Vec::from_iter(apart.iter().map(clause));
    if !same.is_empty() {
        let verb = if same.len() == 1 { "makes" } else { "make" };
        let names = all_of(names(&same));
        clauses.push(format!("{names} {verb} no difference that the repetitions can tell"));
    }
    if !unclear.is_empty() {
        let names = all_of(names(&unclear));
        clauses.push(format!("one repetition cannot tell {names} from it; --repeat=5 may"));
    }
    let clauses = list(clauses, "; ");
    let threads = at_threads(fewest);
    Some(if in_time {
        format!("{threads}, an I/O takes {} with none; {clauses}.", nanos(per_io(base)))
    } else {
        let rate = count(base.iops());
        format!("{threads}, none does {rate} I/Os per second; {clauses}.")
    })
}

/// The effect of the most threads on the rate of one thread.
fn scaling(report: &Report) -> Option<String> {
    let most = report.runs.iter().map(|run| run.threads).max()?;
    let gain = |s: &Series<'_>| {
        let at = |threads| s.runs.iter().find(|run| run.threads == threads);
        let (one, many) = (at(1)?, at(most)?);
        (one.iops() > 0.0).then(|| many.iops() / one.iops())
    };
    let gains = series(report)
        .into_iter()
        .filter_map(|s| Some(format!("{:.2}x for {}", gain(&s)?, s.label)));
    let clauses: Vec<String> = gains.collect();
    if most < 2 || clauses.is_empty() {
        return None;
    }
    let cores = counted(report.machine.cores.into(), "core");
    let (threads, clauses) = (at_threads(most), list(clauses, ", "));
    Some(format!("{threads} on {cores}, the rate relative to one thread is {clauses}."))
}

/// Reports the best and the worst way to share the same elevator.
fn access(report: &Report) -> Option<String> {
    let most = report.runs.iter().map(|run| run.threads).max()?;
    let counts =
        move |run: &&Run| run.threads == most && run.iops() > 0.0 && run.scheduler != "none";
    let candidates = || report.runs.iter().filter(counts);
    let is_pair = |(a, b): &(&Run, &Run)| {
        scheduler(a) == scheduler(b)
            && a.device.text == b.device.text
            && a.scope == b.scope
            && a.access != b.access
            && is_apart(a, b)
    };
    let pairs = candidates().flat_map(|a| candidates().map(move |b| (a, b))).filter(is_pair);
    let gain = |(a, b): (&Run, &Run)| a.iops() / b.iops();
    let widest = pairs.reduce(|most, pair| if gain(pair) > gain(most) { pair } else { most });
    let (best, worst) = widest.filter(|(a, b)| a.iops() > b.iops())?;
    Some(format!(
        "{}, {} does {:.2} times as many I/Os with access {} as with {}.",
        at_threads(most),
        scheduler(best),
        best.iops() / worst.iops(),
        best.access,
        worst.access
    ))
}

/// The run that merged most.
fn merging(report: &Report) -> Option<String> {
    let share = |run: &&Run| run.counters.merged_share();
    let most = report.runs.iter().max_by(|a, b| share(a).total_cmp(&share(b)))?;
    if share(&most) < 0.01 {
        return None;
    }
    Some(format!(
        "Merging spared the device {} of the I/Os with {}.",
        percent(share(&most)),
        Varying::of(report).run_name(most)
    ))
}

/// Returns whether the rates differ by more than the repetitions of either run. Without repetitions, a difference of a
/// tenth is required; on a file or disk, whose rate may double from run to run, a factor of three.
fn is_apart(a: &Run, b: &Run) -> bool {
    let noise = match (a.spread(), b.spread()) {
        (None, None) if a.device.kind == DeviceKind::File => 2.0,
        (None, None) => 0.10,
        (x, y) => x.unwrap_or(0.0).max(y.unwrap_or(0.0)),
    };
    (a.iops() - b.iops()).abs() > noise * a.iops().min(b.iops())
}

fn at_threads(threads: u32) -> String {
    if threads == 1 { "With one thread".into() } else { format!("With {threads} threads") }
}

/// The words as an enumeration: `a, b and c`.
fn all_of(mut words: Vec<String>) -> String {
    let last = words.pop().unwrap_or_default();
    if words.is_empty() { last } else { format!("{} and {last}", words.join(", ")) }
}

/// The clauses in a row, cut where the sentence would become unreadable.
fn list(mut clauses: Vec<String>, separator: &str) -> String {
    let left_out = clauses.len().saturating_sub(MOST);
    clauses.truncate(MOST);
    let mut text = clauses.join(separator);
    if left_out > 0 {
        text.push_str(&format!("{separator}and {left_out} more in the table"));
    }
    text
}

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
    /// The observation and the advice, a sentence each.
    pub text: String,
}

/// Weaknesses of a measurement, the gravest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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

/// Every weakness, with the advice about it, a sentence.
const DOUBTS: [(Doubt, &str); 12] = [
    (Doubt::Cut, "Compare it with no run that has had its whole time."),
    (Doubt::Imbalance, "Do not use these figures; this is a bug in blkmq, please report it."),
    (Doubt::Failed, "Find the cause before using the figures; they cover only part of the work."),
    (Doubt::Short, "Measure longer: runtime=10 or more, with ramp_time=1."),
    (Doubt::Few, "Raise runtime or size until thousands of I/Os are done."),
    (
        Doubt::Noisy,
        "Stop other programs, raise runtime, and repeat; smaller differences mean nothing.",
    ),
    (Doubt::Busy, "Wait until the machine is idle, or stop what else is running."),
    (
        Doubt::SpinOversubscribed,
        "Use at most as many threads as cores, or another access; a spinner waits for a thread \
         that is not running.",
    ),
    (Doubt::Clipped, "Read the highest percentiles as lower bounds; the maximum is exact."),
    (Doubt::Untimed, "Leave out gtod_reduce and disable_clat to see latencies."),
    (Doubt::Frequency, "Choose the governor 'performance' for figures that can be repeated."),
    (
        Doubt::Virtual,
        "Compare only figures of one session, and expect the neighbours in the highest percentiles.",
    ),
];

/// All doubts about the report, the gravest first.
#[must_use]
pub fn warnings(report: &Report) -> Vec<Warning> {
    let warning = |(doubt, advice)| {
        let (runs, problem) = match of_machine(doubt, report) {
            Some(problem) => (vec![], problem),
            None => of_runs(doubt, report)?,
        };
        Some(Warning { doubt, runs, text: format!("{problem} {advice}") })
    };
    DOUBTS.into_iter().filter_map(warning).collect()
}

/// The runs with a weakness, and a sentence about the worst of them.
fn of_runs(doubt: Doubt, report: &Report) -> Option<(Vec<usize>, String)> {
    // Virtual time has no caches to warm up, and a CPU for each thread.
    if report.seed.is_some() && matches!(doubt, Doubt::Short | Doubt::SpinOversubscribed) {
        return None;
    }
    let runs = report.runs.iter().enumerate();
    let weak = runs.filter_map(|(index, run)| Some((index, fact(doubt, run, report)?)));
    let weak = Vec::from_iter(weak);
    let worst = weak.iter().reduce(|a, b| if b.1.0 > a.1.0 { b } else { a });
    let (index, (_, text)) = worst?;
    let name = Varying::of(report).run_name(&report.runs[*index]);
    let others = match weak.len() - 1 {
        0 => String::new(),
        1 => " One other run has the same weakness.".into(),
        n => format!(" {n} other runs have the same weakness."),
    };
    let runs = weak.iter().map(|(index, _)| *index).collect();
    Some((runs, format!("{name}: {text}{others}")))
}

/// A weakness of the machine, a sentence.
fn of_machine(doubt: Doubt, report: &Report) -> Option<String> {
    let machine = &report.machine;
    let cores = machine.cores;
    Some(match doubt {
        Doubt::Busy => {
            let load = machine.load_average.filter(|load| *load > f64::from(cores))?;
            format!("The load average before the run was {load:.1} on {cores} cores.")
        }
        Doubt::Frequency if report.runs.iter().any(|run| run.device.kind.is_cpu_bound()) => {
            let governor = machine.governor.as_ref().filter(|it| *it != "performance")?;
            format!("The processor's frequency governor is '{governor}'.")
        }
        Doubt::Virtual => {
            let host = machine.hypervisor.as_ref()?;
            format!("This is a virtual machine (vendor: {host}), which shares its processors.")
        }
        _ => return None,
    })
}

/// Returns whether the report is a status, whose partial runs have not ended.
fn is_status(report: &Report) -> bool {
    report.partial.is_some_and(|partial| partial.signal.is_none())
}

/// A weakness of one run: its severity relative to others of the same kind, and a sentence.
fn fact(doubt: Doubt, run: &Run, report: &Report) -> Option<(f64, String)> {
    let cores = report.machine.cores;
    let (is_weak, badness, text) = match doubt {
        Doubt::Cut => {
            let time = nanos(run.elapsed_ns as f64);
            let how = if is_status(report) { "not ended" } else { "cut short by a signal" };
            (run.is_partial, 0.0, format!("{how} after {time}."))
        }
        // I/Os that were given up leave the counts unequal; another message reports them. Counts balance only at the
        // end.
        Doubt::Imbalance if run.is_partial && is_status(report) => return None,
        Doubt::Imbalance if run.jobs.iter().any(|job| job.unfinished > 0) => return None,
        Doubt::Imbalance => (true, 0.0, run.counters.imbalance()?),
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
            let text = format!("a latency of {} exceeds the histogram.", nanos(max));
            (latency.is_clipped(), max, text)
        }
        Doubt::Untimed => {
            let mut directions = run.jobs.iter().flat_map(JobResult::directions);
            let is_weak = directions.any(|(_, direction)| direction.is_untimed());
            (is_weak, 0.0, "latency was not measured.".into())
        }
        Doubt::Busy | Doubt::Frequency | Doubt::Virtual => return None,
    };
    is_weak.then_some((badness, text))
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

    #[test]
    fn the_comparison_in_words() {
        let expected = [
            "With one thread, an I/O takes 125 ns with none; mq-deadline costs 75.0 ns more.",
            "With 4 threads on 2 cores, the rate relative to one thread is 1.93x for none (combining), \
             0.96x for mq-deadline (combining), 0.13x for mq-deadline (spin).",
            "With 4 threads, mq-deadline does 8.00 times as many I/Os with access combining as with spin.",
            "Merging spared the device 12.5 % of the I/Os with mq-deadline (spin), 4 threads.",
        ];
        assert_eq!(findings(&sample::comparison()), expected);
    }

    #[test]
    fn a_difference_within_the_noise_is_none() {
        let mut report = sample::comparison();
        report.runs.truncate(1);
        report.runs.push(sample::run("kyber", "combining", 1, 7_900_000, 180));
        assert!(
            findings(&report)[0]
                .ends_with("kyber makes no difference that the repetitions can tell.")
        );
        report.runs[1].repetitions.truncate(1);
        let text = &findings(&report)[0];
        assert!(
            text.ends_with("one repetition cannot tell kyber from it; --repeat=5 may."),
            "{text}"
        );
        for name in ["mq-deadline", "bfq"] {
            report.runs.push(Run { scheduler: name.into(), ..report.runs[1].clone() });
        }
        let text = &findings(&report)[0];
        let of_all =
            "one repetition cannot tell kyber, mq-deadline and bfq from it; --repeat=5 may.";
        assert!(text.ends_with(of_all), "{text}");
        report.runs.truncate(2);
        report.runs[1] = sample::run("kyber", "combining", 1, 7_000_000, 180);
        report.runs[0].device.kind = DeviceKind::File;
        let text = &findings(&report)[0];
        assert_eq!(
            text,
            "With one thread, none does 8.00M I/Os per second; kyber does 87.5 % of that."
        );
        for run in &mut report.runs {
            run.repetitions.truncate(1);
        }
        let text = &findings(&report)[0];
        assert!(
            text.ends_with("one repetition cannot tell kyber from it; --repeat=5 may."),
            "{text}"
        );
    }

    /// Regression test: bare `blkmq bench` reported the cost of kyber but not of mq-deadline and bfq, whose scope
    /// differs.
    #[test]
    fn schedulers_with_a_scope_of_their_own_have_a_cost_too() {
        let mut report = sample::comparison();
        report.runs.truncate(1);
        report.runs[0].scope = "hwqueue".into();
        let mut other = sample::run("mq-deadline", "combining", 1, 5_000_000, 180);
        other.scope = "queue".into();
        report.runs.push(other.clone());
        assert_eq!(
            findings(&report)[0],
            "With one thread, an I/O takes 125 ns with none; mq-deadline costs 75.0 ns more."
        );
        // If `none` was not measured with the other scope, each is compared with its own.
        report.runs.push(sample::run("none", "combining", 1, 6_000_000, 180));
        report.runs[2].scope = "queue".into();
        other.scope = "hwqueue".into();
        report.runs.push(other);
        let text = &findings(&report)[0];
        assert!(text.matches("mq-deadline").count() == 1, "{text}");
    }

    #[test]
    fn a_scheduler_reached_in_another_way_is_named_with_it() {
        let mut report = sample::comparison();
        report.runs.drain(3..6);
        let text = &findings(&report)[0];
        assert!(text.ends_with("none; mq-deadline (spin) costs 92.4 ns more."), "{text}");
    }

    #[test]
    fn nothing_follows_from_assumed_costs() {
        let report = Report { seed: Some(0), ..sample::comparison() };
        let found = findings(&report);
        assert!(found.len() == 1 && found[0].starts_with("Merging spared"), "{found:?}");
    }

    /// Regression test: the totals of a comparison hid a job that one scheduler starved.
    #[test]
    fn a_starved_job_is_named() {
        let mut report = sample::starved();
        let says = "db does 2.00 reads per second with none, and 80.0 with bfq.";
        assert_eq!(findings(&report)[0], says);
        report.runs[0].device.kind = DeviceKind::Null;
        assert!(!findings(&report).iter().any(|it| it.contains("db")), "assumed costs");
        // Every run starves it.
        let mut report = sample::starved();
        report.runs[1].jobs = report.runs[0].jobs.clone();
        let fast = report.runs[0].jobs[0].read.clat.clone();
        for run in &mut report.runs {
            run.jobs[1].read.clat =
                sample::run("none", "combining", 1, 500, 2_000_000).jobs[0].read.clat.clone();
        }
        let half = Percentile::P50.of(&fast.expect("measured").0);
        let says = format!(
            "db is served worst in every run: half of its reads take {} or longer.",
            nanos(half as f64)
        );
        assert_eq!(findings(&report)[0], says);
        for run in &mut report.runs {
            run.jobs[1] = run.jobs[0].clone();
            run.jobs[1].name = "scan".into();
        }
        assert!(!findings(&report).iter().any(|it| it.contains("db")), "both are alike");
    }

    #[test]
    fn a_run_that_was_cut_short_is_compared_with_none() {
        let mut report = sample::comparison();
        report.runs.truncate(4);
        assert!(findings(&report)[0].contains("mq-deadline costs"), "{:?}", findings(&report));
        report.runs[3].is_partial = true;
        assert!(findings(&report).iter().all(|it| !it.contains("mq-deadline")));
    }

    #[test]
    fn one_run_proves_nothing() {
        assert!(findings(&sample::single()).is_empty());
    }

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
        assert!(found[0].text.contains("ended with error 84 (offset 4096)."), "{found:?}");
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
            found[0].text,
            "mq-deadline (combining), 2 threads: measured for only 20.0 ms. One other run has the same \
             weakness. Measure longer: runtime=10 or more, with ramp_time=1."
        );
        assert_eq!((found[1].doubt, &found[1].runs[..]), (Doubt::SpinOversubscribed, &[8][..]));
    }
}
