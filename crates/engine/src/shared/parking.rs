//! Insertion as proposed in 2024: a thread that finds the lock taken parks its requests in a list, and the next holder
//! of the lock takes them over (`spec/history.md` section 2).
//!
//! As in that proposal, a parked request has its slot, and no bio merges with it, because merging does not search the
//! lists. A bio needs its own slot if its neighbour is parked, or if its merge attempt was skipped. If no slot is left
//! the bio waits for one, and its merge attempt is not repeated. When a request is taken over, or gets a slot, it is
//! tried against the held requests like every inserted request; by then its neighbour may have been issued. So the
//! device receives more and smaller requests (decision 0002).
//!
//! *Slots.* They are assigned under the lock, so without it they can only be promised: as many as were free when the
//! lock was last released, less those promised since ([`Promises`]). A parked request that is taken over precedes
//! everything else, which keeps its promise, except for the few slots that the holder of the lock takes in the
//! meantime. A request that then lacks its slot waits ahead of everything else, in [`Parked::line`].

use crate::shared::inflight::PluggedRequest;
use crate::sync::{AtomicU32, DispatchGate, InsertLists, Ordering};
use crate::{Access, EffectiveModes};
use crossbeam_utils::CachePadded;
use std::collections::VecDeque;

/// The most lists of an elevator; submitters share them by their numbers.
const LISTS: u16 = 32;

/// The part that all threads share.
pub(crate) struct Parking {
    pub(crate) lists: InsertLists<PluggedRequest>,
    pub(crate) promises: Box<[CachePadded<Promises>]>,
}

/// Slots of one hardware queue that may be promised: a hint, exact except for slots that the holder of the lock takes.
///
/// | word | `promise(n)` | `give_back(n)` | `renew(free)`, under the lock |
/// |---|---|---|---|
/// | 0 | none | n | the free slots, less those promised and not taken over |
/// | m | the smaller of n and m; the rest stays | m + n | likewise |
pub(crate) struct Promises(AtomicU32);

/// The part that belongs to the holder of the lock.
pub(crate) struct Parked {
    /// Requests that were taken over but lack the promised slot. They precede everything else.
    pub(crate) line: VecDeque<PluggedRequest>,
    pub(crate) lanes: Box<[Lane]>,
}

#[derive(Clone, Copy)]
pub(crate) struct Lane {
    /// The word after the last renewal.
    pub(crate) published: u32,
    /// Slots promised at that time and not taken over since. Wraps below zero if more were taken over.
    pub(crate) promised: u32,
}

impl Promises {
    pub(crate) fn promise(&self, want: u32) -> u32 {
        let take = |left: u32| Some(left - want.min(left));
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        want.min(before.expect("there is always a next word"))
    }

    /// Returns promises that were not used.
    pub(crate) fn give_back(&self, slots: u32) {
        self.0.fetch_add(slots, Ordering::Relaxed);
    }

    pub(crate) fn renew(&self, free: u32, lane: &mut Lane) {
        // Returned promises do not count any more, so more may be left than were published.
        let promised = |left: u32| lane.promised.wrapping_add(lane.published.wrapping_sub(left));
        let next = |left: u32| free.saturating_sub(promised(left));
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| Some(next(n)));
        let left = before.expect("there is always a next word");
        *lane = Lane { published: next(left), promised: promised(left) };
    }
}

impl Parking {
    /// Lists for `slots` slots of each of `lanes` hardware queues.
    pub(crate) fn new(submitters: u16, lanes: u16, slots: u32) -> Self {
        let promises = |_| CachePadded::new(Promises(AtomicU32::new(slots)));
        Self {
            lists: InsertLists::new(submitters.min(LISTS)),
            promises: (0..lanes).map(promises).collect(),
        }
    }
}

impl Parked {
    /// As [`Parking::new`]; always empty in the modes that do not park.
    pub(crate) fn new(modes: EffectiveModes, lanes: u16, slots: u32) -> Self {
        let lanes = if modes.parks() { lanes } else { 0 };
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// Regression test: a promise that was returned after the renewal had counted it, because the queue was frozen in
    /// the meantime, made the subtraction overflow; in a release build nothing showed it.
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
        // The three requests are taken over with their slots.
        lane.promised = lane.promised.wrapping_sub(3);
        promises.renew(5, &mut lane);
        assert_eq!((lane.promised, lane.published, promises.promise(9)), (0, 5, 5));
    }
}

pub(crate) struct ShardModes {
    /// Requests held, for the locked modes' check before they take the lock. Written under the lock.
    pub(crate) held: CachePadded<AtomicU32>,
    /// Admits one dispatcher, where dispatching is serialised.
    pub(crate) serial: Option<CachePadded<DispatchGate>>,
    /// Requests parked while the lock was taken, in the modes that park them.
    pub(crate) parking: Option<Parking>,
}

impl ShardModes {
    /// The words for `slots` slots of each of `lanes` hardware queues.
    pub(crate) fn new(modes: EffectiveModes, submitters: u16, lanes: u16, slots: u32) -> Self {
        let serial = modes.access == Access::Serialised;
        Self {
            held: CachePadded::default(),
            serial: serial.then(|| CachePadded::new(DispatchGate::new())),
            parking: modes.parks().then(|| Parking::new(submitters, lanes, slots)),
        }
    }
}
