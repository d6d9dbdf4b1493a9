//! Records of VMware's vscsi tracer, of versions 1 (32 bytes) and 2 (40 bytes), little endian.

use crate::columns::Tables;
use crate::error::Error;
use crate::fault::Fault;
use crate::input::Input;
use crate::next::Next;
use crate::record::Raw;
use blkmq_core::{IoPrio, Op};

/// The version of a file, which determines the fields of its records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// Serial number, length, segments, command, version, block, microseconds.
    V1,
    /// Command, version, serial number, length, segments, block, microseconds, response.
    V2,
}

impl Version {
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
pub(crate) fn version(head: &[u8]) -> Option<Version> {
    const RECORDS: usize = 4;
    let is = |version: Version, command: usize, number: u16| {
        let records = head.chunks_exact(version.length()).take(RECORDS);
        let fits = |record: &[u8]| {
            word16(record, command + 2) >> 8 == number && op(word16(record, command)).is_some()
        };
        head.len() >= version.length() && records.into_iter().all(fits)
    };
    if is(Version::V1, 12, 1) {
        Some(Version::V1)
    } else {
        is(Version::V2, 0, 2).then_some(Version::V2)
    }
}

fn op(command: u16) -> Option<Op> {
    crate::columns::scsi(command)
}

/// Reads the next record.
pub(crate) fn next(
    input: &mut Input,
    version: Version,
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
    let row = raw(record, version, tables);
    input.skip(length);
    Ok(row.map_or_else(Next::Bad, Next::Io))
}

fn raw(record: &[u8], version: Version, tables: &mut Tables<'_>) -> Result<Raw, Fault> {
    let (command, length, block) = match version {
        Version::V1 => (12, 4, 16),
        Version::V2 => (0, 8, 16),
    };
    let command = word16(record, command);
    let unknown = || Fault::Op {
        text: format!("{command:#x}"),
        accepted: "SCSI's codes of reads and writes",
    };
    let op = op(command).ok_or_else(unknown)?;
    let length = u32::from_le_bytes(record[length..length + 4].try_into().expect("four bytes"));
    let (sector, micros) = (word64(record, block), word64(record, block + 8));
    let times = |field, value: u64, unit| {
        let text = || value.to_string();
        value.checked_mul(unit).ok_or_else(|| Fault::Range { field, text: text() })
    };
    let (offset, stamp) = (times("offset", sector, 512)?, times("time", micros, 1_000)?);
    let (tenant, volume) = tables.ids(b"", b"")?;
    let (offset, length) = if op == Op::Flush { (0, 0) } else { (offset, length.into()) };
    Ok(Raw { stamp, op, offset, length, tenant, volume, prio: IoPrio::default(), latency: None })
}
