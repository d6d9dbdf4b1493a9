//! A virtual CPU: one submitter, the client on it, and what it does with its time.
//!
//! Each turn is what a thread does between two moments at which others could come in between: take
//! completions, push a batch and flush it, poll, and decide whether to go on, wait or park. A call into the
//! engine takes no virtual time by itself; its cost delays the CPU's next turn. Being caught in mid-run is
//! what makes others find the elevator busy.

use crate::costs::Costs;
use crate::habits::Habits;
use crate::oracle::Oracle;
use crate::violation::Violation;
use crate::{Client, Payload, Want};
use blkmq_core::{Instant, Nanos, Rng};
use blkmq_engine::{Io, Queue, Refusal, Run, Submitter};

/// A virtual CPU to be.
pub struct Plan {
    /// What runs on it.
    pub client: Box<dyn Client>,
    /// How it behaves.
    pub habits: Habits,
    /// Decides when it is caught or absent.
    pub seed: u64,
}

pub(crate) struct Cpu {
    submitter: Submitter<Payload>,
    client: Box<dyn Client>,
    habits: Habits,
    rng: Rng,
    state: State,
    /// Cookies of what it has pushed and not taken back.
    in_flight: Vec<u64>,
    /// An I/O that the client wants and for which there was no credit.
    refused: Option<Io<Payload>>,
    /// I/Os taken from it that have not ended.
    outstanding: u32,
    /// The client wants nothing more.
    finished: bool,
}

enum State {
    Awake,
    Caught { run: Run<Payload>, steps: u32 },
    Parked,
}

/// What a CPU needs for a turn.
pub(crate) struct Turn<'a> {
    pub(crate) now: Instant,
    pub(crate) queue: &'a Queue<Payload>,
    pub(crate) costs: &'a Costs,
    pub(crate) oracle: &'a Oracle,
}

/// When a CPU's next turn is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Then.
    At(Instant),
    /// When somebody wakes it, or then.
    Parked(Option<Instant>),
    /// Never: it has gone.
    Never,
}

impl Cpu {
    pub(crate) fn new(submitter: Submitter<Payload>, plan: Plan) -> Self {
        Self {
            submitter,
            client: plan.client,
            habits: plan.habits,
            rng: Rng::new(plan.seed),
            state: State::Awake,
            in_flight: Vec::new(),
            refused: None,
            outstanding: 0,
            finished: false,
        }
    }

    /// The client wants nothing more.
    pub(crate) fn is_finished(&self) -> bool {
        self.finished
    }

    pub(crate) fn is_parked(&self) -> bool {
        matches!(self.state, State::Parked)
    }

    /// One turn.
    pub(crate) fn turn(&mut self, turn: &Turn<'_>) -> Result<Next, Violation> {
        match std::mem::replace(&mut self.state, State::Awake) {
            State::Caught { run, steps } => Ok(self.go_on(turn, run, steps)),
            State::Parked => {
                self.submitter.unpark();
                self.work(turn)
            }
            State::Awake => self.work(turn),
        }
    }

    fn go_on(&mut self, turn: &Turn<'_>, mut run: Run<Payload>, steps: u32) -> Next {
        if steps == 0 {
            if self.submitter.in_flight() == 0 {
                run.leave(turn.now);
            } else {
                run.finish(turn.now);
            }
            // As at the end of every turn: what became due meanwhile is not left for another time.
            self.submitter.poll(turn.now);
            return Next::At(turn.now + turn.costs.step);
        }
        run.step(turn.now);
        let gap = self.gap();
        self.state = State::Caught { run, steps: steps - 1 };
        Next::At(turn.now + turn.costs.step + gap)
    }

    fn gap(&mut self) -> Nanos {
        Nanos(self.rng.below(self.habits.caught.gap.0 + 1))
    }

    fn work(&mut self, turn: &Turn<'_>) -> Result<Next, Violation> {
        let Turn { now, costs, .. } = *turn;
        let reaped = self.reap(turn);
        let (want, pushed) = self.push_batch(turn)?;
        let spent = costs.reap.0 * u64::from(reaped) + costs.push.0 * u64::from(pushed);
        let flush = if pushed > 0 { costs.flush } else { Nanos::ZERO };
        let then = now + Nanos(spent) + flush + costs.poll;
        self.cancel(turn);
        // Some ways into an elevator have everybody wait for who is inside; nobody is caught there.
        if self.habits.caught.chance.strikes(&mut self.rng)
            && let Some(run) = turn.queue.begin_run(self.submitter.hw())
        {
            // Its own plug is staged or parked like everybody's, and taken in by its next pass.
            self.submitter.flush(now);
            self.cancel(turn);
            let steps = self.rng.below(u64::from(self.habits.caught.steps) + 1) as u32;
            self.state = State::Caught { run, steps };
            let gap = self.gap();
            return Ok(Next::At(then + gap));
        }
        self.submitter.flush(now);
        self.cancel(turn);
        self.submitter.poll(now);
        if self.habits.absent.strikes(&mut self.rng) {
            return Ok(Next::At(then + Nanos(self.rng.below(self.habits.absence.0 + 1))));
        }
        Ok(match want {
            Want::Nothing if self.habits.leaves && self.submitter.in_flight() == 0 => Next::Never,
            Want::Io(_) => Next::At(then),
            Want::Completion | Want::Nothing => self.rest(now, then, None),
            Want::At(at) => self.rest(now, then, Some(at)),
        })
    }

    /// Perhaps asks for one of its I/Os to be given up.
    fn cancel(&mut self, turn: &Turn<'_>) {
        if self.in_flight.is_empty() || !self.habits.cancels.strikes(&mut self.rng) {
            return;
        }
        let cookie = self.in_flight[self.rng.below(self.in_flight.len() as u64) as usize];
        turn.oracle.with(|oracle| oracle.asked_to_cancel(turn.now, self.submitter.id(), cookie));
        self.submitter.cancel(turn.now, cookie);
    }

    fn reap(&mut self, turn: &Turn<'_>) -> u32 {
        let Self { submitter, client, in_flight, .. } = self;
        let by = submitter.id();
        let announced = submitter.has_completions(1);
        let reaped = submitter.reap(u32::MAX, |completion| {
            in_flight.retain(|cookie| *cookie != completion.cookie);
            turn.oracle.with(|oracle| oracle.ended(turn.now, by, &completion));
            client.ended(turn.now, &completion);
        });
        assert_eq!(announced, reaped > 0, "has_completions(1) is exact");
        self.outstanding -= reaped;
        assert_eq!(self.submitter.outstanding(), self.outstanding, "after reaping");
        reaped
    }

    /// Pushes up to a batch. Says what the client wants then (an I/O if the batch is full), and how many
    /// were pushed.
    fn push_batch(&mut self, turn: &Turn<'_>) -> Result<(Want, u32), Violation> {
        let mut pushed = 0;
        loop {
            let want = match self.refused.take() {
                Some(io) => Want::Io(io),
                None => self.client.next(turn.now, self.outstanding),
            };
            self.finished |= want == Want::Nothing;
            let Want::Io(io) = want else { return Ok((want, pushed)) };
            if pushed == self.habits.batch.max(1) {
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

    /// False if there is no credit for it.
    fn push(&mut self, turn: &Turn<'_>, io: Io<Payload>) -> Result<bool, Violation> {
        let by = self.submitter.id();
        // Before the call: a full plug is flushed in it, with the first parts of this I/O if it has several.
        let io = turn.oracle.with(|oracle| oracle.announced(by, io));
        match self.submitter.push(turn.now, io) {
            Ok(()) => {
                self.outstanding += 1;
                assert_eq!(self.submitter.outstanding(), self.outstanding, "after pushing");
                turn.oracle.with(|oracle| oracle.pushed(turn.now, by, io));
                self.in_flight.push(io.cookie);
                self.client.submitted(turn.now, &io);
                Ok(true)
            }
            Err(refused) if matches!(refused.why, Refusal::NoCredit { .. }) => {
                assert_eq!(refused.io, io, "a refused I/O comes back unchanged");
                turn.oracle.with(|oracle| oracle.refused(&io));
                Ok(false)
            }
            Err(refused) => Err(Violation::Refused(refused.why)),
        }
    }

    /// Waits until something is due for it, or until `at`; parks if it may.
    fn rest(&mut self, now: Instant, then: Instant, at: Option<Instant>) -> Next {
        // Not before its next turn could be.
        if !self.submitter.prepare_park(now) {
            return Next::At(then);
        }
        self.state = State::Parked;
        let timer = self.submitter.next_deadline().into_iter().chain(at).min();
        Next::Parked(timer.filter(|at| *at < Instant::MAX).map(|at| at.max(then)))
    }
}
