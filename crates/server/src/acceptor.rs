//! The thread that accepts connections, and hands each to the worker with the fewest.

use crate::bounds::Bounds;
use crate::guest::Guests;
use crate::inbox::{Inbox, Message};
use crate::listener::Listener;
use crate::rarely::Rarely;
use crate::rate::Rates;
use blkmq::Clock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::sync::Arc;

/// After a connection could not be accepted, the next one is tried when this has passed.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// Connections of a listener that are accepted before the others are looked at.
const IN_A_ROW: usize = 32;
/// After this many connections that were all refused, and with no further one there, nothing is accepted for a moment: a
/// peer that connects without end is then refused many times in a row, and does not take a processor from others for
/// each. Others wait no longer than that moment, and the kernel's queue has room for it.
const MANY: u32 = 16;
const MOMENT: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// Connections that were refused since the last one that was not, or since the last pause.
#[derive(Debug, Default)]
struct InVain(u32);

impl InVain {
    fn refused(&mut self) {
        self.0 = self.0.saturating_add(1);
    }

    /// Is it time for a pause? Then it begins anew.
    fn has_been_long(&mut self) -> bool {
        let is_long = self.0 >= MANY;
        self.0 = if is_long { 0 } else { self.0 };
        is_long
    }
}

pub(crate) struct Acceptor {
    listeners: Vec<Listener>,
    inbox: Arc<Inbox>,
    guests: Arc<Guests>,
    workers: Vec<Arc<Inbox>>,
    bounds: Bounds,
    clock: Clock,
    refused: Rarely,
    rates: Rates,
    in_vain: InVain,
}

impl Acceptor {
    pub(crate) fn new(
        listeners: Vec<Listener>,
        inbox: Arc<Inbox>,
        guests: Arc<Guests>,
        workers: Vec<Arc<Inbox>>,
        bounds: Bounds,
    ) -> Self {
        let (clock, refused) = (Clock::start(), Rarely::default());
        let rates = Rates::new(bounds.connections_per_second);
        Self {
            listeners,
            inbox,
            guests,
            workers,
            bounds,
            clock,
            refused,
            rates,
            in_vain: InVain::default(),
        }
    }

    /// Accepts until it is sent any message.
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
                if self.in_vain.has_been_long() {
                    self.pause(&MOMENT);
                }
                return;
            }
        }
    }

    /// Lets `time` pass, unless there is a message.
    fn pause(&self, time: &Timespec) {
        // An interrupted pause is a shorter one.
        let _ = poll(&mut [PollFd::new(&*self.inbox, PollFlags::IN)], Some(time));
    }

    /// Accepts a connection, and hands it to a worker or closes it; false if there is none.
    fn accept(&mut self, listener: usize) -> bool {
        let stream = match self.listeners[listener].accept() {
            Ok(stream) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Err(error) => {
                // Out of descriptors, most likely. The connection stays in the kernel's queue for a while.
                tracing::error!("a connection cannot be accepted: {error}");
                self.pause(&PAUSE);
                return false;
            }
        };
        let (peer, now) = (stream.peer(), self.clock.now());
        let may_begin = self.rates.take(peer, now);
        if may_begin && let Some(guest) = self.guests.admit(peer, &self.bounds) {
            self.workers[guest.worker()].send(Message::Connection(stream, guest));
            self.in_vain = InVain::default();
            return true;
        }
        self.refused.log(now, |before| tracing::warn!(before, "a connection too many is closed"));
        self.in_vain.refused();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: the thread woke up for each connection of a flood, and took a processor with that.
    #[test]
    fn a_flood_is_refused_in_batches() {
        let mut in_vain = InVain::default();
        let pauses = (0..1600).filter(|_| {
            in_vain.refused();
            in_vain.has_been_long()
        });
        assert_eq!(pauses.count(), 100);
        (1..MANY).for_each(|_| in_vain.refused());
        assert!(!in_vain.has_been_long(), "a few connections too many are refused at once");
    }
}
