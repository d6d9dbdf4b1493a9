//! The requests of each group: by class, in order of arrival, and in order of sector within a batch.
//!
//! A node has a lane of both orders for each class of which it holds requests, so lanes are no more than slots.

use crate::index::{Lists, SectorIndex};
use alloc::vec::Vec;
use blkmq_core::{Class, IoMeta, IoPrio, RequestId};

/// The list of requests for the head. Lanes follow it.
const HEADS: usize = 0;
/// Classes of priority, the best first. A request without a class is best-effort.
const CLASSES: usize = 3;
/// The most lanes: one for each possible group and class.
const MOST_LANES: u32 = 1024 * CLASSES as u32;
/// Picks of a node in a row that may pass by an older request of a lower class.
const MOST_PASSED: u32 = 63;

/// The state of a node of requests.
#[derive(Clone, Copy, Default)]
struct Queue {
    /// Its lanes by class; zero where it holds no requests.
    lanes: [u32; CLASSES],
    /// The class of its batch.
    class: usize,
    /// Picks in a row that passed by an older request of a lower class.
    passed: u32,
    /// The sector at which its batch continues.
    next: u64,
    /// Requests picked in its batch.
    run: u32,
    /// The end sector of the request that it was charged for last.
    end: u64,
    /// Requests in the device.
    inflight: u32,
    /// It has requests, held or in the device.
    active: bool,
}

impl Queue {
    /// Returns whether it holds requests.
    #[inline]
    fn has_some(&self) -> bool {
        self.lanes != [0; CLASSES]
    }
}

/// The number of a priority's class among the lanes of a node.
fn rank(ioprio: IoPrio) -> usize {
    match ioprio.class() {
        Class::Realtime => 0,
        Class::None | Class::BestEffort => 1,
        Class::Idle => 2,
    }
}

/// The held requests.
pub(super) struct Queues {
    lists: Lists,
    order: SectorIndex,
    free: Vec<u32>,
    /// The queues by the number of the node of requests, halved.
    at: Vec<Queue>,
    /// By slot: the number of the insertion. The older of two requests has the lower one.
    filed: Vec<u64>,
    filings: u64,
    held: u32,
    /// Nodes that have requests, held or in the device.
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

    /// The class of the oldest request of `leaf`; `None` if it holds none.
    fn oldest(&self, leaf: u32) -> Option<usize> {
        let lanes = self.of(leaf).lanes;
        let age = |class: &usize| {
            self.lists.front(lanes[*class] as usize).map(|rq| self.filed[rq.index()])
        };
        (0..CLASSES).filter(|class| lanes[*class] != 0).min_by_key(age)
    }

    /// The class of the next request of `leaf`, which holds some: the best one, unless it has passed by older requests
    /// for too long. True if the pick passes by an older request.
    fn next_class(&self, leaf: u32) -> (usize, bool) {
        let Queue { lanes, passed, .. } = self.of(leaf);
        let mut with_some = (0..CLASSES).filter(|class| lanes[*class] != 0);
        let best = with_some.next().expect("it has requests");
        if with_some.next().is_none() {
            return (best, false);
        }
        match self.oldest(leaf) {
            Some(oldest) if oldest != best && *passed >= MOST_PASSED => (oldest, false),
            oldest => (best, oldest != Some(best)),
        }
    }

    /// Counts a request of `leaf` that enters the device.
    pub(super) fn began(&mut self, leaf: u32) {
        self.of_mut(leaf).inflight += 1;
        self.count(leaf);
    }

    /// Counts a request of `leaf` that leaves the device.
    pub(super) fn ended(&mut self, leaf: u32) {
        self.of_mut(leaf).inflight -= 1;
        self.count(leaf);
    }

    /// Updates whether `leaf` counts among the nodes that have requests.
    fn count(&mut self, leaf: u32) {
        let of = self.of_mut(leaf);
        let active = of.has_some() || of.inflight > 0;
        let before = core::mem::replace(&mut of.active, active);
        self.active = self.active + u32::from(active) - u32::from(before);
    }

    /// The number of nodes that have requests, held or in the device.
    pub(super) fn active(&self) -> u32 {
        self.active
    }

    /// Returns whether `leaf` has requests, held or in the device.
    #[inline]
    pub(super) fn is_active(&self, leaf: u32) -> bool {
        self.of(leaf).active
    }

    /// Returns whether `leaf` has nothing in the device.
    pub(super) fn is_idle(&self, leaf: u32) -> bool {
        self.of(leaf).inflight == 0
    }

    /// Resets `leaf`, which holds no requests.
    pub(super) fn forget(&mut self, leaf: u32) {
        let of = core::mem::take(self.of_mut(leaf));
        self.active -= u32::from(of.active);
    }

    /// The number of requests held, those at the head included.
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

    /// Puts `rq` behind the requests of `leaf` of its class. Returns whether it is the only one of `leaf`.
    pub(super) fn push(&mut self, leaf: u32, rq: RequestId, io: &IoMeta) -> bool {
        let is_first = !self.of(leaf).has_some();
        let class = rank(io.ioprio);
        if self.of(leaf).lanes[class] == 0 {
            let lane = self.free.pop().expect("there are as many lanes as groups or slots");
            self.of_mut(leaf).lanes[class] = lane;
        }
        if is_first {
            self.count(leaf);
        }
        let lane = self.of(leaf).lanes[class] as usize;
        self.lists.push_back(lane, rq);
        self.order.insert(lane, io.sector, rq);
        self.filings += 1;
        self.filed[rq.index()] = self.filings;
        self.held += 1;
        is_first
    }

    /// Takes out `rq`, which may be at the head. Returns whether it was the last of `leaf`.
    pub(super) fn remove(&mut self, leaf: u32, rq: RequestId) -> bool {
        let list = self.lists.list_of(rq).expect("it is held");
        self.lists.remove(rq);
        self.held -= 1;
        if list == HEADS {
            return false;
        }
        self.order.remove(rq);
        if !self.lists.is_empty(list) {
            return false;
        }
        self.free.push(list as u32);
        let of = self.of_mut(leaf);
        of.lanes.iter_mut().filter(|lane| **lane == list as u32).for_each(|lane| *lane = 0);
        let is_last = !of.has_some();
        if is_last {
            self.count(leaf);
        }
        is_last
    }

    /// The next request of the batch of `leaf`, of up to `most`; `None` if the batch is over.
    fn in_batch(&self, leaf: u32, most: u32) -> Option<RequestId> {
        let of = self.of(leaf);
        let is_over = of.run == 0 || of.run >= most || !of.has_some();
        if is_over || self.next_class(leaf).0 != of.class {
            return None;
        }
        self.order.at_or_after(of.lanes[of.class] as usize, of.next).map(|found| found.rq)
    }

    /// Returns whether `leaf` has another request in order of sector, in a batch of up to `most`.
    pub(super) fn batch_goes_on(&self, leaf: u32, most: u32) -> bool {
        self.in_batch(leaf, most).is_some()
    }

    /// Takes the next request of `leaf`, which holds some: the next of its batch, or the oldest, with which a batch
    /// begins. True if it was the last.
    pub(super) fn pop(&mut self, leaf: u32, most: u32) -> (RequestId, bool) {
        let of = self.of(leaf);
        let (class, passes) = self.next_class(leaf);
        let (rq, run) = match self.in_batch(leaf, most) {
            Some(rq) => (rq, of.run + 1),
            None => (self.lists.front(of.lanes[class] as usize).expect("it has requests"), 1),
        };
        let (_, next) = self.order.filed(rq).expect("it is in both orders");
        let of = self.of_mut(leaf);
        (of.run, of.next, of.class) = (run, next, class);
        of.passed = if passes { of.passed + 1 } else { 0 };
        (rq, self.remove(leaf, rq))
    }

    /// Takes the oldest request of `leaf`. True if it was the last.
    pub(super) fn pop_oldest(&mut self, leaf: u32) -> Option<(RequestId, bool)> {
        let lane = self.of(leaf).lanes[self.oldest(leaf)?];
        let rq = self.lists.front(lane as usize)?;
        Some((rq, self.remove(leaf, rq)))
    }

    /// Returns whether `io` begins where the last request of `leaf` ended, and makes `io` the last request.
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
