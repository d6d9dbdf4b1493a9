//! [`Running`]: a thread of the server with its inbox, and [`Devices`]: the threads of block devices, which may be
//! added and removed.

use crate::inbox::{Inbox, Message};
use std::io;
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
