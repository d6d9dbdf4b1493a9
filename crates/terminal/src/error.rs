//! The refusal of a command line or a file. Each is printed as one line; several faults of the input are a line each.

use std::fmt;

/// Faults that are named: a file that is no job file has one in every line.
const MOST: usize = 20;

/// A refusal of the user's input. The message names the accepted input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UsageError {
    message: String,
    /// Further faults.
    others: Vec<String>,
}

impl UsageError {
    /// A message that names the refused input and the accepted ones.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), others: Vec::new() }
    }

    /// All of these faults, each of them once, in their order, and of many the first; `None` if there are none.
    pub fn all(faults: Vec<Self>) -> Option<Self> {
        let mut messages: Vec<String> = Vec::new();
        for message in
            faults.into_iter().flat_map(|it| std::iter::once(it.message).chain(it.others))
        {
            if !messages.contains(&message) {
                messages.push(message);
            }
        }
        let more = messages.len().saturating_sub(MOST);
        messages.truncate(MOST);
        messages.extend((more > 0).then(|| format!("and {more} more faults")));
        let mut messages = messages.into_iter();
        Some(Self { message: messages.next()?, others: messages.collect() })
    }

    /// This error, behind the place where the input was written.
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
