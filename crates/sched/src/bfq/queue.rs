//! A queue: the state of the I/O of a process, or of async I/O of a group and priority; and its class and weight.
//!
//! State, and conclusions from it. `arrive.rs` and `serve.rs` have the events.

use super::Senders;
use super::habits::{IoShare, Seeks, ThinkTime};
use super::injection::{Injection, Waker};
use super::raising::{FORGIVEN, LONG_IDLE, Looks, Raising, SOFT_RT_RATE, SOFT_RT_SLACK};
use super::wf2q::Class;
use blkmq_core as core_types;
use blkmq_core::{Instant, IoPrio, Nanos, RequestId};

/// No lane.
pub(super) const NO_LANE: u32 = u32::MAX;
/// No neighbour among the busy queues.
pub(super) const NONE: u32 = u32::MAX;

/// The state that a process gets back with a queue of its own.
#[derive(Clone, Copy)]
pub(super) struct Saved {
    pub(super) think: ThinkTime,
    pub(super) share: IoShare,
    pub(super) short_think: bool,
    pub(super) in_burst: bool,
    pub(super) raising: Raising,
    pub(super) injection: Injection,
}

/// A queue.
#[derive(Clone)]
pub(super) struct Queue {
    pub(super) generation: u32,
    pub(super) live: bool,
    pub(super) sync: bool,
    pub(super) senders: Senders,
    /// Its processes are threads of an application, and no tenants.
    pub(super) of_threads: bool,
    /// The number of processes that may send to it.
    pub(super) procs: u32,
    /// The wanted priority. Its entity has the one in force.
    pub(super) priority: Priority,

    /// The lane of its requests, while there are any.
    pub(super) lane: u32,
    /// The request that is served next.
    pub(super) next: Option<RequestId>,
    /// Requests waiting in its order.
    pub(super) queued: u32,
    /// Requests in the device.
    pub(super) dispatched: u32,
    /// Requests inserted and not completed.
    pub(super) allocated: u32,
    /// Its request that is filed in the order of positions.
    pub(super) filed: Option<RequestId>,

    /// On the service tree or in service.
    pub(super) busy: bool,
    /// Counted in its group as busy or with requests in the device.
    pub(super) pending: bool,
    /// Counted among the busy raised queues.
    pub(super) counted_raised: bool,
    /// The weight under which it is counted, if it is not raised.
    pub(super) counted_weight: Option<u8>,
    /// Neighbours among the busy queues.
    pub(super) prev: u32,
    pub(super) next_busy: u32,

    pub(super) max_budget: u64,
    /// The age of its oldest request has been checked in this slot.
    pub(super) fifo_checked: bool,
    /// `next` was chosen for its age: no later request takes its place.
    pub(super) next_is_due: bool,
    /// It ran empty within its budget, and may continue with the rest if it soon has a request again.
    pub(super) back_soon: bool,
    pub(super) just_created: bool,
    pub(super) created: Instant,
    /// The time since which it has had no request waiting or in the device. `None`, of a new queue, counts as for ever.
    pub(super) idle_since: Option<Instant>,
    /// The time since which it has waited for its turn.
    pub(super) waiting_since: Instant,
    /// The time at which it last became busy, and its service since then.
    pub(super) backlogged: Instant,
    pub(super) served: u64,
    pub(super) first_io: Instant,

    pub(super) think: ThinkTime,
    pub(super) short_think: bool,
    pub(super) share: IoShare,
    pub(super) seeks: Seeks,
    /// The end of its last request.
    pub(super) last_end: u64,

    pub(super) raising: Raising,
    pub(super) injection: Injection,
    pub(super) waker: Waker,
    /// Part of a large burst.
    pub(super) in_burst: bool,
    /// Several processes send to it.
    pub(super) shared: bool,
    /// Merged permanently.
    pub(super) stable: bool,
    /// Its processes have ceased to cooperate.
    pub(super) to_split: bool,
    pub(super) split: Option<Instant>,
}

impl Queue {
    pub(super) fn new(now: Instant, generation: u32) -> Self {
        Self {
            generation,
            live: true,
            sync: true,
            senders: Senders::Many,
            of_threads: false,
            procs: 0,
            priority: Priority::DEFAULT,
            lane: NO_LANE,
            next: None,
            queued: 0,
            dispatched: 0,
            allocated: 0,
            filed: None,
            busy: false,
            pending: false,
            counted_raised: false,
            counted_weight: None,
            prev: NONE,
            next_busy: NONE,
            max_budget: 0,
            fifo_checked: false,
            next_is_due: false,
            back_soon: false,
            just_created: true,
            created: now,
            idle_since: None,
            waiting_since: now,
            backlogged: now,
            served: 0,
            first_io: now,
            think: ThinkTime::new(now),
            short_think: true,
            share: IoShare::new(now),
            seeks: Seeks::NEW,
            last_end: 0,
            raising: Raising::new(now),
            injection: Injection::new(now),
            waker: Waker::new(now),
            in_burst: false,
            shared: false,
            stable: false,
            to_split: false,
            split: None,
        }
    }

    /// Returns whether the queue has no waiting requests.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.queued == 0
    }

    /// Returns whether the queue was split off so recently that its habits are unknown.
    pub(super) fn is_just_split(&self, now: Instant) -> bool {
        self.split.is_some_and(|at| now <= at + LONG_IDLE)
    }

    /// Updates the habits of the process on an arrival. `idle_class`: the queue is served only when no other is busy.
    #[inline]
    pub(super) fn learn_habits(&mut self, now: Instant, slice_idle: Nanos, idle_class: bool) {
        // For a queue with a long think time, an arrival counts also if the device was kept idle for it. Otherwise a
        // queue that is always waited for would keep the think time of a stall of the machine.
        let counts = !self.busy || (self.is_empty() && !self.short_think);
        if counts && self.dispatched == 0 {
            self.think.arrived(now, slice_idle);
        }
        if idle_class || slice_idle == Nanos::ZERO || self.is_just_split(now) {
            return;
        }
        let short = !self.think.exceeds(Nanos(slice_idle.0 / 2));
        if short != self.short_think {
            self.short_think = short;
            self.injection.think_time_changed(short, now);
        }
    }

    /// The time for which it has had no request, at the arrival of one.
    #[inline]
    pub(super) fn idle_until(&self, now: Instant) -> Nanos {
        let idle = self.is_empty() && self.dispatched == 0;
        if idle { now.since(self.think.last_end) } else { Nanos::ZERO }
    }

    /// Updates the state of a queue that becomes busy.
    pub(super) fn wake(&mut self, now: Instant) {
        let forgiven = self.idle_since.is_some_and(|at| now > at + FORGIVEN);
        if !self.just_created && self.dispatched == 0 && forgiven {
            self.in_burst = false;
        }
        self.just_created = false;
        self.backlogged = now;
        self.served = 0;
        self.raising.soft_rt_due = false;
    }

    /// Counts service of `sectors`.
    #[inline]
    pub(super) fn serve(&mut self, sectors: u64, now: Instant) {
        if self.served == 0 {
            self.first_io = now;
        }
        self.served += sectors;
        if self.raising.is_raised() {
            self.raising.served += sectors;
        }
    }

    /// Returns whether it has been idle for so long that it counts as new.
    pub(super) fn long_idle(&self, now: Instant) -> bool {
        self.dispatched == 0 && self.idle_since.is_none_or(|since| now > since + LONG_IDLE)
    }

    pub(super) fn looks(&self, now: Instant) -> Looks {
        let ordinary = !self.in_burst && self.priority.weight() == 40;
        let soft_rt = ordinary
            && !self.seeks.is_totally_seeky()
            && self.dispatched == 0
            && now > self.raising.soft_rt_after;
        Looks { interactive: ordinary && self.long_idle(now), soft_rt }
    }

    /// Computes the time after which the next request makes the queue, which has run empty, soft real-time; after the
    /// last completion if requests are in the device. The time is not before that of the highest moderate rate, and
    /// later than a greedy process would send the request.
    pub(super) fn run_empty(&mut self, now: Instant, slice_idle: Nanos) {
        // The service time of requests in the device is unknown.
        self.raising.soft_rt_due = self.dispatched > 0;
        if self.dispatched == 0 {
            let at_rate = Nanos(self.served.saturating_mul(1_000_000_000) / SOFT_RT_RATE);
            let greedy = now + Nanos(slice_idle.0.saturating_add(SOFT_RT_SLACK.0));
            let after = (self.backlogged + at_rate).max(greedy);
            self.raising.soft_rt_after = self.raising.soft_rt_after.max(after);
        }
    }

    /// The state that its process gets back with a queue of its own.
    pub(super) fn save(&self) -> Saved {
        let Self { think, share, short_think, in_burst, raising, injection, .. } = *self;
        Saved { think, share, short_think, in_burst, raising, injection }
    }

    /// Restores a state of [`save`](Self::save) at `now`.
    pub(super) fn restore(&mut self, saved: &Saved, now: Instant) {
        let Saved { think, share, short_think, in_burst, raising, injection } = *saved;
        (self.think, self.share, self.short_think) = (think, share, short_think);
        (self.in_burst, self.raising, self.injection) = (in_burst, raising, injection);
        self.split = Some(now);
    }
}

/// A class and a level in it, 0 being the highest of 8.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Priority {
    /// The class of service.
    pub class: Class,
    /// 0 to 7.
    pub level: u8,
}

impl Priority {
    /// For I/O without a priority.
    pub const DEFAULT: Self = Self { class: Class::BestEffort, level: 4 };

    /// The priority of an I/O. Without a class it is best-effort, of the middle level.
    #[must_use]
    pub fn of(ioprio: IoPrio) -> Self {
        let level = ioprio.level() as u8;
        match ioprio.class() {
            core_types::Class::None => Self::DEFAULT,
            core_types::Class::Realtime => Self { class: Class::Realtime, level },
            core_types::Class::BestEffort => Self { class: Class::BestEffort, level },
            core_types::Class::Idle => Self { class: Class::Idle, level: 7 },
        }
    }

    /// 10 for the lowest level, 80 for the highest.
    #[must_use]
    pub fn weight(self) -> u32 {
        (8 - u32::from(self.level)) * 10
    }

    /// A number for each priority, by which async queues are distinguished.
    #[must_use]
    pub fn number(self) -> u8 {
        self.class as u8 * 8 + self.level
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_weights_and_no_class_is_the_middle() {
        let of = |class, level| Priority::of(IoPrio::new(class, level).expect("a level"));
        assert_eq!(of(core_types::Class::BestEffort, 0).weight(), 80);
        assert_eq!(of(core_types::Class::Realtime, 7).weight(), 10);
        assert_eq!(of(core_types::Class::None, 0), Priority::DEFAULT);
        assert_eq!(Priority::DEFAULT.weight(), 40);
        assert_eq!(
            of(core_types::Class::Idle, 3),
            of(core_types::Class::Idle, 0),
            "one idle queue"
        );
    }

    #[test]
    fn priorities_have_numbers_of_their_own() {
        let numbers: alloc::collections::BTreeSet<u8> = Class::ALL
            .into_iter()
            .flat_map(|class| (0..8).map(move |level| Priority { class, level }.number()))
            .collect();
        assert_eq!(numbers.len(), 24);
    }
}
