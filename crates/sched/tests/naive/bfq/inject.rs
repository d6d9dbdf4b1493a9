//! Injection and wakers in the twin: section 12.

use super::{Sender, Twin};
use blkmq_core::{Instant, Nanos, RequestId};
use blkmq_sched::bfq::values::Priority;

const fn ms(n: u64) -> Nanos {
    Nanos::from_millis(n)
}

/// The findings of a queue about requests of others in the device.
#[derive(Clone, Copy)]
pub(super) struct Injection {
    limit: u32,
    /// The time of its first request with nothing else in the device.
    baseline: Option<Nanos>,
    /// The time of the last reset or decrease.
    lowered: Option<Instant>,
}

impl Injection {
    pub(super) const NEW: Self = Self { limit: 0, baseline: None, lowered: None };

    fn reset(now: Instant, short_think: bool) -> Self {
        let limit = if short_think { 0 } else { 1 };
        Self { limit, baseline: None, lowered: Some(now) }
    }

    /// Was it lowered or reset less than `span` ago?
    fn lowered_within(&self, span: Nanos, now: Instant) -> bool {
        self.lowered.is_some_and(|at| now < at + span)
    }
}

/// A queue and the one that wakes it, by the numbers of their births.
#[derive(Clone, Copy)]
pub(super) struct Waker {
    queue: Option<u64>,
    suspect: Option<u64>,
    seen: u32,
    since: Instant,
    woken: Option<u64>,
}

impl Waker {
    pub(super) const fn new(now: Instant) -> Self {
        Self { queue: None, suspect: None, seen: 0, since: now, woken: None }
    }
}

/// The measurement of the first request of the queue in service.
#[derive(Clone, Copy)]
pub(super) struct Sampling {
    /// The next request that is dispatched is watched.
    pub(super) armed: bool,
    since: Instant,
    pub(super) watched: Option<RequestId>,
    injected: bool,
}

impl Sampling {
    pub(super) const NONE: Self =
        Self { armed: false, since: Instant::ZERO, watched: None, injected: false };
}

/// Learning.
impl Twin {
    /// The queue with this number, if it still exists.
    pub(super) fn born(&self, number: u64) -> Option<usize> {
        self.existing().find(|q| self.q(*q).born == number)
    }

    /// A sync queue gets a request while none waits; before that is counted.
    pub(super) fn look_for_waker(&mut self, queue: usize) {
        let Some(number) = self.last_completed else { return };
        let Some(suspect) = self.born(number) else { return };
        let nothing = self.waiting(queue) == 0 && self.in_flight(queue) == 0;
        let soon = self.now.since(self.last_completion) < ms(4);
        let candidate = suspect != queue && !self.q(suspect).shared;
        let known = self.q(queue).waker.queue == Some(number);
        if self.q(queue).short_think || !nothing || !soon || !candidate || known {
            return;
        }
        let window = Nanos(self.tunables.slice_idle.0.saturating_mul(128));
        let (now, born) = (self.now, self.q(queue).born);
        let waker = &mut self.q_mut(queue).waker;
        let again = waker.suspect == Some(number) && now <= waker.since + window;
        if again {
            waker.seen += 1;
        } else {
            (waker.suspect, waker.seen, waker.since) = (Some(number), 1, now);
        }
        if waker.seen == 3 {
            (waker.queue, waker.suspect) = (Some(number), None);
            self.q_mut(suspect).waker.woken = Some(born);
        }
    }

    /// At the same time: is the request to be measured?
    pub(super) fn sample_arrival(&mut self, queue: usize) {
        let (now, in_driver) = (self.now, self.in_driver());
        let q = self.q_mut(queue);
        if !q.injection.lowered_within(ms(1_000), now) {
            q.injection = Injection::reset(now, q.short_think);
        }
        let known = q.injection.baseline.is_some();
        let settled = !q.injection.lowered_within(ms(10), now);
        let meaningful = in_driver == 0 || (known && self.sampling.injected);
        let free = self.sampling.watched.is_none();
        if self.serving == Some(queue) && meaningful && settled && free {
            self.sampling.armed = true;
            self.sampling.since = now;
            self.sampling.injected &= in_driver > 0;
        }
    }

    /// `short_think` of a queue has changed.
    pub(super) fn think_time_changed(&mut self, queue: usize) {
        let now = self.now;
        let q = self.q_mut(queue);
        let guarded = q.short_think && q.injection.lowered_within(ms(100), now);
        if q.injection.baseline.is_none() && !guarded {
            q.injection = Injection::reset(now, q.short_think);
        }
    }

    /// The queue in service has `rq` dispatched.
    pub(super) fn sample_dispatch(&mut self, rq: RequestId) {
        if self.sampling.armed {
            (self.sampling.armed, self.sampling.watched) = (false, Some(rq));
        }
    }

    /// `rq` is back, and still counted as in the device.
    pub(super) fn sample_completion(&mut self, rq: RequestId, completed: Instant) {
        if self.sampling.watched != Some(rq) {
            return;
        }
        let took = completed.since(self.sampling.since);
        let (injected, alone) = (self.sampling.injected, self.in_driver() == 1);
        let most = self.device_most;
        (self.sampling.watched, self.sampling.injected) = (None, false);
        let queue = self.request(rq).queue;
        let learned = &mut self.q_mut(queue).injection;
        let before = learned.limit;
        if injected && let Some(baseline) = learned.baseline {
            // Half as long again; whole nanoseconds.
            let slow = took.0 >= baseline.0 + baseline.0 / 2;
            if slow && before > 0 {
                learned.limit -= 1;
                learned.lowered = Some(completed);
            } else if !slow && before <= most {
                learned.limit += 1;
            }
        }
        // A time of nothing is no baseline.
        let known = Some(took).filter(|took| took.0 > 0);
        match learned.baseline {
            None if alone => {
                learned.limit = before.max(1);
                learned.baseline = known;
            }
            Some(baseline) if took < baseline || (alone && !injected) => learned.baseline = known,
            _ => {}
        }
    }
}

/// Choice.
impl Twin {
    /// The queue to serve while the device is kept idle for the one in service.
    pub(super) fn inject(&mut self, queue: usize) -> Option<usize> {
        if !self.tunables.injection {
            return None;
        }
        let named = [self.own_async(queue), self.waker_of(queue), self.woken_by(queue)];
        if let Some(other) = named.into_iter().flatten().next() {
            return Some(other);
        }
        let (raised, short) = (self.q(queue).factor > 1, self.q(queue).short_think);
        if self.boosts(queue) || (raised && short && self.raised_busy() <= 1) {
            return None;
        }
        let learned = self.q(queue).injection;
        let waited =
            self.idle_until.is_some() && self.now >= self.idle_began + self.tunables.slice_idle;
        let unknown = learned.limit == 0 && learned.baseline.is_none();
        let limit = if unknown && waited { 1 } else { learned.limit };
        if self.in_driver() >= limit {
            return None;
        }
        let mut busy = self.busy();
        busy.sort_by_key(|q| self.q(*q).busy_number);
        busy.truncate(16);
        let only_raised = raised && short;
        busy.retain(|q| !only_raised || self.q(*q).factor > 1);
        busy.retain(|q| self.fits(*q) && !self.is_second_large(*q));
        let found = busy.first().copied()?;
        self.sampling.injected = true;
        Some(found)
    }

    fn fits(&self, queue: usize) -> bool {
        let Some(next) = self.q(queue).next else { return false };
        self.serving != Some(queue) && self.charge(next) <= self.budget_left(queue)
    }

    fn is_second_large(&self, queue: usize) -> bool {
        let next = self.q(queue).next.expect("it fits");
        !self.rotational && self.in_driver() > 0 && self.request(next).sectors >= 64
    }

    fn own_async(&self, queue: usize) -> Option<usize> {
        let mut its = self.senders.iter().filter(|(_, proc)| proc.queue == Some(queue));
        let (sender, proc) = its.next()?;
        if self.q(queue).shared || its.next().is_some() {
            return None;
        }
        let Sender::Owner(owner) = *sender else { return None };
        let level = proc.group.map_or(blkmq_sched::bfq::wf2q::ROOT, |group| self.level_of(group));
        let other = Sender::Async(level, Priority::of(proc.ioprio).number());
        let other = self.senders.get(&other)?.queue?;
        let next = self.q(other).next?;
        (self.request(next).owner == owner && self.fits(other)).then_some(other)
    }

    fn waker_of(&self, queue: usize) -> Option<usize> {
        let waker = self.born(self.q(queue).waker.queue?)?;
        (self.q(waker).busy && self.fits(waker)).then_some(waker)
    }

    fn woken_by(&self, queue: usize) -> Option<usize> {
        let woken = self.born(self.q(queue).waker.woken?)?;
        let still = self.q(woken).waker.queue == Some(self.q(queue).born);
        (still && self.q(woken).busy && self.fits(woken)).then_some(woken)
    }
}
