//! How long requests lay in the engine while the device had nothing to do and a thread of the queue ran.

use crate::device::Arrival;
use blkmq_core::{Instant, Nanos};

/// From, until.
pub(crate) type Span = (Instant, Instant);

/// A request that lay for so long in vain is counted by its reason.
const LONG: Nanos = Nanos::from_millis(1);

/// The result of one run.
pub(crate) struct Account {
    /// Of all requests, sorted.
    lay: Vec<Nanos>,
    /// Of the long ones: those that a thread without a CPU held for itself, for others, and those that no thread held.
    pub(crate) own: usize,
    pub(crate) others: usize,
    pub(crate) unattended: usize,
}

/// Sorted spans that do not overlap, with sums.
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

/// The time in which none of `spans` is, in `all`.
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

impl Account {
    /// `gone` has, by thread, when it had no CPU; all of it happened in `all`.
    pub(crate) fn of(arrivals: &[Arrival], gone: &[Vec<Span>], all: Span) -> Self {
        let served = arrivals.iter().map(|it| (it.arrived, it.served)).collect();
        let ran = gone.iter().flat_map(|spans| outside(spans.clone(), all)).collect();
        // Neither served nor without a thread.
        let mut blocked: Vec<Span> = served;
        blocked.extend(outside(ran, all));
        let vain = Sums::new(&outside(blocked, all));
        let gone: Vec<Sums> = gone.iter().map(|spans| Sums::new(spans)).collect();
        let mut account = Self { lay: Vec::new(), own: 0, others: 0, unattended: 0 };
        for it in arrivals.iter().filter(|it| it.sent >= all.0 && it.arrived <= all.1) {
            let lay = vain.within((it.sent, it.arrived));
            account.lay.push(lay);
            if lay > LONG {
                let held = gone[usize::from(it.by)].within((it.sent, it.arrived));
                let reason = match held.0 * 2 > lay.0 {
                    true if it.by == it.submitter => &mut account.own,
                    true => &mut account.others,
                    false => &mut account.unattended,
                };
                *reason += 1;
            }
        }
        account.lay.sort_unstable();
        account
    }

    pub(crate) fn requests(&self) -> usize {
        self.lay.len()
    }

    /// The time that `share` of the requests did not exceed.
    pub(crate) fn quantile(&self, share: f64) -> Nanos {
        let at = (self.lay.len() as f64 * share) as usize;
        self.lay.get(at.min(self.lay.len().saturating_sub(1))).copied().unwrap_or_default()
    }
}
