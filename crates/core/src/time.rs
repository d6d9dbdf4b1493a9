//! Time as integers: nanoseconds since an epoch that the caller chooses.
//!
//! There is deliberately no way to obtain "now" here. The caller that drives a queue passes the time, so that a
//! simulator can do so too.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

/// A point in time: nanoseconds since the epoch of its clock (usually a queue's creation). 64 bits last 584 years.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(u64);

/// A span of time in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Nanos(pub u64);

impl Instant {
    /// The epoch. Unlike `std::time::Instant`, tests and simulations can start here.
    pub const ZERO: Self = Self(0);
    /// Later than any time that occurs; "never" as a deadline.
    pub const MAX: Self = Self(u64::MAX);

    /// The instant `ns` nanoseconds after the epoch.
    #[must_use]
    pub const fn from_nanos(ns: u64) -> Self {
        Self(ns)
    }

    /// Nanoseconds since the epoch.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time from `earlier` to `self`, or zero if `earlier` is later. Each thread reads the clock separately, so a
    /// small inversion is not a bug.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }

    /// `self` minus `span`, not before the epoch.
    #[must_use]
    pub const fn saturating_sub(self, span: Nanos) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

impl Nanos {
    /// A span of zero.
    pub const ZERO: Self = Self(0);

    /// A span of `us` microseconds.
    #[must_use]
    pub const fn from_micros(us: u64) -> Self {
        Self(us.saturating_mul(1_000))
    }

    /// A span of `ms` milliseconds.
    #[must_use]
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }

    /// A span of `s` seconds.
    #[must_use]
    pub const fn from_secs(s: u64) -> Self {
        Self(s.saturating_mul(1_000_000_000))
    }
}

impl Add<Nanos> for Instant {
    type Output = Self;
    fn add(self, span: Nanos) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl AddAssign<Nanos> for Instant {
    fn add_assign(&mut self, span: Nanos) {
        *self = *self + span;
    }
}

impl Sub for Instant {
    type Output = Nanos;
    fn sub(self, earlier: Self) -> Nanos {
        self.since(earlier)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ns @ 0..10_000 => write!(f, "{ns} ns"),
            ns @ 10_000..10_000_000 => write!(f, "{}.{} us", ns / 1_000, ns % 1_000 / 100),
            ns => write!(f, "{}.{} ms", ns / 1_000_000, ns % 1_000_000 / 100_000),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn an_inverted_span_is_zero() {
        let (a, b) = (Instant::from_nanos(5), Instant::from_nanos(9));
        assert_eq!(b - a, Nanos(4));
        assert_eq!(a - b, Nanos::ZERO);
    }

    #[test]
    fn sums_saturate_at_never() {
        assert_eq!(Instant::MAX + Nanos(1), Instant::MAX);
        assert_eq!(Instant::ZERO.saturating_sub(Nanos(1)), Instant::ZERO);
    }

    #[test]
    fn spans_print_with_a_unit_that_fits() {
        assert_eq!(Nanos(950).to_string(), "950 ns");
        assert_eq!(Nanos(12_340).to_string(), "12.3 us");
        assert_eq!(Nanos(12_340_000).to_string(), "12.3 ms");
    }
}
