//! How values of attributes are shown, and which texts are accepted. Numbers are decimal, as in sysfs.

use super::{Permission, Snapshot, Unit};
use crate::plan::Plan;
use crate::reconfiguration::change::ChangeError;
use blkmq_sched::registry;
use std::borrow::Cow;
use std::fmt;
use std::num::IntErrorKind;
use std::ops::RangeInclusive;

impl Row {
    pub(super) fn permission(&self) -> Permission {
        match self.form {
            Form::Said(_) | Form::Number { set: None, .. } => Permission::ReadOnly,
            Form::Number { set: Some(_), .. } | Form::Words(_) => Permission::ReadWrite,
        }
    }

    pub(super) fn read(&self, snapshot: &Snapshot) -> String {
        let plan = &snapshot.plan;
        match self.form {
            Form::Said(said) => said(snapshot),
            Form::Number { get, .. } => get(plan).to_string(),
            Form::Words(words) => match words.shown {
                Shown::Alone => (words.get)(plan).to_string(),
                Shown::AmongAll => among(&(words.accepted)(plan), (words.get)(plan)),
            },
        }
    }

    /// Applies `text`, which has no white space around it.
    pub(super) fn write(&self, plan: &Plan, text: &str) -> Result<Plan, AttributeError> {
        match self.form {
            Form::Said(_) | Form::Number { set: None, .. } => {
                Err(AttributeError::ReadOnly { path: self.path.to_string() })
            }
            Form::Number { get, set: Some(set) } => {
                let number = self.number(plan, &set, get(plan), text)?;
                Ok(changed(plan, number == get(plan), |plan| (set.set)(plan, number)))
            }
            Form::Words(words) => {
                let accepted = (words.accepted)(plan);
                if !accepted.contains(&text) {
                    let (path, text) = (self.path.to_string(), text.to_string());
                    return Err(AttributeError::NotAWord { path, text, accepted });
                }
                Ok((words.set)(plan.clone(), text))
            }
        }
    }

    /// The number in `text`, if it is accepted. The current number is always accepted.
    fn number(
        &self,
        plan: &Plan,
        set: &SetNumber,
        present: u64,
        text: &str,
    ) -> Result<u64, AttributeError> {
        let path = || self.path.to_string();
        let range = (set.range)(plan);
        let range = range.map_err(|why| AttributeError::NotNow { path: path(), why })?;
        let (min, max, step) = (*range.start(), *range.end(), (set.step)(plan));
        let accepted = accepted(min, max, step, self.unit);
        let out_of_range =
            || AttributeError::OutOfRange { path: path(), text: text.to_string(), accepted };
        let number = match parse(text) {
            Ok(number) => u64::try_from(number).map_err(|_| out_of_range())?,
            Err(Garbled::TooLong) => return Err(out_of_range()),
            Err(Garbled::NotANumber) => {
                let text = text.to_string();
                return Err(AttributeError::NotANumber { path: path(), text, accepted });
            }
        };
        let number = match set.edges {
            _ if number == present => return Ok(present),
            Edges::Strict => number,
            Edges::Raise => number.max(min),
            Edges::Lower => number.min(max),
        };
        let is_accepted = range.contains(&number) && number % step == 0;
        is_accepted.then_some(number).ok_or_else(out_of_range)
    }
}

fn changed(plan: &Plan, same: bool, change: impl FnOnce(Plan) -> Plan) -> Plan {
    let plan = plan.clone();
    if same { plan } else { change(plan) }
}

fn among(words: &[&str], present: &str) -> String {
    let bracketed = |word: &&str| match *word == present {
        true => format!("[{word}]"),
        false => (*word).to_string(),
    };
    Vec::from_iter(words.iter().map(bracketed)).join(" ")
}

fn accepted(min: u64, max: u64, step: u64, unit: Unit) -> Accepted {
    let signed = |n| i64::try_from(n).unwrap_or(i64::MAX);
    Accepted { min: signed(min), max: signed(max), step: signed(step), unit }
}

/// Why a text is not a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Garbled {
    NotANumber,
    TooLong,
}

/// A decimal number.
fn parse(text: &str) -> Result<i128, Garbled> {
    text.parse::<i128>().map_err(|e| match e.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => Garbled::TooLong,
        _ => Garbled::NotANumber,
    })
}

/// An attribute that exists once in a queue.
#[derive(Clone, Copy)]
pub(super) struct Row {
    pub(super) path: &'static str,
    pub(super) unit: Unit,
    pub(super) help: &'static str,
    pub(super) form: Form,
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_decimal() {
        assert_eq!(parse("0"), Ok(0));
        assert_eq!(parse("+128"), Ok(128));
        assert_eq!(parse("-1"), Ok(-1));
        assert_eq!(parse("010"), Ok(10), "not octal");
        for text in ["", "0x80", "12k", "1 2", "1.5", "-", "auto"] {
            assert_eq!(parse(text), Err(Garbled::NotANumber), "{text:?}");
        }
        assert_eq!(parse(&"9".repeat(50)), Err(Garbled::TooLong));
    }

    #[test]
    fn the_word_that_is_stands_in_brackets() {
        assert_eq!(among(&["none", "mq-deadline"], "mq-deadline"), "none [mq-deadline]");
        assert_eq!(among(&["none"], "none"), "[none]");
    }
}

/// The numbers that an attribute accepts at present.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accepted {
    /// The smallest.
    pub min: i64,
    /// The largest.
    pub max: i64,
    /// All accepted numbers are multiples of this; 1 or more.
    pub step: i64,
    /// The unit.
    pub unit: Unit,
}

impl fmt::Display for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { min, max, step, unit } = self;
        match min == max {
            true => write!(f, "only {min}")?,
            false => write!(f, "a whole number from {min} to {max}")?,
        }
        if *step > 1 {
            write!(f, " that is a multiple of {step}")?;
        }
        write!(f, " ({unit})")
    }
}

/// Why an attribute cannot be read or written.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AttributeError {
    /// There is no attribute of that name.
    Unknown {
        /// The path asked for.
        path: String,
        /// Similar paths, or all paths.
        accepted: Vec<Cow<'static, str>>,
    },
    /// The attribute is read-only.
    ReadOnly {
        /// The attribute.
        path: String,
    },
    /// The text is not a number.
    NotANumber {
        /// The attribute.
        path: String,
        /// The text written.
        text: String,
        /// The accepted numbers.
        accepted: Accepted,
    },
    /// The number is too large or too small, or not an accepted multiple.
    OutOfRange {
        /// The attribute.
        path: String,
        /// The text written.
        text: String,
        /// The accepted numbers.
        accepted: Accepted,
    },
    /// The text is not an accepted word.
    NotAWord {
        /// The attribute.
        path: String,
        /// The text written.
        text: String,
        /// The accepted words.
        accepted: Vec<&'static str>,
    },
    /// The current settings leave nothing to set.
    NotNow {
        /// The attribute.
        path: String,
        /// The reason, and the remedy.
        why: &'static str,
    },
}

impl fmt::Display for AttributeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { path, accepted } => {
                write!(f, "{path}: no such attribute; accepted: {}", accepted.join(", "))
            }
            Self::ReadOnly { path } => write!(f, "{path} can only be read"),
            Self::NotANumber { path, text, accepted }
            | Self::OutOfRange { path, text, accepted } => {
                write!(f, "{path}={text}: accepted: {accepted}")
            }
            Self::NotAWord { path, text, accepted } => {
                write!(f, "{path}={text}: accepted: {}", accepted.join(", "))?;
                registry::left_out(text)
                    .map_or(Ok(()), |name| write!(f, "; the feature '{name}' of blkmq adds it"))
            }
            Self::NotNow { path, why } => write!(f, "{path} cannot be set: {why}"),
        }
    }
}

impl std::error::Error for AttributeError {}

/// Why an attribute of a queue was not set.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SetAttributeError {
    /// The attribute cannot be set, or not to this value.
    Attribute(AttributeError),
    /// The queue cannot be changed.
    Change(ChangeError),
}

impl fmt::Display for SetAttributeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attribute(e) => e.fmt(f),
            Self::Change(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for SetAttributeError {}

impl From<AttributeError> for SetAttributeError {
    fn from(e: AttributeError) -> Self {
        Self::Attribute(e)
    }
}

impl From<ChangeError> for SetAttributeError {
    fn from(e: ChangeError) -> Self {
        Self::Change(e)
    }
}

/// The kind of an attribute's value, and its source.
#[derive(Clone, Copy)]
pub(super) enum Form {
    /// A read-only text.
    Said(fn(&Snapshot) -> String),
    /// A number of the plan, which can be written if `set` is present.
    Number { get: fn(&Plan) -> u64, set: Option<SetNumber> },
    /// One of a few words.
    Words(Words),
}

/// How a number is set.
#[derive(Clone, Copy)]
pub(super) struct SetNumber {
    /// The accepted range, or the reason why the number cannot be set at present.
    pub(super) range: fn(&Plan) -> Result<RangeInclusive<u64>, &'static str>,
    pub(super) edges: Edges,
    /// The number must be a multiple of this.
    pub(super) step: fn(&Plan) -> u64,
    /// Makes the plan with this number, which was accepted and differs from the current one.
    pub(super) set: fn(Plan, u64) -> Plan,
}

/// How a number outside of its range is treated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Edges {
    /// It is refused.
    Strict,
    /// A number below the range is raised into it; one above is refused.
    Raise,
    /// A number above the range is lowered into it; one below is refused.
    Lower,
}

/// How a word is shown and set.
#[derive(Clone, Copy)]
pub(super) struct Words {
    /// The word for the current value.
    pub(super) get: fn(&Plan) -> &'static str,
    pub(super) accepted: fn(&Plan) -> Vec<&'static str>,
    pub(super) shown: Shown,
    /// Makes the plan with this word, which was accepted and may be the current one.
    pub(super) set: fn(Plan, &str) -> Plan,
}

/// How a choice among words is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    /// The current word.
    Alone,
    /// All accepted words, with the current one in brackets: `none [mq-deadline]`.
    AmongAll,
}
