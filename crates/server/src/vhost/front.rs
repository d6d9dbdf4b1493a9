//! [`Front`]: the connection of a front end.

use crate::allow::Identity;
use crate::clients::{Figures, Listed};
use crate::export::{Cache, Seat};
use crate::log::Rarely;
use crate::machine::VhostUser;
use crate::waiting::Sleeper;
use blkmq::Instant;
use blkmq_vhost::config::DiskConfig;
use blkmq_vhost::message::{ReceiveError, Receiver, send};
use blkmq_vhost::ring::Ring;
use blkmq_vhost::session::{Answer, Next, Session};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// The maximum number of messages handled before the rings are served again.
const MESSAGES: usize = 32;
/// The maximum length in bytes of a discard or of zeroes that is announced. The disk gets it in steps.
const LONGEST_RANGE: u64 = 1 << 30;

/// The requests that must finish before a message is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Drain {
    Queue(usize),
    All,
}

/// Requests that have ended, and their bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) requests: u64,
    pub(super) read: u64,
    pub(super) written: u64,
}

pub(super) struct Front {
    socket: UnixStream,
    receiver: Receiver,
    pub(super) session: Session,
    pub(super) seat: Seat,
    /// The process that connected.
    pub(super) identity: Identity,
    /// Its entry in the list of clients.
    listed: Listed,
    /// The version of the export's rules under which it was admitted.
    rules: u32,
    /// The message that waits for a drain. The next message is not received before.
    pub(super) drain: Option<Drain>,
    /// Whether the connection ends when its requests have finished. Their answers are dropped.
    pub(super) is_over: bool,
    /// Requests in flight, by queue.
    pub(super) in_flight: Vec<u32>,
    /// The kick descriptors being watched, by queue.
    kicks: Vec<Option<Arc<OwnedFd>>>,
    /// Whether the monitor has been notified of the size. A monitor that has reconnected may know the size from a
    /// previous server.
    pub(super) is_told: bool,
    /// Limits the log lines about refused messages.
    refused: Rarely,
    pub(super) totals: Totals,
}

impl Front {
    pub(super) fn new(
        socket: UnixStream,
        seat: Seat,
        (identity, listed): (Identity, Listed),
        settings: &VhostUser,
    ) -> Self {
        let announced = |most: u64| if most > 0 { LONGEST_RANGE } else { 0 };
        let disk = DiskConfig {
            bytes: seat.bytes(),
            is_read_only: seat.is_read_only(),
            block: seat.info.blocks.min(),
            discard: announced(seat.discard),
            // If the disk lacks the operation, zeroed buffers are written.
            zeroes: LONGEST_RANGE,
            queues: settings.queues,
            name: seat.info.name.clone(),
        };
        let session = Session::new(disk, seat.cache == Cache::Writeback);
        let queues = usize::from(settings.queues);
        Self {
            socket,
            receiver: Receiver::default(),
            session,
            // Checked again in the first turn: the rules may have changed since the front end was admitted.
            rules: seat.allow.version().wrapping_sub(1),
            seat,
            identity,
            listed,
            drain: None,
            is_over: false,
            in_flight: vec![0; queues],
            kicks: vec![None; queues],
            is_told: false,
            refused: Rarely::default(),
            totals: Totals::default(),
        }
    }

    pub(super) fn socket(&self) -> impl AsFd + '_ {
        &self.socket
    }

    /// Handles messages that have arrived, until one must wait for a drain. The event numbers of kicks begin at
    /// `first`.
    ///
    /// # Errors
    /// If the connection has ended, with the reason unless the front end has closed it.
    pub(super) fn hear(
        &mut self,
        now: Instant,
        sleeper: &Sleeper,
        first: u64,
    ) -> Result<(), Option<String>> {
        for _ in 0..MESSAGES {
            if self.drain.is_some() {
                break;
            }
            let received = match self.receiver.receive(&self.socket) {
                Ok(Some(received)) => received,
                Ok(None) => break,
                Err(ReceiveError::Io(error)) if is_end(&error) => return Err(None),
                Err(error) => return Err(Some(error.to_string())),
            };
            match self.session.handle(received) {
                Ok(Next::Go(answer)) => self.answer(answer)?,
                Ok(Next::Drain(queue)) => self.drain = Some(Drain::Queue(queue)),
                Ok(Next::DrainAll) => self.drain = Some(Drain::All),
                Err((error, Some(answer))) => {
                    let export = &self.seat.info.name;
                    self.refused.log(now, |before| {
                        tracing::warn!(before, export, "a message is refused: {error}");
                    });
                    self.answer(Some(answer))?;
                }
                Err((error, None)) => return Err(Some(error.to_string())),
            }
            self.follow_kicks(sleeper, first).map_err(|error| Some(error.to_string()))?;
        }
        Ok(())
    }

    fn answer(&mut self, answer: Option<Answer>) -> Result<(), Option<String>> {
        let Some(Answer { bytes, fd }) = answer else { return Ok(()) };
        let sent = send(&self.socket, &bytes, fd.as_ref().map(AsFd::as_fd));
        sent.map_err(|error| if is_end(&error) { None } else { Some(error.to_string()) })
    }

    /// Watches exactly the kicks of the running rings. The front end has their descriptors, too, so closing them here
    /// would not remove them from the epoll set.
    fn follow_kicks(&mut self, sleeper: &Sleeper, first: u64) -> io::Result<()> {
        for (number, (queue, watched)) in
            (first..).zip(self.session.queues().iter().zip(&mut self.kicks))
        {
            let kick = queue.kick();
            let is_watched = match (kick, &watched) {
                (Some(kick), Some(watched)) => Arc::ptr_eq(kick, watched),
                (kick, watched) => kick.is_none() && watched.is_none(),
            };
            if is_watched {
                continue;
            }
            if let Some(old) = watched.take() {
                sleeper.forget(&*old)?;
            }
            if let Some(kick) = kick {
                sleeper.watch(&**kick, number)?;
                *watched = Some(Arc::clone(kick));
            }
        }
        Ok(())
    }

    /// Consumes the kicks of a queue; its ring is polled in every turn.
    pub(super) fn kicked(&self, queue: usize) {
        if let Some(Some(kick)) = self.kicks.get(queue) {
            // A descriptor that is not an eventfd is the front end's mistake, and only wakes this thread.
            let _ = rustix::io::read(&**kick, &mut [0; 8]);
        }
    }

    /// Returns whether a driver has a request.
    pub(super) fn has_request(&mut self) -> bool {
        (0..self.in_flight.len()).any(|queue| {
            self.session.queue(queue).0.running().is_some_and(|ring| ring.has_request())
        })
    }

    /// Requests kicks from all drivers. Returns whether one of them already has a request.
    pub(super) fn arm(&mut self) -> bool {
        let mut has_some = false;
        for queue in 0..self.in_flight.len() {
            has_some |= self.session.queue(queue).0.running().is_some_and(Ring::arm);
        }
        has_some
    }

    /// Returns whether the requests for which a message waits have finished.
    pub(super) fn has_drained(&mut self, drain: Drain) -> bool {
        let queues = match drain {
            Drain::Queue(queue) => queue..queue + 1,
            Drain::All => 0..self.in_flight.len(),
        };
        let mut is_idle = |queue: usize| {
            self.in_flight[queue] == 0 && self.session.queue(queue).0.running().is_none()
        };
        queues.into_iter().all(&mut is_idle)
    }

    /// Answers the message that has waited.
    ///
    /// # Errors
    /// If the front end has disconnected.
    pub(super) fn end_drain(
        &mut self,
        drain: Drain,
        sleeper: &Sleeper,
        first: u64,
    ) -> io::Result<()> {
        self.drain = None;
        let answer = match drain {
            Drain::Queue(queue) => Some(self.session.stop(queue)),
            Drain::All => self.session.reset(),
        };
        self.follow_kicks(sleeper, first)?;
        self.answer(answer).map_err(|_| ErrorKind::BrokenPipe.into())
    }

    /// Stops the ring of a queue, whose driver has broken a rule.
    pub(super) fn break_off(&mut self, queue: usize, sleeper: &Sleeper) {
        self.session.queue(queue).0.break_off();
        if let Some(kick) = self.kicks[queue].take() {
            // The descriptor was being watched.
            let _ = sleeper.forget(&*kick);
        }
    }

    /// Returns whether the rules of its export, which a reload may have changed, admit it.
    pub(super) fn is_allowed(&mut self) -> bool {
        let rules = self.seat.allow.version();
        if rules == self.rules {
            return true;
        }
        self.rules = rules;
        self.seat.allow.allows(&self.identity)
    }

    /// Updates its figures in the list of clients. Returns its number if an operator wants to close it.
    pub(super) fn shall_end(&self) -> Option<u64> {
        let Totals { requests, read, written } = self.totals;
        let in_flight = self.in_flight.iter().map(|count| u64::from(*count)).sum();
        let shall_end = self.listed.look(Figures { requests, read, written, in_flight });
        shall_end.then(|| self.listed.number())
    }

    /// Returns whether its export has been removed.
    pub(super) fn is_withdrawn(&self) -> bool {
        self.seat.is_withdrawn()
    }

    /// Stops watching its descriptors, and logs the end.
    pub(super) fn end(self, sleeper: &Sleeper, export: &str) {
        for kick in self.kicks.iter().flatten() {
            // The descriptor was being watched.
            let _ = sleeper.forget(&**kick);
        }
        let Totals { requests, read, written } = self.totals;
        let identity = self.identity.to_string();
        tracing::info!(identity, export, requests, read, written, "a front end disconnects");
    }
}

/// Returns whether the front end has closed the connection.
fn is_end(error: &io::Error) -> bool {
    use ErrorKind as K;
    matches!(error.kind(), K::UnexpectedEof | K::ConnectionReset | K::BrokenPipe)
}
