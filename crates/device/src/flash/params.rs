//! The flash device's parameters, typed, and what follows from them for the engine.
//!
//! How they are read, rounded and clamped is in `read.rs`; the figures of real drives are in `presets.rs`.

use super::age::Preconditioned;
use super::geometry::{Geometry, UNIT};
use super::read::read;
use super::reclaim::Watermarks;
use super::timing::Timing;
use crate::basics;
use crate::{MachineShape, ParamError};
use blkmq_core::Limits;
use blkmq_engine::{DEFAULT_TIMEOUT, DeviceShape, WriteCache};

/// A flash device, decided.
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
    /// Supports discard.
    pub discard: bool,
    /// What it says about its write buffer.
    pub cache: WriteCache,
    /// Dies and what is in them.
    pub geometry: Geometry,
    /// What takes how long.
    pub timing: Timing,
    /// The link moves data in both directions at once.
    pub link_duplex: bool,
    /// Write buffer in KiB.
    pub buffer_kib: u32,
    /// Programs and erases may be interrupted for reads.
    pub suspend: bool,
    /// Reads that pass a program or an erase, at most.
    pub reads_first: u32,
    /// When garbage collection begins and ends.
    pub watermarks: Watermarks,
    /// What it has lived through.
    pub preconditioned: Preconditioned,
    /// Page reads in a million that have to be repeated.
    pub retry_ppm: u32,
    /// How often, at most.
    pub retry_steps: u32,
    /// Of retries and of what it has lived through.
    pub seed: u64,
    /// Arrivals to record; `None` for no log.
    pub log_size: Option<usize>,
    /// Spans to record; `None` for no log.
    pub occupancy_size: Option<usize>,
}

impl FlashParams {
    /// Reads pairs; of two with one name the later counts, and a preset counts less than anything beside it, wherever
    /// it stands. Also says, in a sentence each, what was not taken as it was given.
    ///
    /// # Errors
    /// For the first pair that has no such name or no such value, or if all together describe no device.
    pub fn parse(
        pairs: &[(String, String)],
        host: &MachineShape,
    ) -> Result<(Self, Vec<String>), ParamError> {
        let mut notes = Vec::new();
        let params = read(pairs, host, &mut notes)?;
        params.limits().validate().map_err(ParamError::Limits)?;
        Ok((params, notes))
    }

    /// What fits into a request. Less than a unit of the mapping table can be written, but costs as much.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let limits = basics::limits(self.blocksize, self.max_sectors, self.discard, self.size);
        let granularity = if self.discard { UNIT } else { 0 };
        Limits { physical_block_size: UNIT, discard_granularity: granularity, ..limits }
    }

    /// What the engine is told.
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
