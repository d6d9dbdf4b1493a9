//! Combines the counts of several threads into a job's result. Failures of finished runs are found in the counts: wrong
//! contents, failed I/Os, and I/Os that did not end. [`Usage`] is the CPU time and the events that the kernel charged
//! to a thread or to the process.

use crate::Failure;
use crate::plan::{Plan, ThreadSpec};
use crate::report::job::{
    self, Checks, Direction, Forgiven, JobResult, Latency, Samples, SyncResult, Verified,
};
use blkmq_core::{Histogram, IoError, IoPrio};
use blkmq_lab::workload::{
    self, Job, NEVER_KEPT, OnError, Sample, TOO_SLOW, Tally, Times, Unfinished,
};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use std::collections::BTreeMap;

/// The counts of one thread, and the CPU time that it used in the same period.
#[derive(Clone)]
pub struct Part {
    pub tally: Tally,
    pub usage: Usage,
    /// Whether the thread counted at all. False if it was stopped before its start, or in its ramp.
    pub counted: bool,
}

/// The result of `job` from the counts of its threads, or of a group of jobs reported under the name of its first job.
pub fn result(job: &Job, group: u32, options: Vec<(String, String)>, parts: &[&Part]) -> JobResult {
    let runtime_ns = parts.iter().map(|part| part.tally.runtime().0).max().unwrap_or(0);
    let usage = parts.iter().fold(Usage::default(), |sum, part| sum.plus(part.usage));
    let total_runtime_ns = parts.iter().map(|part| part.tally.runtime().0).sum::<u64>();
    let percent = |ns: u64| 100.0 * ns as f64 / total_runtime_ns.max(1) as f64;
    let direction = |d: workload::Direction| direction(parts, d);
    let depth = parts.iter().filter_map(|part| part.tally.latency_depth).max();
    let mut result = JobResult {
        name: job.name.clone(),
        group,
        options,
        members: parts.len() as u32,
        error: parts.iter().map(|part| i32::from(part.tally.error)).find(|e| *e != 0).unwrap_or(0),
        forgiven: forgiven(job, parts),
        unfinished: parts.iter().map(|p| u64::from(p.tally.unfinished.outstanding)).sum(),
        read: direction(workload::Direction::Read),
        write: direction(workload::Direction::Write),
        trim: direction(workload::Direction::Trim),
        runtime_ns,
        total_runtime_ns,
        usr_cpu: percent(usage.user_ns),
        sys_cpu: percent(usage.system_ns),
        ctx: usage.context_switches,
        majf: usage.major_faults,
        minf: usage.minor_faults,
        percentiles: job::percentiles(&job.percentile_list),
        percentiles_of: job.percentiles,
        unified: job.unified,
        iodepth: depth.unwrap_or(job.depth.iodepth),
        latency_target: job.latency_target,
        verify: verified(parts),
        checks: checks(parts),
        sync: sync(parts),
        end_fsync_ns: parts.iter().filter_map(|part| part.tally.end_fsync).map(|it| it.0).max(),
        lateness: merged(parts.iter().filter_map(|part| part.tally.lateness.as_ref())),
        ..JobResult::default()
    };
    for part in parts {
        add(&mut result.iodepth_level.0, &part.tally.levels.0);
        add(&mut result.iodepth_submit.0, &part.tally.submits.0);
        add(&mut result.iodepth_complete.0, &part.tally.completes.0);
    }
    result
}

/// The failed I/Os of all threads, if the job continues after them.
fn forgiven(job: &Job, parts: &[&Part]) -> Option<Forgiven> {
    let failures = || parts.iter().map(|part| &part.tally.failures);
    let count = failures().map(|failures| failures.count).sum();
    let first = failures().find_map(|failures| failures.first).map_or(0, |first| first.error.0);
    (job.on_error != OnError::End).then_some(Forgiven { count, first })
}

/// The reads that only checked contents, of all threads.
fn checks(parts: &[&Part]) -> Checks {
    let all = || parts.iter().map(|part| &part.tally.checks);
    Checks {
        ios: all().map(|checks| checks.ios).sum(),
        bytes: all().map(|checks| checks.bytes).sum(),
        ns: all().map(|checks| checks.time.0).max().unwrap_or(0),
        total_ns: all().map(|checks| checks.time.0).sum(),
    }
}

/// The flushes of all threads.
fn sync(parts: &[&Part]) -> SyncResult {
    SyncResult {
        total_ios: parts.iter().map(|part| part.tally.flushes).sum(),
        lat: merged(parts.iter().filter_map(|part| part.tally.sync.as_ref())),
    }
}

/// Merges all values; `None` if nothing was measured.
fn merged<'a>(histograms: impl Iterator<Item = &'a Histogram>) -> Option<Latency> {
    let mut all: Option<Histogram> = None;
    for histogram in histograms {
        all.get_or_insert_with(Histogram::new).merge(histogram);
    }
    all.map(Latency)
}

/// The combined verification counts; `None` if no thread verified.
fn verified(parts: &[&Part]) -> Option<Verified> {
    let findings = parts.iter().filter_map(|part| part.tally.verify.as_ref());
    findings.fold(None, |sum, found| {
        let mut sum: Verified = sum.unwrap_or_default();
        sum.bytes += found.verified;
        sum.errors += found.errors;
        sum.first = sum.first.or_else(|| found.first.map(|first| first.to_string()));
        Some(sum)
    })
}

fn add(into: &mut [u64; 7], from: &[u64; 7]) {
    into.iter_mut().zip(from).for_each(|(into, from)| *into += from);
}

/// Returns latencies by priority; empty if fewer than two priorities had I/O.
fn prios(parts: &[&Part], direction: workload::Direction) -> Vec<(IoPrio, Latency)> {
    let mut all: BTreeMap<u16, Latency> = BTreeMap::new();
    let counts = parts.iter().map(|part| &part.tally.counts[direction as usize]);
    for (prio, clat) in counts.flat_map(|c| &c.prios).filter(|(_, clat)| clat.count() > 0) {
        all.entry(prio.to_bits()).or_default().0.merge(clat);
    }
    let several = if all.len() > 1 { all } else { BTreeMap::new() };
    several.into_iter().map(|(bits, clat)| (IoPrio::from_bits(bits), clat)).collect()
}

fn direction(parts: &[&Part], direction: workload::Direction) -> Direction {
    let counts = || parts.iter().map(|part| &part.tally.counts[direction as usize]);
    let latency = |pick: fn(&Times) -> &Option<Histogram>| {
        merged(counts().filter_map(|c| pick(&c.times).as_ref()))
    };
    let samples = |pick: fn(&Sample) -> u64| {
        let rate = |sample: &Sample| pick(sample) as f64 * (1e9 / sample.length.0 as f64);
        let each = counts().map(|c| Samples::of(&Vec::from_iter(c.samples.iter().map(rate))));
        each.reduce(Samples::sum).unwrap_or_default()
    };
    Direction {
        io_bytes: counts().map(|c| c.bytes).sum(),
        runtime_ns: parts.iter().map(|p| p.tally.runtime_of(direction).0).max().unwrap_or(0),
        total_ios: counts().map(|c| c.ios).sum(),
        slat: latency(|t| &t.slat),
        clat: latency(|t| &t.clat),
        lat: latency(|t| &t.lat),
        prios: prios(parts, direction),
        iops_samples: samples(|s| s.ios),
        bw_samples: samples(|s| s.bytes),
        ..Direction::default()
    }
}

/// CPU time and events since a starting point.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub user_ns: u64,
    pub system_ns: u64,
    pub context_switches: u64,
    pub major_faults: u64,
    pub minor_faults: u64,
}

impl Usage {
    /// The usage of the calling thread so far.
    pub fn of_thread() -> Self {
        Self::read(UsageWho::RUSAGE_THREAD)
    }

    /// The usage of the whole process so far.
    pub fn of_process() -> Self {
        Self::read(UsageWho::RUSAGE_SELF)
    }

    fn read(who: UsageWho) -> Self {
        // `getrusage` fails for invalid arguments only.
        let usage = getrusage(who).expect("getrusage knows threads and processes");
        let ns = |t: TimeVal| t.tv_sec() as u64 * 1_000_000_000 + t.tv_usec() as u64 * 1_000;
        Self {
            user_ns: ns(usage.user_time()),
            system_ns: ns(usage.system_time()),
            context_switches: (usage.voluntary_context_switches()
                + usage.involuntary_context_switches()) as u64,
            major_faults: usage.major_page_faults() as u64,
            minor_faults: usage.minor_page_faults() as u64,
        }
    }

    /// The usage since `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            user_ns: self.user_ns.saturating_sub(earlier.user_ns),
            system_ns: self.system_ns.saturating_sub(earlier.system_ns),
            context_switches: self.context_switches.saturating_sub(earlier.context_switches),
            major_faults: self.major_faults.saturating_sub(earlier.major_faults),
            minor_faults: self.minor_faults.saturating_sub(earlier.minor_faults),
        }
    }

    /// The sum of both.
    fn plus(self, other: Self) -> Self {
        Self {
            user_ns: self.user_ns + other.user_ns,
            system_ns: self.system_ns + other.system_ns,
            context_switches: self.context_switches + other.context_switches,
            major_faults: self.major_faults + other.major_faults,
            minor_faults: self.minor_faults + other.minor_faults,
        }
    }
}

/// A kind of failure of a run, described with its first occurrence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// A block did not hold the data written to it, or could not be verified.
    Verify(String),
    /// I/Os failed.
    Io(String),
    /// I/Os failed, and jobs continued as requested by `continue_on_error`. The command succeeds.
    Forgiven(String),
    /// An I/O took longer than `max_latency`.
    Late(String),
    /// I/Os did not end with the runtime.
    Unfinished(String),
    /// A log could not be written.
    Log(String),
    /// No depth keeps `latency_target`.
    Latency(String),
    /// A thread was slower than `rate_min` or `rate_iops_min`.
    Rate(String),
}

impl Trouble {
    fn text(&self) -> &str {
        match self {
            Self::Verify(text) | Self::Io(text) | Self::Unfinished(text) => text,
            Self::Log(text) | Self::Latency(text) | Self::Rate(text) => text,
            Self::Forgiven(text) | Self::Late(text) => text,
        }
    }

    /// The beginning of a line about this failure.
    fn heading(&self) -> &'static str {
        match self {
            Self::Verify(_) => "verification failed with",
            Self::Io(_) | Self::Forgiven(_) => "I/O failed with",
            Self::Late(_) => "latency bound exceeded with",
            Self::Unfinished(_) => "I/O stalled with",
            Self::Log(_) => "writing failed with",
            Self::Latency(_) => "latency target missed with",
            Self::Rate(_) => "least rate missed with",
        }
    }
}

/// The failures of a command's runs.
#[derive(Default)]
pub struct Troubles {
    runs: usize,
    first: Option<(Trouble, String)>,
}

impl Troubles {
    /// Adds the failures of one run, and returns the notes about them for the report.
    pub fn add(&mut self, label: &str, troubles: &[Trouble]) -> Vec<String> {
        let is_failure = |trouble: &Trouble| !matches!(trouble, Trouble::Forgiven(_));
        self.runs += usize::from(troubles.iter().any(is_failure));
        let mut notes = Vec::new();
        for trouble in troubles {
            let line = format!("{} {label}: {}", trouble.heading(), trouble.text());
            let mut note = line.clone();
            // In the report the note is a separate sentence.
            note[..1].make_ascii_uppercase();
            notes.push(note);
            if is_failure(trouble) {
                self.first.get_or_insert((trouble.clone(), line));
            }
        }
        notes
    }

    /// An error if any run failed.
    pub fn verdict(self, runs: usize) -> Result<(), Failure> {
        let Some((trouble, line)) = self.first else { return Ok(()) };
        let line = if runs == 1 {
            line
        } else {
            format!("{} of {runs} runs did not go well; the first: {line}", self.runs)
        };
        Err(match trouble {
            Trouble::Verify(_) => Failure::Verify(line),
            Trouble::Io(_)
            | Trouble::Forgiven(_)
            | Trouble::Late(_)
            | Trouble::Unfinished(_)
            | Trouble::Log(_)
            | Trouble::Latency(_)
            | Trouble::Rate(_) => Failure::Io(line),
        })
    }
}

/// The failures of a run of `parts`.
pub fn all(plan: &Plan, parts: &[(ThreadSpec, Part)]) -> Vec<Trouble> {
    let wrong = wrong(plan, parts).map(Trouble::Verify);
    let io = failed(plan, parts);
    let late = late(plan, parts).map(Trouble::Late);
    let unfinished = unfinished(plan, parts).map(Trouble::Unfinished);
    let latency = latency(plan, parts).map(Trouble::Latency);
    let rate = rate(plan, parts).map(Trouble::Rate);
    let all = [wrong, io, late, unfinished, latency, rate];
    all.into_iter().flatten().collect()
}

fn place(plan: &Plan, thread: &ThreadSpec) -> String {
    format!("job '{}', thread {}", plan.jobs[thread.job].name, thread.thread)
}

/// The first thread whose target is missed by one I/O at a time.
fn latency(plan: &Plan, parts: &[(ThreadSpec, Part)]) -> Option<String> {
    let missed = |part: &Part| part.tally.latency_depth.is_some() && part.tally.error == NEVER_KEPT;
    let (thread, _) = parts.iter().find(|(_, part)| missed(part))?;
    let target = plan.jobs[thread.job].latency_target?.target;
    let place = place(plan, thread);
    Some(format!("{place}: {target} is too short even for one I/O at a time (error {NEVER_KEPT})"))
}

/// The first thread that was slower than it may be.
fn rate(plan: &Plan, parts: &[(ThreadSpec, Part)]) -> Option<String> {
    let missed = |part: &Part| part.tally.error == TOO_SLOW && part.tally.failures.count == 0;
    let (thread, _) = parts.iter().find(|(_, part)| missed(part))?;
    let place = place(plan, thread);
    Some(format!("{place}: slower than rate_min or rate_iops_min (error {TOO_SLOW})"))
}

/// The first thread with an I/O that took too long.
fn late(plan: &Plan, parts: &[(ThreadSpec, Part)]) -> Option<String> {
    let (thread, late) =
        parts.iter().find_map(|(thread, part)| Some((thread, part.tally.late?)))?;
    Some(format!("{}: {late} (errno {})", place(plan, thread), IoError::TIMED_OUT.0))
}

/// The number of failed I/Os of all threads, and the first of them: that of a thread that ended because of it, if there
/// is one.
fn failed(plan: &Plan, parts: &[(ThreadSpec, Part)]) -> Option<Trouble> {
    let ended = |part: &Part| part.tally.error != 0 && part.tally.late.is_none();
    let (trouble, is_meant): (fn(String) -> Trouble, _) =
        if parts.iter().any(|(_, part)| part.tally.failures.count > 0 && ended(part)) {
            (Trouble::Io, true)
        } else {
            (Trouble::Forgiven, false)
        };
    let meant = || parts.iter().filter(|(_, part)| !is_meant || ended(part));
    let count: u64 = meant().map(|(_, part)| part.tally.failures.count).sum();
    let (thread, first) =
        meant().find_map(|(thread, part)| Some((thread, part.tally.failures.first?)))?;
    let place = place(plan, thread);
    Some(trouble(match count {
        1 => format!("one I/O: {place}, {first}"),
        count => format!("{count} I/Os; the first: {place}, {first}"),
    }))
}

/// Describes the I/Os that did not end with the runtime: those of the first thread that has any, and the number of
/// other such threads.
fn unfinished(plan: &Plan, parts: &[(ThreadSpec, Part)]) -> Option<String> {
    // A drain that took long but reaped every I/O is not a failure, because no I/O was given up.
    let is_short = |part: &Part| {
        let Unfinished { cancelled, abandoned, .. } = part.tally.unfinished;
        cancelled + abandoned > 0
    };
    let mut stalled = parts.iter().filter(|(_, part)| is_short(part));
    let (thread, part) = stalled.next()?;
    let more = match stalled.count() {
        0 => String::new(),
        1 => ", and one more thread likewise".to_owned(),
        more => format!(", and {more} more threads likewise"),
    };
    Some(format!("{}: {}{more}", place(plan, thread), part.tally.unfinished))
}

/// Describes the total number of verification errors, and the first of them; or else the first thread that could not
/// verify everything.
fn wrong(plan: &Plan, parts: &[(ThreadSpec, Part)]) -> Option<String> {
    let found =
        || parts.iter().filter_map(|(thread, part)| Some((thread, part.tally.verify.as_ref()?)));
    let errors: u64 = found().map(|(_, findings)| findings.errors).sum();
    if let Some((thread, first)) = found().find_map(|(thread, found)| Some((thread, found.first?)))
    {
        let blocks = if errors == 1 { "block" } else { "blocks" };
        return Some(format!(
            "{errors} wrong {blocks}; the first: {}, {first}",
            place(plan, thread)
        ));
    }
    let failed = parts
        .iter()
        .map(|(thread, part)| (thread, &part.tally))
        .find(|(_, tally)| tally.verify.is_some() && tally.error != 0);
    failed.map(|(thread, tally)| {
        format!("{}: error {} before everything was verified", place(plan, thread), tally.error)
    })
}
