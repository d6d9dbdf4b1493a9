//! One run in real time: a queue is built, the threads of each phase drive it, and everything is counted.

use super::drive::drive;
use super::outcome::{Counted, Outcome, outcome};
use super::payload::{BenchPayload, Pool};
use super::setup;
use super::tally::Part;
use super::usage::Usage;
use crate::devices::Opened;
use crate::error::Failure;
use crate::plan::Plan;
use crate::plan::runs::{RunSpec, ThreadSpec};
use blkmq_core::Buffer;
use blkmq_lab::workload::{Stream, Window, Worker, longest};
use blkmq_runtime::{Placement, Service};
#[cfg(target_os = "linux")]
use blkmq_uring::AlignedBuf;
use std::sync::Barrier;

/// Runs `spec`.
///
/// # Errors
/// As [`setup::check`].
pub fn run(plan: &Plan, spec: &RunSpec<'_>) -> Result<Outcome, Failure> {
    let device = setup::device(plan, spec)?;
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
    let config = setup::config::<P>(plan, spec, &device)?;
    let service = Service::start(config, Placement::Anywhere).map_err(setup::impossible)?;
    let clock = service.clock();
    let before = (clock.now(), Usage::of_process());
    let mut parts: Vec<(ThreadSpec, Part)> = Vec::new();
    let phases = spec.threads.iter().map(|thread| thread.phase).max().unwrap_or(0);
    for phase in 0..=phases {
        let threads: Vec<ThreadSpec> =
            spec.threads.iter().copied().filter(|thread| thread.phase == phase).collect();
        parts.extend(run_phase((plan, spec), &device, &service, &source, &threads)?);
    }
    let (elapsed, cpu) = (clock.now() - before.0, Usage::of_process().since(before.1));
    let counted = Counted {
        parts: &parts,
        stats: &service.stats(),
        elapsed,
        cpu_ns: Some(cpu.user_ns + cpu.system_ns),
    };
    Ok(outcome(plan, spec, device, &counted))
}

fn run_phase<P: BenchPayload>(
    (plan, spec): (&Plan, &RunSpec<'_>),
    device: &Opened,
    service: &Service<P>,
    source: &P::Source,
    threads: &[ThreadSpec],
) -> Result<Vec<(ThreadSpec, Part)>, Failure> {
    let streams: Vec<Stream> = threads
        .iter()
        .map(|thread| setup::stream(plan, spec, *thread, device))
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
                    let pool = Pool::new(job.depth.iodepth, longest(job), source);
                    drive(Worker::new(job, stream, pool, window), client)
                })
            })
            .collect();
        let join = |handle: std::thread::ScopedJoinHandle<'_, Part>| match handle.join() {
            Ok(part) => part,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        handles.into_iter().map(join).collect::<Vec<_>>()
    });
    Ok(threads.iter().copied().zip(tallies).collect())
}
