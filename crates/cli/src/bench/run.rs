//! One run in real time: a queue is built, the threads of each phase drive it, and everything is counted.

use super::drive::{OnCpu, drive};
use super::exits::Exits;
use super::groups;
use super::outcome::{Counted, Outcome, outcome};
use super::payload::{BenchPayload, Pool};
use super::setup;
use super::start::{Threads, Ticket, together};
use super::tally::Part;
use super::usage::Usage;
use super::watch;
use crate::error::Failure;
use crate::plan::Plan;
use crate::plan::runs::{RunSpec, ThreadSpec};
use blkmq::Device;
#[cfg(target_os = "linux")]
use blkmq_buf::AlignedBuf;
use blkmq_core::Buffer;
use blkmq_lab::observe::Observation;
use blkmq_lab::trace::ClientTrace;
use blkmq_lab::workload::{Stream, Window, Worker, longest};
use blkmq_runtime::Service;
use std::sync::Arc;

/// Runs `spec`.
///
/// # Errors
/// As [`setup::check`].
pub fn run(plan: &Plan, spec: &RunSpec<'_>, observation: &Observation) -> Result<Outcome, Failure> {
    let device = setup::device(plan, spec)?;
    let verifies = spec.threads.iter().any(|thread| plan.jobs[thread.job].verify.is_some());
    // If no worker checks contents and the device does not store them, runs without payloads measure the queue alone.
    match device {
        #[cfg(target_os = "linux")]
        Device::File(_) => run_with::<AlignedBuf>(plan, spec, device, observation),
        Device::Virtual(_) if verifies || spec.device.keeps => {
            run_with::<Buffer>(plan, spec, device, observation)
        }
        Device::Virtual(_) => run_with::<()>(plan, spec, device, observation),
    }
}

/// [`run`] with payloads of type `P`.
fn run_with<P: BenchPayload>(
    plan: &Plan,
    spec: &RunSpec<'_>,
    mut device: Device,
    observation: &Observation,
) -> Result<Outcome, Failure> {
    let jobs = || spec.threads.iter().map(|thread| &plan.jobs[thread.job]);
    let in_flight = jobs().map(|job| job.depth.iodepth).sum();
    let source = P::source(&mut device, in_flight, jobs().map(longest).max().unwrap_or(0));
    let config = setup::config::<P>(plan, spec, &device)?;
    let notes = setup::notes(&config);
    let start = |config| Service::start(config);
    let mut service = observation.of(config, start).map_err(setup::impossible)?;
    let scheduler = spec.scheduler.text.clone();
    service.set_observer(Arc::new(move |event| eprintln!("blkmq: {scheduler}: {event}")));
    let clock = service.clock();
    if let Some(tracer) = &observation.tracer {
        tracer.set_clock(move || clock.now());
    }
    let before = (clock.now(), Usage::of_process());
    let mut parts: Vec<(ThreadSpec, Part)> = Vec::new();
    let phases = spec.threads.iter().map(|thread| thread.phase).max().unwrap_or(0);
    for phase in 0..=phases {
        let phase = Phase { plan, spec, number: phase, device: &device, observation };
        parts.extend(phase.run(&service, &source)?);
        // I/Os that never completed still hold what the next phase needs.
        if parts.iter().any(|(_, part)| part.tally.unfinished.abandoned > 0) {
            break;
        }
    }
    let (end, cpu) = (clock.now(), Usage::of_process().since(before.1));
    let counted = Counted {
        notes,
        parts: &parts,
        stats: service.stats(),
        groups: groups::results(plan, &parts, service.queue()),
        shared: groups::shared(service.queue()),
        elapsed: end - before.0,
        end,
        cpu_ns: Some(cpu.user_ns + cpu.system_ns),
        observed: observation,
    };
    Ok(outcome(plan, spec, &device, counted))
}

/// A phase: threads that run side by side.
struct Phase<'a> {
    plan: &'a Plan,
    spec: &'a RunSpec<'a>,
    number: u32,
    device: &'a Device,
    observation: &'a Observation,
}

impl Phase<'_> {
    /// Starts the threads together, and waits until all have ended.
    fn run<P: BenchPayload>(
        &self,
        service: &Service<P>,
        source: &P::Source,
    ) -> Result<Vec<(ThreadSpec, Part)>, Failure> {
        let Self { plan, spec, device, .. } = *self;
        let mine = |(_, thread): &(usize, &ThreadSpec)| thread.phase == self.number;
        let threads: Vec<(usize, &ThreadSpec)> =
            spec.threads.iter().enumerate().filter(mine).collect();
        let exits = Exits::new(plan, &spec.threads);
        let stream = |(_, thread): &(usize, &ThreadSpec)| {
            setup::stream(plan, spec, **thread, device, exits.of(thread))
        };
        let streams: Vec<Stream> = threads.iter().map(stream).collect::<Result<_, _>>()?;
        let work = |((number, thread), stream): (&(usize, &ThreadSpec), Stream)| {
            let job = &plan.jobs[thread.job];
            let (source, trace) = (source.clone(), self.trace(*number));
            move |ticket: Ticket<'_>| {
                let client = service.client().expect("the queue was built for all threads");
                if !ticket.pass() {
                    return None;
                }
                let window = Window::of(job, client.clock().now());
                let pool = Pool::new(job.depth.iodepth, longest(job), source);
                let worker = Worker::new(job, stream, pool, window);
                let worker = if plan.draws() { worker.with_course() } else { worker };
                Some(drive(worker, client, trace))
            }
        };
        let works = threads.iter().zip(streams).map(work).collect();
        let parts = together(&mut Threads, works).map_err(Failure::Threads)?;
        Ok(threads.iter().map(|(_, thread)| **thread).zip(parts).collect())
    }

    /// Where thread `number` of the run records its trace events, if the run is traced.
    fn trace(&self, number: usize) -> Option<OnCpu> {
        let tracer = self.observation.tracer.clone()?;
        let (cpu, pid) = (number as u16, watch::pid(number));
        Some(OnCpu { cpu, pid, trace: ClientTrace::new(tracer, self.device.shape()) })
    }
}
