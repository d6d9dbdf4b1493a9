//! The typed parameters of a disk, the shape of the device derived from them, and the figures of the modelled drives
//! with their sources. `read.rs` parses them.
//!
//! The page (`doc/disk.md`) has the published results of the drives, and compares the model with them. Figures that are
//! not published are marked.

use super::geometry::Tracks;
use super::seek::SeekTimes;
use crate::basics;
use crate::memory::BadBlocks;
use blkmq_core::{Limits, Nanos, SECTOR_SIZE};
use blkmq_engine::{DEFAULT_TIMEOUT, DeviceShape, WriteCache};

/// Sectors in a MiB.
pub(super) const MIB_SECTORS: u64 = (1 << 20) / SECTOR_SIZE as u64;

/// The figures of a drive, given by a preset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Figures {
    /// Size in sectors.
    pub capacity: u64,
    /// Revolutions in a minute.
    pub rpm: u32,
    /// The recording surfaces and their tracks.
    pub tracks: Tracks,
    /// The skew from the end of a track to the beginning of the next on the same cylinder.
    pub track_skew: Nanos,
    /// The skew to the first track of the next cylinder.
    pub cylinder_skew: Nanos,
    /// Seek times for reads.
    pub read_seek: SeekTimes,
    /// Seek times for writes, which include a longer settling.
    pub write_seek: SeekTimes,
    /// The percentage of the full stroke up to which seek times grow with the square root of the distance.
    pub seek_knee: u8,
    /// Time to switch to another head on the same cylinder.
    pub head_switch: Nanos,
    /// The time from the arrival of a command until the arm can move for it.
    pub overhead: Nanos,
    /// The time from the arrival of a command that does not need the arm until its data is transferred.
    pub hit: Nanos,
    /// Bandwidth of the interface in MiB/s.
    pub link_mbps: u32,
    /// Segments of the read cache; 0 for none.
    pub segments: u16,
    /// The distance that the drive reads ahead of the last read, in KiB; 0 for no read-ahead.
    pub read_ahead: u32,
    /// Volatile write cache in MiB; 0 for none.
    pub cache_size: u64,
    /// Whether the drive honours FUA, if it has a cache.
    pub fua: bool,
    /// How long the arm must be idle before the drive writes its cache back.
    pub destage_delay: Nanos,
    /// The number of commands that the drive holds, which is the number of driver tags.
    pub hw_queue_depth: u32,
    /// The margin that estimates leave between the settling of the arm and the sector, when the drive chooses among
    /// several commands.
    pub reorder_margin: Nanos,
}

/// The final parameters of a disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskParams {
    /// The figures of the drive.
    pub figures: Figures,
    /// Whether the drive chooses the command that the head reaches first, instead of the oldest.
    pub reorder: bool,
    /// The age limit: a command that has waited this long is next.
    pub age_limit: Nanos,
    /// Logical block size in bytes.
    pub blocksize: u32,
    /// The maximum sectors of a request; 0 for the default.
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
    /// The number of arrivals to record; `None` for no log.
    pub log_size: Option<usize>,
    /// The number of arm movements to record; `None` for no log.
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
/// From the specification: speed, capacity, heads, media rates and sustained rates of the first and last of 30 zones,
/// average read seek. The media rates give the sectors per track; with the sustained rates they give the skew, 14.8 ms
/// for ten tracks, which allows for the switches. Full strokes, and the additions for writes, are those of Hitachi's
/// other 7200 rpm drives. The overhead is derived from the time of 4096 random reads.
const SATA7200: Figures = Figures {
    capacity: 976_773_168,
    rpm: 7200,
    tracks: Tracks {
        heads: 10,
        zones: 30,
        outer_sectors: 1242,
        inner_sectors: 594,
        // Not published: as for the Deskstar 7K80 of the same year, whose tracks have been counted.
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
/// From the product manual: speed, capacity, heads, all six seek times. Measured by Wong: sectors per track, number of
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
    // Not published: the point at which the two parts of the curve meet without a bend.
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
