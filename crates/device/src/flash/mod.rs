//! The flash device: a solid-state drive with channels, dies, a write buffer and garbage collection.
//!
//! Its page (`doc/flash.md`) describes the model and its limits, lists the drives behind the presets, and compares them
//! with the model. It stores no data.
//!
//! One device behind a mutex, a [`FlashDrive`], serves all hardware queues, and behaves the same in virtual and in real
//! time. A hardware queue passes requests to it, and takes them back when they end. It never reports busy: a device
//! takes as many commands as there are driver tags, and queues them inside.

mod backend;
mod buffer;
mod die;
mod dies;
mod ftl;
mod geometry;
mod params;
mod read;
mod reclaim;
mod requests;

use crate::description::{About, Argument, Description, Parts};
use crate::{Answer, ArrivalLog, DeviceError, MachineShape, OccupancyLog};
use backend::Backend;
use blkmq_core::{HwQueue, Instant, IoFlags};
use blkmq_engine::{
    BioTable, DeviceQueue, DeviceQueues, Enqueued, Finished, Inflight, Verdict, WriteCache,
};
pub use ftl::FlashStats;
pub use geometry::{Geometry, Rate, Timing, UNIT};
pub use params::FlashParams;
pub use reclaim::{Preconditioned, Watermarks};
use requests::Command;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// The device for lists and messages.
pub(crate) const ABOUT: About = About {
    name: "flash",
    summary: "a model of an SSD: dies, channels, write buffer, garbage collection; presets of real ones",
    argument: Argument::None,
    parameters: read::PARAMETERS,
};

/// Builds the device that `given` describes.
pub(crate) fn build(
    given: &Description<'_>,
    host: &MachineShape,
) -> Result<Parts<(FlashParams, FlashDrive)>, DeviceError> {
    let refused = |why| DeviceError::Parameter { device: ABOUT.name, why };
    let (params, notes) = FlashParams::parse(&given.pairs, host).map_err(refused)?;
    Ok(Parts {
        shape: params.shape(),
        no_sched: false,
        notes,
        log: params.log_size.map(ArrivalLog::new),
        occupancy: params.occupancy_size.map(OccupancyLog::new),
        model: (params, FlashDrive::new()),
    })
}

/// The hardware queues of a flash device, which share one drive.
pub(crate) fn queues<P: Send + 'static>(
    params: &FlashParams,
    drive: &FlashDrive,
    log: Option<&ArrivalLog>,
    occupancy: Option<&OccupancyLog>,
) -> DeviceQueues<P> {
    drive.power_on(params, occupancy);
    let hws = (0..params.submit_queues).map(HwQueue);
    hws.map(|hw| Box::new(FlashQueue::new(params, hw, drive.clone(), log.cloned())) as _).collect()
}

struct FlashQueue {
    hw: HwQueue,
    drive: FlashDrive,
    log: Option<ArrivalLog>,
    /// The tokens of the requests inside the device, by driver tag.
    tokens: Vec<Option<Inflight>>,
    inside: u32,
    /// Whether the write buffer is volatile, so that FUA has a meaning.
    volatile: bool,
}

impl FlashQueue {
    fn new(params: &FlashParams, hw: HwQueue, drive: FlashDrive, log: Option<ArrivalLog>) -> Self {
        let tokens = (0..params.hw_queue_depth).map(|_| None).collect();
        let volatile = params.cache != WriteCache::Through;
        Self { hw, drive, log, tokens, inside: 0, volatile }
    }

    fn backend(&self) -> MutexGuard<'_, Backend> {
        self.drive.backend()
    }
}

impl<P> DeviceQueue<P> for FlashQueue {
    fn enqueue(&mut self, now: Instant, _: &BioTable<P>, rq: Inflight) -> Enqueued {
        if let Some(log) = &self.log {
            log.record(now, &rq, Answer::Taken);
        }
        let tag = rq.tag();
        let command = Command {
            hw: self.hw,
            tag,
            op: rq.op(),
            sector: rq.sector(),
            sectors: rq.sectors(),
            fua: self.volatile && rq.flags().contains(IoFlags::FUA),
        };
        self.backend().submit(now, &command);
        self.tokens[tag.0 as usize] = Some(rq);
        self.inside += 1;
        Enqueued::Accepted
    }

    fn reap(&mut self, now: Instant, _: &BioTable<P>, out: &mut Vec<Finished>) {
        if self.inside == 0 {
            return;
        }
        let mut backend = self.drive.backend();
        backend.advance(now);
        while let Some(tag) = backend.reap(now, self.hw) {
            let rq = self.tokens[tag.0 as usize].take().expect("what ended was inside");
            self.inside -= 1;
            out.push(Finished { rq, verdict: Verdict::Done(Ok(())) });
        }
    }

    fn next_event(&self) -> Option<Instant> {
        let next = (self.inside > 0).then(|| self.backend().next_event(self.hw));
        Some(next.unwrap_or(Instant::MAX))
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        out.extend(self.tokens.iter_mut().filter_map(Option::take));
        self.inside = 0;
    }
}

/// A flash device, shared by its hardware queues and by code that reads its counters; clones refer to the same device.
///
/// A mutex protects the whole device. The tables are allocated when the hardware queues are first made, so that a
/// device that is only described costs nothing.
#[derive(Clone)]
pub struct FlashDrive(Arc<OnceLock<Mutex<Backend>>>);

impl FlashDrive {
    fn new() -> Self {
        Self(Arc::new(OnceLock::new()))
    }

    /// Powers the device on: creates it the first time, and later restarts it with its contents.
    fn power_on(&self, params: &FlashParams, occupancy: Option<&OccupancyLog>) {
        let make = || Mutex::new(Backend::new(params, occupancy.cloned()));
        if self.0.get().is_some() {
            self.backend().restart();
        } else {
            // If two threads meet here, one of them creates the device.
            self.0.get_or_init(make);
        }
    }

    fn backend(&self) -> MutexGuard<'_, Backend> {
        let backend = self.0.get().expect("hardware queues are made when it has been switched on");
        backend.lock().expect("no panic happens under this lock")
    }

    /// Returns the units written and moved since the device was created, up to the last time passed to it. All zero
    /// before its hardware queues are made.
    #[must_use]
    pub fn stats(&self) -> FlashStats {
        if self.0.get().is_some() { self.backend().stats() } else { FlashStats::default() }
    }
}

impl fmt::Debug for FlashDrive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlashDrive").field("stats", &self.stats()).finish()
    }
}

#[cfg(test)]
mod tests;
