//! [`Link`]: the connection of a hardware queue, and its re-establishment after a loss.
//!
//! A link that is down tries to connect: immediately, then after 100 ms, 200 ms and so on, up to every two seconds. It
//! never blocks, and itself exchanges only handshakes.

use super::error::OpenError;
use super::greeting::{Greeted, Greeting, Welcome};
use super::stream::Stream;
use super::target::Target;
use super::transfer::{Input, Output};
use super::{shape, target};
use blkmq_core::{Instant, Nanos};
use blkmq_nbd::HeaderStyle;
use rustix::event::epoll;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::{fmt, io};

/// The time after which an attempt to connect, or a handshake, is given up.
const PATIENCE: Nanos = Nanos::from_secs(10);
const FIRST_DELAY: Nanos = Nanos::from_millis(100);
const LONGEST_DELAY: Nanos = Nanos::from_secs(2);

/// A connection in its transmission phase.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    pub(crate) style: HeaderStyle,
    pub(crate) output: Output,
    pub(crate) input: Input,
    /// Whether the descriptor of the link reports room in the socket.
    watches_room: bool,
}

#[derive(Debug)]
enum State {
    Up(Connection),
    Connecting { socket: OwnedFd, until: Instant },
    Greeting { greeting: Box<Greeting>, until: Instant },
    Down { retry_at: Instant },
}

/// The period without a connection that has answered a request.
#[derive(Clone, Copy, Debug)]
struct Outage {
    since: Instant,
    attempts: u32,
}

/// The connection of a hardware queue.
#[derive(Debug)]
pub(crate) struct Link {
    target: Arc<Target>,
    /// Readable when the link or its connection can make progress.
    epoll: OwnedFd,
    state: State,
    outage: Option<Outage>,
}

impl Link {
    /// Creates a link that is up.
    pub(crate) fn new(target: Arc<Target>, welcome: Welcome) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        watch(&epoll, welcome.stream.as_fd(), epoll::EventFlags::IN)?;
        let state = State::Up(Connection::new(welcome));
        Ok(Self { target, epoll, state, outage: None })
    }

    /// Readable, level-triggered, when [`step`](Self::step) or the connection can make progress.
    pub(crate) fn event_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// The connection, or `None` while the link is down.
    pub(crate) fn connection(&mut self) -> Option<&mut Connection> {
        match &mut self.state {
            State::Up(connection) => Some(connection),
            _ => None,
        }
    }

    /// Returns when the outage began, or `None` if there is none.
    pub(crate) fn down_since(&self) -> Option<Instant> {
        match self.state {
            State::Up(_) => None,
            _ => self.outage.map(|outage| outage.since),
        }
    }

    /// Ends the outage: the connection has answered a request. Merely accepting connections does not end it: the
    /// attempts become rarer, and the time after which requests fail continues to run.
    pub(crate) fn proven(&mut self) {
        self.outage = None;
    }

    /// Records `request`, which was given up, if there is one. It was at fault and not the server, so the next attempt
    /// does not wait.
    pub(crate) fn give_up(&mut self, request: Option<String>) {
        if let Some(request) = request {
            self.target.outages.give_up(request);
            self.outage = None;
        }
    }

    /// Returns the time at which [`step`](Self::step) must be called even if the descriptor is not readable.
    pub(crate) fn next_event(&self) -> Option<Instant> {
        match &self.state {
            State::Up(_) => None,
            State::Connecting { until, .. } | State::Greeting { until, .. } => Some(*until),
            State::Down { retry_at } => Some(*retry_at),
        }
    }

    /// Starts or stops watching for room in the socket.
    pub(crate) fn watch_room(&mut self, wanted: bool) -> io::Result<()> {
        let State::Up(connection) = &mut self.state else { return Ok(()) };
        if connection.watches_room != wanted {
            change(&self.epoll, connection.stream.as_fd(), wanted)?;
            connection.watches_room = wanted;
        }
        Ok(())
    }

    /// Takes the link down: the connection, or the attempt to make one, has failed.
    pub(crate) fn lose(&mut self, now: Instant, why: &dyn fmt::Display) {
        self.target.outages.note(matches!(self.state, State::Up(_)), why);
        let outage = self.outage.get_or_insert(Outage { since: now, attempts: 0 });
        let delay = match outage.attempts {
            0 => Nanos(0),
            n => Nanos(FIRST_DELAY.0 << (n - 1).min(16)).min(LONGEST_DELAY),
        };
        outage.attempts = outage.attempts.saturating_add(1);
        // Dropping a socket also removes it from the epoll set.
        self.state = State::Down { retry_at: now + delay };
    }

    /// Continues an attempt to connect as far as possible without waiting. Returns whether the link has come up.
    pub(crate) fn step(&mut self, now: Instant) -> bool {
        let down = State::Down { retry_at: now };
        let next = match std::mem::replace(&mut self.state, down) {
            up @ State::Up(_) => {
                self.state = up;
                return false;
            }
            State::Down { retry_at } if retry_at > now => Ok(State::Down { retry_at }),
            State::Down { .. } => self.connect(now),
            State::Connecting { until, .. } | State::Greeting { until, .. } if until <= now => {
                Err(OpenError::Silent)
            }
            State::Connecting { socket, until } => self.arrive(socket, until),
            State::Greeting { greeting, until } => self.greet(greeting, until),
        };
        match next {
            Ok(state) => self.state = state,
            Err(error) => self.lose(now, &error),
        }
        let is_up = matches!(self.state, State::Up(_));
        if is_up {
            self.target.outages.end();
        }
        is_up
    }

    fn connect(&mut self, now: Instant) -> Result<State, OpenError> {
        let attempts = self.outage.map_or(0, |outage| outage.attempts);
        let socket = self.target.address(attempts).connect()?;
        // The socket becomes writable when the connection has been made.
        watch(&self.epoll, socket.as_fd(), epoll::EventFlags::OUT)?;
        self.arrive(socket, now + PATIENCE)
    }

    /// Begins the handshake if the socket has connected.
    fn arrive(&mut self, socket: OwnedFd, until: Instant) -> Result<State, OpenError> {
        if !is_writable(&socket)? {
            return Ok(State::Connecting { socket, until });
        }
        target::outcome(&socket)?;
        let greeting = self.target.greeting(Stream::new(socket), &[]);
        self.greet(greeting, until)
    }

    fn greet(&mut self, greeting: Box<Greeting>, until: Instant) -> Result<State, OpenError> {
        match greeting.step()? {
            Greeted::Waiting(greeting) => {
                change(&self.epoll, greeting.stream().as_fd(), greeting.wants_write())?;
                Ok(State::Greeting { greeting, until })
            }
            Greeted::Agreed(welcome) => {
                shape::check_same(&self.target.agreed, &welcome.agreed)?;
                change(&self.epoll, welcome.stream.as_fd(), false)?;
                Ok(State::Up(Connection::new(welcome)))
            }
        }
    }
}

impl Connection {
    fn new(welcome: Welcome) -> Self {
        let Welcome { stream, agreed, early } = welcome;
        let input = Input::new(agreed.style, &early);
        Self { stream, style: agreed.style, output: Output::default(), input, watches_room: false }
    }
}

fn watch(epoll: &OwnedFd, socket: BorrowedFd<'_>, events: epoll::EventFlags) -> io::Result<()> {
    Ok(epoll::add(epoll, socket, epoll::EventData::new_u64(0), events)?)
}

/// Watches for incoming bytes and, if `room`, for room in the socket.
fn change(epoll: &OwnedFd, socket: BorrowedFd<'_>, room: bool) -> io::Result<()> {
    let events =
        if room { epoll::EventFlags::IN | epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
    Ok(epoll::modify(epoll, socket, epoll::EventData::new_u64(0), events)?)
}

fn is_writable(socket: &OwnedFd) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled = [PollFd::new(socket, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(rustix::io::retry_on_intr(|| poll(&mut polled, Some(&now)))? > 0)
}
