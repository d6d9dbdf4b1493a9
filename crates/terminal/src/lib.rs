//! Modules that the programs of blkmq share: parsing of values and layout of text.
//!
//! [`program::run`] is the frame of a program, [`Page`](page::Page) the form of its help. [`units`], [`limits`],
//! [`scheduler`] and [`table`] read values as users write them, [`bounded`] reads files, and [`paper`] lays text out
//! for a terminal. Each program defines its own commands.

#![forbid(unsafe_code)]

pub mod page;
pub mod paper;
pub mod program;
pub mod scheduler;
pub mod table;
pub mod units;

pub use page::{completions, man};
pub use program::output::{self, OutputError};
pub use scheduler::SchedulerChoice;
pub use units::limits;

use std::fmt;

/// The most faults that are reported: a file that is not a job file has a fault in every line.
const MOST_FAULTS: usize = 20;

/// A refusal of the user's input. The message names the accepted input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UsageError {
    /// At least one.
    faults: Vec<String>,
}

impl UsageError {
    /// Creates an error whose message names the refused input and the accepted inputs.
    pub fn new(message: impl fmt::Display) -> Self {
        Self { faults: vec![message.to_string()] }
    }

    /// Joins `faults` in their order, without duplicates and up to a maximum. Returns `None` if there are no faults.
    pub fn all(faults: Vec<Self>) -> Option<Self> {
        let mut all: Vec<String> = Vec::new();
        for fault in faults.into_iter().flat_map(|it| it.faults) {
            if !all.contains(&fault) {
                all.push(fault);
            }
        }
        let more = all.len().saturating_sub(MOST_FAULTS);
        all.truncate(MOST_FAULTS);
        all.extend((more > 0).then(|| format!("and {more} more faults")));
        (!all.is_empty()).then_some(Self { faults: all })
    }

    /// Prefixes this error with the place where the input was written.
    pub fn at(self, place: impl fmt::Display) -> Self {
        let at = |fault: String| format!("{place}: {fault}");
        Self { faults: self.faults.into_iter().map(at).collect() }
    }
}

impl fmt::Display for UsageError {
    /// Prints one line for each fault, even if the arguments contain line breaks.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, fault) in self.faults.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            for c in fault.chars() {
                if c.is_control() {
                    write!(f, "{}", c.escape_default())?;
                } else {
                    write!(f, "{c}")?;
                }
            }
        }
        Ok(())
    }
}

impl std::error::Error for UsageError {}

pub mod bounded {
    //! Reads files named on a command line, up to a maximum length. It ignores the length that the file system reports:
    //! pipes report none, and `/dev/zero` reports 0.

    use crate::UsageError;
    use std::fs::File;
    use std::io::Read;

    /// Reads the file at `path`, which holds a `kind` of at most `most` bytes.
    ///
    /// # Errors
    /// If the file cannot be read or is longer. At most `most` bytes are held in memory.
    pub fn read(path: &str, kind: &str, most: u64) -> Result<Vec<u8>, UsageError> {
        let refuse = |what: String| UsageError::new(what).at(path);
        let file = File::open(path).map_err(|e| refuse(e.to_string()))?;
        if file.metadata().is_ok_and(|it| it.is_dir()) {
            return Err(refuse(format!("a directory, not {kind}")));
        }
        up_to(file, path, kind, most)
    }

    /// Reads standard input, which holds a `kind` of at most `most` bytes.
    ///
    /// # Errors
    /// See [`read`].
    pub fn standard_input(kind: &str, most: u64) -> Result<Vec<u8>, UsageError> {
        up_to(std::io::stdin().lock(), "standard input", kind, most)
    }

    fn up_to(from: impl Read, name: &str, kind: &str, most: u64) -> Result<Vec<u8>, UsageError> {
        let refuse = |what: String| UsageError::new(what).at(name);
        let mut bytes = Vec::new();
        from.take(most + 1).read_to_end(&mut bytes).map_err(|e| refuse(e.to_string()))?;
        if bytes.len() as u64 > most {
            let most = most >> 20;
            return Err(refuse(format!("too long for {kind}; accepted: up to {most} MiB")));
        }
        Ok(bytes)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        #[cfg(unix)]
        fn a_file_without_end_is_refused() {
            let error = read("/dev/zero", "a job file", 1 << 20).expect_err("it has no end");
            let expected = "/dev/zero: too long for a job file; accepted: up to 1 MiB";
            assert_eq!(error.to_string(), expected);
            assert!(read("/dev/null", "a job file", 1 << 20).expect("it can be read").is_empty());
        }

        #[test]
        fn what_cannot_be_read_is_named() {
            let error = read("/no/such/file", "a job file", 1).expect_err("it is not there");
            assert!(error.to_string().starts_with("/no/such/file: "), "{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_stays_on_one_line() {
        let error = UsageError::new("a\nb\tc").at("place");
        assert_eq!(error.to_string(), "place: a\\nb\\tc");
    }
}
