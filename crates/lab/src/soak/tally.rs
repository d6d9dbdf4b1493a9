//! The conditions that many runs reached, so that "passed" does not hide "was not tested".

use super::Outcome;
use std::fmt;
use std::ops::AddAssign;

/// A condition that a run may reach.
struct Reach {
    name: &'static str,
    amount: fn(&Outcome) -> u64,
}

/// The conditions, in the order in which they are printed.
const REACHES: &[Reach] = &[
    Reach { name: "merges", amount: |o| o.stats.merges.total() },
    Reach { name: "splits", amount: |o| o.stats.splits },
    Reach { name: "staged", amount: |o| o.stats.staged },
    Reach { name: "parked", amount: |o| o.stats.locks.parked },
    Reach { name: "merges_skipped", amount: |o| o.stats.locks.merges_skipped },
    Reach { name: "sent_away", amount: |o| o.stats.locks.left },
    Reach { name: "flushes", amount: |o| o.flushes.ended() },
    Reach { name: "busy", amount: |o| o.stats.busy },
    Reach { name: "requeues", amount: |o| o.stats.requeues - o.stats.retries },
    Reach { name: "tail_requeues", amount: |o| o.stats.tail_requeues },
    Reach { name: "taken_apart", amount: |o| o.stats.taken_apart },
    Reach { name: "timeouts", amount: |o| o.stats.timeouts },
    Reach { name: "retries", amount: |o| o.stats.retries },
    Reach { name: "cancelled", amount: |o| o.stats.cancelled.total() },
    Reach { name: "throttled", amount: |o| o.stats.throttled },
    Reach { name: "changes", amount: |o| o.changes.into() },
    Reach { name: "power_cuts", amount: |o| o.cuts.into() },
    Reach { name: "lost_blocks", amount: |o| o.lost },
    Reach { name: "compared_blocks", amount: |o| o.compared },
];

/// The number of runs, and for each condition the number of runs that reached it. Prints `name=number` pairs; those
/// of two tallies may be added up.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    seeds: u64,
    ios: u64,
    events: u64,
    reached: [u64; REACHES.len()],
}

impl Tally {
    /// Adds a run.
    pub fn count(&mut self, outcome: &Outcome) {
        self.seeds += 1;
        self.ios += outcome.stats.submitted - outcome.stats.splits;
        self.events += outcome.events;
        for (reached, Reach { amount, .. }) in self.reached.iter_mut().zip(REACHES) {
            *reached += u64::from(amount(outcome) > 0);
        }
    }

    /// The number of runs that reached the condition called `name`; `None` if there is no such condition.
    #[must_use]
    pub fn reached(&self, name: &str) -> Option<u64> {
        let at = REACHES.iter().position(|reach| reach.name == name)?;
        Some(self.reached[at])
    }

    /// The names of all conditions.
    pub fn names() -> impl Iterator<Item = &'static str> {
        REACHES.iter().map(|reach| reach.name)
    }
}

impl AddAssign<&Self> for Tally {
    fn add_assign(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.ios += other.ios;
        self.events += other.events;
        for (sum, more) in self.reached.iter_mut().zip(other.reached) {
            *sum += more;
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seeds={} ios={} events={}", self.seeds, self.ios, self.events)?;
        for (reached, Reach { name, .. }) in self.reached.iter().zip(REACHES) {
            write!(f, " {name}={reached}")?;
        }
        Ok(())
    }
}
