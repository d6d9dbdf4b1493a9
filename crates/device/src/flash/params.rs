//! The flash device's parameters, typed, and the shape and limits of the device that follow from them.
//!
//! `read.rs` reads, rounds and clamps them; the figures of real drives are in `presets.rs`.

use super::age::Preconditioned;
use super::geometry::{Geometry, UNIT};
use super::reclaim::Watermarks;
use super::timing::Timing;
use crate::basics;
use blkmq_core::Limits;
use blkmq_engine::{DEFAULT_TIMEOUT, DeviceShape, WriteCache};

/// The parameters of a flash device, all decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlashParams {
    /// Hardware queues.
    pub submit_queues: u16,
    /// Driver tags per hardware queue.
    pub hw_queue_depth: u32,
    /// Logical block size in bytes.
    pub blocksize: u32,
    /// Size in MiB.
    pub size: u64,
    /// Sectors in a request; 0 for the default.
    pub max_sectors: u32,
    /// The device supports discard.
    pub discard: bool,
    /// The device's report about its write buffer.
    pub cache: WriteCache,
    /// The number and size of channels, dies, blocks and pages.
    pub geometry: Geometry,
    /// The times and rates of the device.
    pub timing: Timing,
    /// The link moves data in both directions at the same time.
    pub link_duplex: bool,
    /// Write buffer in KiB.
    pub buffer_kib: u32,
    /// Programs and erases may be interrupted for reads.
    pub suspend: bool,
    /// Reads that pass a program or an erase, at most.
    pub reads_first: u32,
    /// When garbage collection begins and ends.
    pub watermarks: Watermarks,
    /// How the device was written before the first request.
    pub preconditioned: Preconditioned,
    /// Page reads in a million that have to be repeated.
    pub retry_ppm: u32,
    /// How often a page is read again, at most.
    pub retry_steps: u32,
    /// The seed of retries and of preconditioning.
    pub seed: u64,
    /// Arrivals to record; `None` for no log.
    pub log_size: Option<usize>,
    /// Spans to record; `None` for no log.
    pub occupancy_size: Option<usize>,
}

impl FlashParams {
    /// The limits of a request. A write may be smaller than a unit of the mapping table, but costs as much as a unit.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let limits = basics::limits(self.blocksize, self.max_sectors, self.discard, self.size);
        let granularity = if self.discard { UNIT } else { 0 };
        Limits { physical_block_size: UNIT, discard_granularity: granularity, ..limits }
    }

    /// The shape of the device for the engine.
    #[must_use]
    pub fn shape(&self) -> DeviceShape {
        DeviceShape {
            hw_queues: self.submit_queues,
            hw_queue_depth: self.hw_queue_depth,
            shared_tags: false,
            budget: None,
            limits: self.limits(),
            cache: self.cache,
            timeout: DEFAULT_TIMEOUT,
        }
    }

    /// Slots of the write buffer.
    #[must_use]
    pub fn buffer_units(&self) -> u32 {
        self.buffer_kib / (UNIT / 1024)
    }
}
