//! The arrival log: the requests that a device was offered, in order and with their times.
//!
//! The null device charges nothing for position, so the order is all that it can show (`spec/null_blk.md` section 3).
//! Bounded: a full log keeps its arrivals and counts those that it missed.

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

/// A request offered to the device. A request that is refused or requeued arrives more than once.
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

/// A log that several hardware queues write and a test or report reads; clones are the same log.
///
/// A mutex protects it: sequence numbers must agree with the order of the entries, and a run with a log does not need
/// the last nanosecond.
#[derive(Clone, Debug)]
pub struct ArrivalLog(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    arrivals: Vec<Arrival>,
    capacity: usize,
    sequence: u64,
}

impl ArrivalLog {
    /// An empty log of at most `capacity` arrivals. Allocates as it fills.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self(Arc::new(Mutex::new(Inner { arrivals: Vec::new(), capacity, sequence: 0 })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("nobody panics while holding the log")
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
