//! Selects the next request (`spec/mq-deadline.md` section 4).
//!
//! Candidates, in this order: requests at the head; a request of a lower class that has waited too long; the highest
//! class with anything queued, where the batch continues or a new one begins.
//!
//! A plug that arrives while no request is held leaves in the order in which its requests would be picked after their
//! insertion, without being inserted. The order is found by sorting the plug. The lists and the tree of sectors give
//! the same order for any number of requests and any time between insertion and pick, but cost several times as much
//! for a few requests in one pass.

use super::{Deadline, Dir, HEAD, HEAD_OF, Item, Lane, Rank};
use crate::index::Found;
use crate::sorted::{Sorted, Swept};
use crate::{Cx, Pick};
use blkmq_core::{Instant, Nanos, RequestId};

/// A request chosen from a lane but still held, with its place in the sector order if known.
struct Choice {
    rq: RequestId,
    lane: Lane,
    found: Option<Found>,
}

impl Deadline {
    pub(super) fn next(&mut self, cx: &Cx<'_>) -> Pick {
        if self.held == 0 {
            return Pick::Empty;
        }
        if let Some(rq) = self.lists.front(HEAD) {
            return Pick::Issue(self.issue(cx, rq));
        }
        if self.classes_compete()
            && let Some(rq) = self.overdue(cx)
        {
            return Pick::Issue(rq);
        }
        for rank in Rank::ALL {
            let class = &self.classes[rank as usize];
            if class.held > 0 {
                let rq = self.select(cx, rank, Nanos::ZERO);
                return Pick::Issue(rq.expect("no request is younger than no time at all"));
            }
            if class.queued > 0 {
                return self.blocked();
            }
        }
        unreachable!("requests are held, but by no class");
    }

    /// Returns whether at least two classes have requests queued. If false, aging has no effect.
    #[inline]
    fn classes_compete(&self) -> bool {
        self.classes.iter().filter(|class| class.queued > 0).count() > 1
    }

    /// Returns whether a class other than `rank` has requests queued, or this one holds some. If false, a request of
    /// `rank` is next as soon as it is inserted.
    #[inline]
    pub(super) fn others_queue(&self, rank: Rank) -> bool {
        let [realtime, best_effort, idle] = self.classes.each_ref().map(|class| class.queued);
        let others = match rank {
            Rank::Realtime => best_effort | idle,
            Rank::BestEffort => realtime | idle,
            Rank::Idle => realtime | best_effort,
        };
        others != 0 || self.held != 0
    }

    /// Issues a request directly, without queuing it. The request continues the batch if the batch has room and the
    /// request lies ahead of its position; otherwise it begins another batch.
    #[inline]
    pub(super) fn issue_alone(&mut self, cx: &Cx<'_>, rq: RequestId, lane: Lane, sector: u64) {
        let item = &mut self.items[rq.index()];
        assert!(!item.issued, "{rq:?} took the slot of {:?}, still issued", item.rq);
        let deadline = cx.now + self.tunables.expire[lane.dir as usize];
        *item = Item { rq, lane, issued: true, inserted: cx.now, deadline };
        let goes_on = self.batching < self.tunables.fifo_batch
            && self.last_dir == lane.dir
            && sector >= self.pos(lane);
        if !goes_on {
            if lane.dir == Dir::Write {
                self.starved = 0;
            }
            self.last_dir = lane.dir;
            self.batching = 0;
        }
        self.batching += 1;
        let class = &mut self.classes[lane.rank as usize];
        class.queued += 1;
        class.inserted += 1;
        class.dispatched += 1;
        class.latest_pos[lane.dir as usize] = sector;
    }

    /// The answer while a higher class has requests in the device. The held requests of lower classes wait until a
    /// request of the higher class completes, or one of a lower class is old enough.
    fn blocked(&self) -> Pick {
        if self.tunables.linux_quirks {
            // Linux's check may pass over an old request, so no time can be given.
            return Pick::WaitCompletion;
        }
        let ages = Rank::LOWER.into_iter().filter_map(|rank| self.oldest(rank));
        let since = ages.map(|(inserted, _)| inserted).min();
        since.map_or(Pick::WaitCompletion, |since| {
            Pick::WaitUntil(since + self.tunables.prio_aging_expire)
        })
    }

    /// Issues a request of a lower class that has waited for `prio_aging_expire`, if there is one.
    fn overdue(&mut self, cx: &Cx<'_>) -> Option<RequestId> {
        let age = self.tunables.prio_aging_expire;
        if self.tunables.linux_quirks {
            return Rank::LOWER.into_iter().find_map(|rank| self.select(cx, rank, age));
        }
        let mut above = self.classes[Rank::Realtime as usize].queued;
        for rank in Rank::LOWER {
            // If no higher class has requests, this class is served anyway, in sector order.
            if above > 0
                && let Some((inserted, rq)) = self.oldest(rank)
                && inserted + age <= cx.now
            {
                return Some(self.issue(cx, rq));
            }
            above += self.classes[rank as usize].queued;
        }
        None
    }

    /// The longest-waiting request of a class, and the time of its insertion. Of several requests of the same age,
    /// one at the head comes first, then a read.
    fn oldest(&self, rank: Rank) -> Option<(Instant, RequestId)> {
        let reads = Lane { rank, dir: Dir::Read }.index();
        let writes = Lane { rank, dir: Dir::Write }.index();
        [HEAD_OF + rank as usize, reads, writes]
            .into_iter()
            .filter_map(|list| self.lists.front(list))
            .map(|rq| (self.items[rq.index()].inserted, rq))
            .min_by_key(|(inserted, _)| *inserted)
    }

    /// Section 4.1: issues and returns the next request of the class `rank`, if it has waited for at least `age`.
    fn select(&mut self, cx: &Cx<'_>, rank: Rank, age: Nanos) -> Option<RequestId> {
        let old_enough = |this: &Self, rq: RequestId| {
            age == Nanos::ZERO || this.items[rq.index()].inserted + age <= cx.now
        };
        if let Some(rq) = self.lists.front(HEAD_OF + rank as usize) {
            return old_enough(self, rq).then(|| self.issue(cx, rq));
        }
        let choice = if age == Nanos::ZERO {
            if let Some(rq) = self.go_on(rank) {
                return Some(rq);
            }
            self.begin_batch(cx.now, rank)?
        } else {
            let choice = self.choose(cx.now, rank)?;
            if !old_enough(self, choice.rq) {
                return None;
            }
            choice
        };
        self.batching += 1;
        match choice.found {
            Some(found) => {
                self.order.take(found);
                Some(self.issue_at(choice.lane, found.sector, choice.rq))
            }
            None => Some(self.issue(cx, choice.rq)),
        }
    }

    /// Issues and returns the next request of the batch, if the batch continues. Like the first step of
    /// [`choose`](Self::choose), with the lookup and the removal from the order in one operation.
    #[inline]
    fn go_on(&mut self, rank: Rank) -> Option<RequestId> {
        if self.batching >= self.tunables.fifo_batch {
            return None;
        }
        let lane = Lane { rank, dir: self.last_dir };
        let (sector, rq) = self.order.take_at_or_after(lane.index(), self.pos(lane))?;
        self.batching += 1;
        Some(self.issue_at(lane, sector, rq))
    }

    /// The next request of the batch, or the first one of a new batch. Begins the new batch even if the caller then
    /// declines; callers that must not disturb the batch do not call this.
    fn choose(&mut self, now: Instant, rank: Rank) -> Option<Choice> {
        if self.batching < self.tunables.fifo_batch {
            let lane = Lane { rank, dir: self.last_dir };
            if let Some(found) = self.ahead(lane) {
                return Some(Choice { rq: found.rq, lane, found: Some(found) });
            }
        }
        self.begin_batch(now, rank)
    }

    fn begin_batch(&mut self, now: Instant, rank: Rank) -> Option<Choice> {
        let lane = Lane { rank, dir: self.direction(rank)? };
        self.last_dir = lane.dir;
        self.batching = 0;
        let oldest = self.lists.front(lane.index())?;
        let found = self.ahead(lane);
        match found {
            Some(found) if self.items[oldest.index()].deadline > now => {
                Some(Choice { rq: found.rq, lane, found: Some(found) })
            }
            // The oldest request is overdue, or no request lies ahead: the batch begins at the oldest.
            _ => Some(Choice { rq: oldest, lane, found: None }),
        }
    }

    /// The direction of a new batch: reads, unless writes have been passed over often enough.
    fn direction(&mut self, rank: Rank) -> Option<Dir> {
        let waits = |dir| !self.lists.is_empty(Lane { rank, dir }.index());
        let (reads, writes) = (waits(Dir::Read), waits(Dir::Write));
        let starving = reads && writes && {
            let before = self.starved;
            self.starved += 1;
            before >= self.tunables.writes_starved
        };
        if reads && !starving {
            return Some(Dir::Read);
        }
        if !writes {
            return None;
        }
        self.starved = 0;
        Some(Dir::Write)
    }

    /// The first request of `lane` that begins at or after the start of the last one dispatched there.
    #[inline]
    fn ahead(&self, lane: Lane) -> Option<Found> {
        self.order.at_or_after(lane.index(), self.pos(lane))
    }

    /// The sector at which the order of `lane` continues.
    #[inline]
    fn pos(&self, lane: Lane) -> u64 {
        self.classes[lane.rank as usize].latest_pos[lane.dir as usize]
    }

    /// Issues a request from any list.
    fn issue(&mut self, cx: &Cx<'_>, rq: RequestId) -> RequestId {
        if self.order.filed(rq).is_some() {
            self.order.remove(rq);
        }
        let lane = self.items[rq.index()].lane;
        self.issue_at(lane, cx.requests.get(rq).sector, rq)
    }

    /// Issues a request that is not in the sector order.
    #[inline]
    fn issue_at(&mut self, lane: Lane, sector: u64, rq: RequestId) -> RequestId {
        self.lists.remove(rq);
        self.items[rq.index()].issued = true;
        self.held -= 1;
        let class = &mut self.classes[lane.rank as usize];
        class.held -= 1;
        class.dispatched += 1;
        class.latest_pos[lane.dir as usize] = sector;
        rq
    }

    /// Issues all of `rqs`, and writes their order. Returns false, without effect, if they are not of one class and
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

    /// Counts `n` requests of a direction as picked. A batch ends when it is full, when the direction changes, and when
    /// a new sweep begins, the last one at the place `began`.
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
