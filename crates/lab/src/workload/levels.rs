//! Depths and batch sizes, counted in fio's classes.

/// Counts of numbers in flight; each class reaches up to the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Levels(pub [u64; 7]);

/// Counts of batch sizes; each class reaches down to the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Batches(pub [u64; 7]);

/// Shares in percent, 0 each if nothing was counted.
fn shares(names: [&'static str; 7], counts: &[u64; 7]) -> [(&'static str, f64); 7] {
    let total = counts.iter().sum::<u64>().max(1) as f64;
    let mut at = 0;
    names.map(|name| {
        let share = 100.0 * (counts[at] as f64 / total);
        at += 1;
        (name, share)
    })
}

impl Levels {
    /// Counts `ios` I/Os that were submitted together, with which `depth` are in flight (1 is alone).
    #[inline]
    pub fn record(&mut self, depth: u32, ios: u32) {
        self.0[(depth.max(1).ilog2() as usize).min(6)] += u64::from(ios);
    }

    /// fio's names of the classes, and the percentage of I/Os in each.
    #[must_use]
    pub fn shares(&self) -> [(&'static str, f64); 7] {
        shares(["1", "2", "4", "8", "16", "32", ">=64"], &self.0)
    }
}

impl Batches {
    /// Counts a call that moved `size` I/Os.
    #[inline]
    pub fn record(&mut self, size: u32) {
        let class = match size {
            0 => 0,
            1..=4 => 1,
            larger => ((larger - 1).ilog2() as usize).min(6),
        };
        self.0[class] += 1;
    }

    /// fio's names of the classes, and the percentage of calls in each.
    #[must_use]
    pub fn shares(&self) -> [(&'static str, f64); 7] {
        shares(["0", "4", "8", "16", "32", "64", ">=64"], &self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_reach_up_and_batches_reach_down() {
        let mut levels = Levels::default();
        [1, 2, 3, 4, 31, 32, 63, 64, 9_999].into_iter().for_each(|d| levels.record(d, 2));
        assert_eq!(levels.0, [2, 4, 2, 0, 2, 4, 4]);
        let mut batches = Batches::default();
        [0, 1, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65].into_iter().for_each(|s| batches.record(s));
        assert_eq!(batches.0, [1, 2, 2, 2, 2, 2, 1]);
        let sum: f64 = batches.shares().iter().map(|(_, share)| share).sum();
        assert!((sum - 100.0).abs() < 1e-9);
        assert_eq!(Levels::default().shares()[0], ("1", 0.0));
    }
}
