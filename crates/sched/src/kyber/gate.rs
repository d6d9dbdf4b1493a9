//! The times at which domains other than READ may leave an instance, token or not: with `adaptive=2` the domains that
//! make room for reads leave in bursts, one in each period; and while reads are measured, no other domain leaves.
//!
//! Periods follow from the clock alone, so that all instances begin them together without communicating. `bursts.rs`
//! decides how long they are.

use super::domain::{ALONE_UNTIL, Domain, PERIOD};
use crate::Cx;
use blkmq_core::Instant;

/// The gate of one instance.
#[derive(Default)]
pub(super) struct Gate {
    /// The number of the last period seen.
    nth: u64,
    /// The time at which the burst of that period left; `None` if it is still to come.
    burst: Option<Instant>,
    /// The earliest time at which it opens for a domain that it was closed for.
    opens: Option<Instant>,
}

impl Gate {
    /// A pick begins.
    pub(super) fn begin(&mut self) {
        self.opens = None;
    }

    /// The time to ask again, if the gate was closed for any domain since the pick began.
    pub(super) fn opens(&self) -> Option<Instant> {
        self.opens
    }

    /// Returns whether I/O of `domain`, which is not reads, may leave now.
    pub(super) fn is_open(&mut self, cx: &Cx<'_>, domain: Domain) -> bool {
        debug_assert!(domain != Domain::Read, "reads are whom others wait for");
        if cx.env.is_draining() {
            return true;
        }
        let now = cx.now.as_nanos();
        let alone_until = cx.env.value(ALONE_UNTIL);
        if now < alone_until {
            self.wait_until(alone_until);
            return false;
        }
        let period = cx.env.value(PERIOD);
        if period == 0 || !domain.makes_room() {
            return true;
        }
        let nth = now / period;
        if nth != self.nth {
            (self.nth, self.burst) = (nth, None);
        }
        // An instance that had no burst in this period yet may try at every pick: its burst is the first pick that
        // gets a token. Otherwise the other instances might take all tokens.
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
