//! The memory device's parameters, typed, and what follows from them for the engine.
//!
//! How they are read, rounded and clamped is in `read.rs`.

use super::badblocks::BadBlocks;
use super::read::read;
use crate::basics;
use crate::service::IrqMode;
use crate::{MachineShape, ParamError};
use blkmq_engine::{DEFAULT_TIMEOUT, DeviceShape, WriteCache};

/// A memory device, decided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryParams {
    /// Hardware queues.
    pub submit_queues: u16,
    /// Driver tags per hardware queue.
    pub hw_queue_depth: u32,
    /// When a request is answered.
    pub irqmode: IrqMode,
    /// Logical block size in bytes.
    pub blocksize: u32,
    /// Size in MiB.
    pub size: u64,
    /// Sectors in a request; 0 for the default.
    pub max_sectors: u32,
    /// Supports discard.
    pub discard: bool,
    /// Volatile write cache in MiB; 0 for none.
    pub cache_size: u64,
    /// Honours FUA, if there is a cache.
    pub fua: bool,
    /// Bad blocks at the beginning.
    pub badblocks: BadBlocks,
    /// A bad range heals when it has failed once.
    pub badblocks_once: bool,
    /// What lies before the first bad block is done.
    pub badblocks_partial_io: bool,
    /// Of what a crash takes.
    pub seed: u64,
    /// Arrivals to record; `None` for no log.
    pub log_size: Option<usize>,
}

impl Default for MemoryParams {
    /// null_blk's defaults on a machine of one CPU, but for the size.
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
    /// Reads pairs; of two with one name the later counts, except that changes of `badblocks` add up. Also
    /// says, in a sentence each, what was not taken as it was given.
    ///
    /// # Errors
    /// For the first pair that has no such name or no such value, or if all together describe no device.
    pub fn parse(
        pairs: &[(String, String)],
        host: &MachineShape,
    ) -> Result<(Self, Vec<String>), ParamError> {
        let mut notes = Vec::new();
        let params = read(pairs, host, &mut notes)?;
        params.shape().limits.validate().map_err(ParamError::Limits)?;
        Ok((params, notes))
    }

    /// What the engine is told.
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
}
