//! The notes about groups (`spec/bfq.md` section 17), and the counts that decide when to take them.
//!
//! This module keeps no statistics: notes go to the engine. With `Basic`, only service, merges and completions are
//! noted; with `Full`, everything.

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
    /// For a note about no I/O in particular.
    pub(super) const QUEUE: Self = Self { op: Op::Read, sync: true };

    pub(super) fn of(meta: &IoMeta) -> Self {
        Self { op: meta.op, sync: super::is_sync(meta) }
    }
}

impl Bfq {
    /// Returns whether `what` is noted at the current level of detail.
    #[inline]
    fn wanted(&self, what: Event) -> bool {
        let basic = matches!(what, Event::Served(_) | Event::Merged | Event::Completed { .. });
        self.level >= if basic { StatsLevel::Basic } else { StatsLevel::Full }
    }

    #[inline(always)]
    pub(super) fn note(&self, cx: &Cx<'_>, level: u32, kind: Kind, what: Event) {
        if self.wanted(what) {
            let about = About::new(self.groups.of(level).id, kind.op, kind.sync);
            cx.note(about, what);
        }
    }

    /// A request waits on `level`.
    #[inline]
    pub(super) fn note_queued(&mut self, cx: &Cx<'_>, level: u32, kind: Kind) {
        let group = self.groups.at(level);
        group.waiting += 1;
        if self.level < StatsLevel::Full {
            // The end of a span that began with statistics on would be missed.
            (group.empty, group.waits) = (None, None);
            return;
        }
        self.note(cx, level, kind, Event::Queued);
        let group = self.groups.of(level);
        if group.empty.is_some() || group.waits.is_none() {
            self.note_filled(cx, level);
        }
    }

    /// A group that may have been empty has a request.
    #[inline(never)]
    fn note_filled(&mut self, cx: &Cx<'_>, level: u32) {
        if let Some(since) = self.groups.at(level).empty.take() {
            self.note(cx, level, Kind::QUEUE, Event::Empty(self.now.since(since)));
        }
        let its_turn = self.serving != NOBODY && self.wf.level(self.serving) == level;
        if !its_turn {
            let now = self.now;
            self.groups.at(level).waits.get_or_insert(now);
        }
    }

    /// A request of `level` no longer waits, without having been picked.
    #[inline]
    pub(super) fn note_unqueued(&mut self, cx: &Cx<'_>, level: u32, kind: Kind) {
        self.note(cx, level, kind, Event::Unqueued);
        self.note_left(level);
    }

    /// A request of `level` with this many sectors was picked.
    #[inline]
    pub(super) fn note_served(&mut self, cx: &Cx<'_>, level: u32, kind: Kind, sectors: u32) {
        self.note(cx, level, kind, Event::Served(sectors));
        self.note_left(level);
    }

    #[inline]
    fn note_left(&mut self, level: u32) {
        let now = self.now;
        let group = self.groups.at(level);
        group.waiting -= 1;
        if self.level < StatsLevel::Full {
            return;
        }
        if group.waiting == 0 {
            group.empty.get_or_insert(now);
        }
    }

    /// A queue of `level` gets its turn.
    pub(super) fn note_turn(&mut self, cx: &Cx<'_>, level: u32) {
        let size = self.groups.of(level).waiting;
        self.note(cx, level, Kind::QUEUE, Event::QueueSize(size));
        if let Some(since) = self.groups.at(level).waits.take() {
            self.note(cx, level, Kind::QUEUE, Event::Waited(self.now.since(since)));
        }
    }

    /// The waiting requests of `q` belong to another group from now on.
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
