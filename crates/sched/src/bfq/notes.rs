//! The notes about groups (`spec/bfq.md` section 17), and the counts that decide when to take them.
//!
//! This module keeps no statistics: notes go to the engine. With `Basic`, only service, merges and completions are
//! noted; with `Full`, everything.

use super::groups::Groups;
use crate::{About, Cx, Event, StatsLevel};
use blkmq_core::{Instant, IoMeta, Op};

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

impl Groups {
    /// Notes an event of `level`, if it is wanted at the current level of detail.
    #[inline(always)]
    pub(super) fn note(&self, cx: &Cx<'_>, level: u32, kind: Kind, what: Event) {
        let basic = matches!(what, Event::Served(_) | Event::Merged | Event::Completed { .. });
        if cx.stats >= if basic { StatsLevel::Basic } else { StatsLevel::Full } {
            let about = About::new(self.of(level).id, kind.op, kind.sync);
            cx.note(about, what);
        }
    }

    /// A request waits on `level`, of which a queue is in service if it is `in_turn`.
    #[inline]
    pub(super) fn queued(
        &mut self,
        cx: &Cx<'_>,
        level: u32,
        kind: Kind,
        in_turn: bool,
        now: Instant,
    ) {
        let group = self.at(level);
        group.waiting += 1;
        if cx.stats < StatsLevel::Full {
            // The end of a span that began with statistics on would be missed.
            (group.empty, group.waits) = (None, None);
            return;
        }
        self.note(cx, level, kind, Event::Queued);
        let group = self.of(level);
        if group.empty.is_some() || group.waits.is_none() {
            self.filled(cx, level, in_turn, now);
        }
    }

    /// A group that may have been empty has a request.
    #[inline(never)]
    fn filled(&mut self, cx: &Cx<'_>, level: u32, in_turn: bool, now: Instant) {
        if let Some(since) = self.at(level).empty.take() {
            self.note(cx, level, Kind::QUEUE, Event::Empty(now.since(since)));
        }
        if !in_turn {
            self.at(level).waits.get_or_insert(now);
        }
    }

    /// A request of `level` no longer waits, without having been picked.
    #[inline]
    pub(super) fn unqueued(&mut self, cx: &Cx<'_>, level: u32, kind: Kind, now: Instant) {
        self.note(cx, level, kind, Event::Unqueued);
        self.left(cx, level, now);
    }

    /// A request of `level` was picked.
    #[inline]
    pub(super) fn served(&mut self, cx: &Cx<'_>, level: u32, meta: &IoMeta, now: Instant) {
        self.note(cx, level, Kind::of(meta), Event::Served(meta.sectors));
        self.left(cx, level, now);
    }

    #[inline]
    fn left(&mut self, cx: &Cx<'_>, level: u32, now: Instant) {
        let group = self.at(level);
        group.waiting -= 1;
        if cx.stats >= StatsLevel::Full && group.waiting == 0 {
            group.empty.get_or_insert(now);
        }
    }

    /// A queue of `level` gets its turn.
    pub(super) fn turn(&mut self, cx: &Cx<'_>, level: u32, now: Instant) {
        self.note(cx, level, Kind::QUEUE, Event::QueueSize(self.of(level).waiting));
        if let Some(since) = self.at(level).waits.take() {
            self.note(cx, level, Kind::QUEUE, Event::Waited(now.since(since)));
        }
    }
}
