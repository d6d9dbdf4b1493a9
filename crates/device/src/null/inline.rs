//! `irqmode=0` with every feature off: a request completes before `enqueue` returns.
//!
//! A separate type instead of a flag, because this is the hot path of every measurement of the engine: it has no state,
//! takes no branch and allocates nothing.

use blkmq_core::Instant;
use blkmq_engine::{BioTable, DeviceQueue, Enqueued, Finished, Inflight};

pub(super) struct InlineQueue;

impl<P> DeviceQueue<P> for InlineQueue {
    fn enqueue(&mut self, _: Instant, _: &BioTable<P>, rq: Inflight) -> Enqueued {
        Enqueued::Done(rq, Ok(()))
    }

    fn reap(&mut self, _: Instant, _: &BioTable<P>, _: &mut Vec<Finished>) {}

    fn next_event(&self) -> Option<Instant> {
        Some(Instant::MAX)
    }

    fn abandon(&mut self, _: &mut Vec<Inflight>) {}
}
