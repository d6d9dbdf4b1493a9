//! A table of a configuration file, whose keys are taken one by one. Any key left over is a fault.

use crate::error::UsageError;
use crate::faults::Faults;
use crate::nearest::nearest;
use std::borrow::Cow;
use std::ops::Range;
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
