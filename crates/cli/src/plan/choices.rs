//! Choices other than jobs, devices and schedulers, each with its words; and the ways to share an elevator that are
//! compared, which are an access and its modes.

use crate::report::Format;
use blkmq_engine::{Access, DispatchMode, InsertMode, KickMode, MergeMode, Modes};
use blkmq_lab::workload::DedupeMode;
use blkmq_terminal::UsageError;
use blkmq_terminal::spec::{self, Spec};
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

/// A way to share an elevator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccessChoice {
    /// How threads share it.
    pub access: Access,
    /// The explicit modes; the others follow from the access.
    pub modes: Modes,
    /// The text as `--access` accepts it.
    pub text: String,
}

/// The modes that a choice may set in addition to its access.
const MODES: [&str; 4] = ["dispatch", "insert", "merge", "kick"];

impl AccessChoice {
    /// `access` with its default modes.
    pub fn plain(access: Access) -> Self {
        Self { access, modes: Modes::default(), text: access.name().into() }
    }

    /// Reads `--access`: a list in the grammar of [`spec`].
    ///
    /// # Errors
    /// If an access or a mode does not exist, or they are incompatible.
    pub fn parse(text: &str) -> Result<Vec<Self>, UsageError> {
        spec::parse(text)?.iter().map(Self::of).collect()
    }

    fn of(spec: &Spec) -> Result<Self, UsageError> {
        let access = Access::from_name(&spec.name).ok_or_else(|| {
            let names = Access::ALL.map(|(name, _)| name).join(", ");
            UsageError::new(format!("no access '{}'; accepted: {names}", spec.name))
        })?;
        let mut modes = Modes::default();
        for (key, value) in &spec.params {
            set(&mut modes, key, value).map_err(|e| e.at(&spec.name))?;
        }
        let mut choice = Self::plain(access);
        choice.fill(modes)?;
        Ok(choice)
    }

    /// Adopts the modes that are set in `modes` but not here.
    ///
    /// # Errors
    /// If a mode is incompatible with the access.
    pub fn fill(&mut self, modes: Modes) -> Result<(), UsageError> {
        let before = self.modes;
        self.modes = Modes {
            dispatch: before.dispatch.or(modes.dispatch),
            insert: before.insert.or(modes.insert),
            merge: before.merge.or(modes.merge),
            kick: before.kick.or(modes.kick),
        };
        self.modes.settle(self.access).map_err(|e| UsageError::new(e.to_string()))?;
        for (key, (old, new)) in MODES.iter().zip(names(&before).iter().zip(names(&self.modes))) {
            if let (None, Some(name)) = (old, new) {
                let separator = if self.text.contains(':') { ',' } else { ':' };
                self.text.push_str(&format!("{separator}{key}={name}"));
            }
        }
        Ok(())
    }
}

/// The words of the modes, in the order of [`MODES`].
fn names(modes: &Modes) -> [Option<&'static str>; 4] {
    [
        modes.dispatch.map(DispatchMode::name),
        modes.insert.map(InsertMode::name),
        modes.merge.map(MergeMode::name),
        modes.kick.map(KickMode::name),
    ]
}

/// Sets the mode called `key` to `value`.
///
/// # Errors
/// If there is no such mode or value.
pub fn set(modes: &mut Modes, key: &str, value: &str) -> Result<(), UsageError> {
    match key {
        "dispatch" => modes.dispatch = Some(choice(value, &DispatchMode::ALL)?),
        "insert" => modes.insert = Some(choice(value, &InsertMode::ALL)?),
        "merge" => modes.merge = Some(choice(value, &MergeMode::ALL)?),
        "kick" => modes.kick = Some(choice(value, &KickMode::ALL)?),
        _ => {
            let text = format!("no option '{key}'; accepted: {}", MODES.join(", "));
            return Err(UsageError::new(text));
        }
    }
    Ok(())
}

fn choice<M: Copy>(word: &str, all: &[(&'static str, M)]) -> Result<M, UsageError> {
    let found = all.iter().find(|(name, _)| *name == word).map(|(_, mode)| *mode);
    found.ok_or_else(|| {
        let names = Vec::from_iter(all.iter().map(|(name, _)| *name)).join(", ");
        UsageError::new(format!("'{word}' is none of the choices; accepted: {names}"))
    })
}

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

    fn texts(text: &str) -> Vec<String> {
        let choices = AccessChoice::parse(text).expect(text);
        choices.into_iter().map(|choice| choice.text).collect()
    }

    fn refused(text: &str) -> String {
        AccessChoice::parse(text).expect_err(text).to_string()
    }

    #[test]
    fn a_word_with_equals_belongs_to_the_access_before_it() {
        assert_eq!(texts("spin,mutex"), ["spin", "mutex"]);
        assert_eq!(
            texts("spin:merge=skip-when-contended,dispatch=batch,combining,kick=flag"),
            ["spin:dispatch=batch,merge=skip-when-contended", "combining:kick=flag"]
        );
    }

    #[test]
    fn what_does_not_exist_or_go_together_is_told_with_what_does() {
        assert_eq!(refused("rcu"), "no access 'rcu'; accepted: combining, spin, mutex, serialised");
        assert_eq!(
            refused("spin:order=total"),
            "spin: no option 'order'; accepted: dispatch, insert, merge, kick"
        );
        assert_eq!(
            refused("spin:kick=never"),
            "spin: 'never' is none of the choices; accepted: always, flag, coalesced"
        );
        assert_eq!(
            refused("combining:dispatch=one"),
            "this dispatch does not go with access=combining; accepted: total-order"
        );
    }

    #[test]
    fn what_is_asked_of_all_does_not_overrule_what_is_asked_of_one() {
        let mut choices = AccessChoice::parse("spin:dispatch=batch,mutex").expect("accepted");
        let all = Modes { dispatch: Some(DispatchMode::One), ..Modes::default() };
        choices.iter_mut().for_each(|choice| choice.fill(all).expect("it goes with locks"));
        let texts = Vec::from_iter(choices.iter().map(|choice| choice.text.as_str()));
        assert_eq!(texts, ["spin:dispatch=batch", "mutex:dispatch=one"]);
    }
}
