//! The description of a row's columns, as a preset or a user writes it.
//!
//! ```text
//! description = word { " " word }
//! word        = field "=" [ unit "," ] column [ "+" column ] | field "==" constant | setting "=" value
//! column      = number from 1 | name in the header [ "?" ]
//! ```
//!
//! Fields are `time`, `offset`, `size`, `op`, `group`, `class`, `volume`, `latency` and `queue`; settings are
//! `delimiter`, `header`, `stamp` and `wide`. A `?` marks a column that may be absent.

use super::{MOST_COLUMNS, Ops};
use crate::error::DescriptionError;

/// A parsed description of rows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Description {
    columns: [Option<Column>; Field::COUNT],
    ops: Ops,
    delimiter: u8,
    header: bool,
    at_completion: bool,
    wide: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Field {
    Time,
    Offset,
    Size,
    Op,
    Group,
    Group2,
    Volume,
    Volume2,
    Class,
    Latency,
    Queue,
}

impl Field {
    pub(crate) const COUNT: usize = 11;
    const ALL: [Self; Self::COUNT] = [
        Self::Time,
        Self::Offset,
        Self::Size,
        Self::Op,
        Self::Group,
        Self::Group2,
        Self::Volume,
        Self::Volume2,
        Self::Class,
        Self::Latency,
        Self::Queue,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Offset => "offset",
            Self::Size => "size",
            Self::Op => "op",
            Self::Group | Self::Group2 => "group",
            Self::Volume | Self::Volume2 => "volume",
            Self::Class => "class",
            Self::Latency => "latency",
            Self::Queue => "queue",
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Column {
    pub place: Place,
    pub unit: Unit,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// The number of the column, counted from 0.
    Number(usize),
    Name {
        name: String,
        optional: bool,
    },
    Constant(String),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unit {
    /// The factor to nanoseconds or bytes.
    Times(u64),
    Date,
}

const TIMES: [(&str, Unit); 6] = [
    ("ns", Unit::Times(1)),
    ("100ns", Unit::Times(100)),
    ("us", Unit::Times(1_000)),
    ("ms", Unit::Times(1_000_000)),
    ("s", Unit::Times(1_000_000_000)),
    ("date", Unit::Date),
];
const SIZES: [(&str, Unit); 3] =
    [("bytes", Unit::Times(1)), ("sectors", Unit::Times(512)), ("kib", Unit::Times(1024))];

fn refuse<T>(text: String) -> Result<T, DescriptionError> {
    Err(DescriptionError(text))
}

impl Description {
    /// Parses a description.
    ///
    /// # Errors
    /// If a word is unknown, or a column that every I/O needs is missing.
    pub fn parse(text: &str) -> Result<Self, DescriptionError> {
        let mut found = Self {
            columns: Default::default(),
            ops: Ops::Words,
            delimiter: b',',
            header: false,
            at_completion: false,
            wide: None,
        };
        let mut header = None;
        for word in text.split_whitespace() {
            let Some((key, value)) = word.split_once('=') else {
                return refuse(format!("{word}: no '='; accepted: FIELD=UNIT,COLUMN"));
            };
            match (key, value) {
                ("delimiter", _) => found.delimiter = delimiter(value)?,
                ("header", "yes" | "no") => header = Some(value == "yes"),
                ("stamp", "arrival" | "completion") => found.at_completion = value == "completion",
                ("wide", _) if !value.is_empty() => found.wide = Some(value.into()),
                ("header", _) => return refuse(format!("{word}; accepted: yes, no")),
                ("stamp", _) => return refuse(format!("{word}; accepted: arrival, completion")),
                _ => found.set(key, value)?,
            }
        }
        let names = |column: &Column| matches!(column.place, Place::Name { .. });
        let by_name = found.columns.iter().flatten().any(names) || found.wide.is_some();
        found.header = header.unwrap_or(by_name);
        if by_name && !found.header {
            return refuse("header=no: columns have names; accepted then: numbers from 1".into());
        }
        for field in [Field::Time, Field::Offset, Field::Size, Field::Op] {
            if found.field(field).is_none() {
                let name = field.name();
                return refuse(format!("{name}= is missing; needed: time, offset, size, op"));
            }
        }
        Ok(found)
    }

    /// Replaces the columns that name the tenant, like `group=` in a description.
    ///
    /// # Errors
    /// If `column` is neither a number from 1 nor a name.
    pub fn group_by(&mut self, column: &str) -> Result<(), DescriptionError> {
        self.columns[Field::Group2 as usize] = None;
        self.by("group", column)
    }

    /// Replaces the column that gives the class.
    ///
    /// # Errors
    /// See [`group_by`](Self::group_by).
    pub fn class_by(&mut self, column: &str) -> Result<(), DescriptionError> {
        self.by("class", column)
    }

    fn by(&mut self, field: &str, column: &str) -> Result<(), DescriptionError> {
        self.set(field, column)?;
        let names = |column: &Column| matches!(column.place, Place::Name { .. });
        if !self.header && self.columns.iter().flatten().any(names) {
            return refuse(format!(
                "{field} by {column}: there is no header; accepted: a number from 1"
            ));
        }
        Ok(())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), DescriptionError> {
        let Some(field) = Field::ALL.into_iter().find(|field| field.name() == key) else {
            return refuse(format!(
                "{key}; accepted: time, offset, size, op, group, class, volume, latency, queue, delimiter, header, stamp, wide"
            ));
        };
        if let Some(constant) = value.strip_prefix('=') {
            let place = Place::Constant(constant.into());
            self.columns[field as usize] = Some(Column { place, unit: Unit::Times(1) });
            return Ok(());
        }
        let (unit, column) = match field {
            Field::Time | Field::Latency | Field::Queue => unit(key, value, &TIMES)?,
            Field::Offset | Field::Size => unit(key, value, &SIZES)?,
            Field::Op => {
                let (name, column) = value.split_once(',').unwrap_or(("word", value));
                let Some((_, ops)) = Ops::NAMES.into_iter().find(|(known, _)| *known == name)
                else {
                    return refuse(format!(
                        "op={value}; accepted: word, 0r1w, 1r0w, scsi, and a column"
                    ));
                };
                self.ops = ops;
                (Unit::Times(1), column)
            }
            _ => (Unit::Times(1), value),
        };
        let second = match field {
            Field::Group => Some(Field::Group2),
            Field::Volume => Some(Field::Volume2),
            _ => None,
        };
        let (first, rest) = match (second, column.split_once('+')) {
            (Some(second), Some((first, rest))) => (first, Some((second, rest))),
            _ => (column, None),
        };
        self.columns[field as usize] = Some(Column { place: place(key, first)?, unit });
        if let Some((second, rest)) = rest {
            self.columns[second as usize] = Some(Column { place: place(key, rest)?, unit });
        }
        Ok(())
    }

    pub(super) fn fields(&self) -> impl Iterator<Item = (Field, &Column)> {
        Field::ALL.into_iter().filter_map(|field| Some((field, self.field(field)?)))
    }

    pub(super) fn field(&self, field: Field) -> Option<&Column> {
        self.columns[field as usize].as_ref()
    }

    /// Returns whether the tenant and the volume are named by the same columns.
    pub(super) fn has_volumes_as_groups(&self) -> bool {
        let both = |field: Field, other: Field| self.field(field) == self.field(other);
        self.field(Field::Group).is_some()
            && both(Field::Group, Field::Volume)
            && both(Field::Group2, Field::Volume2)
    }

    pub(super) fn ops(&self) -> Ops {
        self.ops
    }

    pub(crate) fn delimiter(&self) -> u8 {
        self.delimiter
    }

    pub(crate) fn has_header(&self) -> bool {
        self.header
    }

    pub(super) fn is_at_completion(&self) -> bool {
        self.at_completion
    }

    pub(super) fn wide(&self) -> Option<&str> {
        self.wide.as_deref()
    }

    /// Returns whether `header` has all columns that the description names. False if it names none.
    pub(crate) fn fits(&self, header: &[u8]) -> bool {
        let known = super::cut(self, header);
        let is_there = |name: &str| known.contains(&name.as_bytes());
        let names = self.columns.iter().flatten().filter_map(|column| match &column.place {
            Place::Name { name, optional: false } => Some(name.as_str()),
            _ => None,
        });
        let mut names = names.chain(self.wide()).peekable();
        names.peek().is_some() && names.all(is_there)
    }

    pub(super) fn no_column(&self, name: &str, header: &[&[u8]]) -> DescriptionError {
        let names: Vec<_> = header.iter().map(|it| crate::error::shown(it)).collect();
        DescriptionError(format!("no column {name} in the header; accepted: {}", names.join(", ")))
    }
}

fn unit<'a>(
    key: &str,
    value: &'a str,
    known: &[(&str, Unit)],
) -> Result<(Unit, &'a str), DescriptionError> {
    let unit = |name: &str| known.iter().find(|(known, _)| *known == name).map(|it| it.1);
    match value.split_once(',').and_then(|(name, column)| Some((unit(name)?, column))) {
        Some(found) => Ok(found),
        None => {
            let names: Vec<_> = known.iter().map(|it| it.0).collect();
            refuse(format!(
                "{key}={value}; accepted: a column behind one of {} and a comma",
                names.join(", ")
            ))
        }
    }
}

fn place(key: &str, text: &str) -> Result<Place, DescriptionError> {
    let (name, optional) = text.strip_suffix('?').map_or((text, false), |name| (name, true));
    if name.is_empty() {
        return refuse(format!("{key}: a column is missing; accepted: a number from 1, or a name"));
    }
    if name.bytes().all(|byte| byte.is_ascii_digit()) {
        return match name.parse() {
            Ok(number @ 1..=MOST_COLUMNS) => Ok(Place::Number(number - 1)),
            _ => refuse(format!("{key}: column {name}; accepted: 1 to {MOST_COLUMNS}")),
        };
    }
    Ok(Place::Name { name: name.into(), optional })
}

fn delimiter(text: &str) -> Result<u8, DescriptionError> {
    Ok(match text {
        "comma" | "," => b',',
        "semicolon" | ";" => b';',
        "tab" => b'\t',
        "space" => b' ',
        "pipe" | "|" => b'|',
        _ => {
            return refuse(format!(
                "delimiter={text}; accepted: comma, semicolon, tab, space, pipe"
            ));
        }
    })
}
