//! What one thread counts while it runs, and how the counts of several become a job's result.

use super::usage::Usage;
use crate::report::job::{Batches, Direction, JobResult, Latency, Levels, Samples, Verified};
use blkmq_core::{Histogram, Instant, Nanos};
use blkmq_lab::workload::{self, Job, verify::Findings};

/// fio samples rates over windows of this length.
const WINDOW: Nanos = Nanos::from_millis(500);
/// Samples that are kept; a longer run keeps its beginning.
const SAMPLES: usize = 4096;

/// Times of one kind of I/O, as far as they are taken.
#[derive(Default)]
pub struct Times {
    pub slat: Option<Histogram>,
    pub clat: Option<Histogram>,
    pub lat: Option<Histogram>,
}

#[derive(Default)]
pub struct Counts {
    pub ios: u64,
    pub bytes: u64,
    pub times: Times,
    samples: Vec<(f64, f64)>,
    sampled: (u64, u64),
}

/// One thread's counts.
pub struct Tally {
    /// By direction.
    pub counts: [Counts; 3],
    pub flushes: u64,
    pub levels: Levels,
    pub submits: Batches,
    pub completes: Batches,
    /// The first error, as an errno.
    pub error: u16,
    /// What verification found, if there was any.
    pub verify: Option<Findings>,
    /// The longest that one call held the engine, as far as calls were timed.
    pub longest_call: Nanos,
    pub usage: Usage,
    pub started: Instant,
    pub ended: Instant,
    /// Begin of the window that is being sampled.
    pub window: Instant,
}

impl Tally {
    /// Empty, for a thread of `job` that measures from `now` on.
    pub fn new(job: &Job, now: Instant) -> Self {
        let histogram = |wanted: bool| wanted.then(Histogram::new);
        let latencies = job.latencies;
        let counts = || Counts {
            times: Times {
                slat: histogram(latencies.slat),
                clat: histogram(latencies.clat),
                lat: histogram(latencies.lat),
            },
            ..Counts::default()
        };
        Self {
            counts: [counts(), counts(), counts()],
            flushes: 0,
            levels: Levels::default(),
            submits: Batches::default(),
            completes: Batches::default(),
            error: 0,
            verify: None,
            longest_call: Nanos::ZERO,
            usage: Usage::default(),
            started: now,
            ended: now,
            window: now,
        }
    }

    /// Takes a sample of the rates if a window is full.
    #[inline]
    pub fn sample(&mut self, now: Instant) {
        let length = now - self.window;
        if length >= WINDOW {
            self.take_sample(now, length);
        }
    }

    fn take_sample(&mut self, now: Instant, length: Nanos) {
        self.window = now;
        let per_second = 1e9 / length.0 as f64;
        for counts in &mut self.counts {
            let (ios, bytes) = (counts.ios - counts.sampled.0, counts.bytes - counts.sampled.1);
            counts.sampled = (counts.ios, counts.bytes);
            if counts.samples.len() < SAMPLES && counts.ios > 0 {
                counts.samples.push((ios as f64 * per_second, bytes as f64 * per_second));
            }
        }
    }

    fn runtime(&self) -> Nanos {
        self.ended - self.started
    }
}

/// The result of `job` from the counts of its threads, or of a group of jobs reported under the first one's
/// name.
pub fn result(
    job: &Job,
    group: u32,
    options: Vec<(String, String)>,
    parts: &[&Tally],
) -> JobResult {
    let runtime_ns = parts.iter().map(|part| part.runtime().0).max().unwrap_or(0);
    let usage = parts.iter().fold(Usage::default(), |sum, part| sum.plus(part.usage));
    let percent =
        |ns: u64| 100.0 * ns as f64 / (runtime_ns.max(1) as f64 * parts.len().max(1) as f64);
    let direction = |d: workload::Direction| direction(parts, d, runtime_ns);
    let mut result = JobResult {
        name: job.name.clone(),
        group,
        options,
        members: parts.len() as u32,
        error: parts.iter().map(|part| i32::from(part.error)).find(|e| *e != 0).unwrap_or(0),
        read: direction(workload::Direction::Read),
        write: direction(workload::Direction::Write),
        trim: direction(workload::Direction::Trim),
        runtime_ns,
        usr_cpu: percent(usage.user_ns),
        sys_cpu: percent(usage.system_ns),
        ctx: usage.context_switches,
        majf: usage.major_faults,
        minf: usage.minor_faults,
        iodepth: job.depth.iodepth,
        verify: verified(parts),
        ..JobResult::default()
    };
    result.sync.total_ios = parts.iter().map(|part| part.flushes).sum();
    for part in parts {
        add(&mut result.iodepth_level.0, &part.levels.0);
        add(&mut result.iodepth_submit.0, &part.submits.0);
        add(&mut result.iodepth_complete.0, &part.completes.0);
    }
    result
}

/// None if no thread verified.
fn verified(parts: &[&Tally]) -> Option<Verified> {
    let findings = parts.iter().filter_map(|part| part.verify.as_ref());
    findings.fold(None, |sum, found| {
        let mut sum: Verified = sum.unwrap_or_default();
        sum.bytes += found.verified;
        sum.errors += found.errors;
        sum.first = sum.first.or_else(|| found.first.map(|first| first.to_string()));
        Some(sum)
    })
}

fn add(into: &mut [u64; 7], from: &[u64; 7]) {
    into.iter_mut().zip(from).for_each(|(into, from)| *into += from);
}

fn direction(parts: &[&Tally], direction: workload::Direction, runtime_ns: u64) -> Direction {
    let counts = || parts.iter().map(|part| &part.counts[direction as usize]);
    let latency = |pick: fn(&Times) -> &Option<Histogram>| {
        let mut all: Option<Histogram> = None;
        for histogram in counts().filter_map(|c| pick(&c.times).as_ref()) {
            all.get_or_insert_with(Histogram::new).merge(histogram);
        }
        all.map(Latency)
    };
    let total_ios = counts().map(|c| c.ios).sum();
    let samples = |pick: fn(&(f64, f64)) -> f64| {
        let all: Vec<f64> = counts().flat_map(|c| &c.samples).map(pick).collect();
        Samples::of(&all)
    };
    Direction {
        io_bytes: counts().map(|c| c.bytes).sum(),
        runtime_ns: if total_ios == 0 { 0 } else { runtime_ns },
        total_ios,
        slat: latency(|t| &t.slat),
        clat: latency(|t| &t.clat),
        lat: latency(|t| &t.lat),
        iops_samples: samples(|s| s.0),
        bw_samples: samples(|s| s.1),
        ..Direction::default()
    }
}
