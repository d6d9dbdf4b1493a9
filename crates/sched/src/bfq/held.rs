//! The held requests: a FIFO and a sector order for each queue with requests, and the requests that go ahead of all
//! others. Also the choice of the next request of a queue (`spec/bfq.md` section 4.1): the nearest to the head, with a
//! preference for requests ahead of it, and at times the oldest.

use super::procs::Key;
use super::queue::{NO_LANE, Queue};
use super::tunables::Tunables;
use crate::Shape;
use crate::index::{Lists, SectorIndex};
use alloc::boxed::Box;
use alloc::vec::Vec;
use blkmq_core::{Instant, Owner, RequestId};
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
    pub(crate) back_max: u64,
    /// The factor by which distances backwards count.
    pub(crate) penalty: u64,
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
