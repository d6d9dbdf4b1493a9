//! The messages from the accepting thread to a worker.
//!
//! A mutex around a list, and an eventfd that the worker watches. It is used once for each connection, but never for an
//! I/O.

use crate::guest::Guest;
use crate::stream::Stream;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

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
