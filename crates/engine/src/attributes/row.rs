//! A line of the list of attributes (`table.rs`), and the words by which such a line is written.

use super::Unit;
use super::form::{Edges, Form, SetNumber, Words};
use crate::reconfiguration::plan::Plan;
use std::ops::RangeInclusive;

/// An attribute of which a queue has one.
#[derive(Clone, Copy)]
pub(super) struct Row {
    pub(super) path: &'static str,
    pub(super) unit: Unit,
    pub(super) help: &'static str,
    pub(super) form: Form,
}

/// The accepted range of a number, or the reason why it cannot be written.
pub(super) type Range = Result<RangeInclusive<u64>, &'static str>;

/// A number that can be read.
pub(super) const fn number(
    path: &'static str,
    unit: Unit,
    help: &'static str,
    get: fn(&Plan) -> u64,
) -> Row {
    Row { path, unit, help, form: Form::Number { get, set: None } }
}

/// A choice among words that can be read and written.
pub(super) const fn words(path: &'static str, help: &'static str, words: Words) -> Row {
    Row { path, unit: Unit::Word, help, form: Form::Words(words) }
}

impl Row {
    /// It can be written, too.
    pub(super) const fn set(
        self,
        range: fn(&Plan) -> Range,
        edges: Edges,
        set: fn(Plan, u64) -> Plan,
    ) -> Self {
        self.set_in_steps(range, edges, |_| 1, set)
    }

    /// It can be written, too, in multiples of `step`.
    pub(super) const fn set_in_steps(
        self,
        range: fn(&Plan) -> Range,
        edges: Edges,
        step: fn(&Plan) -> u64,
        set: fn(Plan, u64) -> Plan,
    ) -> Self {
        let Form::Number { get, .. } = self.form else { panic!("only numbers have a range") };
        let set = SetNumber { range, edges, step, set };
        Self { form: Form::Number { get, set: Some(set) }, ..self }
    }
}
