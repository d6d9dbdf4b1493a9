//! The slot of the queue in service, and the time for which the device is kept idle for that queue.

use super::NOBODY;
use super::budget::Reason;
use super::groups::Groups;
use crate::{Cx, Event, StatsLevel};
use blkmq_core::{Instant, Nanos};

/// The queue in service, and its slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// The queue in service.
    pub(super) queue: u32,
    pub(super) began: Instant,
    /// The end of its time.
    ends: Instant,
    /// The end of the last request dispatched from a queue in service.
    pub(super) position: u64,
    /// The time until which the device is kept idle for the queue, if it is.
    pub(super) idle: Option<Instant>,
    /// The time at which that began.
    pub(super) idle_began: Instant,
    /// Statistics were on at that time.
    idle_counted: bool,
}

impl Turn {
    pub(super) const NONE: Self = Self {
        queue: NOBODY,
        began: Instant::ZERO,
        ends: Instant::ZERO,
        position: 0,
        idle: None,
        idle_began: Instant::ZERO,
        idle_counted: false,
    };

    /// Begins the slot of `queue`.
    pub(super) fn begin(&mut self, queue: u32, now: Instant, length: Nanos) {
        (self.queue, self.began, self.ends) = (queue, now, now + length);
    }

    /// Returns whether `queue` is in service.
    #[inline]
    pub(super) fn is_of(&self, queue: u32) -> bool {
        debug_assert!(queue != NOBODY);
        self.queue == queue
    }

    /// Returns whether the queue in service has used up its time.
    #[inline]
    pub(super) fn is_timed_out(&self, now: Instant) -> bool {
        now >= self.ends
    }

    /// The length of a slot that ends now, without the time for which the device was kept idle to no avail.
    pub(super) fn length(&self, reason: Reason, now: Instant) -> Nanos {
        let until = if reason == Reason::TooIdle { self.idle_began } else { now };
        until.since(self.began)
    }

    /// Keeps the device idle for the queue in service, which is empty.
    pub(super) fn begin_idling(&mut self, now: Instant, span: Nanos, stats: StatsLevel) {
        self.idle = Some(now + span);
        self.idle_began = now;
        self.idle_counted = stats >= StatsLevel::Full;
    }

    #[inline]
    pub(super) fn stop_idling(&mut self, cx: &Cx<'_>, groups: &Groups, now: Instant) {
        if self.idle.take().is_some()
            && self.idle_counted
            && let Some(level) = groups.in_turn
        {
            groups.note_queue(cx, level, Event::Idle(now.since(self.idle_began)));
        }
    }

    /// Shortens the current idling after the idle time was lowered to `span`.
    pub(super) fn shorten_idling(&mut self, span: Nanos) {
        self.idle = self.idle.map(|until| until.min(self.idle_began + span));
    }
}
