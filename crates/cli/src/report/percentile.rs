//! The percentiles that reports show: fio's default list.

use blkmq_core::Histogram;

/// A percentile in hundredths of a percent, exact where a float would not be.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Percentile(u16);

/// fio's default list, ascending.
pub const PERCENTILES: [Percentile; 17] = [
    Percentile(100),
    Percentile(500),
    Percentile(1000),
    Percentile(2000),
    Percentile(3000),
    Percentile(4000),
    Percentile::P50,
    Percentile(6000),
    Percentile(7000),
    Percentile(8000),
    Percentile::P90,
    Percentile(9500),
    Percentile::P99,
    Percentile(9950),
    Percentile::P99_9,
    Percentile(9995),
    Percentile(9999),
];

impl Percentile {
    /// The median.
    pub const P50: Self = Self(5000);
    /// The 90th percentile.
    pub const P90: Self = Self(9000);
    /// The 99th percentile.
    pub const P99: Self = Self(9900);
    /// The 99.9th percentile.
    pub const P99_9: Self = Self(9990);

    /// The number before the percent sign.
    #[must_use]
    pub fn percent(self) -> f64 {
        f64::from(self.0) / 100.0
    }

    /// The value that this share of `times` does not exceed.
    #[must_use]
    pub fn of(self, times: &Histogram) -> u64 {
        times.quantile(self.0.into(), 10_000)
    }
}
