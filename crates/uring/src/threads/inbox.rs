//! [`Inbox`]: the requests that threads have done, on their way back to a hardware queue.

use crate::request::{Request, Step};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

/// A request that a thread is done with, and how far it came: never [`Step::Again`].
pub(super) type Done = (Request, Step);

/// The requests that are done, and a descriptor that is readable while there are any.
pub(super) struct Inbox {
    /// The bell is rung and emptied under the lock: it is rung while there is something, and at no other time.
    done: Mutex<Vec<Done>>,
    bell: OwnedFd,
}

impl Inbox {
    /// # Errors
    /// Without a descriptor.
    pub(super) fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { done: Mutex::default(), bell })
    }

    /// For threads of the pool.
    pub(super) fn put(&self, done: Done) {
        let mut all = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if all.is_empty() {
            // The counter has room: it is at 0.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
        all.push(done);
    }

    /// Moves everything that is done into `out`.
    pub(super) fn take(&self, out: &mut Vec<Done>) {
        let mut all = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.is_empty() {
            let _ = rustix::io::read(&self.bell, &mut [0; 8][..]);
            out.append(&mut all);
        }
    }

    /// Sleeps until something is done.
    pub(super) fn wait(&self) {
        // Whatever else ends the sleep: the caller looks again.
        let _ = poll(&mut [PollFd::new(&self.bell, PollFlags::IN)], None);
    }

    /// Readable while there is something to take.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
