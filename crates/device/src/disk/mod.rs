//! The disk device: a rotating disk's mechanism, caches and command queue, with the figures of real drives.
//!
//! Its page (`doc/disk.md`) describes the model and its limits, and compares it with published results of those drives.
//! All times are computed in whole nanoseconds, so that a run repeats on every machine. It stores no data.
//!
//! Its one hardware queue takes tokens and returns them; `drive.rs` models the time between. It never reports busy: a
//! drive holds as many commands as there are tags. It never answers within the call, except to refuse a discard, and
//! does not access payloads.

mod commands;
mod drive;
mod geometry;
mod mechanics;
mod params;
mod read_ahead;
mod write_back;

use crate::description::{About, Argument, Description, Parts};
use crate::{Answer, ArrivalLog, DeviceError, MachineShape, OccupancyLog};
use blkmq_core::{Instant, IoError, IoFlags, Op};
use blkmq_engine::{
    BioTable, DeviceQueue, DeviceQueues, Enqueued, Finished, Inflight, Verdict, WriteCache,
};
use commands::{Command, Kind};
use drive::Drive;
pub use geometry::Tracks;
use mechanics::Mechanics;
pub use mechanics::{Figures, SeekTimes};
pub use params::DiskParams;

/// The device for lists and messages.
pub(crate) const ABOUT: About = About {
    name: "disk",
    summary: "a rotating disk: seeks, rotation, caches, command queueing; stores nothing",
    argument: Argument::None,
    parameters: params::PARAMETERS,
};

/// Builds the device that `given` describes.
pub(crate) fn build(
    given: &Description<'_>,
    _: &MachineShape,
) -> Result<Parts<DiskParams>, DeviceError> {
    let refused = |why| DeviceError::Parameter { device: ABOUT.name, why };
    let (params, notes) = DiskParams::parse(&given.pairs).map_err(refused)?;
    Ok(Parts {
        shape: params.shape(),
        no_sched: false,
        notes,
        log: params.log_size.map(ArrivalLog::new),
        occupancy: params.occupancy_size.map(OccupancyLog::new),
        model: params,
    })
}

/// The hardware queue of a disk. Powers it on: the arm is at the outermost track, the caches are empty.
pub(crate) fn queues<P: 'static>(
    params: &DiskParams,
    log: Option<&ArrivalLog>,
    occupancy: Option<&OccupancyLog>,
) -> DeviceQueues<P> {
    let mechanics = Mechanics::new(&params.figures).expect("they were checked when they were read");
    let drive = Drive::new(params, mechanics, occupancy.cloned());
    let shape = params.shape();
    vec![Box::new(DiskQueue::new(drive, shape.hw_queue_depth, shape.cache, log.cloned()))]
}

struct DiskQueue {
    drive: Drive,
    cache: WriteCache,
    log: Option<ArrivalLog>,
    /// The tokens of the requests inside the drive, by driver tag.
    held: Box<[Option<Inflight>]>,
}

impl DiskQueue {
    fn new(drive: Drive, depth: u32, cache: WriteCache, log: Option<ArrivalLog>) -> Self {
        Self { drive, cache, log, held: (0..depth).map(|_| None).collect() }
    }

    /// Returns whether the write `rq` must be on the medium before it ends.
    fn is_durable(&self, rq: &Inflight) -> bool {
        match self.cache {
            WriteCache::Through => true,
            WriteCache::Back { .. } => rq.flags().contains(IoFlags::FUA),
        }
    }
}

impl<P> DeviceQueue<P> for DiskQueue {
    fn enqueue(&mut self, now: Instant, _: &BioTable<P>, rq: Inflight) -> Enqueued {
        if let Some(log) = &self.log {
            log.record(now, &rq, Answer::Taken);
        }
        let kind = match rq.op() {
            Op::Read => Some(Kind::Read),
            Op::Write => Some(Kind::Write),
            Op::WriteZeroes => Some(Kind::Zeroes),
            Op::Flush => None,
            // Disks support no discard, as their limits say.
            Op::Discard => return Enqueued::Done(rq, Err(IoError::NOT_SUPPORTED)),
        };
        let tag = rq.tag().0;
        match kind {
            None => self.drive.submit_flush(now, tag),
            Some(kind) => {
                let range = rq.sector()..rq.sector() + u64::from(rq.sectors());
                let durable = self.is_durable(&rq);
                self.drive.submit(now, Command { tag, kind, range }, durable);
            }
        }
        self.held[tag as usize] = Some(rq);
        Enqueued::Accepted
    }

    fn reap(&mut self, now: Instant, _: &BioTable<P>, out: &mut Vec<Finished>) {
        self.drive.advance(now);
        while let Some((tag, result)) = self.drive.pop(now) {
            let rq = self.held[tag as usize].take().expect("an answer is to what is held");
            out.push(Finished { rq, verdict: Verdict::Done(result) });
        }
    }

    /// Never `None`: this device always knows its next event. [`Instant::MAX`] if the drive holds no command.
    fn next_event(&self) -> Option<Instant> {
        Some(self.drive.next_event())
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        out.extend(self.held.iter_mut().filter_map(Option::take));
    }
}

#[cfg(test)]
mod tests;
