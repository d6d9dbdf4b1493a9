//! The completion time of a request, and the queue of requests until then: shared by devices with constant service
//! times.
//!
//! Service times are equal, or equal in each direction, so requests end nearly in order of arrival, and a ring suffices
//! where a device with varying times needs a heap.

use blkmq_core::{Instant, Nanos};
use blkmq_engine::Inflight;
use std::collections::VecDeque;

/// `irqmode`: the mode of completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IrqMode {
    /// 0: within the call.
    Inline,
    /// 1: at the next reap.
    Softirq,
    /// 2: this long (`completion_nsec`) after issue, whatever the load.
    Timer(Nanos),
}

impl IrqMode {
    /// Returns the end of a request issued now, or `None` if it completes within the call.
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
    pub(crate) rq: Inflight,
    pub(crate) then: T,
}

/// Requests in the order in which they end.
///
/// Times are stored separately. A token is copied in parts of 16 bytes; a time written beside it would be read as half
/// of such a part, which stalls on the store buffer. Together with the verdict's part (`NullQueue::reap`) this took a
/// twelfth of the time of an I/O on the null device.
pub(crate) struct Ring<T> {
    ends: VecDeque<Instant>,
    held: VecDeque<Held<T>>,
}

impl<T> Ring<T> {
    /// An empty ring, with room for `most` requests before it allocates again.
    pub(crate) fn with_capacity(most: u32) -> Self {
        let most = most as usize;
        Self { ends: VecDeque::with_capacity(most), held: VecDeque::with_capacity(most) }
    }

    /// Adds a request after those that end no later. O(1) if that is all of them, else O(n).
    pub(crate) fn push(&mut self, until: Instant, rq: Inflight, then: T) {
        let held = Held { rq, then };
        if self.last().is_none_or(|last| last <= until) {
            self.ends.push_back(until);
            self.held.push_back(held);
            return;
        }
        let at = self.ends.partition_point(|other| *other <= until);
        self.ends.insert(at, until);
        self.held.insert(at, held);
    }

    /// Takes out the first request if it has ended by `now`.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<Held<T>> {
        if self.first().is_none_or(|until| until > now) {
            return None;
        }
        self.ends.pop_front();
        self.held.pop_front()
    }

    /// Takes out all requests that have ended by `now`, in order. O(n) in their number, plus O(log n) in the number of
    /// all.
    pub(crate) fn drain(&mut self, now: Instant) -> impl ExactSizeIterator<Item = Held<T>> {
        let ended = match self.last() {
            Some(last) if last <= now => self.ends.len(),
            _ => self.ends.partition_point(|until| *until <= now),
        };
        self.ends.drain(..ended);
        self.held.drain(..ended)
    }

    /// When the first request ends.
    pub(crate) fn first(&self) -> Option<Instant> {
        self.ends.front().copied()
    }

    /// When the last request ends.
    pub(crate) fn last(&self) -> Option<Instant> {
        self.ends.back().copied()
    }

    /// The number of requests that have not ended by `now`, and the end of the first of these. O(log n).
    pub(crate) fn inside(&self, now: Instant) -> (usize, Option<Instant>) {
        let ended = self.ends.partition_point(|until| *until <= now);
        (self.ends.len() - ended, self.ends.get(ended).copied())
    }

    /// Takes out all requests, uncompleted.
    pub(crate) fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.ends.clear();
        while let Some(held) = self.held.pop_front() {
            out.push(held.rq);
        }
    }
}
