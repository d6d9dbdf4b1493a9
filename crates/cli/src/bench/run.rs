//! One run: a queue is built, the threads of each phase drive it in real time, or on virtual CPUs in virtual time, and
//! everything is counted. [`RunTies`] are the ties between the threads: `exitall`, `wait_for` and `flow`.

use super::drive::{OnCpu, Outside, drive};
use super::logs::RunLogs;
use super::outcome::{Counted, Outcome, outcome, run_of};
use super::setup::{self, BenchPayload, Pool};
use super::status::{Beside, Rounds, all_threads};
use super::tally::{Part, Usage};
use super::watch;
use crate::Failure;
use crate::plan::Plan;
use crate::plan::runs::{RunSpec, ThreadSpec};
use crate::start::{Threads, Ticket, together};
use blkmq::Device;
#[cfg(target_os = "linux")]
use blkmq_buf::AlignedBuf;
use blkmq_core::{Buffer, Instant};
use blkmq_engine::Queue;
use blkmq_lab::observe::Observation;
use blkmq_lab::simulation::{Done, Program, Reports, Settings, Simulation};
use blkmq_lab::trace::ClientTrace;
use blkmq_lab::workload::{
    Awaited, Exit, ExitWhat, FlowPool, Journal, Stream, Ties, Window, Worker, longest,
};
use blkmq_runtime::Service;
use blkmq_terminal::output::complain;
use blkmq_terminal::program::Stop;
use std::cell::RefCell;
use std::collections::BTreeMap;
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

/// Performs the run `spec` to its end, or until the stop of `beside`. All randomness is derived from `seed`.
///
/// # Errors
/// See [`setup::check`]; also if the queue stalls.
pub fn simulate(
    plan: &Plan,
    spec: &RunSpec<'_>,
    seed: u64,
    beside: Beside<'_>,
) -> Result<Outcome, Failure> {
    let device = setup::device(plan, spec)?;
    let chosen = spec.scheduler.on(device.default_scheduler(), &plan.groups);
    let spec = &spec.under(plan, &chosen);
    let verifies = spec.threads.iter().any(|thread| plan.jobs[thread.job].verify.is_some());
    // Copying bytes takes no virtual time. Payloads carry bytes only for workers that verify them.
    if verifies {
        simulate_with::<Buffer>(plan, spec, &device, seed, beside)
    } else {
        simulate_with::<()>(plan, spec, &device, seed, beside)
    }
}

fn simulate_with<P: BenchPayload<Source = ()> + 'static>(
    plan: &Plan,
    spec: &RunSpec<'_>,
    device: &Device,
    seed: u64,
    beside: Beside<'_>,
) -> Result<Outcome, Failure> {
    let Beside { observation, stop, mut status } = beside;
    let config = setup::config::<P>(plan, spec, device)?;
    let mut notes = setup::notes(plan, spec, &config);
    let stalls = RefCell::new(Vec::new());
    let settings = Settings::new(spec.seed_of(seed));
    let simulation = Simulation::observed(config, settings, observation);
    let mut simulation = simulation.map_err(setup::impossible)?;
    simulation.observe_stalls(|stall| match plan.quiet {
        true => stalls.borrow_mut().push(stall.to_string()),
        false => complain(format_args!("{}: {stall}", spec.scheduler.text)),
    });
    simulation.stop_when(|| stop.is_set());
    let mut parts: Vec<(ThreadSpec, Part)> = Vec::new();
    let mut logs = RunLogs::default();
    let ties = RunTies::new(plan, &spec.threads);
    // The jobs' own times include the CPU time of virtual CPUs.
    let counted = |parts: &[(ThreadSpec, Part)], queue: &Queue<P>, end: Instant| {
        let counted = Counted::of(plan, parts, queue, observation);
        Counted { elapsed: end - Instant::ZERO, end, ..counted }
    };
    let phases = spec.threads.iter().map(|thread| thread.phase).max().unwrap_or(0);
    for phase in 0..=phases {
        let mine = |(_, thread): &(usize, &ThreadSpec)| thread.phase == phase;
        let threads: Vec<(usize, &ThreadSpec)> =
            spec.threads.iter().enumerate().filter(mine).collect();
        let mut program = |(number, thread): &(usize, &ThreadSpec)| {
            let job = &plan.jobs[thread.job];
            let stream = setup::stream(plan, spec, **thread, device, ties.of(plan, thread))?;
            let buffers = Pool::<P>::new(job, thread.thread, setup::bytes(device), ());
            let journal = logs.journal(plan, spec, *number, job)?;
            let (course, pid) = (plan.draws(), watch::pid(*number));
            Ok(Program { job, stream, buffers, course, journal, pid })
        };
        let programs: Vec<_> = threads.iter().map(&mut program).collect::<Result<_, Failure>>()?;
        let every = status.as_ref().map(|status| status.every);
        let mut report = |now: Instant, queue: &Queue<P>, done: &[Done]| {
            let answers = done.iter().cloned().map(part).map(Some).collect();
            let parts = all_threads(plan, spec, &parts, phase, answers, now);
            if let Some(status) = &mut status {
                let counted = counted(&parts, queue, now);
                (status.tell)(run_of(plan, spec, device, &parts, &counted));
            }
        };
        let reports = every.map(|every| Reports { every, report: &mut report });
        let done = simulation.run_reporting(programs, reports);
        let done = done.map_err(|e| Failure::Simulation(e.to_string()))?;
        parts.extend(threads.iter().map(|(_, thread)| **thread).zip(done.into_iter().map(part)));
        let abandoned = parts.iter().any(|(_, part)| part.tally.unfinished.abandoned > 0);
        if abandoned || stop.is_set() {
            break;
        }
    }
    if stop.is_set() {
        parts.retain(|(_, part)| part.counted);
    }
    let counted = counted(&parts, simulation.queue(), simulation.now());
    let incomplete = logs.incomplete();
    notes.extend(stalled(&stalls.borrow()));
    Ok(outcome(plan, spec, device, notes, (&parts, Counted { incomplete, ..counted })))
}

/// A note about the stalls of a run, if there were any.
fn stalled(stalls: &[String]) -> Option<String> {
    let first = stalls.first()?.lines().next().unwrap_or_default();
    Some(format!("{} stalls, the first of them: {first}", stalls.len()))
}

fn part(done: Done) -> Part {
    let Done { tally, busy, counted } = done;
    Part { tally, usage: Usage { user_ns: busy.0, ..Usage::default() }, counted }
}

/// The ties of all threads of a run.
#[derive(Default)]
struct RunTies {
    /// The exit signal of each reporting group, and its phase, if threads end together.
    exits: BTreeMap<u32, (u32, Exit)>,
    /// The threads that a job waits for, by the job's index.
    awaited: BTreeMap<usize, Awaited>,
    flows: BTreeMap<u32, FlowPool>,
}

impl RunTies {
    /// Creates the ties of `threads`. As in fio, `exitall` of one job applies to all of them.
    fn new(plan: &Plan, threads: &[ThreadSpec]) -> Self {
        let mut ties = Self::default();
        if plan.jobs.iter().any(|job| job.exitall) {
            let word = |thread: &ThreadSpec| (thread.group, (thread.phase, Exit::default()));
            ties.exits = threads.iter().map(word).collect();
        }
        for (at, job) in plan.jobs.iter().enumerate() {
            if job.wait_for.is_some() {
                ties.awaited.insert(at, Awaited::default());
            }
            if let Some(flow) = job.flow {
                ties.flows.entry(flow.id).or_default();
            }
        }
        ties
    }

    /// The ties of a thread that is about to begin: from now on it takes part in its flow.
    fn of(&self, plan: &Plan, thread: &ThreadSpec) -> Ties {
        let job = &plan.jobs[thread.job];
        let waits = |(waiting, _): &(&usize, &Awaited)| {
            **waiting > thread.job && plan.jobs[**waiting].wait_for.as_ref() == Some(&job.name)
        };
        Ties {
            exit: self.exit(job.exit_what, thread),
            after: self.awaited.get(&thread.job).cloned(),
            awaited: self.awaited.iter().filter(waits).map(|(_, all)| all.member()).collect(),
            flow: job.flow.and_then(|flow| Some(self.flows.get(&flow.id)?.join(flow))),
        }
    }

    /// The exit signal of the thread's group for the threads selected by `what`.
    fn exit(&self, what: ExitWhat, thread: &ThreadSpec) -> Option<Exit> {
        let (_, own) = self.exits.get(&thread.group)?;
        let others = self.exits.values().filter(|(phase, _)| match what {
            ExitWhat::Group => false,
            ExitWhat::Stonewall => *phase == thread.phase,
            ExitWhat::All => true,
        });
        Some(own.with(others.map(|(_, exit)| exit)))
    }
}
