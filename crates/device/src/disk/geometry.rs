//! The position of a sector: zones of tracks of equal length, cylinders, heads, and the skew between tracks; and the
//! angle of the platters under the heads at a time.
//!
//! Tracks follow each other head by head and cylinder by cylinder from the outside in. `mechanics.rs` has the time from
//! one to the next. Angles are integers that wrap around after a revolution. The phase is computed from the absolute
//! time, so that no error accumulates: a sector still passes at the same phase after a year.

use blkmq_core::Instant;

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
    pub(super) sector: u32,
    /// The number of sectors of the track.
    pub(super) sectors: u32,
    /// The angle at which the sector begins.
    pub(super) angle: Angle,
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
    pub(super) fn new(
        tracks: &Tracks,
        capacity: u64,
        track_skew: Angle,
        cylinder_skew: Angle,
    ) -> Self {
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
    pub(super) fn first_of(&self, track: Track) -> Spot {
        let zone = (track.cylinder / self.each) as usize;
        let sectors = self.zones[zone.min(self.zones.len() - 1)].sectors;
        Spot { track, sector: 0, sectors, angle: self.start(track) }
    }

    /// The track after `track`, in the order of sectors.
    pub(super) fn next(&self, track: Track) -> Track {
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
pub(super) struct Angle(u32);

impl Angle {
    /// Returns `part` of `whole` equal parts of a revolution, rounded down. `part` is below 2^32.
    #[cfg(test)]
    pub(super) fn of(part: u64, whole: u64) -> Self {
        Self(((part << 32) / whole) as u32)
    }

    /// An angle in units of 2^-48, rounded down.
    fn scaled(units: u64) -> Self {
        Self((units >> 16) as u32)
    }

    /// Returns whether this angle equals `other`, or precedes it by at most `units` units.
    #[cfg(test)]
    pub(super) fn is_within(self, units: u32, other: Self) -> bool {
        other.0.wrapping_sub(self.0) <= units
    }

    /// The sum of two angles.
    pub(super) fn plus(self, by: Self) -> Self {
        Self(self.0.wrapping_add(by.0))
    }

    /// `times` times this angle.
    pub(super) fn times(self, times: u32) -> Self {
        Self(self.0.wrapping_mul(times))
    }
}

/// A speed of rotation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rotation {
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
    pub(super) fn new(rpm: u32) -> Self {
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
    pub(super) fn revolution(&self) -> u64 {
        self.share(1, 1)
    }

    /// The angle under the heads at `at`; it was 0 at time 0.
    pub(super) fn phase(&self, at: Instant) -> Angle {
        let turned = at.as_nanos() % MINUTE * self.rpm % MINUTE;
        // MINUTE is a multiple of 16, and `turned` has 36 bits.
        Angle(((turned << 28) / (MINUTE >> 4)) as u32)
    }

    /// The angle turned in `nanos`.
    pub(super) fn angle(&self, nanos: u64) -> Angle {
        Angle(((u128::from(nanos) * u128::from(self.turn)) >> 32) as u32)
    }

    /// Returns the nanoseconds until the heads move from angle `from` to `to`, rounded up.
    pub(super) fn wait(&self, from: Angle, to: Angle) -> u64 {
        let angle = to.0.wrapping_sub(from.0);
        if angle > u32::MAX - self.slack {
            return 0;
        }
        let scaled = u128::from(angle) * u128::from(self.revolution);
        (scaled >> 48) as u64 + u64::from(scaled as u64 & ((1 << 48) - 1) != 0)
    }

    /// Like `wait`, but faster: rounded down, with an error of at most a nanosecond.
    #[inline]
    pub(super) fn rough_wait(&self, from: Angle, to: Angle) -> u64 {
        // An angle missed by no more than the rounding error counts as a wait of zero.
        let angle = to.0.wrapping_sub(from.0).wrapping_add(self.slack);
        let angle = u64::from(angle.saturating_sub(self.slack));
        (angle * (self.revolution >> 16)) >> 32
    }

    /// Returns by how many nanoseconds `at` is later than the time when `angle` was under the heads, rounded down; 0 if
    /// that exceeds the rounding error. A passage that begins late must not end later still, or the error would
    /// accumulate.
    pub(super) fn lag(&self, at: Instant, angle: Angle) -> u64 {
        let late = self.phase(at).0.wrapping_sub(angle.0);
        if late > self.slack { 0 } else { (u64::from(late) * (self.revolution >> 16)) >> 32 }
    }

    /// The nanoseconds that `part` of `whole` equal parts of a revolution take, rounded up; both are below 2^16.
    pub(super) fn share(&self, part: u32, whole: u32) -> u64 {
        (u64::from(part) * self.revolution).div_ceil(u64::from(whole) << 16)
    }

    /// How many of `whole` equal parts of a revolution pass in `nanos`, which is at most a few revolutions.
    pub(super) fn parts(&self, nanos: u64, whole: u32) -> u64 {
        ((nanos * u64::from(whole)) << 16) / self.revolution
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
