//! The reader of rows with columns, driven by a description, as a preset or a user writes it; and the spellings of an
//! operation.
//!
//! ```text
//! description = word { " " word }
//! word        = field "=" [ unit "," ] column [ "+" column ] | field "==" constant | setting "=" value
//! column      = number from 1 | name in the header [ "?" ]
//! ```
//!
//! Fields are `time`, `offset`, `size`, `op`, `group`, `class`, `volume`, `latency` and `queue`; settings are
//! `delimiter`, `header`, `stamp` and `wide`. A `?` marks a column that may be absent.

use crate::input::{DescriptionError, Fault, date, scaled, shown, whole};
use crate::record::{Names, Record, Row};
use blkmq_core::{Class, IoPrio, Op};

/// The most columns that are parsed.
const MOST_COLUMNS: usize = 64;
/// The most fields: the count of [`Field`]'s variants.
const FIELDS: usize = Field::NAMES.len();

/// A description whose column names have been resolved to numbers.
pub(crate) struct Rows {
    description: Description,
    /// Column and field, by column.
    slots: Vec<(usize, Field)>,
    /// Fields with the same value in every row.
    constants: Vec<(Field, Box<[u8]>)>,
    /// Tenants and volumes come from the same columns, and share a table of names.
    pub has_volumes_as_tenants: bool,
    /// The column that absorbs surplus delimiters, and the number of columns.
    wide: Option<(usize, usize)>,
    joined: Vec<u8>,
}

/// The tables that collect names.
pub(crate) struct Tables<'a> {
    pub tenants: &'a mut Names,
    pub volumes: &'a mut Names,
}

impl Tables<'_> {
    /// The numbers of a tenant and a volume.
    pub(crate) fn ids(&mut self, tenant: &[u8], volume: &[u8]) -> Result<(u32, u32), Fault> {
        let tenant = self.tenants.id(tenant).ok_or(Fault::Names { what: "tenants" })?;
        Ok((tenant, self.volumes.id_or_shared(volume)))
    }
}

type Cells<'a> = [Option<&'a [u8]>; FIELDS];

impl Rows {
    /// Reads the rows after `header`, the first line, if the description has a header.
    pub(crate) fn new(
        description: Description,
        header: Option<&[u8]>,
    ) -> Result<Self, DescriptionError> {
        let names = header.map(|line| cut(&description, line)).unwrap_or_default();
        let (mut slots, mut constants) = (Vec::new(), Vec::new());
        for (field, column) in description.fields() {
            let number = match &column.place {
                Place::Number(number) => Some(*number),
                Place::Constant(text) => {
                    constants.push((field, text.as_bytes().into()));
                    None
                }
                Place::Name { name, optional } => {
                    let at = names.iter().position(|known| *known == name.as_bytes());
                    if at.is_none() && !optional {
                        return Err(description.no_column(name, &names));
                    }
                    at
                }
            };
            slots.extend(number.map(|number| (number, field)));
        }
        slots.sort_by_key(|(number, _)| *number);
        let wide = description.wide.as_ref().map(|name| {
            let at = names.iter().position(|known| *known == name.as_bytes());
            at.map(|at| (at, names.len())).ok_or_else(|| description.no_column(name, &names))
        });
        let wide = wide.transpose()?;
        let has_volumes_as_tenants = description.has_volumes_as_groups();
        let joined = Vec::new();
        Ok(Self { description, slots, constants, has_volumes_as_tenants, wide, joined })
    }

    /// Parses a row. Returns `None` for an empty line or a comment.
    pub(crate) fn row(
        &mut self,
        line: &[u8],
        tables: &mut Tables<'_>,
    ) -> Result<Option<Row>, Fault> {
        if line.iter().all(u8::is_ascii_whitespace) || line[0] == b'#' {
            return Ok(None);
        }
        let mut cells: Cells<'_> = [None; FIELDS];
        match self.wide {
            None => self.cells(line, &mut cells)?,
            Some((wide, columns)) => self.wide_cells(line, wide, columns, &mut cells)?,
        }
        for (field, text) in &self.constants {
            cells[*field as usize] = Some(text);
        }
        let (description, joined) = (&self.description, &mut self.joined);
        Ok(Some(raw(description, &cells, joined, self.has_volumes_as_tenants, tables)?))
    }

    /// Fills the cells in one pass over the line.
    fn cells<'a>(&self, line: &'a [u8], cells: &mut Cells<'a>) -> Result<(), Fault> {
        match self.description.delimiter {
            b' ' => self.fill(split(&self.description, line), cells),
            delimiter => self.fill(line.split(|byte| *byte == delimiter).map(trimmed), cells),
        }
    }

    fn fill<'a>(
        &self,
        all: impl Iterator<Item = &'a [u8]>,
        cells: &mut Cells<'a>,
    ) -> Result<(), Fault> {
        let mut slots = self.slots.iter();
        let Some(mut slot) = slots.next() else { return Ok(()) };
        for (number, cell) in all.enumerate() {
            while slot.0 == number {
                cells[slot.1 as usize] = Some(cell);
                match slots.next() {
                    Some(next) => slot = next,
                    None => return Ok(()),
                }
            }
        }
        Err(Fault::Missing { field: slot.1.name() })
    }

    /// Like [`cells`](Self::cells), for rows in which one column may contain the delimiter.
    fn wide_cells<'a>(
        &self,
        line: &'a [u8],
        wide: usize,
        columns: usize,
        cells: &mut Cells<'a>,
    ) -> Result<(), Fault> {
        let parts = cut(&self.description, line);
        let surplus = parts.len().saturating_sub(columns);
        for (column, field) in &self.slots {
            let first = if *column > wide { column + surplus } else { *column };
            let last = if *column == wide { first + surplus } else { first };
            let (Some(first), Some(last)) = (parts.get(first), parts.get(last)) else {
                return Err(Fault::Missing { field: field.name() });
            };
            let start = first.as_ptr() as usize - line.as_ptr() as usize;
            let end = last.as_ptr() as usize - line.as_ptr() as usize + last.len();
            cells[*field as usize] = Some(&line[start..end]);
        }
        Ok(())
    }
}

/// Splits a line into cells.
fn split<'a>(
    description: &Description,
    line: &'a [u8],
) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    let (delimiter, runs) = match description.delimiter {
        b' ' => (b' ', true),
        other => (other, false),
    };
    let mut rest = Some(line);
    std::iter::from_fn(move || {
        let mut line = rest?;
        if runs {
            let start = line.iter().position(|byte| !matches!(byte, b' ' | b'\t'))?;
            line = &line[start..];
        }
        let is_end = |byte: &u8| *byte == delimiter || runs && *byte == b'\t';
        let end = line.iter().position(is_end);
        let cell = &line[..end.unwrap_or(line.len())];
        rest = end.map(|end| &line[end + 1..]);
        Some(trimmed(cell))
    })
}

fn cut<'a>(description: &Description, line: &'a [u8]) -> Vec<&'a [u8]> {
    split(description, line).take(MOST_COLUMNS).collect()
}

/// A cell without surrounding blanks and quotes.
fn trimmed(cell: &[u8]) -> &[u8] {
    match cell {
        [b'!'..=b'~', .., b'!'..=b'~'] | [b'!'..=b'~'] if cell[0] != b'"' => cell,
        _ => {
            let cell = cell.trim_ascii();
            cell.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(cell)
        }
    }
}

fn raw(
    description: &Description,
    cells: &Cells<'_>,
    joined: &mut Vec<u8>,
    has_volumes_as_tenants: bool,
    tables: &mut Tables<'_>,
) -> Result<Row, Fault> {
    // Required cells are present: only fields without a column, or with an optional one, have no cell.
    let number = |field: Field| -> Result<Option<u64>, Fault> {
        let (Some(text), Some(column)) = (cells[field as usize], description.field(field)) else {
            return Ok(None);
        };
        if text.is_empty() && matches!(column.place, Place::Name { optional: true, .. }) {
            return Ok(None);
        }
        measured(field.name(), text, column).map(Some)
    };
    let needed = |field: Field| number(field)?.ok_or(Fault::Missing { field: field.name() });
    let word = cells[Field::Op as usize].ok_or(Fault::Missing { field: "op" })?;
    let op = description.ops.read(word)?;
    let length = number(Field::Size)?.unwrap_or(0);
    let offset = if op == Op::Flush { 0 } else { needed(Field::Offset)? };
    let (stamp, latency) = (needed(Field::Time)?, number(Field::Latency)?);
    let stamp = if description.at_completion {
        let waited = number(Field::Queue)?.unwrap_or(0).saturating_add(latency.unwrap_or(0));
        stamp.saturating_sub(waited)
    } else {
        stamp
    };
    let prio = cells[Field::Class as usize].map_or(Ok(IoPrio::default()), prio)?;
    let tenant = tables.tenants.id(name([Field::Group, Field::Group2], cells, joined));
    let tenant = tenant.ok_or(Fault::Names { what: "tenants" })?;
    let volume = if has_volumes_as_tenants {
        tenant
    } else {
        tables.volumes.id_or_shared(name([Field::Volume, Field::Volume2], cells, joined))
    };
    Ok((stamp, Record { prio, latency, ..Record::of(op, (offset, length), (tenant, volume)) }))
}

fn measured(field: &'static str, text: &[u8], column: &Column) -> Result<u64, Fault> {
    match column.unit {
        Unit::Times(1) => whole(field, text),
        Unit::Times(unit) => scaled(field, text, unit),
        Unit::Date => date(field, text),
    }
}

/// Joins the name from one or two cells. Without a cell the name is empty.
fn name<'a>(fields: [Field; 2], cells: &Cells<'a>, joined: &'a mut Vec<u8>) -> &'a [u8] {
    match fields.map(|field| cells[field as usize]) {
        [Some(first), Some(second)] => {
            joined.clear();
            joined.extend_from_slice(first);
            joined.push(b'.');
            joined.extend_from_slice(second);
            joined
        }
        [first, second] => first.or(second).unwrap_or_default(),
    }
}

/// Parses a priority class. Thesios' words map to the three classes of the schedulers.
fn prio(text: &[u8]) -> Result<IoPrio, Fault> {
    let class = match text {
        b"" | b"-" | b"0" | b"none" => Class::None,
        b"1" | b"rt" | b"realtime" | b"LATENCY_SENSITIVE" => Class::Realtime,
        b"2" | b"be" | b"best-effort" | b"THROUGHPUT_ORIENTED" => Class::BestEffort,
        b"3" | b"idle" | b"OTHER" => Class::Idle,
        _ => return Err(Fault::Class { text: shown(text) }),
    };
    let level = if matches!(class, Class::Realtime | Class::BestEffort) { 4 } else { 0 };
    Ok(IoPrio::new(class, level).expect("levels go up to 7"))
}

/// The notation of operations in a format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ops {
    /// Words or letters.
    Words,
    /// 0 is a read and 1 a write.
    ReadIs0,
    /// 1 is a read and 0 a write.
    ReadIs1,
    /// SCSI operation codes, in decimal.
    Scsi,
}

impl Ops {
    const NAMES: [(&'static str, Self); 4] = [
        ("word", Self::Words),
        ("0r1w", Self::ReadIs0),
        ("1r0w", Self::ReadIs1),
        ("scsi", Self::Scsi),
    ];

    fn read(self, text: &[u8]) -> Result<Op, Fault> {
        let known = match self {
            Self::Words => word(text),
            Self::ReadIs0 => bit(text, Op::Read, Op::Write),
            Self::ReadIs1 => bit(text, Op::Write, Op::Read),
            Self::Scsi => std::str::from_utf8(text).ok().and_then(|it| scsi(it.parse().ok()?)),
        };
        known.ok_or_else(|| Fault::Op { text: shown(text), accepted: self.accepted() })
    }

    fn accepted(self) -> &'static str {
        match self {
            Self::Words => "r, w, read, write, flush, sync, discard, trim, zeroes, in any case",
            Self::ReadIs0 => "0 for a read, 1 for a write",
            Self::ReadIs1 => "1 for a read, 0 for a write",
            Self::Scsi => "SCSI's codes of reads, writes, SYNCHRONIZE CACHE, UNMAP and WRITE SAME",
        }
    }
}

fn bit(text: &[u8], zero: Op, one: Op) -> Option<Op> {
    match text {
        b"0" => Some(zero),
        b"1" => Some(one),
        _ => None,
    }
}

fn word(text: &[u8]) -> Option<Op> {
    let first = match text {
        [letter] => *letter,
        _ => 0,
    };
    match first {
        b'R' | b'r' => return Some(Op::Read),
        b'W' | b'w' => return Some(Op::Write),
        b'F' | b'f' => return Some(Op::Flush),
        b'D' | b'd' => return Some(Op::Discard),
        _ => {}
    }
    const WORDS: [(&str, Op); 11] = [
        ("read", Op::Read),
        ("write", Op::Write),
        ("rs", Op::Read),
        ("ws", Op::Write),
        ("flush", Op::Flush),
        ("sync", Op::Flush),
        ("datasync", Op::Flush),
        ("discard", Op::Discard),
        ("trim", Op::Discard),
        ("unmap", Op::Discard),
        ("zeroes", Op::WriteZeroes),
    ];
    WORDS.iter().find(|(word, _)| text.eq_ignore_ascii_case(word.as_bytes())).map(|(_, op)| *op)
}

/// Returns whether a cell looks like the operation of a row.
pub(crate) fn is_read_write(text: &[u8]) -> bool {
    matches!(word(text), Some(Op::Read | Op::Write))
}

/// The operation of a SCSI command.
pub(crate) fn scsi(code: u16) -> Option<Op> {
    match code {
        0x08 | 0x28 | 0x88 | 0xa8 => Some(Op::Read),
        0x0a | 0x2a | 0x8a | 0xaa | 0x2e | 0x8e => Some(Op::Write),
        0x35 | 0x91 => Some(Op::Flush),
        0x42 => Some(Op::Discard),
        0x41 | 0x93 => Some(Op::WriteZeroes),
        _ => None,
    }
}

/// Parses blkparse's letters: `FWFS` is a write preceded by a flush, `FN` or `F` a bare flush.
pub(crate) fn op_of_rwbs(text: &[u8]) -> Option<Op> {
    let has = |letter| text.contains(&letter);
    if has(b'D') {
        Some(Op::Discard)
    } else if has(b'R') {
        Some(Op::Read)
    } else if has(b'W') {
        Some(Op::Write)
    } else {
        has(b'F').then_some(Op::Flush)
    }
}

/// A parsed description of rows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Description {
    columns: [Option<Column>; FIELDS],
    ops: Ops,
    pub(crate) delimiter: u8,
    pub(crate) header: bool,
    at_completion: bool,
    wide: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Field {
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
    /// Each with its word in a description, in the order of declaration.
    const NAMES: [(Self, &'static str); 11] = [
        (Self::Time, "time"),
        (Self::Offset, "offset"),
        (Self::Size, "size"),
        (Self::Op, "op"),
        (Self::Group, "group"),
        (Self::Group2, "group"),
        (Self::Volume, "volume"),
        (Self::Volume2, "volume"),
        (Self::Class, "class"),
        (Self::Latency, "latency"),
        (Self::Queue, "queue"),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::NAMES[self as usize].1
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Column {
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
enum Unit {
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
        let Some((field, _)) = Field::NAMES.into_iter().find(|(_, name)| *name == key) else {
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

    fn fields(&self) -> impl Iterator<Item = (Field, &Column)> {
        Field::NAMES.into_iter().filter_map(|(field, _)| Some((field, self.field(field)?)))
    }

    fn field(&self, field: Field) -> Option<&Column> {
        self.columns[field as usize].as_ref()
    }

    /// Returns whether the tenant and the volume are named by the same columns.
    fn has_volumes_as_groups(&self) -> bool {
        let both = |field: Field, other: Field| self.field(field) == self.field(other);
        self.field(Field::Group).is_some()
            && both(Field::Group, Field::Volume)
            && both(Field::Group2, Field::Volume2)
    }

    /// Returns whether `header` has all columns that the description names. False if it names none.
    pub(crate) fn fits(&self, header: &[u8]) -> bool {
        let known = cut(self, header);
        let is_there = |name: &str| known.contains(&name.as_bytes());
        let names = self.columns.iter().flatten().filter_map(|column| match &column.place {
            Place::Name { name, optional: false } => Some(name.as_str()),
            _ => None,
        });
        let mut names = names.chain(self.wide.as_deref()).peekable();
        names.peek().is_some() && names.all(is_there)
    }

    fn no_column(&self, name: &str, header: &[&[u8]]) -> DescriptionError {
        let names: Vec<_> = header.iter().map(|it| shown(it)).collect();
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
