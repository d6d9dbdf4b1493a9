//! [`StillHeld`]: I/Os that did not end during a limited wait for the end of a reactor or a service.

use blkmq_core::Instant;
use blkmq_engine::{Outstanding, Queue};
use std::fmt;

/// The most requests that the report names.
const NAMED: usize = 8;

/// The time was over before all I/Os ended.
#[derive(Clone, Debug)]
pub struct StillHeld {
    /// The oldest requests of the whole queue, up to eight.
    pub oldest: Vec<Outstanding>,
    /// The number of requests of the whole queue that have not ended. 0 if a client holds the I/Os back for the limits
    /// of their groups or has not flushed them, or if the call came from a thread of the reactor itself.
    pub requests: usize,
    /// The time of the report.
    pub at: Instant,
}

impl StillHeld {
    pub(crate) fn of<P: Send + 'static>(queue: &Queue<P>, at: Instant) -> Self {
        let mut oldest = queue.outstanding(at, usize::MAX);
        let requests = oldest.len();
        oldest.truncate(NAMED);
        Self { oldest, requests, at }
    }
}

impl fmt::Display for StillHeld {
    /// One line, plus one for each named request; no newline at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.requests {
            0 => f.write_str("the clients have not ended; no request is in the queue"),
            1 => f.write_str("1 request has not ended:"),
            requests => write!(f, "{requests} requests have not ended, the oldest first:"),
        }?;
        self.oldest.iter().try_for_each(|one| write!(f, "\n  {}", one.at(self.at)))
    }
}

impl std::error::Error for StillHeld {}
