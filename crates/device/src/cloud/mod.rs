//! The cloud device: a network disk as rented from providers, with limits on I/Os and bytes, burst credits, and a
//! latency.
//!
//! Its page (`doc/cloud.md`) describes the model and its limits, and compares it with published results. All times are
//! computed in whole nanoseconds, so that a run repeats on every machine. It stores no data.
//!
//! The disk has one hardware queue: requests pass the limits in order of arrival, and are answered after a latency.
//! Like such a disk, it never reports busy: requests beyond the limits wait inside.
//!
//! Each rate limit, one for I/Os and one for bytes, is a token bucket at the entrance of the disk. Tokens arrive at the
//! present rate, the bucket holds the tokens of a short time, and a request passes when there are tokens for all of it.
//! Burst credits only raise the rate.

mod params;

use crate::description::{About, Argument, Description};
use crate::parts::Parts;
use crate::{Answer, ArrivalLog, DeviceError, MachineShape};
use blkmq_core::{Instant, IoError, IoResult, Nanos, Op, Rng, SECTOR_SIZE};
use blkmq_engine::{BioTable, DeviceQueue, DeviceQueues, Enqueued, Finished, Inflight, Verdict};
pub use params::{CloudParams, Terms};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The device for lists and messages.
pub(crate) const ABOUT: About = About {
    name: "cloud",
    summary: "a network disk: limits on I/Os and bytes, credits, a latency; stores nothing",
    argument: Argument::None,
    parameters: params::PARAMETERS,
};

/// Builds the device that `given` describes.
pub(crate) fn build(
    given: &Description<'_>,
    _: &MachineShape,
) -> Result<Parts<CloudParams>, DeviceError> {
    let refused = |why| DeviceError::Parameter { device: ABOUT.name, why };
    let (params, notes) = CloudParams::parse(&given.pairs).map_err(refused)?;
    Ok(Parts {
        shape: params.shape(),
        no_sched: false,
        notes,
        log: params.log_size.map(ArrivalLog::new),
        occupancy: None,
        model: params,
    })
}

/// The hardware queue of a disk with full credits.
pub(crate) fn queues<P: 'static>(
    params: &CloudParams,
    log: Option<&ArrivalLog>,
) -> DeviceQueues<P> {
    vec![Box::new(CloudQueue::new(params, log.cloned()))]
}

struct CloudQueue {
    terms: Terms,
    capacity: u64,
    iops: Bucket,
    bps: Bucket,
    latencies: Rng,
    log: Option<ArrivalLog>,
    /// The times of the answers, with driver tags; the earliest first.
    ends: BinaryHeap<Reverse<(Instant, u32)>>,
    /// The requests inside, by driver tag, with their results.
    held: Box<[Option<(Inflight, IoResult)>]>,
}

impl CloudQueue {
    fn new(params: &CloudParams, log: Option<ArrivalLog>) -> Self {
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

    /// Returns the time at which a request that arrives at `now` is answered.
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

    fn reap(&mut self, now: Instant, _: &BioTable<P>, out: &mut Vec<Finished>) {
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

const SECOND: u128 = 1_000_000_000;

/// A rate limit: a sustained rate, and a higher one while there are credits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allowance {
    /// The sustained rate in units per second, at which unused allowance becomes credits.
    pub rate: u64,
    /// The rate in units per second while there are credits; at least `rate`.
    pub burst: u64,
    /// The maximum credits in units; 0 for no bursts.
    pub credits: u64,
}

/// The state of a limit.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    allowed: Allowance,
    /// The capacity of the bucket, as a time at the present rate.
    depth: Nanos,
    /// The time by which tokens for all requests so far have arrived.
    free: Instant,
    /// Credits at the time `counted`, in units multiplied by the nanoseconds of a second.
    saved: u128,
    counted: Instant,
}

impl Bucket {
    /// Creates a full bucket with full credits.
    fn new(allowed: Allowance, depth: Nanos) -> Self {
        let saved = u128::from(allowed.credits) * SECOND;
        Self { allowed, depth, free: Instant::ZERO, saved, counted: Instant::ZERO }
    }

    /// The time at which a request of `units` that arrives at `now` has passed, after all earlier requests.
    fn pass(&mut self, now: Instant, units: u64) -> Instant {
        let begin = self.free.max(now);
        let grown = u128::from(begin.since(self.counted).0) * u128::from(self.allowed.rate);
        let most = u128::from(self.allowed.credits) * SECOND;
        self.saved = (self.saved + grown).min(most);
        self.counted = begin;
        let wanted = u128::from(units) * SECOND;
        let bursts = self.saved >= wanted && self.allowed.credits > 0;
        let rate = if bursts { self.allowed.burst } else { self.allowed.rate };
        let takes = (wanted / u128::from(rate.max(1))).min(u128::from(u64::MAX >> 1));
        self.free = begin + Nanos(takes as u64);
        if bursts {
            self.saved -= wanted;
        } else {
            // A request uses the credits gained while it passes at the sustained rate.
            self.counted = self.free;
        }
        self.free.saturating_sub(self.depth).max(now)
    }
}

#[cfg(test)]
mod tests;
