//! Merging of queues (`spec/bfq.md` section 14) that are sequential together, and splitting them again.
//!
//! The requests of a queue stay in it. After a merge, later requests of its process go to the other queue.

use super::Senders;
use super::held::Held;
use super::procs::Procs;
use super::queue::Queue;
use super::queues::Queues;
use super::tunables::Joining;
use super::wf2q::Class;
use crate::index::SectorIndex;
use blkmq_core::{Instant, Nanos, RequestId};

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

/// Returns whether two positions are neighbours.
pub(super) fn is_close(sector: u64, other: u64) -> bool {
    sector.abs_diff(other) <= CLOSE
}

/// The next requests of the busy queues, in order of their sectors.
pub(super) struct Positions(SectorIndex);

impl Positions {
    pub(super) fn new(slots: u32) -> Self {
        Self(SectorIndex::new(slots, LANES as usize))
    }

    /// Files a queue of `level`, whose next request has changed, in the order in which others look for neighbours.
    #[inline(never)]
    pub(super) fn refile(&mut self, queue: &mut Queue, level: u32, held: &Held) {
        if queue.filed != queue.next {
            self.unfile(queue);
            if let Some(rq) = queue.next.filter(|_| queue.sync && queue.busy) {
                let sector = held.sector(rq).expect("the next request is in the order");
                self.0.insert(Self::lane(level), sector, rq);
                queue.filed = Some(rq);
            }
        }
    }

    pub(super) fn unfile(&mut self, queue: &mut Queue) {
        if let Some(old) = queue.filed.take() {
            self.0.remove(old);
        }
    }

    /// The requests next to `sector` that are close to it, the closest first.
    pub(super) fn close_to(&self, level: u32, sector: u64) -> impl Iterator<Item = RequestId> {
        let ahead = self.0.at_or_after(Self::lane(level), sector);
        let behind = self.0.before(Self::lane(level), sector);
        let mut found = [ahead, behind].map(|f| f.filter(|f| is_close(f.sector, sector)));
        found.sort_by_key(|f| f.map_or(u64::MAX, |f| f.sector.abs_diff(sector)));
        found.into_iter().flatten().map(|f| f.rq)
    }

    fn lane(level: u32) -> usize {
        (level % LANES) as usize
    }
}

impl Queues {
    /// Returns the queue that a new sync queue is to share permanently, if both are of a series of queues that are
    /// created shortly after each other.
    pub(super) fn join_series(&mut self, q: u32, joining: Joining, now: Instant) -> Option<u32> {
        let last = self.last_created.and_then(|last| self.follow(last));
        let last = last.filter(|last| *last != q && self.are_alike(q, *last, joining));
        let since = last.map(|last| now.since(self[last].created));
        if since.is_none_or(|since| since > SERIES) {
            self.last_created = Some(self.link(q));
        }
        let together = since.is_some_and(|since| since <= TOGETHER);
        last.filter(|last| together && self.begin_together(q, *last, joining))
    }

    /// Returns whether it is time to merge `q` permanently.
    pub(super) fn is_ripe(&self, q: u32, now: Instant) -> bool {
        let queue = &self[q];
        let later = |at: Instant| now > at + LATE;
        !queue.just_created && later(queue.created) && queue.split.is_none_or(later)
    }

    /// Returns whether `q` may share `other` permanently.
    pub(super) fn may_share(&self, q: u32, other: u32, joining: Joining) -> bool {
        q != other && self.are_alike(q, other, joining) && self.begin_together(q, other, joining)
    }

    /// Returns whether it is too late for `q` to be merged.
    pub(super) fn is_late(&self, q: u32, now: Instant) -> bool {
        self[q].served > 0 && now > self[q].first_io + EARLY
    }

    /// Returns whether `q` may be merged into `other`, which is close to it.
    pub(super) fn may_join(&self, q: u32, other: u32, now: Instant) -> bool {
        let (a, b) = (&self[q], &self[other]);
        q != other
            && a.sync
            && b.sync
            && b.procs > 0
            && self.level(q) == self.level(other)
            && a.priority.class == b.priority.class
            && a.priority.class != Class::Idle
            && !a.seeks.is_seeky()
            && !b.seeks.is_seeky()
            && !self.is_late(other, now)
    }

    /// Returns whether queues that are created together may share one permanently. Threads of an application may.
    /// Tenants would lose their shares, so they may only by configuration.
    fn begin_together(&self, q: u32, other: u32, joining: Joining) -> bool {
        match joining {
            Joining::Off => false,
            Joining::Early => self[q].of_threads && self[other].of_threads,
            Joining::Stable => true,
        }
    }

    fn are_alike(&self, q: u32, other: u32, joining: Joining) -> bool {
        let (a, b) = (&self[q], &self[other]);
        b.sync
            && b.procs > 0
            && a.priority == b.priority
            && (a.of_threads == b.of_threads || joining == Joining::Stable)
            && self.level(q) == self.level(other)
    }
}

impl Procs {
    /// Redirects the process `p` from `q` to `into`, which inherits the raising of `q`.
    pub(super) fn merge(&mut self, queues: &mut Queues, p: u32, q: u32, into: u32, now: Instant) {
        let saved = queues[q].save();
        if !queues[q].shared {
            self.at_mut(p).saved = Some(saved);
        }
        if let Senders::One(other) = queues[into].senders {
            self.at_mut(other).saved = Some(queues[into].save());
        }
        let share = queues[q].share;
        queues[into].share.join(&share);
        if saved.raising.is_raised() {
            if !queues[into].raising.is_raised() {
                queues[into].raising = saved.raising;
                queues.want(into);
            }
            queues.end_raising(q, now);
        }
        queues[q].procs -= 1;
        let target = &mut queues[into];
        target.procs += 1;
        target.shared = true;
        target.senders = Senders::Many;
        self.at_mut(p).queue = Some(into);
        queues.recount(into);
    }
}
