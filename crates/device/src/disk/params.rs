//! The disk's parameters, typed, the shape of the device that follows from them, and the figures of the modelled
//! drives with their sources. `read.rs` parses them.
//!
//! The page (`doc/disk.md`) has the published results of the drives, and compares the model with them. A figure that
//! is not published is marked.

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

/// A preset by name.
pub(super) struct Preset {
    pub(super) name: &'static str,
    pub(super) figures: Figures,
}

/// All presets; the first is the default.
pub(super) const ALL: &[Preset] =
    &[Preset { name: "sata7200", figures: SATA7200 }, Preset { name: "sas15k", figures: SAS15K }];

const fn seek(track: u64, average: u64, full: u64) -> SeekTimes {
    SeekTimes {
        track: Nanos::from_micros(track),
        average: Nanos::from_micros(average),
        full: Nanos::from_micros(full),
    }
}

/// Hitachi Deskstar 7K500, HDS725050KLA360: 500 GB, five platters, SATA, of 2005.
///
/// Specification: speed, capacity, heads, media and sustained rates of the first and the last of 30 zones, average
/// seek for reading. Rates give sectors per track, and with the sustained ones the skew: 14.8 ms for ten tracks.
/// Switches fit into it. Full strokes, and the additions for writes, are those of Hitachi's other 7200 rpm drives. Time
/// of 4096 random reads: overhead.
const SATA7200: Figures = Figures {
    capacity: 976_773_168,
    rpm: 7200,
    tracks: Tracks {
        heads: 10,
        zones: 30,
        outer_sectors: 1242,
        inner_sectors: 594,
        // Not published: as for the Deskstar 7K80 of the same year, the tracks of which have been counted.
        zone_curve: 40,
    },
    track_skew: Nanos::from_micros(1480),
    cylinder_skew: Nanos::from_micros(1480),
    read_seek: seek(1400, 8500, 14_700),
    write_seek: seek(1900, 9500, 15_700),
    // From the rate of random reads within the first 32 GiB.
    seek_knee: 6,
    head_switch: Nanos::from_micros(1400),
    overhead: Nanos::from_micros(220),
    // Not published.
    hit: Nanos::from_micros(50),
    link_mbps: 286,
    segments: 16,
    read_ahead: 256,
    cache_size: 8,
    fua: false,
    // Not published.
    destage_delay: Nanos::from_millis(5),
    hw_queue_depth: 32,
    // From the rate at depth 32.
    reorder_margin: Nanos::from_micros(600),
};

/// Seagate Cheetah 15K.7, ST3450857SS: 450 GB, three platters, SAS, of 2009.
///
/// Product manual: speed, capacity, heads, all six seek times. Measured (Wong): sectors per track, number of
/// tracks, skew.
const SAS15K: Figures = Figures {
    capacity: 879_097_968,
    rpm: 15_000,
    tracks: Tracks {
        heads: 6,
        zones: 20,
        outer_sectors: 1800,
        inner_sectors: 1028,
        // From the number of tracks.
        zone_curve: 47,
    },
    track_skew: Nanos::from_micros(264),
    cylinder_skew: Nanos::from_micros(264),
    read_seek: seek(200, 3400, 6600),
    write_seek: seek(440, 3900, 7400),
    // Not published: where the two parts of the curve meet without a bend.
    seek_knee: 40,
    // Not published: no longer than a seek to the next track.
    head_switch: Nanos::from_micros(200),
    // Not published.
    overhead: Nanos::from_micros(150),
    hit: Nanos::from_micros(40),
    link_mbps: 572,
    segments: 16,
    read_ahead: 256,
    cache_size: 0,
    fua: true,
    destage_delay: Nanos::from_millis(5),
    hw_queue_depth: 64,
    // From the rate at depth 32.
    reorder_margin: Nanos::from_micros(350),
};
