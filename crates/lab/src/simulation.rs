//! Jobs in virtual time: like `blkmq bench`, but on virtual CPUs instead of real threads, from one seed.
//!
//! The queue, the policy, the device and the [`Worker`] that issues I/Os are those of a real
//! run; only the order of their calls is simulated. There are no oracles here (those are in the
//! [`World`](crate::World)): only requested observers run, so that millions of I/Os are simulated in a second.
//!
//! Build a [`Simulation`] around a queue's configuration, and run one phase of [`Program`]s after the other.
//!
//! A virtual CPU has one thread of a job. A turn is the work of a real thread between two moments at which other
//! threads could interleave: it takes the completions that it waited for, issues the next portion, and continues,
//! sleeps, or parks. Calls into the engine take no virtual time; their cost delays the next turn.
//!
//! Slow I/Os are reported as by a client in real time. A program is checked in its own turns only: if time jumps over a
//! stall, the stall is reported at its end, with its whole length.

use crate::cpu::{Body, Costs, Habits, Next, Timeline, Wake, Wakes, Who};
use crate::observe::Observation;
use crate::trace::{ClientTrace, Plugged, Traced, Tracer, on_cpu};
use crate::workload::{Buffers, Job, Journal, Port, Step, Stream, Tally, Window, Worker};
use blkmq_core::{HwQueue, Instant, Nanos, Payload, Rng, SubmitterId};
use blkmq_engine::{
    Config, ConfigError, DeviceShape, Io, Outstanding, PumpMode, Queue, QueueStats, Refused, Run,
    Submitter,
};
use std::fmt;

/// The settings of virtual CPUs.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The costs of actions.
    pub costs: Costs,
    /// The habits of CPUs. Their batches are the jobs' own; no CPU stalls or cancels here.
    pub habits: Habits,
    /// The source of all randomness.
    pub seed: u64,
}

impl Settings {
    /// Ordinary CPUs that do nothing but their I/O.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { costs: Costs::TYPICAL, habits: Habits::diligent(1), seed }
    }
}

/// The program of one virtual CPU.
pub struct Program<'a, B> {
    /// The job.
    pub job: &'a Job,
    /// This thread's share of it.
    pub stream: Stream,
    /// The buffers of its I/Os.
    pub buffers: B,
    /// Whether completions over time are recorded as well.
    pub course: bool,
    /// The log of its completed I/Os, if there is one.
    pub journal: Option<Box<dyn Journal>>,
    /// Its process number in traces.
    pub pid: u32,
}

/// The result of a program.
#[derive(Clone, Debug)]
pub struct Done {
    /// The counts.
    pub tally: Tally,
    /// How long the CPU worked while counting. Waiting does not count, even if the thread stays awake: a real thread
    /// may sleep, poll, or do something else, and the length of a wait depends on the device.
    pub busy: Nanos,
    /// Whether the program counted at all. False if it was stopped before its start, or in its ramp.
    pub counted: bool,
}

/// Receives results of threads that have not ended.
type Report<'r, P> = &'r mut dyn FnMut(Instant, &Queue<P>, &[Done]);

/// The receiver of results before their end.
pub struct Reports<'r, P> {
    /// The virtual time between two reports; more than zero.
    pub every: Nanos,
    /// Called with the time, the queue, and the results so far of all programs, in their order.
    pub report: Report<'r, P>,
}

/// No turn is due, but I/Os are in flight: the engine or the device has lost something.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("stuck at {} ns of virtual time with {in_flight} I/Os in flight", .since.as_nanos())]
pub struct Stuck {
    /// I/Os that have not ended.
    pub in_flight: u32,
    /// The time of the last turn.
    pub since: Instant,
}

/// The operator of the queue: called when its time has come, and returns the time of the next call.
type Operator<'a, P> = Box<dyn FnMut(Instant, &Queue<P>) -> Option<Instant> + 'a>;

/// Says whether programs are to end before their time.
type Stop<'a> = Box<dyn Fn() -> bool + 'a>;

/// Turns between two checks of [`Stop`]: some milliseconds.
const TURNS: u64 = 1 << 10;

/// The callback for stalls.
type Observer<'a> = Box<dyn FnMut(&Stall) + 'a>;

/// A queue, virtual CPUs, and the time.
pub struct Simulation<'a, P, B> {
    queue: Queue<P>,
    settings: Settings,
    rng: Rng,
    timeline: Timeline,
    wakes: Wakes,
    /// The list that wake-ups are taken into; empty between turns.
    woken: Vec<Wake>,
    /// The threads, by the number of their submitter.
    threads: Vec<Option<Thread<'a, P, B>>>,
    operator: Option<Operator<'a, P>>,
    /// The callback for I/Os that take too long.
    observer: Option<Observer<'a>>,
    /// Whether programs are to end.
    stop: Option<Stop<'a>>,
    /// The tracer, and the shape that clients need for their events.
    tracer: Option<(Tracer, DeviceShape)>,
}

impl<'a, P: Payload + 'static, B: Buffers<P>> Simulation<'a, P, B> {
    /// Builds the queue that `config` describes; its host is replaced.
    ///
    /// # Errors
    /// If the configuration is impossible.
    pub fn new(config: Config<P>, settings: Settings) -> Result<Self, ConfigError> {
        Self::observed(config, settings, &Observation::default())
    }

    /// Like [`new`](Self::new), but with observers.
    ///
    /// # Errors
    /// If the configuration is impossible.
    pub fn observed(
        config: Config<P>,
        settings: Settings,
        observation: &Observation,
    ) -> Result<Self, ConfigError> {
        let shape = config.device;
        let wakes = Wakes::default();
        let cpus = config.submitters;
        let pumps = match config.pump {
            PumpMode::Inline | PumpMode::Owner => 0,
            PumpMode::Thread => config.device.hw_queues,
        };
        let config = Config { host: Box::new(wakes.clone()), ..config };
        let queue = observation.of(config, Queue::new)?;
        let mut timeline = Timeline::new(Instant::ZERO, cpus.into(), pumps);
        for hw in (0..pumps).map(HwQueue) {
            timeline.schedule(Who::Pump(hw), Some(Instant::ZERO));
        }
        Ok(Self {
            queue,
            settings,
            rng: Rng::new(settings.seed),
            timeline,
            wakes,
            woken: Vec::new(),
            threads: (0..cpus).map(|_| None).collect(),
            operator: None,
            observer: None,
            stop: None,
            tracer: observation.tracer.clone().map(|tracer| (tracer, shape)),
        })
    }

    /// From `at` on, calls `operator` with the queue at each time that the operator asks for.
    pub fn operate(
        &mut self,
        at: Instant,
        operator: impl FnMut(Instant, &Queue<P>) -> Option<Instant> + 'a,
    ) {
        self.operator = Some(Box::new(operator));
        self.timeline.schedule(Who::Operator, Some(at));
    }

    /// From now on, calls `observer` for I/Os that take more than 10 s, as [`Stall`] describes.
    pub fn observe_stalls(&mut self, observer: impl FnMut(&Stall) + 'a) {
        self.observer = Some(Box::new(observer));
    }

    /// As soon as `stop` holds, all programs end, as at the end of a runtime.
    pub fn stop_when(&mut self, stop: impl Fn() -> bool + 'a) {
        self.stop = Some(Box::new(stop));
    }

    /// The virtual time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.timeline.now()
    }

    /// Turns so far.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.timeline.events()
    }

    /// The queue.
    #[must_use]
    pub fn queue(&self) -> &Queue<P> {
        &self.queue
    }

    /// The queue's counters.
    #[must_use]
    pub fn stats(&self) -> QueueStats {
        self.queue.stats()
    }

    /// Runs programs as [`run_reporting`](Self::run_reporting) does, without reports.
    ///
    /// # Errors
    /// If the run makes no progress.
    ///
    /// # Panics
    /// If the queue was built for fewer submitters.
    pub fn run(
        &mut self,
        programs: impl IntoIterator<Item = Program<'a, B>>,
    ) -> Result<Vec<Done>, Stuck> {
        self.run_reporting(programs, None)
    }

    /// Runs programs side by side until all have ended, the first of them on the first free submitter and so on.
    /// Returns their results, in their order. `reports` gets the results so far at each multiple of its time.
    ///
    /// # Errors
    /// If the run makes no progress.
    ///
    /// # Panics
    /// If the queue was built for fewer submitters.
    pub fn run_reporting(
        &mut self,
        programs: impl IntoIterator<Item = Program<'a, B>>,
        mut reports: Option<Reports<'_, P>>,
    ) -> Result<Vec<Done>, Stuck> {
        let now = self.now();
        let mut done = Vec::new();
        for (number, program) in programs.into_iter().enumerate() {
            let submitter = self.queue.submitter();
            let submitter = submitter.expect("the queue was built for as many CPUs");
            let cpu = usize::from(submitter.id().0);
            let body = Body::new(submitter, self.settings.habits, self.rng.next_u64());
            let trace = self.tracer.as_ref();
            let trace = trace.map(|(tracer, shape)| ClientTrace::new(tracer.clone(), shape));
            self.threads[cpu] = Some(Thread::new(body, program, trace, number, now));
            self.timeline.schedule(Who::Cpu(cpu), Some(now));
            done.push(None);
        }
        let mut left = done.len();
        let every = reports.as_ref().map_or(Nanos(u64::MAX), |reports| reports.every);
        let mut due = Instant::ZERO + Nanos(now.as_nanos() - now.as_nanos() % every.0) + every;
        while left > 0 {
            if self.events().is_multiple_of(TURNS) && self.stop.as_ref().is_some_and(|stop| stop())
            {
                self.stop = None;
                self.stop_all();
            }
            let Some(who) = self.timeline.next_turn() else { return Err(self.stuck()) };
            while let Some(reports) = &mut reports
                && due <= self.now()
            {
                (reports.report)(due, &self.queue, &self.so_far(&done, due));
                due += every;
            }
            if let Some((number, one)) = self.turn(who) {
                done[number] = Some(one);
                left -= 1;
            }
        }
        Ok(done.into_iter().flatten().collect())
    }

    /// The results at `now`: those of `done`, and of the threads that have not ended.
    fn so_far(&self, done: &[Option<Done>], now: Instant) -> Vec<Done> {
        let mut all = done.to_vec();
        for thread in self.threads.iter().flatten() {
            all[thread.number] = Some(thread.so_far(now));
        }
        all.into_iter().flatten().collect()
    }

    fn stop_all(&mut self) {
        let now = self.now();
        for (cpu, thread) in self.threads.iter_mut().enumerate() {
            if let Some(thread) = thread
                && thread.stop(now)
            {
                self.timeline.wake(Who::Cpu(cpu), Nanos::ZERO);
            }
        }
    }

    fn stuck(&self) -> Stuck {
        let in_flight = self.threads.iter().flatten().map(Thread::outstanding).sum();
        Stuck { in_flight, since: self.now() }
    }

    /// One turn. If a program ends with it, returns its place and result.
    fn turn(&mut self, who: Who) -> Option<(usize, Done)> {
        let now = self.timeline.now();
        if self.tracer.is_some() {
            self.say_who(who);
        }
        let mut over = None;
        let next = match who {
            Who::Cpu(cpu) => {
                let thread = self.threads[cpu].as_mut().expect("only those there have turns");
                if let Some(observer) = &mut self.observer
                    && let Some(stall) = thread.look(now, &self.queue)
                {
                    observer(&stall);
                }
                let turn = Turn { now, queue: &self.queue, costs: &self.settings.costs };
                let next = thread.turn(&turn);
                if next == Next::Never {
                    over = self.threads[cpu].take().map(|it| (it.number, it.into_done()));
                }
                next.at()
            }
            Who::Pump(hw) => {
                let due = self.queue.pump(hw, now).filter(|at| *at < Instant::MAX);
                due.map(|at| at.max(now + self.settings.costs.poll))
            }
            Who::Operator => self.operator.as_mut().and_then(|operator| operator(now, &self.queue)),
        };
        self.timeline.schedule(who, next);
        let mut woken = std::mem::take(&mut self.woken);
        self.wakes.take_into(&mut woken);
        woken.drain(..).for_each(|wake| self.wake(wake));
        self.woken = woken;
        over
    }

    /// Events from here on are attributed to `who`.
    fn say_who(&self, who: Who) {
        match who {
            Who::Cpu(cpu) => on_cpu(cpu as u16, self.threads[cpu].as_ref().map_or(0, |it| it.pid)),
            Who::Pump(_) | Who::Operator => on_cpu(self.threads.len() as u16, 0),
        }
    }

    /// The engine asks for a wake-up. A thread that is awake, or has ended, is not affected.
    fn wake(&mut self, wake: Wake) {
        let costs = &self.settings.costs;
        match wake {
            Wake::Submitter(id) => {
                let cpu = usize::from(id.0);
                let thread = self.threads[cpu].as_ref();
                if let Some(takes) = thread.and_then(|it| it.wakes_in(self.timeline.now(), costs)) {
                    self.timeline.wake(Who::Cpu(cpu), takes);
                }
            }
            Wake::Pump(hw) => self.timeline.wake(Who::Pump(hw), costs.wake),
        }
    }
}

struct Thread<'a, P, B> {
    body: Body<P>,
    worker: Worker<'a, P, B>,
    /// The current step of the worker.
    step: Step,
    /// Completions taken for that step.
    got: u32,
    /// The time at which it parked, if it did.
    rested: Instant,
    meter: Meter,
    /// The trace of its client, if there is one.
    trace: Option<ClientTrace>,
    stalls: Stalls,
    /// Its process number in traces.
    pid: u32,
    /// Its place in the phase.
    number: usize,
}

/// The time that a CPU was at work.
#[derive(Clone, Copy, Default)]
struct Meter {
    busy: u64,
    /// The time at work when measuring began.
    began: u64,
    /// The time at work while measuring, once measuring has ended.
    measured: u64,
}

/// The environment of a CPU's turn.
struct Turn<'a, P> {
    now: Instant,
    queue: &'a Queue<P>,
    costs: &'a Costs,
}

/// A worker's port to its submitter, in one turn.
struct Virtual<'a, P> {
    turn: &'a Turn<'a, P>,
    body: &'a mut Body<P>,
    meter: &'a mut Meter,
    /// The time that this turn has taken so far.
    spent: u64,
    /// The pace of the CPU this time, in 1024ths of the typical time.
    pace: u64,
    /// The run that the CPU was caught with.
    caught: Option<Run<P>>,
}

impl<P> Virtual<'_, P> {
    fn spend(&mut self, cost: Nanos, times: u32) {
        self.spent += (cost.0 * u64::from(times) * self.pace) >> 10;
    }
}

impl<P: Payload + 'static> Port<P> for Virtual<'_, P> {
    fn now(&self) -> Instant {
        self.turn.now + Nanos(self.spent)
    }

    #[inline]
    fn push(&mut self, now: Instant, io: Io<P>) -> Result<(), Refused<P>> {
        self.spend(self.turn.costs.push, 1);
        self.body.submitter.push(now, io)
    }

    #[inline]
    fn flush(&mut self, now: Instant) {
        if self.caught.is_none() {
            // Then the CPU's own plug is staged or parked like any other, and its next pass takes it in.
            self.caught = self.body.begin_run(self.turn.queue);
        }
        self.body.submitter.flush(now);
        self.spend(self.turn.costs.flush, 1);
    }

    fn cancel(&mut self, now: Instant, cookie: u64) {
        self.body.submitter.cancel(now, cookie);
    }

    #[inline]
    fn outstanding(&self) -> u32 {
        self.body.submitter.outstanding()
    }

    fn measuring_begins(&mut self) {
        self.meter.began = self.meter.busy + self.spent;
    }

    fn measuring_ends(&mut self) {
        self.meter.measured = self.meter.busy + self.spent - self.meter.began;
    }
}

impl<P: Send> Plugged for Virtual<'_, P> {
    fn plugged(&self) -> (u32, u64) {
        self.body.submitter.plugged()
    }
}

/// A turn's time differs from the typical one by up to a quarter, so that CPUs do not stay in step.
const PACES: (u64, u64) = (768, 513);

impl<'a, P: Payload + 'static, B: Buffers<P>> Thread<'a, P, B> {
    /// A thread on a CPU with these habits, from `now` on.
    fn new(
        body: Body<P>,
        program: Program<'a, B>,
        trace: Option<ClientTrace>,
        number: usize,
        now: Instant,
    ) -> Self {
        let Program { job, stream, buffers, course, journal, pid } = program;
        let stalls = Stalls::new(now, &body.submitter);
        let worker = Worker::new(job, stream, buffers, Window::of(job, now)).with_journal(journal);
        Self {
            body,
            worker: if course { worker.with_course() } else { worker },
            step: Step::Go,
            got: 0,
            rested: now,
            meter: Meter::default(),
            trace,
            stalls,
            pid,
            number,
        }
    }

    /// The time until it wakes; `None` if it is not parked.
    fn wakes_in(&self, now: Instant, costs: &Costs) -> Option<Nanos> {
        let awake = now - self.rested <= costs.spin;
        self.body.is_parked().then_some(if awake { costs.poll } else { costs.wake })
    }

    fn into_done(self) -> Done {
        let counted = self.worker.is_measuring();
        Done { tally: self.worker.into_tally(), busy: Nanos(self.meter.measured), counted }
    }

    /// Its result at `now`.
    fn so_far(&self, now: Instant) -> Done {
        let Meter { busy, began, measured } = self.meter;
        Done {
            tally: self.worker.so_far(now),
            busy: Nanos(if self.worker.is_counting() { busy - began } else { measured }),
            counted: self.worker.is_measuring(),
        }
    }

    /// Ends the program before its time. True if it waits and must continue immediately.
    fn stop(&mut self, now: Instant) -> bool {
        self.worker.stop(now);
        let waits = self.body.is_parked() || matches!(self.step, Step::Sleep { .. });
        match &mut self.step {
            Step::Sleep { until } | Step::Wait { until, .. } => *until = now.min(*until),
            Step::Go | Step::Look { .. } | Step::Over => {}
        }
        waits
    }

    fn outstanding(&self) -> u32 {
        self.body.submitter.outstanding()
    }

    /// A stall to report before a turn, if there is one.
    fn look(&mut self, now: Instant, queue: &Queue<P>) -> Option<Stall> {
        // The check needs the elevators, and a caught run holds one. A program that wakes from sleep is checked, too,
        // before it submits I/Os, which have not waited while it slept.
        if self.body.is_caught() {
            return None;
        }
        self.stalls.look(now, &self.body.submitter, queue)
    }

    /// One turn.
    fn turn(&mut self, turn: &Turn<'_, P>) -> Next {
        if let Some(next) = self.body.resume(turn.now, turn.costs) {
            self.meter.busy += turn.costs.step.0;
            return next;
        }
        let pace = PACES.0 + self.body.rng.below(PACES.1);
        let Self { body, worker, meter, .. } = self;
        let mut port = Virtual { turn, body, meter, spent: 0, pace, caught: None };
        let waits = Self::take(worker, &mut port, self.step, &mut self.got);
        if !waits {
            self.step = match &mut self.trace {
                None => worker.step(&mut port),
                Some(trace) => worker.step(&mut Traced { port: &mut port, trace }),
            };
            self.got = 0;
        }
        let Virtual { spent, caught, .. } = port;
        self.meter.busy += spent;
        self.next(turn.now, turn.now + Nanos(spent), waits, caught)
    }

    /// Takes the completions that the worker waits for. Returns true if some are still missing.
    fn take(
        worker: &mut Worker<'a, P, B>,
        port: &mut Virtual<'_, P>,
        step: Step,
        got: &mut u32,
    ) -> bool {
        let (until, least, most) = match step {
            Step::Go | Step::Over => return false,
            Step::Sleep { until } => return port.now() < until,
            Step::Look { most } => (Instant::ZERO, 0, most),
            Step::Wait { until, least, most } => (until, least, most),
        };
        let looks = least == 0;
        if !looks {
            Self::reap(worker, port, most - *got, got);
        }
        if looks || *got < least && port.now() < until {
            port.body.submitter.poll(port.turn.now);
            port.spend(port.turn.costs.poll, 1);
            Self::reap(worker, port, most - *got, got);
        }
        *got < least && port.now() < until
    }

    #[inline]
    fn reap(worker: &mut Worker<'a, P, B>, port: &mut Virtual<'_, P>, most: u32, got: &mut u32) {
        if !port.body.submitter.has_completions(1) {
            return;
        }
        let now = port.now();
        let mut reaped = 0;
        worker.take(
            || now,
            |taking| {
                reaped = port.body.submitter.reap(most, |io| taking.take(io));
                reaped
            },
        );
        port.spend(port.turn.costs.reap, reaped);
        *got += reaped;
    }

    fn next(&mut self, now: Instant, then: Instant, waits: bool, caught: Option<Run<P>>) -> Next {
        if let Some(run) = caught {
            return Next::At(then + self.body.is_caught_with(run));
        }
        let until = match self.step {
            Step::Over => return Next::Never,
            Step::Sleep { until } => return Next::At(then.max(until)),
            Step::Wait { until, .. } if waits => until,
            _ => return Next::At(then),
        };
        if let Some(absence) = self.body.absence() {
            return Next::At(then + absence);
        }
        self.rested = then;
        self.body.rest(now, then, Some(until))
    }
}

/// The threshold of clients in real time.
const STALL_AFTER: Nanos = Nanos::from_secs(10);
/// The most requests that a report names.
const NAMED: usize = 4;

/// A program that has reaped no completion for a while.
#[derive(Clone, Debug)]
pub struct Stall {
    /// Its submitter.
    pub submitter: SubmitterId,
    /// I/Os that it has in flight.
    pub outstanding: u32,
    /// Of these, held back by the limits of groups.
    pub throttled: u32,
    /// The time without a completion.
    pub waited: Nanos,
    /// The oldest requests of the whole queue.
    pub held: Vec<Outstanding>,
    /// The time of the check.
    pub at: Instant,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { submitter, outstanding, throttled, waited, held, at } = self;
        let (seconds, tenths) = (waited.0 / 1_000_000_000, waited.0 / 100_000_000 % 10);
        write!(f, "submitter {}: {outstanding} outstanding for {seconds}.{tenths} s", submitter.0)?;
        if *throttled > 0 {
            write!(f, ", {throttled} of them wait for the limits of their group")?;
        }
        held.iter().try_for_each(|one| write!(f, "\n  {}", one.at(*at)))
    }
}

/// The stalls of one program.
struct Stalls {
    since: Instant,
    had: u64,
    next: Instant,
}

impl Stalls {
    fn new<P: Send>(now: Instant, submitter: &Submitter<P>) -> Self {
        Self { since: now, had: submitter.taken_back(), next: now + STALL_AFTER }
    }

    /// At the beginning of a turn at `now`: a stall to report, if there is one.
    fn look<P: Send + 'static>(
        &mut self,
        now: Instant,
        submitter: &Submitter<P>,
        queue: &Queue<P>,
    ) -> Option<Stall> {
        let (had, outstanding) = (submitter.taken_back(), submitter.outstanding());
        if had != self.had || outstanding == 0 {
            *self = Self::new(now, submitter);
            return None;
        }
        if now < self.next {
            return None;
        }
        let waited = now - self.since;
        self.next = now + waited;
        let (throttled, _) = submitter.throttled();
        let held = queue.outstanding(now, NAMED);
        let submitter = submitter.id();
        Some(Stall { submitter, outstanding, throttled, waited, held, at: now })
    }
}
