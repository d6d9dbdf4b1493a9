//! One run in real time: a queue is built, the threads of each phase drive it, and everything is counted.

use super::drive::{OnCpu, Outside, drive};
use super::logs::RunLogs;
use super::outcome::{Counted, Outcome, outcome, run_of};
use super::payload::{BenchPayload, Pool};
use super::status::{Beside, Rounds, all_threads};
use super::tally::Part;
use super::ties::RunTies;
use super::usage::Usage;
use super::{setup, watch};
use crate::Failure;
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
use blkmq_terminal::interrupt::Stop;
use blkmq_terminal::output::complain;
use std::sync::Arc;

/// Runs `spec` to its end, or until the stop of `beside`.
///
/// # Errors
/// As [`setup::check`].
pub fn run(plan: &Plan, spec: &RunSpec<'_>, beside: Beside<'_>) -> Result<Outcome, Failure> {
    let device = setup::device(plan, spec)?;
    let chosen = spec.scheduler.on(device.default_scheduler(), &plan.groups);
    let spec = &spec.under(plan, &chosen);
    let verifies = spec.threads.iter().any(|thread| plan.jobs[thread.job].verify.is_some());
    // If no worker checks contents and the device does not store them, runs without payloads measure only the queue.
    match device {
        Device::Virtual(_) if verifies || spec.device.keeps => {
            run_with::<Buffer>(plan, spec, device, beside)
        }
        Device::Virtual(_) => run_with::<()>(plan, spec, device, beside),
        _ => run_with::<AlignedBuf>(plan, spec, device, beside),
    }
}

/// [`run`] with payloads of type `P`.
fn run_with<P: BenchPayload>(
    plan: &Plan,
    spec: &RunSpec<'_>,
    mut device: Device,
    beside: Beside<'_>,
) -> Result<Outcome, Failure> {
    let Beside { observation, stop, mut status } = beside;
    let jobs = || spec.threads.iter().map(|thread| &plan.jobs[thread.job]);
    let in_flight = jobs().map(|job| job.depth.iodepth).sum();
    let source = P::source(&mut device, in_flight, jobs().map(longest).max().unwrap_or(0));
    let config = setup::config::<P>(plan, spec, &device)?;
    let notes = setup::notes(plan, spec, &config);
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
    let counted = |parts: &[(ThreadSpec, Part)]| {
        let (end, cpu) = (clock.now(), Usage::of_process().since(before.1));
        let cpu_ns = Some(cpu.user_ns + cpu.system_ns);
        let counted = Counted::of(plan, parts, service.queue(), observation);
        Counted { elapsed: end - before.0, end, cpu_ns, ..counted }
    };
    let phases = spec.threads.iter().map(|thread| thread.phase).max().unwrap_or(0);
    for phase in 0..=phases {
        let phase =
            Phase { plan, spec, number: phase, device: &device, ties: &ties, observation, stop };
        let new = match &mut status {
            None => phase.run(&service, &source, &mut logs, None)?,
            Some(status) => {
                let rounds = Rounds::new(phase.threads().count());
                let tell = |answers| {
                    let parts = all_threads(plan, spec, &parts, phase.number, answers, clock.now());
                    (status.tell)(run_of(plan, spec, &device, &parts, &counted(&parts)));
                };
                let work = || phase.run(&service, &source, &mut logs, Some(&rounds));
                rounds.during((clock, status.every), tell, work).map_err(Failure::Threads)??
            }
        };
        parts.extend(new);
        // I/Os that never completed still hold resources that the next phase needs.
        let abandoned = parts.iter().any(|(_, part)| part.tally.unfinished.abandoned > 0);
        if abandoned || stop.is_set() {
            break;
        }
    }
    if stop.is_set() {
        parts.retain(|(_, part)| part.counted);
    }
    let incomplete = logs.incomplete();
    let counted = Counted { incomplete, ..counted(&parts) };
    Ok(outcome(plan, spec, &device, notes, (&parts, counted)))
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
    /// The threads, with their numbers in the run.
    fn threads(&self) -> impl Iterator<Item = (usize, &ThreadSpec)> {
        self.spec.threads.iter().enumerate().filter(|(_, thread)| thread.phase == self.number)
    }

    /// Starts the threads together, and waits until all have ended. They answer to `rounds`.
    fn run<P: BenchPayload>(
        &self,
        service: &Service<P>,
        source: &P::Source,
        logs: &mut RunLogs,
        rounds: Option<&Rounds>,
    ) -> Result<Vec<(ThreadSpec, Part)>, Failure> {
        let Self { plan, spec, device, .. } = *self;
        let threads = Vec::from_iter(self.threads());
        let mut begin = |(number, thread): &(usize, &ThreadSpec)| {
            let journal = logs.journal(plan, spec, *number, &plan.jobs[thread.job])?;
            Ok((setup::stream(plan, spec, **thread, device, self.ties.of(plan, thread))?, journal))
        };
        let begun = threads.iter().map(&mut begin).collect::<Result<Vec<Begun>, Failure>>()?;
        let work = |(at, (stream, journal)): (usize, Begun)| {
            let (number, thread) = &threads[at];
            let job = &plan.jobs[thread.job];
            let (source, trace) = (source.clone(), self.trace(*number));
            let cpus = plan.cpus.get(thread.job).and_then(Option::as_ref);
            let (number, bytes) = (thread.thread, setup::bytes(device));
            let outside =
                Outside { stop: self.stop, asked: rounds.map(|rounds| rounds.of_thread(at)) };
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
                Some(drive(worker, client, trace, outside))
            }
        };
        let works = begun.into_iter().enumerate().map(work).collect();
        let parts = together(&mut Threads, works).map_err(Failure::Threads)?;
        Ok(threads.iter().map(|(_, thread)| **thread).zip(parts).collect())
    }

    /// Returns the trace to which thread `number` of the run records its events, if the run is traced.
    fn trace(&self, number: usize) -> Option<OnCpu> {
        let tracer = self.observation.tracer.clone()?;
        let (cpu, pid) = (number as u16, watch::pid(number));
        Some(OnCpu { cpu, pid, trace: ClientTrace::new(tracer, self.device.shape()) })
    }
}
