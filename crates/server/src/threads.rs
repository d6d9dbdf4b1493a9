//! The threads of a server, each with an [`Inbox`]: the [`Acceptor`] accepts connections, and hands each to the worker
//! with the fewest. The threads of block devices ([`Devices`]) may be added and removed.

use crate::bounds::{Bounds, Guest, Guests, Rates};
use crate::listener::Listener;
use crate::log::{Reason, Refusals};
use crate::stream::Stream;
use blkmq::Clock;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A thread, and its inbox.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) thread: JoinHandle<io::Result<()>>,
}

impl Running {
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
    fn all(&self) -> MutexGuard<'_, Option<Vec<(String, Running)>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a thread, or ends it if the server ends.
    pub(crate) fn add(&self, export: &str, running: Running) {
        let refused = match &mut *self.all() {
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
        let taken = self.all().as_mut().and_then(take);
        taken.map_or(Ok(()), Running::end)
    }

    /// Takes all threads, when the server ends.
    pub(crate) fn take(&self) -> impl Iterator<Item = Running> {
        self.all().take().into_iter().flatten().map(|(_, running)| running)
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

/// A mutex around a list, and an eventfd that the worker watches. It is used once for each connection, but never for an
/// I/O.
#[derive(Debug)]
pub(crate) struct Inbox {
    messages: Mutex<Vec<Message>>,
    bell: OwnedFd,
}

impl Inbox {
    pub(crate) fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { messages: Mutex::default(), bell })
    }

    fn messages(&self) -> MutexGuard<'_, Vec<Message>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn send(&self, message: Message) {
        self.messages().push(message);
        // A counter at its maximum wakes the worker as well.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// All messages, oldest first.
    pub(crate) fn take(&self) -> Vec<Message> {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        std::mem::take(&mut *self.messages())
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
                self.accept_a_row(at);
            }
        }
    }

    fn accept_a_row(&mut self, listener: usize) {
        for _ in 0..IN_A_ROW {
            if !self.accept(listener) {
                return;
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
            self.workers[guest.worker()].send(Message::Connection(stream, guest));
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
