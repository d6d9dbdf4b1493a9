//! A plug that comes to a policy which holds none: its requests leave in the order in which they would if they were
//! inserted and then picked one by one, without being entered anywhere (`spec/mq-deadline.md` section 4).
//!
//! The order is found by sorting the plug. The lists and the tree of sectors say the same, for any number of requests
//! and any time between insertion and pick; for a few that come and go in one pass they cost several times as much.

use super::class::{Dir, Lane};
use super::{Deadline, Item};
use crate::Cx;
use crate::sorted::Sorted;
use blkmq_core::RequestId;

impl Deadline {
    /// Issues all of `rqs`, and writes their order. False, and nothing has happened, if they are not of one class and
    /// direction, if another class competes with them, or if their deadline comes at once.
    pub(super) fn issue_plug(&mut self, cx: &Cx<'_>, rqs: &[RequestId], order: &mut [u8]) -> bool {
        let Some(first) = rqs.first() else { return false };
        let first = cx.requests.get(*first);
        let lane = Lane::of(first);
        let deadline = cx.now + self.tunables.expire[lane.dir as usize];
        if self.others_queue(lane.rank) || deadline <= cx.now {
            return false;
        }
        let mut alike = true;
        let mut sorted = Sorted::of(rqs.iter().map(|rq| {
            let meta = cx.requests.get(*rq);
            let same = meta.op == first.op && meta.ioprio == first.ioprio;
            alike &= same || Lane::of(meta) == lane;
            meta.sector
        }));
        if !alike {
            return false;
        }
        for rq in rqs {
            let item = &mut self.items[rq.index()];
            assert!(!item.issued, "{rq:?} took the slot of {:?}, still issued", item.rq);
            *item = Item { rq: *rq, lane, issued: true, inserted: cx.now, deadline };
        }
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
        for place in &mut order[..sorted.len()] {
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
