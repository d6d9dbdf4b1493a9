//! Time as integers: nanoseconds since an epoch that the caller chooses; and a histogram of latencies.
//!
//! There is deliberately no way to obtain "now" here. The caller that drives a queue passes the time, so that a
//! simulator can do so too.
//!
//! The [`Histogram`] is log-linear: integer only, fixed size, mergeable. It has 64 linear buckets per power of two, as
//! in fio, so a reported percentile is at most 1/64 (1.6 %) above the true one. Recording is a shift and an increment.

use alloc::boxed::Box;
use alloc::vec;
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

const SUB_BITS: u32 = 6;
const SUB: usize = 1 << SUB_BITS;
/// Values of 2^40 ns (18 minutes) and more share the last bucket.
const GROUPS: usize = 40 - SUB_BITS as usize + 1;

/// Counts of values, by magnitude.
#[derive(Clone, Debug)]
pub struct Histogram {
    buckets: Box<[u64]>,
    count: u64,
    sum: u128,
    sum_squares: f64,
    min: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    /// An empty histogram (17 KiB).
    #[must_use]
    pub fn new() -> Self {
        Self {
            buckets: vec![0; GROUPS * SUB].into_boxed_slice(),
            count: 0,
            sum: 0,
            sum_squares: 0.0,
            min: u64::MAX,
            max: 0,
        }
    }

    fn index(value: u64) -> usize {
        let magnitude = (value | (SUB as u64 - 1)).ilog2() + 1 - SUB_BITS;
        let group = magnitude as usize;
        if group == 0 {
            return value as usize;
        }
        let linear = (value >> (magnitude - 1)) as usize & (SUB - 1);
        let index = group * SUB + linear;
        index.min(GROUPS * SUB - 1)
    }

    /// The largest value that falls into bucket `index`.
    fn upper(index: usize) -> u64 {
        let (group, linear) = (index / SUB, (index % SUB) as u64);
        if group == 0 {
            return linear;
        }
        let shift = group as u32 - 1;
        ((SUB as u64 + linear + 1) << shift) - 1
    }

    /// Counts `value`.
    #[inline]
    pub fn record(&mut self, value: u64) {
        self.buckets[Self::index(value)] += 1;
        self.count += 1;
        self.sum += u128::from(value);
        self.sum_squares += (value as f64) * (value as f64);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (into, from) in self.buckets.iter_mut().zip(&other.buckets) {
            *into += from;
        }
        self.count += other.count;
        self.sum += other.sum;
        self.sum_squares += other.sum_squares;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Removes all counts.
    pub fn clear(&mut self) {
        self.buckets.fill(0);
        (self.count, self.sum, self.sum_squares) = (0, 0, 0.0);
        (self.min, self.max) = (u64::MAX, 0);
    }

    /// The number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The smallest value, 0 if there is none.
    #[must_use]
    pub fn min(&self) -> u64 {
        if self.count == 0 { 0 } else { self.min }
    }

    /// The largest value, 0 if there is none.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The mean, 0 if there is none.
    #[must_use]
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }

    /// The variance, 0 below two values. (No square root here: the crate is `no_std`.)
    #[must_use]
    pub fn variance(&self) -> f64 {
        if self.count < 2 {
            return 0.0;
        }
        let n = self.count as f64;
        ((self.sum_squares - self.mean() * self.mean() * n) / (n - 1.0)).max(0.0)
    }

    /// The value that `num / den` of all values do not exceed, at most 1.6 % too large, never above
    /// [`max`](Self::max). 0 if nothing was recorded.
    #[must_use]
    pub fn quantile(&self, num: u64, den: u64) -> u64 {
        if self.count == 0 || den == 0 {
            return 0;
        }
        let wanted =
            (u128::from(self.count) * u128::from(num)).div_ceil(u128::from(den)).max(1) as u64;
        let mut seen = 0;
        for (index, n) in self.buckets.iter().enumerate() {
            seen += n;
            if seen >= wanted {
                return Self::upper(index).clamp(self.min, self.max);
            }
        }
        self.max
    }

    /// Non-empty buckets in ascending order: the largest value of the bucket, and the number of values in it.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.buckets.iter().enumerate().filter(|(_, n)| **n > 0).map(|(i, n)| (Self::upper(i), *n))
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

    #[test]
    fn every_value_falls_into_a_bucket_that_is_at_most_a_64th_wide() {
        let apart = if cfg!(miri) { 61 } else { 1 };
        let near_powers = (14..40).flat_map(|e| [(1u64 << e) - 1, 1 << e, (1 << e) + 1]);
        for value in (0..1 << 14).step_by(apart).chain(near_powers) {
            let upper = Histogram::upper(Histogram::index(value));
            assert!(
                upper >= value && upper - value <= value / 64,
                "{value} in bucket up to {upper}"
            );
        }
    }

    #[test]
    fn quantiles_of_a_ramp() {
        let mut h = Histogram::new();
        (1..=1000).for_each(|v| h.record(v));
        assert_eq!(h.quantile(1, 1000), 1);
        let p50 = h.quantile(50, 100);
        assert!((500..=508).contains(&p50), "{p50}");
        assert_eq!(h.quantile(1, 1), 1000);
        assert_eq!((h.min(), h.max(), h.count()), (1, 1000, 1000));
        assert!((h.mean() - 500.5).abs() < 1e-9);
    }

    #[test]
    fn merging_equals_recording_together() {
        let (mut a, mut b, mut both) = (Histogram::new(), Histogram::new(), Histogram::new());
        for v in 0..500u64 {
            a.record(v * 3);
            b.record(v * 7_000);
            both.record(v * 3);
            both.record(v * 7_000);
        }
        a.merge(&b);
        assert!(a.buckets().eq(both.buckets()));
        assert_eq!((a.count(), a.min(), a.max()), (both.count(), both.min(), both.max()));
    }

    #[test]
    fn huge_values_share_the_last_bucket() {
        let mut h = Histogram::new();
        h.record(u64::MAX);
        assert_eq!(h.quantile(1, 2), u64::MAX);
    }
}
