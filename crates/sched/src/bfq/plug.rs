//! A plug, or a single request, for the queue in service while no request is held. Its requests leave in the order in
//! which they would be picked one by one after their insertion, without being inserted.
//!
//! Habits are learned, service is charged and the rate of the device is measured for each request, as for a single one.
//! Requests that arrive and leave in one call need no lists, no order by sector and no checks of the slot. If anything
//! might make a difference between two requests of the plug, all of them are inserted.

use super::held::Ways;
use crate::Requests;
use crate::sorted::Sorted;
use blkmq_core::{IoMeta, RequestId};

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
    use super::super::held::Item;
    use super::super::{Bfq, FACTORY, Senders, raising};
    use super::*;
    use crate::testkit::{Driver, LocalEnv};
    use crate::{At, Cx, Done, Options, PLUG, Pick, Scheduler, Shape, StatsLevel};
    use alloc::format;
    use alloc::string::String;
    use alloc::vec::Vec;
    use blkmq_core::{HwQueue, Instant, Nanos, Op, Rng};

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
