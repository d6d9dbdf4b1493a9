//! Estimates the number of distinct blocks in memory of fixed size.

/// Estimates a number of distinct values by sampling their hashes: hashes below a threshold are kept, and the threshold
/// is halved when the table is full. Exact below [`MOST`](Self::MOST), and within about 1 % above.
#[derive(Clone, Debug)]
pub(crate) struct Distinct {
    /// A hash table with open addressing; 0 is a free slot.
    table: Vec<u64>,
    kept: usize,
    /// The number of times that the threshold was halved.
    level: u32,
    /// The largest hash that is kept.
    most: u64,
}

/// Multiplies by the golden ratio: hashes of runs and strides are as evenly spread as any.
fn hash(value: u64) -> u64 {
    value.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl Distinct {
    /// The most values that are kept.
    pub(crate) const MOST: usize = 1 << 16;

    pub(crate) fn new() -> Self {
        Self { table: vec![0; Self::MOST * 2], kept: 0, level: 0, most: u64::MAX }
    }

    #[inline]
    pub(crate) fn add(&mut self, value: u64) {
        let hash = hash(value);
        if hash <= self.most {
            self.keep(hash.max(1));
        }
    }

    #[cold]
    fn keep(&mut self, hash: u64) {
        self.insert(hash);
        while self.kept > Self::MOST {
            self.level += 1;
            self.most >>= 1;
            let empty = vec![0; Self::MOST * 2];
            let old = std::mem::replace(&mut self.table, empty);
            self.kept = 0;
            let stays = |hash: &u64| *hash != 0 && *hash <= self.most;
            let stay: Vec<u64> = old.into_iter().filter(stays).collect();
            stay.into_iter().for_each(|hash| self.insert(hash));
        }
    }

    fn insert(&mut self, hash: u64) {
        let mask = self.table.len() - 1;
        // The hashes that are kept are small and differ in their low bits, which depend only on the low bits of the
        // value. So high bits are mixed in.
        let spread = (hash ^ hash >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 32;
        let mut at = spread as usize & mask;
        while self.table[at] != 0 {
            if self.table[at] == hash {
                return;
            }
            at = (at + 1) & mask;
        }
        self.table[at] = hash;
        self.kept += 1;
    }

    /// The estimate.
    pub(crate) fn count(&self) -> u64 {
        (self.kept as u64).saturating_mul(1 << self.level.min(63))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::Rng;

    #[test]
    fn few_values_are_counted_exactly_and_many_within_two_percent() {
        for (values, tolerance) in [(0, 0), (1, 0), (60_000, 0), (1_000_000, 20_000)] {
            // Runs, strides of powers of two and other numbers, and random values.
            let strides =
                (0..40).step_by(4).map(|power| 1 << power).chain([3, 10, 1000, 12_345, 1_000_003]);
            let orders = strides.map(Some).chain([None]);
            for stride in orders {
                let mut sketch = Distinct::new();
                for number in (0..values).chain(0..values) {
                    sketch.add(stride.map_or_else(
                        || Rng::new(number).next_u64() >> 20,
                        |stride: u64| number * stride,
                    ));
                }
                let count = sketch.count();
                assert!(count.abs_diff(values) <= tolerance, "{values} by {stride:?}: {count}");
            }
        }
    }
}
