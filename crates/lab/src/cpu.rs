//! Virtual CPUs, and the time that they share.
//!
//! [`Cpu`] is a virtual CPU under the oracles, with its client and the turns that it takes; [`Body`] is the common part
//! of every virtual CPU: a submitter, habits, a state, and the costs of actions. A turn is the work of a thread between
//! two moments at which other threads could interleave: take completions, push a batch and flush it, poll, and decide
//! whether to continue, wait or park. A call into the engine takes no virtual time; its cost delays the CPU's next
//! turn.
//!
//! A CPU that is interrupted in the middle of a run makes other CPUs find the elevator busy; otherwise this could never
//! happen in a simulation on one thread. Habits are independent of the client: batches, interruptions in a run,
//! absences.
//!
//! The figures of [`Costs::TYPICAL`] are round numbers near measurements of the engine; a claim about speed needs a
//! real machine. The costs order events: whether an I/O arrives while another thread is in the elevator depends on how
//! long that thread stays there.
//!
//! The [`Timeline`] is the schedule of turns of CPUs, pump threads and the operator of the queue, with the agenda
//! behind it, and the wake-ups that the engine requests. It does not know the work of a turn. A turn that is
//! rescheduled leaves an obsolete event in the agenda, which orders events by time, and events of the same time by
//! entry. A wake-up is recorded instead of carried out: it must not call back into the engine, and a real one takes
//! time, so the world checks the record after each call and wakes the threads some time later.

use crate::oracle::Oracle;
use crate::violation::Violation;
use crate::{Client, Payload, Stamp, Want};
use blkmq_core::{Deadline, HwQueue, Instant, Nanos, Rng, SubmitterId};
use blkmq_engine::{Completion, Host, Io, Queue, Refusal, Run, Submitter};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex};

/// The description of a virtual CPU.
pub struct Plan {
    /// The client that runs on it.
    pub client: Box<dyn Client>,
    /// Its habits.
    pub habits: Habits,
    /// The seed of the draws that decide when it is caught or absent.
    pub seed: u64,
}

pub(crate) struct Cpu {
    body: Body<Stamp>,
    client: Box<dyn Client>,
    /// Cookies of the I/Os that it has pushed and not reaped.
    in_flight: Vec<u64>,
    /// An I/O that the client wanted, refused for lack of credit.
    refused: Option<Io<Payload>>,
    /// I/Os of the client that have not ended.
    outstanding: u32,
    /// The client wants no more I/Os.
    pub(crate) finished: bool,
}

/// The environment of a CPU's turn.
pub(crate) struct Turn<'a> {
    pub(crate) now: Instant,
    pub(crate) queue: &'a Queue<Stamp>,
    pub(crate) costs: &'a Costs,
    pub(crate) oracle: &'a Oracle,
}

impl Cpu {
    pub(crate) fn new(submitter: Submitter<Stamp>, plan: Plan) -> Self {
        Self {
            body: Body::new(submitter, plan.habits, plan.seed),
            client: plan.client,
            in_flight: Vec::new(),
            refused: None,
            outstanding: 0,
            finished: false,
        }
    }

    pub(crate) fn is_parked(&self) -> bool {
        self.body.is_parked()
    }

    /// One turn.
    pub(crate) fn turn(&mut self, turn: &Turn<'_>) -> Result<Next, Violation> {
        match self.body.resume(turn.now, turn.costs) {
            Some(next) => Ok(next),
            None => self.work(turn),
        }
    }

    fn work(&mut self, turn: &Turn<'_>) -> Result<Next, Violation> {
        let Turn { now, costs, .. } = *turn;
        let reaped = self.reap(turn);
        let (want, pushed) = self.push_batch(turn)?;
        let spent = costs.reap.0 * u64::from(reaped) + costs.push.0 * u64::from(pushed);
        let flush = if pushed > 0 { costs.flush } else { Nanos::ZERO };
        let then = now + Nanos(spent) + flush + costs.poll;
        self.cancel(turn);
        if let Some(run) = self.body.begin_run(turn.queue) {
            // The CPU's own plug is staged or parked like any other, and its next pass takes it in.
            self.body.submitter.flush(now);
            self.cancel(turn);
            let gap = self.body.is_caught_with(run);
            return Ok(Next::At(then + gap));
        }
        if let Some(stall) = self.body.stall() {
            return Ok(Next::At(then + stall));
        }
        self.body.submitter.flush(now);
        self.cancel(turn);
        self.body.submitter.poll(now);
        if let Some(absence) = self.body.absence() {
            return Ok(Next::At(then + absence));
        }
        Ok(match want {
            Want::Nothing if self.body.habits.leaves && self.body.submitter.in_flight() == 0 => {
                Next::Never
            }
            Want::Io(_) => Next::At(then),
            Want::Completion | Want::Nothing => self.body.rest(now, then, None),
            Want::At(at) => self.body.rest(now, then, Some(at)),
        })
    }

    /// With the chance of its habits, cancels one of its I/Os.
    fn cancel(&mut self, turn: &Turn<'_>) {
        if self.in_flight.is_empty() || !self.body.habits.cancels.strikes(&mut self.body.rng) {
            return;
        }
        let cookie = self.in_flight[self.body.rng.below(self.in_flight.len() as u64) as usize];
        turn.oracle
            .with(|oracle| oracle.asked_to_cancel(turn.now, self.body.submitter.id(), cookie));
        self.body.submitter.cancel(turn.now, cookie);
    }

    fn reap(&mut self, turn: &Turn<'_>) -> u32 {
        let Self { body, client, in_flight, .. } = self;
        let submitter = &mut body.submitter;
        let by = submitter.id();
        let announced = submitter.has_completions(1);
        let reaped = submitter.reap(u32::MAX, |Completion { cookie, result, payload }| {
            in_flight.retain(|other| *other != cookie);
            let completion = Completion { cookie, result, payload: payload.key };
            let found = payload.into_found();
            turn.oracle.with(|oracle| oracle.ended(turn.now, by, &completion, &found));
            client.ended(turn.now, &completion);
        });
        assert_eq!(announced, reaped > 0, "has_completions(1) is exact");
        self.outstanding -= reaped;
        assert_eq!(self.body.submitter.outstanding(), self.outstanding, "after reaping");
        reaped
    }

    /// Pushes up to a batch. Returns the client's next wish (an I/O if the batch is full), and the number of I/Os
    /// pushed.
    fn push_batch(&mut self, turn: &Turn<'_>) -> Result<(Want, u32), Violation> {
        let mut pushed = 0;
        loop {
            let want = match self.refused.take() {
                Some(io) => Want::Io(io),
                None => self.client.next(turn.now, self.outstanding),
            };
            self.finished |= want == Want::Nothing;
            let Want::Io(io) = want else { return Ok((want, pushed)) };
            if pushed == self.body.habits.batch.max(1) {
                self.refused = Some(io);
                return Ok((want, pushed));
            }
            if !self.push(turn, io)? {
                self.refused = Some(io);
                return Ok((Want::Completion, pushed));
            }
            pushed += 1;
        }
    }

    /// Pushes `io`; false if there is no credit for it.
    fn push(&mut self, turn: &Turn<'_>, io: Io<Payload>) -> Result<bool, Violation> {
        let by = self.body.submitter.id();
        // Before the call: a full plug is flushed in it, with the first parts of this I/O if it has several.
        let (io, memory) = turn.oracle.with(|oracle| (oracle.announced(by, io), oracle.memory()));
        match self.body.submitter.push(turn.now, Stamp::on(io, memory)) {
            Ok(()) => {
                self.outstanding += 1;
                assert_eq!(self.body.submitter.outstanding(), self.outstanding, "after pushing");
                turn.oracle.with(|oracle| oracle.pushed(turn.now, by, io));
                self.in_flight.push(io.cookie);
                self.client.submitted(turn.now, &io);
                Ok(true)
            }
            Err(refused)
                if matches!(refused.why, Refusal::NoCredit { .. } | Refusal::Late { .. }) =>
            {
                let is_late = matches!(refused.why, Refusal::Late { .. });
                let back = Stamp::off(refused.into_io());
                assert_eq!(back, io, "a refused I/O comes back unchanged");
                turn.oracle.with(|oracle| oracle.refused(&io));
                if !is_late {
                    return Ok(false);
                }
                assert!(io.deadline.rejects(), "no other I/O is refused for its deadline");
                self.push(turn, io.deadline(Deadline::NONE))
            }
            Err(refused) => Err(Violation::Refused(refused.why)),
        }
    }
}

pub(crate) struct Body<P> {
    pub(crate) submitter: Submitter<P>,
    pub(crate) habits: Habits,
    pub(crate) rng: Rng,
    state: State<P>,
}

enum State<P> {
    Awake,
    Caught {
        run: Run<P>,
        steps: u32,
    },
    /// Its I/Os are in staging, and no other thread has been notified.
    Stalled,
    Parked,
}

/// The time of a CPU's next turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// At this time.
    At(Instant),
    /// When it is woken, or at this time.
    Parked(Option<Instant>),
    /// Never: the CPU has left.
    Never,
}

impl Next {
    /// The time of the next turn, unless a wake-up comes before.
    pub(crate) fn at(self) -> Option<Instant> {
        match self {
            Self::At(at) => Some(at),
            Self::Parked(at) => at,
            Self::Never => None,
        }
    }
}

impl<P: Send + 'static> Body<P> {
    pub(crate) fn new(submitter: Submitter<P>, habits: Habits, seed: u64) -> Self {
        Self { submitter, habits, rng: Rng::new(seed), state: State::Awake }
    }

    pub(crate) fn is_parked(&self) -> bool {
        matches!(self.state, State::Parked)
    }

    /// Returns whether the CPU is in the middle of a run, holding the elevator.
    pub(crate) fn is_caught(&self) -> bool {
        matches!(self.state, State::Caught { .. })
    }

    /// Begins a turn. A CPU that is caught in a run spends the turn on that run; then the result is the time of the
    /// next turn.
    pub(crate) fn resume(&mut self, now: Instant, costs: &Costs) -> Option<Next> {
        match std::mem::replace(&mut self.state, State::Awake) {
            State::Caught { run, steps } => Some(self.go_on(now, costs, run, steps)),
            State::Stalled => {
                self.submitter.finish_flush(now);
                None
            }
            State::Parked => {
                self.submitter.unpark();
                None
            }
            State::Awake => None,
        }
    }

    fn go_on(&mut self, now: Instant, costs: &Costs, mut run: Run<P>, steps: u32) -> Next {
        if steps == 0 {
            if self.submitter.in_flight() == 0 {
                run.leave(now);
            } else {
                run.finish(now);
            }
            // As at the end of every turn: duties that became due in the meantime are not postponed.
            self.submitter.poll(now);
            return Next::At(now + costs.step);
        }
        run.step(now);
        let gap = self.gap();
        self.state = State::Caught { run, steps: steps - 1 };
        Next::At(now + costs.step + gap)
    }

    fn gap(&mut self) -> Nanos {
        Nanos(self.rng.below(self.habits.caught.gap.0 + 1))
    }

    /// The run of its elevator, if the CPU is to be caught in this turn and the elevator is free. Under accesses for
    /// which all threads wait for the one inside, no CPU is caught.
    pub(crate) fn begin_run(&mut self, queue: &Queue<P>) -> Option<Run<P>> {
        let strikes = self.habits.caught.chance.strikes(&mut self.rng);
        strikes.then(|| queue.begin_run(self.submitter.hw()))?
    }

    /// The CPU is caught with `run`, and keeps it over its next turns. Returns the delay of the next turn.
    pub(crate) fn is_caught_with(&mut self, run: Run<P>) -> Nanos {
        let steps = self.rng.below(u64::from(self.habits.caught.steps) + 1) as u32;
        self.state = State::Caught { run, steps };
        self.gap()
    }

    /// If the CPU is to stop in this flush: for how long.
    pub(crate) fn stall(&mut self) -> Option<Nanos> {
        if !self.habits.stalls.strikes(&mut self.rng) || !self.submitter.begin_flush() {
            return None;
        }
        self.state = State::Stalled;
        Some(Nanos(self.rng.below(self.habits.stall.0 + 1)))
    }

    /// If the CPU is to be absent in this turn: for how long.
    pub(crate) fn absence(&mut self) -> Option<Nanos> {
        let strikes = self.habits.absent.strikes(&mut self.rng);
        strikes.then(|| Nanos(self.rng.below(self.habits.absence.0 + 1)))
    }

    /// Waits until a duty of the CPU is due, or until `at`; parks if it may. Its next turn is not before `then`.
    pub(crate) fn rest(&mut self, now: Instant, then: Instant, at: Option<Instant>) -> Next {
        // Not before the earliest next turn.
        let Some(until) = self.submitter.prepare_park(now) else { return Next::At(then) };
        self.state = State::Parked;
        let timer = at.map_or(until, |at| at.min(until));
        Next::Parked((timer < Instant::MAX).then(|| timer.max(then)))
    }
}

/// A chance, in thousandths.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Permille(pub u16);

impl Permille {
    /// Returns whether the event happens this time.
    pub(crate) fn strikes(self, rng: &mut Rng) -> bool {
        self.0 > 0 && rng.chance(self.0.into(), 1000)
    }
}

/// Interruptions in a run: the CPU takes the run of its elevator and keeps it, like a thread that is interrupted,
/// descheduled, or simply slow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caught {
    /// The chance per turn, if the elevator is free.
    pub chance: Permille,
    /// The most passes made while it is caught; the number is drawn from 0 up.
    pub steps: u32,
    /// The longest time between passes, and before releasing the run; drawn from 0 up.
    pub gap: Nanos,
}

/// The habits of a virtual CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Habits {
    /// I/Os that it pushes before it flushes, at least 1.
    pub batch: u32,
    /// Being caught in mid-run.
    pub caught: Caught,
    /// The chance per turn that it is absent for a while, neither polling nor parking.
    pub absent: Permille,
    /// The longest absence.
    pub absence: Nanos,
    /// The chance that a flush stops after the batch is in staging and before another thread is notified, as if the
    /// thread were descheduled at the worst point.
    pub stalls: Permille,
    /// The longest stop.
    pub stall: Nanos,
    /// The chance per turn that it cancels one of its I/Os: once before the flush, and once after it. The I/O is drawn
    /// from all that have not completed.
    pub cancels: Permille,
    /// When its client is finished and every I/O has ended, the CPU leaves instead of parking: it will neither poll nor
    /// be woken.
    pub leaves: bool,
}

impl Habits {
    /// A CPU that does nothing but its I/O, `batch` at a time, and is never caught.
    #[must_use]
    pub const fn diligent(batch: u32) -> Self {
        Self {
            batch,
            caught: Caught { chance: Permille(0), steps: 0, gap: Nanos::ZERO },
            absent: Permille(0),
            absence: Nanos::ZERO,
            stalls: Permille(0),
            stall: Nanos::ZERO,
            cancels: Permille(0),
            leaves: false,
        }
    }

    /// The longest time for which it may block other CPUs, if a pass takes `step`.
    pub(crate) fn longest(&self, step: Nanos) -> Nanos {
        let held = if self.caught.chance == Permille(0) {
            0
        } else {
            (self.caught.gap.0 + step.0) * (u64::from(self.caught.steps) + 1)
        };
        let away = if self.absent == Permille(0) { 0 } else { self.absence.0 };
        let stalled = if self.stalls == Permille(0) { 0 } else { self.stall.0 };
        Nanos(held + away + stalled)
    }
}

/// Time that a virtual CPU spends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Costs {
    /// Taking one I/O into the plug.
    pub push: Nanos,
    /// Flushing a plug.
    pub flush: Nanos,
    /// Polling for duties.
    pub poll: Nanos,
    /// Taking one completion.
    pub reap: Nanos,
    /// One pass over an elevator by a CPU that is caught in it.
    pub step: Nanos,
    /// Between a wake-up and the first action of the woken thread.
    pub wake: Nanos,
    /// How long a waiting thread stays awake before it sleeps. A thread woken within that time counts as awake
    /// throughout, and continues after a [`poll`](Self::poll).
    pub spin: Nanos,
}

impl Costs {
    /// An ordinary machine.
    pub const TYPICAL: Self = Self {
        push: Nanos(20),
        flush: Nanos(200),
        poll: Nanos(50),
        reap: Nanos(20),
        step: Nanos(500),
        wake: Nanos(5_000),
        spin: Nanos(20_000),
    };

    /// A random machine: each cost is up to four times the typical one, and may be almost zero.
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        let mut some = |typical: Nanos| Nanos(1 + rng.below(4 * typical.0));
        let Self { push, flush, poll, reap, step, wake, .. } = Self::TYPICAL;
        Self {
            push: some(push),
            flush: some(flush),
            poll: some(poll),
            reap: some(reap),
            step: some(step),
            wake: some(wake),
            // Only a job's thread stays awake before it sleeps; under oracles a CPU sleeps immediately, which is the
            // harder case.
            spin: Self::TYPICAL.spin,
        }
    }

    /// The most that one event with `ios` I/Os can take, apart from the delays of its CPU's habits.
    pub(crate) fn most(&self, ios: u64) -> Nanos {
        let each = (self.push.0 + self.reap.0) * ios;
        Nanos(each + self.flush.0 + self.poll.0 + self.step.0 + self.wake.0)
    }
}

/// The next turn of a participant, unless it was rescheduled since.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    who: Who,
    epoch: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Who {
    Cpu(usize),
    /// A pump thread.
    Pump(HwQueue),
    /// The operator, which changes the queue.
    Operator,
}

/// The time of a participant's next turn.
#[derive(Clone, Copy, Default)]
struct Scheduled {
    at: Option<Instant>,
    /// Events of earlier epochs are obsolete.
    epoch: u64,
}

/// The virtual time, the number of past turns, and the turns to come.
pub(crate) struct Timeline {
    now: Instant,
    /// The events still to come, each behind its time and its number.
    agenda: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    /// Events entered so far: the number of the next one.
    entered: u64,
    cpus: Vec<Scheduled>,
    pumps: Vec<Scheduled>,
    operator: Scheduled,
    events: u64,
}

impl Timeline {
    /// A timeline at time `now`, without any turn scheduled.
    pub(crate) fn new(now: Instant, cpus: usize, pumps: u16) -> Self {
        Self {
            now,
            agenda: BinaryHeap::new(),
            entered: 0,
            cpus: vec![Scheduled::default(); cpus],
            pumps: vec![Scheduled::default(); pumps.into()],
            operator: Scheduled::default(),
            events: 0,
        }
    }

    /// The virtual time.
    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    /// Turns so far.
    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    fn scheduled(&mut self, who: Who) -> &mut Scheduled {
        match who {
            Who::Cpu(at) => &mut self.cpus[at],
            Who::Pump(hw) => &mut self.pumps[usize::from(hw.0)],
            Who::Operator => &mut self.operator,
        }
    }

    /// The participant with the next turn; the time advances to that turn.
    pub(crate) fn next_turn(&mut self) -> Option<Who> {
        loop {
            let Reverse((at, _, Event { who, epoch })) = self.agenda.pop()?;
            if self.scheduled(who).epoch == epoch {
                self.now = at;
                self.events += 1;
                return Some(who);
            }
        }
    }

    /// Schedules the next turn of `who` at `at`, or when it is woken, and at no other time.
    pub(crate) fn schedule(&mut self, who: Who, at: Option<Instant>) {
        let scheduled = self.scheduled(who);
        scheduled.at = at;
        scheduled.epoch += 1;
        let epoch = scheduled.epoch;
        if let Some(at) = at {
            self.agenda.push(Reverse((at, self.entered, Event { who, epoch })));
            self.entered += 1;
        }
    }

    /// Wakes the sleeping `who`, which takes `takes`. A participant already on its way comes no later.
    pub(crate) fn wake(&mut self, who: Who, takes: Nanos) {
        let at = self.now + takes;
        if self.scheduled(who).at.is_none_or(|before| before > at) {
            self.schedule(who, Some(at));
        }
    }
}

/// A thread to wake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wake {
    Submitter(SubmitterId),
    Pump(HwQueue),
}

/// A list of wake-ups; clones are the same list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wakes(Arc<Mutex<Vec<Wake>>>);

impl Wakes {
    fn push(&self, wake: Wake) {
        self.0.lock().expect("no panic happens under this lock").push(wake);
    }

    /// Takes all wake-ups, in the order in which they came, into an empty list.
    pub(crate) fn take_into(&self, list: &mut Vec<Wake>) {
        debug_assert!(list.is_empty(), "what was taken before has been seen to");
        std::mem::swap(list, &mut *self.0.lock().expect("no panic happens under this lock"));
    }
}

impl Host for Wakes {
    fn wake_submitter(&self, submitter: SubmitterId) {
        self.push(Wake::Submitter(submitter));
    }

    fn wake_pump(&self, hw: HwQueue) {
        self.push(Wake::Pump(hw));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_as_they_were_entered() {
        let mut timeline = Timeline::new(Instant::ZERO, 5, 0);
        for (cpu, at) in [(4, 5), (3, 3), (2, 5), (1, 0), (0, 3)] {
            timeline.schedule(Who::Cpu(cpu), Some(Instant::from_nanos(at)));
        }
        let order = Vec::from_iter(std::iter::from_fn(|| timeline.next_turn()));
        assert_eq!(order, [1, 3, 0, 4, 2].map(Who::Cpu));
    }
}
