//! Modules that the programs of blkmq share: parsing of values and layout of text.
//!
//! [`program::run`] is the frame of a program, [`Page`](page::Page) the form of its help. [`units`], [`limits`],
//! [`scheduler`] and [`table`] read values as users write them, and [`paper`] lays text out for a terminal. Each program
//! defines its own commands.

#![forbid(unsafe_code)]

pub mod bounded;
pub mod completions;
pub mod limits;
pub mod man;
pub mod output;
pub mod page;
pub mod paper;
pub mod program;
pub mod scheduler;
pub mod table;
pub mod units;

pub use output::OutputError;
pub use scheduler::SchedulerChoice;
use std::fmt;

/// The most faults that are reported: a file that is not a job file has a fault in every line.
const MOST_FAULTS: usize = 20;

/// A refusal of the user's input. The message names the accepted input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UsageError {
    message: String,
    /// Further faults.
    others: Vec<String>,
}

impl UsageError {
    /// Creates an error whose message names the refused input and the accepted inputs.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), others: Vec::new() }
    }

    /// Joins `faults` in their order, without duplicates and up to a maximum. Returns `None` if there are no faults.
    pub fn all(faults: Vec<Self>) -> Option<Self> {
        let mut messages: Vec<String> = Vec::new();
        for message in
            faults.into_iter().flat_map(|it| std::iter::once(it.message).chain(it.others))
        {
            if !messages.contains(&message) {
                messages.push(message);
            }
        }
        let more = messages.len().saturating_sub(MOST_FAULTS);
        messages.truncate(MOST_FAULTS);
        messages.extend((more > 0).then(|| format!("and {more} more faults")));
        let mut messages = messages.into_iter();
        Some(Self { message: messages.next()?, others: messages.collect() })
    }

    /// Prefixes this error with the place where the input was written.
    pub fn at(self, place: impl fmt::Display) -> Self {
        let at = |message: String| format!("{place}: {message}");
        Self { message: at(self.message), others: self.others.into_iter().map(at).collect() }
    }
}

impl fmt::Display for UsageError {
    /// Prints one line for each fault, even if the arguments contain line breaks.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, message) in std::iter::once(&self.message).chain(&self.others).enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            for c in message.chars() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_stays_on_one_line() {
        let error = UsageError::new("a\nb\tc").at("place");
        assert_eq!(error.to_string(), "place: a\\nb\\tc");
    }
}
