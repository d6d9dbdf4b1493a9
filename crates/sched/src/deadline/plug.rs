//! A plug that comes to a policy which holds none: its requests leave in the order in which they would if they were
//! inserted and then picked one by one, without being entered anywhere (`spec/mq-deadline.md` section 4).
//!
//! The order is found by sorting the plug. The lists and the tree of sectors say the same, for any number of requests
//! and any time between insertion and pick; for a few that come and go in one pass they cost several times as much.

use super::class::{Dir, Lane};
use super::{Deadline, Item};
use crate::Cx;
use crate::sorted::{Sorted, Swept};
use blkmq_core::RequestId;

impl Deadline {
    /// Issues all of `rqs`, and writes their order. False, and nothing has happened, if they are not of one class and
    /// direction, if another class competes with them, or if their deadline is immediate.
    pub(super) fn issue_plug(&mut self, cx: &Cx<'_>, rqs: &[RequestId], order: &mut [u8]) -> bool {
        let Some(first) = rqs.first() else { return false };
        let first = cx.requests.get(*first);
        let lane = Lane::of(first);
        let deadline = cx.now + self.tunables.expire[lane.dir as usize];
        if self.others_queue(lane.rank) || deadline <= cx.now {
            return false;
        }
        let mut alike = true;
        let sectors = rqs.iter().map(|rq| {
            let meta = cx.requests.get(*rq);
            let same = meta.op == first.op && meta.ioprio == first.ioprio;
            alike &= same || Lane::of(meta) == lane;
            meta.sector
        });
        let head = self.classes[lane.rank as usize].latest_pos[lane.dir as usize];
        let sorted = Sorted::of(sectors, head);
        if !alike {
            return false;
        }
        for rq in rqs {
            let item = &mut self.items[rq.index()];
            assert!(!item.issued, "{rq:?} took the slot of {:?}, still issued", item.rq);
            *item = Item { rq: *rq, lane, issued: true, inserted: cx.now, deadline };
        }
        let Swept { last, began } = sorted.sweep(order);
        self.count_batches(lane.dir, rqs.len(), began);
        let class = &mut self.classes[lane.rank as usize];
        class.latest_pos[lane.dir as usize] = last;
        class.queued += rqs.len() as u32;
        class.inserted += rqs.len() as u64;
        class.dispatched += rqs.len() as u64;
        true
    }

    /// Counts `n` requests of a direction as picked. A batch ends when it is full, when the direction changes, and where a
    /// sweep begins anew, as at the place `began`.
    fn count_batches(&mut self, dir: Dir, n: usize, began: Option<usize>) {
        let most = self.tunables.fifo_batch.max(1);
        let goes_on = self.batching < most && self.last_dir == dir;
        let before = if goes_on { self.batching } else { 0 };
        let ends = !goes_on || began.is_some() || before + n as i64 > most;
        let (before, picked) = match began {
            Some(began) => (0, n - began),
            None => (before, n),
        };
        self.batching = (before + picked as i64 - 1) % most + 1;
        if ends {
            self.last_dir = dir;
            if dir == Dir::Write {
                self.starved = 0;
            }
        }
    }
}
