//! [`Client`]: a submitter as a completion queue with cookies, with a clock and a way to wait.

use crate::Clock;
use crate::bell::Threads;
use crate::planted::{self, Planted};
use crate::port::{spin_loop, thread::yield_now};
use crate::stall::Stalls;
use crate::waiting::{AWAKE_FOR, Looks, Pause, Waiting};
use crate::waiting::{PumpThreads, Seat};
use blkmq_core::{Instant, Nanos, Payload, SubmitterId};
use blkmq_engine::{Awaited, Completion, Io, NoSubmitterLeft, Refused, Submitter};
use std::fmt;
use std::sync::Arc;

mod blocking;
pub(crate) mod kept;
#[cfg(target_os = "linux")]
pub(crate) mod outside;

pub use blocking::{Blocking, CallError, Canceller};
use kept::Kept;

/// How often a client of a poisoned queue checks whether its I/Os have been returned.
const POISONED_LOOK: Nanos = Nanos::from_millis(1);

/// How long a client leaves its CPU to a thread that has none; the kernel adds some 50 us. A pass takes a few.
const GIVE_WAY: Nanos = Nanos::from_micros(10);

/// Another source of work for a client that waits.
///
/// A thread that makes it ring after [`listen`](Self::listen) returned false must wake the client's thread, as
/// [`Threads::wake_submitter`] does.
pub(crate) trait Summons {
    /// Returns whether the source has rung.
    fn rang(&self) -> bool;
    /// As [`rang`](Self::rang), for the last check before parking.
    fn listen(&self) -> bool;
}

/// A wait of a client, as of `now`.
#[derive(Clone, Copy)]
struct Wait {
    now: Instant,
    deadline: Instant,
    /// Completions.
    least: u32,
}

/// No other source of work.
struct NoSummons;

impl Summons for NoSummons {
    fn rang(&self) -> bool {
        false
    }

    fn listen(&self) -> bool {
        false
    }
}

/// A completion queue with cookies: push I/Os, flush, reap; the base of everything else.
///
/// One per thread; it may be moved to another thread at any time, even with I/Os in flight. It never waits for
/// anything, except in [`wait`](Self::wait).
///
/// Dropping it cancels the I/Os that it has not flushed. I/Os in flight continue, and when they are done another
/// client may take its place.
#[derive(Debug)]
pub struct Client<P> {
    submitter: Submitter<P>,
    clock: Clock,
    waiting: Waiting,
    seat: Seat,
    stalls: Stalls<P>,
    looks: Looks,
    kept: Kept<P>,
    /// The pump threads, if there are any, without which its I/Os would make no progress.
    _pumps: Option<Arc<PumpThreads>>,
}

/// Why a service has no client left.
#[derive(Debug)]
#[non_exhaustive]
pub enum ClientError {
    /// The queue has as many clients and reactors as it was built for
    /// ([`Config::submitters`](blkmq_engine::Config::submitters)).
    NoSubmitterLeft(NoSubmitterLeft),
    /// The descriptors that the client sleeps on, or its lane to the device, could not be created.
    Descriptor(std::io::Error),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSubmitterLeft(e) => e.fmt(f),
            Self::Descriptor(e) => {
                write!(f, "no descriptors for a client (ulimit -n says how many there may be): {e}")
            }
        }
    }
}

impl std::error::Error for ClientError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NoSubmitterLeft(e) => Some(e),
            Self::Descriptor(e) => Some(e),
        }
    }
}

impl<P: Payload> Client<P> {
    pub(crate) fn new(
        submitter: Submitter<P>,
        clock: Clock,
        waiting: Waiting,
        threads: &Arc<Threads>,
        pumps: Option<Arc<PumpThreads>>,
        stalls: Stalls<P>,
    ) -> Self {
        let seat = Seat::submitter(threads, submitter.id());
        let (looks, kept) = (Looks::NONE, Kept::new());
        Self { submitter, clock, waiting, seat, stalls, looks, kept, _pumps: pumps }
    }

    /// The clock of all times that this client takes and returns.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Returns whether the client has its own lane to the device: a wait then submits the plug and sleeps in one system
    /// call.
    #[must_use]
    pub fn has_own_lane(&self) -> bool {
        self.submitter.awaits() != Awaited::Shared
    }

    /// The credit: the maximum number of I/Os in flight, where an I/O that the device cannot take whole counts by its
    /// parts.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.submitter.depth()
    }

    /// The credit in use. Each part of a divided I/O counts until it is returned.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.submitter.in_flight()
    }

    /// The number of I/Os pushed and not yet reaped, and of those [in line](Self::line_up).
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.submitter.outstanding() + self.kept.outstanding()
    }

    /// The number of requests in the plug, and of I/Os that have merged in plugs of this client so far.
    #[must_use]
    pub fn plugged(&self) -> (u32, u64) {
        self.submitter.plugged()
    }

    /// Adds an I/O to the plug. The next [`flush`](Self::flush) or [`wait`](Self::wait) submits it at the latest. Reads
    /// the clock; [`batch`](Self::batch) does so once for many I/Os.
    ///
    /// # Errors
    /// Gives the I/O back if there is no credit for it or the device could not take it.
    #[inline]
    pub fn push(&mut self, io: Io<P>) -> Result<(), Refused<P>> {
        self.push_at(self.clock.now(), io)
    }

    /// As [`push`](Self::push), at a time of the client's [clock](Self::clock) that the caller has read: schedulers
    /// treat it as the time of arrival.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    #[inline(always)]
    pub fn push_at(&mut self, now: Instant, io: Io<P>) -> Result<(), Refused<P>> {
        self.submitter.push(now, io)
    }

    /// I/Os that arrive together: one reading of the clock for all, and a flush when the batch is dropped.
    #[inline]
    pub fn batch(&mut self) -> Batch<'_, P> {
        Batch { now: self.clock.now(), client: self }
    }

    /// Submits the plug, and does all due work inline.
    #[inline]
    pub fn flush(&mut self) {
        self.flush_at(self.clock.now());
    }

    /// As [`flush`](Self::flush), at a time of the client's [clock](Self::clock) that the caller has read.
    #[inline]
    pub fn flush_at(&mut self, now: Instant) {
        self.feed(now);
        self.submitter.flush(now);
    }

    /// Asks for the I/O with this cookie to be cancelled. It is cancelled if it still waits alone; its completion
    /// says whether it was. See [`Submitter::cancel`].
    pub fn cancel(&mut self, cookie: u64) {
        self.submitter.cancel(self.clock.now(), cookie);
    }

    /// The means to wake the thread that waits in this client.
    fn waker(&self) -> (Arc<Threads>, SubmitterId) {
        (Arc::clone(self.seat.threads()), self.submitter.id())
    }

    /// Hands up to `most` finished I/Os to `take`. Returns how many. Never waits.
    #[inline]
    pub fn reap(&mut self, most: u32, take: impl FnMut(Completion<P>)) -> u32 {
        self.submitter.reap(most, take)
    }

    /// Does the work that is due, so that I/Os make progress, without waiting.
    ///
    /// If its I/Os depend on a thread that has lost its CPU, the client sleeps for less than 0.1 ms: that thread may be
    /// waiting for this CPU (decision 0025).
    pub fn poll(&mut self) {
        let now = self.clock.now();
        self.submitter.poll(now);
        self.feed(now);
        if self.submitter.is_held_up(now) {
            // Yielding would do less: the kernel may well choose this thread again.
            self.clock.sleep_until(now + GIVE_WAY);
        }
    }

    /// Returns whether this client has found that a policy or a device of its queue panicked. If true, the queue takes
    /// no more I/Os. The client's I/Os are returned, with [`IoError::POISONED`](blkmq_core::IoError::POISONED) or as
    /// the device ended them, except for those that are [lost](Self::lost).
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.submitter.is_poisoned()
    }

    /// I/Os of a poisoned queue that are not returned; see [`Submitter::lost`].
    #[must_use]
    pub fn lost(&self) -> Option<u32> {
        self.submitter.lost()
    }

    /// Flushes, then waits until at least `least` I/Os have finished, but not for more than are outstanding, nor for
    /// any that are [lost](Self::lost). Hands up to `most` to `take`; returns how many. Also returns when the queue has
    /// refused an I/O that stood [in line](Self::line_up).
    ///
    /// # Blocking
    /// Until as many I/Os have finished: without bound.
    pub fn wait(&mut self, least: u32, most: u32, mut take: impl FnMut(Completion<P>)) -> u32 {
        self.wait_until(Instant::MAX, least, most, &mut take)
    }

    /// As [`wait`](Self::wait), but returns at `deadline` with the completions that there are.
    ///
    /// # Blocking
    /// Until `deadline`.
    pub fn wait_until(
        &mut self,
        deadline: Instant,
        least: u32,
        most: u32,
        take: impl FnMut(Completion<P>),
    ) -> u32 {
        self.wait_with(deadline, least, most, take, &NoSummons)
    }

    /// Waits until at least one I/O has finished or the bell has rung. Hands all finished I/Os to `take`.
    pub(crate) fn wait_or(&mut self, bell: &impl Summons, take: impl FnMut(Completion<P>)) -> u32 {
        self.wait_with(Instant::MAX, 1, u32::MAX, take, bell)
    }

    /// Waits until the bell has rung, with nothing in flight. The engine is not notified, so it neither relies on this
    /// thread nor wakes it. Does not watch devices: completions for other submitters stay readable there until those
    /// submitters reap them.
    pub(crate) fn idle(&mut self, bell: &impl Summons) {
        for looks in 1.. {
            if bell.rang() {
                return;
            }
            match self.waiting.next(looks) {
                Pause::Spin(spins) => (0..spins).for_each(|_| spin_loop()),
                Pause::Yield => yield_now(),
                Pause::Sleep => break,
            }
        }
        let heard = planted::is(Planted::EnrolsLate) && bell.listen();
        self.seat.enrol();
        if planted::is(Planted::EnrolsLate) && !heard {
            self.seat.rest();
        }
        while !bell.listen() {
            self.seat.rest();
            if self.has_own_lane() && !planted::is(Planted::KeepsCalls) {
                // A wake-up is a completion there, which stays until a turn consumes it.
                self.submitter.poll(self.clock.now());
            }
        }
    }

    fn wait_with(
        &mut self,
        deadline: Instant,
        least: u32,
        most: u32,
        mut take: impl FnMut(Completion<P>),
        bell: &impl Summons,
    ) -> u32 {
        let mut got = self.submitter.reap(most, &mut take);
        let least = least.min(most).min(got + self.outstanding());
        if got >= least {
            return got;
        }
        self.submitter.begin_wait();
        self.seat.begin();
        let mut idle = 0;
        let mut now;
        loop {
            now = self.clock.now();
            if now >= deadline {
                break;
            }
            self.submitter.flush(now);
            if idle > 0 || !self.has_one_at_device() {
                self.submitter.poll(now);
            }
            self.feed(now);
            if self.seat.has_duty() && self.submitter.has_completions(1) {
                // The caller may process them for any time, and other clients may rely on this thread.
                self.seat.leave();
            }
            let more = self.submitter.reap(most - got, &mut take);
            got += more;
            if more > 0 {
                self.stalls.came(now, &self.submitter);
                idle = 0;
            } else {
                idle += 1;
            }
            // After the check for work, so that a bell that keeps ringing does not stop progress.
            let is_over = self.submitter.lost().is_some() || self.kept.has_refused();
            if got >= least || bell.rang() || is_over {
                break;
            }
            if idle > 0 {
                let wait = Wait { now, deadline, least: least - got };
                self.pause(idle, wait, bell);
            }
        }
        self.submitter.end_wait(now);
        self.seat.leave();
        got
    }

    /// Returns whether the client has a single I/O, which is at the device of its own lane. Then a sleep finds the
    /// completion as a poll would.
    #[inline]
    fn has_one_at_device(&self) -> bool {
        self.in_flight() == 1 && self.submitter.awaits() == Awaited::OwnLane
    }

    /// Waits a little, and longer the longer nothing has arrived.
    fn pause(&mut self, idle: u32, wait: Wait, bell: &impl Summons) {
        let Wait { now, least, .. } = wait;
        let awaited = self.submitter.awaits();
        let pause = self.waiting.next_of(awaited, idle);
        if let Pause::Spin(spins) = pause {
            return self.spin(spins, least);
        }
        let mut deadline = wait.deadline.min(self.stalls.waiting(now, &self.submitter));
        if awaited == Awaited::Others {
            deadline = deadline.min(self.look_at_all(now));
        }
        self.seat.enrol();
        if self.submitter.is_poisoned() {
            // Another thread may be ending I/Os, or a device may still have some: neither is announced.
            self.seat.park_until(deadline.min(now + POISONED_LOOK), now);
            return;
        }
        if awaited == Awaited::Shared {
            let next = self.submitter.next_deadline().map_or(deadline, |at| at.min(deadline));
            if pause == Pause::Yield || next - now <= AWAKE_FOR {
                return yield_now();
            }
        }
        if planted::is(Planted::SleepsWithoutALook) {
            self.seat.park_until(deadline, now);
        } else if let Some(next) = self.submitter.prepare_park(now) {
            let next = next.min(deadline);
            if awaited != Awaited::OwnLane {
                // Later timers of other clients need not wake this thread.
                self.submitter.set_alarm(next);
            }
            if !bell.listen() {
                self.seat.park_until(next, now);
            }
            self.submitter.unpark();
        } else {
            // Another thread may be doing the work that is due.
            spin_loop();
        }
    }

    /// Checks all lanes, for a client whose I/Os are with other threads. Returns the time of the next check.
    fn look_at_all(&mut self, now: Instant) -> Instant {
        if !planted::is(Planted::LooksAtItsOwn) {
            self.submitter.look_at_all(now);
        }
        now + self.looks.next(now, self.submitter.taken_back())
    }

    /// Spins for one round, or until there are `least` completions.
    #[inline]
    fn spin(&mut self, spins: u32, least: u32) {
        for _ in 0..spins {
            if self.submitter.has_completions(least) {
                return;
            }
            spin_loop();
        }
    }
}

/// I/Os that arrive together, from [`Client::batch`]. Dropping it flushes the client's plug.
#[derive(Debug)]
pub struct Batch<'a, P: Payload> {
    client: &'a mut Client<P>,
    now: Instant,
}

impl<P: Payload> Batch<'_, P> {
    /// As [`Client::push`], at the time of the batch.
    ///
    /// # Errors
    /// As [`Client::push`].
    #[inline]
    pub fn push(&mut self, io: Io<P>) -> Result<(), Refused<P>> {
        self.client.push_at(self.now, io)
    }

    /// The credit left: the number of I/Os that can still be pushed if none has to be divided.
    #[must_use]
    pub fn room(&self) -> u32 {
        self.client.depth() - self.client.in_flight()
    }
}

impl<P: Payload> Drop for Batch<'_, P> {
    #[inline]
    fn drop(&mut self) {
        self.client.flush_at(self.now);
    }
}
