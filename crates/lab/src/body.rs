//! The common part of every virtual CPU: a submitter, habits, and a state. Other modules decide which I/Os it
//! submits.
//!
//! A CPU that is caught in mid-run makes other CPUs find the elevator busy; in a simulation on one thread this would
//! otherwise never happen.

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

    /// Begins a turn. A CPU that is caught in mid-run spends the turn with its run; then the result is the time of
    /// the next turn.
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

    /// The run of its elevator, if the CPU is to be caught this time and the elevator is free. With some accesses all
    /// threads wait for the one inside; there no CPU is caught.
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

    /// If the CPU is to stop this time in the middle of a flush: for how long.
    pub(crate) fn stall(&mut self) -> Option<Nanos> {
        if !self.habits.stalls.strikes(&mut self.rng) || !self.submitter.begin_flush() {
            return None;
        }
        self.state = State::Stalled;
        Some(Nanos(self.rng.below(self.habits.stall.0 + 1)))
    }

    /// If the CPU is to be absent this time: for how long.
    pub(crate) fn absence(&mut self) -> Option<Nanos> {
        let strikes = self.habits.absent.strikes(&mut self.rng);
        strikes.then(|| Nanos(self.rng.below(self.habits.absence.0 + 1)))
    }

    /// Waits until a duty of the CPU is due, or until `at`; parks if it may. Its next turn is not before `then`.
    pub(crate) fn rest(&mut self, now: Instant, then: Instant, at: Option<Instant>) -> Next {
        // Not before the earliest next turn.
        if !self.submitter.prepare_park(now) {
            return Next::At(then);
        }
        self.state = State::Parked;
        let timer = self.submitter.next_deadline().into_iter().chain(at).min();
        Next::Parked(timer.filter(|at| *at < Instant::MAX).map(|at| at.max(then)))
    }
}
