//! A plug that comes to a policy which holds none: its requests leave in the order in which they would if they were
//! inserted and then picked one by one, without being entered anywhere (`spec/mq-deadline.md` section 4).
//!
//! The order is found by sorting the plug. The lists and the tree of sectors say the same, for any number of requests
//! and any time between insertion and pick; for a few that come and go in one pass they cost several times as much.

use super::class::{Dir, Lane};
use super::{Deadline, Item};
use crate::Cx;
use crate::policy::PLUG;
use blkmq_core::RequestId;

/// The requests of a plug by sector; of several at one sector, the one that came first.
struct Sorted {
    /// The sector, and the position in the plug.
    list: [(u64, u8); PLUG],
    len: usize,
    /// By position in `list`: has the request not been picked?
    left: u32,
    /// The first position that is not behind the last pick.
    at: u32,
}

impl Sorted {
    fn of(sectors: impl Iterator<Item = u64>) -> Self {
        let mut list = [(0, 0); PLUG];
        let mut len = 0;
        for sector in sectors {
            let mut at = len;
            while at > 0 && list[at - 1].0 > sector {
                list[at] = list[at - 1];
                at -= 1;
            }
            list[at] = (sector, len as u8);
            len += 1;
        }
        Self { list, len, left: (1 << len) - 1, at: 0 }
    }

    /// Goes to the first request at or after `sector`.
    fn go_to(&mut self, sector: u64) {
        let before = self.list[..self.len].iter().take_while(|(other, _)| *other < sector);
        self.at = before.count() as u32;
    }

    /// The position of the next request that has not been picked, if one lies ahead.
    fn ahead(&self) -> Option<u32> {
        let ahead = self.left >> self.at;
        (ahead != 0).then(|| self.at + ahead.trailing_zeros())
    }

    /// The position of the request that came first.
    fn oldest(&self) -> Option<u32> {
        let left = (0..self.len as u32).filter(|at| self.left & 1 << at != 0);
        left.min_by_key(|at| self.list[*at as usize].1)
    }

    fn pick(&mut self, at: u32) -> (u64, u8) {
        self.left &= !(1 << at);
        self.at = at + 1;
        self.list[at as usize]
    }
}

impl Deadline {
    /// Issues all of `rqs`, and writes their order. False, and nothing has happened, if they are not of one class and
    /// direction, if another class competes with them, or if their deadline comes at once.
    pub(super) fn issue_plug(&mut self, cx: &Cx<'_>, rqs: &[RequestId], order: &mut [u8]) -> bool {
        let Some(first) = rqs.first() else { return false };
        let lane = Lane::of(cx.requests.get(*first));
        let deadline = cx.now + self.tunables.expire[lane.dir as usize];
        let alike = |rq: &RequestId| Lane::of(cx.requests.get(*rq)) == lane;
        if self.others_queue(lane.rank) || deadline <= cx.now || !rqs[1..].iter().all(alike) {
            return false;
        }
        for rq in rqs {
            let item = &mut self.items[rq.index()];
            assert!(!item.issued, "{rq:?} took the slot of {:?}, still issued", item.rq);
            *item = Item { rq: *rq, lane, issued: true, inserted: cx.now, deadline };
        }
        let mut sorted = Sorted::of(rqs.iter().map(|rq| cx.requests.get(*rq).sector));
        self.pick_sorted(lane, &mut sorted, order);
        let class = &mut self.classes[lane.rank as usize];
        class.queued += rqs.len() as u32;
        class.inserted += rqs.len() as u64;
        class.dispatched += rqs.len() as u64;
        true
    }

    /// Picks all of `sorted`, batch by batch.
    fn pick_sorted(&mut self, lane: Lane, sorted: &mut Sorted, order: &mut [u8]) {
        let mut last = self.classes[lane.rank as usize].latest_pos[lane.dir as usize];
        sorted.go_to(last);
        for place in &mut order[..sorted.len] {
            let ahead = sorted.ahead();
            let goes_on = self.batching < self.tunables.fifo_batch && self.last_dir == lane.dir;
            if !goes_on || ahead.is_none() {
                if lane.dir == Dir::Write {
                    self.starved = 0;
                }
                self.last_dir = lane.dir;
                self.batching = 0;
            }
            self.batching += 1;
            // Where none lies ahead, the batch begins at the oldest, wherever it is.
            let at = ahead.or_else(|| sorted.oldest()).expect("as many are picked as there are");
            (last, *place) = sorted.pick(at);
        }
        self.classes[lane.rank as usize].latest_pos[lane.dir as usize] = last;
    }
}
