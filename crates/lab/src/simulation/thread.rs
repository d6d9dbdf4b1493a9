//! A virtual CPU with one thread of a job on it.
//!
//! A turn is the work of a real thread between two moments at which other threads could interleave: it takes the
//! completions that it waited for, issues the next portion, and continues, sleeps, or parks. Calls into the engine
//! take no virtual time; their cost delays the next turn.
//!
//! Slow I/Os are reported as by a client in real time. A program is checked in its own turns only: if time jumps over a
//! stall, the stall is reported at its end, with its whole length.

use super::{Done, Program};
use crate::cpu::{Body, Costs, Next};
use crate::trace::{ClientTrace, Plugged, Traced};
use crate::workload::{Buffers, Port, Step, Window, Worker};
use blkmq_core::{Instant, Nanos, Payload, SubmitterId};
use blkmq_engine::{Io, Outstanding, Queue, Refused, Run, Submitter};
use std::fmt;

pub(super) struct Thread<'a, P, B> {
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
    pub(super) pid: u32,
    /// Its place in the phase.
    pub(super) number: usize,
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
pub(super) struct Turn<'a, P> {
    pub(super) now: Instant,
    pub(super) queue: &'a Queue<P>,
    pub(super) costs: &'a Costs,
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
    pub(super) fn new(
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
    pub(super) fn wakes_in(&self, now: Instant, costs: &Costs) -> Option<Nanos> {
        let awake = now - self.rested <= costs.spin;
        self.body.is_parked().then_some(if awake { costs.poll } else { costs.wake })
    }

    pub(super) fn into_done(self) -> Done {
        let counted = self.worker.is_measuring();
        Done { tally: self.worker.into_tally(), busy: Nanos(self.meter.measured), counted }
    }

    /// Its result at `now`.
    pub(super) fn so_far(&self, now: Instant) -> Done {
        let Meter { busy, began, measured } = self.meter;
        Done {
            tally: self.worker.so_far(now),
            busy: Nanos(if self.worker.is_counting() { busy - began } else { measured }),
            counted: self.worker.is_measuring(),
        }
    }

    /// Ends the program before its time. True if it waits and must continue immediately.
    pub(super) fn stop(&mut self, now: Instant) -> bool {
        self.worker.stop(now);
        let waits = self.body.is_parked() || matches!(self.step, Step::Sleep { .. });
        match &mut self.step {
            Step::Sleep { until } | Step::Wait { until, .. } => *until = now.min(*until),
            Step::Go | Step::Look { .. } | Step::Over => {}
        }
        waits
    }

    pub(super) fn outstanding(&self) -> u32 {
        self.body.submitter.outstanding()
    }

    /// A stall to report before a turn, if there is one.
    pub(super) fn look(&mut self, now: Instant, queue: &Queue<P>) -> Option<Stall> {
        // The check needs the elevators, and a caught run holds one. A program that wakes from sleep is checked, too,
        // before it submits I/Os, which have not waited while it slept.
        if self.body.is_caught() {
            return None;
        }
        self.stalls.look(now, &self.body.submitter, queue)
    }

    /// One turn.
    pub(super) fn turn(&mut self, turn: &Turn<'_, P>) -> Next {
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
    pub(super) fn new<P: Send>(now: Instant, submitter: &Submitter<P>) -> Self {
        Self { since: now, had: submitter.taken_back(), next: now + STALL_AFTER }
    }

    /// At the beginning of a turn at `now`: a stall to report, if there is one.
    pub(super) fn look<P: Send + 'static>(
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
