//! Raised weights: for applications that have just been started, and for I/O at a steady, moderate rate
//! (`spec/bfq.md` section 9).
//!
//! Only with `low_latency`. A queue is judged when it becomes busy; the duration is decided while it is served.

use super::Bfq;
use super::wf2q::Class;
use blkmq_core::{Instant, Nanos};

/// Not raised.
pub(crate) const ORDINARY: u32 = 1;
/// Interactive.
pub(crate) const INTERACTIVE: u32 = 30;
/// Soft real-time.
pub(crate) const SOFT_RT: u32 = 30 * 100;
/// The duration of one soft real-time period.
pub(crate) const SOFT_RT_PERIOD: Nanos = Nanos::from_millis(300);
/// A queue that was idle for longer counts as new.
pub(crate) const LONG_IDLE: Nanos = Nanos::from_secs(2);
/// Async I/O after a pause of this length is raised.
pub(crate) const ASYNC_PAUSE: Nanos = Nanos::from_millis(500);
/// A queue above this rate, in sectors per second, is not soft real-time.
pub(crate) const SOFT_RT_RATE: u64 = 7_000;
/// An interactive queue that was served more sectors than this is not an application that starts.
pub(crate) const MOST_SERVICE: u64 = 120_000;
/// The time by which the next soft real-time request may be early: the model's four ticks of a millisecond.
pub(crate) const SOFT_RT_SLACK: Nanos = Nanos::from_millis(4);

/// The raising of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Raising {
    /// The factor of its weight.
    pub(crate) factor: u32,
    /// The duration, from `started` on.
    pub(crate) period: Nanos,
    pub(crate) started: Instant,
    /// The start of the interactive period that a soft real-time period has interrupted.
    pub(crate) interrupted: Option<Instant>,
    /// Sectors served since it was raised.
    pub(crate) served: u64,
    /// A queue that becomes busy after this is soft real-time.
    pub(crate) soft_rt_after: Instant,
    /// `soft_rt_after` is computed when its last request has completed.
    pub(crate) soft_rt_due: bool,
}

impl Raising {
    pub(crate) const fn new(now: Instant) -> Self {
        Self {
            factor: ORDINARY,
            period: Nanos::ZERO,
            started: now,
            interrupted: None,
            served: 0,
            soft_rt_after: now,
            soft_rt_due: false,
        }
    }

    #[inline]
    pub(crate) fn is_raised(&self) -> bool {
        self.factor > ORDINARY
    }

    #[inline]
    pub(crate) fn is_soft_rt(&self) -> bool {
        self.factor == SOFT_RT
    }

    /// Returns whether the current period is over.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        now > self.started + self.period
    }
}

/// The appearance of a queue that becomes busy.
#[derive(Clone, Copy)]
struct Looks {
    interactive: bool,
    soft_rt: bool,
}

impl Bfq {
    /// Sets the factor of a queue; its weight follows when it is next put on the service tree.
    fn set_factor(&mut self, q: u32, factor: u32) {
        self.queues[q].raising.factor = factor;
        let priority = self.queues[q].priority;
        self.wf.want(q, priority.class, priority.weight() * factor, factor);
    }

    /// Returns whether `q` has been idle for so long that it counts as new.
    pub(super) fn long_idle(&self, q: u32) -> bool {
        let queue = &self.queues[q];
        queue.dispatched == 0 && queue.idle_since.is_none_or(|since| self.now > since + LONG_IDLE)
    }

    fn looks(&self, q: u32) -> Looks {
        let queue = &self.queues[q];
        let ordinary = !queue.in_burst && queue.priority.weight() == 40;
        let soft_rt = ordinary
            && !queue.seeks.is_totally_seeky()
            && queue.dispatched == 0
            && self.now > queue.raising.soft_rt_after;
        Looks { interactive: ordinary && self.long_idle(q), soft_rt }
    }

    /// A queue becomes busy: begins or continues its raising, if it qualifies. Returns whether it looks interactive.
    pub(super) fn raise_on_arrival(&mut self, q: u32) -> bool {
        let looks = self.looks(q);
        let queue = &self.queues[q];
        let just_split = queue.split.is_some_and(|at| self.now <= at + LONG_IDLE);
        if !self.tunables.low_latency || just_split {
            return looks.interactive;
        }
        let alone = queue.sync && (!queue.shared || queue.stable);
        if queue.raising.is_raised() {
            self.go_on(q, looks);
        } else if alone && (looks.interactive || looks.soft_rt) {
            self.begin(q, looks.interactive);
        }
        looks.interactive
    }

    fn begin(&mut self, q: u32, interactive: bool) {
        let preference = self.device.rate.preference();
        let raising = &mut self.queues[q].raising;
        raising.served = 0;
        raising.interrupted = None;
        raising.period = if interactive { preference } else { SOFT_RT_PERIOD };
        self.set_factor(q, if interactive { INTERACTIVE } else { SOFT_RT });
        // It is preferred, but not for long at a time; nor if another request comes before its turn does.
        let short = 2 * (self.device.max_budget(&self.tunables) / 32);
        self.wf.set_budget(q, self.wf.budget(q).min(short));
        let longest = &mut self.queues[q].max_budget;
        *longest = short.min(*longest);
    }

    fn go_on(&mut self, q: u32, looks: Looks) {
        let (now, preference) = (self.now, self.device.rate.preference());
        let queue = &mut self.queues[q];
        if looks.interactive {
            queue.raising.period = preference;
            self.set_factor(q, INTERACTIVE);
        } else if queue.in_burst {
            self.set_factor(q, ORDINARY);
        } else if looks.soft_rt {
            let raising = &mut queue.raising;
            if !raising.is_soft_rt() {
                raising.interrupted = Some(raising.started);
                raising.period = SOFT_RT_PERIOD;
            }
            raising.started = now;
            self.set_factor(q, SOFT_RT);
        }
    }

    /// Raises async I/O after a pause: it is as likely to be waited for as any other.
    #[inline]
    pub(super) fn raise_rare_async(&mut self, q: u32) {
        let queue = &self.queues[q];
        if queue.sync {
            return;
        }
        let rare = self.now > queue.raising.started + ASYNC_PAUSE;
        if self.tunables.low_latency && !queue.raising.is_raised() && rare {
            self.queues[q].raising.period = self.device.rate.preference();
            self.set_factor(q, INTERACTIVE);
            self.recount(q);
        }
    }

    /// A raised queue has been served: decides whether the raising ends.
    pub(super) fn review_raising(&mut self, q: u32) {
        let now = self.now;
        let queue = &self.queues[q];
        let raising = queue.raising;
        if !raising.is_raised() {
            return;
        }
        let jumps = raising.is_soft_rt() && queue.seeks.is_totally_seeky();
        if queue.in_burst {
            self.end_raising(q);
        } else if raising.is_over(now) || jumps {
            match raising.interrupted {
                Some(since)
                    if raising.is_soft_rt() && now <= since + self.device.rate.preference() =>
                {
                    let preference = self.device.rate.preference();
                    let raising = &mut self.queues[q].raising;
                    (raising.started, raising.period) = (since, preference);
                    self.set_factor(q, INTERACTIVE);
                }
                _ => self.end_raising(q),
            }
        }
        let raising = &self.queues[q].raising;
        if raising.factor == INTERACTIVE && raising.served > MOST_SERVICE {
            self.end_raising(q);
        }
        // A queue in service would otherwise keep the weight for the rest of its slot.
        if self.wf.weight(q) > self.queues[q].priority.weight()
            && !self.queues[q].raising.is_raised()
        {
            self.wf.reweigh(q);
            self.recount(q);
        }
    }

    /// Ends the raising of a queue; its weight follows when it is next put on the service tree.
    pub(super) fn end_raising(&mut self, q: u32) {
        self.queues[q].raising.started = self.now;
        self.queues[q].raising.period = Nanos::ZERO;
        self.set_factor(q, ORDINARY);
        self.recount(q);
    }

    /// `low_latency` is off: ends the raising of all queues.
    pub(super) fn end_all_raising(&mut self) {
        for q in 0..self.queues.capacity() {
            if self.queues[q].live && self.queues[q].raising.is_raised() {
                self.end_raising(q);
            }
        }
    }

    /// Computes the time after which the next request of an empty queue makes it soft real-time: not before the time
    /// that the highest moderate rate allows, and later than a greedy process would send it.
    pub(super) fn expect_soft_rt(&mut self, q: u32) {
        let queue = &mut self.queues[q];
        let at_rate = Nanos(queue.served.saturating_mul(1_000_000_000) / SOFT_RT_RATE);
        let greedy = self.now + Nanos(self.tunables.slice_idle.0.saturating_add(SOFT_RT_SLACK.0));
        let after = (queue.backlogged + at_rate).max(greedy);
        queue.raising.soft_rt_after = queue.raising.soft_rt_after.max(after);
        queue.raising.soft_rt_due = false;
    }

    /// A soft real-time queue gets its turn: the time for which it waited does not count towards its period.
    pub(super) fn forgive_waiting(&mut self, q: u32) {
        let now = self.now;
        let queue = &mut self.queues[q];
        if queue.raising.is_soft_rt() {
            let since = queue.waiting_since.max(queue.raising.started);
            queue.raising.started += now.since(since);
        }
    }

    /// The wanted weight or class of a queue has changed.
    pub(super) fn want(&mut self, q: u32) {
        let factor = self.queues[q].raising.factor;
        self.set_factor(q, factor);
    }

    /// Returns whether `q` is served only when no other queue is busy.
    #[inline]
    pub(super) fn is_idle_class(&self, q: u32) -> bool {
        self.wf.class(q) == Class::Idle
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{at, with_a_queue};
    use super::*;

    /// The last nanosecond at which `holds` is so, from `from` on; it is not so a second later.
    fn lasts(from: Instant, span: Nanos, holds: impl Fn(Instant) -> bool) {
        let end = from + span;
        assert!(holds(end), "at the end of {span:?}");
        assert!(!holds(end + Nanos(1)), "after {span:?}");
    }

    #[test]
    fn a_queue_is_new_again_later_than_two_seconds_after_its_last_io() {
        let (mut bfq, q) = with_a_queue("");
        assert!(bfq.long_idle(q), "it has had none");
        bfq.queues[q].idle_since = Some(at(5));
        lasts(at(5), LONG_IDLE, |now| {
            let (mut bfq, q) = with_a_queue("");
            bfq.queues[q].idle_since = Some(at(5));
            bfq.now = now;
            !bfq.long_idle(q)
        });
        bfq.now = at(5) + LONG_IDLE + LONG_IDLE;
        bfq.queues[q].dispatched = 1;
        assert!(!bfq.long_idle(q), "it has one in the device");
    }

    #[test]
    fn a_queue_that_was_split_off_is_not_raised_for_two_seconds() {
        lasts(at(7), LONG_IDLE, |now| {
            let (mut bfq, q) = with_a_queue("");
            bfq.queues[q].split = Some(at(7));
            bfq.now = now;
            assert!(bfq.raise_on_arrival(q), "it looks interactive");
            !bfq.queues[q].raising.is_raised()
        });
    }

    #[test]
    fn an_interrupted_interactive_period_is_taken_up_until_its_end() {
        let period = with_a_queue("").0.device.rate.preference();
        lasts(at(3), period, |now| {
            let (mut bfq, q) = with_a_queue("");
            bfq.set_factor(q, SOFT_RT);
            let raising = &mut bfq.queues[q].raising;
            (raising.started, raising.interrupted) = (at(0), Some(at(3)));
            raising.period = SOFT_RT_PERIOD;
            bfq.now = now;
            bfq.review_raising(q);
            let raising = bfq.queues[q].raising;
            assert!(matches!(raising.factor, INTERACTIVE | ORDINARY), "{raising:?}");
            raising.factor == INTERACTIVE && (raising.started, raising.period) == (at(3), period)
        });
    }

    #[test]
    fn an_application_that_starts_reads_no_more_than_120000_sectors() {
        let raised = |served| {
            let (mut bfq, q) = with_a_queue("");
            assert!(bfq.raise_on_arrival(q));
            bfq.queues[q].raising.served = served;
            bfq.review_raising(q);
            bfq.queues[q].raising.is_raised()
        };
        assert_eq!((raised(120_000), raised(120_001)), (true, false));
    }

    /// An async queue may be raised half a second after its last raising ended, and that is no matter of others.
    #[test]
    fn without_low_latency_only_what_was_raised_has_its_raising_ended() {
        let (mut bfq, q) = with_a_queue("");
        bfq.now = at(9);
        bfq.end_all_raising();
        assert_eq!(bfq.queues[q].raising, Raising::new(at(0)));
        bfq.set_factor(q, INTERACTIVE);
        bfq.end_all_raising();
        let ended = Raising { started: at(9), ..Raising::new(at(0)) };
        assert_eq!(bfq.queues[q].raising, ended);
        // A queue that is gone has nothing to end.
        bfq.set_factor(q, INTERACTIVE);
        bfq.queues.remove(q);
        bfq.end_all_raising();
        assert_eq!(bfq.queues[q].raising.factor, INTERACTIVE);
    }
}
