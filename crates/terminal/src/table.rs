//! A table of a configuration file, whose keys are taken one by one. Any key left over is a fault, with the nearest
//! name of the known ones. Each fault has its line and column.

use crate::UsageError;
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use strsim::osa_distance;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A range of bytes of the text.
pub type Span = Range<usize>;

/// A table that is being read.
pub struct Table<'a> {
    entries: Vec<(&'a str, Span, &'a Spanned<DeValue<'a>>)>,
    /// Every key that was requested.
    known: Vec<&'static str>,
    /// Where the table is.
    pub span: Span,
}

impl<'a> Table<'a> {
    /// Reads `table`, whose text is at `span`.
    #[must_use]
    pub fn new(table: &'a DeTable<'a>, span: Span) -> Self {
        let entry = |(key, value): (&'a Spanned<Cow<'a, str>>, &'a Spanned<DeValue<'a>>)| {
            (&**key.get_ref(), key.span(), value)
        };
        Self { entries: table.iter().map(entry).collect(), known: Vec::new(), span }
    }

    fn take(&mut self, key: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.known.push(key);
        let at = self.entries.iter().position(|(name, ..)| *name == key)?;
        Some(self.entries.swap_remove(at).2)
    }

    /// The value of `key` as text, or `None` if the key is absent. Strings and numbers are returned as written, true as
    /// 1 and false as 0.
    pub fn text(&mut self, key: &'static str, faults: &mut Faults) -> Option<(String, Span)> {
        text(self.take(key)?, faults)
    }

    /// Like [`text`](Self::text), with the value parsed by `read`.
    pub fn value<T>(
        &mut self,
        key: &'static str,
        faults: &mut Faults,
        read: impl FnOnce(&str) -> Result<T, UsageError>,
    ) -> Option<T> {
        let (text, span) = self.text(key, faults)?;
        read(&text).map_err(|error| faults.add(&span, error.at(key))).ok()
    }

    /// The values of the array `key`, or its single value.
    pub fn texts(&mut self, key: &'static str, faults: &mut Faults) -> Vec<(String, Span)> {
        self.list(key, faults).map_or_else(Vec::new, |(texts, _)| texts)
    }

    /// Like [`texts`](Self::texts), with the span of all values. Returns `None` if the key is absent, but an empty list
    /// for an empty array.
    pub fn list(
        &mut self,
        key: &'static str,
        faults: &mut Faults,
    ) -> Option<(Vec<(String, Span)>, Span)> {
        let value = self.take(key)?;
        let texts = match value.get_ref() {
            DeValue::Array(all) => all.iter().filter_map(|it| text(it, faults)).collect(),
            _ => text(value, faults).into_iter().collect(),
        };
        Some((texts, value.span()))
    }

    /// The table `[key]`.
    pub fn table(&mut self, key: &'static str, faults: &mut Faults) -> Option<Table<'a>> {
        let value = self.take(key)?;
        let table = table(value);
        if table.is_none() {
            faults.add(&value.span(), format!("not a table; accepted: [{key}]"));
        }
        table
    }

    /// The tables `[[key]]`.
    pub fn tables(&mut self, key: &'static str, faults: &mut Faults) -> Vec<Table<'a>> {
        let Some(value) = self.take(key) else { return Vec::new() };
        let all = match value.get_ref() {
            DeValue::Array(all) => all.iter().map(table).collect(),
            _ => None,
        };
        all.unwrap_or_else(|| {
            faults.add(&value.span(), format!("no list of tables; accepted: [[{key}]]"));
            Vec::new()
        })
    }

    /// Accepts `keys` with any values.
    pub fn leave(&mut self, keys: &[&'static str]) {
        for key in keys {
            self.take(key);
        }
    }

    /// Reports the keys that were not requested.
    pub fn end(mut self, faults: &mut Faults) {
        self.known.sort_unstable();
        for (key, span, _) in &self.entries {
            let near = nearest(key, self.known.iter().copied());
            let near = if near.is_empty() { &self.known } else { &near };
            faults.add(span, format!("no such key '{key}'; accepted: {}", near.join(", ")));
        }
    }
}

fn table<'a>(value: &'a Spanned<DeValue<'a>>) -> Option<Table<'a>> {
    match value.get_ref() {
        DeValue::Table(table) => Some(Table::new(table, value.span())),
        _ => None,
    }
}

fn text(value: &Spanned<DeValue<'_>>, faults: &mut Faults) -> Option<(String, Span)> {
    let text = match value.get_ref() {
        DeValue::String(text) => text.clone().into_owned(),
        DeValue::Integer(number) if number.radix() == 10 => number.as_str().to_owned(),
        DeValue::Float(number) => number.as_str().to_owned(),
        DeValue::Boolean(is) => u8::from(*is).to_string(),
        _ => {
            faults.add(
                &value.span(),
                "not a value; accepted: \"text\", a decimal number, true, false",
            );
            return None;
        }
    };
    Some((text, value.span()))
}

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

/// Returns up to three of the `known` words that begin with `word` or differ from it by few typing errors; best match
/// first.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let limit = (word.len() / 3).clamp(1, 4);
    let mut near: Vec<(usize, &str)> = known
        .filter_map(|candidate| {
            let begins = word.len() >= 3 && candidate.starts_with(word);
            let cost = if begins { 0 } else { osa_distance(word, candidate) };
            (cost <= limit).then_some((cost, candidate))
        })
        .collect();
    near.sort_unstable();
    near.into_iter().map(|(_, candidate)| candidate).take(3).collect()
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

    #[test]
    fn typing_errors_and_beginnings_are_understood() {
        let known = ["iodepth", "iodepth_low", "numjobs", "bs", "rw"];
        let near = |word| nearest(word, known.into_iter());
        assert_eq!(near("iodpeth"), ["iodepth"]);
        assert_eq!(near("numjob"), ["numjobs"]);
        assert_eq!(near("iode"), ["iodepth", "iodepth_low"]);
        assert_eq!(near("b"), ["bs"]);
        assert_eq!(near("wr"), ["rw"], "a swap of neighbours is one error");
        assert!(near("checkpoint").is_empty());
    }
}
