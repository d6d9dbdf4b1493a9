//! The occupancy log: the activities of the parts of a modelled device, and their times.
//!
//! Reports draw it: the position of a disk's heads over time, or the activity of each die of a flash device. It
//! decides nothing. Bounded: a full log keeps its spans and counts those that it missed.

use blkmq_core::Instant;
use std::sync::{Arc, Mutex, MutexGuard};

/// An activity of a part of a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Activity {
    /// Moving to the data: seek and rotation.
    Position,
    /// Moving data between a part and its host, or over a channel.
    Transfer,
    /// Reading a cell or a sector.
    Read,
    /// Writing a cell or a sector.
    Write,
    /// Erasing a block.
    Erase,
    /// Moving data without a request for it: garbage collection, read-ahead, destaging of a cache.
    Housekeeping,
}

/// A span of time that one part spent on one activity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The beginning of the span.
    pub start: Instant,
    /// The end of the span; not earlier than `start`.
    pub end: Instant,
    /// The part: the cylinder at which a disk's heads end up, or the number of a die.
    pub place: u32,
    /// The activity.
    pub activity: Activity,
}

/// A log that the hardware queues of one device write and a report reads; clones are the same log.
#[derive(Clone, Debug)]
pub struct OccupancyLog(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    spans: Vec<Span>,
    capacity: usize,
    missed: u64,
}

impl OccupancyLog {
    /// An empty log of at most `capacity` spans. Allocates as it fills.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self(Arc::new(Mutex::new(Inner { spans: Vec::new(), capacity, missed: 0 })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("nobody panics while holding the log")
    }

    /// Records a span.
    pub fn record(&self, span: Span) {
        debug_assert!(span.start <= span.end, "a span ends after it begins");
        let mut inner = self.inner();
        if inner.spans.len() < inner.capacity {
            inner.spans.push(span);
        } else {
            inner.missed += 1;
        }
    }

    /// All recorded spans, in the order in which they were decided.
    #[must_use]
    pub fn spans(&self) -> Vec<Span> {
        self.inner().spans.clone()
    }

    /// Spans that the full log missed.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.inner().missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_log_keeps_what_it_has_and_counts_the_rest() {
        let log = OccupancyLog::new(1);
        let span = |place| Span {
            start: Instant::ZERO,
            end: Instant::ZERO,
            place,
            activity: Activity::Read,
        };
        log.record(span(3));
        log.clone().record(span(4));
        assert_eq!((log.spans(), log.missed()), (vec![span(3)], 1));
    }
}
