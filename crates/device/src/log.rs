//! The arrival log: in which order and when a device was given what.
//!
//! The null device charges nothing for position, so order is all there is to see
//! (`spec/null_blk.md` section 3). Bounded: when it is full it keeps what it has and counts what it missed.

use blkmq_core::{HwQueue, Instant, Op, Tag};
use blkmq_engine::{Busy, Inflight};
use std::sync::{Arc, Mutex, MutexGuard};

/// What the device said to a request that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It was taken, or finished on the spot.
    Taken,
    /// [`Busy::Resource`]: it will arrive again.
    Resource,
    /// [`Busy::DevResource`]: it will arrive again.
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

/// One request offered to the device. One that is refused or requeued arrives more than once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// Counted from zero over all hardware queues of the device.
    pub sequence: u64,
    /// When.
    pub at: Instant,
    /// First sector.
    pub sector: u64,
    /// Length in sectors.
    pub sectors: u32,
    /// How many I/Os were merged into it.
    pub bios: u32,
    /// What to do.
    pub op: Op,
    /// On which hardware queue.
    pub hw: HwQueue,
    /// Under which driver tag.
    pub tag: Tag,
    /// What the device said.
    pub answer: Answer,
}

/// A log that several hardware queues write and a test or report reads; clones are the same log.
///
/// A mutex around it: sequence numbers must agree with the order of the entries, and whoever logs has
/// already given up the last nanosecond.
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

    /// Notes that `rq` arrived.
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

    /// Everything recorded, in order of arrival.
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

    /// Arrivals that came when it was full.
    #[must_use]
    pub fn missed(&self) -> u64 {
        let inner = self.inner();
        inner.sequence - inner.arrivals.len() as u64
    }
}
