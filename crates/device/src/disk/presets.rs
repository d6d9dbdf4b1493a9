//! The modelled drives: their figures, and the sources of these.
//!
//! The page (`doc/disk.md`) has the published results of the drives, and compares the model with them. A figure that
//! is not published is marked.

use super::geometry::Tracks;
use super::params::Figures;
use super::seek::SeekTimes;
use blkmq_core::Nanos;

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
