//! Raised weights: for applications that have just been started, and for I/O at a steady, moderate rate (`spec/bfq.md`
//! section 9); and bursts of new queues, which are not raised (section 13).
//!
//! Only with `low_latency`. A queue is judged when it becomes busy. The duration is decided while it is served.
//!
//! A build or a boot is not an application that a user waits for. Eight queues of a group, each created within 180 ms
//! of the one before it, are a large burst, and are not raised.

use super::QueueRef;
use super::device::PeakRate;
use blkmq_core::{Instant, Nanos};

/// Not raised.
pub(crate) const ORDINARY: u32 = 1;
/// Interactive.
pub(crate) const INTERACTIVE: u32 = 30;
/// Soft real-time.
pub(crate) const SOFT_RT: u32 = 30 * 100;
/// The duration of one soft real-time period.
const SOFT_RT_PERIOD: Nanos = Nanos::from_millis(300);
/// A queue that was idle for longer counts as new.
pub(crate) const LONG_IDLE: Nanos = Nanos::from_secs(2);
/// Async I/O after a pause of this length is raised.
const ASYNC_PAUSE: Nanos = Nanos::from_millis(500);
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
    interrupted: Option<Instant>,
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

    /// Returns whether serving `sectors` more changes nothing about the raising.
    pub(crate) fn outlasts(&self, sectors: u64, in_burst: bool, now: Instant) -> bool {
        !self.is_raised()
            || (self.factor == INTERACTIVE
                && !in_burst
                && !self.is_over(now)
                && self.served + sectors <= MOST_SERVICE)
    }

    /// Raises a queue that becomes busy and looks `interactive`, or otherwise soft real-time.
    pub(crate) fn begin(&mut self, interactive: bool, rate: &PeakRate) {
        self.served = 0;
        self.interrupted = None;
        (self.factor, self.period) =
            if interactive { (INTERACTIVE, rate.preference()) } else { (SOFT_RT, SOFT_RT_PERIOD) };
    }

    /// Continues the raising of a queue that becomes busy again.
    pub(crate) fn go_on(&mut self, looks: Looks, in_burst: bool, now: Instant, rate: &PeakRate) {
        if looks.interactive {
            (self.factor, self.period) = (INTERACTIVE, rate.preference());
        } else if in_burst {
            self.factor = ORDINARY;
        } else if looks.soft_rt {
            if !self.is_soft_rt() {
                self.interrupted = Some(self.started);
                self.period = SOFT_RT_PERIOD;
            }
            self.started = now;
            self.factor = SOFT_RT;
        }
    }

    /// Raises a queue after a pause. Returns whether there was one.
    pub(crate) fn begin_if_rare(&mut self, now: Instant, rate: &PeakRate) -> bool {
        let rare = !self.is_raised() && now > self.started + ASYNC_PAUSE;
        if rare {
            (self.factor, self.period) = (INTERACTIVE, rate.preference());
        }
        rare
    }

    /// Decides, after service, whether the raising of a queue ends. With `jumps`, all of its requests were far from
    /// each other. Returns whether the factor has changed.
    pub(crate) fn review(
        &mut self,
        in_burst: bool,
        jumps: bool,
        now: Instant,
        rate: &PeakRate,
    ) -> bool {
        let old = self.factor;
        if in_burst {
            self.end(now);
        } else if self.is_over(now) || (self.is_soft_rt() && jumps) {
            match self.interrupted {
                Some(since) if self.is_soft_rt() && now <= since + rate.preference() => {
                    (self.started, self.period) = (since, rate.preference());
                    self.factor = INTERACTIVE;
                }
                _ => self.end(now),
            }
        }
        if self.factor == INTERACTIVE && self.served > MOST_SERVICE {
            self.end(now);
        }
        self.factor != old
    }

    pub(crate) fn end(&mut self, now: Instant) {
        (self.factor, self.started, self.period) = (ORDINARY, now, Nanos::ZERO);
    }

    /// Takes the time for which a soft real-time queue waited for its turn out of its period.
    pub(crate) fn forgive_waiting(&mut self, waiting_since: Instant, now: Instant) {
        if self.is_soft_rt() {
            self.started += now.since(waiting_since.max(self.started));
        }
    }
}

/// The appearance of a queue that becomes busy.
#[derive(Clone, Copy)]
pub(crate) struct Looks {
    pub(crate) interactive: bool,
    pub(crate) soft_rt: bool,
}

/// The number of queues in a large burst.
const LARGE: usize = 8;
/// Queues created further apart do not belong to one burst.
const APART: Nanos = Nanos::from_millis(180);
/// A queue that was idle for this long does not belong to a burst.
pub(super) const FORGIVEN: Nanos = Nanos::from_secs(10);

/// Queues of a burst.
type Members = [Option<QueueRef>; LARGE];

/// The burst in progress.
#[derive(Debug)]
pub(super) struct Burst {
    /// Its queues, until it is large and each of them is marked.
    members: Members,
    size: usize,
    large: bool,
    last: Instant,
    level: u32,
}

impl Burst {
    pub(super) const fn new() -> Self {
        Self { members: [None; LARGE], size: 0, large: false, last: Instant::ZERO, level: 0 }
    }

    /// Begins a new burst, with `first` if it counts.
    fn restart(&mut self, level: u32, first: Option<QueueRef>) {
        self.members = [first, None, None, None, None, None, None, None];
        self.size = usize::from(first.is_some());
        (self.large, self.level) = (false, level);
    }

    /// Removes `gone`, which is being freed.
    pub(super) fn leave(&mut self, gone: QueueRef) {
        for at in 0..self.size {
            if self.members[at] == Some(gone) {
                self.size -= 1;
                self.members[at] = self.members[self.size].take();
                return;
            }
        }
    }

    /// Adds a new queue on `level`. With `alone`, no queue is busy. Returns the queues found to be in a large burst.
    pub(super) fn join(&mut self, new: QueueRef, level: u32, alone: bool, now: Instant) -> Members {
        let mut marked = [None; LARGE];
        if self.size == 0 && !self.large && !alone {
            return marked;
        }
        let apart = now > self.last + APART;
        self.last = now;
        if apart || level != self.level {
            self.restart(level, alone.then_some(new));
        } else if self.large {
            marked[0] = Some(new);
        } else {
            self.members[self.size] = Some(new);
            self.size += 1;
            if self.size == LARGE {
                (self.large, self.size) = (true, 0);
                marked = core::mem::take(&mut self.members);
            }
        }
        marked
    }
}

#[cfg(test)]
mod tests {
    use super::super::queues::Queues;
    use super::super::tests::{at, with_a_queue};
    use super::*;

    /// Asserts that `holds` is true at `span` after `from`, and false a nanosecond later.
    fn lasts(from: Instant, span: Nanos, holds: impl Fn(Instant) -> bool) {
        let end = from + span;
        assert!(holds(end), "at the end of {span:?}");
        assert!(!holds(end + Nanos(1)), "after {span:?}");
    }

    #[test]
    fn a_queue_is_new_again_later_than_two_seconds_after_its_last_io() {
        let (mut bfq, q) = with_a_queue("");
        assert!(bfq.queues[q].long_idle(bfq.now), "it has had none");
        bfq.queues[q].idle_since = Some(at(5));
        lasts(at(5), LONG_IDLE, |now| {
            let (mut bfq, q) = with_a_queue("");
            bfq.queues[q].idle_since = Some(at(5));
            bfq.now = now;
            !bfq.queues[q].long_idle(bfq.now)
        });
        bfq.now = at(5) + LONG_IDLE + LONG_IDLE;
        bfq.queues[q].dispatched = 1;
        assert!(!bfq.queues[q].long_idle(bfq.now), "it has one in the device");
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
            bfq.queues[q].raising.factor = SOFT_RT;
            let raising = &mut bfq.queues[q].raising;
            (raising.started, raising.interrupted) = (at(0), Some(at(3)));
            raising.period = SOFT_RT_PERIOD;
            bfq.now = now;
            bfq.queues.review_raising(q, bfq.now, &bfq.device.rate);
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
            bfq.queues.review_raising(q, bfq.now, &bfq.device.rate);
            bfq.queues[q].raising.is_raised()
        };
        assert_eq!((raised(120_000), raised(120_001)), (true, false));
    }

    /// An async queue may be raised half a second after its last raising ended, whatever other queues do.
    #[test]
    fn without_low_latency_only_what_was_raised_has_its_raising_ended() {
        let (mut bfq, q) = with_a_queue("");
        bfq.now = at(9);
        bfq.queues.end_all_raising(bfq.now);
        assert_eq!(bfq.queues[q].raising, Raising::new(at(0)));
        bfq.queues[q].raising.factor = INTERACTIVE;
        bfq.queues.end_all_raising(bfq.now);
        let ended = Raising { started: at(9), ..Raising::new(at(0)) };
        assert_eq!(bfq.queues[q].raising, ended);
        // A freed queue is left alone.
        bfq.queues[q].raising.factor = INTERACTIVE;
        bfq.queues.remove(q);
        bfq.queues.end_all_raising(bfq.now);
        assert_eq!(bfq.queues[q].raising.factor, INTERACTIVE);
    }

    #[test]
    fn a_queue_that_is_freed_lowers_the_count() {
        let mut queues = Queues::new(4);
        let links = [0; 4].map(|_| {
            let q = queues.add(Instant::ZERO);
            queues.link(q)
        });
        let mut burst = Burst::new();
        burst.restart(0, Some(links[0]));
        burst.members[1] = Some(links[1]);
        burst.size = 2;
        burst.leave(links[0]);
        assert_eq!((burst.size, burst.members[0]), (1, Some(links[1])));
        burst.leave(links[3]);
        assert_eq!(burst.size, 1, "it was no member");
    }
}
