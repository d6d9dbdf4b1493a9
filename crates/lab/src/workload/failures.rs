//! The failures of one thread: I/Os that failed, I/Os that were given up, and an I/O that took too long.

use super::Direction;
use blkmq_core::{IoError, Nanos};
use std::fmt;

/// Failed I/Os. No other figure includes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Failures {
    /// The number of failed I/Os, flushes among them.
    pub count: u64,
    /// The first failed I/O that completed.
    pub first: Option<Failed>,
}

/// An I/O that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failed {
    /// Its direction; `None` for a flush.
    pub direction: Option<Direction>,
    /// Its first byte on the device; `None` if no times are taken (`gtod_reduce`).
    pub offset: Option<u64>,
    /// Its length in bytes.
    pub bytes: u64,
    /// The error.
    pub error: IoError,
}

/// `continue_on_error`: the failed I/Os that do not end a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnError {
    /// None of them.
    #[default]
    End,
    /// Reads.
    Reads,
    /// Everything else: as in fio, trims and flushes count as writes.
    Writes,
    /// All of them.
    All,
}

/// EILSEQ, which fio has for wrong contents.
const WRONG_CONTENTS: IoError = IoError(84);

impl OnError {
    /// Each with fio's words for it, the one that fio documents first. Wrong contents end a job only under
    /// `verify_fatal`, so `verify` has nothing to forgive.
    pub const NAMES: [(Self, &'static str); 8] = [
        (Self::End, "none"),
        (Self::Reads, "read"),
        (Self::Writes, "write"),
        (Self::All, "io"),
        (Self::End, "verify"),
        (Self::All, "all"),
        (Self::End, "0"),
        (Self::All, "1"),
    ];

    /// Returns whether a job continues behind an I/O of `direction` (`None` for a flush) that failed with `error`. As in
    /// fio, only EIO and EILSEQ are forgiven.
    #[must_use]
    pub fn forgives(self, direction: Option<Direction>, error: IoError) -> bool {
        let is_among = match self {
            Self::End => false,
            Self::Reads => direction == Some(Direction::Read),
            Self::Writes => direction != Some(Direction::Read),
            Self::All => true,
        };
        is_among && matches!(error, IoError::IO | WRONG_CONTENTS)
    }
}

/// An I/O that took longer than `max_latency`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Late {
    /// Its direction.
    pub direction: Direction,
    /// From the decision to issue it until its completion.
    pub took: Nanos,
    /// The longest time that it may take.
    pub most: Nanos,
}

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { direction, took, most } = self;
        write!(f, "a {} took {took}, max_latency is {most}", direction.name())
    }
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
    /// Of these, never returned: the thread ended without them.
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

    #[test]
    fn errors_of_the_device_are_forgiven_by_direction() {
        use Direction::{Read, Trim, Write};
        let forgiven = |on: OnError| {
            [Some(Read), Some(Write), Some(Trim), None].map(|of| on.forgives(of, IoError::IO))
        };
        assert_eq!(forgiven(OnError::End), [false; 4]);
        assert_eq!(forgiven(OnError::Reads), [true, false, false, false]);
        assert_eq!(forgiven(OnError::Writes), [false, true, true, true]);
        assert_eq!(forgiven(OnError::All), [true; 4]);
        assert!(!OnError::All.forgives(Some(Read), IoError::NO_SPACE), "it would fail for ever");
    }
}
