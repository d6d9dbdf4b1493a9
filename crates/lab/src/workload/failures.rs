//! The failures of one thread: I/Os that failed, and I/Os that were given up.

use super::Direction;
use blkmq_core::IoError;
use std::fmt;

/// I/Os that failed. They are in no other figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Failures {
    /// The number of failed I/Os, flushes among them.
    pub count: u64,
    /// The first one that came back.
    pub first: Option<Failed>,
}

/// An I/O that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failed {
    /// Its direction; `None` for a flush.
    pub direction: Option<Direction>,
    /// Its first byte on the device. Not known where no times are taken (`gtod_reduce`).
    pub offset: Option<u64>,
    /// Its length in bytes.
    pub bytes: u64,
    /// The error.
    pub error: IoError,
}

impl Failures {
    pub(super) fn note(&mut self, failed: Failed) {
        self.count += 1;
        self.first.get_or_insert(failed);
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { direction, offset, bytes, error } = *self;
        match direction {
            None => f.write_str("a flush")?,
            Some(direction) => {
                let name = match direction {
                    Direction::Read => "read",
                    Direction::Write => "write",
                    Direction::Trim => "trim",
                };
                write!(f, "a {name} of {bytes} bytes")?;
            }
        }
        if let (Some(offset), Some(_)) = (offset, direction) {
            write!(f, " at offset {offset}")?;
        }
        let text = error.to_string();
        // The text of an error without a name is its number.
        if text.ends_with(|c: char| c.is_ascii_digit()) {
            write!(f, ": {text}")
        } else {
            write!(f, ": {text} (errno {})", error.0)
        }
    }
}

/// The I/Os of a thread that did not end when its time was over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Unfinished {
    /// I/Os in flight when the stall was noticed.
    pub outstanding: u32,
    /// Of these, cancelled before they reached the device.
    pub cancelled: u32,
    /// Of these, never given back: the thread ended without them.
    pub abandoned: u32,
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { outstanding, cancelled, abandoned } = self;
        write!(f, "{outstanding} I/Os did not end with the runtime: {cancelled} cancelled")?;
        write!(f, ", {abandoned} never came back")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_is_kept_and_says_what_where_and_why() {
        let mut failures = Failures::default();
        let write = Failed {
            direction: Some(Direction::Write),
            offset: Some(8192),
            bytes: 4096,
            error: IoError::NO_SPACE,
        };
        failures.note(write);
        failures.note(Failed { error: IoError::IO, ..write });
        let text = failures.first.expect("two were noted").to_string();
        assert_eq!(
            (failures.count, text.as_str()),
            (2, "a write of 4096 bytes at offset 8192: no space (errno 28)")
        );
        let elsewhere = Failed { offset: None, error: IoError(30), ..write };
        assert_eq!(elsewhere.to_string(), "a write of 4096 bytes: errno 30");
        let flush = Failed { direction: None, error: IoError::IO, ..write };
        assert_eq!(flush.to_string(), "a flush: I/O error (errno 5)");
    }
}
