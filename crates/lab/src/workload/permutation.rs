//! Every number below `n` exactly once, in a scattered order, in constant space.
//!
//! fio records the blocks that a random job has visited in a bitmap, or uses an LFSR instead. Here a number is split
//! into a low digit of three quarters of its bits and a high digit. The low digit is shifted by a multiple of the high
//! one and scrambled by steps that can be undone (odd multiplications and xor-shifts modulo a power of two); then the
//! high digit is shifted by a hash of the low one, modulo the number of high digits. Both steps can be undone, so the
//! whole is a bijection, of a range that is at most one low digit longer than `n`. A result that is not below `n` is
//! mapped once more, which keeps it a bijection of `0..n`. Counting through it visits every number once, nothing is
//! stored, and steps do not depend on each other, so a CPU overlaps them.
//!
//! It scatters well enough for workloads. It is no cipher.

use blkmq_core::Rng;

/// A keyed bijection of `0..len`.
#[derive(Clone, Debug)]
pub struct Permutation {
    len: u64,
    /// Bits of the low digit.
    low_bits: u32,
    low_mask: u64,
    /// High digits are below this.
    highs: u64,
    keys: [u64; 4],
}

impl Permutation {
    /// A bijection of `0..len` drawn from `rng`. A `len` of 0 is taken as 1.
    #[must_use]
    pub fn new(len: u64, rng: &mut Rng) -> Self {
        let len = len.max(1);
        let low_bits = (len.ilog2() + 1) * 3 / 4;
        let low_mask = (1 << low_bits) - 1;
        let highs = len.div_ceil(1 << low_bits);
        let mut this = Self { len, low_bits, low_mask, highs, keys: [0; 4] };
        this.rekey(rng);
        this
    }

    /// Replaces it by another bijection of the same range.
    pub fn rekey(&mut self, rng: &mut Rng) {
        // Odd, hence invertible modulo a power of two.
        self.keys = std::array::from_fn(|_| rng.next_u64() | 1);
    }

    /// The number of values that it permutes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Never: there is always at least one number.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The image of `index`, which must be below [`len`](Self::len). Expected constant time.
    #[inline]
    #[must_use]
    pub fn at(&self, index: u64) -> u64 {
        debug_assert!(index < self.len, "outside the range that is permuted");
        let mut x = index;
        loop {
            x = self.mix(x);
            if x < self.len {
                return x;
            }
        }
    }

    #[inline]
    fn mix(&self, x: u64) -> u64 {
        let [slide, first, second, lift] = self.keys;
        let (high, low) = (x >> self.low_bits, x & self.low_mask);
        let half = self.low_bits.div_ceil(2);
        let low = low.wrapping_add(high.wrapping_mul(slide).wrapping_add(first >> 7));
        let low = low.wrapping_mul(first) & self.low_mask;
        let low = (low ^ (low >> half)).wrapping_mul(second) & self.low_mask;
        let low = low ^ (low >> half);
        // The upper half of a product, as a share of `highs`: an even spread without a division.
        let spread = u128::from(low.wrapping_add(lift >> 9).wrapping_mul(lift));
        let high = high + ((spread * u128::from(self.highs)) >> 64) as u64;
        let high = if high >= self.highs { high - self.highs } else { high };
        high << self.low_bits | low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_up_to_a_thousand_is_covered_exactly_once() {
        let mut rng = Rng::new(11);
        for len in (1..1_000).chain([65_535, 65_536, 65_537, 1_000_003]) {
            let permutation = Permutation::new(len, &mut rng);
            let mut seen = vec![false; len as usize];
            for i in 0..len {
                let image = permutation.at(i) as usize;
                assert!(!std::mem::replace(&mut seen[image], true), "{image} twice of {len}");
            }
        }
    }

    #[test]
    fn the_largest_ranges_do_not_overflow() {
        for len in [u64::MAX, 1 << 63, (1 << 55) + 12_345] {
            let permutation = Permutation::new(len, &mut Rng::new(3));
            assert!([0, 1, len / 2, len - 1].iter().all(|&i| permutation.at(i) < len));
        }
    }

    #[test]
    fn steps_are_as_long_as_those_of_independent_draws() {
        const KEYS: u64 = 16;
        for len in [1_000u64, 65_536, 100_000, 1 << 22, 36_700_160] {
            let steps = len.min(20_000);
            for fraction in [100, 10, 4] {
                let near: u64 = (0..KEYS)
                    .map(|key| {
                        let permutation = Permutation::new(len, &mut Rng::new(key));
                        let step = |i| permutation.at(i).abs_diff(permutation.at(i - 1));
                        (1..steps).filter(|&i| step(i) < len / fraction).count() as u64
                    })
                    .sum();
                // Two independent points of a line of length 1 are nearer than f with probability
                // 1 - (1 - f)^2. A permutation of few points stays below: it never stays in place.
                let f = 1.0 / fraction as f64;
                let expected = (KEYS * steps) as f64 * (1.0 - (1.0 - f).powi(2));
                let ratio = near as f64 / expected;
                assert!((0.7..1.15).contains(&ratio), "1/{fraction} of {len}: {ratio}");
            }
        }
    }

    #[test]
    fn another_key_is_another_order() {
        let mut rng = Rng::new(9);
        let mut permutation = Permutation::new(4096, &mut rng);
        let first = Vec::from_iter((0..64).map(|i| permutation.at(i)));
        permutation.rekey(&mut rng);
        assert_ne!(first, Vec::from_iter((0..64).map(|i| permutation.at(i))));
    }
}
