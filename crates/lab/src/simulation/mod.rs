//! Jobs in virtual time: like `blkmq bench`, but on virtual CPUs instead of real threads, from one seed.
//!
//! The queue, the policy, the device and the [`Worker`](crate::workload::Worker) that issues I/Os are those of a real
//! run; only the order of their calls is simulated. There are no oracles here (those are in the
//! [`World`](crate::World)): only requested observers run, so that millions of I/Os are simulated in a second.
//!
//! Build a [`Simulation`] around a queue's configuration, and run one phase of [`Program`]s after the other.

mod thread;

use crate::cpu::{Body, Costs, Habits};
use crate::observe::Observation;
use crate::timeline::{Timeline, Wake, Wakes, Who};
use crate::trace::{ClientTrace, Tracer, on_cpu};
use crate::workload::{Buffers, Job, Journal, Stream, Tally};
use blkmq_core::{HwQueue, Instant, Nanos, Payload, Rng};
use blkmq_engine::{Config, ConfigError, DeviceShape, PumpMode, Queue, QueueStats};
use std::fmt;
pub use thread::Stall;
use thread::{Thread, Turn};

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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stuck {
    /// I/Os that have not ended.
    pub in_flight: u32,
    /// The time of the last turn.
    pub since: Instant,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (in_flight, since) = (self.in_flight, self.since.as_nanos());
        write!(f, "stuck at {since} ns of virtual time with {in_flight} I/Os in flight")
    }
}

impl std::error::Error for Stuck {}

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
                if next == crate::cpu::Next::Never {
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
