//! The memory device: stores data, with a volatile cache that a crash may lose, and bad blocks; and its parameters.
//!
//! Its page (`doc/memory.md`) describes the model, its limits, and the effects of a crash. One store behind one mutex
//! serves all hardware queues. A hardware queue holds requests until their completion time.
//!
//! A value of a parameter that is changed or has no effect is reported in a note; an invalid one is an error.

mod badblocks;
mod cache;
mod image;
mod store;

use crate::basics::{self, Basics, IrqMode, Ring, clamp, parameter};
use crate::description::{About, Argument, Description, Parts};
use crate::{Answer, ArrivalLog, DeviceError, MachineShape, ParamError, Parameter};
pub use badblocks::BadBlocks;
use blkmq_core::{Given, Instant, Payload, Unit};
use blkmq_engine::{
    BioTable, DEFAULT_TIMEOUT, DeviceQueue, DeviceQueues, DeviceShape, Enqueued, Finished,
    Inflight, Verdict, WriteCache,
};
pub use image::{Image, PAGE};
pub use store::MemoryStore;
use store::Owed;

/// The device for lists and messages.
pub(crate) const ABOUT: About = About {
    name: "memory",
    summary: "stores what is written; volatile cache, crashes and bad blocks to test with",
    argument: Argument::None,
    parameters: &PARAMETERS,
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
            store::begin(&mut store, bios, &rq, until.is_none())
        };
        match until {
            None => {
                let result = store::end(&mut store, owed);
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
            let result = store::end(&mut store, ended.then);
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

/// The final parameters of a memory device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryParams {
    /// Hardware queues.
    pub submit_queues: u16,
    /// Driver tags per hardware queue.
    pub hw_queue_depth: u32,
    /// The mode of completion.
    pub irqmode: IrqMode,
    /// Logical block size in bytes.
    pub blocksize: u32,
    /// Size in MiB.
    pub size: u64,
    /// The maximum sectors of a request; 0 for the default.
    pub max_sectors: u32,
    /// Whether the device supports discards.
    pub discard: bool,
    /// Volatile write cache in MiB; 0 for none.
    pub cache_size: u64,
    /// Whether the device honours FUA, if it has a cache.
    pub fua: bool,
    /// Bad blocks at power-on.
    pub badblocks: BadBlocks,
    /// Whether a bad range heals after it has failed once.
    pub badblocks_once: bool,
    /// Whether a request is performed up to its first bad block.
    pub badblocks_partial_io: bool,
    /// The seed that decides which blocks a crash loses.
    pub seed: u64,
    /// The number of arrivals to record; `None` for no log.
    pub log_size: Option<usize>,
}

impl Default for MemoryParams {
    /// null_blk's defaults on a machine of one CPU, except for the size.
    fn default() -> Self {
        Self {
            submit_queues: 1,
            hw_queue_depth: 64,
            irqmode: IrqMode::Softirq,
            blocksize: 512,
            size: 1024,
            max_sectors: 0,
            discard: false,
            cache_size: 0,
            fua: true,
            badblocks: BadBlocks::default(),
            badblocks_once: false,
            badblocks_partial_io: false,
            seed: 0,
            log_size: None,
        }
    }
}

impl MemoryParams {
    /// The shape of the device for the engine.
    #[must_use]
    pub fn shape(&self) -> DeviceShape {
        DeviceShape {
            hw_queues: self.submit_queues,
            hw_queue_depth: self.hw_queue_depth,
            shared_tags: false,
            budget: None,
            timeout: DEFAULT_TIMEOUT,
            limits: basics::limits(self.blocksize, self.max_sectors, self.discard, self.size),
            cache: match self.cache_size {
                0 => WriteCache::Through,
                _ => WriteCache::Back { fua: self.fua },
            },
        }
    }

    /// Parses pairs of name and value; if a name is repeated, the last value counts, except that changes of `badblocks`
    /// accumulate. Also returns notes, a sentence each, on values that were changed or have no effect.
    ///
    /// # Errors
    /// For the first pair with an unknown name or an invalid value, or if the parameters together describe no valid
    /// device.
    pub fn parse(
        pairs: &[(String, String)],
        host: &MachineShape,
    ) -> Result<(Self, Vec<String>), ParamError> {
        let mut notes = Vec::new();
        let params = read(pairs, host, &mut notes)?;
        params.shape().limits.validate().map_err(ParamError::Limits)?;
        Ok((params, notes))
    }
}

/// Reads `pairs` for a machine like `host`.
fn read(
    pairs: &[(String, String)],
    host: &MachineShape,
    notes: &mut Vec<String>,
) -> Result<MemoryParams, ParamError> {
    let mut raw =
        Raw { basics: Basics::sized(1), fua: None, seed: None, done: MemoryParams::default() };
    for (name, value) in pairs {
        let given = Given::find(&PARAMETERS, name, value)?;
        if !raw.basics.set(&given)? {
            raw.set(&given)?;
        }
    }
    Ok(raw.finish(host, notes))
}

/// The values as given, before parameters are checked against each other.
struct Raw {
    basics: Basics,
    fua: Option<bool>,
    seed: Option<u64>,
    /// The parameters that need no further check.
    done: MemoryParams,
}

impl Raw {
    fn set(&mut self, given: &Given<'_>) -> Result<(), ParamError> {
        let done = &mut self.done;
        match given.name {
            "cache_size" | "cache" => done.cache_size = given.measure(Unit::MIB, 0..=1 << 43)?,
            "fua" => self.fua = Some(given.flag()?),
            "badblocks" => {
                if !done.badblocks.change(given.value) {
                    return Err(given.refuse(BadBlocks::FORM).into());
                }
            }
            "badblocks_once" => done.badblocks_once = given.flag()?,
            "badblocks_partial_io" => done.badblocks_partial_io = given.flag()?,
            "seed" => self.seed = Some(given.number(0..=u64::MAX)?),
            _ => unreachable!("every name in the table is read here or is one of the basics"),
        }
        Ok(())
    }

    fn finish(self, host: &MachineShape, notes: &mut Vec<String>) -> MemoryParams {
        let basics = &self.basics;
        let params = MemoryParams {
            submit_queues: basics.submit_queues(host, notes),
            hw_queue_depth: basics.hw_queue_depth(notes),
            irqmode: basics.irqmode(notes),
            blocksize: basics.blocksize(notes),
            size: basics.size(),
            max_sectors: basics.max_sectors,
            discard: basics.discard,
            cache_size: clamp(notes, "cache_size", self.done.cache_size, basics.size()),
            fua: self.fua.unwrap_or(true),
            seed: self.seed.unwrap_or(0),
            log_size: basics.log_size(notes),
            ..self.done
        };
        if self.fua.is_some() && params.cache_size == 0 {
            notes
                .push("fua has no effect without cache_size: everything written is durable".into());
        }
        let loses = params.cache_size > 0 || params.irqmode != IrqMode::Inline;
        if self.seed.is_some() && !loses {
            notes.push(
                "seed has no effect with irqmode=0 and no cache: a crash takes nothing".into(),
            );
        }
        let capacity = params.shape().limits.capacity;
        for (first, last) in params.badblocks.ranges().filter(|(_, last)| *last >= capacity) {
            notes.push(format!("bad blocks {first}-{last} reach beyond the end at {capacity}"));
        }
        params
    }
}

/// In the order of the help page.
pub(super) static PARAMETERS: [Parameter; 20] = [
    basics::SUBMIT_QUEUES,
    basics::USE_PER_NODE_HCTX,
    basics::HW_QUEUE_DEPTH,
    basics::IRQMODE,
    basics::COMPLETION_NSEC_PARAMETER,
    basics::BS,
    basics::BLOCKSIZE,
    parameter("gb", "1", "size in GiB; what is written is kept in memory"),
    basics::SIZE,
    basics::MAX_SECTORS,
    parameter("discard", "0", "support discard; what is discarded reads as zeroes"),
    parameter("cache_size", "0", "volatile write cache in MiB; 0: none"),
    parameter("cache", "0", "another name of cache_size"),
    parameter("fua", "1", "honour FUA; only with a cache"),
    parameter("badblocks", "", "+START-END or -START-END in sectors; may be given repeatedly"),
    parameter("badblocks_once", "0", "a bad range heals when it has failed once"),
    parameter("badblocks_partial_io", "0", "what lies before the first bad block is done"),
    parameter("seed", "0", "of what a crash takes, besides the crash's own"),
    basics::LOG,
    basics::LOG_SIZE_PARAMETER,
];

#[cfg(test)]
mod tests;
