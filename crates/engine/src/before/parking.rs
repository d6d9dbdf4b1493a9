//! Insertion as it was proposed in 2024: a thread that finds the lock taken parks its requests in a list, and the
//! next holder of the lock takes them over (`spec/history.md` section 2).
//!
//! As in that proposal, a parked request has its slot, and no bio merges with it, because merging does not look into
//! the lists. A bio needs a slot of its own if its neighbour is parked, or if its merge attempt was skipped. If no
//! slot is left the bio waits for one, and its merge attempt is not repeated meanwhile. When a request is taken over,
//! or gets a slot, it is tried against the held requests, as every inserted request is; by then its neighbour may
//! have been issued. So the device is given more and smaller requests. On one disk the kernel's attempt lost 72.9 %
//! of the throughput (decision 0002).
//!
//! *Slots.* They are given out under the lock, so without it they can only be promised: as many as were free when the
//! lock was last released, less those promised since ([`Promises`]). A parked request that is taken over goes ahead
//! of everything else, so that its promise is kept, except for the few slots that the holder of the lock takes
//! meanwhile. A request that then lacks its slot waits ahead of everything else, in [`Parked::line`].

use crate::elevator::PluggedRequest;
use crate::planted::{self, Planted};
use crate::runner::{Own, Runner, stage};
use crate::shared::{Shard, Shared};
use crate::sync::{AtomicU32, InsertLists, Ordering};
use blkmq_core::HwQueue;
use crossbeam_utils::CachePadded;
use std::collections::VecDeque;

/// Lists of one elevator, at most; submitters share them by their numbers.
const LISTS: u16 = 32;

/// The part that all threads share.
pub(crate) struct Parking {
    pub(crate) lists: InsertLists<PluggedRequest>,
    promises: Box<[CachePadded<Promises>]>,
}

/// Slots of one hardware queue that may be promised: a hint, exact except for slots that the holder of the lock
/// takes.
///
/// | word | `promise(n)` | `give_back(n)` | `renew(free)`, under the lock |
/// |---|---|---|---|
/// | 0 | none | n | the free slots, less those promised and not taken over |
/// | m | the smaller of n and m; the rest stays | m + n | likewise |
struct Promises(AtomicU32);

/// The part that belongs to the holder of the lock.
#[derive(Default)]
pub(crate) struct Parked {
    /// Requests taken over that lack the promised slot: ahead of everything else.
    line: VecDeque<PluggedRequest>,
    lanes: Box<[Lane]>,
}

#[derive(Clone, Copy)]
struct Lane {
    /// The word after the last renewal.
    published: u32,
    /// Slots promised by then and not taken over by now: below zero, wrapping, if more were taken over.
    promised: u32,
}

impl Promises {
    fn promise(&self, want: u32) -> u32 {
        let take = |left: u32| Some(left - want.min(left));
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        want.min(before.expect("there is always a next word"))
    }

    /// Returns promises that were not used.
    fn give_back(&self, slots: u32) {
        self.0.fetch_add(slots, Ordering::Relaxed);
    }

    fn renew(&self, free: u32, lane: &mut Lane) {
        // Returned promises no longer count; so there may be more left than were published.
        let promised = |left: u32| lane.promised.wrapping_add(lane.published.wrapping_sub(left));
        let next = |left: u32| free.saturating_sub(promised(left));
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| Some(next(n)));
        let left = before.expect("there is always a next word");
        *lane = Lane { published: next(left), promised: promised(left) };
    }
}

impl Parking {
    /// With `slots` slots for each of `lanes` hardware queues.
    pub(crate) fn new(submitters: u16, lanes: u16, slots: u32) -> Self {
        let promises = |_| CachePadded::new(Promises(AtomicU32::new(slots)));
        Self {
            lists: InsertLists::new(submitters.min(LISTS)),
            promises: (0..lanes).map(promises).collect(),
        }
    }
}

impl Parked {
    /// As [`Parking::new`].
    pub(crate) fn new(lanes: u16, slots: u32) -> Self {
        let lane = Lane { published: slots, promised: 0 };
        Self { line: VecDeque::new(), lanes: vec![lane; lanes.into()].into_boxed_slice() }
    }

    pub(crate) fn line(&self) -> &VecDeque<PluggedRequest> {
        &self.line
    }

    /// Leaves the bios in the line with the orphans.
    pub(crate) fn clear(&mut self) {
        self.line.drain(..).for_each(|proto| proto.bio.orphan());
    }

    /// Takes the oldest bio for which `is` is true out of the line.
    pub(crate) fn remove(
        &mut self,
        is: impl FnMut(&PluggedRequest) -> bool,
    ) -> Option<PluggedRequest> {
        let at = self.line.iter().position(is)?;
        self.line.remove(at)
    }
}

impl<P: Send> Shared<P> {
    /// Parks as much of the caller's plug as there are slots for; the rest waits for slots in staging.
    pub(super) fn park(&self, shard: &Shard, home: HwQueue, own: Own<'_>) {
        let parking = shard.parking.as_ref().expect("this way of inserting has lists");
        // The plug must not pass I/Os that wait in staging, nor an unanswered ask to cancel, which could be taken to
        // mean one of its I/Os.
        let may_pass = own.staging.len() == 0 && !shard.asked.has(own.id.0);
        let wanted = if may_pass { own.plug.len() } else { 0 };
        let lane = usize::from(home.0 - shard.first_hw);
        let slots = parking.promises[lane].promise(wanted as u32);
        if slots > 0 {
            let who = usize::from(own.id.0);
            let is_open = || self.lasting.control.is_open(self.version);
            let fill =
                |list: &mut Vec<PluggedRequest>| list.extend(own.plug.drain_first(slots as usize));
            if parking.lists.park(who, is_open, fill) {
                self.tally(who).parked.add(slots.into());
            } else {
                parking.promises[lane].give_back(slots);
            }
        }
        if !own.plug.is_empty() {
            stage(shard, own);
            // No other thread need come by: this one takes the staged I/Os in when it has the lock.
            let _ = shard.gate.kick();
        }
    }
}

impl Runner {
    /// Takes over parked requests. Each is inserted if it has a slot, or merged with a held request.
    pub(crate) fn take_over<P: Send>(&mut self, q: &Shared<P>, shard: &Shard) {
        let Some(parking) = &shard.parking else { return };
        if parking.lists.any() && !planted::is(Planted::ForgetsParkedRequests) {
            let Parked { line, lanes } = &mut self.parked;
            parking.lists.take(|proto| {
                let lane = &mut lanes[usize::from(proto.meta.hw.0 - shard.first_hw)];
                lane.promised = lane.promised.wrapping_sub(1);
                line.push_back(proto);
            });
        }
        self.let_line_in(q, shard);
    }

    /// Admits requests from the line, as far as there are slots.
    fn let_line_in<P: Send>(&mut self, q: &Shared<P>, shard: &Shard) {
        let before = self.parked.line.len();
        while let Some(first) = self.parked.line.front() {
            let Some(place) = self.elevator.place(&first.meta) else {
                self.wait_for_completion(q, shard);
                break;
            };
            let proto = self.parked.line.pop_front().expect("it was seen just now");
            self.elevator.admit(&q.lasting.table, place, proto);
        }
        if self.parked.line.len() < before {
            self.begin_flushes(shard);
        }
    }

    /// Takes in all that a holder of the lock must take in: finished requests, parked ones, then staged I/Os and the
    /// caller's own plug.
    pub(crate) fn take_in<P: Send>(
        &mut self,
        q: &Shared<P>,
        shard: &Shard,
        freed: bool,
        own: Option<Own<'_>>,
    ) {
        let mut freed = freed | self.take_returns(q);
        self.take_over(q, shard);
        if self.answer_asks(q, shard) {
            // The slot of a cancelled I/O may be the one for which the line waits. No completion follows it.
            self.let_line_in(q, shard);
            freed = true;
        }
        self.admit_all(q, shard, freed, own);
    }

    /// Publishes the hints that are read without the lock: the number of held requests, and the slots that may be
    /// promised.
    pub(crate) fn publish(&mut self, shard: &Shard) {
        shard.held.store(self.elevator.held(), Ordering::Release);
        let Some(parking) = &shard.parking else { return };
        let Parked { line, lanes } = &mut self.parked;
        for ((lane, promises), hw) in lanes.iter_mut().zip(&parking.promises).zip(shard.hws()) {
            let free = self.elevator.free_slots(HwQueue(hw)).saturating_sub(line.len() as u32);
            promises.renew(free, lane);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// A promise that is returned after it was counted already, because the queue was frozen meanwhile. The
    /// subtraction overflowed; in a release build nothing showed it.
    #[test]
    fn a_promise_given_back_late_counts_once() {
        let (promises, mut lane) =
            (Promises(AtomicU32::new(8)), Lane { published: 8, promised: 0 });
        assert_eq!((promises.promise(3), promises.promise(9)), (3, 5));
        promises.renew(8, &mut lane);
        assert_eq!((lane.promised, lane.published), (8, 0));
        promises.give_back(5);
        promises.renew(8, &mut lane);
        assert_eq!((lane.promised, lane.published), (3, 5));
        // The three are taken over and have their slots.
        lane.promised = lane.promised.wrapping_sub(3);
        promises.renew(5, &mut lane);
        assert_eq!((lane.promised, lane.published, promises.promise(9)), (0, 5, 5));
    }
}
