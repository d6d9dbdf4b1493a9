//! The mechanism: the time that the arm takes to reach a sector, and to pass over a range of sectors.
//!
//! Pure integer arithmetic on times and positions. `drive.rs` decides when the arm moves.

use super::geometry::{Angle, Geometry, Rotation, Spot, Track};
use super::params::Figures;
use super::seek::{SeekCurve, SeekTimes};
use blkmq_core::{Instant, Nanos};

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
