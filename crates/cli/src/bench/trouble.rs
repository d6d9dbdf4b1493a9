//! Failures of finished runs: wrong contents, failed I/Os, and I/Os that did not end.

use super::tally::Part;
use crate::Failure;
use crate::plan::Plan;
use crate::plan::runs::ThreadSpec;
use blkmq_core::IoError;
use blkmq_lab::workload::{NEVER_KEPT, TOO_SLOW, Unfinished};

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
