//! I/Os that were not done, or may not have been: the errors of reactors and of blocking calls, the answers of a
//! reactor, and I/Os that did not end during a limited wait for the end of a reactor or a service. Data only.

use blkmq_core::Instant;
use blkmq_engine::{Completion, Io, Outstanding, Queue, Refusal, Refused, Unsubmitted};
use std::fmt;

/// Why an I/O never reached the device, or was not returned by it.
#[non_exhaustive]
pub enum SubmitError<P> {
    /// The queue refused it; never for lack of credit.
    Refused(Refused<P>),
    /// The reactor was gone before it pushed the I/O. The I/O is unchanged, and was not done.
    Closed(Unsubmitted<P>),
    /// A device panicked while it had the I/O and did not give it back, or the reactor panicked a second time, or its
    /// runtime was shut down. The I/O may or may not have been done. Its payload is not returned, because a device may
    /// still write to it.
    Lost {
        /// The cookie of the [`Io`].
        cookie: u64,
    },
}

/// Why an I/O was not done, or may not have been, without the I/O itself: for errors that outlive it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SubmitErrorKind {
    /// The queue did not take it.
    Refused(Refusal),
    /// The reactor was dropped before it pushed the I/O.
    Closed,
    /// A device panicked while it had the I/O, or the reactor's runtime was shut down.
    Lost,
}

impl<P> SubmitError<P> {
    /// The reason without the I/O.
    #[must_use]
    pub fn why(&self) -> SubmitErrorKind {
        match self {
            Self::Refused(refused) => SubmitErrorKind::Refused(refused.why),
            Self::Closed(_) => SubmitErrorKind::Closed,
            Self::Lost { .. } => SubmitErrorKind::Lost,
        }
    }

    /// The I/O; `None` if it may have been done.
    pub fn into_io(self) -> Option<Io<P>> {
        match self {
            Self::Refused(refused) => Some(refused.into_io()),
            Self::Closed(io) => Some(io.into_io()),
            Self::Lost { .. } => None,
        }
    }
}

impl<P> fmt::Debug for SubmitError<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SubmitError({:?})", self.why())
    }
}

impl<P> fmt::Display for SubmitError<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refused) => refused.fmt(f),
            Self::Closed(_) => f.write_str("the reactor was dropped; the I/O was not done"),
            Self::Lost { cookie } => {
                write!(f, "the reactor ended while it had I/O {cookie}; it may have been done")
            }
        }
    }
}

impl<P> std::error::Error for SubmitError<P> {}

/// The outcome of an I/O that a reactor took. [`Completion::result`] says whether the device succeeded.
pub type Answer<P> = Result<Completion<P>, SubmitError<P>>;

/// Why a reactor takes no I/O at present.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// The inbox is full, or other I/Os are in line; or a full inbox of I/Os of the same group and direction waits for
    /// a limit. Wait for an answer, then try again.
    #[error("all {most} places of the reactor's inbox are taken; wait for an answer")]
    Full {
        /// The most I/Os that the inbox holds, in addition to the I/Os in flight.
        most: u32,
    },
    /// The reactor was dropped.
    #[error("the reactor was dropped")]
    Closed,
}

/// An I/O that a reactor did not take, with its callback if it was submitted with one.
pub struct NotTaken<P, F = ()> {
    pub(super) io: Unsubmitted<P>,
    pub(super) then: F,
    /// The reason.
    pub why: Unavailable,
}

impl<P, F> NotTaken<P, F> {
    /// The I/O, unchanged.
    pub fn into_io(self) -> Io<P> {
        self.io.into_io()
    }

    /// The I/O, unchanged, and the callback, which was not called.
    pub fn into_parts(self) -> (Io<P>, F) {
        (self.io.into_io(), self.then)
    }
}

impl<P, F> fmt::Debug for NotTaken<P, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotTaken").field("why", &self.why).finish_non_exhaustive()
    }
}

impl<P, F> fmt::Display for NotTaken<P, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.why.fmt(f)
    }
}

impl<P, F> std::error::Error for NotTaken<P, F> {}

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
