//! [`Job`]: a closed loop of I/Os against a device in virtual time, and what came of it.

#![allow(dead_code, reason = "each test binary uses its own part of this")]

use super::common::unmerged;
use blkmq_core::{Instant, Op, Rng, SECTOR_SIZE};
use blkmq_device::Device;
use blkmq_engine::{Io, Queue, Submitter};

/// Where I/Os go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    Random,
    Sequential,
}

/// So many I/Os, so many of them in flight at any time.
#[derive(Clone, Copy)]
pub struct Job {
    pub pattern: Pattern,
    pub bytes: u32,
    /// Reads in a hundred.
    pub reads: u64,
    pub depth: u32,
    /// Of which the first quarter is not counted.
    pub ios: u64,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    pub iops: u64,
    /// 10^6 bytes a second.
    pub mbps: u64,
    /// Mean latencies in ns; 0 if there were none.
    pub read_ns: u64,
    pub write_ns: u64,
}

impl Job {
    /// Random I/Os of 4 KiB.
    pub fn random(reads: u64, depth: u32, ios: u64) -> Self {
        Self { pattern: Pattern::Random, bytes: 4096, reads, depth, ios }
    }

    /// Sequential ones of 128 KiB.
    pub fn sequential(reads: u64, depth: u32, ios: u64) -> Self {
        Self { pattern: Pattern::Sequential, bytes: 128 << 10, reads, depth, ios }
    }

    pub fn run(&self, device: &Device) -> Measured {
        let queue = Queue::new(unmerged(device, 1, 2 * self.depth)).expect("a queue");
        let mut submitter = queue.submitter().expect("there is room for one");
        // Not the order in which an earlier job wrote: overwriting in that would be as good as sequential.
        let mut rng = Rng::new(self.reads << 32 | u64::from(self.depth));
        let mut books = Books::new(self);
        let mut now = Instant::ZERO;
        while books.ended < self.ios {
            while let Some(cookie) = books.begin(self, now, &mut rng) {
                let op = books.inside[cookie as usize].1;
                let sector = self.place(device, books.pushed - 1, &mut rng);
                let io = Io::new(op, sector, self.sectors(), cookie, cookie);
                submitter.push(now, io).expect("there is credit");
            }
            submitter.flush(now);
            let mut reap = |submitter: &mut Submitter<u64>, now| {
                submitter.reap(u32::MAX, |done| {
                    assert_eq!(done.result, Ok(()));
                    books.end(self, done.cookie, now);
                })
            };
            if reap(&mut submitter, now) == 0 {
                let next = submitter.next_deadline().expect("something will happen");
                now = now.max(next);
                submitter.poll(now);
                reap(&mut submitter, now);
            }
        }
        books.measured(self, now)
    }

    fn sectors(&self) -> u32 {
        self.bytes / SECTOR_SIZE
    }

    fn place(&self, device: &Device, nth: u64, rng: &mut Rng) -> u64 {
        let sectors = u64::from(self.sectors());
        let places = device.shape.limits.capacity / sectors;
        let place = match self.pattern {
            Pattern::Random => rng.below(places),
            Pattern::Sequential => nth % places,
        };
        place * sectors
    }
}

/// What is under way, and what has ended.
struct Books {
    /// By cookie: when it was pushed, and what it is.
    inside: Vec<(Instant, Op)>,
    /// Cookies that are not used.
    free: Vec<u64>,
    pushed: u64,
    ended: u64,
    /// Since then it counts.
    from: Instant,
    /// Sum and number of latencies of reads and writes.
    latency: [(u64, u64); 2],
}

impl Books {
    fn new(job: &Job) -> Self {
        Self {
            inside: vec![(Instant::ZERO, Op::Read); job.depth as usize],
            free: (0..u64::from(job.depth)).collect(),
            pushed: 0,
            ended: 0,
            from: Instant::ZERO,
            latency: [(0, 0); 2],
        }
    }

    /// The cookie of the next I/O, if there is one to be pushed.
    fn begin(&mut self, job: &Job, now: Instant, rng: &mut Rng) -> Option<u64> {
        if self.pushed == job.ios {
            return None;
        }
        let cookie = self.free.pop()?;
        let op = if rng.below(100) < job.reads { Op::Read } else { Op::Write };
        self.inside[cookie as usize] = (now, op);
        self.pushed += 1;
        Some(cookie)
    }

    fn end(&mut self, job: &Job, cookie: u64, now: Instant) {
        let (at, op) = self.inside[cookie as usize];
        self.free.push(cookie);
        self.ended += 1;
        if self.ended == job.ios / 4 {
            (self.from, self.latency) = (now, [(0, 0); 2]);
        }
        let (sum, count) = &mut self.latency[usize::from(op.is_write())];
        (*sum, *count) = (*sum + (now - at).0, *count + 1);
    }

    fn measured(&self, job: &Job, now: Instant) -> Measured {
        let ns = (now - self.from).0.max(1);
        let counted = job.ios - job.ios / 4;
        let mean = |(sum, count): (u64, u64)| sum.checked_div(count).unwrap_or(0);
        Measured {
            iops: counted * 1_000_000_000 / ns,
            mbps: (u128::from(counted) * u128::from(job.bytes) * 1000 / u128::from(ns)) as u64,
            read_ns: mean(self.latency[0]),
            write_ns: mean(self.latency[1]),
        }
    }
}
