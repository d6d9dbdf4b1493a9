//! When a request completes, and the queue of requests until then: shared by devices of constant service time.
//!
//! Service times are alike, or alike in each direction, so requests in service end nearly in the order in which they
//! came, and a ring suffices where a device with varying times needs a heap.

use blkmq_core::{Instant, Nanos};
use blkmq_engine::Inflight;
use std::collections::VecDeque;

/// `irqmode`: when a request completes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IrqMode {
    /// 0: within the call.
    Inline,
    /// 1: at the next reap.
    Softirq,
    /// 2: this long (`completion_nsec`) after it was issued, at any load.
    Timer(Nanos),
}

impl IrqMode {
    /// When a request issued now ends; `None` for within the call.
    pub(crate) fn end(self, now: Instant) -> Option<Instant> {
        match self {
            Self::Inline => None,
            Self::Softirq => Some(now),
            Self::Timer(service) => Some(now + service),
        }
    }
}

/// A request inside a device, and the work to do when it ends.
pub(crate) struct Held<T> {
    pub(crate) until: Instant,
    pub(crate) rq: Inflight,
    pub(crate) then: T,
}

/// Requests in the order in which they end.
pub(crate) struct Ring<T>(VecDeque<Held<T>>);

impl<T> Ring<T> {
    /// An empty ring, with room for `most` requests before it allocates again.
    pub(crate) fn with_capacity(most: u32) -> Self {
        Self(VecDeque::with_capacity(most as usize))
    }

    /// Adds a request, behind those that end no later. O(1) if those are all, else O(n).
    pub(crate) fn push(&mut self, until: Instant, rq: Inflight, then: T) {
        let held = Held { until, rq, then };
        if self.last().is_none_or(|last| last <= until) {
            return self.0.push_back(held);
        }
        let at = self.0.partition_point(|other| other.until <= until);
        self.0.insert(at, held);
    }

    /// Takes out the first request if it has ended by `now`.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<Held<T>> {
        let ended = self.first().is_some_and(|until| until <= now);
        if ended { self.0.pop_front() } else { None }
    }

    /// When the first request ends.
    pub(crate) fn first(&self) -> Option<Instant> {
        self.0.front().map(|first| first.until)
    }

    /// When the last request ends.
    pub(crate) fn last(&self) -> Option<Instant> {
        self.0.back().map(|last| last.until)
    }

    /// The number of requests that have not ended by `now`, and when the first of those will end. O(log n).
    pub(crate) fn inside(&self, now: Instant) -> (usize, Option<Instant>) {
        let ended = self.0.partition_point(|held| held.until <= now);
        (self.0.len() - ended, self.0.get(ended).map(|first| first.until))
    }

    /// Takes out all requests, uncompleted.
    pub(crate) fn abandon(&mut self, out: &mut Vec<Inflight>) {
        out.extend(self.0.drain(..).map(|held| held.rq));
    }
}
