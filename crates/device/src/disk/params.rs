//! The parameters of a disk: their types, the shape of the device derived from them, the figures of the modelled drives
//! with their sources, and the parameters by name, with defaults, help texts, and parsing from pairs.
//!
//! The page (`doc/disk.md`) has the published results of the drives, and compares the model with them. Figures that are
//! not published are marked. The preset is applied first, wherever it stands: every other parameter overrides one of
//! its figures. A value that is changed or has no effect is reported in a note; an invalid one is an error.

use super::mechanics::{Figures, Mechanics, SeekTimes, TRACK_SECTORS, Tracks};
use crate::basics::{self, Basics, clamp, parameter};
use crate::memory::BadBlocks;
use crate::{ParamError, Parameter};
use blkmq_core::{Given, Limits, Nanos, PairError, SECTOR_SIZE, Unit};
use blkmq_engine::{DEFAULT_TIMEOUT, DeviceShape, MAX_HW_QUEUE_DEPTH, WriteCache};

/// Sectors in a MiB.
pub(super) const MIB_SECTORS: u64 = (1 << 20) / SECTOR_SIZE as u64;

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

/// The largest disk, 16 TiB: its cylinders fit 32 bits even with the shortest tracks.
const MAX_MIB: u64 = 1 << 24;
/// The longest duration or delay: an hour.
const MAX_NSEC: u64 = 3_600_000_000_000;
/// The longest movement of the arm: a second.
const MAX_MOVE_NSEC: u64 = 1_000_000_000;
/// The default of `occupancy_size`.
const OCCUPANCY_SIZE: usize = 65_536;

impl Default for DiskParams {
    /// The parameters of the first preset.
    fn default() -> Self {
        Self {
            figures: ALL[0].figures,
            reorder: true,
            // Long enough to affect few commands, short enough for the submitters of those few.
            age_limit: Nanos::from_secs(1),
            blocksize: 512,
            max_sectors: 0,
            badblocks: BadBlocks::default(),
            // The limit that drives for arrays use.
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
    /// Parses pairs of name and value; if a name is repeated, the last value counts, except that changes of `badblocks`
    /// accumulate. Also returns notes, a sentence each, on values that were changed or have no effect.
    ///
    /// # Errors
    /// For the first pair with an unknown name or an invalid value, or if the parameters together describe no valid
    /// device.
    pub fn parse(pairs: &[(String, String)]) -> Result<(Self, Vec<String>), ParamError> {
        let mut notes = Vec::new();
        let params = read(pairs, &mut notes)?;
        params.limits().validate().map_err(ParamError::Limits)?;
        Ok((params, notes))
    }
}

/// Parses `pairs`.
fn read(pairs: &[(String, String)], notes: &mut Vec<String>) -> Result<DiskParams, ParamError> {
    let mut raw = Raw::default();
    for (name, value) in pairs.iter().filter(|(name, _)| name == "preset") {
        raw.done.figures = preset(&Given::find(PARAMETERS, name, value)?)?;
    }
    for (name, value) in pairs {
        let given = Given::find(PARAMETERS, name, value)?;
        raw.given.push(given.name);
        let is_read = raw.set_surface(&given)?
            || raw.set_movement(&given)?
            || raw.set_electronics(&given)?
            || raw.set_trouble(&given)?
            || raw.basics.set(&given)?;
        assert!(is_read, "every name in the table is read by one of them");
    }
    raw.finish(notes)
}

fn preset(given: &Given<'_>) -> Result<Figures, PairError> {
    let found = ALL.iter().find(|preset| preset.name == given.value);
    found.map(|preset| preset.figures).ok_or_else(|| {
        given.refuse(Vec::from_iter(ALL.iter().map(|preset| preset.name)).join(", "))
    })
}

fn nanos(given: &Given<'_>, most: u64) -> Result<Nanos, PairError> {
    given.measure(Unit::NS, 0..=most).map(Nanos)
}

/// The values as given, before parameters are checked against each other.
#[derive(Default)]
struct Raw {
    basics: Basics,
    /// In MiB.
    size: Option<u64>,
    gb: Option<u64>,
    hw_queue_depth: Option<u64>,
    occupancy: bool,
    occupancy_size: Option<usize>,
    /// The names of the parameters that were given.
    given: Vec<&'static str>,
    /// The parameters that need no further check.
    done: DiskParams,
}

impl Raw {
    /// Sets a parameter of the platters. Returns false if `given` is not one of them.
    fn set_surface(&mut self, given: &Given<'_>) -> Result<bool, ParamError> {
        let tracks = &mut self.done.figures.tracks;
        match given.name {
            "preset" => {}
            "gb" => self.gb = Some(given.measure(Unit::GIB, 1..=MAX_MIB / 1024)?),
            "size" => self.size = Some(given.measure(Unit::MIB, 1..=MAX_MIB)?),
            "rpm" => self.done.figures.rpm = given.number(600..=100_000)?,
            "heads" => tracks.heads = given.number(1..=64)?,
            "zones" => tracks.zones = given.number(1..=200)?,
            "outer_sectors" => tracks.outer_sectors = given.number(TRACK_SECTORS)?,
            "inner_sectors" => tracks.inner_sectors = given.number(TRACK_SECTORS)?,
            "zone_curve" => tracks.zone_curve = given.number(0..=100)?,
            "track_skew_nsec" => self.done.figures.track_skew = nanos(given, MAX_MOVE_NSEC)?,
            "cylinder_skew_nsec" => self.done.figures.cylinder_skew = nanos(given, MAX_MOVE_NSEC)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Sets a parameter of the arm. Returns false if `given` is not one of them.
    fn set_movement(&mut self, given: &Given<'_>) -> Result<bool, ParamError> {
        let Figures { read_seek, write_seek, .. } = &mut self.done.figures;
        let time = match given.name {
            "seek_track_nsec" => &mut read_seek.track,
            "seek_average_nsec" => &mut read_seek.average,
            "seek_full_nsec" => &mut read_seek.full,
            "write_seek_track_nsec" => &mut write_seek.track,
            "write_seek_average_nsec" => &mut write_seek.average,
            "write_seek_full_nsec" => &mut write_seek.full,
            "head_switch_nsec" => &mut self.done.figures.head_switch,
            "seek_knee" => {
                self.done.figures.seek_knee = given.number(1..=99)?;
                return Ok(true);
            }
            _ => return Ok(false),
        };
        *time = nanos(given, MAX_MOVE_NSEC)?;
        Ok(true)
    }

    /// Sets a parameter of the caches, the interface or the queue. Returns false if `given` is not one of them.
    fn set_electronics(&mut self, given: &Given<'_>) -> Result<bool, ParamError> {
        let figures = &mut self.done.figures;
        match given.name {
            "overhead_nsec" => figures.overhead = nanos(given, MAX_NSEC)?,
            "hit_nsec" => figures.hit = nanos(given, MAX_NSEC)?,
            "link_mbps" => figures.link_mbps = given.number(1..=1 << 20)?,
            "segments" => figures.segments = given.number(0..=1024)?,
            "read_ahead" => figures.read_ahead = given.measure(Unit::KIB, 0..=1 << 20)?,
            "cache_size" | "cache" => figures.cache_size = given.measure(Unit::MIB, 0..=1 << 43)?,
            "fua" => figures.fua = given.flag()?,
            "destage_delay_nsec" => figures.destage_delay = nanos(given, MAX_NSEC)?,
            "hw_queue_depth" => self.hw_queue_depth = Some(given.number(1..=u64::MAX)?),
            "reorder" => self.done.reorder = given.flag()?,
            "reorder_margin_nsec" => figures.reorder_margin = nanos(given, MAX_MOVE_NSEC)?,
            "age_limit_nsec" => self.done.age_limit = nanos(given, MAX_NSEC)?,
            "occupancy" => self.occupancy = given.flag()?,
            "occupancy_size" => self.occupancy_size = Some(given.number(1..=1 << 32)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Sets a parameter of faults or recalibrations. Returns false if `given` is not one of them.
    fn set_trouble(&mut self, given: &Given<'_>) -> Result<bool, ParamError> {
        let done = &mut self.done;
        match given.name {
            "badblocks" => {
                if !done.badblocks.change(given.value) {
                    return Err(given.refuse(BadBlocks::FORM).into());
                }
            }
            "recovery_nsec" => done.recovery = nanos(given, MAX_NSEC)?,
            "recalibration_interval_nsec" => {
                done.recalibration_interval = nanos(given, MAX_NSEC)?;
            }
            "recalibration_nsec" => done.recalibration = nanos(given, MAX_NSEC)?,
            "seed" => done.seed = given.number(0..=u64::MAX)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn finish(mut self, notes: &mut Vec<String>) -> Result<DiskParams, ParamError> {
        let figures = &mut self.done.figures;
        if let Some(mib) = self.size.or(self.gb.map(|gb| gb * 1024)) {
            figures.capacity = mib * MIB_SECTORS;
        }
        if let Some(depth) = self.hw_queue_depth {
            let most = u64::from(MAX_HW_QUEUE_DEPTH);
            figures.hw_queue_depth = clamp(notes, "hw_queue_depth", depth, most) as u32;
        }
        let most = figures.capacity.div_ceil(MIB_SECTORS);
        figures.cache_size = clamp(notes, "cache_size", figures.cache_size, most);
        self.done.blocksize = self.basics.blocksize(notes);
        self.done.max_sectors = self.basics.max_sectors;
        self.done.log_size = self.basics.log_size(notes);
        let kept = self.occupancy_size.unwrap_or(OCCUPANCY_SIZE);
        self.done.occupancy_size = self.occupancy.then_some(kept);
        check(&self.done.figures)?;
        self.note_what_is_in_vain(notes);
        note_crossings(&self.done.figures, notes);
        let capacity = self.done.figures.capacity;
        for (first, last) in self.done.badblocks.ranges().filter(|(_, last)| *last >= capacity) {
            notes.push(format!("bad blocks {first}-{last} reach beyond the end at {capacity}"));
        }
        Ok(self.done)
    }

    fn note_what_is_in_vain(&self, notes: &mut Vec<String>) {
        let DiskParams { figures, reorder, recalibration_interval, .. } = &self.done;
        let cached = figures.cache_size > 0;
        let recalibrates = *recalibration_interval > Nanos::ZERO;
        let fails = self.done.badblocks.ranges().next().is_some();
        for (name, has_effect, without) in [
            ("fua", cached, "cache_size: everything written is durable"),
            ("destage_delay_nsec", cached, "cache_size"),
            ("read_ahead", figures.segments > 0, "segments"),
            ("reorder_margin_nsec", *reorder, "reorder=1"),
            ("age_limit_nsec", *reorder || cached, "reorder=1: the oldest is always next"),
            ("recovery_nsec", fails, "badblocks"),
            ("recalibration_nsec", recalibrates, "recalibration_interval_nsec"),
            ("seed", recalibrates, "recalibration_interval_nsec"),
            ("occupancy_size", self.occupancy, "occupancy=1"),
        ] {
            if self.given.contains(&name) && !has_effect {
                notes.push(format!("{name} has no effect without {without}"));
            }
        }
    }
}

/// Checks that the figures describe a disk.
fn check(figures: &Figures) -> Result<(), ParamError> {
    let refuse = |name, value: u64, accepted: String| {
        Err(ParamError::Pair(PairError::Value { name, value: value.to_string(), accepted }))
    };
    let tracks = &figures.tracks;
    if tracks.inner_sectors > tracks.outer_sectors {
        let accepted = format!("at most outer_sectors, {}", tracks.outer_sectors);
        return refuse("inner_sectors", tracks.inner_sectors.into(), accepted);
    }
    let revolution = 60_000_000_000 / u64::from(figures.rpm);
    for (name, skew) in
        [("track_skew_nsec", figures.track_skew), ("cylinder_skew_nsec", figures.cylinder_skew)]
    {
        if skew.0 >= revolution {
            let accepted = format!("less than a revolution, {revolution}");
            return refuse(name, skew.0, accepted);
        }
    }
    if Mechanics::new(figures).is_none() {
        let accepted = "an average well between seek_track_nsec and seek_full_nsec, as between \
                        write_seek_track_nsec and write_seek_full_nsec";
        let average = match Mechanics::fits(figures, &figures.read_seek) {
            true => ("write_seek_average_nsec", figures.write_seek.average),
            false => ("seek_average_nsec", figures.read_seek.average),
        };
        return refuse(average.0, average.1.0, accepted.into());
    }
    Ok(())
}

/// Adds a note if a sequential stream loses a revolution at each track: such a disk is slow, which is hardly intended.
fn note_crossings(figures: &Figures, notes: &mut Vec<String>) {
    let switch = figures.head_switch;
    for (what, time, name, skew) in [
        ("a head switch", switch, "track_skew_nsec", figures.track_skew),
        (
            "a seek to the next cylinder",
            switch.max(figures.read_seek.track),
            "cylinder_skew_nsec",
            figures.cylinder_skew,
        ),
    ] {
        if time > skew {
            notes.push(format!(
                "{what} takes {time}, {name} gives it {skew}: streams lose a revolution each time"
            ));
        }
    }
}

/// In the order of the help page. Defaults are those of the default preset.
pub(super) const PARAMETERS: &[Parameter] = &[
    parameter(
        "preset",
        "sata7200",
        "the drive that all other defaults come from: sata7200, sas15k",
    ),
    parameter("gb", "", "size in GiB; that of the drive unless given"),
    basics::SIZE,
    parameter("rpm", "7200", "revolutions in a minute"),
    parameter("heads", "10", "recording surfaces"),
    parameter("zones", "30", "zones, of as many cylinders each"),
    parameter("outer_sectors", "1242", "sectors on a track of the outermost zone"),
    parameter("inner_sectors", "594", "sectors on a track of the innermost zone"),
    parameter("zone_curve", "40", "percent of that fall that go with the square of the distance"),
    parameter(
        "track_skew_nsec",
        "1480000",
        "from a track's end to the next one's beginning, in ns",
    ),
    parameter("cylinder_skew_nsec", "1480000", "the same to the next cylinder, in ns"),
    parameter("seek_track_nsec", "1400000", "seek to the next track, for reading, in ns"),
    parameter("seek_average_nsec", "8500000", "average seek, for reading, in ns"),
    parameter("seek_full_nsec", "14700000", "seek across all cylinders, for reading, in ns"),
    parameter("write_seek_track_nsec", "1900000", "seek to the next track, for writing, in ns"),
    parameter("write_seek_average_nsec", "9500000", "average seek, for writing, in ns"),
    parameter("write_seek_full_nsec", "15700000", "seek across all cylinders, for writing, in ns"),
    parameter("seek_knee", "6", "percent of the stroke up to which seeks grow with the root"),
    parameter("head_switch_nsec", "1400000", "to another head of the cylinder, in ns"),
    parameter("overhead_nsec", "220000", "from a command's arrival until the arm moves, in ns"),
    parameter("hit_nsec", "50000", "from the arrival of what needs no arm until data moves, in ns"),
    parameter("link_mbps", "286", "the interface, in MiB/s"),
    parameter("segments", "16", "segments of the read cache; 0: none"),
    parameter("read_ahead", "256", "KiB that are read ahead; 0: none, and nothing read is kept"),
    parameter("cache_size", "8", "volatile write cache in MiB; 0: none"),
    parameter("cache", "8", "another name of cache_size"),
    parameter("fua", "0", "honour FUA; only with a cache"),
    parameter("destage_delay_nsec", "5000000", "idle time before the cache is written back, in ns"),
    parameter("hw_queue_depth", "32", "commands that the drive holds, 1 to 10240"),
    parameter("reorder", "1", "serve first what the head gets to first; 0: in order of arrival"),
    parameter("reorder_margin_nsec", "600000", "time in hand that it plans with, in ns"),
    parameter("age_limit_nsec", "1000000000", "a command that has waited so long is next, in ns"),
    basics::BS,
    basics::BLOCKSIZE,
    basics::MAX_SECTORS,
    parameter("badblocks", "", "+START-END or -START-END in sectors; may be given repeatedly"),
    parameter(
        "recovery_nsec",
        "7000000000",
        "time spent on a bad sector before it is given up, in ns",
    ),
    parameter(
        "recalibration_interval_nsec",
        "0",
        "mean time between recalibrations in ns; 0: none",
    ),
    parameter("recalibration_nsec", "50000000", "how long one takes, in ns"),
    parameter("seed", "0", "of when the arm recalibrates"),
    basics::LOG,
    basics::LOG_SIZE_PARAMETER,
    parameter("occupancy", "0", "record what the arm does, and where"),
    parameter("occupancy_size", "65536", "movements that this log keeps"),
];
