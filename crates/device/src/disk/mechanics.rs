//! The mechanism: the figures of a drive, and the time that the arm takes to reach a sector and to pass over a range of
//! sectors.
//!
//! Pure integer arithmetic on times and positions. `drive.rs` decides when the arm moves.
//!
//! The seek time is a function of the number of cylinders. A short seek accelerates half the way and brakes the other
//! half, so its time grows with the square root of the distance; a long one spends the rest at full speed, so its time
//! grows linearly. The curve has these two parts and fits the three figures of data sheets: the track-to-track time,
//! the average over all seeks, and the full stroke.

use super::geometry::{Angle, Geometry, Rotation, Spot, Track, Tracks};
use blkmq_core::{Instant, Nanos};

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
    pub(super) rotation: Rotation,
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
