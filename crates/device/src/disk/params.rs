//! The disk's parameters, typed, and the shape of the device that follows from them.
//!
//! `read.rs` parses them; the figures of the modelled drives are in `presets.rs`.

use super::geometry::Tracks;
use super::seek::SeekTimes;
use crate::basics;
use crate::memory::BadBlocks;
use blkmq_core::{Limits, Nanos, SECTOR_SIZE};
use blkmq_engine::{DEFAULT_TIMEOUT, DeviceShape, WriteCache};

/// Sectors in a MiB.
pub(super) const MIB_SECTORS: u64 = (1 << 20) / SECTOR_SIZE as u64;

/// The figures of a drive, which a preset consists of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Figures {
    /// Size in sectors.
    pub capacity: u64,
    /// Revolutions in a minute.
    pub rpm: u32,
    /// The recording surfaces and their tracks.
    pub tracks: Tracks,
    /// Skew from the end of a track to the beginning of the next one on the same cylinder.
    pub track_skew: Nanos,
    /// Skew to the first track of the next cylinder.
    pub cylinder_skew: Nanos,
    /// Seek times for reads.
    pub read_seek: SeekTimes,
    /// Seek times for writes, which settle longer.
    pub write_seek: SeekTimes,
    /// Percent of the stroke up to which seek times grow with the root of the distance.
    pub seek_knee: u8,
    /// Time to switch to another head on the same cylinder.
    pub head_switch: Nanos,
    /// Time from the arrival of a command until the arm can move for it.
    pub overhead: Nanos,
    /// Time from the arrival of a command that needs no arm until its data moves.
    pub hit: Nanos,
    /// Bandwidth of the interface in MiB/s.
    pub link_mbps: u32,
    /// Segments of the read cache; 0 for none.
    pub segments: u16,
    /// How far the drive reads ahead of the last read, in KiB; 0 for no read-ahead.
    pub read_ahead: u32,
    /// Volatile write cache in MiB; 0 for none.
    pub cache_size: u64,
    /// The drive honours FUA, if it has a cache.
    pub fua: bool,
    /// How long the arm must have been idle before the drive writes its cache back.
    pub destage_delay: Nanos,
    /// Commands that the drive holds: driver tags.
    pub hw_queue_depth: u32,
    /// How long before a sector comes under the head the arm must have settled, in estimates between several
    /// commands.
    pub reorder_margin: Nanos,
}

/// The parameters of a disk, all decided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskParams {
    /// The figures of the drive.
    pub figures: Figures,
    /// The drive takes the command that the head reaches first, instead of the oldest.
    pub reorder: bool,
    /// A command that has waited this long is next.
    pub age_limit: Nanos,
    /// Logical block size in bytes.
    pub blocksize: u32,
    /// Sectors in a request; 0 for the default.
    pub max_sectors: u32,
    /// Sectors that cannot be read.
    pub badblocks: BadBlocks,
    /// How long the drive tries to read a bad sector.
    pub recovery: Nanos,
    /// Mean time between recalibrations; zero for none.
    pub recalibration_interval: Nanos,
    /// How long a recalibration takes.
    pub recalibration: Nanos,
    /// The seed of the times of recalibrations.
    pub seed: u64,
    /// Arrivals to record; `None` for no log.
    pub log_size: Option<usize>,
    /// Movements to record; `None` for no log.
    pub occupancy_size: Option<usize>,
}

impl DiskParams {
    /// The limits of a request.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let block = u64::from(self.blocksize / SECTOR_SIZE).max(1);
        let limits = basics::limits(self.blocksize, self.max_sectors, false, 0);
        Limits { capacity: self.figures.capacity / block * block, rotational: true, ..limits }
    }

    /// The shape of the device for the engine.
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
