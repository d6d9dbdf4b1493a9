//! Waiting outside of the client: in an epoll or io_uring loop, beside sockets and other clients.
//!
//! A wait has two steps. [`Client::prepare_wait`] looks for work a last time and says whether the thread may sleep, and
//! until when; then the thread sleeps on whatever it likes, [`Client::event_fd`] among it; [`Client::end_wait`] follows,
//! however the sleep ended. What an event means is not said by the descriptor: after a wait the program reaps.

use super::{Client, POISONED_LOOK};
use crate::Clock;
use blkmq_core::{Instant, Nanos, Payload};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// What [`Client::prepare_wait`] allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sleep {
    /// Not at all: there is something to reap, or to do by [`Client::poll`].
    No,
    /// Until the client's descriptor is readable, or at the latest until this time of its clock.
    Until(Option<Instant>),
}

impl Sleep {
    /// How long the thread may sleep from now on, as `poll` and epoll want to know: not at all, this long, or, if
    /// `None`, until there is an event. `clock` is [that](Client::clock) of the client.
    #[must_use]
    pub fn timeout(self, clock: Clock) -> Option<Duration> {
        match self {
            Self::No => Some(Duration::ZERO),
            Self::Until(at) => at.map(|at| Duration::from_nanos((at - clock.now()).0)),
        }
    }
}

impl<P: Payload> Client<P> {
    /// The descriptor to watch for reading during a wait, with `poll`, `epoll` or `io_uring`: an epoll instance of the
    /// devices that the client looks after and of what other threads wake it by. It stays the same one.
    ///
    /// It is level-triggered and says only that there is something to do: [`reap`](Self::reap) and
    /// [`poll`](Self::poll) find out what. Between waits it may be readable for no reason.
    ///
    /// # Errors
    /// If the system has no descriptor left.
    pub fn event_fd(&mut self) -> io::Result<BorrowedFd<'_>> {
        self.seat.descriptor()
    }

    /// Flushes, does what is due, and prepares to sleep. With [`Sleep::Until`] the thread may sleep on
    /// [`event_fd`](Self::event_fd), and must then call [`end_wait`](Self::end_wait) before anything else of this
    /// client. With [`Sleep::No`] there is nothing to end.
    ///
    /// A client whose descriptor was never asked for is not woken.
    pub fn prepare_wait(&mut self) -> Sleep {
        let now = self.clock.now();
        self.submitter.flush(now);
        self.submitter.poll(now);
        if self.submitter.has_completions(1) {
            return Sleep::No;
        }
        let observed = self.stalls.waiting(now, &self.submitter);
        if self.submitter.is_poisoned() {
            // Another thread is ending I/Os, or a device has some still: nothing announces either.
            return Sleep::Until(Some(observed.min(now + POISONED_LOOK)));
        }
        if self.submitter.outstanding() == 0 {
            // Nothing comes for it, and the others are not to count on it.
            return Sleep::Until(None);
        }
        self.seat.enrol();
        if !self.submitter.prepare_park(now) {
            return Sleep::No;
        }
        let due = self.submitter.next_deadline().map_or(observed, |at| at.min(observed));
        Sleep::Until((due < Instant::MAX).then_some(due))
    }

    /// A wait is over, whatever ended it. Does nothing where [`prepare_wait`](Self::prepare_wait) allowed none.
    pub fn end_wait(&mut self) {
        self.submitter.unpark();
        self.seat.silence();
    }

    /// After a wait: does what is due. True if there is something to reap.
    fn look(&mut self) -> bool {
        self.poll();
        let ready = self.submitter.has_completions(1);
        if ready {
            self.stalls.came(self.clock.now(), &self.submitter);
        }
        ready
    }
}

/// Waits until one of `clients` has a completion to reap, and says which: its index. `None` at `deadline`, a time of the
/// first client's clock, or if none of them has anything outstanding.
///
/// Flushes all of them. The first client in the list that has something is the one that is named, so a caller that is
/// fair reaps from all.
///
/// # Errors
/// If the system has no descriptor left, or cannot poll.
pub fn wait_any<P: Payload>(
    clients: &mut [&mut Client<P>],
    deadline: Instant,
) -> io::Result<Option<usize>> {
    loop {
        if let Some(first) = clients.iter_mut().position(|client| client.look()) {
            return Ok(Some(first));
        }
        let Some(clock) = clients.first().map(|client| client.clock) else { return Ok(None) };
        let waits = |client: &&mut Client<P>| client.outstanding() > client.lost().unwrap_or(0);
        if clock.now() >= deadline || !clients.iter().any(waits) {
            return Ok(None);
        }
        let slept = sleep_on_all(clients, deadline);
        clients.iter_mut().for_each(|client| client.end_wait());
        slept?;
    }
}

/// Prepares all of `clients` and sleeps, unless one of them must not. Every one of them has to end its wait then.
fn sleep_on_all<P: Payload>(clients: &mut [&mut Client<P>], deadline: Instant) -> io::Result<()> {
    let mut until = vec![(clients[0].clock, deadline)];
    for client in clients.iter_mut() {
        client.event_fd()?;
        match client.prepare_wait() {
            Sleep::No => return Ok(()),
            Sleep::Until(at) => until.extend(at.map(|at| (client.clock, at))),
        }
    }
    let mut watched = Vec::with_capacity(clients.len());
    for client in clients.iter_mut() {
        watched.push(PollFd::from_borrowed_fd(client.event_fd()?, PollFlags::IN));
    }
    let left = earliest(&until).map(timespec);
    match poll(&mut watched, left.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// How long it is to the first of these times, each of which is one of its own clock; `None` if there is none.
fn earliest(times: &[(Clock, Instant)]) -> Option<Nanos> {
    let finite = times.iter().filter(|(_, at)| *at < Instant::MAX);
    finite.map(|(clock, at)| *at - clock.now()).min()
}

pub(crate) fn timespec(Nanos(ns): Nanos) -> Timespec {
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Services have a clock each. The times of one were compared with the clock of another: a thread that waited for
    /// two disks slept for as long as lay between the starts of their services, or did not sleep at all.
    #[test]
    fn times_of_two_clocks_are_not_mixed() {
        let (old, young) = (Clock::started_ago(3600), Clock::start());
        let second = Nanos::from_secs(1);
        for (near, far) in [(old, young), (young, old)] {
            let times = [(far, far.now() + Nanos(60 * second.0)), (near, near.now() + second)];
            assert!(earliest(&times).is_some_and(|left| left <= second));
            let times = [(far, far.now() + Nanos(7200 * second.0))];
            assert!(earliest(&times).is_some_and(|left| left > second));
        }
        assert_eq!(earliest(&[(old, Instant::MAX)]), None);
    }
}
