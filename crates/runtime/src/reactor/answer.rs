//! The values that a reactor returns: answers, and I/Os that it did not take. No behaviour.

use blkmq_engine::{Completion, Io, Refusal, Refused, Unsubmitted};
use std::fmt;

/// The end of an I/O that a reactor took. Whether the device succeeded is in [`Completion::result`].
pub type Answer<P> = Result<Completion<P>, SubmitError<P>>;

/// Why an I/O never reached the device, or did not come back from it.
pub enum SubmitError<P> {
    /// The queue refused it; never for want of credit.
    Refused(Refused<P>),
    /// The reactor was gone before it pushed the I/O. The I/O is unchanged, and was not done.
    Closed(Unsubmitted<P>),
    /// A device panicked while it had the I/O and did not give it back, or the reactor panicked again after that, or its
    /// runtime was shut down. The I/O may or may not have been done, and its payload does not come back: a device may
    /// still write to it.
    Lost {
        /// The cookie of the [`Io`].
        cookie: u64,
    },
}

/// Why an I/O was not done, or may not have been, without the I/O itself: for errors that outlive it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubmitErrorKind {
    /// The queue did not take it.
    Refused(Refusal),
    /// The reactor was dropped before it pushed the I/O.
    Closed,
    /// A device panicked while it had the I/O, or the reactor's runtime was shut down.
    Lost,
}

impl<P> SubmitError<P> {
    /// The reason as a plain type.
    #[must_use]
    pub fn why(&self) -> SubmitErrorKind {
        match self {
            Self::Refused(refused) => SubmitErrorKind::Refused(refused.why),
            Self::Closed(_) => SubmitErrorKind::Closed,
            Self::Lost { .. } => SubmitErrorKind::Lost,
        }
    }

    /// The I/O, if it was not done.
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

/// Why a reactor takes no I/O at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unavailable {
    /// Its inbox is full, or other I/Os are in line; or as many I/Os as an inbox has places wait for a limit of the same group,
    /// in the same direction. Wait for an answer, then try again.
    Full {
        /// I/Os that the inbox holds, in addition to those in flight.
        most: u32,
    },
    /// It was dropped.
    Closed,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full { most } => {
                write!(f, "all {most} places of the reactor's inbox are taken; wait for an answer")
            }
            Self::Closed => f.write_str("the reactor was dropped"),
        }
    }
}

impl std::error::Error for Unavailable {}

/// An I/O that a reactor did not take, with the callback that it was submitted with.
pub struct NotTaken<P, F = ()> {
    pub(super) io: Unsubmitted<P>,
    pub(super) then: F,
    /// Why.
    pub why: Unavailable,
}

impl<P, F> NotTaken<P, F> {
    /// The I/O, unchanged.
    pub fn into_io(self) -> Io<P> {
        self.io.into_io()
    }

    /// The I/O, unchanged, and the callback, uncalled.
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
