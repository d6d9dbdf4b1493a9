//! One run in real time: a queue is built, the threads of each phase drive it, and everything is counted.

use super::drive::{OnCpu, drive};
use super::groups;
use super::logs::RunLogs;
use super::outcome::{Counted, Outcome, outcome};
use super::payload::{BenchPayload, Pool};
use super::setup;
use super::tally::Part;
use super::ties::RunTies;
use super::usage::Usage;
use super::watch;
use crate::error::Failure;
use crate::interrupt::Stop;
use crate::output::complain;
use crate::plan::Plan;
use crate::plan::runs::{RunSpec, ThreadSpec};
use crate::start::{Threads, Ticket, together};
use blkmq::Device;
#[cfg(target_os = "linux")]
use blkmq_buf::AlignedBuf;
use blkmq_core::Buffer;
use blkmq_lab::observe::Observation;
use blkmq_lab::trace::ClientTrace;
use blkmq_lab::workload::{Journal, Stream, Window, Worker, longest};
use blkmq_runtime::Service;
use std::sync::Arc;

/// Runs `spec`, or its beginning until `stop` is set.
///
/// # Errors
/// As [`setup::check`].
pub fn run(
    plan: &Plan,
    spec: &RunSpec<'_>,
    observation: &Observation,
    stop: &Stop,
) -> Result<Outcome, Failure> {
    let device = setup::device(plan, spec)?;
    let chosen = spec.scheduler.on(&device, &plan.groups);
    let spec = &spec.under(plan, &chosen);
    let verifies = spec.threads.iter().any(|thread| plan.jobs[thread.job].verify.is_some());
    // If no worker checks contents and the device does not store them, runs without payloads measure the queue alone.
    match device {
        #[cfg(target_os = "linux")]
        Device::File(_) | Device::Nbd(_) | Device::Rbd(_) => {
            run_with::<AlignedBuf>(plan, spec, device, (observation, stop))
        }
        Device::Virtual(_) if verifies || spec.device.keeps => {
            run_with::<Buffer>(plan, spec, device, (observation, stop))
        }
        Device::Virtual(_) => run_with::<()>(plan, spec, device, (observation, stop)),
    }
}

/// [`run`] with payloads of type `P`.
fn run_with<P: BenchPayload>(
    plan: &Plan,
    spec: &RunSpec<'_>,
    mut device: Device,
    (observation, stop): (&Observation, &Stop),
) -> Result<Outcome, Failure> {
    let jobs = || spec.threads.iter().map(|thread| &plan.jobs[thread.job]);
    let in_flight = jobs().map(|job| job.depth.iodepth).sum();
    let source = P::source(&mut device, in_flight, jobs().map(longest).max().unwrap_or(0));
    let config = setup::config::<P>(plan, spec, &device)?;
    let mut notes = setup::notes(plan, spec, &config);
    let start = |config| Service::start(config);
    let mut service = observation.of(config, start).map_err(setup::impossible)?;
    let scheduler = spec.scheduler.text.clone();
    service.set_observer(Arc::new(move |event| complain(format_args!("{scheduler}: {event}"))));
    let clock = service.clock();
    if let Some(tracer) = &observation.tracer {
        tracer.set_clock(move || clock.now());
    }
    let before = (clock.now(), Usage::of_process());
    let mut parts: Vec<(ThreadSpec, Part)> = Vec::new();
    let mut logs = RunLogs::default();
    let ties = RunTies::new(plan, &spec.threads);
    let phases = spec.threads.iter().map(|thread| thread.phase).max().unwrap_or(0);
    for phase in 0..=phases {
        let phase =
            Phase { plan, spec, number: phase, device: &device, ties: &ties, observation, stop };
        parts.extend(phase.run(&service, &source, &mut logs)?);
        // I/Os that never completed still hold what the next phase needs.
        let abandoned = parts.iter().any(|(_, part)| part.tally.unfinished.abandoned > 0);
        if abandoned || stop.is_set() {
            break;
        }
    }
    let (end, cpu) = (clock.now(), Usage::of_process().since(before.1));
    if stop.is_set() {
        parts.retain(|(_, part)| part.counted);
    }
    notes.extend(groups::goals(plan, service.queue()));
    notes.extend(groups::floors(plan, service.queue()));
    let counted = Counted {
        notes,
        parts: &parts,
        stats: service.stats(),
        groups: groups::results(plan, &parts, service.queue()),
        shared: groups::shared(service.queue()),
        times: groups::times(plan, service.queue()),
        elapsed: end - before.0,
        end,
        cpu_ns: Some(cpu.user_ns + cpu.system_ns),
        observed: observation,
        incomplete: logs.incomplete(),
    };
    Ok(outcome(plan, spec, &device, counted))
}

/// The I/Os of a thread, and the log of them.
type Begun = (Stream, Option<Box<dyn Journal>>);

/// A phase: threads that run side by side.
struct Phase<'a> {
    plan: &'a Plan,
    spec: &'a RunSpec<'a>,
    number: u32,
    device: &'a Device,
    ties: &'a RunTies,
    observation: &'a Observation,
    stop: &'a Stop,
}

impl Phase<'_> {
    /// Starts the threads together, and waits until all have ended.
    fn run<P: BenchPayload>(
        &self,
        service: &Service<P>,
        source: &P::Source,
        logs: &mut RunLogs,
    ) -> Result<Vec<(ThreadSpec, Part)>, Failure> {
        let Self { plan, spec, device, .. } = *self;
        let mine = |(_, thread): &(usize, &ThreadSpec)| thread.phase == self.number;
        let threads: Vec<(usize, &ThreadSpec)> =
            spec.threads.iter().enumerate().filter(mine).collect();
        let mut begin = |(number, thread): &(usize, &ThreadSpec)| {
            let journal = logs.journal(plan, spec, *number, &plan.jobs[thread.job])?;
            Ok((setup::stream(plan, spec, **thread, device, self.ties.of(plan, thread))?, journal))
        };
        let begun = threads.iter().map(&mut begin).collect::<Result<Vec<Begun>, Failure>>()?;
        let work = |((number, thread), (stream, journal)): (&(usize, &ThreadSpec), Begun)| {
            let job = &plan.jobs[thread.job];
            let (source, trace) = (source.clone(), self.trace(*number));
            let cpus = plan.cpus.get(thread.job).and_then(Option::as_ref);
            let (number, bytes) = (thread.thread, setup::bytes(device));
            move |ticket: Ticket<'_>| {
                if let Some(cpus) = cpus {
                    cpus.bind(number).expect("one of the CPUs was there when the plan was made");
                }
                let client = service.client().expect("the queue was built for all threads");
                if !ticket.pass() {
                    return None;
                }
                let window = Window::of(job, client.clock().now());
                let pool = Pool::new(job, number, bytes, source);
                let worker = Worker::new(job, stream, pool, window).with_journal(journal);
                let worker = if plan.draws() { worker.with_course() } else { worker };
                Some(drive(worker, client, trace, self.stop))
            }
        };
        let works = threads.iter().zip(begun).map(work).collect();
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
