//! The rotation of the platters: which angle is under the heads at which time, and how long an angle takes.
//!
//! Angles are integers that wrap round after a revolution. The phase is computed from the absolute time, so that no
//! error accumulates: a sector comes by at the same phase after a year. `geometry.rs` knows the place of a sector.

use blkmq_core::Instant;

/// Nanoseconds in a minute. A whole number of revolutions takes place in it at any speed.
const MINUTE: u64 = 60_000_000_000;
/// How late the heads may be for a sector and still read it, in nanoseconds: the most that rounding adds up to.
const SLACK: u64 = 4;

/// A part of a revolution, in units of 2^-32.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Angle(u32);

impl Angle {
    /// `part` of `whole` equal parts of a revolution, rounded down. `part` is below 2^32.
    #[cfg(test)]
    pub(super) fn of(part: u64, whole: u64) -> Self {
        Self(((part << 32) / whole) as u32)
    }

    /// An angle in units of 2^-48, rounded down.
    pub(super) fn scaled(units: u64) -> Self {
        Self((units >> 16) as u32)
    }

    /// Returns whether this angle is `other`, or at most `units` units before it.
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
    /// Nanoseconds in a revolution, in units of 2^-16, rounded up.
    revolution: u64,
    /// Angle in a nanosecond, in units of 2^-64 of a revolution.
    turn: u64,
    /// Angle of [`SLACK`].
    slack: u32,
}

impl Rotation {
    /// `rpm` revolutions in a minute, at least 600 (`revolution` times a track's sectors must fit).
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

    /// A revolution, in nanoseconds, rounded up.
    pub(super) fn revolution(&self) -> u64 {
        self.share(1, 1)
    }

    /// The angle under the heads at `at`; the angle 0 was there at time 0.
    pub(super) fn phase(&self, at: Instant) -> Angle {
        let turned = at.as_nanos() % MINUTE * self.rpm % MINUTE;
        // MINUTE is a multiple of 16, and `turned` has 36 bits.
        Angle(((turned << 28) / (MINUTE >> 4)) as u32)
    }

    /// The angle of the turn in `nanos`.
    pub(super) fn angle(&self, nanos: u64) -> Angle {
        Angle(((u128::from(nanos) * u128::from(self.turn)) >> 32) as u32)
    }

    /// Nanoseconds until `to` is under the heads if `from` is, rounded up.
    pub(super) fn wait(&self, from: Angle, to: Angle) -> u64 {
        let angle = to.0.wrapping_sub(from.0);
        if angle > u32::MAX - self.slack {
            return 0;
        }
        let scaled = u128::from(angle) * u128::from(self.revolution);
        (scaled >> 48) as u64 + u64::from(scaled as u64 & ((1 << 48) - 1) != 0)
    }

    /// Like `wait`, to within a nanosecond, rounded down, and faster.
    #[inline]
    pub(super) fn rough_wait(&self, from: Angle, to: Angle) -> u64 {
        // An angle that is late by no more than rounding counts as a wait of zero.
        let angle = to.0.wrapping_sub(from.0).wrapping_add(self.slack);
        let angle = u64::from(angle.saturating_sub(self.slack));
        (angle * (self.revolution >> 16)) >> 32
    }

    /// By how many nanoseconds `at` is later than the time when `angle` was under the heads, rounded down; 0 if that
    /// is more than rounding. A passage that begins late must not end later still, or the error would accumulate.
    pub(super) fn lag(&self, at: Instant, angle: Angle) -> u64 {
        let late = self.phase(at).0.wrapping_sub(angle.0);
        if late > self.slack { 0 } else { (u64::from(late) * (self.revolution >> 16)) >> 32 }
    }

    /// Nanoseconds that `part` of `whole` equal parts of a revolution take, rounded up; both below 2^16.
    pub(super) fn share(&self, part: u32, whole: u32) -> u64 {
        (u64::from(part) * self.revolution).div_ceil(u64::from(whole) << 16)
    }

    /// The number of `whole` equal parts of a revolution that pass in `nanos`, at most a few revolutions.
    pub(super) fn parts(&self, nanos: u64, whole: u32) -> u64 {
        ((nanos * u64::from(whole)) << 16) / self.revolution
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// The k-th pass of an angle is at the k-th multiple of a revolution, to the nanosecond.
    #[test]
    fn waiting_ends_when_the_angle_comes_by() {
        for rpm in [5400, 7200, 10_000, 15_000] {
            let disk = Rotation::new(rpm);
            let target = Angle::of(3, 7);
            for k in (0..1_000_000).step_by(9_973) {
                // From a time within the revolution before, in nanoseconds times rpm.
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
