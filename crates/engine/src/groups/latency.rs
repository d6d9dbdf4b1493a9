//! [`Latencies`]: a distribution of times that costs a shift and an increment for each.
//!
//! 32 linear buckets for each power of two, so the end of a bucket is at most 1/32 (3.1 %) above every time in it.

const SUB_BITS: u32 = 5;
const SUB: usize = 1 << SUB_BITS;
/// Times of 2^40 ns (18 minutes) and more share the last bucket.
const BUCKETS: usize = (40 - SUB_BITS as usize + 1) * SUB;

/// How many I/Os took how long.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Latencies(Box<[u64]>);

impl Default for Latencies {
    fn default() -> Self {
        Self(vec![0; BUCKETS].into_boxed_slice())
    }
}

impl Latencies {
    #[inline]
    fn index(ns: u64) -> usize {
        let group = ((ns | (SUB as u64 - 1)).ilog2() + 1 - SUB_BITS) as usize;
        if group == 0 {
            return ns as usize;
        }
        let linear = (ns >> (group - 1)) as usize & (SUB - 1);
        (group * SUB + linear).min(BUCKETS - 1)
    }

    /// The longest time in bucket `index`.
    fn end(index: usize) -> u64 {
        let (group, linear) = (index / SUB, (index % SUB) as u64);
        if group == 0 { linear } else { ((SUB as u64 + linear + 1) << (group - 1)) - 1 }
    }

    /// Counts an I/O that took this many nanoseconds.
    #[inline]
    pub(crate) fn record(&mut self, ns: u64) {
        self.0[Self::index(ns)] += 1;
    }

    /// Moves the counts of `other` here.
    pub(crate) fn take(&mut self, other: &mut Self) {
        for (into, from) in self.0.iter_mut().zip(&mut other.0) {
            *into += std::mem::take(from);
        }
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(into, from)| *into += from);
    }

    /// The buckets that are not empty, in ascending order: the longest time of the bucket in nanoseconds, and how many
    /// I/Os it has.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let all = self.0.iter().enumerate().filter(|(_, count)| **count > 0);
        all.map(|(index, count)| (Self::end(index), *count))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_a_bucket_that_is_at_most_a_32nd_wide() {
        let powers = (12..40).flat_map(|e| [(1u64 << e) - 1, 1 << e, (1 << e) + 1]);
        for ns in (0..1 << 12).chain(powers) {
            let end = Latencies::end(Latencies::index(ns));
            assert!(end >= ns && end - ns <= ns / 32, "{ns} in the bucket up to {end}");
        }
        assert_eq!(Latencies::index(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn what_is_moved_is_in_one_place() {
        let (mut all, mut part) = (Latencies::default(), Latencies::default());
        all.record(7);
        part.record(7);
        part.record(1_000_000);
        all.take(&mut part);
        assert_eq!(part.buckets().count(), 0);
        assert_eq!(all.buckets().map(|(_, count)| count).collect::<Vec<_>>(), [2, 1]);
        all.add(&all.clone());
        assert_eq!(all.buckets().map(|(_, count)| count).sum::<u64>(), 6);
    }
}
