//! The flash device: a solid-state drive with channels, dies, a write buffer and garbage collection.
//!
//! Its page (`doc/flash.md`) describes the model and its limits, lists the drives behind the presets, and compares them
//! with the model. It stores no data.
//!
//! One device behind a mutex, a [`FlashDrive`], serves all hardware queues, and behaves the same in virtual and in real
//! time. A hardware queue passes requests to it, and takes them back when they end. It never reports busy: a device
//! takes as many commands as there are driver tags, and queues them inside.

mod backend;
mod die;
mod ftl;
mod geometry;
mod host;
mod params;
mod reclaim;

use crate::basics::{About, Argument, Description, Parts};
use crate::{Answer, ArrivalLog, DeviceError, MachineShape, OccupancyLog};
use backend::Backend;
use blkmq_core::{HwQueue, Instant, IoFlags};
use blkmq_engine::{
    BioTable, DeviceQueue, DeviceQueues, Enqueued, Finished, Inflight, Verdict, WriteCache,
};
pub use ftl::FlashStats;
pub use geometry::{Geometry, Rate, Timing, UNIT};
use host::Command;
pub use params::FlashParams;
pub use reclaim::{Preconditioned, Watermarks};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// The device for lists and messages.
pub(crate) const ABOUT: About = About {
    name: "flash",
    summary: "a model of an SSD: dies, channels, write buffer, garbage collection; presets of real ones",
    argument: Argument::None,
    parameters: params::PARAMETERS,
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
mod tests {
    use super::ftl::Place;
    use super::*;
    use blkmq_core::{Nanos, Op, Rng, Tag};
    use std::collections::BTreeSet;

    fn params(text: &str) -> FlashParams {
        let pair = |word: &str| word.split_once('=').map(|(key, value)| (key.into(), value.into()));
        let pairs: Vec<_> = text.split(',').filter_map(pair).collect();
        let host = MachineShape { cpus: 4, nodes: 1 };
        FlashParams::parse(&pairs, &host).expect("parameters").0
    }

    /// A device and the commands of one hardware queue, with a separate clock.
    struct Bench {
        backend: Backend,
        free: Vec<u32>,
        now: Instant,
    }

    impl Bench {
        fn new(text: &str) -> Self {
            let params = params(text);
            let free = (0..params.hw_queue_depth).collect();
            Self { backend: Backend::new(&params, None), free, now: Instant::ZERO }
        }

        fn submit(&mut self, op: Op, sector: u64, sectors: u32, fua: bool) -> Tag {
            let tag = Tag(self.free.pop().expect("a free tag"));
            let command = Command { hw: HwQueue(0), tag, op, sector, sectors, fua };
            self.backend.submit(self.now, &command);
            tag
        }

        /// Advances to the next end of a request, if there is one.
        fn wait(&mut self) -> Option<Tag> {
            loop {
                self.backend.advance(self.now);
                if let Some(tag) = self.backend.reap(self.now, HwQueue(0)) {
                    self.free.push(tag.0);
                    return Some(tag);
                }
                let next = self.backend.next_event(HwQueue(0));
                if next == Instant::MAX {
                    return None;
                }
                assert!(next > self.now, "it names a time that has passed");
                self.now = next;
            }
        }
    }

    const SMALL: &str = "size=4,channels=2,dies_per_channel=2,planes=2,page_size=4096,pages_per_block=8,\
                         overprovisioning=20,submit_queues=1,hw_queue_depth=64,buffer_kib=64,preconditioned=0";

    #[test]
    fn what_was_written_is_mapped_and_what_was_discarded_is_not() {
        for seed in 0..10 {
            let mut rng = Rng::new(seed);
            let mut bench = Bench::new(&format!("{SMALL},write_cache=1,fua=1,preset=sata"));
            let mut written = BTreeSet::new();
            for _ in 0..300 {
                // Requests that may overlap run one at a time, so that the test knows their order.
                let unit = rng.below(1024);
                let units = (1 + rng.below(40)).min(1024 - unit);
                let op = [
                    Op::Write,
                    Op::Write,
                    Op::Write,
                    Op::Read,
                    Op::Discard,
                    Op::WriteZeroes,
                    Op::Flush,
                ][rng.below(7) as usize];
                let range = unit..unit + units;
                match op {
                    Op::Write => written.extend(range),
                    Op::Discard | Op::WriteZeroes => {
                        range.for_each(|unit| _ = written.remove(&unit));
                    }
                    Op::Read | Op::Flush => {}
                }
                let sectors = if op == Op::Flush { 0 } else { units as u32 * 8 };
                bench.submit(op, unit * 8, sectors, op == Op::Write && rng.chance(1, 5));
                assert!(bench.wait().is_some(), "{op:?} ends");
                for unit in 0..1024 {
                    let mapped = bench.backend.ftl.find(unit as u32) != Place::Nowhere;
                    assert_eq!(mapped, written.contains(&unit), "seed {seed}, unit {unit}");
                }
            }
            assert_eq!(bench.wait(), None);
            bench.backend.ftl.check();
            bench.backend.restart();
            bench.backend.ftl.check();
            assert_eq!(
                bench.backend.stats().valid_units,
                written.len() as u64,
                "all of it in flash"
            );
            assert!(bench.backend.stats().moved_units > 0, "garbage was collected");
        }
    }

    #[test]
    fn being_told_late_changes_nothing() {
        let text = format!("{SMALL},retry_ppm=100000,seed=3");
        let run = |late: Nanos| {
            let mut bench = Bench::new(&text);
            let mut rng = Rng::new(4);
            let mut ends = Vec::new();
            for _ in 0..200 {
                for _ in 0..20 {
                    let op = if rng.chance(1, 2) { Op::Read } else { Op::Write };
                    bench.submit(op, rng.below(1000) * 8, 8 * (1 + rng.below(8)) as u32, false);
                }
                // Both runs submit at the same times; in between, one advances the device often, the other only at the
                // end.
                let until = bench.now + Nanos::from_millis(100);
                while bench.now < until {
                    bench.now = (bench.now + late).min(until);
                    bench.backend.advance(bench.now);
                }
                while let Some(tag) = bench.backend.reap(bench.now, HwQueue(0)) {
                    ends.push(tag);
                    bench.free.push(tag.0);
                }
                bench.free.sort_unstable();
            }
            (ends, bench.backend.stats())
        };
        assert_eq!(run(Nanos(7_000)), run(Nanos::from_millis(100)));
    }

    #[test]
    fn a_named_time_is_never_late() {
        let mut bench = Bench::new(&format!("{SMALL},preset=nvme-mlc"));
        let mut rng = Rng::new(8);
        for _ in 0..300 {
            while bench.free.len() > 32 {
                let op = if rng.chance(2, 3) { Op::Read } else { Op::Write };
                bench.submit(op, rng.below(900) * 8, 8 * (1 + rng.below(100)) as u32, false);
            }
            let named = bench.backend.next_event(HwQueue(0));
            bench.backend.advance(named);
            let earlier = Instant::from_nanos(named.as_nanos() - 1);
            assert_eq!(bench.backend.reap(earlier, HwQueue(0)), None);
            bench.now = bench.now.max(named);
            assert!(bench.wait().is_some());
        }
    }
}
