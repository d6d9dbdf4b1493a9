//! The parameters of a memory device: types, names, defaults, help texts, the shape of the device derived from them,
//! and parsing from pairs.
//!
//! A value that is changed or has no effect is reported in a note; an invalid one is an error.

use super::badblocks::BadBlocks;
use crate::basics::{Basics, clamp, parameter};
use crate::service::IrqMode;
use crate::{MachineShape, ParamError, Parameter, basics};
use blkmq_core::{Given, Unit};
use blkmq_engine::{DEFAULT_TIMEOUT, DeviceShape, WriteCache};

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
