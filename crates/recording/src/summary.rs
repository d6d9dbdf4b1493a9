//! The figures of a trace: rates, sizes, the mix, order, bursts, the working set and tenants, in bounded memory.

use crate::record::Record;
use crate::sketch::Distinct;
use blkmq_core::{Histogram, Op};

/// Bins of the course of a trace over time.
const BINS: usize = 512;
/// The shortest bin, in nanoseconds.
const FINEST: i64 = 1_000_000;
/// The block of a working set.
const BLOCK: u64 = 4096;
const SECOND: i64 = 1_000_000_000;

/// The counts of a tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tenant {
    /// I/Os.
    pub ios: u64,
    /// Reads among them.
    pub reads: u64,
    /// Bytes.
    pub bytes: u64,
}

/// The facts about the records that were added.
#[derive(Clone, Debug)]
pub struct Summary {
    /// I/Os, by operation: reads, writes, flushes, discards, zeroes.
    pub ios: [u64; 5],
    /// Bytes, by operation.
    pub bytes: [u64; 5],
    /// I/Os that begin where the one before on their volume ended.
    pub sequential: u64,
    /// The lengths of reads and writes, in bytes.
    pub sizes: Histogram,
    /// Latencies in nanoseconds, if the trace has them.
    pub latencies: Histogram,
    /// The most I/Os in one second that begins at a whole second of the trace, while it is in order.
    pub peak: u64,
    /// Tenants, by their number.
    pub tenants: Vec<Tenant>,
    /// The first byte behind each volume's I/Os, by its number.
    pub ends: Vec<u64>,
    first: i64,
    last: i64,
    behind: Vec<u64>,
    blocks: Distinct,
    second: (i64, u64),
    gaps: Gaps,
    course: Vec<u64>,
    /// A bin is [`FINEST`] times two to this power long.
    doublings: u32,
}

/// Moments of the times between arrivals.
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
    /// Counts a record. O(1) for each block of it.
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
            // Blocks of different volumes differ but by chance: the number is spread over all bits.
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

    /// The bin of an arrival. A width is a constant and a power of two: dividing by it takes no division.
    fn bin(&self, arrival: i64) -> i64 {
        (arrival / FINEST) >> self.doublings
    }

    /// I/Os.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.ios.iter().sum()
    }

    /// Nanoseconds from the earliest arrival to the latest.
    #[must_use]
    pub fn span(&self) -> u64 {
        self.last.abs_diff(self.first)
    }

    /// Different blocks of 4096 bytes that were read or written, within about 1 %.
    #[must_use]
    pub fn working_set(&self) -> u64 {
        self.blocks.count()
    }

    /// The standard deviation of the times between arrivals over their mean: 0 for equal ones, 1 for a Poisson process, more
    /// for bursts. `None` below three I/Os.
    #[must_use]
    pub fn burstiness(&self) -> Option<f64> {
        let Gaps { count, sum, squares, .. } = self.gaps;
        if count < 2.0 || sum <= 0.0 {
            return None;
        }
        let mean = sum / count;
        Some((squares / count - mean * mean).max(0.0).sqrt() / mean)
    }

    /// I/Os in equal parts of the time, and the length of a part in nanoseconds.
    #[must_use]
    pub fn course(&self) -> (&[u64], u64) {
        let used = self.course.iter().rposition(|count| *count > 0).map_or(0, |at| at + 1);
        (&self.course[..used], FINEST.unsigned_abs() << self.doublings)
    }
}
