//! The notes about groups (`spec/bfq.md` section 17), and the counts that decide when to take them.
//!
//! This module keeps no statistics: notes go to the engine. With `Basic`, only service, merges and completions are
//! noted; with `Full`, everything.

use super::groups::Groups;
use super::is_sync;
use crate::{About, Cx, Event, StatsLevel};
use blkmq_core::{Instant, IoMeta, Nanos, Op};

impl Groups {
    /// Notes an event of `level` about I/O.
    #[inline(always)]
    pub(super) fn note(&self, cx: &Cx<'_>, level: u32, meta: &IoMeta, what: Event) {
        self.write(cx, level, (meta.op, is_sync(meta)), what);
    }

    /// Notes an event of `level` about no I/O in particular.
    #[inline(always)]
    pub(super) fn note_queue(&self, cx: &Cx<'_>, level: u32, what: Event) {
        self.write(cx, level, (Op::Read, true), what);
    }

    /// Notes an event if it is wanted at the current level of detail.
    #[inline(always)]
    fn write(&self, cx: &Cx<'_>, level: u32, (op, sync): (Op, bool), what: Event) {
        let basic = matches!(what, Event::Served(_) | Event::Merged | Event::Completed { .. });
        if cx.stats >= if basic { StatsLevel::Basic } else { StatsLevel::Full } {
            cx.note(About::new(self.of(level).id, op, sync), what);
        }
    }

    /// A request waits on `level`.
    #[inline]
    pub(super) fn queued(&mut self, cx: &Cx<'_>, level: u32, meta: &IoMeta, now: Instant) {
        let group = self.at(level);
        group.waiting += 1;
        if cx.stats < StatsLevel::Full {
            // The end of a span that began with statistics on would be missed.
            (group.empty, group.waits) = (None, None);
            return;
        }
        self.note(cx, level, meta, Event::Queued);
        let group = self.of(level);
        if group.empty.is_some() || group.waits.is_none() {
            self.filled(cx, level, now);
        }
    }

    /// A group that may have been empty has a request.
    #[inline(never)]
    fn filled(&mut self, cx: &Cx<'_>, level: u32, now: Instant) {
        if let Some(since) = self.at(level).empty.take() {
            self.note_queue(cx, level, Event::Empty(now.since(since)));
        }
        if self.in_turn != Some(level) {
            self.at(level).waits.get_or_insert(now);
        }
    }

    /// A request of `level` no longer waits, without having been picked.
    #[inline]
    pub(super) fn unqueued(&mut self, cx: &Cx<'_>, level: u32, meta: &IoMeta, now: Instant) {
        self.note(cx, level, meta, Event::Unqueued);
        self.left(cx, level, now);
    }

    /// A request of `level` was picked.
    #[inline]
    pub(super) fn served(&mut self, cx: &Cx<'_>, level: u32, meta: &IoMeta, now: Instant) {
        self.note(cx, level, meta, Event::Served(meta.sectors));
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

    /// A queue of `level` gets its turn. The queue leaves service before it is moved.
    pub(super) fn begin_turn(&mut self, cx: &Cx<'_>, level: u32, now: Instant) {
        self.in_turn = Some(level);
        self.note_queue(cx, level, Event::QueueSize(self.of(level).waiting));
        if let Some(since) = self.at(level).waits.take() {
            self.note_queue(cx, level, Event::Waited(now.since(since)));
        }
    }

    /// The turn of the queue in service, which took `time`, is over.
    pub(super) fn end_turn(&mut self, cx: &Cx<'_>, time: Nanos) {
        if let Some(level) = self.in_turn.take() {
            self.note_queue(cx, level, Event::Time(time));
        }
    }
}
