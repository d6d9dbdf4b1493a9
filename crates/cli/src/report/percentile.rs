//! The percentiles in reports: those of `percentile_list`, by default fio's.

use blkmq_core::Histogram;
use blkmq_lab::workload::Job;

/// A percentile in millionths of a percent, the precision of fio's output, exact where a float would not be.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Percentile(u32);

/// The whole.
const ALL: u32 = 100_000_000;

impl Percentile {
    /// The median.
    pub const P50: Self = Self(50_000_000);
    /// The 90th percentile.
    pub const P90: Self = Self(90_000_000);
    /// The 99th percentile.
    pub const P99: Self = Self(99_000_000);
    /// The 99.9th percentile.
    pub const P99_9: Self = Self(99_900_000);

    /// The percentile of this number before the percent sign, 0 to 100.
    #[must_use]
    pub fn of_percent(percent: f64) -> Self {
        Self((percent * 1e6).round().clamp(0.0, f64::from(ALL)) as u32)
    }

    /// The number before the percent sign.
    #[must_use]
    pub fn percent(self) -> f64 {
        f64::from(self.0) / 1e6
    }

    /// Formats the number with as many decimals as it needs, at least two.
    #[must_use]
    pub fn text(self) -> String {
        let text = format!("{:.6}", self.percent());
        let least = text.len() - 4;
        let used = text.trim_end_matches('0').len().max(least);
        text[..used].to_owned()
    }

    /// The value that this share of `times` does not exceed.
    #[must_use]
    pub fn of(self, times: &Histogram) -> u64 {
        times.quantile(self.0.into(), ALL.into())
    }
}

/// fio's default list, ascending.
#[must_use]
pub fn defaults() -> Vec<Percentile> {
    all(&Job::default().percentile_list)
}

/// The percentiles of these numbers before the percent sign.
#[must_use]
pub fn all(list: &[f64]) -> Vec<Percentile> {
    list.iter().map(|percent| Percentile::of_percent(*percent)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_keep_their_digits() {
        let text = |percent| Percentile::of_percent(percent).text();
        assert_eq!(
            [text(1.0), text(99.95), text(99.999), text(100.0)],
            ["1.00", "99.95", "99.999", "100.00"]
        );
        assert_eq!(Percentile::of_percent(99.9), Percentile::P99_9);
        let mut ramp = Histogram::new();
        (1..=50).for_each(|value| ramp.record(value));
        assert_eq!(Percentile::of_percent(100.0).of(&ramp), 50);
        assert_eq!(defaults().len(), 17);
    }
}
