//! I/Os that take too long in virtual time, reported as by a client in real time.
//!
//! A program is checked when it has a turn, and no extra turns are made for that: where time jumps over a stall, the
//! stall is reported at its end, with its whole length.

use blkmq_core::{Instant, Nanos, SubmitterId};
use blkmq_engine::{Outstanding, Queue, Submitter};
use std::fmt;

/// The threshold of clients in real time.
const STALL_AFTER: Nanos = Nanos::from_secs(10);
/// Requests that a report names.
const NAMED: usize = 4;

/// A program that has reaped no completion for a while.
#[derive(Clone, Debug)]
pub struct Stall {
    /// Its submitter.
    pub submitter: SubmitterId,
    /// I/Os that it has in flight.
    pub outstanding: u32,
    /// Of these, held back by the limits of groups.
    pub throttled: u32,
    /// The time without a completion.
    pub waited: Nanos,
    /// The oldest requests of the whole queue.
    pub held: Vec<Outstanding>,
    /// The time of the check.
    pub at: Instant,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { submitter, outstanding, throttled, waited, held, at } = self;
        let (seconds, tenths) = (waited.0 / 1_000_000_000, waited.0 / 100_000_000 % 10);
        write!(f, "submitter {}: {outstanding} outstanding for {seconds}.{tenths} s", submitter.0)?;
        if *throttled > 0 {
            write!(f, ", {throttled} of them wait for the limits of their group")?;
        }
        held.iter().try_for_each(|one| write!(f, "\n  {}", one.at(*at)))
    }
}

/// The stalls of one program.
pub(super) struct Stalls {
    since: Instant,
    had: u64,
    next: Instant,
}

impl Stalls {
    pub(super) fn new<P: Send>(now: Instant, submitter: &Submitter<P>) -> Self {
        Self { since: now, had: submitter.taken_back(), next: now + STALL_AFTER }
    }

    /// At the beginning of a turn at `now`: a stall to report, if there is one.
    pub(super) fn look<P: Send + 'static>(
        &mut self,
        now: Instant,
        submitter: &Submitter<P>,
        queue: &Queue<P>,
    ) -> Option<Stall> {
        let (had, outstanding) = (submitter.taken_back(), submitter.outstanding());
        if had != self.had || outstanding == 0 {
            *self = Self::new(now, submitter);
            return None;
        }
        if now < self.next {
            return None;
        }
        let waited = now - self.since;
        self.next = now + waited;
        let (throttled, _) = submitter.throttled();
        let held = queue.outstanding(now, NAMED);
        let submitter = submitter.id();
        Some(Stall { submitter, outstanding, throttled, waited, held, at: now })
    }
}
