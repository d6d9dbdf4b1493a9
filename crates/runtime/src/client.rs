//! [`Client`]: a submitter as a completion queue with cookies, with a clock and a way to wait.
//!
//! A client that many callers share keeps the I/Os that wait for the ceilings of their groups ([`Kept`]). The engine
//! holds back an I/O that comes too early for a ceiling, and the I/O keeps its credit in the meantime (`throttle.rs`
//! there). That slows down a caller with few I/Os, as it should. Where callers of several groups share a client,
//! however, one group at its ceiling would use up the credit of all. So only the first I/O of each kind, that is, of
//! each group and direction, waits in the engine. The following ones wait in rows here, and each is pushed when the one
//! before has left. The rows have no bound: a program that shares a client must bound the I/Os that its callers hand
//! in.
//!
//! # Stalls
//!
//! Linux reports hung tasks, a client reports to an [`Observer`] the I/Os for which it has been waiting too long, while
//! it is still waiting. It checks the clock when it is otherwise idle, before it yields its CPU, so the check costs time
//! only there; without an observer it is one comparison. A report is repeated after twice the time, and so on. When a
//! completion arrives at last, that is reported as well. A report cancels nothing: a stall ends when the device
//! completes an I/O, or when the limits of a group permit one.

use crate::Clock;
use crate::planted::{self, Planted};
use crate::port::spin_loop;
use crate::port::thread::yield_now;
use crate::waiting::{AWAKE_FOR, Looks, Pause, PumpThreads, Seat, Threads, Waiting};
use blkmq_core::{GroupId, Instant, Nanos, Op, Payload, SubmitterId};
use blkmq_engine::{
    Awaited, Completion, Io, NoSubmitterLeft, Outstanding, Queue, Refusal, Refused, Submitter,
};
pub use blocking::{Blocking, CallError, Canceller};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

mod blocking;
#[cfg(target_os = "linux")]
pub(crate) mod outside;

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
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The queue has as many clients and reactors as it was built for
    /// ([`Config::submitters`](blkmq_engine::Config::submitters)).
    #[error("{0}")]
    NoSubmitterLeft(#[source] NoSubmitterLeft),
    /// The descriptors that the client sleeps on, or its lane to the device, could not be created.
    #[error("no descriptors for a client (ulimit -n says how many there may be): {0}")]
    Descriptor(#[source] std::io::Error),
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

/// The reads of a group, or all of its other I/Os. I/Os of one kind wait behind each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Kind {
    group: GroupId,
    reads: bool,
}

impl Kind {
    pub(crate) fn of<P>(io: &Io<P>) -> Self {
        Self { group: io.group, reads: io.op == Op::Read }
    }
}

/// The I/Os of one kind, oldest first.
#[derive(Debug)]
struct Row<P> {
    kind: Kind,
    ios: VecDeque<Io<P>>,
}

/// The rows of a client. Empty rows are kept for reuse.
#[derive(Debug)]
pub(super) struct Kept<P> {
    rows: Vec<Row<P>>,
    /// The number of I/Os in all rows.
    len: u32,
    /// I/Os that the queue refused when their turn came.
    refused: VecDeque<Refused<P>>,
}

impl<P> Kept<P> {
    pub(super) fn new() -> Self {
        Self { rows: Vec::new(), len: 0, refused: VecDeque::new() }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(super) fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    /// The number of I/Os not returned yet.
    #[inline]
    pub(super) fn outstanding(&self) -> u32 {
        self.len + self.refused.len() as u32
    }

    fn has(&self, kind: Kind) -> bool {
        self.rows.iter().any(|row| row.kind == kind && !row.ios.is_empty())
    }

    fn add(&mut self, io: Io<P>) {
        self.len += 1;
        let kind = Kind::of(&io);
        let same = self.rows.iter().position(|row| row.kind == kind);
        let at = same.or_else(|| self.rows.iter().position(|row| row.ios.is_empty()));
        match at.map(|at| &mut self.rows[at]) {
            Some(row) => {
                row.kind = kind;
                row.ios.push_back(io);
            }
            None => self.rows.push(Row { kind, ios: VecDeque::from([io]) }),
        }
    }
}

impl<P: Payload> Client<P> {
    /// As [`push`](Self::push), unless I/Os of the same group and direction already wait for a ceiling: then the I/O
    /// joins the line behind them, and takes no credit until its turn comes. For a client that callers of several
    /// groups share. The line has no bound, so callers should limit their I/Os.
    ///
    /// An I/O in line is [outstanding](Self::outstanding), and [`cancel`](Self::cancel) does not find it. If the queue
    /// refuses it when its turn comes, [`take_refused`](Self::take_refused) returns it. It is lost if the client is
    /// dropped. O(lines).
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn line_up(&mut self, io: Io<P>) -> Result<(), Refused<P>> {
        self.line_up_at(self.clock.now(), io)
    }

    pub(crate) fn line_up_at(&mut self, now: Instant, io: Io<P>) -> Result<(), Refused<P>> {
        if self.submitter.is_throttled(io.group, io.op) || self.kept.has(Kind::of(&io)) {
            self.kept.add(io);
            return Ok(());
        }
        self.submitter.push(now, io)
    }

    /// An I/O that was [in line](Self::line_up), and that the queue refused when its turn came; `None` if there is
    /// none. Callers should ask for such I/Os after each wait.
    pub fn take_refused(&mut self) -> Option<Refused<P>> {
        self.kept.refused.pop_front()
    }

    /// Pushes the I/Os in line whose turn has come.
    #[inline]
    pub(super) fn feed(&mut self, now: Instant) {
        if !self.kept.is_empty() {
            self.feed_rows(now);
        }
    }

    #[cold]
    fn feed_rows(&mut self, now: Instant) {
        let Self { kept: Kept { rows, len, refused }, submitter, .. } = self;
        'rows: for row in rows {
            while let Some(io) = row.ios.front()
                && !submitter.is_throttled(io.group, io.op)
            {
                let io = row.ios.pop_front().expect("it was seen just now");
                match submitter.push(now, io) {
                    Ok(()) => *len -= 1,
                    Err(why) if matches!(why.why, Refusal::NoCredit { .. }) => {
                        // The I/O is pushed first once there is credit.
                        row.ios.push_front(why.into_io());
                        break 'rows;
                    }
                    Err(why) => {
                        *len -= 1;
                        refused.push_back(why);
                    }
                }
            }
        }
        submitter.flush(now);
    }

    /// Returns whether there are I/Os in line.
    pub(crate) fn has_kept(&self) -> bool {
        !self.kept.is_empty()
    }

    /// I/Os in line of this kind. O(lines).
    pub(crate) fn kept_of(&self, kind: Kind) -> usize {
        let row = self.kept.rows.iter().find(|row| row.kind == kind);
        row.map_or(0, |row| row.ios.len())
    }

    /// The lines and their lengths.
    pub(crate) fn kept(&self) -> impl Iterator<Item = (Kind, usize)> + '_ {
        self.kept.rows.iter().map(|row| (row.kind, row.ios.len()))
    }

    /// Removes the I/O in line with this cookie. O(I/Os in line).
    pub(crate) fn take_kept(&mut self, cookie: u64) -> Option<Io<P>> {
        let Kept { rows, len, .. } = &mut self.kept;
        let io = rows.iter_mut().find_map(|row| {
            let at = row.ios.iter().position(|io| io.cookie == cookie)?;
            row.ios.remove(at)
        })?;
        *len -= 1;
        Some(io)
    }

    /// Removes all I/Os in line.
    pub(crate) fn drain_kept(&mut self) -> impl Iterator<Item = Io<P>> + '_ {
        self.kept.len = 0;
        self.kept.rows.iter_mut().flat_map(|row| row.ios.drain(..))
    }
}

/// The default time without a completion before the first report.
pub const STALL_AFTER: Nanos = Nanos::from_secs(10);
/// The most requests that a report names.
const NAMED: usize = 4;

/// A report to an observer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A waiting client has received no completion for a while.
    Stalled(Stall),
    /// A client has received a completion after a stall was reported.
    Resumed(Resumed),
}

/// A client that receives no completions.
#[derive(Clone, Debug)]
pub struct Stall {
    /// The number of the client.
    pub submitter: SubmitterId,
    /// The number of I/Os that it has in flight.
    pub outstanding: u32,
    /// How many of them are held back by the limits of groups.
    pub throttled: u32,
    /// When the first of the throttled I/Os may proceed; `None` if none is throttled.
    pub until: Option<Instant>,
    /// How long the client has received no completion.
    pub waited: Nanos,
    /// The oldest requests of the whole queue, which may include the client's own.
    pub held: Vec<Outstanding>,
    /// The time of the report.
    pub at: Instant,
}

/// A client that has received a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resumed {
    /// The number of the client.
    pub submitter: SubmitterId,
    /// How long the client had received no completion.
    pub waited: Nanos,
}

/// A span in seconds.
struct Seconds(Nanos);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{} s", self.0.0 / 1_000_000_000, self.0.0 / 100_000_000 % 10)
    }
}

impl fmt::Display for Stall {
    /// One line, plus one for each named request; no newline at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { submitter, outstanding, throttled, until, waited, held, at } = self;
        write!(f, "submitter {}: {outstanding} outstanding for {}", submitter.0, Seconds(*waited))?;
        if *throttled > 0 {
            write!(f, ", {throttled} of them wait for the limits of their group")?;
            if let Some(until) = until {
                write!(f, " (the next may go in {})", Seconds(*until - *at))?;
            }
        }
        held.iter().try_for_each(|one| write!(f, "\n  {}", one.at(*at)))
    }
}

impl fmt::Display for Resumed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "submitter {}: continues after {}", self.submitter.0, Seconds(self.waited))
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stalled(stall) => stall.fmt(f),
            Self::Resumed(resumed) => resumed.fmt(f),
        }
    }
}

/// A callback for stalls. It runs on the thread of the waiting client, so it should return quickly.
pub type Observer = Arc<dyn Fn(&Event) + Send + Sync>;

/// A service's settings for its clients' reports.
#[derive(Clone)]
pub(crate) struct StallSettings {
    pub(crate) observer: Option<Observer>,
    pub(crate) after: Nanos,
}

impl Default for StallSettings {
    fn default() -> Self {
        Self { observer: None, after: STALL_AFTER }
    }
}

/// One client's stalls.
pub(crate) struct Stalls<P> {
    settings: StallSettings,
    /// For the list of the oldest requests.
    queue: Queue<P>,
    /// The start of the time without a completion; `None` until the first check after a completion.
    since: Option<Instant>,
    /// The number of completions at that time.
    had: u64,
    /// Reports of the current stall.
    said: u32,
    /// When the next report is due.
    next: Instant,
}

impl<P> fmt::Debug for Stalls<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stalls").field("since", &self.since).finish_non_exhaustive()
    }
}

impl<P: Send + 'static> Stalls<P> {
    pub(crate) fn new(settings: StallSettings, queue: Queue<P>) -> Self {
        Self { settings, queue, since: None, had: 0, said: 0, next: Instant::ZERO }
    }

    /// The client's queue.
    pub(crate) fn queue(&self) -> &Queue<P> {
        &self.queue
    }

    /// Notes that a completion has arrived.
    #[inline]
    pub(crate) fn came(&mut self, now: Instant, submitter: &Submitter<P>) {
        if self.said > 0 {
            self.resumed(now, submitter.id());
        }
        self.since = None;
    }

    #[cold]
    fn resumed(&mut self, now: Instant, submitter: SubmitterId) {
        self.said = 0;
        if let (Some(since), Some(observer)) = (self.since, &self.settings.observer) {
            observer(&Event::Resumed(Resumed { submitter, waited: now - since }));
        }
    }

    /// Notes that the client still waits at `now`, and that no completion has arrived since the last call. Returns when
    /// it must be called again at the latest, or [`Instant::MAX`].
    #[inline]
    pub(crate) fn waiting(&mut self, now: Instant, submitter: &Submitter<P>) -> Instant {
        if self.settings.observer.is_none() || submitter.outstanding() == 0 {
            return Instant::MAX;
        }
        let had = submitter.taken_back();
        if self.had != had {
            // A completion arrived while the client was not waiting.
            self.came(now, submitter);
        }
        match self.since {
            None => {
                (self.since, self.had) = (Some(now), had);
                self.next = now + self.settings.after;
            }
            Some(since) if now >= self.next => self.report(now, since, submitter),
            Some(_) => {}
        }
        self.next
    }

    #[cold]
    fn report(&mut self, now: Instant, since: Instant, submitter: &Submitter<P>) {
        let waited = now - since;
        self.said += 1;
        // The next report is due when the wait is twice as long.
        self.next = now + Nanos(waited.0.max(1));
        let (throttled, until) = submitter.throttled();
        let stall = Stall {
            submitter: submitter.id(),
            outstanding: submitter.outstanding(),
            throttled,
            until,
            waited,
            held: self.queue.outstanding(now, NAMED),
            at: now,
        };
        if let Some(observer) = &self.settings.observer {
            observer(&Event::Stalled(stall));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::Op;
    use blkmq_device::{MachineShape, registry};
    use blkmq_engine::{Config, Io};
    use std::sync::Mutex;

    fn at(s: u64) -> Instant {
        Instant::ZERO + Nanos::from_secs(s)
    }

    /// The reports about a client that asks each second, with a read in flight since 100 s and another since 101 s.
    #[test]
    fn a_stall_is_reported_ever_more_seldom_and_its_end_once() {
        let machine = MachineShape { cpus: 1, nodes: 1 };
        let device = "null,irqmode=2,completion_nsec=3600000000000,hw_queue_depth=1";
        let config: Config<u64> = registry::parse(device, &machine).unwrap().config();
        let queue = Queue::new(Config { depth: 2, nr_requests: Some(4), ..config }).unwrap();
        let mut submitter = queue.submitter().unwrap();
        let said = Arc::new(Mutex::new(Vec::new()));
        let observer: Observer = {
            let said = Arc::clone(&said);
            Arc::new(move |event: &Event| said.lock().unwrap().push(event.to_string()))
        };
        let settings = StallSettings { observer: Some(observer), after: Nanos::from_secs(10) };
        let mut stalls = Stalls::new(settings, queue);
        assert_eq!(stalls.waiting(at(1), &submitter), Instant::MAX, "it waits for nothing");
        submitter.push(at(100), Io::new(Op::Read, 4096, 8, 1, 0)).unwrap();
        submitter.flush(at(100));
        submitter.push(at(101), Io::new(Op::Read, 0, 8, 1, 0)).unwrap();
        submitter.flush(at(101));
        assert_eq!(stalls.waiting(at(101), &submitter), at(111));
        for second in 102..200 {
            let _ = stalls.waiting(at(second), &submitter);
        }
        stalls.came(at(200), &submitter);
        stalls.came(at(201), &submitter);
        let said = said.lock().unwrap();
        let first: Vec<&str> = said[0].lines().collect();
        assert_eq!(
            first,
            [
                "submitter 0: 2 outstanding for 10.0 s",
                "  read of 8 sectors at 4096, thread 0: at the device, for 11.0 s",
                "  read of 8 sectors at 0, thread 0: in the elevator, for 10.0 s"
            ]
        );
        let firsts: Vec<&str> = said.iter().filter_map(|text| text.lines().next()).collect();
        assert_eq!(
            firsts[1..],
            [
                "submitter 0: 2 outstanding for 20.0 s",
                "submitter 0: 2 outstanding for 40.0 s",
                "submitter 0: 2 outstanding for 80.0 s",
                "submitter 0: continues after 99.0 s"
            ]
        );
    }
}
