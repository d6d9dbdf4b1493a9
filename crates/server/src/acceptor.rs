//! The thread that accepts connections, and hands each to the worker with the fewest connections.

use crate::bounds::Bounds;
use crate::guest::Guests;
use crate::inbox::{Inbox, Message};
use crate::listener::Listener;
use crate::rate::Rates;
use crate::refusals::{Reason, Refusals};
use blkmq::Clock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::sync::Arc;

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
