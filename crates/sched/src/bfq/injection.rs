//! Injection (`spec/bfq.md` section 12): I/O of other queues while the device is kept idle for a queue. Also wakers: a
//! process may wait for the I/O of another process before it continues.
//!
//! Idling keeps a guarantee and costs throughput. Part of the throughput is recovered by I/O of the process that is
//! waited for, of its waker, and of any other queue up to a limit. The limit is learned for each queue, from the
//! additional time that its first request takes when other requests are in the device.
//!
//! A queue is woken by another one if it has a long think time and becomes non-empty right after a completion of that
//! queue, three times in a row. While the device is kept idle for it, requests of the waker it waits for are injected.

use super::QueueRef;
use super::device::Device;
use blkmq_core::{Instant, Nanos, RequestId};

/// No samples are taken this soon after the last decrease.
const SAMPLE: Nanos = Nanos::from_millis(10);
/// A limit that has not been lowered for this long may be reset when the think time changes its kind.
const GUARD: Nanos = Nanos::from_millis(100);
/// A limit is reset this long after it was last lowered or reset.
const RESET: Nanos = Nanos::from_secs(1);

/// The state learned for a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Injection {
    /// Requests are injected while fewer than this many are in the device.
    limit: u32,
    /// The time that its first request takes when alone; zero if not known.
    baseline: Nanos,
    /// The time at which the limit was last lowered or reset.
    lowered: Option<Instant>,
}

impl Injection {
    pub(super) const fn new(_now: Instant) -> Self {
        Self { limit: 0, baseline: Nanos::ZERO, lowered: None }
    }

    fn reset(&mut self, now: Instant, short_think: bool) {
        self.baseline = Nanos::ZERO;
        self.lowered = Some(now);
        // One more request hardly delays a process with a long think time. For a short one, the cost is unknown.
        self.limit = u32::from(!short_think);
    }

    /// The think time of the queue has become short or long.
    pub(super) fn think_time_changed(&mut self, short_think: bool, now: Instant) {
        let guarded = !self.lowered_before(now, GUARD) && short_think;
        if self.baseline == Nanos::ZERO && !guarded {
            self.reset(now, short_think);
        }
    }

    /// The number of requests in the device below which others are injected. With `waited`, the device has been kept
    /// idle for as long as it usually is.
    pub(super) fn limit_after(&self, waited: bool) -> u32 {
        if self.limit == 0 && self.baseline == Nanos::ZERO && waited { 1 } else { self.limit }
    }

    fn lowered_before(&self, now: Instant, span: Nanos) -> bool {
        self.lowered.is_none_or(|at| now >= at + span)
    }

    /// Resets the limit from time to time, when an empty sync queue has got a request.
    pub(super) fn renew(&mut self, short_think: bool, now: Instant) {
        if self.lowered_before(now, RESET) {
            self.reset(now, short_think);
        }
    }

    /// Learns from a sample of the first request, taken with or without injected requests in the device.
    pub(super) fn learn(&mut self, now: Instant, sample: &Sample) {
        let old = self.limit;
        if self.baseline > Nanos::ZERO && sample.injected {
            let too_long = self.baseline.0 * 3 / 2;
            if sample.total.0 >= too_long && old > 0 {
                self.limit = old - 1;
                self.lowered = Some(now);
            } else if sample.total.0 < too_long && old <= sample.most {
                self.limit = old + 1;
            }
        }
        let unknown = self.baseline == Nanos::ZERO;
        if (unknown && sample.alone) || sample.total < self.baseline {
            if unknown {
                self.limit = old.max(1);
            }
            self.baseline = sample.total;
        } else if !sample.injected && sample.alone {
            self.baseline = sample.total;
        }
    }
}

/// The time that the first request took, and the load at that time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    total: Nanos,
    injected: bool,
    /// No other request is in the device.
    alone: bool,
    /// The most requests seen in the device.
    most: u32,
}

/// The sample in progress.
#[derive(Debug)]
pub(super) struct Sampling {
    /// The next request of the queue in service is to be watched.
    armed: bool,
    since: Instant,
    watched: Option<RequestId>,
    pub(super) injected: bool,
}

impl Sampling {
    pub(super) const fn new() -> Self {
        Self { armed: false, since: Instant::ZERO, watched: None, injected: false }
    }

    /// Ends the slot. A request in the device is still watched: if groups compete, the next request of the injected
    /// queue ends the slot, and the sample is about that queue.
    pub(super) fn slot_ended(&mut self) {
        self.armed = false;
    }

    /// Decides whether to measure the service of the first request of the queue in service, which was empty.
    pub(super) fn arm(&mut self, injection: &Injection, in_driver: u32, now: Instant) {
        let known = injection.baseline > Nanos::ZERO;
        let meaningful = in_driver == 0 || (known && self.injected);
        if meaningful && injection.lowered_before(now, SAMPLE) && self.watched.is_none() {
            // Requests injected before it arrived count as long as they are in the device, because they delay it.
            let injected = self.injected && in_driver > 0;
            *self = Self { armed: true, since: now, watched: None, injected };
        }
    }

    /// Watches `rq`, which the queue in service dispatches, if armed.
    #[inline]
    pub(super) fn dispatched(&mut self, rq: RequestId) {
        if self.armed {
            self.armed = false;
            self.watched = Some(rq);
        }
    }

    /// Returns the sample if `rq` is watched. It has completed, and still counts as in the device.
    #[inline]
    pub(super) fn take(&mut self, rq: RequestId, at: Instant, device: &Device) -> Option<Sample> {
        self.watched.take_if(|watched| *watched == rq)?;
        let (total, most) = (at.since(self.since), device.hw_tag.most);
        let injected = core::mem::take(&mut self.injected);
        Some(Sample { total, injected, alone: device.in_driver == 1, most })
    }
}

/// A request that arrives sooner than this after a completion may be caused by it.
pub(super) const SOON: Nanos = Nanos::from_millis(4);
/// The number of times in a row after which a suspect is the waker.
const OFTEN: u32 = 3;
/// The time for these, in multiples of `slice_idle`.
const WINDOW: u64 = 128;

/// The waker of a queue, and the queue that it wakes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waker {
    pub(super) queue: Option<QueueRef>,
    suspect: Option<QueueRef>,
    seen: u32,
    since: Instant,
    /// The queue that it was last found to wake.
    pub(super) woken: Option<QueueRef>,
}

impl Waker {
    pub(super) const fn new(now: Instant) -> Self {
        Self { queue: None, suspect: None, seen: 0, since: now, woken: None }
    }

    /// Counts that the queue became non-empty right after a completion of `suspect`. Returns whether that is its waker.
    pub(super) fn suspect(&mut self, suspect: QueueRef, now: Instant, slice_idle: Nanos) -> bool {
        let window = Nanos(slice_idle.0.saturating_mul(WINDOW));
        if self.suspect != Some(suspect) || now > self.since + window {
            (self.suspect, self.seen, self.since) = (Some(suspect), 1, now);
        } else {
            self.seen += 1;
        }
        if self.seen < OFTEN {
            return false;
        }
        (self.queue, self.suspect) = (Some(suspect), None);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::queues::Queues;
    use super::super::tests::{add_queue, with_a_queue};
    use super::*;

    const ALONE: Sample = Sample { total: Nanos(1_000), injected: false, alone: true, most: 4 };

    #[test]
    fn the_limit_is_learned_from_what_injection_costs() {
        let now = Instant::ZERO;
        let mut injection = Injection::new(now);
        injection.reset(now, true);
        assert_eq!(injection.limit, 0);
        injection.learn(now, &ALONE);
        assert_eq!((injection.limit, injection.baseline), (1, Nanos(1_000)));
        let crowded = Sample { injected: true, alone: false, ..ALONE };
        for total in [1_400, 1_499] {
            injection.learn(now, &Sample { total: Nanos(total), ..crowded });
        }
        assert_eq!(injection.limit, 3, "less than half as long again");
        injection.learn(now, &Sample { total: Nanos(1_500), ..crowded });
        assert_eq!(injection.limit, 2);
        assert!(!injection.lowered_before(now, SAMPLE));
        (0..9).for_each(|_| injection.learn(now, &Sample { most: 4, ..crowded }));
        assert_eq!(injection.limit, 5, "one more than there have ever been");
        for limit in [4, 3, 2, 1, 0, 0, 0] {
            injection.learn(now, &Sample { total: Nanos(1_500), ..crowded });
            assert_eq!(injection.limit, limit);
        }
        injection.learn(now, &Sample { total: Nanos(2_000), alone: true, ..crowded });
        assert_eq!(injection.baseline, Nanos(1_000), "it had company at first");
        injection.learn(now, &Sample { total: Nanos(2_000), ..ALONE });
        assert_eq!(injection.baseline, Nanos(2_000), "the device has become slower");
    }

    /// A reset of the limit while a measured request is in the device leaves no baseline at the end of the request.
    #[test]
    fn a_time_among_others_says_nothing_without_a_time_alone() {
        let now = Instant::ZERO;
        let mut injection = Injection::new(now);
        injection.reset(now, false);
        let before = injection;
        injection.learn(now, &Sample { injected: true, alone: false, ..ALONE });
        assert_eq!(injection, before);
        let nothing = Sample { total: Nanos::ZERO, alone: false, ..ALONE };
        injection.reset(now, true);
        injection.learn(now, &nothing);
        assert_eq!(
            (injection.limit, injection.baseline),
            (0, Nanos::ZERO),
            "nor a time of nothing"
        );
    }

    #[test]
    fn a_process_that_thinks_long_begins_with_one() {
        let mut injection = Injection::new(Instant::ZERO);
        injection.reset(Instant::ZERO, false);
        assert_eq!(injection.limit, 1);
    }

    #[test]
    fn a_queue_that_thinks_for_long_and_has_no_other_request_may_be_woken() {
        let seen = |short_think, queued, dispatched| {
            let (mut bfq, q) = with_a_queue("");
            let other = add_queue(&mut bfq);
            bfq.device.last_completed = Some(bfq.queues.link(other));
            let queue = &mut bfq.queues[q];
            (queue.short_think, queue.queued, queue.dispatched) = (short_think, queued, dispatched);
            bfq.queues.look_for_waker(q, &bfq.device, bfq.now, bfq.tunables.slice_idle);
            bfq.queues[q].waker.seen
        };
        assert_eq!([seen(false, 0, 0), seen(true, 0, 0)], [1, 0]);
        assert_eq!([seen(false, 1, 0), seen(false, 0, 1)], [0, 0]);
    }

    #[test]
    fn three_times_in_a_row_and_within_the_window() {
        let mut queues = Queues::new(2);
        let links = [0; 2].map(|_| {
            let q = queues.add(Instant::ZERO);
            queues.link(q)
        });
        let slice = Nanos::from_millis(8);
        let at = |ms| Instant::ZERO + Nanos::from_millis(ms);
        let mut waker = Waker::new(Instant::ZERO);
        assert!(!waker.suspect(links[0], at(0), slice));
        assert!(!waker.suspect(links[1], at(10), slice), "another one");
        assert!(!waker.suspect(links[0], at(20), slice));
        assert!(!waker.suspect(links[0], at(30), slice));
        assert!(!waker.suspect(links[0], at(1_045), slice), "too late: it begins anew");
        assert!(!waker.suspect(links[0], at(1_050), slice));
        assert!(waker.suspect(links[0], at(1_060), slice));
        assert_eq!(waker.queue, Some(links[0]));
        let mut waker = Waker::new(Instant::ZERO);
        let found = [0, 500, 1_024].map(|ms| waker.suspect(links[0], at(ms), slice));
        assert_eq!(found, [false, false, true], "at the end of the window");
    }
}
