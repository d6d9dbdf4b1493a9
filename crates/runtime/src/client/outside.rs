//! Waiting outside of the client: in an epoll or io_uring loop, beside sockets and other clients.
//!
//! A wait has two steps. [`Client::prepare_wait`] checks for work a last time and says whether the thread may sleep,
//! and until when. Then the thread sleeps on any set of descriptors that includes [`Client::event_fd`], and calls
//! [`Client::end_wait`] however the sleep ended. The descriptor does not say what happened: after a wait the program
//! reaps.

use super::{Client, POISONED_LOOK};
use crate::Clock;
use crate::planted::{self, Planted};
use crate::port::poll;
use blkmq_core::{Instant, Nanos, Payload};
use blkmq_engine::Awaited;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// The sleep that [`Client::prepare_wait`] allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sleep {
    /// The thread must not sleep: there are completions to reap, or there is work for [`Client::poll`].
    No,
    /// The thread may sleep until the client's descriptor is readable, or until this time of the client's clock; `None`
    /// is no limit.
    Until(Option<Instant>),
}

impl Sleep {
    /// How long the thread may sleep from now on, in the form that `poll` and epoll take: zero, a time, or `None` for
    /// no limit. `clock` is the client's [clock](Client::clock).
    #[must_use]
    pub fn timeout(self, clock: Clock) -> Option<Duration> {
        match self {
            Self::No => Some(Duration::ZERO),
            Self::Until(at) => at.map(|at| Duration::from_nanos((at - clock.now()).0)),
        }
    }
}

impl<P: Payload> Client<P> {
    /// The descriptor to watch for reading during a wait, with `poll`, `epoll` or `io_uring`: an epoll instance with
    /// the devices that the client watches and the eventfd by which other threads wake it. Every call returns the same
    /// descriptor.
    ///
    /// It is level-triggered and only says that there is work: call [`reap`](Self::reap) and [`poll`](Self::poll).
    /// Between waits it may be readable without a reason.
    ///
    /// # Errors
    /// If the system has no descriptor left.
    pub fn event_fd(&mut self) -> io::Result<BorrowedFd<'_>> {
        self.seat.descriptor()
    }

    /// Flushes, does the work that is due, and prepares to sleep. After [`Sleep::Until`] the thread may sleep on
    /// [`event_fd`](Self::event_fd), and must then call [`end_wait`](Self::end_wait) before any other method of this
    /// client. After [`Sleep::No`] there is no wait to end.
    ///
    /// While only other threads can advance the client's I/Os, the time is some milliseconds away, and further away
    /// after each wait without a completion. The client then checks the lanes of all clients.
    ///
    /// A client is not woken unless its descriptor has been asked for.
    pub fn prepare_wait(&mut self) -> Sleep {
        let now = self.clock.now();
        self.submitter.flush(now);
        self.submitter.poll(now);
        self.feed(now);
        if self.submitter.has_completions(1) || self.kept.has_refused() {
            return Sleep::No;
        }
        let observed = self.stalls.waiting(now, &self.submitter);
        if self.submitter.is_poisoned() {
            // Another thread may be ending I/Os, or a device may still have some, and neither signals this client.
            return Sleep::Until(Some(observed.min(now + POISONED_LOOK)));
        }
        if self.submitter.outstanding() == 0 {
            // No completion will arrive for this client, and other threads must not rely on it to watch devices.
            return Sleep::Until(None);
        }
        let mut due = observed;
        if self.submitter.awaits() == Awaited::Others {
            due = due.min(self.look_at_all(now));
        }
        self.seat.enrol();
        if !self.seat.attend() && !planted::is(Planted::SleepsUnattended) {
            return Sleep::No;
        }
        if planted::is(Planted::SleepsOutsideUnannounced) {
            return Sleep::Until(None);
        }
        let Some(next) = self.submitter.prepare_park(now) else { return Sleep::No };
        if planted::is(Planted::SilencesLate) {
            self.seat.silence();
        }
        let due = due.min(next);
        self.submitter.set_alarm(due);
        Sleep::Until((due < Instant::MAX).then_some(due))
    }

    /// Does the work that is due. Never sleeps.
    #[cfg(feature = "tokio")]
    pub(crate) fn work(&mut self) {
        let now = self.clock.now();
        self.submitter.poll(now);
        self.feed(now);
    }

    /// Ends a wait, however the sleep ended. Does nothing if [`prepare_wait`](Self::prepare_wait) returned
    /// [`Sleep::No`].
    pub fn end_wait(&mut self) {
        self.submitter.unpark();
        self.seat.silence();
    }

    /// Ends a wait in which the descriptor had no event, without the system call that clears the event. An event that
    /// has arrived since then stays, and ends the next sleep.
    pub fn end_wait_without_event(&mut self) {
        self.submitter.unpark();
    }

    /// Does the work that is due after a wait. Returns whether there is something to reap.
    fn look(&mut self) -> bool {
        self.poll();
        let ready = self.submitter.has_completions(1);
        if ready {
            self.stalls.came(self.clock.now(), &self.submitter);
        }
        ready
    }
}

/// Waits until one of `clients` has a completion to reap, and returns its index. Returns `None` at `deadline`, a time
/// of the first client's clock, or if no client has anything outstanding.
///
/// Flushes all of them. If several clients have completions, the index is that of the first one, so a caller that
/// wants to be fair reaps from all.
///
/// # Blocking
/// Until `deadline`.
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

/// Prepares all of `clients` and sleeps, unless one of them must not sleep. The caller then ends the wait of every
/// client.
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
        watched.push(PollFd::new(client.event_fd()?, PollFlags::POLLIN));
    }
    match poll(&mut watched, earliest(&until)) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The time until the earliest of these instants, each by its own clock; `None` if there are none.
fn earliest(times: &[(Clock, Instant)]) -> Option<Nanos> {
    let finite = times.iter().filter(|(_, at)| *at < Instant::MAX);
    finite.map(|(clock, at)| *at - clock.now()).min()
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;

    /// Each service has its own clock. Times of one service were compared with the clock of another: a thread that
    /// waited for two disks slept for the time between the starts of their services, or did not sleep at all.
    #[test]
    fn times_of_two_clocks_are_not_mixed() {
        let (old, young) = (Clock::started_ago(10), Clock::start());
        let second = Nanos::from_secs(1);
        for (near, far) in [(old, young), (young, old)] {
            let times = [(far, far.now() + Nanos(5 * second.0)), (near, near.now() + second)];
            assert!(earliest(&times).is_some_and(|left| left <= second));
            let times = [(far, far.now() + Nanos(5 * second.0))];
            assert!(earliest(&times).is_some_and(|left| left > second));
        }
        assert_eq!(earliest(&[(old, Instant::MAX)]), None);
    }
}
