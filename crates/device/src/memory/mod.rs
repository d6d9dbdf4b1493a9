//! The memory device: stores data, with a volatile cache that a crash may lose, and bad blocks.
//!
//! Its page (`doc/memory.md`) describes the model, its limits, and the effects of a crash. One store behind one mutex
//! serves all hardware queues. A hardware queue holds requests until their completion time.

mod badblocks;
mod cache;
mod command;
mod image;
mod params;
mod store;

use crate::description::{About, Argument, Description};
use crate::parts::Parts;
use crate::service::{IrqMode, Ring};
use crate::{Answer, ArrivalLog, DeviceError, MachineShape};
pub use badblocks::BadBlocks;
use blkmq_core::{Instant, Payload};
use blkmq_engine::{BioTable, DeviceQueue, DeviceQueues, Enqueued, Finished, Inflight, Verdict};
use command::Owed;
pub use image::{Image, PAGE};
pub use params::MemoryParams;
pub use store::MemoryStore;

/// The device for lists and messages.
pub(crate) const ABOUT: About = About {
    name: "memory",
    summary: "stores what is written; volatile cache, crashes and bad blocks to test with",
    argument: Argument::None,
    parameters: &params::PARAMETERS,
};

/// Builds the device that `given` describes.
pub(crate) fn build(
    given: &Description<'_>,
    host: &MachineShape,
) -> Result<Parts<(MemoryParams, MemoryStore)>, DeviceError> {
    let refused = |why| DeviceError::Parameter { device: ABOUT.name, why };
    let (params, notes) = MemoryParams::parse(&given.pairs, host).map_err(refused)?;
    let store = MemoryStore::new(&params);
    Ok(Parts {
        shape: params.shape(),
        no_sched: false,
        notes,
        log: params.log_size.map(ArrivalLog::new),
        occupancy: None,
        model: (params, store),
    })
}

/// The hardware queues of a memory device, which share one store.
pub(crate) fn queues<P: Payload>(
    params: &MemoryParams,
    store: &MemoryStore,
    log: Option<&ArrivalLog>,
) -> DeviceQueues<P> {
    store.power_on();
    let queue = |_| Box::new(MemoryQueue::new(params, store.clone(), log.cloned())) as _;
    (0..params.submit_queues).map(queue).collect()
}

struct MemoryQueue {
    store: MemoryStore,
    irqmode: IrqMode,
    log: Option<ArrivalLog>,
    serving: Ring<Owed>,
    /// The epoch of the store when the queue was made.
    epoch: u64,
}

impl MemoryQueue {
    fn new(params: &MemoryParams, store: MemoryStore, log: Option<ArrivalLog>) -> Self {
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

    fn reap(&mut self, now: Instant, _: &BioTable<P>, out: &mut Vec<Finished>) {
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

#[cfg(test)]
mod tests;
