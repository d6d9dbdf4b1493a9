//! [`Failures`]: logs the failed I/Os of a device.
//!
//! Clients get every failure; the operator of the device is notified here, at most once a second.

use crate::rarely::Rarely;
use blkmq::{Instant, IoError};
use std::fmt;
use std::io;
use std::sync::{Mutex, PoisonError};

/// The failures of a device. Workers share it, and lock it only when an I/O has failed.
#[derive(Debug, Default)]
pub(crate) struct Failures(Mutex<Rarely>);

/// An I/O that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Failure<'a> {
    pub(crate) device: &'a str,
    pub(crate) export: &'a str,
    pub(crate) operation: &'static str,
    /// The offset on the device in bytes.
    pub(crate) offset: u64,
    pub(crate) error: IoError,
}

impl Failures {
    /// Logs the failure, or counts it for the next line.
    pub(crate) fn log(&self, now: Instant, failure: &Failure<'_>) {
        let mut rarely = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Failure { device, export, operation, offset, error } = *failure;
        rarely.log(now, |before| {
            tracing::error!(
                before,
                device,
                export,
                operation,
                offset,
                errno = error.0,
                "{failure}"
            );
        });
    }
}

impl fmt::Display for Failure<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = io::Error::from_raw_os_error(self.error.0.into());
        write!(f, "the device failed an I/O: {why}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_why_in_the_words_of_the_system() {
        let failure = Failure {
            device: "disk",
            export: "gold",
            operation: "read",
            offset: 4096,
            error: IoError::NO_SPACE,
        };
        let text = failure.to_string();
        assert!(text.contains("No space left") && text.contains("os error 28"), "{text}");
    }
}
