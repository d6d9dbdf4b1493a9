//! The place of a sector: zones of tracks of one length, cylinders, heads, and the skew between tracks.
//!
//! Tracks follow each other head by head and cylinder by cylinder from the outside in. `mechanics.rs` knows the time
//! from one to the next.

use super::rotation::Angle;

/// The fewest and the most sectors that a track may have.
pub(super) const TRACK_SECTORS: std::ops::RangeInclusive<u16> = 16..=u16::MAX;

/// The figures that determine a geometry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tracks {
    /// Recording surfaces, with a head each.
    pub heads: u8,
    /// Zones, of an equal number of cylinders each.
    pub zones: u8,
    /// Sectors on a track of the outermost zone.
    pub outer_sectors: u16,
    /// Sectors on a track of the innermost zone.
    pub inner_sectors: u16,
    /// Percent of the difference that is lost with the square of the distance from the outside; the rest is lost
    /// evenly. Tracks in the middle hold a little more than a straight line would give.
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

/// The place of a sector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Spot {
    pub(super) track: Track,
    /// The number of the sector on the track.
    pub(super) sector: u32,
    /// Sectors on that track.
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

/// Quotient and remainder. Most numbers fit 32 bits, which divide much faster.
fn divided(number: u64, by: u32) -> (u64, u32) {
    match u32::try_from(number) {
        Ok(number) => ((number / by).into(), number % by),
        Err(_) => (number / u64::from(by), (number % u64::from(by)) as u32),
    }
}

/// The geometry of a disk.
#[derive(Debug)]
pub(super) struct Geometry {
    zones: Box<[Zone]>,
    heads: u32,
    /// Cylinders of each zone.
    each: u32,
    track_skew: Angle,
    /// Angle from the first track of a cylinder to the first of the next.
    cylinder_turn: Angle,
}

impl Geometry {
    /// A geometry with enough cylinders of such tracks for `capacity` sectors. The first sector of a track lies
    /// behind that of the track before it by `track_skew`, or by `cylinder_skew` if that is on another cylinder.
    pub(super) fn new(
        tracks: &Tracks,
        capacity: u64,
        track_skew: Angle,
        cylinder_skew: Angle,
    ) -> Self {
        let heads = u32::from(tracks.heads);
        let all: u64 = (0..tracks.zones).map(|zone| u64::from(tracks.sectors(zone))).sum();
        // Fits: there are at most 2^35 sectors, and 16 on a track.
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

    /// The number of cylinders.
    pub(super) fn cylinders(&self) -> u32 {
        self.zones.len() as u32 * self.each
    }

    /// The angle at which the first sector of `track` begins.
    fn start(&self, track: Track) -> Angle {
        let cylinder = self.cylinder_turn.times(track.cylinder);
        cylinder.plus(self.track_skew.times(track.head))
    }

    /// The place of `sector`. O(log zones).
    pub(super) fn locate(&self, sector: u64) -> Spot {
        let zone = self.zones.partition_point(|zone| zone.first <= sector) - 1;
        let Zone { first, cylinder, sectors, sector: angle } = self.zones[zone];
        let (number, at) = divided(sector - first, sectors);
        let (within, head) = divided(number, self.heads);
        let track = Track { cylinder: cylinder + within as u32, head };
        let angle = self.start(track).plus(Angle::scaled(u64::from(at) * angle));
        Spot { track, sector: at, sectors, angle }
    }

    /// The place of the first sector of `track`. Behind the last cylinder there are more like it.
    pub(super) fn first_of(&self, track: Track) -> Spot {
        let zone = (track.cylinder / self.each) as usize;
        let sectors = self.zones[zone.min(self.zones.len() - 1)].sectors;
        Spot { track, sector: 0, sectors, angle: self.start(track) }
    }

    /// The track behind `track`, in the order of sectors.
    pub(super) fn next(&self, track: Track) -> Track {
        if track.head + 1 < self.heads {
            Track { head: track.head + 1, ..track }
        } else {
            Track { cylinder: track.cylinder + 1, head: 0 }
        }
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
}
