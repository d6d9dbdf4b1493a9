//! The slot of the queue in service, and the decision whether, and for how long, the device is kept idle for it while
//! it is empty (`spec/bfq.md` section 10).
//!
//! There are two reasons to idle. Idling is faster if the next request will be close and soon. Without idling, other
//! queues would take the share that this queue has by its weight.

use super::NOBODY;
use super::budget::Reason;
use super::device::{self, Device};
use super::groups::Groups;
use super::queues::Queues;
use super::tunables::Tunables;
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
    /// The time at which the idling began.
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

    /// The length of a slot that ends at `now`, without idling that ended without a request.
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

/// Idling for a raised queue lasts at least this long.
const RAISED_IDLE: Nanos = Nanos::from_millis(20);

/// The grounds on which the device is kept idle.
#[derive(Clone, Copy)]
pub(super) struct Idling<'a> {
    pub(super) queues: &'a Queues,
    pub(super) device: &'a Device,
    pub(super) tunables: &'a Tunables,
}

impl Idling<'_> {
    /// Returns whether the device should be kept idle for `q`, if `q` is empty.
    pub(super) fn is_better(self, q: u32) -> bool {
        let queue = &self.queues[q];
        if queue.procs == 0 {
            return false;
        }
        if self.tunables.strict {
            return true;
        }
        if self.tunables.slice_idle == Nanos::ZERO || !queue.sync || self.queues.is_idle_class(q) {
            return false;
        }
        self.boosts(q) || self.is_needed(q)
    }

    /// Returns whether idling increases throughput.
    pub(super) fn boosts(self, q: u32) -> bool {
        let queue = &self.queues[q];
        let serial = !self.device.hw_tag.may_queue();
        let sequential = !queue.seeks.is_seeky() && queue.share.is_bound() && queue.short_think;
        let boosts = (self.device.rotational && serial)
            || ((self.device.rotational || serial) && sequential);
        boosts && self.queues.raised_busy == 0
    }

    /// Returns whether `q` would get less than its share without idling.
    pub(super) fn is_needed(self, q: u32) -> bool {
        let queue = &self.queues[q];
        if queue.procs == 0 {
            return false;
        }
        let busy = self.queues.busy_queues();
        let exposed = queue.raising.is_raised()
            && (self.queues.raised_busy < busy || self.device.in_driver >= queue.dispatched + 4);
        exposed || self.queues.is_asymmetric(q) || busy == 1
    }

    /// The time for which the device is kept idle for `q`.
    pub(super) fn span(self, q: u32) -> Nanos {
        let queue = &self.queues[q];
        let span = self.tunables.slice_idle;
        if queue.raising.is_raised() {
            span.max(RAISED_IDLE)
        } else if queue.seeks.is_seeky() && !self.queues.is_asymmetric(q) {
            span.min(device::AT_ONCE)
        } else {
            span
        }
    }
}
