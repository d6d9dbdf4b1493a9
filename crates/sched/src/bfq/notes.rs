//! What is noted down about groups (`spec/bfq.md` section 17), and the counts that decide when.
//!
//! Nothing is counted up here: notes go to whoever keeps the statistics. With `Basic`, only what was served, merged and
//! completed; with `Full`, everything.

use super::{Bfq, HEAD, NOBODY};
use crate::{About, Cx, Event, StatsLevel};
use blkmq_core::{IoMeta, Op};

/// The kind of I/O that a note is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    op: Op,
    sync: bool,
}

impl Kind {
    /// Of a note about no I/O in particular.
    pub(super) const QUEUE: Self = Self { op: Op::Read, sync: true };

    pub(super) fn of(meta: &IoMeta) -> Self {
        Self { op: meta.op, sync: super::is_sync(meta) }
    }
}

impl Bfq {
    /// Is `what` of interest at the present level?
    #[inline]
    fn wanted(&self, what: Event) -> bool {
        let basic = matches!(what, Event::Served(_) | Event::Merged | Event::Completed { .. });
        self.level >= if basic { StatsLevel::Basic } else { StatsLevel::Full }
    }

    #[inline(always)]
    pub(super) fn note(&self, cx: &Cx<'_>, level: u32, kind: Kind, what: Event) {
        if self.wanted(what) {
            let about = About::new(self.groups.of(level).id, kind.op, kind.sync);
            cx.note(about, what, self.now);
        }
    }

    /// A request waits on `level`.
    #[inline]
    pub(super) fn note_queued(&mut self, cx: &Cx<'_>, level: u32, kind: Kind) {
        let group = self.groups.at(level);
        group.waiting += 1;
        if self.level < StatsLevel::Full {
            // Whatever began while somebody counted has no end.
            (group.empty, group.waits) = (false, false);
            return;
        }
        self.note(cx, level, kind, Event::Queued);
        if core::mem::take(&mut self.groups.at(level).empty) {
            self.note(cx, level, Kind::QUEUE, Event::EmptyEnded);
        }
        let its_turn = self.serving != NOBODY && self.wf.level(self.serving) == level;
        if !its_turn && !core::mem::replace(&mut self.groups.at(level).waits, true) {
            self.note(cx, level, Kind::QUEUE, Event::WaitBegan);
        }
    }

    /// A request of `level` waits no longer, and was not picked.
    #[inline]
    pub(super) fn note_unqueued(&mut self, cx: &Cx<'_>, level: u32, kind: Kind) {
        self.note(cx, level, kind, Event::Unqueued);
        self.note_left(cx, level);
    }

    /// A request of `level` with so many sectors was picked.
    #[inline]
    pub(super) fn note_served(&mut self, cx: &Cx<'_>, level: u32, kind: Kind, sectors: u32) {
        self.note(cx, level, kind, Event::Served(sectors));
        self.note_left(cx, level);
    }

    #[inline]
    fn note_left(&mut self, cx: &Cx<'_>, level: u32) {
        let group = self.groups.at(level);
        group.waiting -= 1;
        if self.level < StatsLevel::Full {
            return;
        }
        let group = self.groups.at(level);
        if group.waiting == 0 && !core::mem::replace(&mut group.empty, true) {
            self.note(cx, level, Kind::QUEUE, Event::EmptyBegan);
        }
    }

    /// A queue of `level` gets its turn.
    pub(super) fn note_turn(&mut self, cx: &Cx<'_>, level: u32) {
        if self.level < StatsLevel::Full {
            return;
        }
        let size = self.groups.of(level).waiting;
        self.note(cx, level, Kind::QUEUE, Event::QueueSize(size));
        if core::mem::take(&mut self.groups.at(level).waits) {
            self.note(cx, level, Kind::QUEUE, Event::WaitEnded);
        }
    }

    /// What `q` has waiting is another group's from now on.
    pub(super) fn move_notes(&mut self, cx: &Cx<'_>, q: u32, old: u32, new: u32) {
        let lane = self.queues[q].lane;
        let lists = [Some(HEAD), (lane != super::queue::NO_LANE).then_some(lane as usize)];
        for list in lists.into_iter().flatten() {
            let mut at = self.lists.front(list);
            while let Some(rq) = at {
                if self.items[rq.index()].queue == q {
                    let kind = Kind::of(cx.requests.get(rq));
                    self.note_unqueued(cx, old, kind);
                    self.note_queued(cx, new, kind);
                }
                at = self.lists.behind(rq);
            }
        }
    }
}
