//! The disk's one hardware queue: requests pass the limits in order of arrival, and are answered a latency later.
//!
//! It never reports busy, as such a disk does not: requests beyond the limits wait inside.

use super::bucket::Bucket;
use super::params::{CloudParams, Terms};
use crate::{Answer, ArrivalLog};
use blkmq_core::{Instant, IoError, IoResult, Nanos, Op, Rng, SECTOR_SIZE};
use blkmq_engine::{BioTable, DeviceQueue, Enqueued, Finished, Inflight, Verdict};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

pub(super) struct CloudQueue {
    terms: Terms,
    capacity: u64,
    iops: Bucket,
    bps: Bucket,
    latencies: Rng,
    log: Option<ArrivalLog>,
    /// Times of answers, with driver tags; the next one first.
    ends: BinaryHeap<Reverse<(Instant, u32)>>,
    /// The tokens of the requests inside, by driver tag.
    held: Box<[Option<(Inflight, IoResult)>]>,
}

impl CloudQueue {
    pub(super) fn new(params: &CloudParams, log: Option<ArrivalLog>) -> Self {
        let terms = params.terms;
        Self {
            terms,
            capacity: params.limits().capacity,
            iops: Bucket::new(terms.iops, terms.bucket),
            bps: Bucket::new(terms.bps, terms.bucket),
            latencies: Rng::new(params.seed),
            log,
            ends: BinaryHeap::with_capacity(terms.hw_queue_depth as usize),
            held: (0..terms.hw_queue_depth).map(|_| None).collect(),
        }
    }

    /// When a request that arrives at `now` is answered.
    fn end(&mut self, now: Instant, rq: &Inflight) -> Instant {
        let bytes = match rq.op() {
            Op::Read | Op::Write => u64::from(rq.sectors()) * u64::from(SECTOR_SIZE),
            Op::WriteZeroes | Op::Flush | Op::Discard => 0,
        };
        let ios = match self.terms.io_size {
            0 => 1,
            size => bytes.div_ceil(size).max(1),
        };
        let passed = self.iops.pass(now, ios).max(self.bps.pass(now, bytes));
        let spread = self.latencies.below(self.terms.latency_spread.0.saturating_add(1));
        let transfer = bytes.saturating_mul(1_000_000_000) / self.terms.stream_bps.max(1);
        passed + self.terms.latency + Nanos(spread) + Nanos(transfer)
    }
}

impl<P> DeviceQueue<P> for CloudQueue {
    fn enqueue(&mut self, now: Instant, _: &BioTable<P>, rq: Inflight) -> Enqueued {
        if let Some(log) = &self.log {
            log.record(now, &rq, Answer::Taken);
        }
        if rq.op() == Op::Discard {
            // Not supported, as the limits say.
            return Enqueued::Done(rq, Err(IoError::NOT_SUPPORTED));
        }
        let inside = rq.sector() + u64::from(rq.sectors()) <= self.capacity;
        let result = if inside { Ok(()) } else { Err(IoError::NO_SPACE) };
        let tag = rq.tag().0;
        let end = self.end(now, &rq);
        self.ends.push(Reverse((end, tag)));
        self.held[tag as usize] = Some((rq, result));
        Enqueued::Accepted
    }

    fn reap(&mut self, now: Instant, out: &mut Vec<Finished>) {
        while let Some(Reverse((_, tag))) = self.ends.peek().filter(|next| next.0.0 <= now).copied()
        {
            self.ends.pop();
            let (rq, result) = self.held[tag as usize].take().expect("what ends was inside");
            out.push(Finished { rq, verdict: Verdict::Done(result) });
        }
    }

    /// Never `None`: this device always knows its next event. [`Instant::MAX`] if it holds no request.
    fn next_event(&self) -> Option<Instant> {
        Some(self.ends.peek().map_or(Instant::MAX, |next| next.0.0))
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.ends.clear();
        out.extend(self.held.iter_mut().filter_map(Option::take).map(|(rq, _)| rq));
    }
}
