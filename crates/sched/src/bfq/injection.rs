//! Injection: I/O of other queues while the device is kept idle for a queue (`spec/bfq.md` section 12).
//!
//! Idling keeps a guarantee and costs throughput. Part of it is recovered by serving I/O of the process that is
//! waited for, of its waker, and of any other queue up to a limit. The limit is learned for each queue, from how much
//! longer its first request takes when other requests are in the device.

use super::{Bfq, NOBODY, habits};
use blkmq_core::{Instant, Nanos, RequestId};

/// No samples are taken this soon after the last decrease.
const SAMPLE: Nanos = Nanos::from_millis(10);
/// A limit that has not been lowered for this long may be reset when the think time changes its kind.
const GUARD: Nanos = Nanos::from_millis(100);
/// A limit is reset this long after it was last lowered or reset.
const RESET: Nanos = Nanos::from_secs(1);
/// The number of busy queues that are examined for a request to inject.
const LOOK_AT: usize = 16;

/// The state learned for a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Injection {
    /// A request is injected only while fewer than this many are in the device.
    pub(super) limit: u32,
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
        // A process with a long think time hardly notices one more request; with a short one, nothing is known yet.
        self.limit = u32::from(!short_think);
    }

    fn lowered_before(&self, now: Instant, span: Nanos) -> bool {
        self.lowered.is_none_or(|at| now >= at + span)
    }

    /// Learns from a sample of the first request, taken with or without injected requests in the device.
    fn learn(&mut self, now: Instant, sample: &Sample) {
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
struct Sample {
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
    injected: bool,
}

impl Sampling {
    pub(super) const fn new() -> Self {
        Self { armed: false, since: Instant::ZERO, watched: None, injected: false }
    }

    /// The slot ends. A request that is in the device by then is still watched: with other groups, the queue that was
    /// let in ends the slot by its next request, and the sample is about that queue.
    pub(super) fn slot_ended(&mut self) {
        self.armed = false;
    }
}

impl Bfq {
    /// An empty sync queue has got a request: decides whether to measure its service.
    pub(super) fn sample_arrival(&mut self, q: u32) {
        let now = self.now;
        let queue = &mut self.queues[q];
        if queue.injection.lowered_before(now, RESET) {
            let short = queue.short_think;
            queue.injection.reset(now, short);
        }
        let known = queue.injection.baseline > Nanos::ZERO;
        let meaningful = self.device.in_driver == 0 || (known && self.sampling.injected);
        let another = self.sampling.watched.is_some();
        let settled = queue.injection.lowered_before(now, SAMPLE);
        if q == self.slot.queue && meaningful && settled && !another {
            // Requests injected before it arrived count as long as they are in the device, because they delay it.
            let injected = self.sampling.injected && self.device.in_driver > 0;
            self.sampling = Sampling { armed: true, since: now, watched: None, injected };
        }
    }

    /// The think time of a queue has become short or long.
    pub(super) fn think_time_changed(&mut self, q: u32) {
        let now = self.now;
        let queue = &mut self.queues[q];
        let guarded = !queue.injection.lowered_before(now, GUARD) && queue.short_think;
        if queue.injection.baseline == Nanos::ZERO && !guarded {
            let short = queue.short_think;
            queue.injection.reset(now, short);
        }
    }

    /// The queue in service dispatches `rq`.
    pub(super) fn sample_dispatch(&mut self, rq: RequestId) {
        if self.sampling.armed {
            self.sampling.armed = false;
            self.sampling.watched = Some(rq);
        }
    }

    /// `rq` of queue `q` has completed; it is still counted as in the device.
    pub(super) fn sample_completion(&mut self, q: u32, rq: RequestId, completed: Instant) {
        if self.sampling.watched != Some(rq) {
            return;
        }
        let sample = Sample {
            total: completed.since(self.sampling.since),
            injected: self.sampling.injected,
            alone: self.device.in_driver == 1,
            most: self.device.hw_tag.most,
        };
        self.queues[q].injection.learn(completed, &sample);
        self.sampling.watched = None;
        self.sampling.injected = false;
    }

    /// The queue to inject from, while the device is kept idle for the queue in service.
    pub(super) fn inject(&mut self) -> Option<u32> {
        if !self.tunables.injection {
            return None;
        }
        let q = self.slot.queue;
        self.own_async(q)
            .or_else(|| self.waker_of(q))
            .or_else(|| self.woken_by(q))
            .or_else(|| if self.idling_boosts(q) { None } else { self.anybody_for(q) })
    }

    /// Returns whether `q` has a request that fits its budget.
    fn can_be_injected(&self, q: u32) -> bool {
        let Some(next) = self.queues[q].next else { return false };
        q != self.slot.queue && self.charge_of(q, next) <= self.budget_left(q)
    }

    /// The async queue of the process that is waited for, if the next request there is from that process.
    fn own_async(&self, q: u32) -> Option<u32> {
        let proc = self.sender_of(q)?;
        let shared = self.procs.find(self.async_key(proc))?;
        let queue = self.procs.at(shared).queue?;
        let next = self.queues[queue].next?;
        let own = self.held[next].owner == self.procs.at(proc).key;
        (own && self.can_be_injected(queue)).then_some(queue)
    }

    fn waker_of(&self, q: u32) -> Option<u32> {
        let waker = self.queues.follow(self.queues[q].waker.queue?)?;
        (self.queues[waker].busy && self.can_be_injected(waker)).then_some(waker)
    }

    fn woken_by(&self, q: u32) -> Option<u32> {
        let woken = self.queues.follow(self.queues[q].waker.woken?)?;
        let still = self.queues[woken].waker.queue == Some(self.queues.link(q));
        (still && self.queues[woken].busy && self.can_be_injected(woken)).then_some(woken)
    }

    /// The first queue that fits, of those that have been busy for longest.
    fn anybody_for(&mut self, q: u32) -> Option<u32> {
        let queue = &self.queues[q];
        let always = !queue.raising.is_raised() || !queue.short_think;
        let waited =
            self.slot.idle.is_some() && self.now >= self.slot.idle_began + self.tunables.slice_idle;
        let Injection { limit, baseline, .. } = queue.injection;
        let limit = if limit == 0 && baseline == Nanos::ZERO && waited { 1 } else { limit };
        if self.device.in_driver >= limit {
            return None;
        }
        let fits = |other: &u32| {
            let raised = self.queues[*other].raising.is_raised();
            (always || raised) && self.can_be_injected(*other) && !self.too_large(*other)
        };
        let found = self.queues.busy().take(LOOK_AT).find(fits)?;
        self.sampling.injected = true;
        Some(found)
    }

    /// On a device without moving parts, one large request at a time is enough delay.
    fn too_large(&self, q: u32) -> bool {
        let next = self.queues[q].next.expect("it was found to have one");
        !self.device.rotational
            && self.device.in_driver >= 1
            && self.held[next].sectors >= habits::LARGE
    }

    /// The process of a queue, if there is only one.
    fn sender_of(&self, q: u32) -> Option<u32> {
        debug_assert!(q != NOBODY);
        match self.queues[q].senders {
            super::Senders::One(proc) if self.queues[q].procs == 1 => Some(proc),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
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

    /// A limit that is learned anew while a measured request is in the device has no baseline when the request ends.
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
    fn a_woken_queue_is_let_in_while_it_has_io_and_no_other_waker() {
        let let_in = |still: bool, busy: bool| {
            let (mut bfq, q) = with_a_queue("");
            let (woken, other) = (add_queue(&mut bfq), add_queue(&mut bfq));
            bfq.slot.queue = q;
            bfq.queues[q].waker.woken = Some(bfq.queues.link(woken));
            let waker = if still { q } else { other };
            bfq.queues[woken].waker.queue = Some(bfq.queues.link(waker));
            bfq.queues[woken].next = Some(RequestId::new(0, 0));
            bfq.queues[woken].busy = busy;
            bfq.wf.set_budget(woken, 8);
            bfq.woken_by(q) == Some(woken)
        };
        assert!(let_in(true, true));
        assert!(!let_in(false, true), "it has found another one");
        assert!(!let_in(true, false));
    }

    #[test]
    fn a_process_that_thinks_long_begins_with_one() {
        let mut injection = Injection::new(Instant::ZERO);
        injection.reset(Instant::ZERO, false);
        assert_eq!(injection.limit, 1);
    }
}
