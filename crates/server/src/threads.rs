//! The threads of a server, each with an [`Inbox`]: the [`Acceptor`] accepts connections, and hands each to the worker
//! with the fewest. The threads of block devices ([`Devices`]) may be added and removed.
//!
//! A thread that serves clients waits for its next turn with its disk clients ([`DiskClient`]), its way to sleep
//! ([`Sleeper`]), and a choice whether it polls for a while before it sleeps ([`Spin`]).

use crate::clients::{Bounds, Guest, Guests, Rates};
use crate::disk::CREDIT;
use crate::flight::Cookie;
use crate::listener::Listener;
use crate::locked;
use crate::log::{Reason, Refusals};
use crate::stream::Stream;
use blkmq::{AlignedBuf, Client, Clock, Instant, IoResult, Nanos, Sleep};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// A thread, and its inbox.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) thread: JoinHandle<io::Result<()>>,
}

impl Running {
    /// Starts a thread of this name, which performs the work that `prepare` makes for its inbox.
    ///
    /// # Errors
    /// As `prepare`, or if the kernel refuses a descriptor or a thread.
    pub(crate) fn start<W: FnOnce() -> io::Result<()> + Send + 'static>(
        name: String,
        prepare: impl FnOnce(Arc<Inbox>) -> io::Result<W>,
    ) -> io::Result<Self> {
        let inbox = Arc::new(Inbox::new()?);
        let work = prepare(Arc::clone(&inbox))?;
        let thread = Builder::new().name(name).spawn(work)?;
        Ok(Self { inbox, thread })
    }

    pub(crate) fn join(self) -> io::Result<()> {
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
    }

    fn end(self) -> io::Result<()> {
        self.inbox.send(Message::Drain);
        self.join()
    }
}

/// The threads of block devices, by the names of their exports; `None` once the server ends.
#[derive(Debug)]
pub(crate) struct Devices(Mutex<Option<Vec<(String, Running)>>>);

impl Default for Devices {
    fn default() -> Self {
        Self(Mutex::new(Some(Vec::new())))
    }
}

impl Devices {
    /// Adds a thread, or ends it if the server ends.
    pub(crate) fn add(&self, export: &str, running: Running) {
        let refused = match &mut *locked(&self.0) {
            Some(all) => {
                all.push((export.to_owned(), running));
                None
            }
            None => Some(running),
        };
        // Not under the mutex. The failure of a device that was never used need not be reported.
        let _ = refused.map(Running::end);
    }

    /// Ends the thread of an export, if it has one, and waits for it, which takes as long as the end of a device.
    ///
    /// # Errors
    /// If the thread has failed.
    pub(crate) fn remove(&self, export: &str) -> io::Result<()> {
        let take = |all: &mut Vec<(String, Running)>| {
            let at = all.iter().position(|(name, _)| name == export)?;
            Some(all.swap_remove(at).1)
        };
        let taken = locked(&self.0).as_mut().and_then(take);
        taken.map_or(Ok(()), Running::end)
    }

    /// Takes all threads, when the server ends.
    pub(crate) fn take(&self) -> impl Iterator<Item = Running> {
        locked(&self.0).take().into_iter().flatten().map(|(_, running)| running)
    }
}

#[derive(Debug)]
pub(crate) enum Message {
    /// A connection to serve.
    Connection(Stream, Guest),
    /// Answer the requests in flight, refuse everything else, and end.
    Drain,
    /// Answer the requests in flight, read nothing more, close every connection, and end: another server takes over.
    HandOver,
    /// End immediately.
    Stop,
}

#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(crate) fn ring(&self) {
        // A counter at its maximum wakes the loop as well.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Silences the bell until it is rung again.
    pub(crate) fn quiet(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A mutex around a list, and an eventfd that the worker watches. It is used once for each connection, but never for an
/// I/O.
#[derive(Debug)]
pub(crate) struct Inbox {
    messages: Mutex<Vec<Message>>,
    bell: Bell,
}

impl Inbox {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { messages: Mutex::default(), bell: Bell::new()? })
    }

    pub(crate) fn send(&self, message: Message) {
        locked(&self.messages).push(message);
        self.bell.ring();
    }

    /// All messages, oldest first.
    pub(crate) fn take(&self) -> Vec<Message> {
        self.bell.quiet();
        std::mem::take(&mut *locked(&self.messages))
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// The pause after a connection could not be accepted.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// The maximum number of connections accepted from a listener before the others are polled.
const IN_A_ROW: usize = 32;
pub(crate) struct Acceptor {
    listeners: Vec<Listener>,
    inbox: Arc<Inbox>,
    guests: Arc<Guests>,
    workers: Vec<Arc<Inbox>>,
    bounds: Bounds,
    clock: Clock,
    refusals: Arc<Refusals>,
    rates: Rates,
}

impl Acceptor {
    pub(crate) fn new(
        listeners: Vec<Listener>,
        inbox: Arc<Inbox>,
        guests: Arc<Guests>,
        workers: Vec<Arc<Inbox>>,
        bounds: Bounds,
        refusals: Arc<Refusals>,
    ) -> Self {
        let clock = Clock::start();
        let rates = Rates::new(bounds.connections_per_second);
        Self { listeners, inbox, guests, workers, bounds, clock, refusals, rates }
    }

    /// Accepts connections until it receives a message.
    pub(crate) fn run(mut self) -> io::Result<()> {
        loop {
            let mut watched = vec![PollFd::new(&*self.inbox, PollFlags::IN)];
            watched.extend(self.listeners.iter().map(|it| PollFd::new(it, PollFlags::IN)));
            match poll(&mut watched, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let ready: Vec<bool> = watched.iter().map(|fd| !fd.revents().is_empty()).collect();
            if ready[0] {
                return Ok(());
            }
            for at in (0..self.listeners.len()).filter(|at| ready[at + 1]) {
                for _ in 0..IN_A_ROW {
                    if !self.accept(at) {
                        break;
                    }
                }
            }
        }
    }

    /// Accepts a connection, and hands it to a worker or closes it. Returns false if none is waiting.
    fn accept(&mut self, listener: usize) -> bool {
        let stream = match self.listeners[listener].accept() {
            Ok(stream) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Err(error) => {
                // The process is probably out of descriptors. The connection stays in the kernel's queue for a while.
                tracing::error!("a connection cannot be accepted: {error}");
                let _ = poll(&mut [PollFd::new(&*self.inbox, PollFlags::IN)], Some(&PAUSE));
                return false;
            }
        };
        let (peer, now) = (stream.peer(), self.clock.now());
        let may_begin = self.rates.take(peer, now);
        if may_begin && let Some(guest) = self.guests.admit(peer, &self.bounds) {
            self.workers[guest.worker].send(Message::Connection(stream, guest));
        } else {
            let peer = peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string());
            self.refusals.add(Reason::TooMany, |before| {
                let identity = stream.identity().to_string();
                tracing::warn!(before, peer, identity, "a connection too many is closed");
            });
        }
        true
    }
}

/// The thread's client of a disk. It is not polled while it has no I/Os in flight: a thread that polls a disk does all
/// work that is due there, also for other threads, and these wait if its own clients delay it.
pub(crate) struct DiskClient {
    pub(crate) client: Client<AlignedBuf>,
    /// Whether its descriptor has an event: there may be work that other threads rely on.
    pub(crate) is_called: bool,
}

impl DiskClient {
    pub(crate) fn new(client: Client<AlignedBuf>) -> Self {
        Self { client, is_called: false }
    }

    pub(crate) fn has_work(&self) -> bool {
        self.is_called || self.client.outstanding() > 0
    }

    /// Flushes the plug, and passes each completed or refused I/O to `ended`.
    pub(crate) fn reap(&mut self, mut ended: impl FnMut(Cookie, IoResult, AlignedBuf)) {
        self.is_called = false;
        let client = &mut self.client;
        client.flush();
        client.poll();
        client.reap(CREDIT, |done| ended(done.cookie.into(), done.result, done.payload));
        while let Some(refused) = client.take_refused() {
            let (result, io) = (Err(refused.why.into()), refused.into_io());
            ended(io.cookie.into(), result, io.payload);
        }
    }
}

/// The descriptors for which a thread waits, each with a number.
#[derive(Debug)]
pub(crate) struct Sleeper {
    epoll: OwnedFd,
    clock: Clock,
    /// Learns whether to poll the descriptors before sleeping; `None` for a thread that polls its clients instead.
    spin: Option<Spin>,
}

impl Sleeper {
    /// # Errors
    /// If the system has no descriptor left.
    pub(crate) fn new(clock: Clock) -> io::Result<Self> {
        Ok(Self { spin: Some(Spin::default()), ..Self::without_looks(clock)? })
    }

    /// Like [`new`](Self::new), for a thread that polls its clients before it waits.
    ///
    /// # Errors
    /// See [`new`](Self::new).
    pub(crate) fn without_looks(clock: Clock) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, clock, spin: None })
    }

    /// Adds `what` to the descriptors; its events have this number.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn watch(&self, what: impl AsFd, number: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(number);
        Ok(epoll::add(&self.epoll, what, data, epoll::EventFlags::IN)?)
    }

    /// Removes `what` from the descriptors.
    ///
    /// # Errors
    /// If `what` was not watched.
    pub(crate) fn forget(&self, what: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, what)?)
    }

    /// Sleeps for at most `most` until there is an event, unless a disk has something to reap. Events of `disks` have
    /// the numbers from `first` on.
    ///
    /// # Errors
    /// If the kernel refuses to wait.
    pub(crate) fn wait(
        &mut self,
        (first, disks): (u64, &mut [DiskClient]),
        most: Nanos,
        events: &mut Vec<epoll::Event>,
    ) -> io::Result<()> {
        let mut left = most;
        for DiskClient { client, .. } in disks.iter_mut().filter(|it| it.has_work()) {
            match client.prepare_wait() {
                Sleep::No => left = Nanos::ZERO,
                Sleep::Until(Some(at)) => left = left.min(at - client.clock().now()),
                Sleep::Until(None) => {}
            }
        }
        let is_exact = Nanos::ZERO < left && left < most;
        let slept = self.look_and_sleep(left, is_exact, events);
        // Each `prepare_wait` must be ended, even after an error. Most turns only involve sockets.
        for (number, DiskClient { client, .. }) in (first..).zip(disks) {
            if slept.is_err() || events.iter().any(|event| event.data.u64() == number) {
                client.end_wait();
            } else {
                client.end_wait_without_event();
            }
        }
        match slept {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Polls briefly for events, if that pays, and then sleeps.
    fn look_and_sleep(
        &mut self,
        left: Nanos,
        is_exact: bool,
        events: &mut Vec<epoll::Event>,
    ) -> rustix::io::Result<usize> {
        let wants = !is_exact && left > Nanos::ZERO;
        let Self { epoll, clock, spin } = self;
        let spin = spin.as_mut().filter(|_| wants);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut look = || epoll::wait(&*epoll, rustix::buffer::spare_capacity(events), Some(&now));
        let find = || Some(look()).filter(|found| *found != Ok(0)).zip(Some(Load::Several));
        match spin.and_then(|spin| spin.poll(*clock, find)) {
            Some(found) => found,
            None => self.sleep(left, is_exact, events),
        }
    }

    /// epoll's own timeout has a resolution of milliseconds; poll waits for the times of disks, at the cost of another
    /// system call.
    fn sleep(
        &self,
        left: Nanos,
        is_exact: bool,
        events: &mut Vec<epoll::Event>,
    ) -> rustix::io::Result<usize> {
        let timeout = Timespec::try_from(Duration::from_nanos(left.0)).ok();
        let mut left = timeout.as_ref();
        if is_exact {
            poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], left)?;
            left = Some(&Timespec { tv_sec: 0, tv_nsec: 0 });
        }
        epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), left)
    }
}

impl AsFd for Sleeper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// The maximum duration of polling: about the time of a wake-up.
const LONGEST: Nanos = Nanos::from_micros(40);
/// A poll that takes this long was interrupted by a thread that wants the processor.
const INTERRUPTED: Nanos = Nanos::from_micros(10);
/// A client whose next request arrives this soon has several in flight. Sleeping gathers more of them for the next
/// turn.
const SOON: Nanos = Nanos::from_micros(5);
/// Consecutive unsuccessful waits after which polling is skipped.
const GIVE_UP: u32 = 4;
/// The minimum and maximum number of waits without polling before the next attempt.
const SKIPS: std::ops::RangeInclusive<u32> = 32..=4096;

/// The experience of a worker with polling.
///
/// A client with one request at a time sends the next one some microseconds after a reply. If the worker sleeps in
/// between, it has to wait for an idle processor to wake up, which takes longer. A worker that polls, yielding the
/// processor each time, answers sooner and takes no more processor time. It learns when polling does not pay: while
/// nothing arrives, and while other threads want the processor.
#[derive(Debug)]
pub(crate) struct Spin {
    misses: u32,
    skipped: u32,
    try_again: u32,
}

/// The load that a poll has found, by which it is judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Load {
    /// At most one request is in flight: a sleep would have gathered no others.
    Single,
    /// Other requests may be in flight: a sleep gathers those that arrive soon.
    Several,
}

impl Load {
    pub(crate) fn of(in_flight: usize) -> Self {
        if in_flight <= 1 { Self::Single } else { Self::Several }
    }
}

/// The times of one wait's polls.
#[derive(Debug)]
struct Looks {
    begun: Instant,
    last: Instant,
}

impl Default for Spin {
    fn default() -> Self {
        Self { misses: 0, skipped: 0, try_again: *SKIPS.start() }
    }
}

impl Spin {
    /// Polls by `find` for a while, if that pays. Returns the find, or `None` if the worker should sleep.
    pub(crate) fn poll<T>(
        &mut self,
        clock: Clock,
        mut find: impl FnMut() -> Option<(T, Load)>,
    ) -> Option<T> {
        let mut looks = self.begin(clock)?;
        loop {
            match find() {
                Some((found, Load::Single)) => {
                    *self = Self::default();
                    return Some(found);
                }
                Some((found, Load::Several)) => {
                    self.learn(clock.now() - looks.begun);
                    return Some(found);
                }
                None => std::thread::yield_now(),
            }
            if !self.judge(&mut looks, clock.now()) {
                return None;
            }
        }
    }

    fn begin(&mut self, clock: Clock) -> Option<Looks> {
        if self.misses >= GIVE_UP && self.skipped < self.try_again {
            self.skipped += 1;
            return None;
        }
        self.skipped = 0;
        let begun = clock.now();
        Some(Looks { begun, last: begun })
    }

    /// Returns whether to poll again after a poll that found nothing.
    fn judge(&mut self, looks: &mut Looks, now: Instant) -> bool {
        if now - looks.last >= INTERRUPTED {
            self.misses = GIVE_UP;
            self.try_again = (self.try_again * 2).min(*SKIPS.end());
            return false;
        }
        looks.last = now;
        let again = now - looks.begun < LONGEST;
        if !again {
            self.misses = self.misses.saturating_add(1);
        }
        again
    }

    fn learn(&mut self, after: Nanos) {
        if after >= SOON {
            *self = Self::default();
        } else {
            self.misses = self.misses.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a wait whose polls take `each` and find nothing. Returns the number of polls.
    fn wait(spin: &mut Spin, each: Nanos) -> u32 {
        let Some(mut looks) = spin.begin(Clock::start()) else { return 0 };
        let begun = looks.begun;
        (1..)
            .find(|n| !spin.judge(&mut looks, begun + Nanos(each.0 * u64::from(*n))))
            .expect("it ends")
    }

    #[test]
    fn polling_without_success_is_given_up_and_tried_again() {
        let mut spin = Spin::default();
        let looks = Vec::from_iter((0..70).map(|_| wait(&mut spin, Nanos::from_micros(1))));
        let expected = |at: usize| if at < 4 || at % 33 == 3 { 40 } else { 0 };
        let expected = Vec::from_iter((0..70).map(expected));
        assert_eq!(looks, expected);
    }

    #[test]
    fn a_client_with_many_requests_is_slept_for() {
        let mut spin = Spin::default();
        let looked = Vec::from_iter((0..70).map(|_| {
            let looks = spin.begin(Clock::start());
            looks.inspect(|_| spin.learn(Nanos::from_micros(1))).is_some()
        }));
        let expected = Vec::from_iter((0..70).map(|at| at < 4 || at % 33 == 3));
        assert_eq!(looked, expected);
    }

    #[test]
    fn where_others_want_the_processor_looking_becomes_rare() {
        let mut spin = Spin::default();
        let mut gaps = Vec::new();
        for _ in 0..10 {
            assert_eq!(wait(&mut spin, Nanos::from_micros(20)), 1);
            let mut gap = 0;
            while spin.skipped < spin.try_again {
                assert_eq!(wait(&mut spin, Nanos::from_micros(20)), 0);
                gap += 1;
            }
            gaps.push(gap);
        }
        assert_eq!(gaps[..3], [64, 128, 256]);
        assert_eq!(gaps[9], 4096);
        spin.learn(Nanos::from_micros(12));
        assert!(wait(&mut spin, Nanos::from_micros(1)) > 1, "it pays again");
    }
}
