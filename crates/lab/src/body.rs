//! What every virtual CPU has: a submitter, habits, and a state. What it submits is somebody else's business.
//!
//! Being caught in mid-run is what makes others find the elevator busy, which on one thread nobody ever would.

use crate::costs::Costs;
use crate::habits::Habits;
use blkmq_core::{Instant, Nanos, Rng};
use blkmq_engine::{Queue, Run, Submitter};

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
    /// Its I/Os are in staging, and nobody knows yet.
    Stalled,
    Parked,
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

impl Next {
    /// When that is, unless somebody wakes it before.
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

    /// In the middle of a run, with the elevator in hand.
    pub(crate) fn is_caught(&self) -> bool {
        matches!(self.state, State::Caught { .. })
    }

    /// Begins a turn. If it is caught in mid-run, that is what it spends the turn with, and this says when the
    /// next one is.
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
            // As at the end of every turn: what became due meanwhile is not left for another time.
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

    /// If it is to be caught this time, and the elevator is free: its run. Some ways into an elevator have everybody wait
    /// for who is inside; nobody is caught there.
    pub(crate) fn begin_run(&mut self, queue: &Queue<P>) -> Option<Run<P>> {
        let strikes = self.habits.caught.chance.strikes(&mut self.rng);
        strikes.then(|| queue.begin_run(self.submitter.hw()))?
    }

    /// It is caught with `run`, and keeps it over its next turns. Returns how much later the next one is.
    pub(crate) fn is_caught_with(&mut self, run: Run<P>) -> Nanos {
        let steps = self.rng.below(u64::from(self.habits.caught.steps) + 1) as u32;
        self.state = State::Caught { run, steps };
        self.gap()
    }

    /// If it stops this time in the middle of a flush: for how long.
    pub(crate) fn stall(&mut self) -> Option<Nanos> {
        if !self.habits.stalls.strikes(&mut self.rng) || !self.submitter.begin_flush() {
            return None;
        }
        self.state = State::Stalled;
        Some(Nanos(self.rng.below(self.habits.stall.0 + 1)))
    }

    /// If it turns to something else this time: for how long.
    pub(crate) fn absence(&mut self) -> Option<Nanos> {
        let strikes = self.habits.absent.strikes(&mut self.rng);
        strikes.then(|| Nanos(self.rng.below(self.habits.absence.0 + 1)))
    }

    /// Waits until something is due for it, or until `at`; parks if it may. Its next turn could be at `then`.
    pub(crate) fn rest(&mut self, now: Instant, then: Instant, at: Option<Instant>) -> Next {
        // Not before its next turn could be.
        if !self.submitter.prepare_park(now) {
            return Next::At(then);
        }
        self.state = State::Parked;
        let timer = self.submitter.next_deadline().into_iter().chain(at).min();
        Next::Parked(timer.filter(|at| *at < Instant::MAX).map(|at| at.max(then)))
    }
}
