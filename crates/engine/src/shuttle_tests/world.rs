//! The sleeping places of threads, the clock, and the device.
//!
//! Time stands still while any thread is awake. When the last awake thread goes to sleep or leaves, time jumps to the
//! earliest deadline of a sleeper. So a model needs no timer thread, and a lost wake-up cannot hide: either no sleeper
//! has a deadline, which panics here, or the time at the end shows that a thread waited for an unrelated timer.

use crate::shuttle_tests::flush;
use crate::sync::{Arc, Mutex, MutexGuard};
use crate::{BioTable, Busy, DeviceQueue, Enqueued, Expiry, Finished, Host, Inflight, Verdict};
use blkmq_core::{HwQueue, Instant, IoError, Nanos, SubmitterId, Tag};
use shuttle::rand::Rng;
use shuttle::sync::Condvar;
use shuttle::thread::{self, ThreadId};
use std::collections::VecDeque;

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
        let next = next.expect("no thread will ever be woken: all sleep and no time was named");
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

/// The behaviour of the device. In each field, the last of every `n` attempts that find room is treated in this way; 0
/// for never.
#[derive(Clone, Copy, Debug)]
pub(super) struct Script {
    /// The maximum number of requests inside one hardware queue.
    pub(super) room: usize,
    pub(super) resource: u32,
    pub(super) dev_resource: u32,
    pub(super) requeue: u32,
    pub(super) requeue_tail: u32,
    /// Lost requests are alternately given up when their time is up, or after one reset of their timer.
    pub(super) lose: u32,
    pub(super) inline: u32,
    /// The time that a request stays if it is not answered within the call.
    pub(super) service: Nanos,
    pub(super) says: Says,
}

/// How the device reports its next event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Says {
    /// The device returns the time of the next event.
    When,
    /// The device cannot tell, so it is polled, and has a completion at every second poll.
    Nothing,
    /// Planted: it reports that no event will come, even if it holds requests.
    Never,
}

impl Script {
    /// Answers everything within the call.
    pub(super) const INLINE: Self = Self {
        room: 1,
        resource: 0,
        dev_resource: 0,
        requeue: 0,
        requeue_tail: 0,
        lose: 0,
        inline: 1,
        service: Nanos(0),
        says: Says::When,
    };
    /// Answers everything 10 us later.
    pub(super) const LATER: Self = Self { inline: 0, service: Nanos(10_000), ..Self::INLINE };
}

/// Sectors in the order in which a device took them, with their hardware queue.
pub(super) type Arrivals = Arc<Mutex<Vec<(HwQueue, u64)>>>;

struct Held {
    until: Instant,
    rq: Inflight,
    verdict: Verdict,
}

/// A device that counts attempts and shows every kind of behaviour at fixed intervals.
///
/// *Fault model.* Every `n`th attempt it refuses with RESOURCE, or with DEV_RESOURCE, or takes the request and wants it
/// back later, or loses it until it is asked about it; every `n`th it answers within the call. It also refuses with
/// DEV_RESOURCE when it is full. It never answers twice, and keeps the promise of DEV_RESOURCE unless a bug is planted.
pub(super) struct TestDevice {
    script: Script,
    attempts: u32,
    looks: u32,
    held: VecDeque<Held>,
    /// Lost requests, each with the number of resets of its timer that are still to come.
    lost: Vec<(Inflight, u32)>,
    /// When the last refused request may be offered again.
    retry_at: Option<Instant>,
    now: Instant,
    arrivals: Option<Arrivals>,
}

/// An empty device has room again this long after a DEV_RESOURCE.
const RETRY: Nanos = Nanos(10_000);

impl TestDevice {
    pub(super) fn new(script: Script, arrivals: Option<Arrivals>) -> Self {
        Self {
            script,
            attempts: 0,
            looks: 0,
            held: VecDeque::new(),
            lost: Vec::new(),
            retry_at: None,
            now: Instant::ZERO,
            arrivals,
        }
    }

    fn at(&mut self, now: Instant) {
        assert!(now >= self.now, "the device saw time run backwards: {now:?} after {:?}", self.now);
        self.now = now;
    }

    /// Returns whether a request inside ends later, so that its completion will make room.
    fn is_busy(&self) -> bool {
        self.script.says == Says::Nothing && !self.held.is_empty()
            || self.held.back().is_some_and(|held| held.until > self.now)
    }

    fn refusal(&mut self) -> Option<Busy> {
        self.retry_at = None;
        if self.held.len() + self.lost.len() >= self.script.room {
            return Some(Busy::DevResource);
        }
        self.attempts += 1;
        if self.strikes(self.script.resource) {
            return Some(Busy::Resource);
        }
        // A device that cannot name a time can keep the promise only by a completion.
        let keeps = self.script.says != Says::Nothing || !self.held.is_empty();
        if self.strikes(self.script.dev_resource) && keeps {
            self.retry_at = (!self.is_busy()).then(|| self.now + RETRY);
            return Some(Busy::DevResource);
        }
        None
    }

    fn strikes(&self, every: u32) -> bool {
        every > 0 && self.attempts.is_multiple_of(every)
    }
}

impl<P> DeviceQueue<P> for TestDevice {
    fn enqueue(&mut self, now: Instant, _: &BioTable<P>, rq: Inflight) -> Enqueued {
        self.at(now);
        if let Some(why) = self.refusal() {
            return Enqueued::Busy(rq, why);
        }
        if let Some(arrivals) = &self.arrivals {
            arrivals.lock().expect("a panic ends the schedule").push((rq.hw(), rq.sector()));
        }
        flush::began(&rq);
        if self.strikes(self.script.lose) {
            self.lost.push((rq, self.attempts / self.script.lose % 2));
            return Enqueued::Accepted;
        }
        let tail = self.strikes(self.script.requeue_tail);
        let requeue = tail || self.strikes(self.script.requeue);
        if self.strikes(self.script.inline) && !requeue {
            flush::done(&rq);
            return Enqueued::Done(rq, Ok(()));
        }
        let (verdict, stay) = if requeue {
            (if tail { Verdict::RequeueTail } else { Verdict::Requeue }, Nanos(0))
        } else {
            (Verdict::Done(Ok(())), self.script.service)
        };
        // Later requests end no earlier, so the front one is next.
        let until = (now + stay).max(self.held.back().map_or(now, |last| last.until));
        self.held.push_back(Held { until, rq, verdict });
        Enqueued::Accepted
    }

    fn reap(&mut self, now: Instant, _: &BioTable<P>, out: &mut Vec<Finished>) {
        self.at(now);
        self.looks += 1;
        let ready = |held: &Held| match self.script.says {
            Says::Nothing => self.looks.is_multiple_of(2),
            Says::When | Says::Never => held.until <= now,
        };
        while self.held.front().is_some_and(ready) {
            let Held { rq, verdict, .. } = self.held.pop_front().expect("there is a front");
            if matches!(verdict, Verdict::Done(_)) {
                flush::done(&rq);
            }
            out.push(Finished { rq, verdict });
        }
    }

    fn timed_out(&mut self, now: Instant, tag: Tag) -> Expiry {
        self.at(now);
        let Some(at) = self.lost.iter().position(|(rq, _)| rq.tag() == tag) else {
            let held = self.held.iter().any(|held| held.rq.tag() == tag);
            assert!(held, "asked about tag {}, which is not here", tag.0);
            return Expiry::ResetTimer;
        };
        if let Some(left) = self.lost[at].1.checked_sub(1) {
            self.lost[at].1 = left;
            return Expiry::ResetTimer;
        }
        Expiry::Done(self.lost.swap_remove(at).0, Err(IoError::TIMED_OUT))
    }

    fn next_event(&self) -> Option<Instant> {
        let ends = self.held.front().map(|held| held.until);
        match self.script.says {
            Says::When => Some(ends.into_iter().chain(self.retry_at).min().unwrap_or(Instant::MAX)),
            Says::Nothing => None,
            Says::Never => Some(Instant::MAX),
        }
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        out.extend(self.held.drain(..).map(|held| held.rq));
        out.extend(self.lost.drain(..).map(|(rq, _)| rq));
    }
}
