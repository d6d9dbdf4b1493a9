//! The disk's parameters, typed, and what follows from them for the engine.
//!
//! How they are read is in `read.rs`; the figures of the drives that are modelled are in `presets.rs`.

use super::geometry::Tracks;
use super::presets;
use super::read::read;
use super::seek::SeekTimes;
use crate::ParamError;
use crate::basics;
use crate::memory::BadBlocks;
use blkmq_core::{Limits, Nanos, SECTOR_SIZE};
use blkmq_engine::{DEFAULT_TIMEOUT, DeviceShape, WriteCache};

/// Sectors in a MiB.
pub(super) const MIB_SECTORS: u64 = (1 << 20) / SECTOR_SIZE as u64;

/// The figures of a drive: what a preset consists of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Figures {
    /// Size in sectors.
    pub capacity: u64,
    /// Revolutions in a minute.
    pub rpm: u32,
    /// Its surfaces and what is on them.
    pub tracks: Tracks,
    /// From the end of a track to the beginning of the next one on the same cylinder.
    pub track_skew: Nanos,
    /// The same for the first track of the next cylinder.
    pub cylinder_skew: Nanos,
    /// Seeks for reading.
    pub read_seek: SeekTimes,
    /// Seeks for writing: settling takes longer.
    pub write_seek: SeekTimes,
    /// Percent of the stroke up to which seek times grow with the root of the distance.
    pub seek_knee: u8,
    /// To another head on the same cylinder.
    pub head_switch: Nanos,
    /// From the arrival of a command until the arm moves for it.
    pub overhead: Nanos,
    /// From the arrival of a command that needs no arm until its data moves.
    pub hit: Nanos,
    /// The interface, in MiB/s.
    pub link_mbps: u32,
    /// Segments of the read cache; 0 for none.
    pub segments: u16,
    /// How far it reads ahead of what was asked for last, in KiB; 0 for not at all.
    pub read_ahead: u32,
    /// Volatile write cache in MiB; 0 for none.
    pub cache_size: u64,
    /// Honours FUA, if there is a cache.
    pub fua: bool,
    /// How long it must have had nothing else to do before it writes back.
    pub destage_delay: Nanos,
    /// Commands it holds: driver tags.
    pub hw_queue_depth: u32,
    /// How long before a sector comes by it plans to have settled, when it has a choice.
    pub reorder_margin: Nanos,
}

/// A disk, decided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskParams {
    /// What it is like.
    pub figures: Figures,
    /// Takes the command that it gets to first, instead of the oldest.
    pub reorder: bool,
    /// A command that has waited for so long is next.
    pub age_limit: Nanos,
    /// Logical block size in bytes.
    pub blocksize: u32,
    /// Sectors in a request; 0 for the default.
    pub max_sectors: u32,
    /// Sectors that cannot be read.
    pub badblocks: BadBlocks,
    /// How long it tries to.
    pub recovery: Nanos,
    /// Mean time between recalibrations; zero for none.
    pub recalibration_interval: Nanos,
    /// How long one takes.
    pub recalibration: Nanos,
    /// Of the times of recalibrations.
    pub seed: u64,
    /// Arrivals to record; `None` for no log.
    pub log_size: Option<usize>,
    /// Movements to record; `None` for no log.
    pub occupancy_size: Option<usize>,
}

impl Default for DiskParams {
    /// The first preset.
    fn default() -> Self {
        Self {
            figures: presets::ALL[0].figures,
            reorder: true,
            // Long enough to concern few commands, short enough for whoever waits for one of those.
            age_limit: Nanos::from_secs(1),
            blocksize: 512,
            max_sectors: 0,
            badblocks: BadBlocks::default(),
            // What drives for arrays limit themselves to.
            recovery: Nanos::from_secs(7),
            recalibration_interval: Nanos::ZERO,
            recalibration: Nanos::from_millis(50),
            seed: 0,
            log_size: None,
            occupancy_size: None,
        }
    }
}

impl DiskParams {
    /// Reads pairs; of two with one name the later counts, except that changes of `badblocks` add up. Also
    /// says, in a sentence each, what was not taken as it was given.
    ///
    /// # Errors
    /// For the first pair that has no such name or no such value, or if all together describe no device.
    pub fn parse(pairs: &[(String, String)]) -> Result<(Self, Vec<String>), ParamError> {
        let mut notes = Vec::new();
        let params = read(pairs, &mut notes)?;
        params.limits().validate().map_err(ParamError::Limits)?;
        Ok((params, notes))
    }

    /// What fits into a request.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let block = u64::from(self.blocksize / SECTOR_SIZE).max(1);
        let limits = basics::limits(self.blocksize, self.max_sectors, false, 0);
        Limits { capacity: self.figures.capacity / block * block, rotational: true, ..limits }
    }

    /// What the engine is told.
    #[must_use]
    pub fn shape(&self) -> DeviceShape {
        DeviceShape {
            hw_queues: 1,
            hw_queue_depth: self.figures.hw_queue_depth,
            shared_tags: false,
            budget: None,
            timeout: DEFAULT_TIMEOUT,
            limits: self.limits(),
            cache: match self.figures.cache_size {
                0 => WriteCache::Through,
                _ => WriteCache::Back { fua: self.figures.fua },
            },
        }
    }
}
