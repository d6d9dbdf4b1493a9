//! Statistics of a trace in bounded memory: rates, sizes, the mix, order, bursts, the working set and tenants.

use crate::record::Record;
use crate::sketch::Distinct;
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
