//! [`Format`]: the formats of traces, by name. A format is detected from the first bytes of a trace. Public formats
//! with columns are a table, one row each; units and columns follow the descriptions published with the data. The
//! formats without columns are read here.
//!
//! Binary records are blktrace's, versions 1 and 2, of which only one kind of event yields I/Os, by default their
//! queueing; and those of VMware's vscsi tracer, of versions 1 (32 bytes) and 2 (40 bytes), little endian.
//!
//! Lines of blkparse have device, CPU, sequence, seconds, process, action, letters, and for an I/O its sector and
//! length. In version 2 of fio's iologs a line is `file action offset length`, with waits between the I/Os; in version
//! 3 each line begins with microseconds from the start.

use crate::columns::{Description, Tables, is_read_write, op_of_rwbs, scsi};
use crate::input::{DescriptionError, Error, Fault, Input, Next, scaled, shown, whole};
use crate::record::{Event, Record, Row};
use blkmq_core::Op;
use blkmq_trace::record::{self as blktrace, Act, HEADER_2, MOST_PAYLOAD, TraceError, category};
use std::collections::BTreeMap;

/// The format of a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Format {
    /// A format with columns, from the table of presets.
    Preset(&'static Preset),
    /// Columns described by the user.
    Columns(Box<Description>),
    /// blktrace's records.
    Blktrace,
    /// blkparse's text.
    Blkparse,
    /// fio's iolog.
    Iolog(IologVersion),
    /// vscsi's records.
    Vscsi(VscsiVersion),
}

impl Format {
    const OTHERS: [(&'static str, Self); 6] = [
        ("blktrace", Self::Blktrace),
        ("blkparse", Self::Blkparse),
        ("iolog2", Self::Iolog(IologVersion::V2)),
        ("iolog3", Self::Iolog(IologVersion::V3)),
        ("vscsi1", Self::Vscsi(VscsiVersion::V1)),
        ("vscsi2", Self::Vscsi(VscsiVersion::V2)),
    ];

    /// The format with this name, or the one that a [`Description`] defines.
    ///
    /// # Errors
    /// If the text is neither.
    pub fn parse(text: &str) -> Result<Self, DescriptionError> {
        if text.contains('=') {
            return Ok(Self::Columns(Box::new(Description::parse(text)?)));
        }
        let others = || Self::OTHERS.into_iter();
        if let Some((_, format)) = others().find(|(name, _)| *name == text) {
            return Ok(format);
        }
        PRESETS.iter().find(|preset| preset.name == text).map(Self::Preset).ok_or_else(|| {
            let names: Vec<_> =
                PRESETS.iter().map(|it| it.name).chain(others().map(|it| it.0)).collect();
            DescriptionError(format!("{text}; accepted: {}, or columns", names.join(", ")))
        })
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Preset(preset) => preset.name,
            Self::Columns(_) => "columns",
            other => {
                let is_same = |(_, known): &&(_, Self)| known == other;
                Self::OTHERS.iter().find(is_same).map_or("", |(name, _)| name)
            }
        }
    }
}

/// The number of bytes inspected.
pub(crate) const LOOKED_AT: usize = 16 << 10;
/// The most lines before the first recognised line.
const LINES: usize = 8;

pub(crate) fn detect(head: &[u8]) -> Result<Format, Error> {
    let word = head.first_chunk().map(|word| u32::from_ne_bytes(*word));
    let is_magic = |word: u32| word & !0xff == 0x6561_7400;
    if word.is_some_and(|word| is_magic(word) || is_magic(word.swap_bytes())) {
        return Ok(Format::Blktrace);
    }
    if let Some(version) = vscsi_version(head) {
        return Ok(Format::Vscsi(version));
    }
    let lines = head.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    for line in lines.filter(|line| !line.is_empty() && line[0] != b'#').take(LINES) {
        if let Some(version) = iolog_version(line) {
            return Ok(Format::Iolog(version));
        }
        if line.starts_with(b"TIME(ms)") {
            return Err(Error::Refused(
                "bpftrace's biosnoop.bt has no sectors; accepted: biosnoop of bcc, which has them",
            ));
        }
        for preset in PRESETS {
            let described = Description::parse(preset.columns)?;
            if described.fits(line) || is_shaped(preset.shape, described.delimiter, line) {
                return Ok(Format::Preset(preset));
            }
        }
        if is_shaped("iiiib", b' ', line) {
            return Err(Error::Refused(
                "five whole numbers are a row of MQSim in nanoseconds and one of DiskSim in milliseconds; accepted: \
                 --format=mqsim, --format=disksim",
            ));
        }
        if is_blkparse(line) {
            return Ok(Format::Blkparse);
        }
    }
    Err(Error::Unknown { begins: shown(head) })
}

/// Returns whether the cells of `line` have the given shape.
fn is_shaped(shape: &str, delimiter: u8, line: &[u8]) -> bool {
    if shape.is_empty() {
        return false;
    }
    let is_cell = |cell: &&[u8]| delimiter != b' ' || !cell.is_empty();
    let mut cells = line.split(|byte| *byte == delimiter).filter(is_cell).map(<[u8]>::trim_ascii);
    for kind in shape.bytes() {
        if kind == b'*' {
            return true;
        }
        let Some(cell) = cells.next() else { return false };
        let is_whole = !cell.is_empty() && cell.iter().all(u8::is_ascii_digit);
        let digit = |byte: &u8| byte.is_ascii_digit() || *byte == b'.';
        let is_fraction = !is_whole && cell.len() > 1 && cell.iter().all(digit);
        let fits = match kind {
            b'i' => is_whole,
            b'f' => is_fraction,
            b'n' => is_whole || is_fraction,
            b'w' => is_read_write(cell),
            b'b' => matches!(cell, b"0" | b"1"),
            _ => !cell.is_empty(),
        };
        if !fits {
            return false;
        }
    }
    cells.next().is_none()
}

/// A format with columns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Preset {
    /// The name, as `--format` accepts it.
    pub name: &'static str,
    /// The columns, as [`Description`] reads them.
    pub columns: &'static str,
    /// The shape of a row, by which a trace without a header is recognised, with a letter for each cell: `i` a whole
    /// number, `f` a number with a fraction, `n` either, `w` a word for read or write, `b` 0 or 1, `t` any text, `*`
    /// any further cells. Empty: not recognised.
    pub shape: &'static str,
    /// The origin of the format.
    pub about: &'static str,
    /// A caveat that reports must mention.
    pub caution: Option<&'static str>,
}

/// All presets.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "cloudphysics",
        columns: "time=us,time_us op=word,op offset=sectors,sector size=bytes,bytes",
        shape: "",
        about: "CloudPhysics (2013) as CSV with a header; the binary form is vscsi",
        caution: None,
    },
    Preset {
        name: "msr",
        columns: "time=100ns,1 group=2+3 volume=2+3 op=word,4 offset=bytes,5 size=bytes,6 latency=100ns,7",
        shape: "itiwiii",
        about: "MSR Cambridge (2007): ticks of 100 ns since 1601, host and disk are the tenant",
        caution: None,
    },
    Preset {
        name: "alibaba",
        columns: "group=1 volume=1 op=word,2 offset=bytes,3 size=bytes,4 time=us,5",
        shape: "iwiii",
        about: "Alibaba block traces (2020): each device is a tenant",
        caution: None,
    },
    Preset {
        name: "tencent",
        columns: "time=s,1 offset=sectors,2 size=sectors,3 op=0r1w,4 group=5 volume=5",
        shape: "iiibi",
        about: "Tencent CBS (2018): each volume is a tenant",
        caution: None,
    },
    Preset {
        name: "systor17",
        columns: "time=s,Timestamp latency=s,Response op=word,IOType group=LUN volume=LUN offset=bytes,Offset size=bytes,Size",
        shape: "",
        about: "SYSTOR '17 (2016): each LUN is a tenant",
        caution: None,
    },
    Preset {
        name: "thesios",
        columns: "time=s,start_time volume=filename offset=bytes,file_offset group=application class=service_class \
                  op=word,op_type size=bytes,request_io_size_bytes",
        shape: "",
        about: "Thesios (Google, 2024): applications are tenants, service classes are classes",
        caution: Some(
            "places are made up: the trace has files and offsets in them, no places on a disk",
        ),
    },
    Preset {
        name: "spc",
        columns: "group=1 volume=1 offset=sectors,2 size=bytes,3 op=word,4 time=s,5",
        shape: "iiiwn",
        about: "SPC (UMass OLTP and WebSearch): each ASU is a tenant",
        caution: None,
    },
    Preset {
        name: "fiu",
        columns: "delimiter=space time=ns,1 group=3 offset=sectors,4 size=sectors,5 op=word,6 volume=7+8",
        shape: "iitiiwii*",
        about: "FIU (2008 to 2014): each process is a tenant",
        caution: None,
    },
    Preset {
        name: "mqsim",
        columns: "delimiter=space time=ns,1 group=2 volume=2 offset=sectors,3 size=sectors,4 op=1r0w,5",
        shape: "",
        about: "MQSim's traces: nanoseconds",
        caution: Some(
            "1 is taken for a read and 0 for a write; where a converter wrote the reverse, describe the columns with op=0r1w,5",
        ),
    },
    Preset {
        name: "disksim",
        columns: "delimiter=space time=ms,1 group=2 volume=2 offset=sectors,3 size=sectors,4 op=1r0w,5",
        shape: "fiiib",
        about: "DiskSim's ASCII traces: milliseconds",
        caution: Some(
            "1 is taken for a read and 0 for a write; where a converter wrote the reverse, describe the columns with op=0r1w,5",
        ),
    },
    Preset {
        name: "biosnoop",
        columns: "delimiter=space wide=COMM stamp=completion time=s,TIME(s) group=COMM volume=DISK op=word,T \
                  offset=sectors,SECTOR size=bytes,BYTES queue=ms,QUE(ms)? latency=ms,LAT(ms)",
        shape: "",
        about: "biosnoop of bcc: each command is a tenant; arrivals are completions less the latency",
        caution: None,
    },
    Preset {
        name: "io-tracer",
        columns: "stamp=completion time=date,timestamp group=command op=word,operation offset=sectors,sector size=bytes,size \
                  latency=ms,latency_ms",
        shape: "",
        about: "io-tracer: each command is a tenant; arrivals are completions less the latency",
        caution: None,
    },
    Preset {
        name: "csv",
        columns: "time=ns,time_ns op=word,op offset=bytes,offset size=bytes,size group=tenant volume=volume class=class \
                  latency=ns,latency_ns?",
        shape: "",
        about: "the CSV that blkmq trace convert writes",
        caution: None,
    },
];

/// The most processes whose names are kept.
const MOST_PROCESSES: usize = 1 << 16;

/// The names that records give to processes.
#[derive(Default)]
pub(crate) struct Processes(BTreeMap<u32, Box<[u8]>>);

/// Reads the next record.
pub(crate) fn next_blktrace(
    input: &mut Input,
    processes: &mut Processes,
    event: Event,
    tables: &mut Tables<'_>,
) -> Result<Next, Error> {
    let offset = input.offset;
    let head = input.peek(HEADER_2 + MOST_PAYLOAD)?;
    let (record, length) = match blktrace::Record::decode(head, offset) {
        Ok(Some(found)) => found,
        Ok(None) => return Ok(Next::End),
        // A recording that was interrupted may end within a record.
        Err(TraceError::Truncated { .. }) => {
            let rest = head.len();
            input.skip(rest);
            return Ok(Next::Bad(Fault::Truncated));
        }
        Err(error) => return Err(error.into()),
    };
    let row = raw_blktrace(&record, processes, event, tables);
    input.skip(length);
    Ok(row.into())
}

fn raw_blktrace(
    record: &blktrace::Record<'_>,
    processes: &mut Processes,
    event: Event,
    tables: &mut Tables<'_>,
) -> Result<Option<Row>, Fault> {
    if record.has(category::NOTIFY) {
        let name = record.payload.split(|byte| *byte == 0).next().unwrap_or_default();
        let is_name = record.action & 0xffff == 0;
        if is_name && !name.is_empty() && processes.0.len() < MOST_PROCESSES {
            processes.0.insert(record.pid, name.into());
        }
        return Ok(None);
    }
    let wanted = match event {
        Event::Queued => Act::Queue,
        Event::Issued => Act::Issue,
    };
    if record.act() != Some(wanted) {
        return Ok(None);
    }
    let op = if record.has(category::DISCARD) {
        Op::Discard
    } else if record.has(category::WRITE_ZEROES) {
        Op::WriteZeroes
    } else if record.bytes == 0 && (record.has(category::FLUSH) || record.has(category::WRITE)) {
        Op::Flush
    } else if record.has(category::WRITE) {
        Op::Write
    } else if record.has(category::READ) {
        Op::Read
    } else {
        return Ok(None);
    };
    let device = format!("{},{}", record.device >> 20, record.device & 0xf_ffff);
    let number = record.pid.to_string();
    let name = processes.0.get(&record.pid).map_or(number.as_bytes(), |name| name);
    let ids = tables.ids(name, device.as_bytes())?;
    let text = || record.sector.to_string();
    let offset = record.sector.checked_mul(512);
    let offset = offset.ok_or_else(|| Fault::Range { field: "offset", text: text() })?;
    Ok(Some((record.time, Record::of(op, (offset, record.bytes.into()), ids))))
}

/// The version of a file, which determines the fields of its records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VscsiVersion {
    /// Serial number, length, segments, command, version, block, microseconds.
    V1,
    /// Command, version, serial number, length, segments, block, microseconds, response.
    V2,
}

impl VscsiVersion {
    fn length(self) -> usize {
        match self {
            Self::V1 => 32,
            Self::V2 => 40,
        }
    }
}

fn word16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn word64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Detects the version: the first records must have its number and known commands.
fn vscsi_version(head: &[u8]) -> Option<VscsiVersion> {
    const RECORDS: usize = 4;
    let is = |version: VscsiVersion, command: usize, number: u16| {
        let records = head.chunks_exact(version.length()).take(RECORDS);
        let fits = |record: &[u8]| {
            word16(record, command + 2) >> 8 == number && scsi(word16(record, command)).is_some()
        };
        head.len() >= version.length() && records.into_iter().all(fits)
    };
    if is(VscsiVersion::V1, 12, 1) {
        Some(VscsiVersion::V1)
    } else {
        is(VscsiVersion::V2, 0, 2).then_some(VscsiVersion::V2)
    }
}

/// Reads the next record.
pub(crate) fn next_vscsi(
    input: &mut Input,
    version: VscsiVersion,
    tables: &mut Tables<'_>,
) -> Result<Next, Error> {
    let length = version.length();
    let record = input.peek(length)?;
    if record.is_empty() {
        return Ok(Next::End);
    }
    if record.len() < length {
        let rest = record.len();
        input.skip(rest);
        return Ok(Next::Bad(Fault::Truncated));
    }
    let row = raw_vscsi(record, version, tables);
    input.skip(length);
    Ok(row.map_or_else(Next::Bad, Next::Io))
}

fn raw_vscsi(record: &[u8], version: VscsiVersion, tables: &mut Tables<'_>) -> Result<Row, Fault> {
    let (command, length, block) = match version {
        VscsiVersion::V1 => (12, 4, 16),
        VscsiVersion::V2 => (0, 8, 16),
    };
    let command = word16(record, command);
    let unknown = || Fault::Op {
        text: format!("{command:#x}"),
        accepted: "SCSI's codes of reads and writes",
    };
    let op = scsi(command).ok_or_else(unknown)?;
    let length = u32::from_le_bytes(record[length..length + 4].try_into().expect("four bytes"));
    let (sector, micros) = (word64(record, block), word64(record, block + 8));
    let times = |field, value: u64, unit| {
        let text = || value.to_string();
        value.checked_mul(unit).ok_or_else(|| Fault::Range { field, text: text() })
    };
    let (offset, stamp) = (times("offset", sector, 512)?, times("time", micros, 1_000)?);
    Ok((stamp, Record::of(op, (offset, length.into()), tables.ids(b"", b"")?)))
}

const BLKPARSE: &str = "blkparse";

/// Returns whether `line` looks like an event.
fn is_blkparse(line: &[u8]) -> bool {
    let mut cells = cells(line);
    let device = cells.next().unwrap_or_default();
    let digits = |cell: Option<&[u8]>| cell.is_some_and(|it| it.iter().all(u8::is_ascii_digit));
    device.contains(&b',')
        && device.iter().all(|byte| byte.is_ascii_digit() || *byte == b',')
        && digits(cells.next())
        && digits(cells.next())
        && cells.next().is_some_and(|time| time.contains(&b'.'))
}

fn cells(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|cell| !cell.is_empty())
}

/// Parses a line of the wanted event. Returns `None` for another event, and for the summary at the end.
pub(crate) fn blkparse_row(
    line: &[u8],
    event: Event,
    tables: &mut Tables<'_>,
) -> Result<Option<Row>, Fault> {
    if !line.trim_ascii_start().first().is_some_and(u8::is_ascii_digit) {
        return Ok(None);
    }
    if !is_blkparse(line) {
        return Err(Fault::Shape { format: BLKPARSE, text: shown(line) });
    }
    let mut cells = cells(line);
    let missing = |field| Fault::Missing { field };
    let mut next = |field| cells.next().ok_or(missing(field));
    let (device, _, _, time) = (next("device")?, next("cpu")?, next("sequence")?, next("time")?);
    let (process, act, letters) = (next("process")?, next("action")?, next("letters")?);
    let wanted = match event {
        Event::Queued => b"Q",
        Event::Issued => b"D",
    };
    if act != wanted {
        return Ok(None);
    }
    let Some(op) = op_of_rwbs(letters) else { return Ok(None) };
    let stamp = scaled("time", time, 1_000_000_000)?;
    let (mut offset, mut length) = (0, 0);
    if let Some(sector) = cells.next().filter(|cell| !matches!(cell[0], b'[' | b'(')) {
        offset = scaled("offset", whole_cell(sector)?, 512)?;
        if cells.next() != Some(b"+") {
            return Err(Fault::Shape { format: BLKPARSE, text: shown(line) });
        }
        length = scaled("size", whole_cell(cells.next().ok_or(missing("size"))?)?, 512)?;
    }
    let name = name(line).or(cells.next()).unwrap_or(process);
    // A bare flush is queued without a length; a write preceded by a flush may be, too.
    let op = if length == 0 && op == Op::Write { Op::Flush } else { op };
    Ok(Some((stamp, Record::of(op, (offset, length), tables.ids(name, device)?))))
}

/// Finds the name of the process, which may contain blanks and brackets, and follows the times that `blkparse -t`
/// prints.
fn name(line: &[u8]) -> Option<&[u8]> {
    let from = memchr::memchr(b'[', line)? + 1;
    let to = memchr::memrchr(b']', line)?;
    line.get(from..to)
}

/// Checks that a cell is a whole number.
fn whole_cell(cell: &[u8]) -> Result<&[u8], Fault> {
    whole("offset", cell).map(|_| cell)
}

/// The version of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IologVersion {
    /// Version 2, with waits.
    V2,
    /// Version 3, with times.
    V3,
}

/// The version that the first line names.
fn iolog_version(line: &[u8]) -> Option<IologVersion> {
    match line {
        b"fio version 2 iolog" => Some(IologVersion::V2),
        b"fio version 3 iolog" => Some(IologVersion::V3),
        _ => None,
    }
}

/// Parses a line. Returns `None` if it opens or closes a file, or waits. `clock` is the time reached in a log of
/// version 2.
pub(crate) fn iolog_row(
    line: &[u8],
    of: IologVersion,
    clock: &mut u64,
    tables: &mut Tables<'_>,
) -> Result<Option<Row>, Fault> {
    if line.trim_ascii().is_empty() || iolog_version(line).is_some() {
        return Ok(None);
    }
    let mut cells = cells(line);
    let missing = |field| Fault::Missing { field };
    let stamp = match of {
        IologVersion::V2 => *clock,
        IologVersion::V3 => scaled("time", cells.next().ok_or(missing("time"))?, 1_000)?,
    };
    let file = cells.next().ok_or(missing("file"))?;
    let action = cells.next().ok_or(missing("action"))?;
    let op = match action {
        b"add" | b"open" | b"close" => return Ok(None),
        b"wait" if of == IologVersion::V2 => {
            let wait = scaled("wait", cells.next().ok_or(missing("wait"))?, 1_000)?;
            let after = clock.checked_add(wait);
            *clock = after.ok_or_else(|| Fault::Range { field: "wait", text: shown(line) })?;
            return Ok(None);
        }
        b"read" => Op::Read,
        b"write" => Op::Write,
        b"trim" => Op::Discard,
        b"sync" | b"datasync" => Op::Flush,
        _ => {
            let accepted =
                "read, write, trim, sync, datasync, add, open, close, and wait in version 2";
            return Err(Fault::Op { text: shown(action), accepted });
        }
    };
    let (offset, length) = match op {
        Op::Flush => (0, 0),
        _ => {
            let offset = whole("offset", cells.next().ok_or(missing("offset"))?)?;
            (offset, whole("size", cells.next().ok_or(missing("size"))?)?)
        }
    };
    Ok(Some((stamp, Record::of(op, (offset, length), tables.ids(file, file)?))))
}
