//! One run: a queue is built, the threads of each phase drive it, and everything is counted.

use super::payload::BenchPayload;
use super::tally::{self, Tally};
use super::usage::Usage;
use super::worker::{Stream, Window, Worker, longest};
use crate::devices::{self, Opened};
use crate::error::{Failure, UsageError};
use crate::plan::runs::{RunSpec, ThreadSpec};
use crate::plan::{self, Nomerges, Plan, PumpChoice};
use crate::report::job::JobResult;
use crate::report::model::{Counters, Device, Kicks, Locks, Merges, Run};
use blkmq_core::{Buffer, Limits, Nanos, SECTOR_SIZE};
use blkmq_engine::{Config, NoMerges, PumpMode, QueueStats};
use blkmq_lab::workload::{Direction, Generator, GeneratorError, Job, Verifier};
use blkmq_runtime::{Placement, Service};
use blkmq_sched::Scope;
#[cfg(target_os = "linux")]
use blkmq_uring::AlignedBuf;
use std::sync::Barrier;

/// What came of a run.
pub struct Outcome {
    pub run: Run,
    /// What the device had to say about its parameters.
    pub notes: Vec<String>,
    /// What verification found wrong, or that it was not completed.
    pub wrong: Option<String>,
}

fn device(spec: &RunSpec<'_>) -> Result<Opened, UsageError> {
    devices::open(&spec.device.text)
        .map_err(|e| UsageError::new(format!("--device {}: {e}", spec.device.text)))
}

/// Refuses what could not be run.
///
/// # Errors
/// If a job does not fit the device, or the queue cannot be built.
pub fn check(plan: &Plan, spec: &RunSpec<'_>) -> Result<(), Failure> {
    let device = device(spec)?;
    for thread in &spec.threads {
        let job = &plan.jobs[thread.job];
        fits(job, &device.shape().limits)?;
        stream(job, *thread, &device)?;
    }
    match device {
        Opened::Virtual(_) => start::<()>(plan, spec, &device).map(drop),
        #[cfg(target_os = "linux")]
        Opened::File(_) => start::<AlignedBuf>(plan, spec, &device).map(drop),
    }
}

/// Blocks may be longer than the device takes at once: they are divided.
fn fits(job: &Job, limits: &Limits) -> Result<(), UsageError> {
    let refuse = |what: String| Err(UsageError::new(format!("job '{}': {what}", job.name)));
    for direction in job.rw.directions() {
        if limits.max_sectors_of(direction.op()) == 0 {
            return refuse(
                "the device takes no discards; for null and memory add discard=1".into(),
            );
        }
        let bs = &job.bs[*direction];
        if !bs.min().is_multiple_of(limits.logical_block_size) {
            let block = limits.logical_block_size;
            return refuse(format!("bs={}; the device takes multiples of {block}", bs.min()));
        }
    }
    Ok(())
}

fn stream(job: &Job, thread: ThreadSpec, device: &Opened) -> Result<Stream, UsageError> {
    let bytes = device.shape().limits.capacity * u64::from(SECTOR_SIZE);
    let refuse = |e: GeneratorError| UsageError::new(format!("job '{}': {e}", job.name));
    let generator = Generator::new(job, thread.thread, bytes).map_err(refuse)?;
    let verifier = Verifier::new(job, thread.thread, bytes).map_err(refuse)?;
    Ok(Stream { generator, verifier })
}

/// What a thread of `job` needs to have `iodepth` I/Os in flight, each in as many parts as it may have.
fn credit(job: &Job, limits: &Limits) -> u32 {
    // What reads back to verify is no longer than what was written.
    let parts = |direction: &Direction| {
        limits.most_parts(direction.op(), job.bs[*direction].max() / SECTOR_SIZE)
    };
    let parts = job.rw.directions().iter().map(parts).max().unwrap_or(1);
    // Too much is refused when the queue is built.
    u32::try_from(parts * u64::from(job.depth.iodepth)).unwrap_or(u32::MAX)
}

fn start<P: BenchPayload>(
    plan: &Plan,
    spec: &RunSpec<'_>,
    device: &Opened,
) -> Result<Service<P>, Failure> {
    let threads = u16::try_from(spec.threads.len()).map_err(|_| {
        UsageError::new(format!("{} threads; at most {}", spec.threads.len(), u16::MAX))
    })?;
    let limits = &device.shape().limits;
    let depths = spec.threads.iter().map(|thread| credit(&plan.jobs[thread.job], limits));
    let config = Config {
        options: spec.scheduler.options.clone(),
        scope: Some(spec.scope),
        nr_requests: plan.nr_requests,
        access: spec.access.access,
        modes: spec.access.modes,
        nomerges: match plan.nomerges {
            Nomerges::All => NoMerges::All,
            Nomerges::Simple => NoMerges::Simple,
            Nomerges::None => NoMerges::None,
        },
        pump: match plan.pump {
            PumpChoice::Inline => PumpMode::Inline,
            PumpChoice::Threads => PumpMode::Thread,
        },
        submitters: threads,
        depth: depths.max().unwrap_or(1),
        ..P::config(device)?.scheduler(spec.scheduler.factory)
    };
    Service::start(config, Placement::Anywhere)
        .map_err(|e| UsageError::new(format!("the queue cannot be built: {e}")).into())
}

/// Runs `spec`.
///
/// # Errors
/// As [`check`].
pub fn run(plan: &Plan, spec: &RunSpec<'_>) -> Result<Outcome, Failure> {
    let device = device(spec)?;
    let verifies = spec.threads.iter().any(|thread| plan.jobs[thread.job].verify.is_some());
    // Where nobody looks at contents and nothing keeps them, carrying none leaves the cost of the queue.
    match device {
        #[cfg(target_os = "linux")]
        Opened::File(_) => run_with::<AlignedBuf>(plan, spec, device),
        Opened::Virtual(_) if verifies || spec.device.keeps => {
            run_with::<Buffer>(plan, spec, device)
        }
        Opened::Virtual(_) => run_with::<()>(plan, spec, device),
    }
}

/// [`run`] with payloads of type `P`.
fn run_with<P: BenchPayload>(
    plan: &Plan,
    spec: &RunSpec<'_>,
    mut device: Opened,
) -> Result<Outcome, Failure> {
    let jobs = || spec.threads.iter().map(|thread| &plan.jobs[thread.job]);
    let in_flight = jobs().map(|job| job.depth.iodepth).sum();
    let source = P::source(&mut device, in_flight, jobs().map(longest).max().unwrap_or(0));
    let service = start::<P>(plan, spec, &device)?;
    let clock = service.clock();
    let before = (clock.now(), Usage::of_process());
    let mut parts: Vec<(ThreadSpec, Tally)> = Vec::new();
    let phases = spec.threads.iter().map(|thread| thread.phase).max().unwrap_or(0);
    for phase in 0..=phases {
        let threads: Vec<ThreadSpec> =
            spec.threads.iter().copied().filter(|thread| thread.phase == phase).collect();
        parts.extend(run_phase(plan, &device, &service, &source, &threads)?);
    }
    let (elapsed, cpu) = (clock.now() - before.0, Usage::of_process().since(before.1));
    let wrong = wrong(plan, &parts);
    let verifies = parts.iter().any(|(_, tally)| tally.verify.is_some());
    let jobs = results(plan, &parts);
    let ramp = plan.jobs.iter().map(|job| job.startdelay.0 + job.ramp_time.0).max().unwrap_or(0);
    let longest = parts.iter().map(|(_, tally)| tally.longest_call).max().unwrap_or_default();
    let (name, options) = name_and_options(&spec.scheduler.text);
    let run = Run {
        scheduler: name,
        scheduler_options: options,
        device: Device { kind: device.kind(), text: spec.device.text.clone() },
        access: spec.access.text.clone(),
        scope: match spec.scope {
            Scope::Queue => "queue".into(),
            Scope::HwQueue => "hwqueue".into(),
        },
        threads: spec.threads.len() as u32,
        jobs,
        elapsed_ns: elapsed.0.saturating_sub(ramp),
        ramp_ns: ramp,
        repetitions: Vec::new(),
        // With a ramp, or reading back, the process's time is not that of the measurement; the jobs' own is.
        cpu_ns: (ramp == 0 && !verifies).then_some(cpu.user_ns + cpu.system_ns),
        counters: counters(&service.stats(), longest),
    };
    Ok(Outcome { run, notes: device.into_notes(), wrong })
}

/// What verification found wrong in all threads together, and the first of it; or else the first thread that
/// could not verify everything.
fn wrong(plan: &Plan, parts: &[(ThreadSpec, Tally)]) -> Option<String> {
    let place = |thread: &ThreadSpec| {
        format!("job '{}', thread {}", plan.jobs[thread.job].name, thread.thread)
    };
    let found =
        || parts.iter().filter_map(|(thread, tally)| Some((thread, tally.verify.as_ref()?)));
    let errors: u64 = found().map(|(_, findings)| findings.errors).sum();
    if let Some((thread, first)) = found().find_map(|(thread, found)| Some((thread, found.first?)))
    {
        let blocks = if errors == 1 { "block" } else { "blocks" };
        return Some(format!("{errors} wrong {blocks}; the first: {}, {first}", place(thread)));
    }
    let failed = parts.iter().find(|(_, tally)| tally.verify.is_some() && tally.error != 0);
    failed.map(|(thread, tally)| {
        format!("{}: error {} before everything was verified", place(thread), tally.error)
    })
}

fn name_and_options(text: &str) -> (String, String) {
    let (name, options) = text.split_once(':').unwrap_or((text, ""));
    (name.into(), options.into())
}

fn run_phase<P: BenchPayload>(
    plan: &Plan,
    device: &Opened,
    service: &Service<P>,
    source: &P::Source,
    threads: &[ThreadSpec],
) -> Result<Vec<(ThreadSpec, Tally)>, Failure> {
    let streams: Vec<Stream> = threads
        .iter()
        .map(|thread| stream(&plan.jobs[thread.job], *thread, device))
        .collect::<Result<_, _>>()?;
    let barrier = Barrier::new(threads.len());
    let tallies = std::thread::scope(|scope| {
        let handles: Vec<_> = threads
            .iter()
            .zip(streams)
            .map(|(thread, stream)| {
                let (job, barrier) = (&plan.jobs[thread.job], &barrier);
                let source = source.clone();
                scope.spawn(move || {
                    let client = service.client().expect("the queue was built for all threads");
                    barrier.wait();
                    let window = Window::of(job, client.clock().now());
                    Worker::new(job, stream, client, source, window).run(window)
                })
            })
            .collect();
        let join = |handle: std::thread::ScopedJoinHandle<'_, Tally>| match handle.join() {
            Ok(tally) => tally,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        handles.into_iter().map(join).collect::<Vec<_>>()
    });
    Ok(threads.iter().copied().zip(tallies).collect())
}

/// One result per thread, or per group where that was asked for, as fio reports.
fn results(plan: &Plan, parts: &[(ThreadSpec, Tally)]) -> Vec<JobResult> {
    let mut results = Vec::new();
    let mut at = 0;
    let mut parts: Vec<(ThreadSpec, Option<&Tally>)> =
        parts.iter().map(|(thread, tally)| (*thread, Some(tally))).collect();
    while at < parts.len() {
        let thread = parts[at].0;
        let job = &plan.jobs[thread.job];
        let together = |other: &ThreadSpec| {
            *other == thread
                || job.group_reporting
                    && other.group == thread.group
                    && plan.jobs[other.job].group_reporting
        };
        let mine: Vec<&Tally> = parts
            .iter_mut()
            .filter(|(other, tally)| tally.is_some() && together(other))
            .filter_map(|(_, tally)| tally.take())
            .collect();
        if !mine.is_empty() {
            results.push(tally::result(job, thread.group, options(job), &mine));
        }
        at += 1;
    }
    results
}

/// The job's options as a job file would have them.
fn options(job: &Job) -> Vec<(String, String)> {
    let text = plan::job_file(std::slice::from_ref(job));
    let pair = |line: &str| match line.split_once('=') {
        Some((key, value)) => (key.to_owned(), value.to_owned()),
        None => (line.to_owned(), "1".to_owned()),
    };
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('[')).map(pair).collect()
}

fn counters(stats: &QueueStats, longest: Nanos) -> Counters {
    let merges = stats.merges;
    Counters {
        submitted: stats.submitted,
        completed: stats.completed,
        splits: stats.splits,
        merges: Merges {
            plug: merges.plug,
            back: merges.back,
            front: merges.front,
            request: merges.request,
            discard: merges.discard,
        },
        dispatches: stats.dispatched,
        requests_completed: stats.completed_requests,
        batch_mean: stats.batch_mean(),
        kicks: Kicks { sent: stats.kicks_sent, coalesced: stats.kicks_coalesced },
        locks: Locks {
            taken: stats.locks.taken,
            contended: stats.locks.contended,
            waited_ns: stats.locks.waited.0,
            merges_skipped: stats.locks.merges_skipped,
            parked: stats.locks.parked,
            left: stats.locks.left,
        },
        requeues: stats.requeues,
        timeouts: stats.timeouts,
        retries: stats.retries,
        longest_run_passes: stats.longest_run,
        longest_run_ns: longest.0,
    }
}
