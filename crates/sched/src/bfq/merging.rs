//! Merging of queues (`spec/bfq.md` section 14) that are sequential together, and splitting them again.
//!
//! The requests of a queue stay in it. A merge changes where later requests of its process go.

use super::Senders;
use super::tunables::Joining;
use super::wf2q::Class;
use super::{Bfq, NOBODY};
use crate::Cx;
use crate::index::SectorIndex;
use blkmq_core::{Instant, IoMeta, Nanos};

/// Positions closer than this are neighbours.
const CLOSE: u64 = 8_192;
/// A queue that is served for longer than this since its first I/O is not merged.
const EARLY: Nanos = Nanos::from_millis(100);
/// Queues created within this time of the last one may be merged permanently.
const TOGETHER: Nanos = Nanos::from_millis(180);
/// A queue created later than this after the last one begins another series.
const SERIES: Nanos = Nanos::from_millis(600);
/// The time from a queue's creation, or from a split, to its permanent merge.
const LATE: Nanos = Nanos::from_millis(600);
/// The number of position orders that groups share.
const LANES: u32 = 16;

/// The next requests of the busy queues, in order of their sectors.
pub(super) struct Positions(SectorIndex);

impl Positions {
    pub(super) fn new(slots: u32) -> Self {
        Self(SectorIndex::new(slots, LANES as usize))
    }
}

impl Bfq {
    /// The queue for the I/O `meta` of process `p`, which sends to `q`: usually `q` itself.
    pub(super) fn cooperate(&mut self, cx: &Cx<'_>, p: u32, q: u32, meta: &IoMeta) -> u32 {
        if self.tunables.joining == Joining::Off {
            return q;
        }
        if let Some(twin) = self.due_twin(p, q) {
            self.queues[q].stable = true;
            self.queues[twin].stable = true;
            return self.merge(cx, p, q, twin);
        }
        // Without moving parts, proximity has no value.
        if !self.device.rotational || self.queues.busy_queues() < 2 || self.is_late(q) {
            return q;
        }
        match self.neighbour(q, meta.sector) {
            Some(other) => self.merge(cx, p, q, other),
            None => q,
        }
    }

    /// Returns whether it is too late for `q` to be merged.
    fn is_late(&self, q: u32) -> bool {
        let queue = &self.queues[q];
        queue.served > 0 && self.now > queue.first_io + EARLY
    }

    /// A queue with its next or last request close to `sector`, into which `q` may be merged.
    fn neighbour(&self, q: u32, sector: u64) -> Option<u32> {
        let close = |to: u64| to.abs_diff(sector) <= CLOSE;
        let serving = self.slot.queue;
        if serving != NOBODY && close(self.slot.position) && self.may_join(q, serving) {
            return Some(serving);
        }
        let lane = self.position_lane(q);
        let ahead = self.positions.0.at_or_after(lane, sector);
        let behind = self.positions.0.before(lane, sector);
        let mut found = [ahead, behind].map(|f| f.filter(|f| close(f.sector)));
        found.sort_by_key(|f| f.map_or(u64::MAX, |f| f.sector.abs_diff(sector)));
        let queues = found.into_iter().flatten().map(|f| self.held[f.rq].queue);
        queues.into_iter().find(|other| self.may_join(q, *other))
    }

    fn may_join(&self, q: u32, other: u32) -> bool {
        let (a, b) = (&self.queues[q], &self.queues[other]);
        q != other
            && a.sync
            && b.sync
            && b.procs > 0
            && self.queues.wf.level(q) == self.queues.wf.level(other)
            && a.priority.class == b.priority.class
            && a.priority.class != Class::Idle
            && !a.seeks.is_seeky()
            && !b.seeks.is_seeky()
            && !self.is_late(other)
    }

    /// Redirects the process `p` from `q` to `into`, which inherits the raising of `q`.
    fn merge(&mut self, cx: &Cx<'_>, p: u32, q: u32, into: u32) -> u32 {
        let saved = self.queues[q].save();
        if !self.queues[q].shared {
            self.procs.at_mut(p).saved = Some(saved);
        }
        if let Senders::One(other) = self.queues[into].senders {
            self.procs.at_mut(other).saved = Some(self.queues[into].save());
        }
        let share = self.queues[q].share;
        self.queues[into].share.join(&share);
        if saved.raising.is_raised() && !self.queues[into].raising.is_raised() {
            self.queues[into].raising = saved.raising;
            self.queues.want(into);
        }
        if saved.raising.is_raised() {
            self.queues.end_raising(q, self.now);
        }
        self.queues[q].procs -= 1;
        let target = &mut self.queues[into];
        target.procs += 1;
        target.shared = true;
        target.senders = Senders::Many;
        self.procs.at_mut(p).queue = Some(into);
        self.queues.recount(into);
        self.free_if_unused(cx, q);
        into
    }

    /// The processes of a shared queue no longer cooperate: `p`, which sends the next I/O, gets a queue of its own
    /// again.
    pub(super) fn split(&mut self, cx: &Cx<'_>, p: u32, q: u32) -> u32 {
        let now = self.now;
        let saved = self.procs.at_mut(p).saved.take();
        let own = if self.queues[q].procs == 1 {
            let queue = &mut self.queues[q];
            (queue.shared, queue.to_split, queue.senders) = (false, false, Senders::One(p));
            q
        } else {
            self.queues[q].procs -= 1;
            let (level, priority) = (self.queues.wf.level(q), self.queues[q].priority);
            self.new_queue(cx, p, level, priority, true)
        };
        if let Some(saved) = saved {
            self.queues.restore(own, &saved, now, self.tunables.low_latency);
        }
        own
    }

    /// A sync queue has been created: it may belong to a series of queues that are merged permanently.
    pub(super) fn join_series(&mut self, cx: &Cx<'_>, p: u32, q: u32) -> u32 {
        let link = self.queues.link(q);
        let last = self.last_created.and_then(|last| self.queues.follow(last));
        let Some(last) = last.filter(|last| *last != q && self.are_alike(q, *last)) else {
            self.last_created = Some(link);
            return q;
        };
        let since = self.now.since(self.queues[last].created);
        if since > SERIES {
            self.last_created = Some(link);
        } else if since <= TOGETHER && self.begin_together(q, last) {
            if self.device.rotational {
                self.procs.at_mut(p).twin = Some(self.queues.link(last));
            } else {
                self.queues[last].stable = true;
                return self.merge(cx, p, q, last);
            }
        }
        q
    }

    /// Returns whether queues that are created together may share one for good. Threads of an application may; tenants
    /// would lose their shares, unless they are said to be one.
    fn begin_together(&self, q: u32, other: u32) -> bool {
        match self.tunables.joining {
            Joining::Off => false,
            Joining::Early => self.queues[q].of_threads && self.queues[other].of_threads,
            Joining::Stable => true,
        }
    }

    fn are_alike(&self, q: u32, other: u32) -> bool {
        let (a, b) = (&self.queues[q], &self.queues[other]);
        b.sync
            && b.procs > 0
            && a.priority == b.priority
            && (a.of_threads == b.of_threads || self.tunables.joining == Joining::Stable)
            && self.queues.wf.level(q) == self.queues.wf.level(other)
    }

    /// The queue that the process `p` is to share permanently, if it is time for the merge.
    fn due_twin(&mut self, p: u32, q: u32) -> Option<u32> {
        let link = self.procs.at(p).twin?;
        let now = self.now;
        let queue = &self.queues[q];
        let later = |at: Instant| now > at + LATE;
        if queue.just_created || !later(queue.created) || !queue.split.is_none_or(later) {
            return None;
        }
        self.procs.at_mut(p).twin = None;
        let twin = self.queues.follow(link)?;
        let wanted = twin != q
            && self.are_alike(q, twin)
            && !self.idling().boosts(q)
            && self.begin_together(q, twin);
        wanted.then_some(twin)
    }

    fn position_lane(&self, q: u32) -> usize {
        (self.queues.wf.level(q) % LANES) as usize
    }

    /// The next request of a busy queue has changed: files it in the order in which other queues look for neighbours.
    #[inline]
    pub(super) fn refile(&mut self, q: u32) {
        if !self.device.rotational {
            return;
        }
        let queue = &self.queues[q];
        if queue.filed != queue.next {
            self.unfile(q);
            let next = self.queues[q].next;
            if let Some(rq) = next.filter(|_| self.queues[q].sync && self.queues[q].busy) {
                let sector = self.held.sector(rq).expect("the next request is in the order");
                self.positions.0.insert(self.position_lane(q), sector, rq);
                self.queues[q].filed = next;
            }
        }
    }

    pub(super) fn unfile(&mut self, q: u32) {
        if let Some(old) = self.queues[q].filed.take() {
            self.positions.0.remove(old);
        }
    }
}
