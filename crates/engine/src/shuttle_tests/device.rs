//! A device that counts attempts and shows every kind of behaviour at fixed intervals.
//!
//! *Fault model.* Every `n`th attempt it refuses with RESOURCE, or with DEV_RESOURCE, or takes the request and wants it
//! back later, or loses it until it is asked about it; every `n`th it answers within the call. It also refuses with
//! DEV_RESOURCE when it is full. It never answers twice, and keeps the promise of DEV_RESOURCE unless a bug is planted.

use super::durable;
use crate::sync::{Arc, Mutex};
use crate::{BioTable, Busy, DeviceQueue, Enqueued, Expiry, Finished, Inflight, Verdict};
use blkmq_core::{HwQueue, Instant, IoError, Nanos, Tag};
use std::collections::VecDeque;

/// The behaviour of the device. In each field, the last of every `n` attempts that find room is treated in this way; 0
/// for never.
#[derive(Clone, Copy, Debug)]
pub(super) struct Script {
    /// The maximum number of requests inside one hardware queue.
    pub(super) room: usize,
    pub(super) resource: u32,
    pub(super) dev_resource: u32,
    pub(super) requeue: u32,
    pub(super) requeue_tail: u32,
    /// Lost requests are alternately given up when their time is up, or after one reset of their timer.
    pub(super) lose: u32,
    pub(super) inline: u32,
    /// The time that a request stays if it is not answered within the call.
    pub(super) service: Nanos,
    pub(super) says: Says,
}

/// How the device reports its next event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Says {
    /// The device returns the time of the next event.
    When,
    /// The device cannot tell, so it is polled, and has a completion at every second poll.
    Nothing,
    /// Planted: it reports that no event will come, even if it holds requests.
    Never,
}

impl Script {
    /// Answers everything within the call.
    pub(super) const INLINE: Self = Self {
        room: 1,
        resource: 0,
        dev_resource: 0,
        requeue: 0,
        requeue_tail: 0,
        lose: 0,
        inline: 1,
        service: Nanos(0),
        says: Says::When,
    };
    /// Answers everything 10 us later.
    pub(super) const LATER: Self = Self { inline: 0, service: Nanos(10_000), ..Self::INLINE };
}

/// Sectors in the order in which a device took them, with their hardware queue.
pub(super) type Arrivals = Arc<Mutex<Vec<(HwQueue, u64)>>>;

struct Held {
    until: Instant,
    rq: Inflight,
    verdict: Verdict,
}

pub(super) struct TestDevice {
    script: Script,
    attempts: u32,
    looks: u32,
    held: VecDeque<Held>,
    /// Lost requests, each with the number of resets of its timer that are still to come.
    lost: Vec<(Inflight, u32)>,
    /// When the last refused request may be offered again.
    retry_at: Option<Instant>,
    now: Instant,
    arrivals: Option<Arrivals>,
}

/// An empty device has room again this long after a DEV_RESOURCE.
const RETRY: Nanos = Nanos(10_000);

impl TestDevice {
    pub(super) fn new(script: Script, arrivals: Option<Arrivals>) -> Self {
        Self {
            script,
            attempts: 0,
            looks: 0,
            held: VecDeque::new(),
            lost: Vec::new(),
            retry_at: None,
            now: Instant::ZERO,
            arrivals,
        }
    }

    fn at(&mut self, now: Instant) {
        assert!(now >= self.now, "the device saw time run backwards: {now:?} after {:?}", self.now);
        self.now = now;
    }

    /// Returns whether a request inside ends later, so that its completion will make room.
    fn is_busy(&self) -> bool {
        self.script.says == Says::Nothing && !self.held.is_empty()
            || self.held.back().is_some_and(|held| held.until > self.now)
    }

    fn refusal(&mut self) -> Option<Busy> {
        self.retry_at = None;
        if self.held.len() + self.lost.len() >= self.script.room {
            return Some(Busy::DevResource);
        }
        self.attempts += 1;
        if self.strikes(self.script.resource) {
            return Some(Busy::Resource);
        }
        // A device that cannot name a time can keep the promise only by a completion.
        let keeps = self.script.says != Says::Nothing || !self.held.is_empty();
        if self.strikes(self.script.dev_resource) && keeps {
            self.retry_at = (!self.is_busy()).then(|| self.now + RETRY);
            return Some(Busy::DevResource);
        }
        None
    }

    fn strikes(&self, every: u32) -> bool {
        every > 0 && self.attempts.is_multiple_of(every)
    }
}

impl<P> DeviceQueue<P> for TestDevice {
    fn enqueue(&mut self, now: Instant, _: &BioTable<P>, rq: Inflight) -> Enqueued {
        self.at(now);
        if let Some(why) = self.refusal() {
            return Enqueued::Busy(rq, why);
        }
        if let Some(arrivals) = &self.arrivals {
            arrivals.lock().expect("a panic ends the schedule").push((rq.hw(), rq.sector()));
        }
        durable::began(&rq);
        if self.strikes(self.script.lose) {
            self.lost.push((rq, self.attempts / self.script.lose % 2));
            return Enqueued::Accepted;
        }
        let tail = self.strikes(self.script.requeue_tail);
        let requeue = tail || self.strikes(self.script.requeue);
        if self.strikes(self.script.inline) && !requeue {
            durable::done(&rq);
            return Enqueued::Done(rq, Ok(()));
        }
        let (verdict, stay) = if requeue {
            (if tail { Verdict::RequeueTail } else { Verdict::Requeue }, Nanos(0))
        } else {
            (Verdict::Done(Ok(())), self.script.service)
        };
        // Later requests end no earlier, so the front one is next.
        let until = (now + stay).max(self.held.back().map_or(now, |last| last.until));
        self.held.push_back(Held { until, rq, verdict });
        Enqueued::Accepted
    }

    fn reap(&mut self, now: Instant, _: &BioTable<P>, out: &mut Vec<Finished>) {
        self.at(now);
        self.looks += 1;
        let ready = |held: &Held| match self.script.says {
            Says::Nothing => self.looks.is_multiple_of(2),
            Says::When | Says::Never => held.until <= now,
        };
        while self.held.front().is_some_and(ready) {
            let Held { rq, verdict, .. } = self.held.pop_front().expect("there is a front");
            if matches!(verdict, Verdict::Done(_)) {
                durable::done(&rq);
            }
            out.push(Finished { rq, verdict });
        }
    }

    fn timed_out(&mut self, now: Instant, tag: Tag) -> Expiry {
        self.at(now);
        let Some(at) = self.lost.iter().position(|(rq, _)| rq.tag() == tag) else {
            let held = self.held.iter().any(|held| held.rq.tag() == tag);
            assert!(held, "asked about tag {}, which is not here", tag.0);
            return Expiry::ResetTimer;
        };
        if let Some(left) = self.lost[at].1.checked_sub(1) {
            self.lost[at].1 = left;
            return Expiry::ResetTimer;
        }
        Expiry::Done(self.lost.swap_remove(at).0, Err(IoError::TIMED_OUT))
    }

    fn next_event(&self) -> Option<Instant> {
        let ends = self.held.front().map(|held| held.until);
        match self.script.says {
            Says::When => Some(ends.into_iter().chain(self.retry_at).min().unwrap_or(Instant::MAX)),
            Says::Nothing => None,
            Says::Never => Some(Instant::MAX),
        }
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        out.extend(self.held.drain(..).map(|held| held.rq));
        out.extend(self.lost.drain(..).map(|(rq, _)| rq));
    }
}
