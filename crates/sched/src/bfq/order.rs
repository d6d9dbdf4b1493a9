//! The next request of a queue (`spec/bfq.md` section 4.1): the nearest to the head, with a preference for the ones
//! ahead of it, and at times the oldest.

use super::Bfq;
use blkmq_core::{Instant, RequestId};

/// The parameters for comparing distances.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ways {
    /// A request farther back than this counts as starting from the beginning, in sectors.
    pub(crate) back_max: u64,
    /// The factor by which distances backwards count.
    pub(crate) penalty: u64,
}

impl Ways {
    /// The weighted distance from `head` to `sector`; `None` if it is too far back.
    #[inline]
    fn length(self, head: u64, sector: u64) -> Option<u64> {
        if sector >= head {
            Some(sector - head)
        } else if head - sector <= self.back_max {
            Some((head - sector).saturating_mul(self.penalty))
        } else {
            None
        }
    }

    /// Returns whether the request at `first` is preferred to the one at `second`, with the head at `head`.
    #[inline]
    #[must_use]
    pub(crate) fn prefer_first(self, head: u64, first: u64, second: u64) -> bool {
        match (self.length(head, first), self.length(head, second)) {
            (Some(a), Some(b)) if a == b => first >= second,
            (Some(a), Some(b)) => a < b,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            // Both start from the beginning: the lower one comes first.
            (None, None) => first <= second,
        }
    }
}

impl Bfq {
    #[inline]
    pub(super) fn ways(&self) -> Ways {
        Ways { back_max: self.tunables.back_seek_max, penalty: self.tunables.back_seek_penalty }
    }

    /// The new request `new`, at `sector`, competes with the next request of `q`. Returns whether the next request
    /// has changed.
    #[inline]
    pub(super) fn compete(&mut self, q: u32, new: RequestId, sector: u64) -> bool {
        let queue = &self.queues[q];
        let next = match queue.next {
            Some(old) if queue.next_is_due => old,
            Some(old) => {
                let at = self.order.filed(old).expect("the next request is in the order").1;
                let first = self.ways().prefer_first(self.last_position, at, sector);
                if first { old } else { new }
            }
            None => new,
        };
        self.queues[q].next.replace(next) != Some(next)
    }

    /// Selects the next request of a queue after the one at `sector` has been taken out: the oldest, if it is due and
    /// its age was not checked in this slot yet; else the nearest.
    #[inline]
    pub(super) fn choose_after(&mut self, q: u32, sector: u64) {
        self.queues[q].next_is_due = false;
        self.queues[q].next = None;
        if self.queues[q].is_empty() {
            return;
        }
        let lane = self.queues[q].lane as usize;
        if !self.queues[q].fifo_checked {
            self.queues[q].fifo_checked = true;
            let oldest = self.lists.front(lane).expect("it is not empty");
            if self.due(oldest) <= self.now {
                self.queues[q].next_is_due = true;
                self.queues[q].next = Some(oldest);
                return;
            }
        }
        let ahead =
            self.order.at_or_after(lane, sector).or_else(|| self.order.at_or_after(lane, 0));
        let ahead = ahead.expect("it is not empty");
        self.queues[q].next = Some(match self.order.before(lane, sector) {
            Some(b) if !self.ways().prefer_first(sector, ahead.sector, b.sector) => b.rq,
            _ => ahead.rq,
        });
    }

    /// The time from which a request goes ahead of the order.
    #[inline]
    fn due(&self, rq: RequestId) -> Instant {
        self.items[rq.index()].due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAYS: Ways = Ways { back_max: 1_000, penalty: 2 };

    #[test]
    fn ahead_is_better_than_behind_at_half_the_distance() {
        assert!(WAYS.prefer_first(10_000, 10_019, 9_990));
        assert!(!WAYS.prefer_first(10_000, 10_021, 9_990));
        assert!(WAYS.prefer_first(10_000, 10_020, 9_990), "as far: the higher sector");
        assert!(!WAYS.prefer_first(10_000, 9_990, 10_020), "whichever is named first");
    }

    #[test]
    fn too_far_back_is_from_the_beginning() {
        assert!(WAYS.prefer_first(10_000, 90_000, 8_999));
        assert!(!WAYS.prefer_first(10_000, 90_000, 9_000), "just near enough");
        assert!(WAYS.prefer_first(10_000, 100, 200) && !WAYS.prefer_first(10_000, 200, 100));
        assert!(WAYS.prefer_first(10_000, 100, 100), "the one that is there already");
    }
}
