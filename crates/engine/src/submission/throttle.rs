//! I/Os that a submitter holds back because their group has used its share: the limits of `io.max`.
//!
//! A throttle precedes every scheduler and is private to its thread: no other thread has to know which I/Os wait here,
//! and neither groups nor the two directions of one group wait behind each other. Only the oldest I/O of each line has
//! a time; the next one gets its time when the oldest has left.
//!
//! A change of the limits wakes the threads that sleep (`reconfiguration.rs`). They find that the limit for
//! which an I/O waits has changed its price since its time was set, and compute the time again. A thread that is about
//! to sleep checks once more after it has announced that (`submitter.rs`): either it sees the new price, or the
//! thread that has made the change sees that it sleeps. Both have a full fence in between.

use crate::BioTable;
use crate::groups::{Meters, Stand};
use crate::shared::hctx::PluggedRequest;
use crate::shared::slots::Bio;
use blkmq_core::{GroupIndex, Instant, IoMeta, Op};
use std::collections::VecDeque;

/// The reads of a group, or all of its other I/Os.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Kind {
    group: GroupIndex,
    reads: bool,
}

impl Kind {
    fn of(group: GroupIndex, op: Op) -> Self {
        Self { group, reads: op == Op::Read }
    }
}

/// The waiting I/Os of one kind, in the order of submission.
struct Line {
    kind: Kind,
    waiting: VecDeque<PluggedRequest>,
    /// The limit for which the first I/O waits; `None` if it may proceed.
    stand: Option<Stand>,
}

impl Line {
    /// The time at which the first I/O may proceed, or reaches the next limit.
    fn at(&self) -> Instant {
        self.stand.map_or(Instant::ZERO, |stand| stand.at())
    }

    fn first(&self) -> &IoMeta {
        &self.waiting.front().expect("a line is not empty").meta
    }
}

/// Lines of I/Os that may not proceed yet. Empty lines are dropped.
#[derive(Default)]
pub(crate) struct Throttle(Vec<Line>);

impl Throttle {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of waiting I/Os. O(lines).
    pub(crate) fn len(&self) -> u32 {
        self.0.iter().map(|line| line.waiting.len() as u32).sum()
    }

    /// Returns whether another I/O of this group and operation would wait behind one that waits.
    pub(crate) fn waits(&self, group: GroupIndex, op: Op) -> bool {
        self.0.iter().any(|line| line.kind == Kind::of(group, op))
    }

    /// Returns whether an I/O may proceed, or needs another time because a limit has changed.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant, meters: &Meters) -> bool {
        !self.is_empty() && (self.0.iter().any(|line| line.at() <= now) || self.has_changed(meters))
    }

    /// Returns whether a limit for which an I/O waits has been changed.
    pub(crate) fn has_changed(&self, meters: &Meters) -> bool {
        let changed =
            |line: &Line| line.stand.is_some_and(|stand| meters.has_changed(line.first(), &stand));
        self.0.iter().any(changed)
    }

    /// Computes the times of the waiting I/Os again, by the current limits.
    pub(crate) fn revise(&mut self, now: Instant, meters: &Meters) {
        for line in &mut self.0 {
            if let Some(mut stand) = line.stand
                && meters.has_changed(line.first(), &stand)
            {
                meters.revise(now, line.first(), &mut stand);
                line.stand = Some(stand);
            }
        }
    }

    /// Takes a limited I/O, or returns it if it may proceed at `now` and none waits before it. O(lines).
    pub(crate) fn hold(
        &mut self,
        now: Instant,
        meters: &Meters,
        proto: PluggedRequest,
    ) -> Option<PluggedRequest> {
        let kind = Kind::of(proto.meta.group, proto.meta.op);
        if let Some(line) = self.0.iter_mut().find(|line| line.kind == kind) {
            line.waiting.push_back(proto);
            return None;
        }
        let Some(stand) = meters.climb(now, &proto.meta, None) else { return Some(proto) };
        self.0.push(Line { kind, waiting: VecDeque::from([proto]), stand: Some(stand) });
        None
    }

    /// Takes out an I/O that may proceed now; the other I/Os of its line continue to wait. O(lines).
    pub(crate) fn next_due(&mut self, now: Instant, meters: &Meters) -> Option<PluggedRequest> {
        loop {
            let at = self.0.iter().position(|line| line.at() <= now)?;
            let line = &mut self.0[at];
            line.stand = line.stand.and_then(|stand| meters.climb(now, line.first(), Some(stand)));
            if line.stand.is_none() {
                return Some(self.take_first(at, now, meters));
            }
        }
    }

    /// Takes the first I/O of a line; the next one begins to climb.
    fn take_first(&mut self, at: usize, now: Instant, meters: &Meters) -> PluggedRequest {
        let line = &mut self.0[at];
        let proto = line.waiting.pop_front().expect("a line is not empty");
        if line.waiting.is_empty() {
            self.0.swap_remove(at);
        } else {
            line.stand = meters.climb(now, line.first(), None);
        }
        proto
    }

    /// Takes all I/Os out.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = PluggedRequest> + '_ {
        self.0.drain(..).flat_map(|line| line.waiting)
    }

    /// The time at which the next I/O may proceed; `None` if none waits.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.0.iter().map(Line::at).min()
    }

    /// Takes out the oldest I/O with this cookie. O(waiting I/Os).
    ///
    /// If the I/O was the first of its line, the meters that it has passed still count it. The next I/O does not
    /// inherit its time but gets its own, because it may cost more.
    pub(crate) fn remove<P>(
        &mut self,
        now: Instant,
        meters: &Meters,
        table: &BioTable<P>,
        cookie: u64,
    ) -> Option<Bio> {
        let is = |proto: &PluggedRequest| table.is_io(&proto.bio, cookie);
        let place = |(at, line): (usize, &Line)| {
            let within = line.waiting.iter().position(is)?;
            Some((line.waiting[within].meta.arrived, at, within))
        };
        let (_, at, within) = self.0.iter().enumerate().filter_map(place).min()?;
        if within == 0 {
            return Some(self.take_first(at, now, meters).bio);
        }
        let proto = self.0[at].waiting.remove(within).expect("it was found there");
        Some(proto.bio)
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    //! Which I/Os proceed when, which are cancelled, and how a cancellation changes the times of later I/Os.

    use super::*;
    use crate::groups::{GroupSpec, GroupTree, IoMax};
    use crate::shared::slots::{Claim, Credit};
    use blkmq_core::{IoMeta, Nanos, Op};

    /// In ms. After a second without I/O, so that the slack of 10 ms is full.
    const BEGIN: u64 = 1_000;

    fn ms(ms: u64) -> Instant {
        Instant::ZERO + Nanos::from_millis(ms)
    }

    /// Three groups: `fast` may do 10 reads a second, `slow` 2, and `by_size` 10 blocks of 4 KiB.
    struct Bench {
        table: BioTable<()>,
        credit: Credit,
        meters: Meters,
        groups: [GroupIndex; 3],
        throttle: Throttle,
    }

    const FAST: usize = 0;
    const SLOW: usize = 1;
    const BY_SIZE: usize = 2;

    impl Bench {
        fn new() -> Self {
            let limits = [("fast", "riops=10"), ("slow", "riops=2"), ("by_size", "rbps=40960")];
            let wanted = limits.map(|(name, max)| GroupSpec {
                name: name.into(),
                parent: "/".into(),
                weight: 100,
                max: IoMax::default().set(max).expect("right"),
                ..GroupSpec::default()
            });
            let tree = GroupTree::of(wanted.into()).expect("a tree");
            let groups = limits.map(|(name, _)| tree.find(name).expect("there").index());
            let meters = Meters::new();
            meters.set(Instant::ZERO, &GroupTree::default(), &tree);
            let (table, mut credits) = BioTable::new(1, 32);
            let credit = credits.pop().expect("one submitter");
            Self { table, credit, meters, groups, throttle: Throttle::default() }
        }

        /// Passes in a read that was pushed at `at` ms. Returns whether it may proceed immediately.
        fn push(&mut self, at: u64, group: usize, cookie: u64, sectors: u32) -> bool {
            let claim = Claim { sector: 0, sectors, owner: blkmq_core::Owner(0), cookie };
            let bio = self.table.claim(&mut self.credit, claim, ()).expect("credit");
            let read = IoMeta::new(Op::Read, 0, sectors);
            let meta = IoMeta { group: self.groups[group], arrived: ms(at), ..read };
            self.throttle
                .hold(ms(at), &self.meters, PluggedRequest { meta, bio, bios: 1 })
                .is_some()
        }

        /// Returns whether a read of the group would wait behind others.
        fn waits(&self, group: usize) -> bool {
            self.throttle.waits(self.groups[group], Op::Read)
        }

        fn cookie(&self, bio: &Bio) -> u64 {
            self.table.iter(bio).next().expect("a bio").cookie
        }

        fn is_due(&self, now: Instant) -> bool {
            self.throttle.is_due(now, &self.meters)
        }

        /// The cookie of an I/O that may proceed now.
        fn next_due(&mut self, now: u64) -> Option<u64> {
            assert_eq!(self.is_due(ms(now)), self.throttle.deadline() <= Some(ms(now)));
            let proto = self.throttle.next_due(ms(now), &self.meters)?;
            Some(self.cookie(&proto.bio))
        }

        /// Cancels an I/O. Returns its length in sectors, which distinguishes I/Os with the same cookie.
        fn remove(&mut self, now: u64, cookie: u64) -> Option<u32> {
            let bio = self.throttle.remove(ms(now), &self.meters, &self.table, cookie)?;
            let first = self.table.iter(&bio).next().expect("a bio");
            assert_eq!(first.cookie, cookie);
            Some(first.sectors)
        }
    }

    #[test]
    fn the_deadline_is_that_of_the_group_whose_turn_comes_first() {
        let mut b = Bench::new();
        assert!(b.throttle.is_empty() && b.throttle.deadline().is_none());
        assert_eq!(b.throttle.len(), 0);
        assert!(b.push(BEGIN, SLOW, 0, 8) && b.push(BEGIN, FAST, 1, 8));
        assert!(!b.waits(SLOW));
        assert!(
            !b.push(BEGIN, SLOW, 2, 8) && !b.push(BEGIN, FAST, 3, 8) && !b.push(BEGIN, FAST, 4, 8)
        );
        assert!(!b.throttle.is_empty() && b.waits(SLOW));
        assert_eq!(b.throttle.len(), 3, "of two groups");
        assert!(!b.waits(BY_SIZE));
        // A tenth of a second after the first one, less the slack.
        assert_eq!(b.throttle.deadline(), Some(ms(BEGIN + 90)));
        assert!(!b.is_due(ms(BEGIN + 89)));
        assert_eq!(b.next_due(BEGIN + 89), None);
        assert!(b.is_due(ms(BEGIN + 90)));
        assert_eq!(b.next_due(BEGIN + 90), Some(3));
        assert_eq!(b.next_due(BEGIN + 90), None, "the next one got a time of its own");
        assert_eq!(b.throttle.deadline(), Some(ms(BEGIN + 190)));
        assert_eq!(b.next_due(BEGIN + 190), Some(4));
        assert!(!b.waits(FAST), "an empty line is dropped");
        assert_eq!(b.throttle.deadline(), Some(ms(BEGIN + 490)));
        assert_eq!((b.next_due(BEGIN + 490), b.throttle.is_empty()), (Some(2), true));
        assert_eq!((b.is_due(ms(BEGIN + 490)), b.throttle.deadline()), (false, None));
    }

    #[test]
    fn an_io_goes_at_its_time_and_not_ahead_of_its_own_group() {
        let mut b = Bench::new();
        assert!(b.push(BEGIN, FAST, 0, 8));
        assert!(b.push(BEGIN + 90, FAST, 1, 8), "its time is now");
        assert!(!b.push(BEGIN + 90, FAST, 2, 8));
        // The time of the first waiting I/O has come, but it has not been taken out.
        assert!(!b.push(BEGIN + 1000, FAST, 3, 8));
        assert_eq!(b.next_due(BEGIN + 1000), Some(2));
        assert_eq!(b.next_due(BEGIN + 1000), Some(3));
    }

    #[test]
    fn an_io_given_up_in_the_middle_costs_its_group_nothing() {
        let mut b = Bench::new();
        assert!(b.push(BEGIN, FAST, 0, 8));
        (1..=4).for_each(|cookie| assert!(!b.push(BEGIN, FAST, cookie, 8)));
        assert_eq!((b.remove(BEGIN, 3), b.remove(BEGIN, 3)), (Some(8), None));
        assert_eq!(b.throttle.deadline(), Some(ms(BEGIN + 90)), "the first one keeps its time");
        assert_eq!(b.next_due(BEGIN + 90), Some(1));
        assert_eq!(b.throttle.deadline(), Some(ms(BEGIN + 190)), "nothing was paid for the third");
        assert_eq!(b.remove(BEGIN + 100, 4), Some(8), "the last one");
        assert_eq!(b.throttle.deadline(), Some(ms(BEGIN + 190)));
        assert_eq!((b.next_due(BEGIN + 190), b.throttle.is_empty()), (Some(2), true));
    }

    /// A cancelled first I/O counts as sent: the next one, which may be larger, gets its own time.
    #[test]
    fn an_io_given_up_at_the_head_counts_as_gone() {
        let mut b = Bench::new();
        assert!(b.push(BEGIN, BY_SIZE, 0, 8));
        assert!(!b.push(BEGIN, BY_SIZE, 1, 8) && !b.push(BEGIN, BY_SIZE, 2, 80));
        assert!(!b.push(BEGIN, BY_SIZE, 3, 8));
        assert_eq!(b.throttle.deadline(), Some(ms(BEGIN + 90)));
        assert_eq!(b.remove(BEGIN + 10, 1), Some(8));
        assert_eq!(b.throttle.deadline(), Some(ms(BEGIN + 190)));
        assert_eq!(b.next_due(BEGIN + 190), Some(2));
        assert_eq!(b.throttle.deadline(), Some(ms(BEGIN + 1190)), "ten blocks take a second");
        assert_eq!((b.remove(BEGIN + 200, 3), b.throttle.is_empty()), (Some(8), true));
        assert_eq!(b.remove(BEGIN + 200, 3), None);
    }

    #[test]
    fn of_several_with_one_cookie_the_oldest_is_given_up() {
        let mut b = Bench::new();
        assert!(b.push(BEGIN, SLOW, 0, 8) && b.push(BEGIN, FAST, 0, 8));
        // Their lengths distinguish them. The younger lines come first and last, the oldest I/O in between.
        assert!(!b.push(BEGIN + 3, SLOW, 7, 3));
        assert!(!b.push(BEGIN + 1, FAST, 9, 8) && !b.push(BEGIN + 2, FAST, 7, 2));
        assert!(!b.push(BEGIN + 4, FAST, 7, 4));
        assert!(b.push(BEGIN, BY_SIZE, 0, 8) && !b.push(BEGIN + 5, BY_SIZE, 7, 5));
        let given_up: Vec<_> = (0..5).map(|_| b.remove(BEGIN + 6, 7)).collect();
        assert_eq!(given_up, [Some(2), Some(3), Some(4), Some(5), None]);
        assert_eq!(b.throttle.deadline(), Some(ms(BEGIN + 90)), "nine is where it was");
        assert_eq!(b.next_due(BEGIN + 90), Some(9));
    }

    #[test]
    fn a_submitter_that_leaves_takes_all_that_waits_with_it() {
        let mut b = Bench::new();
        assert!(b.push(BEGIN, SLOW, 0, 8) && b.push(BEGIN, FAST, 1, 8));
        assert!(
            !b.push(BEGIN, SLOW, 2, 8) && !b.push(BEGIN, FAST, 3, 8) && !b.push(BEGIN, SLOW, 4, 8)
        );
        let waiting: Vec<PluggedRequest> = b.throttle.drain().collect();
        let cookies: Vec<u64> = waiting.iter().map(|proto| b.cookie(&proto.bio)).collect();
        assert_eq!(cookies, [2, 4, 3], "line by line");
        assert!(b.throttle.is_empty());
    }
}
