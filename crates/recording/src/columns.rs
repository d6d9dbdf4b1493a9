//! The reader of rows with columns, driven by a description, and the spellings of an operation.

mod description;

pub use description::Description;

use crate::error::{DescriptionError, Fault, shown};
use crate::number::{date, scaled, whole};
use crate::record::{Names, Raw};
use blkmq_core::{Class, IoPrio, Op};
use description::{Column, Field, Place, Unit};

/// The most columns that are parsed.
const MOST_COLUMNS: usize = 64;
/// The most fields: the count of [`Field`]'s variants.
const FIELDS: usize = Field::COUNT;

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
        let wide = description.wide().map(|name| {
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
    ) -> Result<Option<Raw>, Fault> {
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
        match self.description.delimiter() {
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
    let (delimiter, runs) = match description.delimiter() {
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
) -> Result<Raw, Fault> {
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
    let op = description.ops().read(word)?;
    let length = number(Field::Size)?.unwrap_or(0);
    // The offset of a flush is ignored: formats write 0 or a meaningless number.
    let (offset, length) = if op == Op::Flush { (0, 0) } else { (needed(Field::Offset)?, length) };
    let (stamp, latency) = (needed(Field::Time)?, number(Field::Latency)?);
    let stamp = if description.is_at_completion() {
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
    Ok(Raw { stamp, op, offset, length, tenant, volume, prio, latency })
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
