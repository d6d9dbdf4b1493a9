//! How an attribute's value is shown, and which texts it accepts. Numbers are decimal, as in sysfs.

use super::error::{Accepted, AttributeError};
use super::form::{Edges, Form, SetNumber, Shown};
use super::row::Row;
use super::{Permission, Snapshot, Unit};
use crate::reconfiguration::plan::Plan;
use std::num::IntErrorKind;

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

    /// `text` has no white space around it.
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

    /// The number in `text`, if it is accepted. The current number always is.
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

/// Why a text is no number.
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
