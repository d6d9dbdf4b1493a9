//! One hardware queue of the null device, with everything that can be switched on.
//!
//! What holds on every path: a refusal with DEV_RESOURCE leaves something in service on this queue, or a
//! time in `retry_at` at which there is room. Service times are all alike, so whatever is in service ends in
//! the order in which it came, and a ring does where a device with varying times needs a heap.

use super::bandwidth::Bandwidth;
use super::faults::{Faults, Strike};
use super::params::{IrqMode, NullParams};
use crate::{Answer, ArrivalLog};
use blkmq_core::{HwQueue, Instant, IoError, Nanos, Op, SECTOR_SIZE};
use blkmq_engine::{BioTable, Busy, DeviceQueue, Enqueued, Finished, Inflight, Verdict};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// After this a lost request is ended with [`IoError::TIMED_OUT`]: null_blk's request timeout.
pub const REQUEST_TIMEOUT: Nanos = Nanos::from_secs(5);
/// A `dev_resource` fault with nothing in service has room again after this: nothing else could keep the
/// promise that DEV_RESOURCE makes.
pub const DEV_RESOURCE_DELAY: Nanos = Nanos::from_millis(1);

/// A request inside the device.
struct Held {
    until: Instant,
    rq: Inflight,
}

/// What becomes of a request that is taken.
enum Fate {
    Serve,
    Lose,
    Requeue,
}

pub(super) struct NullQueue {
    irqmode: IrqMode,
    service_limit: Option<u32>,
    bandwidth: Option<Arc<Mutex<Bandwidth>>>,
    faults: Option<Faults>,
    log: Option<ArrivalLog>,
    /// In service; the front ends first.
    serving: VecDeque<Held>,
    /// Lost; the front is given up first.
    lost: VecDeque<Held>,
    /// To be asked back at the next reap.
    requeued: VecDeque<Held>,
    /// When the request refused last may come again, if that can be told.
    retry_at: Option<Instant>,
}

impl NullQueue {
    pub(super) fn new(
        params: &NullParams,
        hw: HwQueue,
        bandwidth: Option<Arc<Mutex<Bandwidth>>>,
        log: Option<ArrivalLog>,
    ) -> Self {
        let faults = &params.faults;
        let serving = if params.irqmode == IrqMode::Inline { 0 } else { params.hw_queue_depth };
        Self {
            irqmode: params.irqmode,
            service_limit: params.service_limit,
            bandwidth,
            faults: (!faults.is_empty()).then(|| Faults::new(faults, params.seed, hw)),
            log,
            serving: VecDeque::with_capacity(serving as usize),
            lost: VecDeque::new(),
            requeued: VecDeque::new(),
            retry_at: None,
        }
    }

    /// Decides about `rq` without touching it.
    fn admit(&mut self, now: Instant, rq: &Inflight) -> Result<Fate, Busy> {
        self.retry_at = self.full_until(now);
        if self.retry_at.is_some() {
            return Err(Busy::DevResource);
        }
        match self.faults.as_mut().and_then(Faults::draw) {
            Some(Strike::Resource) => Err(Busy::Resource),
            Some(Strike::DevResource) => {
                // What has ended by now is taken back before anybody retries, so it keeps no promise.
                if self.serving.back().is_none_or(|last| last.until <= now) {
                    self.retry_at = Some(now + DEV_RESOURCE_DELAY);
                }
                Err(Busy::DevResource)
            }
            Some(Strike::Requeue) => Ok(Fate::Requeue),
            Some(Strike::Lose) => Ok(Fate::Lose),
            None => self.pay(now, rq).map(|()| Fate::Serve),
        }
    }

    /// If as many are inside as may be: when the first of them leaves.
    fn full_until(&self, now: Instant) -> Option<Instant> {
        let limit = self.service_limit?;
        let inside = |held: &VecDeque<Held>| {
            let ended = held.partition_point(|held| held.until <= now);
            (held.len() - ended, held.get(ended).map(|first| first.until))
        };
        let (serving, first) = inside(&self.serving);
        let (lost, first_lost) = inside(&self.lost);
        if serving + lost < limit as usize {
            return None;
        }
        first.into_iter().chain(first_lost).min()
    }

    /// Charges the bandwidth for the data that `rq` moves; discards and flushes move none.
    fn pay(&mut self, now: Instant, rq: &Inflight) -> Result<(), Busy> {
        let Some(bandwidth) = &self.bandwidth else { return Ok(()) };
        if !matches!(rq.op(), Op::Read | Op::Write) {
            return Ok(());
        }
        let bytes = u64::from(rq.sectors()) * u64::from(SECTOR_SIZE);
        let mut bandwidth = bandwidth.lock().expect("nobody panics while holding the budget");
        bandwidth.take(now, bytes).map_err(|refill| {
            self.retry_at = Some(refill);
            Busy::DevResource
        })
    }

    fn take(&mut self, now: Instant, rq: Inflight, fate: &Fate) -> Enqueued {
        let (held, until) = match (fate, self.irqmode) {
            (Fate::Serve, IrqMode::Inline) => return Enqueued::Done(rq, Ok(())),
            (Fate::Serve, IrqMode::Softirq) => (&mut self.serving, now),
            (Fate::Serve, IrqMode::Timer(service)) => (&mut self.serving, now + service),
            (Fate::Lose, _) => (&mut self.lost, now + REQUEST_TIMEOUT),
            (Fate::Requeue, _) => (&mut self.requeued, now),
        };
        held.push_back(Held { until, rq });
        Enqueued::Accepted
    }
}

/// Moves what ended by `now` from `held` to `out`.
fn reap(held: &mut VecDeque<Held>, now: Instant, verdict: Verdict, out: &mut Vec<Finished>) {
    while held.front().is_some_and(|first| first.until <= now) {
        out.extend(held.pop_front().map(|first| Finished { rq: first.rq, verdict }));
    }
}

impl<P> DeviceQueue<P> for NullQueue {
    fn enqueue(&mut self, now: Instant, _: &BioTable<P>, rq: Inflight) -> Enqueued {
        let decision = self.admit(now, &rq);
        if let Some(log) = &self.log {
            let answer =
                decision.as_ref().map_or_else(|busy| Answer::from(*busy), |_| Answer::Taken);
            log.record(now, &rq, answer);
        }
        match decision {
            Ok(fate) => self.take(now, rq, &fate),
            Err(busy) => Enqueued::Busy(rq, busy),
        }
    }

    fn reap(&mut self, now: Instant, out: &mut Vec<Finished>) {
        reap(&mut self.serving, now, Verdict::Done(Ok(())), out);
        reap(&mut self.lost, now, Verdict::Done(Err(IoError::TIMED_OUT)), out);
        reap(&mut self.requeued, now, Verdict::Requeue, out);
    }

    /// Never `None`: this device always knows. [`Instant::MAX`] if nothing will happen by itself.
    fn next_event(&self) -> Option<Instant> {
        let held = [&self.serving, &self.lost, &self.requeued];
        let ends = held.into_iter().filter_map(|held| held.front()).map(|first| first.until);
        Some(ends.chain(self.retry_at).min().unwrap_or(Instant::MAX))
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        for held in [&mut self.serving, &mut self.lost, &mut self.requeued] {
            out.extend(held.drain(..).map(|held| held.rq));
        }
    }
}
