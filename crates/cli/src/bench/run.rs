//! One run: a queue is built, the threads of each phase drive it in real time, or on virtual CPUs in virtual time, and
//! everything is counted. [`RunTies`] are the ties between the threads: `exitall`, `wait_for` and `flow`.
//!
//! In real time, [`drive`] performs the steps of a worker with a real thread and a real clock until the worker is done.

use super::logs::RunLogs;
use super::outcome::{Counted, Outcome, outcome, pid, run_of};
use super::setup::{self, BenchPayload, Pool, Threads, Ticket, together};
use super::status::{Asked, Beside, Rounds, all_threads};
use super::tally::{Part, Usage};
use crate::Failure;
use crate::plan::{Plan, RunSpec, ThreadSpec};
use blkmq::Device;
use blkmq_buf::AlignedBuf;
use blkmq_core::{Instant, Nanos};
use blkmq_engine::{Completion, Io, Queue, Refused};
use blkmq_lab::observe::Observation;
use blkmq_lab::simulation::{Done, Program, Reports, Settings, Simulation};
use blkmq_lab::trace::{ClientTrace, Plugged, Traced, on_cpu};
use blkmq_lab::workload::{
    Awaited, Exit, ExitWhat, FlowPool, Journal, Port, Step, Stream, Ties, Window, Worker, longest,
};
use blkmq_runtime::{Client, Clock, Service};
use blkmq_terminal::output::complain;
use blkmq_terminal::program::Stop;
use std::cell::{Cell, RefCell};
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
        Device::Virtual(_) if !verifies && !spec.device.keeps => {
            run_with::<()>(plan, spec, device, beside)
        }
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
        let (cpu, pid) = (number as u16, pid(number));
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
        simulate_with::<AlignedBuf>(plan, spec, &device, seed, beside)
    } else {
        simulate_with::<()>(plan, spec, &device, seed, beside)
    }
}

fn simulate_with<P: BenchPayload + 'static>(
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
            let buffers =
                Pool::<P>::new(job, thread.thread, setup::bytes(device), P::Source::default());
            let journal = logs.journal(plan, spec, *number, job)?;
            let (course, pid) = (plan.draws(), pid(*number));
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

/// The number of portions for which one reading of the clock is enough, if none of their I/Os is timed and the thread
/// has not waited.
const PORTIONS: u32 = 8;

/// A client, its clock, and the CPU usage of its thread.
struct Real<P: BenchPayload> {
    client: Client<P>,
    clock: Clock,
    /// The last reading of the clock, and the number of portions for which it is still valid.
    recently: (Instant, u32),
    /// The last reading of the clock by the worker, if the thread has not waited since: completions found then had
    /// arrived by that time.
    last: Cell<Option<Instant>>,
    /// Whether the client has its own lane.
    has_own_lane: bool,
    /// Whether the only I/O in flight is in the client's plug. The wait for it submits it, in one system call.
    is_unsent: bool,
    /// While measuring: the thread's usage when measuring began. After the end: the usage in between.
    usage: Usage,
}

/// The completions that a thread waits for.
#[derive(Clone, Copy)]
struct Wait {
    until: Instant,
    least: u32,
    most: u32,
}

impl<P: BenchPayload> Real<P> {
    /// Submits an I/O that was left to a wait.
    #[cold]
    fn send(&mut self, now: Instant) {
        self.is_unsent = false;
        self.client.flush_at(now);
    }

    /// Waits for enough completions, for a time, or for a request from `outside`, which it polls; `look` is the time of
    /// the next poll. Returns the number of completions reaped.
    #[inline(never)]
    fn wait(
        &mut self,
        wait: Wait,
        outside: &Outside<'_>,
        look: &mut Instant,
        mut take: impl FnMut(Completion<P>),
    ) -> u32 {
        let Wait { until, least, most } = wait;
        self.recently.1 = 0;
        let mut got = 0;
        loop {
            let pause = until.min(*look);
            got += self.client.wait_until(pause, least - got, most - got, &mut take);
            if got >= least || outside.asks() {
                return got;
            }
            let now = self.clock.now();
            *look = now + LOOK;
            // Before its time the client returns if I/Os are lost.
            if now < pause || now >= until {
                return got;
            }
        }
    }

    /// The counts of `worker` so far.
    fn so_far(&self, worker: &Worker<'_, P, Pool<P>>) -> Part {
        let usage =
            if worker.is_counting() { Usage::of_thread().since(self.usage) } else { self.usage };
        let counted = worker.is_measuring();
        Part { tally: worker.so_far(self.clock.now()), usage, counted }
    }
}

impl<P: BenchPayload> Port<P> for Real<P> {
    #[inline]
    fn now(&self) -> Instant {
        let now = self.clock.now();
        self.last.set(Some(now));
        now
    }

    #[inline]
    fn recently(&mut self) -> Instant {
        let (now, left) = &mut self.recently;
        if *left == 0 {
            (*now, *left) = (self.clock.now(), PORTIONS);
        }
        *left -= 1;
        *now
    }

    #[inline(always)]
    fn push(&mut self, now: Instant, io: Io<P>) -> Result<(), Refused<P>> {
        if self.is_unsent {
            self.send(now);
        }
        self.client.push_at(now, io)
    }

    #[inline]
    fn flush(&mut self, now: Instant) {
        self.is_unsent = self.has_own_lane && self.client.in_flight() == 1;
        if !self.is_unsent {
            self.client.flush_at(now);
        }
    }

    fn cancel(&mut self, _: Instant, cookie: u64) {
        self.client.cancel(cookie);
    }

    #[inline]
    fn outstanding(&self) -> u32 {
        self.client.outstanding()
    }

    fn measuring_begins(&mut self) {
        self.usage = Usage::of_thread();
    }

    fn measuring_ends(&mut self) {
        self.usage = Usage::of_thread().since(self.usage);
    }
}

impl<P: BenchPayload> Plugged for Real<P> {
    fn plugged(&self) -> (u32, u64) {
        self.client.plugged()
    }
}

/// The CPU and the process under which a thread records its trace events.
struct OnCpu {
    /// The number under which it appears as a CPU.
    pub cpu: u16,
    /// The number under which it appears as a process.
    pub pid: u32,
    pub trace: ClientTrace,
}

/// The requests from outside to a thread.
struct Outside<'a> {
    /// Requests the end of the run.
    pub stop: &'a Stop,
    /// Requests the counts so far, if a status may be requested.
    pub asked: Option<Asked<'a>>,
}

impl<'a> From<&'a Stop> for Outside<'a> {
    fn from(stop: &'a Stop) -> Self {
        Self { stop, asked: None }
    }
}

impl Outside<'_> {
    #[inline]
    fn asks(&self) -> bool {
        self.stop.is_set() || self.asks_for_counts()
    }

    #[inline]
    fn asks_for_counts(&self) -> bool {
        self.asked.as_ref().is_some_and(Asked::is_due)
    }

    /// Answers a request for the status with `part`.
    #[inline]
    fn answer(&mut self, part: impl FnOnce() -> Part) {
        if let Some(asked) = self.asked.as_mut().filter(|asked| asked.is_due()) {
            asked.answer(part());
        }
    }
}

/// The longest time that a thread waits without checking [`Outside`] for requests.
const LOOK: Nanos = Nanos::from_millis(50);

/// Runs `worker` until its work is done or `outside` stops it.
fn drive<P: BenchPayload>(
    worker: Worker<'_, P, Pool<P>>,
    client: Client<P>,
    trace: Option<OnCpu>,
    outside: Outside<'_>,
) -> Part {
    // Two loops, so that the usual one has no code for traces.
    match trace {
        None => drive_with(worker, client, outside, Worker::step),
        Some(OnCpu { cpu, pid, mut trace }) => {
            on_cpu(cpu, pid);
            drive_with(worker, client, outside, |worker, port| {
                worker.step(&mut Traced { port, trace: &mut trace })
            })
        }
    }
}

#[inline]
fn drive_with<'a, P: BenchPayload>(
    mut worker: Worker<'a, P, Pool<P>>,
    client: Client<P>,
    mut outside: Outside<'_>,
    mut step: impl FnMut(&mut Worker<'a, P, Pool<P>>, &mut Real<P>) -> Step,
) -> Part {
    let clock = client.clock();
    let mut port = Real {
        has_own_lane: client.has_own_lane(),
        client,
        clock,
        recently: (Instant::ZERO, 0),
        last: Cell::new(None),
        is_unsent: false,
        usage: Usage::default(),
    };
    // The next poll of the outside while the thread waits.
    let mut look = clock.now() + LOOK;
    loop {
        if outside.stop.is_set() {
            worker.stop(clock.now());
        }
        outside.answer(|| port.so_far(&worker));
        let next = step(&mut worker, &mut port);
        if port.is_unsent && !matches!(next, Step::Wait { .. }) {
            port.send(clock.now());
        }
        match next {
            Step::Go => {}
            Step::Look { most } => {
                port.last.set(None);
                port.client.poll();
                worker.take(|| clock.now(), |taking| port.client.reap(most, |io| taking.take(io)));
            }
            Step::Wait { until, least, most } => {
                let last = Cell::new(port.last.take());
                worker.take(
                    || last.get().unwrap_or_else(|| clock.now()),
                    |taking| {
                        let got = port.client.reap(most, |io| taking.take(io));
                        if got >= least {
                            return got;
                        }
                        port.is_unsent = false;
                        last.set(None);
                        let wait = Wait { until, least: least - got, most: most - got };
                        got + port.wait(wait, &outside, &mut look, |io| taking.take_later(io))
                    },
                );
            }
            Step::Sleep { until } => {
                sleep(clock, until, &mut outside, || port.so_far(&worker));
                port.recently.1 = 0;
                port.last.set(None);
            }
            Step::Over => {
                let counted = worker.is_measuring();
                let part = Part { tally: worker.into_tally(), usage: port.usage, counted };
                if let Some(asked) = outside.asked {
                    asked.end(part.clone());
                }
                return part;
            }
        }
    }
}

/// Sleeps until `until`, or until [`LOOK`] after the stop of `outside`. Answers a request for the status with `part`.
fn sleep(clock: Clock, until: Instant, outside: &mut Outside<'_>, part: impl Fn() -> Part) {
    let mut now = clock.now();
    while until > now && !outside.stop.is_set() {
        outside.answer(&part);
        clock.sleep_until(until.min(now + LOOK));
        now = clock.now();
    }
}

#[cfg(test)]
mod tests {
    //! Workers on a device that violates its contract, unlike any device of the registry.

    use super::*;
    use blkmq_core::{GroupId, Limits, Op, Owner, Payload, SECTOR_SIZE};
    use blkmq_engine::{
        BioTable, Config, DEFAULT_TIMEOUT, DeviceQueue, DeviceShape, Enqueued, Finished, Inflight,
        WriteCache,
    };
    use blkmq_lab::workload::verify::{Fault, Findings, Method};
    use blkmq_lab::workload::{
        Amount, Depth, Generator, Job, Rw, Stream, Tally, Ties, Verifier, Verify, Window,
    };
    use blkmq_runtime::Service;

    const CAPACITY: u64 = 2048;

    /// The fault of one write.
    #[derive(Clone, Copy, Debug)]
    enum Lie {
        None,
        /// One bit of the data is flipped.
        Flip,
        /// The write is not done.
        Lose,
        /// Writes to the preceding block.
        Misdirect,
        /// Only the first half is written.
        Tear,
    }

    /// A device that stores its data correctly, except for one faulty write.
    struct Liar {
        memory: Vec<u8>,
        lie: Lie,
        /// The number of writes before the faulty one.
        writes: u32,
    }

    impl Liar {
        fn write(&mut self, start: usize, payload: &AlignedBuf, len: usize) {
            let mut bytes = vec![0; len];
            payload.write_to(0, &mut bytes).expect("a buffer of that length");
            self.writes = self.writes.wrapping_sub(1);
            let (mut start, mut len) = (start, len);
            if self.writes == 0 {
                match self.lie {
                    Lie::None => {}
                    Lie::Flip => bytes[1234] ^= 4,
                    Lie::Lose => len = 0,
                    Lie::Misdirect => start -= 4096,
                    Lie::Tear => len /= 2,
                }
            }
            self.memory[start..][..len].copy_from_slice(&bytes[..len]);
        }
    }

    impl DeviceQueue<AlignedBuf> for Liar {
        fn enqueue(&mut self, _: Instant, bios: &BioTable<AlignedBuf>, rq: Inflight) -> Enqueued {
            for bio in rq.bios(bios) {
                let start = (bio.sector * u64::from(SECTOR_SIZE)) as usize;
                let len = (bio.sectors * SECTOR_SIZE) as usize;
                if rq.op() == Op::Write {
                    self.write(start, bio.payload, len);
                } else {
                    bio.payload.read_from(0, &self.memory[start..][..len]).expect("a buffer");
                }
            }
            Enqueued::Done(rq, Ok(()))
        }

        fn reap(&mut self, _: Instant, _: &BioTable<AlignedBuf>, _: &mut Vec<Finished>) {}

        fn next_event(&self) -> Option<Instant> {
            Some(Instant::MAX)
        }

        fn abandon(&mut self, _: &mut Vec<Inflight>) {}
    }

    /// Runs `job` on a device that commits `lie` at write number `after`.
    fn run(job: &Job, lie: Lie, after: u32) -> Tally {
        let shape = DeviceShape {
            hw_queues: 1,
            hw_queue_depth: 32,
            shared_tags: false,
            budget: None,
            limits: Limits { capacity: CAPACITY, ..Limits::default() },
            cache: WriteCache::Through,
            timeout: DEFAULT_TIMEOUT,
        };
        let memory = vec![0; (CAPACITY * u64::from(SECTOR_SIZE)) as usize];
        let queues: Vec<Box<dyn DeviceQueue<AlignedBuf>>> =
            vec![Box::new(Liar { memory, lie, writes: after })];
        let config = Config { depth: job.depth.iodepth, ..Config::new(shape, queues) };
        let service = Service::start(config).expect("a sound configuration");
        let client = service.client().expect("for one thread");
        let bytes = CAPACITY * u64::from(SECTOR_SIZE);
        let stream = Stream {
            generator: Generator::new(job, 0, bytes).expect("possible"),
            verifier: Verifier::new(job, 0, bytes).expect("possible"),
            owner: Owner(1),
            group: GroupId::ROOT,
            ties: Ties::default(),
        };
        let window = Window::of(job, client.clock().now());
        let pool = Pool::new(job, 0, bytes, None);
        let stop = Stop::default();
        drive(Worker::new(job, stream, pool, window), client, None, Outside::from(&stop)).tally
    }

    /// A job that writes all of 64 blocks twice.
    fn job(verify: Verify) -> Job {
        Job {
            rw: Rw::Write,
            verify: Some(verify),
            offset: Amount::Bytes(64 << 10),
            size: Some(Amount::Bytes(256 << 10)),
            loops: 2,
            depth: Depth { iodepth: 8, low: 8, batch_submit: 4, ..Depth::default() },
            ..Job::default()
        }
    }

    fn findings(verify: Verify, lie: Lie, after: u32) -> Findings {
        let tally = run(&job(verify), lie, after);
        let found = tally.verify.expect("the job verifies");
        assert_eq!(tally.error, if found.errors > 0 { 84 } else { 0 });
        found
    }

    #[test]
    fn every_lie_is_found_once_at_its_block_and_called_by_its_name() {
        // The 64 + 11th write is the second one of block 10.
        for (lie, wrong) in
            [(Lie::None, 0), (Lie::Flip, 1), (Lie::Lose, 1), (Lie::Misdirect, 2), (Lie::Tear, 1)]
        {
            let found = findings(Verify::new(Method::Crc32c), lie, 75);
            // All blocks are read back after each loop.
            assert_eq!((found.verified, found.errors), (512 << 10, wrong), "{lie:?}");
            let Some(first) = found.first else { continue };
            assert_eq!(first.offset, (64 << 10) + first.block * 4096);
            let expected = match lie {
                Lie::None => false,
                Lie::Flip | Lie::Tear => {
                    first.block == 10
                        && matches!(first.fault, Fault::Checksum { generation: 2, .. })
                }
                Lie::Lose => {
                    first.block == 10 && first.fault == Fault::Generation { expected: 2, found: 1 }
                }
                Lie::Misdirect => first.block == 9 && matches!(first.fault, Fault::Offset { .. }),
            };
            assert!(expected, "{lie:?}: {first}");
        }
    }

    /// Damage that is overwritten before blocks are read back is only found by a job that verifies earlier: after each
    /// loop, or after some writes.
    #[test]
    fn a_backlog_and_the_end_of_a_loop_look_before_the_next_pass() {
        let verify = Verify::new(Method::Crc32c);
        let twice = |verify: Verify| {
            let io_size = Some(Amount::Bytes(512 << 10));
            let tally = run(&Job { loops: 1, io_size, ..job(verify) }, Lie::Flip, 11);
            tally.verify.expect("the job verifies").errors
        };
        // As with fio 3.33, a pass over the size is read back before more of the `io_size` is written.
        assert_eq!(twice(verify.clone()), 1);
        assert_eq!(twice(Verify { backlog: 16, ..verify.clone() }), 1);
        assert_eq!(findings(verify, Lie::Flip, 11).errors, 1);
    }

    #[test]
    fn a_fatal_mismatch_ends_the_job() {
        let verify = Verify { backlog: 16, fatal: true, ..Verify::new(Method::Crc32c) };
        let tally = run(&job(verify), Lie::Lose, 11);
        assert_eq!(tally.error, 84);
        assert!(tally.counts[1].ios < 64, "{} writes after it", tally.counts[1].ios);
    }

    /// A worker checks contents only on request, but its I/Os carry data in any case.
    #[test]
    fn without_verify_nothing_is_found() {
        let tally = run(&Job { verify: None, ..job(Verify::new(Method::Crc32c)) }, Lie::Flip, 11);
        assert_eq!((tally.error, tally.counts[1].ios, tally.verify), (0, 128, None));
    }
}
