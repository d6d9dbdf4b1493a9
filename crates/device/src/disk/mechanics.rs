//! The mechanism: the position of a sector, the angle of the platters at a time, and the time that the arm takes to
//! reach a sector and to pass over a range of sectors. Pure integer arithmetic on times and positions. `drive.rs`
//! decides when the arm moves.
//!
//! Positions are zones of tracks of equal length, cylinders, heads, and the skew between tracks. Tracks follow each
//! other head by head and cylinder by cylinder from the outside in. Angles are integers that wrap around after a
//! revolution. The phase is computed from the absolute time, so that no error accumulates: a sector still passes at the
//! same phase after a year.
//!
//! The seek time is a function of the number of cylinders. A short seek accelerates half the way and brakes the other
//! half, so its time grows with the square root of the distance; a long one spends the rest at full speed, so its time
//! grows linearly. The curve has these two parts and fits the three figures of data sheets: the track-to-track time,
//! the average over all seeks, and the full stroke.

use blkmq_core::{Instant, Nanos};

/// The minimum and maximum sectors of a track.
pub(super) const TRACK_SECTORS: std::ops::RangeInclusive<u16> = 16..=u16::MAX;

/// The figures that determine a geometry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tracks {
    /// The number of recording surfaces, with a head each.
    pub heads: u8,
    /// The number of zones, with equal numbers of cylinders.
    pub zones: u8,
    /// Sectors on a track of the outermost zone.
    pub outer_sectors: u16,
    /// Sectors on a track of the innermost zone.
    pub inner_sectors: u16,
    /// The percentage of the difference that is lost with the square of the distance from the outside; the rest is lost
    /// linearly. So tracks in the middle hold slightly more than by linear interpolation.
    pub zone_curve: u8,
}

impl Tracks {
    /// Sectors on a track of zone `zone`.
    fn sectors(&self, zone: u8) -> u32 {
        let last = u64::from(self.zones.max(2) - 1);
        let lost = u64::from(self.outer_sectors - self.inner_sectors);
        let (zone, curve) = (u64::from(zone), u64::from(self.zone_curve));
        let share = (100 - curve) * zone * last + curve * zone * zone;
        let whole = 100 * last * last;
        u32::from(self.outer_sectors) - ((lost * share + whole / 2) / whole) as u32
    }
}

/// A track: its number is `cylinder * heads + head`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Track {
    pub(super) cylinder: u32,
    pub(super) head: u32,
}

/// The position of a sector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Spot {
    pub(super) track: Track,
    /// The index of the sector on its track.
    sector: u32,
    /// The number of sectors of the track.
    sectors: u32,
    /// The angle at which the sector begins.
    angle: Angle,
}

#[derive(Debug)]
struct Zone {
    /// The first sector of the zone, and its first cylinder.
    first: u64,
    cylinder: u32,
    /// Sectors on a track.
    sectors: u32,
    /// Angle of a sector, in units of 2^-48 of a revolution.
    sector: u64,
}

/// Returns quotient and remainder. Most numbers fit 32 bits, for which division is much faster.
fn divided(number: u64, by: u32) -> (u64, u32) {
    match u32::try_from(number) {
        Ok(number) => ((number / by).into(), number % by),
        Err(_) => (number / u64::from(by), (number % u64::from(by)) as u32),
    }
}

#[derive(Debug)]
pub(super) struct Geometry {
    zones: Box<[Zone]>,
    heads: u32,
    /// The number of cylinders of each zone.
    each: u32,
    track_skew: Angle,
    /// The angle from the first track of a cylinder to the first of the next.
    cylinder_turn: Angle,
}

impl Geometry {
    /// Creates a geometry with enough cylinders of such tracks for `capacity` sectors. The first sector of a track is
    /// `track_skew` behind that of the previous track, or `cylinder_skew` on another cylinder.
    fn new(tracks: &Tracks, capacity: u64, track_skew: Angle, cylinder_skew: Angle) -> Self {
        let heads = u32::from(tracks.heads);
        let all: u64 = (0..tracks.zones).map(|zone| u64::from(tracks.sectors(zone))).sum();
        // The result fits: there are at most 2^35 sectors, and at least 16 on a track.
        let each = capacity.div_ceil(all * u64::from(heads)) as u32;
        let mut first = 0;
        let zone = |zone| {
            let sectors = tracks.sectors(zone);
            let cylinder = u32::from(zone) * each;
            let made = Zone { first, cylinder, sectors, sector: (1 << 48) / u64::from(sectors) };
            first += u64::from(each) * u64::from(heads) * u64::from(sectors);
            made
        };
        Self {
            zones: (0..tracks.zones).map(zone).collect(),
            heads,
            each,
            track_skew,
            cylinder_turn: track_skew.times(heads - 1).plus(cylinder_skew),
        }
    }

    pub(super) fn cylinders(&self) -> u32 {
        self.zones.len() as u32 * self.each
    }

    /// The angle at which the first sector of `track` begins.
    fn start(&self, track: Track) -> Angle {
        let cylinder = self.cylinder_turn.times(track.cylinder);
        cylinder.plus(self.track_skew.times(track.head))
    }

    /// The position of `sector`. O(log zones).
    pub(super) fn locate(&self, sector: u64) -> Spot {
        let zone = self.zones.partition_point(|zone| zone.first <= sector) - 1;
        let Zone { first, cylinder, sectors, sector: angle } = self.zones[zone];
        let (number, at) = divided(sector - first, sectors);
        let (within, head) = divided(number, self.heads);
        let track = Track { cylinder: cylinder + within as u32, head };
        let angle = self.start(track).plus(Angle::scaled(u64::from(at) * angle));
        Spot { track, sector: at, sectors, angle }
    }

    /// The position of the first sector of `track`. The geometry continues beyond the last cylinder.
    fn first_of(&self, track: Track) -> Spot {
        let zone = (track.cylinder / self.each) as usize;
        let sectors = self.zones[zone.min(self.zones.len() - 1)].sectors;
        Spot { track, sector: 0, sectors, angle: self.start(track) }
    }

    /// The track after `track`, in the order of sectors.
    fn next(&self, track: Track) -> Track {
        if track.head + 1 < self.heads {
            Track { head: track.head + 1, ..track }
        } else {
            Track { cylinder: track.cylinder + 1, head: 0 }
        }
    }
}

/// Nanoseconds in a minute, which is a whole number of revolutions at any speed.
const MINUTE: u64 = 60_000_000_000;
/// The maximum delay of the heads, in nanoseconds, at which a sector can still be read: the sum of rounding errors.
const SLACK: u64 = 4;

/// A part of a revolution, in units of 2^-32.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Angle(u32);

impl Angle {
    /// Returns `part` of `whole` equal parts of a revolution, rounded down. `part` is below 2^32.
    #[cfg(test)]
    fn of(part: u64, whole: u64) -> Self {
        Self(((part << 32) / whole) as u32)
    }

    /// An angle in units of 2^-48, rounded down.
    fn scaled(units: u64) -> Self {
        Self((units >> 16) as u32)
    }

    /// Returns whether this angle equals `other`, or precedes it by at most `units` units.
    #[cfg(test)]
    fn is_within(self, units: u32, other: Self) -> bool {
        other.0.wrapping_sub(self.0) <= units
    }

    /// The sum of two angles.
    fn plus(self, by: Self) -> Self {
        Self(self.0.wrapping_add(by.0))
    }

    /// `times` times this angle.
    fn times(self, times: u32) -> Self {
        Self(self.0.wrapping_mul(times))
    }
}

/// A speed of rotation.
#[derive(Clone, Copy, Debug)]
struct Rotation {
    rpm: u64,
    /// Nanoseconds per revolution, in units of 2^-16, rounded up.
    revolution: u64,
    /// The angle turned per nanosecond, in units of 2^-64 of a revolution.
    turn: u64,
    /// The angle of [`SLACK`].
    slack: u32,
}

impl Rotation {
    /// Creates a rotation of `rpm` revolutions per minute, at least 600 (`revolution` times the sectors of a track must
    /// fit).
    fn new(rpm: u32) -> Self {
        let rpm = u64::from(rpm);
        let mut new = Self {
            rpm,
            revolution: (MINUTE << 16).div_ceil(rpm),
            turn: ((u128::from(rpm) << 64) / u128::from(MINUTE)) as u64,
            slack: 0,
        };
        new.slack = new.angle(SLACK).0;
        new
    }

    /// The nanoseconds of a revolution, rounded up.
    fn revolution(&self) -> u64 {
        self.share(1, 1)
    }

    /// The angle under the heads at `at`; it was 0 at time 0.
    fn phase(&self, at: Instant) -> Angle {
        let turned = at.as_nanos() % MINUTE * self.rpm % MINUTE;
        // MINUTE is a multiple of 16, and `turned` has 36 bits.
        Angle(((turned << 28) / (MINUTE >> 4)) as u32)
    }

    /// The angle turned in `nanos`.
    fn angle(&self, nanos: u64) -> Angle {
        Angle(((u128::from(nanos) * u128::from(self.turn)) >> 32) as u32)
    }

    /// Returns the nanoseconds until the heads move from angle `from` to `to`, rounded up.
    fn wait(&self, from: Angle, to: Angle) -> u64 {
        let angle = to.0.wrapping_sub(from.0);
        if angle > u32::MAX - self.slack {
            return 0;
        }
        let scaled = u128::from(angle) * u128::from(self.revolution);
        (scaled >> 48) as u64 + u64::from(scaled as u64 & ((1 << 48) - 1) != 0)
    }

    /// Like `wait`, but faster: rounded down, with an error of at most a nanosecond.
    #[inline]
    fn rough_wait(&self, from: Angle, to: Angle) -> u64 {
        // An angle missed by no more than the rounding error counts as a wait of zero.
        let angle = to.0.wrapping_sub(from.0).wrapping_add(self.slack);
        let angle = u64::from(angle.saturating_sub(self.slack));
        (angle * (self.revolution >> 16)) >> 32
    }

    /// Returns by how many nanoseconds `at` is later than the time when `angle` was under the heads, rounded down; 0 if
    /// that exceeds the rounding error. A passage that begins late must not end later still, or the error would
    /// accumulate.
    fn lag(&self, at: Instant, angle: Angle) -> u64 {
        let late = self.phase(at).0.wrapping_sub(angle.0);
        if late > self.slack { 0 } else { (u64::from(late) * (self.revolution >> 16)) >> 32 }
    }

    /// The nanoseconds that `part` of `whole` equal parts of a revolution take, rounded up; both are below 2^16.
    fn share(&self, part: u32, whole: u32) -> u64 {
        (u64::from(part) * self.revolution).div_ceil(u64::from(whole) << 16)
    }

    /// How many of `whole` equal parts of a revolution pass in `nanos`, which is at most a few revolutions.
    fn parts(&self, nanos: u64, whole: u32) -> u64 {
        ((nanos * u64::from(whole)) << 16) / self.revolution
    }
}

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

/// The kind of access. Writes settle longer: a read slightly off the track succeeds, but a write would damage the
/// neighbouring track.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Access {
    Read,
    Write,
}

/// The position of the beginning of a range, computed once when its command is queued.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) track: Track,
    angle: Angle,
    pub(super) access: Access,
}

/// The starting point of an arm that could move to any of several targets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Departure {
    track: Track,
    /// The track after `track`.
    next: Track,
    phase: Angle,
}

/// The firmware's estimate of the time to a target.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Estimate(u64);

impl Estimate {
    /// The target is under the head.
    pub(super) const ZERO: Self = Self(0);
    /// Longer than any movement.
    pub(super) const MAX: Self = Self(u64::MAX);
}

/// A passage over sectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passage {
    /// The time at which the first sector comes under the head.
    pub(super) begin: Instant,
    /// The time at which the last sector has passed.
    pub(super) end: Instant,
    /// The track of the arm at the end.
    pub(super) track: Track,
}

/// The moving parts.
#[derive(Debug)]
pub(super) struct Mechanics {
    pub(super) geometry: Geometry,
    rotation: Rotation,
    read: SeekCurve,
    write: SeekCurve,
    head_switch: u64,
    /// The time to switch to the next cylinder and its first head.
    cylinder_switch: u64,
    /// The additional settling time of a write.
    write_settle: u64,
    margin: u64,
    revolution: u64,
}

impl Mechanics {
    /// Creates the mechanism with these figures. Returns `None` if no curve fits the seek times.
    pub(super) fn new(figures: &Figures) -> Option<Self> {
        let rotation = Rotation::new(figures.rpm);
        let [track_skew, cylinder_skew] =
            [figures.track_skew, figures.cylinder_skew].map(|skew| rotation.angle(skew.0));
        let geometry = Geometry::new(&figures.tracks, figures.capacity, track_skew, cylinder_skew);
        let fit = |times| SeekCurve::fit(times, figures.seek_knee, geometry.cylinders());
        let (read, write) = (fit(&figures.read_seek)?, fit(&figures.write_seek)?);
        let head_switch = figures.head_switch.0;
        Some(Self {
            cylinder_switch: read.time(1).max(head_switch),
            write_settle: write.time(1).saturating_sub(read.time(1)),
            margin: figures.reorder_margin.0,
            revolution: rotation.revolution(),
            read,
            write,
            rotation,
            geometry,
            head_switch,
        })
    }

    /// Returns whether a curve fits these seek times.
    pub(super) fn fits(figures: &Figures, times: &SeekTimes) -> bool {
        SeekCurve::fit(times, figures.seek_knee, 2).is_some()
    }

    /// The target of a range that begins with `sector`.
    pub(super) fn target(&self, sector: u64, access: Access) -> Target {
        let Spot { track, angle, .. } = self.geometry.locate(sector);
        Target { track, angle, access }
    }

    /// The time of a seek over `distance` cylinders, in nanoseconds.
    #[cfg(test)]
    pub(super) fn seek(&self, distance: u32, access: Access) -> u64 {
        match access {
            Access::Read => self.read.time(distance),
            Access::Write => self.write.time(distance),
        }
    }

    /// The time from a track to the next one within a transfer, for which the skew allows.
    fn step(&self, from: Track, to: Track) -> u64 {
        if from.cylinder == to.cylinder { self.head_switch } else { self.cylinder_switch }
    }

    /// Returns the time until the head has settled on the target's track; `next` is the track after `from`. O(1).
    #[inline]
    fn reach(&self, from: Track, next: Track, to: &Target) -> u64 {
        if from == to.track {
            return 0;
        }
        if to.track == next {
            return self.step(from, to.track);
        }
        let curve = match to.access {
            Access::Read => &self.read,
            Access::Write => &self.write,
        };
        let distance = from.cylinder.abs_diff(to.track.cylinder);
        let switch = match (from.head == to.track.head, to.access) {
            (true, _) => 0,
            (false, Access::Read) => self.head_switch,
            (false, Access::Write) => self.head_switch + self.write_settle,
        };
        curve.time(distance).max(switch)
    }

    /// A departure from `track` at `at`.
    pub(super) fn departure(&self, (at, track): (Instant, Track)) -> Departure {
        Departure { track, next: self.geometry.next(track), phase: self.rotation.phase(at) }
    }

    /// Estimates the time to `to`. To choose among several targets, a sector that would come under the head within a
    /// margin after a seek is assumed to take another revolution. A switch to the next track is not a seek: its skew is
    /// the margin. O(1), with no division and hardly a branch, because the drive estimates every command of a full
    /// queue.
    #[inline]
    pub(super) fn estimate(&self, from: &Departure, to: &Target) -> Estimate {
        let reach = self.reach(from.track, from.next, to);
        let wait = self.rotation.rough_wait(from.phase.plus(self.rotation.angle(reach)), to.angle);
        let is_seek = from.track != to.track && from.next != to.track;
        let late = u64::from(is_seek && wait < self.margin) * self.revolution;
        Estimate(reach + wait + late)
    }

    /// Returns the time at which the target's first sector comes under the head of an arm that leaves `from` at `at`.
    fn arrive(&self, at: Instant, from: Track, to: &Target) -> Instant {
        let settled = at + Nanos(self.reach(from, self.geometry.next(from), to));
        settled + Nanos(self.rotation.wait(self.rotation.phase(settled), to.angle))
    }

    /// A passage over `sectors` sectors from `spot` on, the first of which comes under the head at `begin`.
    /// O(tracks).
    fn pass(&self, mut spot: Spot, mut sectors: u64, begin: Instant) -> Passage {
        let mut at = begin;
        loop {
            let here = u64::from(spot.sectors - spot.sector).min(sectors) as u32;
            let end = self.end(&spot, here, at);
            sectors -= u64::from(here);
            if sectors == 0 {
                return Passage { begin, end, track: spot.track };
            }
            (spot, at) = self.cross(spot, end);
        }
    }

    /// Returns the time at which `sectors` sectors from `spot` on, all on its track, have passed, if the first comes
    /// under the head at `begin`.
    fn end(&self, spot: &Spot, sectors: u32, begin: Instant) -> Instant {
        let share = self.rotation.share(sectors, spot.sectors);
        begin + Nanos(share - self.rotation.lag(begin, spot.angle))
    }

    /// Crosses to the first sector of the next track, after the last sector of `spot`'s track has passed at `end`.
    /// Returns that sector and the time when it comes under the head.
    fn cross(&self, spot: Spot, end: Instant) -> (Spot, Instant) {
        let track = self.geometry.next(spot.track);
        let next = self.geometry.first_of(track);
        let to = Target { track, angle: next.angle, access: Access::Read };
        (next, self.arrive(end, spot.track, &to))
    }

    /// Moves from `from`, left at `at`, to `sector`, and over `sectors` sectors. O(tracks).
    pub(super) fn transfer(
        &self,
        (at, from): (Instant, Track),
        sector: u64,
        sectors: u64,
        access: Access,
    ) -> Passage {
        let spot = self.geometry.locate(sector);
        let to = Target { track: spot.track, angle: spot.angle, access };
        self.pass(spot, sectors, self.arrive(at, from, &to))
    }
}

/// An open-ended passage: the head passes over sectors until the arm is needed for other work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    /// A sector that comes under the head at `since`; after progress, the first sector of a track.
    anchor: u64,
    since: Instant,
    track: Track,
    /// The first sector that is not read.
    pub(super) limit: u64,
}

impl Stream {
    /// The stream of an arm that is at `track` at `at` and continues with sector `next`.
    pub(super) fn begin(
        mechanics: &Mechanics,
        (at, track): (Instant, Track),
        next: u64,
        limit: u64,
    ) -> Self {
        let to = mechanics.target(next, Access::Read);
        Self { anchor: next, since: mechanics.arrive(at, track, &to), track: to.track, limit }
    }

    /// The sector reached by `now`: everything before it has been read. O(tracks since the last call). Times must not
    /// decrease.
    pub(super) fn reached(&mut self, mechanics: &Mechanics, now: Instant) -> u64 {
        while self.anchor < self.limit && self.since < now {
            let spot = mechanics.geometry.locate(self.anchor);
            self.track = spot.track;
            let left = spot.sectors - spot.sector;
            let end = mechanics.end(&spot, left, self.since);
            if end > now {
                let parts = mechanics.rotation.parts((now - self.since).0, spot.sectors);
                return (self.anchor + parts.min(left.into())).min(self.limit);
            }
            if self.anchor + u64::from(left) >= self.limit {
                return self.limit;
            }
            self.anchor += u64::from(left);
            self.since = mechanics.cross(spot, end).1;
        }
        self.anchor.min(self.limit)
    }

    /// The track of the arm at the last call of [`reached`](Self::reached).
    pub(super) fn track(&self) -> Track {
        self.track
    }

    /// The passage up to sector `end`: the time when everything before it has been read, and the track of the arm then.
    /// O(tracks).
    pub(super) fn pass_to(&self, mechanics: &Mechanics, end: u64) -> Passage {
        let spot = mechanics.geometry.locate(self.anchor);
        mechanics.pass(spot, end - self.anchor, self.since)
    }
}

/// Below this distance the table has every value; beyond it, this many values for each power of two.
const DIRECT: u32 = 64;
/// Distances at which the average is taken.
const SAMPLES: i128 = 4096;
/// The unit of a fraction of the stroke; square roots have the unit `ROOT`.
const ONE: i128 = 1 << 32;
const ROOT: i128 = 1 << 16;

/// Published seek times, including settling.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeekTimes {
    /// From one track to the next.
    pub track: Nanos,
    /// The average over all pairs of cylinders.
    pub average: Nanos,
    /// From the first cylinder to the last.
    pub full: Nanos,
}

/// A seek curve, as a table.
#[derive(Clone, Debug)]
struct SeekCurve {
    /// Nanoseconds for a distance one above that of the [`Slot`].
    table: Box<[u32]>,
}

/// The position of a distance in the table: `rest / 2^shift` beyond entry `index`.
struct Slot {
    index: usize,
    rest: u32,
    shift: u32,
}

fn slot(beyond: u32) -> Slot {
    if beyond < DIRECT {
        return Slot { index: beyond as usize, rest: 0, shift: 0 };
    }
    let shift = beyond.ilog2() - DIRECT.ilog2();
    let index = DIRECT * shift + (beyond >> shift);
    Slot { index: index as usize, rest: beyond & ((1 << shift) - 1), shift }
}

/// The two parts: `track + sqrt * root(min(x, knee)) + linear * max(0, x - knee)`, x being a fraction of the
/// stroke. Coefficients in 2^-16 ns.
struct Parts {
    track: i128,
    root: i128,
    linear: i128,
    knee: i128,
}

fn root_of(x: i128) -> i128 {
    (x as u64).isqrt().into()
}

impl Parts {
    /// Solves for the coefficients: the average and the full stroke give two linear equations. Returns `None` if a
    /// coefficient would be negative.
    fn solve(times: &SeekTimes, knee: i128) -> Option<Self> {
        let [track, average, full] =
            [times.track, times.average, times.full].map(|time| i128::from(time.0));
        let (mut weights, mut roots, mut linears) = (0, 0, 0);
        for sample in 0..SAMPLES {
            let x = (2 * sample + 1) * ONE / (2 * SAMPLES);
            // The longer a seek, the fewer pairs of cylinders have its distance.
            let weight = (ONE - x) / ROOT;
            weights += weight;
            roots += weight * root_of(x.min(knee));
            linears += weight * (x - knee).max(0);
        }
        let (roots, linears) = (roots / weights, linears / weights);
        let (root_at_knee, rest) = (root_of(knee), ONE - knee);
        let determinant = roots * rest - linears * root_at_knee;
        let (above, across) = ((average - track) * ONE, (full - track) * ONE);
        if determinant == 0 {
            return None;
        }
        // In units of a root and of a fraction; both come out in 2^-16 ns.
        let root = (above * rest - across * linears) / determinant;
        let linear = (across * roots - above * root_at_knee) / determinant * ROOT;
        let possible = root >= 0 && linear >= 0;
        possible.then_some(Self { track, root, linear, knee })
    }

    fn at(&self, x: i128) -> u32 {
        let short = self.root * root_of(x.min(self.knee)) / ONE;
        let long = self.linear * (x - self.knee).max(0) / (ONE * ROOT);
        (self.track + short + long) as u32
    }
}

impl SeekCurve {
    /// Fits a curve to `times` for a disk of `cylinders`, where the first `knee` percent (1 to 99) of the stroke grow
    /// with the square root. Returns `None` if no such curve exists: the average is too close to one of the other
    /// figures.
    fn fit(times: &SeekTimes, knee: u8, cylinders: u32) -> Option<Self> {
        let parts = Parts::solve(times, i128::from(knee) * ONE / 100)?;
        let longest = cylinders.saturating_sub(2);
        // One more entry, for interpolation.
        let entries = slot(longest).index + 2;
        let mut table = Vec::with_capacity(entries);
        let stroke = i128::from(longest.max(1));
        for index in 0..entries as u32 {
            let shift = (index / DIRECT).saturating_sub(1);
            let beyond = i128::from(index - DIRECT * shift) << shift;
            table.push(parts.at(beyond * ONE / stroke));
        }
        Some(Self { table: table.into() })
    }

    /// The nanoseconds for `distance` cylinders; zero for zero. O(1).
    #[inline]
    fn time(&self, distance: u32) -> u64 {
        let Some(beyond) = distance.checked_sub(1) else { return 0 };
        let Slot { index, rest, shift } = slot(beyond);
        let [from, to] = [self.table[index], self.table[index + 1]].map(u64::from);
        from + (((to - from) * u64::from(rest)) >> shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::Rng;

    const TRACKS: Tracks =
        Tracks { heads: 3, zones: 4, outer_sectors: 40, inner_sectors: 20, zone_curve: 50 };

    fn geometry(capacity: u64) -> Geometry {
        Geometry::new(&TRACKS, capacity, Angle::of(1, 16), Angle::of(1, 8))
    }

    #[test]
    fn tracks_grow_shorter_towards_the_inside() {
        let sectors = [0, 1, 2, 3].map(|zone| TRACKS.sectors(zone));
        assert_eq!(sectors, [40, 36, 29, 20]);
        let straight = Tracks { zone_curve: 0, zones: 3, ..TRACKS };
        assert_eq!([0, 1, 2].map(|zone| straight.sectors(zone)), [40, 30, 20]);
        assert_eq!(Tracks { zones: 1, ..TRACKS }.sectors(0), 40);
    }

    /// Every sector in order: head by head, cylinder by cylinder, without a gap.
    #[test]
    fn sectors_lie_one_behind_the_other() {
        let geometry = geometry(12_000);
        assert_eq!(
            geometry.cylinders(),
            4 * 32,
            "4 zones of 125 sectors for each head and cylinder"
        );
        let mut expected = geometry.locate(0);
        assert_eq!((expected.track, expected.sector), (Track::default(), 0));
        for sector in 0..12_000 {
            let spot = geometry.locate(sector);
            assert_eq!((spot.track, spot.sector), (expected.track, expected.sector), "{sector}");
            let zone = (spot.track.cylinder / 32) as u8;
            assert_eq!(spot.sectors, TRACKS.sectors(zone));
            expected = Spot { sector: spot.sector + 1, ..spot };
            if expected.sector == spot.sectors {
                expected = Spot { track: geometry.next(spot.track), sector: 0, ..spot };
            }
        }
    }

    #[test]
    fn tracks_begin_behind_each_other_by_the_skew() {
        let geometry = geometry(12_000);
        let start = |cylinder, head| geometry.start(Track { cylinder, head });
        assert_eq!(start(0, 1), Angle::of(1, 16));
        assert_eq!(start(0, 2), Angle::of(2, 16));
        assert_eq!(start(1, 0), Angle::of(4, 16));
        assert_eq!(start(127, 0), Angle::of(127 * 4 % 16, 16));
        // Sectors are located to 2^-32 of a revolution, far below a nanosecond.
        let half = start(0, 1).plus(Angle::of(1, 2));
        assert!(geometry.locate(60).angle.is_within(1, half));
    }

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    #[test]
    fn the_phase_is_exact_for_ever() {
        let disk = Rotation::new(7200);
        assert_eq!(disk.phase(at(0)), Angle(0));
        assert_eq!(disk.phase(at(25_000_000)), Angle(0), "three revolutions are a whole number");
        for years in [1, 100] {
            let long = years * 365 * 86_400 * 1_000_000_000;
            assert_eq!(disk.phase(at(long)), Angle(0), "whole seconds are whole revolutions");
            assert_eq!(
                disk.phase(at(long + 12_500_000)),
                Angle(1 << 31),
                "and this is a half more"
            );
        }
    }

    /// The k-th passage of an angle is at the k-th multiple of a revolution, to the nanosecond.
    #[test]
    fn waiting_ends_when_the_angle_comes_by() {
        for rpm in [5400, 7200, 10_000, 15_000] {
            let disk = Rotation::new(rpm);
            let target = Angle::of(3, 7);
            for k in (0..1_000_000).step_by(9_973) {
                // From a time within the previous revolution, in nanoseconds times rpm.
                let pass = (u128::from(MINUTE) * (7 * k + 3)).div_ceil(7 * u128::from(rpm)) as u64;
                for before in [1000, 1_000_000, 3_000_000] {
                    let from = at(pass.saturating_sub(before));
                    let end = from.as_nanos() + disk.wait(disk.phase(from), target);
                    assert!(end.abs_diff(pass) <= 1, "{rpm} rpm, pass {k}: {end} for {pass}");
                }
            }
        }
    }

    #[test]
    fn who_is_late_by_rounding_only_does_not_wait() {
        let disk = Rotation::new(7200);
        let target = Angle::of(1, 1000);
        let pass = disk.wait(Angle(0), target);
        assert_eq!(disk.wait(disk.phase(at(pass + 2)), target), 0);
        let missed = disk.wait(disk.phase(at(pass + 100)), target);
        assert!(missed > disk.revolution() - 110, "{missed}");
    }

    #[test]
    fn a_span_turns_as_far_as_the_time_says() {
        let disk = Rotation::new(15_000);
        for nanos in [0, 1, 999, 4_000_000, 17_654_321] {
            let turned = disk.angle(nanos).0;
            let error = disk.phase(at(nanos)).0.wrapping_sub(turned);
            assert!(error <= 1, "{nanos}: {error}");
        }
        assert_eq!(disk.revolution(), 4_000_000);
        assert_eq!((disk.share(1, 4), disk.parts(1_000_000, 400)), (1_000_000, 100));
    }

    const CYLINDERS: u32 = 100_000;

    fn times(track: u64, average: u64, full: u64) -> SeekTimes {
        let [track, average, full] = [track, average, full].map(Nanos::from_micros);
        SeekTimes { track, average, full }
    }

    fn curve(times: &SeekTimes, knee: u8) -> SeekCurve {
        SeekCurve::fit(times, knee, CYLINDERS).expect("a possible curve")
    }

    #[test]
    fn it_goes_through_the_three_figures() {
        for (times, knee) in [
            (times(200, 3400, 6600), 40),
            (times(1400, 8500, 14_700), 6),
            (times(800, 8500, 16_000), 30),
        ] {
            let curve = curve(&times, knee);
            let near =
                |value: u64, published: Nanos| value.abs_diff(published.0) * 1000 <= published.0;
            assert_eq!((curve.time(0), curve.time(1)), (0, times.track.0));
            assert!(near(curve.time(CYLINDERS - 1), times.full), "{}", curve.time(CYLINDERS - 1));
            let (mut sum, mut weights) = (0, 0);
            for distance in 1..CYLINDERS {
                let weight = u64::from(CYLINDERS - distance);
                sum += u128::from(weight) * u128::from(curve.time(distance));
                weights += weight;
            }
            let average = (sum / u128::from(weights)) as u64;
            assert!(near(average, times.average), "{average} for {times:?}");
        }
    }

    #[test]
    fn the_average_over_random_pairs_is_the_published_one() {
        let (curve, mut rng) = (curve(&times(200, 3400, 6600), 40), Rng::new(1));
        let mut any = || rng.below(CYLINDERS.into()) as u32;
        let pairs = 200_000;
        let sum: u64 = (0..pairs).map(|_| curve.time(any().abs_diff(any()))).sum();
        assert!((sum / pairs).abs_diff(3_400_000) < 17_000, "{}", sum / pairs);
    }

    #[test]
    fn longer_seeks_take_longer_and_short_ones_grow_with_the_root() {
        let curve = curve(&times(200, 3400, 6600), 40);
        assert!((1..CYLINDERS - 1).all(|d| curve.time(d) <= curve.time(d + 1)));
        let beyond_track = |d: u32| curve.time(d + 1) - 200_000;
        for d in [100, 1000, 7000] {
            let ratio = beyond_track(4 * d) * 1000 / beyond_track(d);
            assert!((1990..=2010).contains(&ratio), "{d}: four times as far takes {ratio} / 1000");
        }
        let slope = |d: u32| curve.time(d + 10_000) - curve.time(d);
        assert!(slope(50_000).abs_diff(slope(85_000)) < 1000, "far out it is a straight line");
    }

    #[test]
    fn figures_that_no_curve_fits_are_refused() {
        for impossible in
            [times(1000, 900, 8000), times(1000, 7900, 8000), times(2000, 2100, 90_000)]
        {
            assert!(SeekCurve::fit(&impossible, 30, CYLINDERS).is_none(), "{impossible:?}");
        }
        for few in [1, 2, 3, 65, 66, 67] {
            let curve = SeekCurve::fit(&times(200, 3400, 6600), 40, few).expect("a possible curve");
            assert!(few < 3 || curve.time(few - 1) > 6_590_000, "{few}: {}", curve.time(few - 1));
        }
    }
}
