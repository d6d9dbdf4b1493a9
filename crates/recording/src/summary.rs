//! Statistics of a trace in bounded memory: rates, sizes, the mix, order, bursts, the working set and tenants. The
//! number of distinct blocks is estimated in memory of fixed size.

use crate::record::Record;
use blkmq_core::{Histogram, Op};

/// The number of bins in which the I/Os of a trace are counted over time.
const BINS: usize = 512;
/// The shortest bin, in nanoseconds.
const FINEST: i64 = 1_000_000;
/// The size of a block of the working set, in bytes.
const BLOCK: u64 = 4096;
const SECOND: i64 = 1_000_000_000;

/// The counts of one tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tenant {
    /// The number of I/Os.
    pub ios: u64,
    /// The number of reads.
    pub reads: u64,
    /// The number of bytes.
    pub bytes: u64,
}

/// Statistics of the records added so far.
#[derive(Clone, Debug)]
pub struct Summary {
    /// I/Os, by operation: reads, writes, flushes, discards, zeroes.
    pub ios: [u64; 5],
    /// Bytes, by operation.
    pub bytes: [u64; 5],
    /// The number of I/Os that begin where the previous one on the volume ended.
    pub sequential: u64,
    /// The lengths of reads and writes, in bytes.
    pub sizes: Histogram,
    /// Latencies in nanoseconds; empty if the trace has none.
    pub latencies: Histogram,
    /// The most I/Os in a whole second of the trace, while its records are in order.
    pub peak: u64,
    /// Tenants, indexed by number.
    pub tenants: Vec<Tenant>,
    /// The end of the last I/O of each volume, in bytes, indexed by number.
    pub ends: Vec<u64>,
    first: i64,
    last: i64,
    behind: Vec<u64>,
    blocks: Distinct,
    second: (i64, u64),
    gaps: Gaps,
    course: Vec<u64>,
    /// A bin is [`FINEST`] * 2^`doublings` nanoseconds long.
    doublings: u32,
}

/// Moments of the interarrival times.
#[derive(Clone, Copy, Debug, Default)]
struct Gaps {
    count: f64,
    sum: f64,
    squares: f64,
    last: i64,
}

impl Default for Summary {
    fn default() -> Self {
        Self {
            ios: [0; 5],
            bytes: [0; 5],
            sequential: 0,
            sizes: Histogram::new(),
            latencies: Histogram::new(),
            peak: 0,
            tenants: Vec::new(),
            ends: Vec::new(),
            first: 0,
            last: 0,
            behind: Vec::new(),
            blocks: Distinct::new(),
            second: (0, 0),
            gaps: Gaps::default(),
            course: vec![0; BINS],
            doublings: 0,
        }
    }
}

fn at<T: Clone + Default>(list: &mut Vec<T>, number: u32) -> &mut T {
    let number = number as usize;
    if list.len() <= number {
        list.resize(number + 1, T::default());
    }
    &mut list[number]
}

impl Summary {
    /// Adds a record. O(blocks of the record).
    pub fn add(&mut self, record: &Record) {
        let kind = record.op as usize;
        self.ios[kind] += 1;
        self.bytes[kind] += record.length;
        let tenant = at(&mut self.tenants, record.tenant);
        tenant.ios += 1;
        tenant.reads += u64::from(record.op == Op::Read);
        tenant.bytes += record.length;
        if let Some(latency) = record.latency {
            self.latencies.record(latency);
        }
        self.time(record.arrival);
        if record.op != Op::Flush {
            self.place(record);
        }
    }

    fn place(&mut self, record: &Record) {
        let end = record.offset + record.length;
        let behind = at(&mut self.behind, record.volume);
        self.sequential += u64::from(*behind == record.offset && *behind > 0);
        *behind = end;
        let reach = at(&mut self.ends, record.volume);
        *reach = (*reach).max(end);
        if matches!(record.op, Op::Read | Op::Write) {
            self.sizes.record(record.length);
            // The number of the volume is spread over all bits, so that blocks of different volumes collide only by
            // chance.
            let volume = u64::from(record.volume).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            for block in record.offset / BLOCK..end.div_ceil(BLOCK) {
                self.blocks.add(block ^ volume);
            }
        }
    }

    fn time(&mut self, arrival: i64) {
        self.first = self.first.min(arrival);
        self.last = self.last.max(arrival);
        if self.total() > 1 {
            let gap = arrival.abs_diff(self.gaps.last) as f64;
            self.gaps.count += 1.0;
            self.gaps.sum += gap;
            self.gaps.squares += gap * gap;
        }
        self.gaps.last = arrival;
        let second = arrival.div_euclid(SECOND);
        let same = if second == self.second.0 { self.second.1 } else { 0 };
        self.second = (second, same + 1);
        self.peak = self.peak.max(same + 1);
        let arrival = arrival.max(0);
        let mut bin = self.bin(arrival);
        while bin >= BINS as i64 {
            self.doublings += 1;
            let half: Vec<u64> = self.course.chunks(2).map(|two| two.iter().sum()).collect();
            self.course[..half.len()].copy_from_slice(&half);
            self.course[half.len()..].fill(0);
            bin = self.bin(arrival);
        }
        self.course[bin as usize] += 1;
    }

    /// The bin of an arrival. Each width is a constant times a power of two, so that no division instruction is needed.
    fn bin(&self, arrival: i64) -> i64 {
        (arrival / FINEST) >> self.doublings
    }

    /// Returns the number of I/Os.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.ios.iter().sum()
    }

    /// The nanoseconds from the earliest arrival to the latest.
    #[must_use]
    pub fn span(&self) -> u64 {
        self.last.abs_diff(self.first)
    }

    /// Returns the number of distinct blocks of 4096 bytes that were read or written, within about 1 %.
    #[must_use]
    pub fn working_set(&self) -> u64 {
        self.blocks.count()
    }

    /// The coefficient of variation of the interarrival times: 0 if they are equal, 1 for a Poisson process, more for
    /// bursts. Returns `None` below three I/Os.
    #[must_use]
    pub fn burstiness(&self) -> Option<f64> {
        let Gaps { count, sum, squares, .. } = self.gaps;
        if count < 2.0 || sum <= 0.0 {
            return None;
        }
        let mean = sum / count;
        Some((squares / count - mean * mean).max(0.0).sqrt() / mean)
    }

    /// Returns the I/Os in each bin, and the length of a bin in nanoseconds.
    #[must_use]
    pub fn course(&self) -> (&[u64], u64) {
        let used = self.course.iter().rposition(|count| *count > 0).map_or(0, |at| at + 1);
        (&self.course[..used], FINEST.unsigned_abs() << self.doublings)
    }
}

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
