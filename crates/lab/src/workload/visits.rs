//! The order in which a pass visits the blocks of a region: once each, scattered ([`Permutation`]) or wherever the last
//! I/O has left blocks free ([`Cover`]); and in one zone after the other, with gaps between them, fio's
//! `zonemode=strided`.
//!
//! fio records the blocks that a random job has visited in a bitmap, or uses an LFSR instead. For blocks of one length
//! a permutation of `0..n` needs no memory. A number is split into a low digit of three quarters of its bits and a high
//! digit. The low digit is shifted by a multiple of the high one and scrambled by steps that can be undone (odd
//! multiplications and xor-shifts modulo a power of two); then the high digit is shifted by a hash of the low one,
//! modulo the number of high digits. Both steps can be undone, so the whole is a bijection, of a range that is at most
//! one low digit longer than `n`. A result that is not below `n` is mapped once more, which keeps it a bijection of
//! `0..n`. Counting through it visits every number once, nothing is stored, and steps do not depend on each other, so a
//! CPU overlaps them. It scatters well enough for workloads. It is no cipher.
//!
//! With several lengths the next free block depends on all I/Os before, so there is a bit for each block: fio's random
//! map. Above the bits are levels of summaries: a bit there says that all 64 bits below are set. So the next free block
//! is found in a few steps, however full the map is.

use blkmq_core::{Rng, SECTOR_SIZE};

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

/// log2 of the number of bits in a word.
const SHIFT: u32 = 6;
const WORD: u64 = 1 << SHIFT;

/// The covered blocks of a region.
#[derive(Clone, Debug)]
pub(super) struct Cover {
    blocks: u64,
    free: u64,
    /// The lowest level has a bit for each block, and each other level a bit for each word below. The last level has
    /// one word. Bits beyond the end are set.
    levels: Vec<Vec<u64>>,
}

impl Cover {
    /// The largest map, in blocks: 2 GiB of bits.
    pub(super) const MAX: u64 = 1 << 34;

    /// A map of `blocks` free blocks, at least one and at most [`MAX`](Self::MAX).
    pub(super) fn new(blocks: u64) -> Self {
        debug_assert!((1..=Self::MAX).contains(&blocks), "the caller bounds the map");
        let (mut levels, mut bits) = (Vec::new(), blocks);
        loop {
            let words = bits.div_ceil(WORD);
            levels.push(vec![0u64; words as usize]);
            if words == 1 {
                break;
            }
            bits = words;
        }
        let mut this = Self { blocks, free: blocks, levels };
        this.close_ends();
        this
    }

    /// Sets the bits beyond the end of each level.
    fn close_ends(&mut self) {
        let mut bits = self.blocks;
        for level in &mut self.levels {
            let used = bits % WORD;
            if used > 0
                && let Some(last) = level.last_mut()
            {
                *last |= u64::MAX << used;
            }
            bits = bits.div_ceil(WORD);
        }
    }

    /// Makes all blocks free again. O(blocks / 64).
    fn clear(&mut self) {
        self.levels.iter_mut().for_each(|level| level.fill(0));
        self.free = self.blocks;
        self.close_ends();
    }

    /// Makes all blocks free again, unless they are.
    pub(super) fn restart(&mut self) {
        if self.free < self.blocks {
            self.clear();
        }
    }

    /// Takes up to `most` contiguous blocks, from the first free one at or behind `from`, wrapping at the end; returns
    /// the first and their number, at least 1. Clears a map without free blocks first.
    pub(super) fn take(&mut self, from: u64, most: u64) -> (u64, u64) {
        if self.free == 0 {
            self.clear();
        }
        let first = self.next_free(from).or_else(|| self.next_free(0));
        let first = first.expect("a free block was counted");
        let mut taken = 0;
        while taken < most.max(1) && first + taken < self.blocks && self.is_free(first + taken) {
            self.cover(first + taken);
            taken += 1;
        }
        (first, taken)
    }

    fn is_free(&self, block: u64) -> bool {
        self.levels[0][(block >> SHIFT) as usize] >> (block % WORD) & 1 == 0
    }

    fn cover(&mut self, block: u64) {
        self.free -= 1;
        let mut at = block;
        for level in &mut self.levels {
            let word = &mut level[(at >> SHIFT) as usize];
            *word |= 1 << (at % WORD);
            if *word != u64::MAX {
                return;
            }
            at >>= SHIFT;
        }
    }

    /// The first free block at or behind `from`.
    fn next_free(&self, from: u64) -> Option<u64> {
        let mut at = from;
        for height in 0..self.levels.len() {
            let index = (at >> SHIFT) as usize;
            let &word = self.levels[height].get(index)?;
            let open = !word & (u64::MAX << (at % WORD));
            if open != 0 {
                return Some(
                    self.descend(height, index as u64 * WORD + u64::from(open.trailing_zeros())),
                );
            }
            // The rest of this word is set; the search continues behind it, a level higher.
            at = (at >> SHIFT) + 1;
        }
        None
    }

    /// The first free block under bit `at` of level `height`, which is clear.
    fn descend(&self, height: usize, mut at: u64) -> u64 {
        for level in self.levels[..height].iter().rev() {
            at = at * WORD + u64::from(level[at as usize].trailing_ones());
        }
        at
    }
}

/// `zonesize` and its companions, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Strided {
    /// `zonesize`: the amount of I/O in a zone before the next one.
    pub size: u64,
    /// `zonerange`: the length of a zone.
    pub range: u64,
    /// `zoneskip`: the gap between two zones.
    pub skip: u64,
}

/// Impossible zones. Messages name fio's options.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StridedError {
    /// `zonesize` is 0.
    #[error("zonesize=0; accepted is 1 sector or more")]
    NoSize,
    /// Not a multiple of a sector, by option.
    #[error("{0}={1}; accepted are multiples of {SECTOR_SIZE} bytes")]
    NotSectors(&'static str, u64),
    /// A zone that no I/O fits into.
    #[error("zonerange={range} is smaller than one block; accepted is {bs} (bs) or more")]
    BelowBlock {
        /// `zonerange` in bytes.
        range: u64,
        /// The block size in bytes.
        bs: u32,
    },
}

impl Strided {
    /// Checks that there are zones, and that a random I/O of `block` bytes fits into one. Sequential I/Os may cross the
    /// end of a zone.
    ///
    /// # Errors
    /// If not.
    pub fn validate(&self, block: u32) -> Result<(), StridedError> {
        let Self { size, range, skip } = *self;
        for (option, bytes) in [("zonesize", size), ("zonerange", range), ("zoneskip", skip)] {
            if !bytes.is_multiple_of(SECTOR_SIZE.into()) {
                return Err(StridedError::NotSectors(option, bytes));
            }
        }
        match (size, range) {
            (0, _) => Err(StridedError::NoSize),
            (_, range) if range < block.into() => {
                Err(StridedError::BelowBlock { range, bs: block })
            }
            _ => Ok(()),
        }
    }
}

/// The zones of one thread, in sectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strides {
    first: u64,
    end: u64,
    size: u64,
    range: u64,
    skip: u64,
    /// Issued in the present zone.
    done: u64,
}

impl Strides {
    /// Zones from byte `start` to the end of the file, `room` bytes later. As in fio, the size of the job limits the
    /// amount of I/O, not its offsets.
    pub(super) fn new(strided: Strided, start: u64, room: u64) -> Self {
        let sectors = |bytes: u64| bytes / u64::from(SECTOR_SIZE);
        let Strided { size, range, skip } = strided;
        Self {
            first: sectors(start),
            end: sectors(start + room),
            size: sectors(size),
            range: sectors(range),
            skip: sectors(skip),
            done: 0,
        }
    }

    /// Begins a pass. Returns the start of the first zone.
    pub(super) fn restart(&mut self) -> u64 {
        self.done = 0;
        self.first
    }

    /// Counts an I/O of `sectors`.
    pub(super) fn count(&mut self, sectors: u32) {
        self.done += u64::from(sectors);
    }

    /// Moves `start`, the start of the zone, and `cursor`, the end of the last I/O, to the offset of the next I/O.
    /// Returns whether a zone begins with it, so that each of its blocks may be used again. As in fio, the first zone
    /// follows the last one, which may be incomplete; random offsets are drawn in whole zones.
    pub(super) fn advance(&mut self, start: &mut u64, cursor: &mut u64, random: bool) -> bool {
        if self.done >= self.size {
            self.done = 0;
            let next = start.saturating_add(self.range).saturating_add(self.skip);
            let needed = if random { self.range } else { 1 };
            *start = if next.saturating_add(needed) > self.end { self.first } else { next };
            *cursor = *start;
        }
        if *cursor >= start.saturating_add(self.range) {
            *cursor = *start;
        }
        self.done.is_multiple_of(self.range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Amount, BlockSize, Generator, Job, PerDirection, Rw};
    use blkmq_core::Rng;
    use std::collections::BTreeSet;

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

    /// A naive version of the map: a list of flags.
    fn naive(map: &mut [bool], from: usize, most: usize) -> (u64, u64) {
        if map.iter().all(|covered| *covered) {
            map.fill(false);
        }
        let free = |from: usize| (from..map.len()).find(|at| !map[*at]);
        let first = free(from).or_else(|| free(0)).expect("one is free");
        let mut taken = 0;
        while taken < most && first + taken < map.len() && !map[first + taken] {
            map[first + taken] = true;
            taken += 1;
        }
        (first as u64, taken as u64)
    }

    #[test]
    fn it_agrees_with_a_list_of_flags_over_several_passes() {
        for blocks in [1u64, 2, 63, 64, 65, 127, 4096, 4097, 5000] {
            let (mut cover, mut flags) = (Cover::new(blocks), vec![false; blocks as usize]);
            let mut rng = Rng::new(blocks);
            for _ in 0..3 * blocks {
                let (from, most) = (rng.below(blocks), 1 + rng.below(40));
                let expected = naive(&mut flags, from as usize, most as usize);
                assert_eq!(cover.take(from, most), expected, "{blocks} blocks");
            }
        }
    }

    #[test]
    fn the_last_free_block_of_many_is_found_from_anywhere() {
        let mut cover = Cover::new(300_000);
        assert_eq!(cover.take(0, 123_456), (0, 123_456));
        assert_eq!(cover.take(123_457, u64::MAX), (123_457, 176_543));
        assert_eq!(cover.take(299_999, 9), (123_456, 1));
        assert_eq!(cover.take(299_999, 9), (299_999, 1), "full, so it begins again");
    }

    const K: u64 = 1024;

    fn job(rw: Rw, size: u64) -> Job {
        let strided = Some(Strided { size: 16 * K, range: 16 * K, skip: 48 * K });
        Job { rw, size: Some(Amount::Bytes(size * K)), strided, ..Job::default() }
    }

    /// The offsets of its I/Os, in KiB, in a file that ends with its region.
    fn places(job: &Job) -> Vec<u64> {
        let Some(Amount::Bytes(size)) = job.size else { panic!("the job has a size") };
        places_in(job, size / K)
    }

    /// The offsets in a file of this many KiB.
    fn places_in(job: &Job, kib: u64) -> Vec<u64> {
        let generator = Generator::new(job, 0, kib * K).expect("it fits");
        generator.map(|io| io.sector / 2).collect()
    }

    /// Regression test: the I/O wrapped within `size`, so that a cache answered. All of these are the offsets of fio
    /// 3.33 on a file of 64 MiB.
    #[test]
    fn zones_go_on_to_the_end_of_the_file() {
        let strided = |skip| Some(Strided { size: 128 * K, range: 128 * K, skip: skip * K });
        let bs = PerDirection::all(BlockSize::Fixed(64 * 1024));
        let job = |size: u64, offset: u64, skip| Job {
            size: Some(Amount::Bytes(size * K)),
            offset: Amount::Bytes(offset * K),
            strided: strided(skip),
            bs: bs.clone(),
            ..Job::default()
        };
        let places = |job: &Job| places_in(job, 64 << 10);
        assert_eq!(places(&job(512, 128, 192)), [128, 192, 448, 512, 768, 832, 1088, 1152]);
        let round = [64512, 64576, 64832, 64896, 65152, 65216, 65472];
        assert_eq!(places(&job(1024, 64512, 192)), round, "the file ends within a zone");
        let more = Job { io_size: Some(Amount::Bytes(960 * K)), ..job(512, 64512, 192) };
        assert_eq!(
            places(&more),
            [&round[..], &round, &round[..1]].concat(),
            "io_size continues at the start"
        );
        let gap = [64512, 64576, 64768, 64832, 65024, 65088, 65280, 65344];
        assert_eq!(places(&job(1024, 64512, 128)), gap.repeat(2), "it ends between two zones");
        let twice = Job { loops: 2, ..job(256, 0, 192) };
        assert_eq!(places(&twice), [0, 64, 320, 384, 640, 704, 960, 1024], "a pass goes on");
        let random = Job { rw: Rw::RandRead, ..job(512, 128, 192) };
        let zones = Vec::from_iter(places(&random).iter().map(|place| (place - 128) / 320));
        assert_eq!(zones, [0, 0, 1, 1, 2, 2, 3, 3]);
    }

    /// All of these are the offsets of fio 3.33.
    #[test]
    fn sequential_zones_are_those_of_fio() {
        let cycle = [0, 4, 8, 12, 64, 68, 72, 76, 128, 132, 136, 140, 192, 196, 200, 204];
        assert_eq!(places(&job(Rw::Read, 256)), cycle.repeat(4), "gaps do not count");
        let part = Job { io_size: Some(Amount::Bytes(24 * K)), loops: 2, ..job(Rw::Read, 256) };
        assert_eq!(places(&part), cycle[..12], "a pass goes on where the last one ended");
        let cut = Job { loops: 2, ..job(Rw::Read, 72) };
        assert_eq!(places(&cut), [0, 4, 8, 12, 64, 68].repeat(2), "the region ends in a zone");
        let bs = PerDirection::all(BlockSize::Fixed(12 * 1024));
        let over = places(&Job { bs, ..job(Rw::Read, 256) });
        let expected = [0, 12, 64, 76, 128, 140, 192, 204].repeat(3);
        assert_eq!(over, expected[..22], "the last I/O of a zone may reach over its end");
        let strided = |size, range, skip| Some(Strided { size: size * K, range: range * K, skip });
        let twice = Job { strided: strided(32, 16, 0), ..job(Rw::Read, 128) };
        assert_eq!(places(&twice)[..12], [0, 4, 8, 12, 0, 4, 8, 12, 16, 20, 24, 28]);
        let half = Job { strided: strided(16, 32, 48 * K), ..job(Rw::Read, 128) };
        assert_eq!(places(&half), [0, 4, 8, 12, 80, 84, 88, 92].repeat(4));
    }

    /// The offsets of fio 3.33 in a file of 4 MiB.
    #[test]
    fn ios_reach_over_the_end_of_a_zone_and_drawn_lengths_end_with_the_size() {
        let strided =
            |size, skip| Some(Strided { size: size * K, range: size * K, skip: skip * K });
        let bs = |kib: u32| PerDirection::all(BlockSize::Fixed(kib * 1024));
        let long = Job { bs: bs(64), strided: strided(20, 16), ..job(Rw::Read, 256) };
        assert_eq!(places_in(&long, 4096), [0, 36, 72, 108]);
        let gaps = Job { bs: bs(8), hole: 4096, strided: strided(32, 16), ..job(Rw::Read, 96) };
        assert_eq!(places_in(&gaps, 4096), [0, 12, 24, 0, 48, 60, 72, 48, 96, 108, 120, 96]);
        let split = PerDirection::all(BlockSize::Split(vec![(4096, 50), (8192, 50)]));
        for rw in [Rw::Read, Rw::RandRead] {
            let drawn = Job { bs: split.clone(), strided: strided(32, 64), ..job(rw, 256) };
            let zones = BTreeSet::from_iter(places_in(&drawn, 4096).iter().map(|at| at / 96));
            assert_eq!(Vec::from_iter(zones), [0, 1, 2], "{rw}");
        }
    }

    #[test]
    fn random_places_are_each_block_of_a_zone_once() {
        let all = places(&job(Rw::RandRead, 256));
        assert_eq!(all.len(), 64);
        for (at, zone) in all.chunks(4).enumerate() {
            let start = at as u64 % 4 * 64;
            let expected = BTreeSet::from([0, 4, 8, 12].map(|block| start + block));
            assert_eq!(BTreeSet::from_iter(zone.iter().copied()), expected);
        }
    }

    #[test]
    fn impossible_zones_are_refused_by_name() {
        let refusal = |size, range, skip| {
            let strided = Some(Strided { size, range, skip });
            Job { strided, rw: Rw::RandRead, ..Job::default() }
                .validate()
                .expect_err("refused")
                .to_string()
        };
        assert!(refusal(0, 4096, 0).starts_with("zonesize=0"));
        assert!(refusal(4096, 512, 0).starts_with("zonerange=512 is smaller"));
        assert!(refusal(4096, 4096, 100).starts_with("zoneskip=100"));
    }
}
