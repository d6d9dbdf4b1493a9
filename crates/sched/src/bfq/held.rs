//! The held requests: a FIFO and a sector order for each queue with requests, and the requests that go ahead of all
//! others. Also the choice of the next request of a queue (`spec/bfq.md` section 4.1): the nearest to the head, with a
//! preference for requests ahead of it, and at times the oldest.
//!
//! A [`Plug`], or a single request, for the queue in service while no request is held leaves in the order in which its
//! requests would be picked one by one after their insertion, without being inserted. Habits are learned, service is
//! charged and the rate of the device is measured for each request, as for a single one. Requests that arrive and leave
//! in one call need no lists, no order by sector and no checks of the slot. If anything might make a difference between
//! two requests of the plug, all of them are inserted.

use super::queue::{Key, NO_LANE, Queue};
use super::tunables::Tunables;
use crate::index::Sorted;
use crate::index::{Lists, SectorIndex};
use crate::{Requests, Shape};
use alloc::boxed::Box;
use alloc::vec::Vec;
use blkmq_core::{Instant, IoMeta, Owner, RequestId};
use core::ops::{Index, IndexMut};

/// The list of requeued requests and of requests that go ahead of all others. Lanes have the numbers above.
const HEAD: usize = 0;

/// The place of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Its slot is free.
    Free,
    /// In the list of requests that go ahead of all others.
    Head,
    /// In the order of its queue.
    Queued,
    /// In the device.
    Issued,
}

/// The state of a slot's request beyond its metadata, from insertion to completion.
#[derive(Clone, Copy)]
pub(super) struct Item {
    pub(super) rq: RequestId,
    pub(super) queue: u32,
    pub(super) proc: u32,
    /// Its process, also of async I/O.
    pub(super) owner: Key,
    /// Its length, so that it need not be looked up.
    pub(super) sectors: u32,
    pub(super) state: State,
    /// The time of its insertion.
    pub(super) since: Instant,
    /// The time from which it goes ahead of the order of its queue.
    pub(super) due: Instant,
}

/// Invariant: a held request is in exactly one list of `lists`; if that is a lane, it is in the same lane of `order`,
/// and the lane belongs to its queue, which is busy. `queued` of each queue, and of all, count the requests.
pub(super) struct Held {
    items: Box<[Item]>,
    /// A FIFO per lane, and [`HEAD`].
    lists: Lists,
    /// A sector order per lane.
    order: SectorIndex,
    /// Unassigned lanes.
    lanes: Vec<u32>,
    /// Requests in the orders of queues.
    pub(super) queued: u32,
    /// Scheduler tags: the most requests held or in the device, except flushes.
    tags: u32,
}

impl Index<RequestId> for Held {
    type Output = Item;
    #[inline]
    fn index(&self, rq: RequestId) -> &Item {
        &self.items[rq.index()]
    }
}

impl IndexMut<RequestId> for Held {
    #[inline]
    fn index_mut(&mut self, rq: RequestId) -> &mut Item {
        &mut self.items[rq.index()]
    }
}

impl Held {
    pub(super) fn new(shape: &Shape) -> Self {
        let nothing = Item {
            rq: RequestId::new(0, 0),
            queue: 0,
            proc: 0,
            owner: Key::process(Owner(0)),
            sectors: 0,
            state: State::Free,
            since: Instant::ZERO,
            due: Instant::ZERO,
        };
        let lanes = shape.slots as usize + 1;
        Self {
            items: alloc::vec![nothing; shape.slots as usize].into_boxed_slice(),
            lists: Lists::new(shape.slots, lanes),
            order: SectorIndex::new(shape.slots, lanes),
            lanes: (1..=shape.slots).rev().collect(),
            queued: 0,
            tags: shape.nr_requests.saturating_mul(shape.hw_queues.into()),
        }
    }

    /// Returns whether waiting requests hold all tags, so that none can arrive before one of them is issued.
    pub(super) fn is_full(&self) -> bool {
        self.queued >= self.tags
    }

    /// Records a request.
    #[inline]
    pub(super) fn hold(&mut self, new: Item) {
        let item = &mut self.items[new.rq.index()];
        assert!(item.state == State::Free, "{:?} took the slot of {:?}, in use", new.rq, item.rq);
        *item = new;
    }

    /// The first request that goes ahead of all others.
    #[inline]
    pub(super) fn head(&self) -> Option<RequestId> {
        self.lists.front(HEAD)
    }

    /// The number of requests that go ahead of all others.
    pub(super) fn heads(&self) -> usize {
        self.lists.len(HEAD)
    }

    /// Inserts a requeued request, or one that goes ahead of all others.
    pub(super) fn push_head(&mut self, rq: RequestId) {
        self.lists.push_front(HEAD, rq);
        self[rq].state = State::Head;
    }

    /// Takes out a request that goes ahead of all others.
    pub(super) fn take_head(&mut self, rq: RequestId) {
        self.lists.remove(rq);
    }

    /// The requests that wait, in its `lane` or at the head, for the queue `q`.
    pub(super) fn waiting(&self, q: u32, lane: u32) -> impl Iterator<Item = RequestId> {
        let lists = [Some(HEAD), (lane != NO_LANE).then_some(lane as usize)];
        let firsts = lists.into_iter().flatten().map(|list| self.lists.front(list));
        let all =
            firsts.flat_map(|first| core::iter::successors(first, |rq| self.lists.behind(*rq)));
        all.filter(move |rq| self[*rq].queue == q)
    }

    /// The sector under which a request is filed in the order of its queue.
    #[inline]
    pub(super) fn sector(&self, rq: RequestId) -> Option<u64> {
        self.order.filed(rq).map(|(_, sector)| sector)
    }

    /// Files a request in the order of its queue.
    #[inline]
    pub(super) fn file(&mut self, queue: &mut Queue, rq: RequestId, sector: u64) {
        if queue.lane == NO_LANE {
            queue.lane = self.lanes.pop().expect("there is a lane for each request");
        }
        self.order.insert(queue.lane as usize, sector, rq);
        self.lists.push_back(queue.lane as usize, rq);
        queue.queued += 1;
        self.queued += 1;
    }

    /// Files a request again if its start, at `sector`, has changed. Returns whether it has.
    pub(super) fn refile(&mut self, rq: RequestId, sector: u64) -> bool {
        match self.order.filed(rq) {
            Some((lane, filed)) if filed != sector => {
                self.order.remove(rq);
                self.order.insert(lane, sector, rq);
                true
            }
            _ => false,
        }
    }

    /// Gives the survivor of two requests the earlier due time, and its place in line.
    pub(super) fn inherit(&mut self, into: RequestId, gone: RequestId) {
        let (kept, lost) = (self[into], self[gone]);
        let same_line = self.lists.list_of(into) == self.lists.list_of(gone);
        if lost.due < kept.due && same_line {
            self.lists.remove(into);
            self.lists.insert_before(into, gone);
            self[into].due = lost.due;
        }
        self[into].since = kept.since.min(lost.since);
    }

    /// Takes a waiting request out of the order of its queue.
    #[inline]
    pub(super) fn take_out(&mut self, queue: &mut Queue, rq: RequestId) {
        self.order.remove(rq);
        self.lists.remove(rq);
        queue.queued -= 1;
        self.queued -= 1;
        if queue.is_empty() {
            self.lanes.push(core::mem::replace(&mut queue.lane, NO_LANE));
        }
    }

    /// Selects the next request of a queue after the one at `sector` has been taken out: the oldest, if it is due and
    /// ages were not checked in this slot, and otherwise the nearest.
    #[inline]
    pub(super) fn choose_after(&self, queue: &mut Queue, sector: u64, now: Instant, ways: Ways) {
        queue.next_is_due = false;
        queue.next = None;
        if queue.is_empty() {
            return;
        }
        let lane = queue.lane as usize;
        if !queue.fifo_checked {
            queue.fifo_checked = true;
            let oldest = self.lists.front(lane).expect("it is not empty");
            if self[oldest].due <= now {
                queue.next_is_due = true;
                queue.next = Some(oldest);
                return;
            }
        }
        let ahead =
            self.order.at_or_after(lane, sector).or_else(|| self.order.at_or_after(lane, 0));
        let ahead = ahead.expect("it is not empty");
        queue.next = Some(match self.order.before(lane, sector) {
            Some(b) if !ways.prefer_first(sector, ahead.sector, b.sector) => b.rq,
            _ => ahead.rq,
        });
    }
}

/// The parameters for comparing distances.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ways {
    /// A request farther back than this counts as starting from the beginning, in sectors.
    back_max: u64,
    /// The factor by which distances backwards count.
    penalty: u64,
}

impl Ways {
    #[inline]
    pub(super) fn of(tunables: &Tunables) -> Self {
        Self { back_max: tunables.back_seek_max, penalty: tunables.back_seek_penalty }
    }

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

/// A single request below this many sectors may still grow if the device waits a little longer.
const SMALL: u32 = 32;

/// Returns whether a single request of this many sectors might still grow.
pub(super) fn may_grow(sectors: u32) -> bool {
    sectors < SMALL
}

/// The sectors of `first` and the `rest` of a plug, if each has the sender, the group and the priority of `first`.
#[inline]
pub(super) fn sectors_if_alike(all: &Requests, first: &IoMeta, rest: &[RequestId]) -> Option<u64> {
    let mut sectors = u64::from(first.sectors);
    for rq in rest {
        let meta = all.get(*rq);
        let alike = meta.owner == first.owner
            && meta.group == first.group
            && meta.ioprio == first.ioprio
            && meta.flags == first.flags;
        if !alike {
            return None;
        }
        sectors += u64::from(meta.sectors);
    }
    Some(sectors)
}

/// A plug for the queue in service: its requests and their sectors, the process that sends them, and the queue.
#[derive(Clone, Copy)]
pub(super) struct Plug<'a> {
    pub(super) p: u32,
    pub(super) q: u32,
    pub(super) sectors: u64,
    pub(super) rqs: &'a [RequestId],
}

impl Plug<'_> {
    /// Writes the order in which the requests are served, beginning with `next`.
    #[inline]
    pub(super) fn sort(&self, requests: &Requests, next: u8, ways: Ways, order: &mut [u8]) {
        if self.rqs.len() == 1 {
            order[0] = 0;
            return;
        }
        let mut sorted = Sorted::of(self.rqs.iter().map(|rq| requests.get(*rq).sector), 0);
        let mut at = sorted.position_of(next);
        for place in order.iter_mut().take(self.rqs.len()) {
            let (sector, nth) = sorted.pick(at);
            *place = nth;
            let Some(ahead) = sorted.ahead().or_else(|| sorted.first()) else { break };
            let prefers =
                |behind| ways.prefer_first(sector, sorted.sector(ahead), sorted.sector(behind));
            at = sorted.behind().filter(|behind| !prefers(*behind)).unwrap_or(ahead);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::device::Device;
    use super::super::{Bfq, FACTORY, Senders, raising};
    use super::*;
    use crate::testkit::{Driver, LocalEnv};
    use crate::{At, Cx, Done, Options, PLUG, Pick, Scheduler, StatsLevel};
    use alloc::format;
    use alloc::string::String;
    use blkmq_core::{HwQueue, Nanos, Op, Rng};

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

    /// A policy with its requests.
    struct World {
        bfq: Bfq,
        requests: Requests,
        env: LocalEnv,
        now: Instant,
        /// Issued requests, and when.
        issued: Vec<(RequestId, Instant)>,
        /// Plugs that left in one step.
        straight: u32,
    }

    impl World {
        fn new(options: &str, rotational: bool) -> Self {
            let options = Options::parse(FACTORY.attributes, options).expect("they are options");
            let shape = Shape { rotational, ..Driver::shape(64) };
            let env = LocalEnv::default();
            env.set_stats(StatsLevel::Full);
            Self {
                bfq: Bfq::new(&shape, &options),
                requests: Requests::new(64),
                env,
                now: Instant::ZERO,
                issued: Vec::new(),
                straight: 0,
            }
        }

        /// Passes a plug to the policy, with `at_once` in one step if it can. Returns the order of the picks.
        fn plug(&mut self, sectors: &[(u64, u32)], at_once: bool) -> Vec<u8> {
            let meta = |(sector, sectors): &(u64, u32)| IoMeta {
                arrived: self.now,
                ..IoMeta::new(Op::Read, *sector, *sectors)
            };
            let alloc = |io: &(u64, u32)| self.requests.alloc(meta(io)).expect("slots suffice");
            let rqs: Vec<RequestId> = sectors.iter().map(alloc).collect();
            let cx = Cx::new(self.now, &self.requests, &self.env);
            let mut order = [0; PLUG];
            if at_once && self.bfq.issue_plug(&cx, &rqs, None, &mut order) {
                self.straight += 1;
                let order = &order[..rqs.len()];
                self.issued.extend(order.iter().map(|at| (rqs[usize::from(*at)], self.now)));
                return order.to_vec();
            }
            rqs.iter().for_each(|rq| self.bfq.insert(&cx, *rq, At::Tail));
            let mut order = Vec::new();
            while let Pick::Issue(rq) = self.bfq.pick(&cx, HwQueue(0)) {
                let at = rqs.iter().position(|other| *other == rq);
                order.push(at.map_or(u8::MAX, |at| at as u8));
                self.issued.push((rq, self.now));
            }
            order
        }

        fn complete(&mut self, at: usize) {
            let (rq, issued) = self.issued.swap_remove(at);
            let cx = Cx::new(self.now, &self.requests, &self.env);
            self.bfq.completed(&cx, &Done { rq, result: Ok(()), issued, completed: self.now });
            self.requests.free(rq);
        }

        fn holds_none(&self) -> bool {
            self.bfq.held.queued == 0
        }

        /// The state that a plug may leave in the queue, the requests, the policy and the notes.
        fn left(&self) -> String {
            let Bfq { queues, slot, device, sampling, .. } = &self.bfq;
            let Device { in_driver, rate, .. } = device;
            let mut text = format!("{:?}\n", self.env.take_notes());
            text += &format!("{} {:?} {in_driver} {rate:?} {sampling:?}", slot.queue, slot.idle);
            text += &format!("{} {}", device.last_position, self.bfq.slot.position);
            for (rq, _) in &self.issued {
                let Item { queue, proc, owner, sectors, state, since, due, .. } =
                    self.bfq.held[*rq];
                text +=
                    &format!("\n{queue} {proc} {owner:?} {sectors} {state:?} {since:?} {due:?}");
            }
            for q in (0..queues.capacity()).filter(|q| queues[*q].live) {
                let queue = &queues[q];
                text += &format!("\n{:?} {:?} {:?}", queue.seeks, queue.think, queue.share);
                text += &format!("{:?} {:?} {:?}", queue.raising, queue.injection, queue.waker);
                text += &format!(
                    "\n{} {} {} {} {}",
                    queue.queued, queue.dispatched, queue.allocated, queue.served, queue.last_end
                );
                text += &format!("{} {:?} {:?}", queue.fifo_checked, queue.next, queue.first_io);
                text += &format!("{:?} {}", queues.wf.view(q), queue.next_is_due);
            }
            text
        }
    }

    /// The comparison with the twin shows decisions; the state that a plug leaves behind may decide much later.
    #[test]
    fn a_plug_that_goes_straight_leaves_all_as_one_request_after_the_other_does() {
        let cases = [
            ("", false),
            ("", true),
            ("low_latency=0", false),
            ("low_latency=0", true),
            ("low_latency=0,slice_idle=1", true),
            ("max_budget=400", false),
        ];
        for (options, rotational) in cases {
            let mut rng = Rng::new(22);
            let mut worlds = [true, false].map(|_| World::new(options, rotational));
            for step in 0..10_000 {
                let at = format!("{options} {rotational} step {step}");
                let longest = if rng.chance(1, 64) { 28 } else { 18 + 5 * rng.below(2) };
                let span = Nanos(1 << rng.below(longest));
                worlds.iter_mut().for_each(|world| world.now += span);
                let free = 64 - worlds[0].issued.len() as u64;
                let n = (1 + rng.below(PLUG as u64)).min(free);
                if worlds[0].holds_none() && n > 0 && rng.chance(1, 2) {
                    let near = rng.chance(1, 3);
                    let one = |_| {
                        let sector = 8 * rng.below(if near { 8 } else { 1 << 20 });
                        (sector, 8 << rng.below(3))
                    };
                    let plug: Vec<(u64, u32)> = (0..n).map(one).collect();
                    let [straight, other] = &mut worlds;
                    assert_eq!(straight.plug(&plug, true), other.plug(&plug, false), "{at}");
                } else {
                    for _ in 0..rng.below(9).min(worlds[0].issued.len() as u64) {
                        let nth = rng.below(worlds[0].issued.len() as u64) as usize;
                        worlds.iter_mut().for_each(|world| world.complete(nth));
                    }
                }
                assert_eq!(worlds[0].left(), worlds[1].left(), "{at}");
            }
            assert!(worlds[0].straight > 1_000, "{options}: {}", worlds[0].straight);
        }
    }

    /// Returns whether a plug of 16 sectors leaves in one step after this change to the only queue, in service.
    fn goes_after(options: &str, change: impl Fn(&mut Bfq, u32)) -> bool {
        let mut world = World::new(options, false);
        assert_eq!(world.plug(&[(0, 8)], false), [0]);
        let q = world.bfq.slot.queue;
        change(&mut world.bfq, q);
        let alloc = |sector| world.requests.alloc(IoMeta::new(Op::Read, sector, 8));
        let rqs = [8, 16].map(alloc).map(|rq| rq.expect("slots suffice"));
        let cx = Cx::new(world.now, &world.requests, &world.env);
        world.bfq.issue_plug(&cx, &rqs, None, &mut [0; PLUG])
    }

    #[test]
    fn a_process_that_is_about_to_leave_its_queue_goes_the_long_way() {
        assert!(goes_after("", |_, _| ()));
        assert!(!goes_after("", |bfq, q| bfq.queues[q].to_split = true));
        let has_a_twin = |bfq: &mut Bfq, q: u32| {
            let Senders::One(p) = bfq.queues[q].senders else { panic!("it has one sender") };
            bfq.procs.at_mut(p).twin = Some(bfq.queues.link(q));
        };
        assert!(!goes_after("", has_a_twin));
        assert!(goes_after("queue_merge=0", has_a_twin), "then it does not join its twin");
    }

    #[test]
    fn a_queue_that_stays_interactive_goes_straight_up_to_the_last_sector() {
        let raised = |change: fn(&mut Bfq, u32)| {
            goes_after("", |bfq, q| {
                assert_eq!(bfq.queues[q].raising.factor, raising::INTERACTIVE);
                change(bfq, q);
            })
        };
        assert!(raised(|bfq, q| bfq.queues[q].raising.served = raising::MOST_SERVICE - 16));
        assert!(!raised(|bfq, q| bfq.queues[q].raising.served = raising::MOST_SERVICE - 15));
        assert!(!raised(|bfq, q| bfq.queues[q].in_burst = true));
        assert!(!raised(|bfq, q| bfq.queues[q].raising.factor = raising::SOFT_RT));
    }
}
