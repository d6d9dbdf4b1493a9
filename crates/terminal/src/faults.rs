//! Faults of a configuration file, each with its line and column.

use std::fmt;
use std::ops::Range;

/// The faults found so far, sorted by position once the file has been read.
#[derive(Debug, Default)]
pub struct Faults(Vec<(usize, String)>);

impl Faults {
    /// Adds the fault `what` of the text at `at`.
    pub fn add(&mut self, at: &Range<usize>, what: impl fmt::Display) {
        self.0.push((at.start, what.to_string()));
    }

    /// Returns whether no fault was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of faults.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// A line `PATH:LINE:COLUMN: FAULT` for each fault, from the top of the file to its end. Columns count characters,
    /// from 1.
    pub fn lines(mut self, path: &str, text: &str) -> Vec<String> {
        self.0.sort();
        let line = |(at, what): (usize, String)| {
            let (line, column) = place(text, at);
            format!("{path}:{line}:{column}: {what}")
        };
        self.0.into_iter().map(line).collect()
    }
}

/// The line and column of byte `at`, both counted from 1.
fn place(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |end| end + 1);
    (line, before[start..].chars().count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_have_lines_and_columns_in_characters() {
        let text = "a = 1\n\u{e4}\u{e4} = x\n";
        let mut faults = Faults::default();
        faults.add(&(13..14), "late");
        faults.add(&(0..1), "early");
        faults.add(&(99..100), "beyond");
        let expected = ["f:1:1: early", "f:2:6: late", "f:3:1: beyond"];
        assert_eq!(faults.lines("f", text), expected);
    }
}
