//! The memory device's parameters, typed, and the shape of the device that follows from them.
//!
//! `read.rs` reads, rounds and clamps them.

use super::badblocks::BadBlocks;
use crate::basics;
use crate::service::IrqMode;
use blkmq_engine::{DEFAULT_TIMEOUT, DeviceShape, WriteCache};

/// The parameters of a memory device, all decided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryParams {
    /// Hardware queues.
    pub submit_queues: u16,
    /// Driver tags per hardware queue.
    pub hw_queue_depth: u32,
    /// When a request completes.
    pub irqmode: IrqMode,
    /// Logical block size in bytes.
    pub blocksize: u32,
    /// Size in MiB.
    pub size: u64,
    /// Sectors in a request; 0 for the default.
    pub max_sectors: u32,
    /// The device supports discard.
    pub discard: bool,
    /// Volatile write cache in MiB; 0 for none.
    pub cache_size: u64,
    /// The device honours FUA, if it has a cache.
    pub fua: bool,
    /// Bad blocks at power-on.
    pub badblocks: BadBlocks,
    /// A bad range heals after it has failed once.
    pub badblocks_once: bool,
    /// A request is carried out up to its first bad block.
    pub badblocks_partial_io: bool,
    /// The seed that decides which blocks a crash takes.
    pub seed: u64,
    /// Arrivals to record; `None` for no log.
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
}
