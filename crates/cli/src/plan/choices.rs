//! Choices other than jobs, devices and schedulers, each with its words.

use crate::report::Format;
use blkmq_lab::workload::DedupeMode;
use blkmq_terminal::UsageError;
use std::fmt;
use std::mem::discriminant;

/// A closed set of words.
pub trait Choice: Copy + PartialEq + 'static {
    /// Every member with its word.
    const WORDS: &'static [(&'static str, Self)];

    /// Returns the word for this member.
    fn word(self) -> &'static str {
        let found = Self::WORDS.iter().find(|(_, member)| *member == self);
        found.map(|(word, _)| *word).expect("every member has a word")
    }

    /// The member that `word` selects.
    ///
    /// # Errors
    /// If there is none; the message lists all words.
    fn from_word(word: &str) -> Result<Self, UsageError> {
        let found = Self::WORDS.iter().find(|(known, _)| *known == word);
        found.map(|(_, member)| *member).ok_or_else(|| {
            let words = Vec::from_iter(Self::WORDS.iter().map(|(word, _)| *word)).join(", ");
            UsageError::new(format!("'{word}' is none of the choices; accepted: {words}"))
        })
    }
}

/// The threads that move requests from the elevator to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PumpChoice {
    /// The threads that submit and wait.
    Inline,
    /// Pump threads, one per hardware queue.
    Threads,
}

/// How much merging is tried; sysfs's `nomerges`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Nomerges {
    /// Everything (0).
    All,
    /// Only merges that cost no search (1).
    Simple,
    /// Nothing (2).
    None,
}

/// How many elevators a queue has, where the user overrules the scheduler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScopeChoice {
    /// One for the whole queue.
    Queue,
    /// One for each hardware queue.
    HwQueue,
}

/// The level of statistics about groups, and the time of counting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StatsChoice {
    /// Nothing.
    Off,
    /// I/Os, their bytes and times.
    Basic,
    /// Everything.
    Full,
    /// Everything, counted during the run of the elevator.
    Inline,
}

impl Choice for StatsChoice {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("off", Self::Off),
        ("basic", Self::Basic),
        ("full", Self::Full),
        ("inline", Self::Inline),
    ];
}

impl Choice for PumpChoice {
    const WORDS: &'static [(&'static str, Self)] =
        &[("inline", Self::Inline), ("threads", Self::Threads)];
}

impl Choice for Nomerges {
    const WORDS: &'static [(&'static str, Self)] =
        &[("0", Self::All), ("1", Self::Simple), ("2", Self::None)];
}

impl Choice for ScopeChoice {
    const WORDS: &'static [(&'static str, Self)] =
        &[("queue", Self::Queue), ("hwqueue", Self::HwQueue)];
}

impl Choice for DedupeMode {
    const WORDS: &'static [(&'static str, Self)] =
        &[("repeat", Self::Repeat), ("working_set", Self::WorkingSet)];
}

impl Choice for Format {
    const WORDS: &'static [(&'static str, Self)] = &Self::ALL;

    /// Each version of the terse format has its own word.
    fn word(self) -> &'static str {
        let is_same = |other: &Self| discriminant(other) == discriminant(&self);
        let found = Self::WORDS.iter().find(|(_, member)| is_same(member));
        found.map(|(word, _)| *word).expect("every format has a word")
    }
}

macro_rules! print_as_word {
    ($($choice:ty),*) => {$(
        impl fmt::Display for $choice {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.word())
            }
        }
    )*};
}
print_as_word!(PumpChoice, Nomerges, ScopeChoice, StatsChoice);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_choose_and_print() {
        assert_eq!(PumpChoice::from_word("threads"), Ok(PumpChoice::Threads));
        assert_eq!(Nomerges::Simple.to_string(), "1");
        let message = PumpChoice::from_word("thread").expect_err("no such word").to_string();
        assert_eq!(message, "'thread' is none of the choices; accepted: inline, threads");
    }
}
