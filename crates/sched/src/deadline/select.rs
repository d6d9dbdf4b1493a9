//! Which request is next (`spec/mq-deadline.md` section 4).
//!
//! The order of questions: anything at the head; then a request of a lower class that has waited too long;
//! then the highest class that has anything queued, in which the batch goes on or a new one begins.

use super::class::{Dir, Lane, Rank};
use super::{Deadline, HEAD, HEAD_OF};
use crate::index::Found;
use crate::{Cx, Pick};
use blkmq_core::{Instant, Nanos, RequestId};

/// A request chosen from a lane but still held; with its place in the sector order if that is known.
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

    /// Do at least two classes have anything queued? Otherwise age cannot matter.
    #[inline]
    fn classes_compete(&self) -> bool {
        self.classes.iter().filter(|class| class.queued > 0).count() > 1
    }

    /// A higher class is in the device and keeps the held requests of lower ones waiting: until one of its
    /// requests completes, or one of theirs is old enough.
    fn blocked(&self) -> Pick {
        if self.tunables.linux_quirks {
            // Linux's probes may pass an old request over, so no time can be named.
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
            // With nobody above, its turn comes anyway, and in sector order.
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

    /// The longest-waiting request of a class, and when it was inserted. Of several as old, one at the head
    /// comes first, then a read.
    fn oldest(&self, rank: Rank) -> Option<(Instant, RequestId)> {
        let reads = Lane { rank, dir: Dir::Read }.index();
        let writes = Lane { rank, dir: Dir::Write }.index();
        [HEAD_OF + rank as usize, reads, writes]
            .into_iter()
            .filter_map(|list| self.lists.front(list))
            .map(|rq| (self.items[rq.index()].inserted, rq))
            .min_by_key(|(inserted, _)| *inserted)
    }

    /// Section 4.1: the next request of the class `rank`, issued, if it has waited for at least `age`.
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

    /// The next of the batch, issued, if it goes on. What [`choose`](Self::choose) does first, in one go with the order.
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

    /// The next of the batch, or the first of a new one. Begins the new batch even if the caller then
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
            // Overdue, or nothing further up: back to the oldest, wherever it is.
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

    /// The first request of `lane` that begins where its last one began, or behind it.
    #[inline]
    fn ahead(&self, lane: Lane) -> Option<Found> {
        self.order.at_or_after(lane.index(), self.pos(lane))
    }

    /// Where the sector order of `lane` goes on.
    #[inline]
    fn pos(&self, lane: Lane) -> u64 {
        self.classes[lane.rank as usize].latest_pos[lane.dir as usize]
    }

    /// Gives out a request from wherever it waits.
    fn issue(&mut self, cx: &Cx<'_>, rq: RequestId) -> RequestId {
        if self.order.filed(rq).is_some() {
            self.order.remove(rq);
        }
        let lane = self.items[rq.index()].lane;
        self.issue_at(lane, cx.requests.get(rq).sector, rq)
    }

    /// Gives out a request that the sector order no longer holds.
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
}
