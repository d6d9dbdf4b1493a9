//! Why an I/O was not done, or may not have been: the error of reactors and of blocking calls.

use blkmq_engine::{Io, Refusal, Refused, Unsubmitted};
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
