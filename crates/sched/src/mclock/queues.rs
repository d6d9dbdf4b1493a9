//! The requests of each group: in order of arrival, and in order of sector within a batch.
//!
//! Only nodes that have requests need a lane of the two orders, so there are no more lanes than slots.

use crate::index::{Lists, SectorIndex};
use alloc::vec::Vec;
use blkmq_core::{IoMeta, RequestId};

/// The list of requests that go before all others. Lanes follow it.
const HEADS: usize = 0;
/// The most lanes: as many as there can be groups.
const MOST_LANES: u32 = 1024;

/// The place of a node of requests in its own order.
#[derive(Clone, Copy, Default)]
struct Queue {
    /// Its lane, or zero if it has no requests.
    lane: u32,
    /// The sector at which its batch continues.
    next: u64,
    /// Requests picked in its batch.
    run: u32,
    /// The sector behind the request that it was charged for last.
    end: u64,
    /// Requests in the device.
    inflight: u32,
    /// It has requests, here or in the device.
    active: bool,
}

/// The held requests.
pub(super) struct Queues {
    lists: Lists,
    order: SectorIndex,
    free: Vec<u32>,
    /// By node of requests, halved.
    at: Vec<Queue>,
    /// By slot: the number of the insertion, for telling the older of two.
    filed: Vec<u64>,
    filings: u64,
    held: u32,
    /// Nodes that have requests, here or in the device.
    active: u32,
}

impl Queues {
    pub(super) fn new(slots: u32) -> Self {
        let lanes = slots.min(MOST_LANES);
        Self {
            lists: Lists::new(slots, 1 + lanes as usize),
            order: SectorIndex::new(slots, 1 + lanes as usize),
            free: (1..=lanes).rev().collect(),
            at: alloc::vec![Queue::default()],
            filed: alloc::vec![0; slots as usize],
            filings: 0,
            held: 0,
            active: 0,
        }
    }

    /// Makes room for nodes with numbers below `nodes`.
    pub(super) fn make_room(&mut self, nodes: usize) {
        self.at.resize(self.at.len().max(nodes / 2), Queue::default());
    }

    fn of(&self, leaf: u32) -> &Queue {
        &self.at[leaf as usize / 2]
    }

    fn of_mut(&mut self, leaf: u32) -> &mut Queue {
        &mut self.at[leaf as usize / 2]
    }

    fn lane(&self, leaf: u32) -> usize {
        self.of(leaf).lane as usize
    }

    /// A request of `leaf` is in the device.
    pub(super) fn began(&mut self, leaf: u32) {
        self.of_mut(leaf).inflight += 1;
        self.count(leaf);
    }

    /// A request of `leaf` has left the device.
    pub(super) fn ended(&mut self, leaf: u32) {
        self.of_mut(leaf).inflight -= 1;
        self.count(leaf);
    }

    /// Counts `leaf` among the nodes that have requests, or no longer.
    fn count(&mut self, leaf: u32) {
        let of = self.of_mut(leaf);
        let active = of.lane != 0 || of.inflight > 0;
        let before = core::mem::replace(&mut of.active, active);
        self.active = self.active + u32::from(active) - u32::from(before);
    }

    /// The nodes that have requests, here or in the device.
    pub(super) fn active(&self) -> u32 {
        self.active
    }

    /// Returns whether `leaf` has requests, here or in the device.
    #[inline]
    pub(super) fn is_active(&self, leaf: u32) -> bool {
        self.of(leaf).active
    }

    /// Returns whether `leaf` has nothing in the device.
    pub(super) fn is_idle(&self, leaf: u32) -> bool {
        self.of(leaf).inflight == 0
    }

    /// Begins `leaf`, which has no requests, anew.
    pub(super) fn forget(&mut self, leaf: u32) {
        let of = core::mem::take(self.of_mut(leaf));
        self.active -= u32::from(of.active);
    }

    /// Requests held, those at the head included.
    pub(super) fn held(&self) -> u32 {
        self.held
    }

    pub(super) fn push_head(&mut self, rq: RequestId) {
        self.lists.push_front(HEADS, rq);
        self.held += 1;
    }

    pub(super) fn pop_head(&mut self) -> Option<RequestId> {
        let rq = self.lists.pop_front(HEADS)?;
        self.held -= 1;
        Some(rq)
    }

    pub(super) fn is_head(&self, rq: RequestId) -> bool {
        self.lists.list_of(rq) == Some(HEADS)
    }

    /// Puts `rq` behind the others of `leaf`; true if it is the only one.
    pub(super) fn push(&mut self, leaf: u32, rq: RequestId, sector: u64) -> bool {
        let is_first = self.lane(leaf) == 0;
        if is_first {
            let lane = self.free.pop().expect("there are as many lanes as groups or slots");
            self.of_mut(leaf).lane = lane;
            self.count(leaf);
        }
        let lane = self.lane(leaf);
        self.lists.push_back(lane, rq);
        self.order.insert(lane, sector, rq);
        self.filings += 1;
        self.filed[rq.index()] = self.filings;
        self.held += 1;
        is_first
    }

    /// Takes `rq` out, which may be at the head; true if it was the last of `leaf`.
    pub(super) fn remove(&mut self, leaf: u32, rq: RequestId) -> bool {
        let at_head = self.is_head(rq);
        self.lists.remove(rq);
        self.held -= 1;
        if at_head {
            return false;
        }
        self.order.remove(rq);
        self.free_if_empty(leaf)
    }

    fn free_if_empty(&mut self, leaf: u32) -> bool {
        let lane = self.lane(leaf);
        let is_empty = self.lists.is_empty(lane);
        if is_empty {
            self.free.push(lane as u32);
            self.of_mut(leaf).lane = 0;
            self.count(leaf);
        }
        is_empty
    }

    /// The next request of the batch of `leaf`, if there is one.
    fn in_batch(&self, leaf: u32, most: u32) -> Option<RequestId> {
        let Queue { lane, next, run, .. } = *self.of(leaf);
        if lane == 0 || run == 0 || run >= most {
            return None;
        }
        self.order.at_or_after(lane as usize, next).map(|found| found.rq)
    }

    /// Returns whether `leaf` has another request in order of sector, in a batch of up to `most`.
    pub(super) fn batch_goes_on(&self, leaf: u32, most: u32) -> bool {
        self.in_batch(leaf, most).is_some()
    }

    /// Takes the next request of `leaf`, which has some: the next of its batch, or the oldest, with which a batch
    /// begins. True if it was the last.
    pub(super) fn pop(&mut self, leaf: u32, most: u32) -> (RequestId, bool) {
        let of = *self.of(leaf);
        let (rq, run) = match self.in_batch(leaf, most) {
            Some(rq) => (rq, of.run + 1),
            None => (self.lists.front(of.lane as usize).expect("it has requests"), 1),
        };
        let (_, next) = self.order.filed(rq).expect("it is in both orders");
        let of = self.of_mut(leaf);
        (of.run, of.next) = (run, next);
        (rq, self.remove(leaf, rq))
    }

    /// Takes the oldest request of `leaf`; true if it was the last.
    pub(super) fn pop_oldest(&mut self, leaf: u32) -> Option<(RequestId, bool)> {
        let lane = self.lane(leaf);
        let rq = if lane == 0 { None } else { self.lists.front(lane) }?;
        Some((rq, self.remove(leaf, rq)))
    }

    /// Returns whether `io` begins where the last request of `leaf` ended. From now on, `io` is the last request.
    pub(super) fn follows(&mut self, leaf: u32, io: &IoMeta) -> bool {
        let end = core::mem::replace(&mut self.of_mut(leaf).end, io.end());
        io.sector == end
    }

    /// Gives `into` the place of `gone` in the order of arrival, if that is the better one.
    pub(super) fn take_place(&mut self, into: RequestId, gone: RequestId) {
        let older = self.filed[gone.index()] < self.filed[into.index()];
        if older && self.lists.list_of(into) == self.lists.list_of(gone) && !self.is_head(gone) {
            self.lists.remove(into);
            self.lists.insert_before(into, gone);
            self.filed[into.index()] = self.filed[gone.index()];
        }
    }

    /// Files `rq` again if its start has changed.
    pub(super) fn refile(&mut self, rq: RequestId, sector: u64) {
        if let Some((lane, filed)) = self.order.filed(rq)
            && filed != sector
        {
            self.order.remove(rq);
            self.order.insert(lane, sector, rq);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_place_for_every_second_node() {
        let mut queues = Queues::new(4);
        for (nodes, places) in [(2, 1), (6, 3), (4, 3), (8, 4)] {
            queues.make_room(nodes);
            assert_eq!(queues.at.len(), places, "{nodes}");
        }
    }
}
