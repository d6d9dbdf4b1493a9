//! The sleeping places of threads, and the clock.
//!
//! Time stands still while any thread is awake. When the last awake thread goes to sleep or leaves, time jumps to the
//! earliest deadline of a sleeper. So a model needs no timer thread, and a lost wake-up cannot hide: either no sleeper
//! has a deadline, which panics here, or the time at the end shows that a thread waited for an unrelated timer.

use crate::Host;
use crate::sync::{Arc, Mutex, MutexGuard};
use blkmq_core::{HwQueue, Instant, Nanos, SubmitterId};
use shuttle::rand::Rng;
use shuttle::sync::Condvar;
use shuttle::thread::{self, ThreadId};

/// How a host treats a wake-up for a thread that has not gone to sleep yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bell {
    /// Like thread parking: the next sleep ends immediately.
    Remembers,
    /// Planted: the wake-up is lost.
    Forgets,
}

/// The state of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Seat {
    Awake,
    Asleep(Option<Instant>),
    /// Without a CPU until all other submitters have left.
    Stopped,
    Gone,
}

struct State {
    now: Instant,
    seats: Vec<Seat>,
    rung: Vec<bool>,
    /// The threads of submitters.
    threads: Vec<Option<ThreadId>>,
}

/// Sleepers and clock of one schedule. The first seats are those of submitters; those of pump threads follow.
pub(super) struct World {
    state: Mutex<State>,
    bells: Vec<Condvar>,
    submitters: usize,
    bell: Bell,
    /// Threads read slightly different times, as they would from a running clock.
    drift: bool,
    /// The longest timer that the engine may set.
    timer: Nanos,
}

impl World {
    pub(super) fn new(
        submitters: u16,
        pumps: u16,
        bell: Bell,
        drift: bool,
        timer: Nanos,
    ) -> Arc<Self> {
        let seats = usize::from(submitters + pumps);
        Arc::new(Self {
            state: Mutex::new(State {
                now: Instant::ZERO,
                seats: vec![Seat::Awake; seats],
                rung: vec![false; seats],
                threads: vec![None; submitters.into()],
            }),
            bells: (0..seats).map(|_| Condvar::new()).collect(),
            submitters: submitters.into(),
            bell,
            drift,
            timer,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("a panic ends the schedule")
    }

    /// The time.
    pub(super) fn now(&self) -> Instant {
        let mut state = self.state();
        if self.drift {
            state.now += Nanos(shuttle::rand::thread_rng().gen_range(0..3));
        }
        state.now
    }

    /// The seat of the pump thread of `hw`.
    pub(super) fn pump_seat(&self, hw: HwQueue) -> usize {
        self.submitters + usize::from(hw.0)
    }

    /// The seat of the thread that changes the queue: behind all others.
    pub(super) fn last_seat(&self) -> usize {
        self.bells.len() - 1
    }

    /// Sleeps until the bell rings or until `until`, which is at most 3 ms away: the engine sets no longer timer
    /// (`spec/framework.md` section 16, line 8), except one of 5 s for flushes.
    pub(super) fn sleep(&self, seat: usize, until: Option<Instant>) {
        let mut state = self.state();
        let until = until.filter(|at| *at < Instant::MAX);
        let far = until.filter(|at| *at > state.now + self.timer);
        assert!(far.is_none(), "seat {seat} was told {far:?} at {:?}", state.now);
        while !std::mem::take(&mut state.rung[seat]) && until.is_none_or(|at| at > state.now) {
            state.seats[seat] = Seat::Asleep(until);
            self.settle(&mut state);
            if state.seats[seat] == Seat::Awake {
                continue;
            }
            state = self.bells[seat].wait(state).expect("a panic ends the schedule");
        }
        state.seats[seat] = Seat::Awake;
    }

    /// Assigns the seat of a submitter to the calling thread.
    pub(super) fn sit(&self, seat: usize) {
        self.state().threads[seat] = Some(thread::current().id());
    }

    /// Takes the CPU from the calling submitter until all others have left.
    pub(super) fn lose_cpu(&self) {
        let mut state = self.state();
        let me = Some(thread::current().id());
        let seat = state.threads.iter().position(|thread| *thread == me);
        let seat = seat.expect("a submitter's thread");
        while !state.others_gone(seat) {
            state.seats[seat] = Seat::Stopped;
            state = self.bells[seat].wait(state).expect("a panic ends the schedule");
        }
        state.seats[seat] = Seat::Awake;
    }

    /// Returns whether a thread is without a CPU.
    pub(super) fn has_stopped(&self) -> bool {
        self.state().seats.contains(&Seat::Stopped)
    }

    /// Removes the thread with this seat, which will not return.
    pub(super) fn leave(&self, seat: usize) {
        let mut state = self.state();
        state.seats[seat] = Seat::Gone;
        for (seat, bell) in state.seats.iter().zip(&self.bells) {
            if *seat == Seat::Stopped {
                bell.notify_one();
            }
        }
        self.settle(&mut state);
    }

    /// Returns whether all submitters have left. If true, pump threads may leave as well.
    pub(super) fn is_over(&self) -> bool {
        self.state().submitters_gone(self.submitters)
    }

    fn ring(&self, seat: usize) {
        let mut state = self.state();
        let asleep = matches!(state.seats[seat], Seat::Asleep(_));
        if asleep || self.bell == Bell::Remembers {
            state.rung[seat] = true;
            self.rouse(&mut state, seat);
        }
    }

    fn rouse(&self, state: &mut State, seat: usize) {
        if matches!(state.seats[seat], Seat::Asleep(_)) {
            state.seats[seat] = Seat::Awake;
            self.bells[seat].notify_one();
        }
    }

    /// Lets time pass if no thread is awake.
    fn settle(&self, state: &mut State) {
        if state.seats.contains(&Seat::Awake) || state.seats.contains(&Seat::Stopped) {
            return;
        }
        if state.submitters_gone(self.submitters) {
            for seat in self.submitters..state.seats.len() {
                state.rung[seat] = true;
                self.rouse(state, seat);
            }
            return;
        }
        let wanted = |seat: &Seat| if let Seat::Asleep(until) = seat { *until } else { None };
        let next = state.seats.iter().filter_map(wanted).min();
        let next = next.expect("nobody will ever be woken: everybody sleeps and no time was named");
        state.now = state.now.max(next);
        for seat in 0..state.seats.len() {
            if wanted(&state.seats[seat]).is_some_and(|at| at <= state.now) {
                self.rouse(state, seat);
            }
        }
    }
}

impl State {
    fn others_gone(&self, seat: usize) -> bool {
        let gone = |(at, other): (usize, &Seat)| at == seat || *other == Seat::Gone;
        self.seats[..self.threads.len()].iter().enumerate().all(gone)
    }

    fn submitters_gone(&self, submitters: usize) -> bool {
        self.seats[..submitters].iter().all(|seat| *seat == Seat::Gone)
    }
}

/// The queue's view of a [`World`].
pub(super) struct Bells(pub(super) Arc<World>);

impl Host for Bells {
    fn wake_submitter(&self, submitter: SubmitterId) {
        self.0.ring(submitter.0.into());
    }

    fn wake_pump(&self, hw: HwQueue) {
        self.0.ring(self.0.pump_seat(hw));
    }
}
