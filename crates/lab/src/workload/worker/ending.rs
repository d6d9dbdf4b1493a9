//! The end of a thread whose time is bounded: what is in flight gets a little longer, and then is given up.
//!
//! A drain that goes on is left alone: a slow device with a deep queue is no stall. One that would take more than
//! [`SHARES`] times [`LOOK`] is a stall; what still waits is cancelled then. What does not come back after that is at a
//! device that keeps it, and the thread ends without it.

use crate::workload::Unfinished;
use blkmq_core::{Instant, Nanos};

/// How often it is looked at what has come back.
const LOOK: Nanos = Nanos::from_secs(1);
/// In each look at least one part in so many has come back, or nothing goes on.
const SHARES: u32 = 10;
/// After everything that waits was cancelled, something comes back within this, or nothing will.
const LAST_LOOK: Nanos = Nanos::from_millis(200);

/// A thread that waits for what is in flight after its time.
#[derive(Clone, Copy)]
pub(super) struct Ending {
    /// When to look again.
    pub(super) look: Instant,
    /// In flight when it began.
    at_first: u32,
    /// In flight at the last look.
    left: u32,
    cancelled: bool,
}

/// What is to be done about what is in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Wait for it until the next look.
    Wait,
    /// Give up what can be given up, and wait until the next look.
    Cancel,
    /// End without it.
    Abandon,
}

impl Ending {
    /// For `in_flight` I/Os of a thread whose time is over at `end`, seen at `now`.
    pub(super) fn new(now: Instant, end: Instant, in_flight: u32) -> Self {
        let look = now.max(end) + LOOK;
        Self { look, at_first: in_flight, left: in_flight, cancelled: false }
    }

    /// Something else came back meanwhile, and there are `in_flight` now: what to do about them at `now`. What is done
    /// about them is noted in `unfinished`.
    pub(super) fn judge(
        &mut self,
        now: Instant,
        in_flight: u32,
        unfinished: &mut Unfinished,
    ) -> Verdict {
        if now < self.look {
            return Verdict::Wait;
        }
        let came = self.left.saturating_sub(in_flight);
        self.left = in_flight;
        if !self.cancelled {
            self.look = now + LOOK;
            if came > 0 && came.saturating_mul(SHARES) >= self.at_first {
                return Verdict::Wait;
            }
            self.cancelled = true;
            self.look = now + LAST_LOOK;
            unfinished.outstanding = in_flight;
            return Verdict::Cancel;
        }
        self.look = now + LAST_LOOK;
        if came > 0 {
            return Verdict::Wait;
        }
        unfinished.abandoned = in_flight;
        Verdict::Abandon
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(s: u64) -> Instant {
        Instant::ZERO + Nanos::from_secs(s)
    }

    #[test]
    fn a_drain_that_goes_on_is_left_alone() {
        let (mut ending, mut seen) = (Ending::new(s(2), s(2), 100), Unfinished::default());
        for second in 1..10 {
            let left = 100 - 10 * second as u32;
            assert_eq!(ending.judge(s(2 + second), left, &mut seen), Verdict::Wait);
        }
        assert_eq!(seen, Unfinished::default());
    }

    #[test]
    fn a_drain_that_stands_still_is_cancelled_then_abandoned() {
        let (mut ending, mut seen) = (Ending::new(s(1), s(2), 100), Unfinished::default());
        assert_eq!(ending.judge(s(2), 100, &mut seen), Verdict::Wait, "not before its time");
        assert_eq!(ending.judge(s(3), 99, &mut seen), Verdict::Cancel, "100 s are too many");
        assert_eq!(ending.look, s(3) + LAST_LOOK);
        assert_eq!(ending.judge(ending.look, 5, &mut seen), Verdict::Wait, "they come");
        assert_eq!(ending.judge(ending.look, 5, &mut seen), Verdict::Abandon);
        assert_eq!(seen, Unfinished { outstanding: 99, cancelled: 0, abandoned: 5 });
    }
}
