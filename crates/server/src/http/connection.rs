//! A connection: a request, its answer, and the end.
//!
//! ```text
//! Hearing -> Waiting (a change) -> Telling -> Leaving
//! ```

use super::limits;
use super::reply::{Refusal, Reply};
use super::request::{self, Method, Request};
use crate::stream::Stream;
use blkmq::Instant;
use rustix::event::PollFlags;
use rustix::net::{Shutdown, shutdown};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};

/// The maximum number of bytes read at a time.
const CHUNK: usize = 4 << 10;

#[derive(Debug)]
pub(super) struct Connection {
    stream: Stream,
    /// The number of the connection, which is never reused.
    pub(super) number: u64,
    state: State,
    /// The time at which it is closed at the latest; `None` while a change is in progress.
    pub(super) deadline: Option<Instant>,
    is_open: Arc<()>,
}

#[derive(Debug)]
enum State {
    /// Bytes of its request so far.
    Hearing(Vec<u8>),
    /// A change for it is in progress.
    Waiting,
    /// Its answer, and the number of bytes sent.
    Telling(Vec<u8>, usize),
    /// The answer has been sent. Further bytes are discarded: closing the socket with unread bytes would reset the
    /// connection, and the client could lose the answer.
    Leaving,
}

/// The outcome of an event.
#[derive(Debug)]
pub(super) enum Step {
    /// The connection continues.
    Stay,
    /// The request must be answered.
    Asked(Request),
    /// The connection has ended.
    Over,
}

impl Connection {
    /// # Errors
    /// If the socket has failed.
    pub(super) fn new(stream: Stream, number: u64, now: Instant) -> io::Result<Self> {
        stream.prepare()?;
        let deadline = Some(now + limits::REQUEST);
        Ok(Self {
            stream,
            number,
            state: State::Hearing(Vec::new()),
            deadline,
            is_open: Arc::default(),
        })
    }

    /// The name of the client for the log.
    pub(super) fn client(&self) -> String {
        self.stream.identity().to_string()
    }

    /// A weak reference, which cannot be upgraded once the connection has ended.
    pub(super) fn watch(&self) -> Weak<()> {
        Arc::downgrade(&self.is_open)
    }

    /// Returns whether the request has not arrived completely.
    pub(super) fn is_hearing(&self) -> bool {
        matches!(self.state, State::Hearing(_))
    }

    /// The events to wait for.
    pub(super) fn interest(&self) -> PollFlags {
        match self.state {
            State::Hearing(_) | State::Leaving => PollFlags::IN,
            State::Waiting => PollFlags::RDHUP,
            State::Telling(..) => PollFlags::OUT,
        }
    }

    /// Handles an event of the socket.
    pub(super) fn step(&mut self, now: Instant) -> Step {
        match &self.state {
            State::Hearing(_) => self.hear(now),
            // A waiting client sends nothing: it has disconnected, or there is an error.
            State::Waiting => Step::Over,
            State::Telling(..) => self.tell(now),
            State::Leaving => self.leave(),
        }
    }

    fn hear(&mut self, now: Instant) -> Step {
        let State::Hearing(heard) = &mut self.state else { return Step::Stay };
        let mut chunk = [0; CHUNK];
        match self.stream.read(&mut [IoSliceMut::new(&mut chunk)]) {
            Ok(0) => return Step::Over,
            Ok(read) => heard.extend_from_slice(&chunk[..read]),
            Err(error) if is_passing(&error) => return Step::Stay,
            Err(_) => return Step::Over,
        }
        match request::parse(heard) {
            Ok(None) => Step::Stay,
            Ok(Some(request)) => {
                (self.state, self.deadline) = (State::Waiting, None);
                Step::Asked(request)
            }
            Err(refusal) => self.answer(refusal.into(), Method::Get, now),
        }
    }

    /// Begins to send an answer.
    pub(super) fn answer(&mut self, reply: Reply, method: Method, now: Instant) -> Step {
        self.state = State::Telling(reply.bytes(method != Method::Head), 0);
        self.deadline = Some(now + limits::ANSWER);
        self.tell(now)
    }

    /// Handles the end of the connection's time. A client that has begun a request gets the reason.
    pub(super) fn expire(&mut self, now: Instant) -> Step {
        match &self.state {
            State::Hearing(heard) if !heard.is_empty() => {
                let why = Refusal::new(408, "the request took too long");
                self.answer(why.into(), Method::Get, now)
            }
            _ => Step::Over,
        }
    }

    fn tell(&mut self, now: Instant) -> Step {
        let State::Telling(bytes, sent) = &mut self.state else { return Step::Stay };
        while *sent < bytes.len() {
            match self.stream.write(&[IoSlice::new(&bytes[*sent..])]) {
                Ok(0) => return Step::Over,
                Ok(written) => *sent += written,
                Err(error) if is_passing(&error) => return Step::Stay,
                Err(_) => return Step::Over,
            }
        }
        if shutdown(&self.stream, Shutdown::Write).is_err() {
            return Step::Over;
        }
        (self.state, self.deadline) = (State::Leaving, Some(now + limits::FAREWELL));
        self.leave()
    }

    fn leave(&mut self) -> Step {
        let mut chunk = [0; CHUNK];
        match self.stream.read(&mut [IoSliceMut::new(&mut chunk)]) {
            Ok(0) => Step::Over,
            Ok(_) => Step::Stay,
            Err(error) if is_passing(&error) => Step::Stay,
            Err(_) => Step::Over,
        }
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
