//! How long requests waited in the engine while the device was idle and a thread of the queue was running.

use crate::device::Arrival;
use blkmq_core::{Instant, Nanos};

/// The start and the end.
pub(crate) type Span = (Instant, Instant);

/// A request that waited longer than this beside an idle device is counted by its cause.
const LONG: Nanos = Nanos::from_millis(1);

/// When a thread did not run.
#[derive(Default)]
pub(crate) struct Absence {
    /// The thread slept, or other threads had its CPU.
    pub(crate) gone: Vec<Span>,
    /// The kernel counted the thread as running, but an interrupt or the host of the virtual machine had its CPU.
    pub(crate) stolen: Vec<Span>,
}

/// The result of one run.
#[derive(Default)]
pub(crate) struct Account {
    /// Waits beside an idle device, sorted; without the ones attributed to other processes or to the host.
    lay: Vec<Nanos>,
    /// Long waits with a thread that was not running.
    pub(crate) held: usize,
    /// Long waits with no thread at fault.
    pub(crate) unattended: usize,
    /// Long waits while fewer threads of the queue ran than there were CPUs: another process had a CPU.
    foreign: Vec<Nanos>,
    /// Long waits with a thread from which the host had taken the CPU. No other thread can help there.
    pub(crate) host: usize,
}

/// Sorted, disjoint spans, each with the sum of the lengths before it.
struct Sums(Vec<(Span, u64)>);

impl Sums {
    fn new(spans: &[Span]) -> Self {
        let mut sum = 0;
        let add = |span: &Span| {
            let before = sum;
            sum += (span.1 - span.0).0;
            (*span, before)
        };
        Self(spans.iter().map(add).collect())
    }

    /// The time in spans before `at`.
    fn before(&self, at: Instant) -> u64 {
        let behind = self.0.partition_point(|((from, _), _)| *from < at);
        let Some(((from, until), sum)) = behind.checked_sub(1).map(|last| self.0[last]) else {
            return 0;
        };
        sum + (at.min(until) - from).0
    }

    fn within(&self, (from, until): Span) -> Nanos {
        Nanos(self.before(until) - self.before(from))
    }
}

/// The spans of `all` that lie outside of `spans`.
fn outside(mut spans: Vec<Span>, all: Span) -> Vec<Span> {
    spans.sort_unstable();
    let (mut gaps, mut at) = (Vec::new(), all.0);
    for (from, until) in spans.into_iter().chain([(all.1, all.1)]) {
        if from > at {
            gaps.push((at, from));
        }
        at = at.max(until);
    }
    gaps
}

/// The observations of a run.
struct Evidence<'a> {
    arrivals: &'a [Arrival],
    /// Indexed by thread.
    absences: &'a [Absence],
    gone: Vec<Sums>,
    stolen: Vec<Sums>,
    /// When the device was idle and a thread of the queue was running.
    vain: Sums,
    /// When as many threads were running as there were CPUs for them.
    full: Sums,
}

/// The longest flush of a submitter that does not lose its CPU.
const FLUSH: Nanos = Nanos::from_micros(50);

impl<'a> Evidence<'a> {
    fn new(arrivals: &'a [Arrival], absences: &'a [Absence], (all, cpus): (Span, usize)) -> Self {
        let served = arrivals.iter().map(|it| (it.arrived, it.served));
        let away = |it: &Absence| [&it.gone[..], &it.stolen].concat();
        let ran: Vec<Span> = absences.iter().flat_map(|it| outside(away(it), all)).collect();
        // When the device was serving a request, or no thread was running.
        let blocked = served.chain(outside(ran.clone(), all)).collect();
        Self {
            arrivals,
            absences,
            gone: absences.iter().map(|it| Sums::new(&it.gone)).collect(),
            stolen: absences.iter().map(|it| Sums::new(&it.stolen)).collect(),
            vain: Sums::new(&outside(blocked, all)),
            full: Sums::new(&at_least(cpus.min(absences.len()), &ran)),
        }
    }

    /// When the engine received the I/O: when its flush began, or later if its thread lost its CPU before it entered
    /// the engine. Requests of other threads that reached the device in the meantime show the latter, because a thread
    /// inside the engine keeps them out.
    fn had(&self, it: &Arrival) -> Instant {
        let gone = &self.absences[usize::from(it.submitter)].gone;
        let next = gone.partition_point(|(from, _)| *from < it.sent);
        let Some((from, until)) = gone.get(next).filter(|(from, _)| *from - it.sent < FLUSH) else {
            return it.sent;
        };
        let first = self.arrivals.partition_point(|other| other.arrived < *from + FLUSH);
        let meanwhile = self.arrivals[first..].iter().take_while(|other| other.arrived < *until);
        if meanwhile.clone().any(|other| other.by != it.submitter) { *until } else { it.sent }
    }
}

/// When at least `least` of these spans overlap.
fn at_least(least: usize, spans: &[Span]) -> Vec<Span> {
    let ends = spans.iter().flat_map(|(from, until)| [(*from, true), (*until, false)]);
    let mut ends: Vec<_> = ends.collect();
    ends.sort_unstable();
    let (mut inside, mut since, mut found) = (0, Instant::ZERO, Vec::new());
    for (at, begins) in ends {
        if begins {
            inside += 1;
            since = if inside == least { at } else { since };
        } else {
            if inside == least {
                found.push((since, at));
            }
            inside -= 1;
        }
    }
    found
}

impl Account {
    /// The account of a run in the span and on the number of CPUs that `all` has. `absences` is indexed by thread.
    pub(crate) fn of(arrivals: &[Arrival], absences: &[Absence], all: (Span, usize)) -> Self {
        let evidence = Evidence::new(arrivals, absences, all);
        let mut account = Self::default();
        for it in arrivals.iter().filter(|it| it.sent >= all.0.0 && it.arrived <= all.0.1) {
            account.add(&evidence, it);
        }
        account.lay.sort_unstable();
        account
    }

    fn add(&mut self, evidence: &Evidence<'_>, it: &Arrival) {
        let span = (evidence.had(it).min(it.arrived), it.arrived);
        let lay = evidence.vain.within(span);
        let most = |sums: &Sums| sums.within(span).0 * 2 > lay.0;
        let by = usize::from(it.by);
        if lay <= LONG {
            self.lay.push(lay);
        } else if most(&evidence.stolen[by]) {
            self.host += 1;
        } else if !most(&evidence.full) {
            self.foreign.push(lay);
        } else {
            self.lay.push(lay);
            *(if most(&evidence.gone[by]) { &mut self.held } else { &mut self.unattended }) += 1;
        }
    }

    /// The number of long waits caused by other processes, and the longest of them.
    pub(crate) fn foreign(&self) -> (usize, Nanos) {
        (self.foreign.len(), self.foreign.iter().copied().max().unwrap_or_default())
    }

    pub(crate) fn requests(&self) -> usize {
        self.lay.len()
    }

    /// The wait that `share` of the requests did not exceed.
    pub(crate) fn quantile(&self, share: f64) -> Nanos {
        let at = (self.lay.len() as f64 * share) as usize;
        self.lay.get(at.min(self.lay.len().saturating_sub(1))).copied().unwrap_or_default()
    }
}
