//! Limits on scheduler tags (`spec/bfq.md` section 15), so that a submitter of much I/O does not take them from a
//! submitter of little: a request without a tag cannot be selected.
//!
//! Groups are not limited: a free tag goes to the group with the fewest requests in the scheduler for its weight
//! ([`shares_by_group`](crate::Scheduler::shares_by_group)).

use super::wf2q::Class;
use super::{Bfq, is_sync};
use crate::Used;
use blkmq_core::IoMeta;

/// Sixteenths of all tags for async I/O and for sync writes, while no queue is raised.
const CALM: (u32, u32) = (8, 12);
/// The same while a queue is raised.
const RAISED: (u32, u32) = (3, 6);

/// The number of `of` tags that this kind of I/O may have; at least one.
fn cap(io: &IoMeta, of: u32, raised: bool) -> u32 {
    let (unsynced, written) = if raised { RAISED } else { CALM };
    let sixteenths = match (io.is_sync_read(), is_sync(io)) {
        (true, _) => 16,
        (false, true) => written,
        (false, false) => unsynced,
    };
    (u64::from(of) * u64::from(sixteenths) / 16).max(1) as u32
}

/// `limit * part / whole`, rounded to the nearest.
fn share(limit: u64, part: u64, whole: u64) -> u64 {
    (limit * part + whole / 2).checked_div(whole).unwrap_or(limit)
}

impl Bfq {
    /// May `io` have a tag?
    pub(super) fn admits_io(&self, io: &IoMeta, used: Used) -> bool {
        let cap = cap(io, used.of, self.raised_busy > 0);
        let taken = match (io.is_sync_read(), is_sync(io)) {
            (true, _) => used.all,
            (false, true) => used.limited,
            (false, false) => used.unsynced,
        };
        if taken >= cap {
            return false;
        }
        // A queue without tags may always have one.
        let queue = self.queue_for(io).filter(|q| self.queues[*q].allocated > 0);
        queue.is_none_or(|q| !self.is_over_share(q, cap.into()))
    }

    /// Has the queue reached its share of `cap`, by weight among the queues of its group?
    fn is_over_share(&self, q: u32, cap: u64) -> bool {
        let (level, class) = (self.wf.level(q), self.wf.class(q));
        // The weights of a class count eight times as much as those of the next lower one.
        let upto = &Class::ALL[..=class as usize];
        let sum = upto.iter().fold(0, |sum, class| sum * 8 + self.wf.wsum(level, *class));
        let limit = share(cap, self.wf.weight(q).into(), sum);
        u64::from(self.queues[q].allocated) >= limit.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::{IoFlags, Op};

    #[test]
    fn s19_15_async_has_half_or_three_sixteenths() {
        let io = IoMeta::new(Op::Write, 0, 8);
        assert_eq!((cap(&io, 256, false), cap(&io, 256, true)), (128, 48));
        let sync = IoMeta { flags: IoFlags::SYNC, ..io };
        assert_eq!((cap(&sync, 256, false), cap(&sync, 256, true)), (192, 96));
        let read = IoMeta::new(Op::Read, 0, 8);
        assert_eq!((cap(&read, 256, false), cap(&read, 256, true)), (256, 256));
        assert_eq!(cap(&io, 1, true), 1, "never none");
    }

    #[test]
    fn shares_are_rounded_and_of_nobody_everything() {
        assert_eq!(share(100, 1, 3), 33);
        assert_eq!(share(100, 2, 3), 67);
        assert_eq!(share(100, 5, 0), 100);
    }
}
