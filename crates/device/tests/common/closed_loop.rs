//! [`Job`]: a closed loop of I/Os on a device in virtual time, alone or with other jobs, and its measurements.

use super::unmerged;
use blkmq_core::{Instant, Nanos, Op, Rng, SECTOR_SIZE};
use blkmq_device::Device;
use blkmq_engine::{Io, Queue, Submitter};

/// The order of a job's offsets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    Random,
    Sequential,
}

/// A number of I/Os, with a fixed number in flight.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Job {
    pub pattern: Pattern,
    pub bytes: u32,
    /// The percentage of reads.
    pub reads: u64,
    pub depth: u32,
    /// The number of I/Os; the first quarter is not measured.
    pub ios: u64,
    /// The average interval between I/Os, which limits the rate; zero for no limit.
    pub every: Nanos,
}

/// The measurements of a job.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    pub iops: u64,
    /// 10^6 bytes per second.
    pub mbps: u64,
    /// Mean latencies in nanoseconds; 0 without such I/Os.
    pub read_ns: u64,
    pub write_ns: u64,
    /// The 99th percentile of read latencies in ns.
    pub read_p99_ns: u64,
}

impl Job {
    /// A job of random I/Os of 4 KiB.
    pub fn random(reads: u64, depth: u32, ios: u64) -> Self {
        let every = Nanos::ZERO;
        Self { pattern: Pattern::Random, bytes: 4096, reads, depth, ios, every }
    }

    /// A job of sequential I/Os of 128 KiB.
    pub fn sequential(reads: u64, depth: u32, ios: u64) -> Self {
        Self { pattern: Pattern::Sequential, bytes: 128 << 10, ..Self::random(reads, depth, ios) }
    }

    pub fn run(&self, device: &Device) -> Measured {
        run_beside(&[*self], device)[0]
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

/// Runs jobs concurrently until the first has ended. Returns the measurements of each.
pub fn run_beside(jobs: &[Job], device: &Device) -> Vec<Measured> {
    let depth = jobs.iter().map(|job| job.depth).sum::<u32>();
    let queue = Queue::new(unmerged(device, 1, 2 * depth)).expect("a queue");
    let mut submitter = queue.submitter().expect("there is room for one");
    let mut all = Vec::from_iter(jobs.iter().map(|job| Books::new(job, depth)));
    let mut now = Instant::ZERO;
    while all[0].ended < jobs[0].ios {
        for (nth, (job, books)) in (0..).zip(jobs.iter().zip(&mut all)) {
            books.push(job, nth << 32, now, device, &mut submitter);
        }
        submitter.flush(now);
        let ended = submitter.reap(u32::MAX, |done| {
            assert_eq!(done.result, Ok(()));
            let nth = (done.cookie >> 32) as usize;
            all[nth].end(&jobs[nth], done.cookie & u64::from(u32::MAX), now);
        });
        if ended == 0 {
            let next = submitter.next_deadline().expect("something will happen");
            let due = all.iter().zip(jobs).map(|(books, job)| books.due(job));
            now = now.max(due.fold(next, Instant::min));
            submitter.poll(now);
        }
    }
    all.iter_mut().zip(jobs).map(|(books, job)| books.measured(job, now)).collect()
}

/// The state of a running job.
struct Books {
    /// The seed differs between jobs: overwriting blocks in the order of an earlier job would amount to sequential
    /// writes.
    rng: Rng,
    /// For each cookie in use, the time of its push and its operation.
    inside: Vec<(Instant, Op)>,
    /// The unused cookies.
    free: Vec<u64>,
    pushed: u64,
    ended: u64,
    /// The start of the measurement.
    from: Instant,
    /// The number of I/Os that had ended by then.
    before: u64,
    /// Latencies of reads and writes.
    latency: [Vec<u64>; 2],
}

impl Books {
    fn new(job: &Job, depth: u32) -> Self {
        Self {
            rng: Rng::new(job.every.0 << 40 ^ job.reads << 32 | u64::from(depth)),
            inside: vec![(Instant::ZERO, Op::Read); job.depth as usize],
            free: (0..u64::from(job.depth)).collect(),
            pushed: 0,
            ended: 0,
            from: Instant::ZERO,
            before: 0,
            latency: [Vec::new(), Vec::new()],
        }
    }

    /// The time of the next push if only the rate limit delays it.
    fn due(&self, job: &Job) -> Instant {
        let waits = job.every > Nanos::ZERO && !self.free.is_empty();
        if waits { Instant::ZERO + Nanos(job.every.0 * self.pushed) } else { Instant::MAX }
    }

    /// Pushes I/Os as far as depth and rate allow.
    fn push(
        &mut self,
        job: &Job,
        tagged: u64,
        now: Instant,
        device: &Device,
        submitter: &mut Submitter<u64>,
    ) {
        while self.pushed < job.ios
            && Instant::ZERO + Nanos(job.every.0 * self.pushed) <= now
            && let Some(cookie) = self.free.pop()
        {
            let op = if self.rng.below(100) < job.reads { Op::Read } else { Op::Write };
            self.inside[cookie as usize] = (now, op);
            let sector = job.place(device, self.pushed, &mut self.rng);
            self.pushed += 1;
            let io = Io::new(op, sector, job.sectors(), tagged | cookie, tagged | cookie);
            submitter.push(now, io).expect("there is credit");
        }
    }

    fn end(&mut self, job: &Job, cookie: u64, now: Instant) {
        let (at, op) = self.inside[cookie as usize];
        self.free.push(cookie);
        self.ended += 1;
        if self.ended == job.ios / 4 {
            (self.from, self.before) = (now, self.ended);
            self.latency.iter_mut().for_each(Vec::clear);
        }
        self.latency[usize::from(op.is_write())].push((now - at).0);
    }

    fn measured(&mut self, job: &Job, now: Instant) -> Measured {
        let ns = (now - self.from).0.max(1);
        let counted = self.ended - self.before;
        let mean = |all: &[u64]| all.iter().sum::<u64>().checked_div(all.len() as u64).unwrap_or(0);
        let [reads, writes] = &mut self.latency;
        reads.sort_unstable();
        let p99 = reads.get(reads.len() * 99 / 100);
        Measured {
            iops: counted * 1_000_000_000 / ns,
            mbps: (u128::from(counted) * u128::from(job.bytes) * 1000 / u128::from(ns)) as u64,
            read_ns: mean(reads),
            write_ns: mean(writes),
            read_p99_ns: p99.copied().unwrap_or(0),
        }
    }
}
