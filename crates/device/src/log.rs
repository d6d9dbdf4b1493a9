//! The logs of a device: the requests offered to it, and the activities of its parts, in order and with their times.
//!
//! The null device charges nothing for position, so its only observable result is the order of arrivals
//! (`spec/null_blk.md` section 3). Reports draw the occupancy: the position of a disk's heads over time, or the
//! activity of each die of a flash device.
//!
//! The logs do not influence decisions. They are bounded: a full log keeps its entries and counts further ones.

use blkmq_core::{HwQueue, Instant, Op, Tag};
use blkmq_engine::{Busy, Inflight};
use std::sync::{Arc, Mutex, MutexGuard};

/// The device's answer to a request that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The request was taken, or completed immediately.
    Taken,
    /// [`Busy::Resource`]: the request will arrive again.
    Resource,
    /// [`Busy::DevResource`]: the request will arrive again.
    DevResource,
}

impl From<Busy> for Answer {
    fn from(busy: Busy) -> Self {
        match busy {
            Busy::Resource => Self::Resource,
            Busy::DevResource => Self::DevResource,
        }
    }
}

/// A request offered to the device. A request that is refused or requeued arrives again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// Counted from zero over all hardware queues of the device.
    pub sequence: u64,
    /// When the request arrived.
    pub at: Instant,
    /// First sector.
    pub sector: u64,
    /// Length in sectors.
    pub sectors: u32,
    /// The number of I/Os in the request.
    pub bios: u32,
    /// The operation.
    pub op: Op,
    /// The hardware queue.
    pub hw: HwQueue,
    /// The driver tag.
    pub tag: Tag,
    /// The device's answer.
    pub answer: Answer,
}

/// A log that hardware queues write and a test or report reads; clones refer to the same log.
///
/// A mutex protects it: sequence numbers must agree with the order of the entries, and a run with a log need not be as
/// fast as possible.
#[derive(Clone, Debug)]
pub struct ArrivalLog(Arc<Mutex<Arrivals>>);

#[derive(Debug)]
struct Arrivals {
    arrivals: Vec<Arrival>,
    capacity: usize,
    sequence: u64,
}

impl ArrivalLog {
    /// An empty log of at most `capacity` arrivals. Allocates as it fills.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self(Arc::new(Mutex::new(Arrivals { arrivals: Vec::new(), capacity, sequence: 0 })))
    }

    fn inner(&self) -> MutexGuard<'_, Arrivals> {
        self.0.lock().expect("no panic happens under this lock")
    }

    /// Records the arrival of `rq`.
    pub fn record(&self, at: Instant, rq: &Inflight, answer: Answer) {
        let mut inner = self.inner();
        let sequence = inner.sequence;
        inner.sequence += 1;
        if inner.arrivals.len() < inner.capacity {
            inner.arrivals.push(Arrival {
                sequence,
                at,
                sector: rq.sector(),
                sectors: rq.sectors(),
                bios: rq.bio_count(),
                op: rq.op(),
                hw: rq.hw(),
                tag: rq.tag(),
                answer,
            });
        }
    }

    /// All recorded arrivals, in order.
    #[must_use]
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.inner().arrivals.clone()
    }

    /// The recorded arrivals that were not refused.
    #[must_use]
    pub fn taken(&self) -> Vec<Arrival> {
        let inner = self.inner();
        inner.arrivals.iter().filter(|a| a.answer == Answer::Taken).copied().collect()
    }

    /// Arrivals that the full log missed.
    #[must_use]
    pub fn missed(&self) -> u64 {
        let inner = self.inner();
        inner.sequence - inner.arrivals.len() as u64
    }
}

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

/// A period that one part spent on one activity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The beginning of the span.
    pub start: Instant,
    /// The end of the span; not earlier than `start`.
    pub end: Instant,
    /// The part: the cylinder at which a disk's heads arrive, or the number of a die.
    pub place: u32,
    /// The activity.
    pub activity: Activity,
}

/// A log that the hardware queues of one device write and a report reads; clones are the same log.
#[derive(Clone, Debug)]
pub struct OccupancyLog(Arc<Mutex<Spans>>);

#[derive(Debug)]
struct Spans {
    spans: Vec<Span>,
    capacity: usize,
    missed: u64,
}

impl OccupancyLog {
    /// An empty log of at most `capacity` spans. Allocates as it fills.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self(Arc::new(Mutex::new(Spans { spans: Vec::new(), capacity, missed: 0 })))
    }

    fn inner(&self) -> MutexGuard<'_, Spans> {
        self.0.lock().expect("no panic happens under this lock")
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
