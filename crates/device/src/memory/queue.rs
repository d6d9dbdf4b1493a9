//! One hardware queue of a memory device: holds requests until their completion time.

use super::command::{self, Owed};
use super::{MemoryParams, MemoryStore};
use crate::service::{IrqMode, Ring};
use crate::{Answer, ArrivalLog};
use blkmq_core::{Instant, Payload};
use blkmq_engine::{BioTable, DeviceQueue, Enqueued, Finished, Inflight, Verdict};

pub(super) struct MemoryQueue {
    store: MemoryStore,
    irqmode: IrqMode,
    log: Option<ArrivalLog>,
    serving: Ring<Owed>,
    /// The epoch of the store in which it was made.
    epoch: u64,
}

impl MemoryQueue {
    pub(super) fn new(params: &MemoryParams, store: MemoryStore, log: Option<ArrivalLog>) -> Self {
        let inline = params.irqmode == IrqMode::Inline;
        let serving = Ring::with_capacity(if inline { 0 } else { params.hw_queue_depth });
        let epoch = store.lock().epoch;
        Self { store, irqmode: params.irqmode, log, serving, epoch }
    }
}

impl<P: Payload> DeviceQueue<P> for MemoryQueue {
    fn enqueue(&mut self, now: Instant, bios: &BioTable<P>, rq: Inflight) -> Enqueued {
        if let Some(log) = &self.log {
            log.record(now, &rq, Answer::Taken);
        }
        let until = self.irqmode.end(now);
        let mut store = self.store.lock();
        let owed = if self.epoch < store.powered {
            Owed::failed(&store)
        } else {
            command::begin(&mut store, bios, &rq, until.is_none())
        };
        match until {
            None => {
                let result = command::end(&mut store, owed);
                Enqueued::Done(rq, result)
            }
            Some(until) => {
                self.serving.push(until, rq, owed);
                Enqueued::Accepted
            }
        }
    }

    fn reap(&mut self, now: Instant, out: &mut Vec<Finished>) {
        if self.serving.first().is_none_or(|until| until > now) {
            return;
        }
        let mut store = self.store.lock();
        while let Some(ended) = self.serving.pop(now) {
            let result = command::end(&mut store, ended.then);
            out.push(Finished { rq: ended.rq, verdict: Verdict::Done(result) });
        }
    }

    /// Never `None`: this device always knows its next event. [`Instant::MAX`] if it holds no request.
    fn next_event(&self) -> Option<Instant> {
        Some(self.serving.first().unwrap_or(Instant::MAX))
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.serving.abandon(out);
    }
}
