//! Types of results of a reactor: answers, and I/Os that it did not take. Data only.

use crate::submit_error::SubmitError;
use blkmq_engine::{Completion, Io, Unsubmitted};
use std::fmt;

/// The outcome of an I/O that a reactor took. [`Completion::result`] says whether the device succeeded.
pub type Answer<P> = Result<Completion<P>, SubmitError<P>>;

/// Why a reactor takes no I/O at present.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Unavailable {
    /// The inbox is full, or other I/Os are in line; or a full inbox of I/Os of the same group and direction waits for
    /// a limit. Wait for an answer, then try again.
    Full {
        /// The most I/Os that the inbox holds, in addition to the I/Os in flight.
        most: u32,
    },
    /// The reactor was dropped.
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
