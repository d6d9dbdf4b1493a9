//! Limits on scheduler tags (`spec/bfq.md` section 15), so that a submitter of much I/O does not take them from a
//! submitter of little: a request without a tag cannot be selected.
//!
//! Groups are not limited: a free tag goes to the group with the fewest requests in the scheduler for its weight
//! ([`shares_by_group`](crate::Scheduler::shares_by_group)).

use super::is_sync;
use super::queues::Queues;
use super::wf2q::Class;
use crate::Used;
use blkmq_core::IoMeta;

/// Sixteenths of all tags for async I/O and for sync writes, while no queue is raised.
const CALM: (u32, u32) = (8, 12);
/// Like [`CALM`], but while a queue is raised.
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

/// The tags in use that count against the cap of this kind of I/O.
fn taken(io: &IoMeta, used: Used) -> u32 {
    match (io.is_sync_read(), is_sync(io)) {
        (true, _) => used.all,
        (false, true) => used.limited,
        (false, false) => used.unsynced,
    }
}

/// `limit * part / whole`, rounded to the nearest.
fn share(limit: u64, part: u64, whole: u64) -> u64 {
    (limit * part + whole / 2).checked_div(whole).unwrap_or(limit)
}

impl Queues {
    /// The tags that `io` may have; `None` if as many would be taken after `before` more.
    pub(super) fn cap_of(&self, io: &IoMeta, used: Used, before: u32) -> Option<u32> {
        let cap = cap(io, used.of, self.raised_busy > 0);
        (taken(io, used) + before < cap).then_some(cap)
    }

    /// Returns whether `n` I/Os like `io`, which go to `q`, may each have a tag after the ones before.
    pub(super) fn admits_together(&self, q: u32, io: &IoMeta, used: Used, n: u32) -> bool {
        self.cap_of(io, used, n - 1).is_some_and(|cap| self.has_room(q, n - 1, cap))
    }

    /// Returns whether the queue may have another one of `cap` tags after `before` more. An idle queue always may, so
    /// that the scheduler sees its work. The first of several requests makes it busy.
    pub(super) fn has_room(&self, q: u32, before: u32, cap: u32) -> bool {
        let is_busy = self[q].busy || before > 0;
        !is_busy || self.has_share(q, self[q].allocated + before, cap.into())
    }

    /// Returns whether the queue, which has this many tags and is busy, may have another one of `cap`: by weight among
    /// the queues of its group.
    fn has_share(&self, q: u32, allocated: u32, cap: u64) -> bool {
        if allocated == 0 {
            // A queue without tags may always have one.
            return true;
        }
        let (level, class) = (self.level(q), self.wf.class(q));
        // The weights of a class count eight times as much as those of the next lower one.
        let upto = &Class::ALL[..=class as usize];
        let sum = upto.iter().fold(0, |sum, class| sum * 8 + self.wf.wsum(level, *class));
        let limit = share(cap, self.wf.weight(q).into(), sum);
        u64::from(allocated) < limit.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Bfq, FACTORY};
    use super::*;
    use crate::testkit::Driver;
    use crate::{At, Cx, NoEnv, Options, Requests, Scheduler};
    use alloc::format;
    use blkmq_core::{Instant, IoFlags, Op, Owner};

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

    /// A policy in which two owners have I/Os like `io`, and the queue of the first one.
    fn two_queues(io: IoMeta) -> (Bfq, u32) {
        let options = Options::parse(FACTORY.attributes, "low_latency=0").expect("it is an option");
        let mut bfq = Bfq::new(&Driver::shape(64), &options);
        let mut requests = Requests::new(64);
        let metas =
            [(1, 0), (2, 8000)].map(|(owner, sector)| IoMeta { owner: Owner(owner), sector, ..io });
        for meta in metas {
            let rq = requests.alloc(meta).expect("a slot is free");
            bfq.insert(&Cx::new(Instant::ZERO, &requests, &NoEnv), rq, At::Tail);
        }
        let q = bfq.queue_for(&metas[0]).expect("it has an I/O");
        (bfq, q)
    }

    #[test]
    fn several_are_admitted_together_exactly_if_each_is_after_the_ones_before() {
        let read = IoMeta::new(Op::Read, 0, 8);
        let write = IoMeta::new(Op::Write, 0, 8);
        let sync = IoMeta { flags: IoFlags::SYNC, ..write };
        for (io, raised) in [read, sync, write].into_iter().flat_map(|io| [(io, 0), (io, 1)]) {
            let (mut bfq, q) = two_queues(io);
            bfq.queues.raised_busy = raised;
            let mut answers = [0, 0];
            for (of, all, n, allocated) in cases() {
                bfq.queues[q].allocated = allocated;
                let used = |more| {
                    let all = all + more;
                    Used { of, all, limited: all, unsynced: all }
                };
                let cap = cap(&io, of, raised > 0);
                let one = |before| {
                    taken(&io, used(before)) < cap
                        && bfq.queues.has_share(q, allocated + before, cap.into())
                };
                let got = bfq.queues.admits_together(q, &io, used(0), n);
                let at =
                    format!("{n} of {io:?} with {all} of {of} in use, {allocated} by the queue");
                assert_eq!(got, (0..n).all(one), "{at}");
                answers[usize::from(got)] += 1;
            }
            assert!(answers[0] > 50 && answers[1] > 20, "{answers:?}");
        }
    }

    /// A queue that many processes share, each of which reads at depth 1, has all its requests at the device. As in
    /// Linux, its share counts only while it competes.
    #[test]
    fn s19_15_a_queue_with_no_request_waiting_is_not_limited() {
        let read = IoMeta { owner: Owner(1), ..IoMeta::new(Op::Read, 0, 8) };
        let (mut bfq, q) = two_queues(read);
        bfq.queues[q].allocated = 20;
        let used = Used { of: 32, all: 21, limited: 21, unsynced: 21 };
        let requests = Requests::new(1);
        let cx = Cx::new(Instant::ZERO, &requests, &NoEnv);
        assert!(
            !bfq.admits(&cx, &read, used),
            "it has more than half of the tags, and waits for service"
        );
        bfq.queues[q].busy = false;
        assert!(bfq.admits(&cx, &read, used) && bfq.queues.admits_together(q, &read, used, 1));
        assert!(
            !bfq.queues.admits_together(q, &read, used, 2),
            "the first of two makes it compete"
        );
        let all = Used { all: 32, ..used };
        assert!(!bfq.admits(&cx, &read, all), "the caps hold for every queue");
    }

    /// Tags, tags in use, I/Os that come together, and tags of the queue.
    fn cases() -> impl Iterator<Item = (u32, u32, u32, u32)> {
        let tags = [4_u32, 16, 32].into_iter();
        tags.flat_map(|of| {
            (0..=of).flat_map(move |all| {
                (1..=8).flat_map(move |n| (0..=all.min(9)).map(move |own| (of, all, n, own)))
            })
        })
    }
}
