//! When others than reads may leave an instance, token or not: with `adaptive=2` those who make room for reads leave in
//! bursts, one in each period; and while reads are measured, nobody else leaves.
//!
//! Periods follow from the clock alone, so that all instances begin them together without a word between them. How
//! long they are is for `bursts.rs` to say.

use super::domain::{ALONE_UNTIL, Domain, PERIOD};
use crate::Cx;
use blkmq_core::Instant;

/// The gate of one instance.
#[derive(Default)]
pub(super) struct Gate {
    /// The number of the period that it knows of.
    nth: u64,
    /// When the burst of that period left; `None` if it is still to come.
    burst: Option<Instant>,
    /// When it opens for the first of those that it was closed for.
    opens: Option<Instant>,
}

impl Gate {
    /// A pick begins.
    pub(super) fn begin(&mut self) {
        self.opens = None;
    }

    /// When to ask again, if the gate was closed for anybody since the pick began.
    pub(super) fn opens(&self) -> Option<Instant> {
        self.opens
    }

    /// May I/O of `domain`, which is not reads, leave now?
    pub(super) fn is_open(&mut self, cx: &Cx<'_>, domain: Domain) -> bool {
        debug_assert!(domain != Domain::Read, "reads are whom others wait for");
        if cx.outside.is_draining() {
            return true;
        }
        let now = cx.now.as_nanos();
        let alone_until = cx.outside.value(ALONE_UNTIL);
        if now < alone_until {
            self.wait_until(alone_until);
            return false;
        }
        let period = cx.outside.value(PERIOD);
        if period == 0 || !domain.makes_room() {
            return true;
        }
        let nth = now / period;
        if nth != self.nth {
            (self.nth, self.burst) = (nth, None);
        }
        // Whoever got no token yet has its burst when there is one, or others might have them all.
        if self.burst.is_none_or(|at| at == cx.now) {
            return true;
        }
        self.wait_until((nth + 1).saturating_mul(period));
        false
    }

    /// I/O of `domain` leaves.
    #[inline]
    pub(super) fn passed(&mut self, now: Instant, domain: Domain) {
        if domain.makes_room() {
            self.burst = Some(now);
        }
    }

    fn wait_until(&mut self, nanos: u64) {
        let at = Instant::from_nanos(nanos);
        self.opens = Some(self.opens.map_or(at, |other| other.min(at)));
    }
}
