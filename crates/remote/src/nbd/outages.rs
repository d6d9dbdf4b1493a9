//! [`Outages`]: the connections that were lost, for users.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The connections that were lost.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outages {
    /// Connections lost.
    pub lost: u64,
    /// Connections made anew.
    pub restored: u64,
    /// The reason of the last loss, or of the last try that failed.
    pub last: Option<String>,
    /// Requests that failed because their connection was lost at each of them, again and again.
    pub given_up: u64,
    /// The last one of these: its operation, length and place.
    pub last_given_up: Option<String>,
}

/// [`Outages`], written by all connections. The lock is touched only when a connection is lost or made.
#[derive(Debug, Default)]
pub(crate) struct Log(Mutex<Outages>);

impl Log {
    /// A connection is lost, or a try to make one has failed.
    pub(crate) fn note(&self, is_loss: bool, why: &dyn fmt::Display) {
        let mut outages = self.lock();
        outages.lost += u64::from(is_loss);
        outages.last = Some(why.to_string());
    }

    /// A request has failed because its connection was lost again and again.
    pub(crate) fn give_up(&self, request: String) {
        let mut outages = self.lock();
        outages.given_up += 1;
        outages.last_given_up = Some(request);
    }

    /// A lost connection is made anew.
    pub(crate) fn end(&self) {
        self.lock().restored += 1;
    }

    /// Connections made anew.
    pub(crate) fn restored(&self) -> u64 {
        self.lock().restored
    }

    pub(crate) fn read(&self) -> Outages {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Outages> {
        // Counts are right after each step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
