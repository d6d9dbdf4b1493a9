//! Binary records: blktrace's, versions 1 and 2, of which only one kind of event yields I/Os, by default their queueing;
//! and those of VMware's vscsi tracer, of versions 1 (32 bytes) and 2 (40 bytes), little endian.

use crate::columns::{Tables, scsi};
use crate::error::{Error, Fault, Next};
use crate::input::Input;
use crate::record::{Event, Raw};
use blkmq_core::{IoPrio, Op};
use blkmq_trace::record::{Act, HEADER_2, MOST_PAYLOAD, Record, TraceError, category};
use std::collections::BTreeMap;

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
    let (record, length) = match Record::decode(head, offset) {
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
    Ok(match row {
        Ok(Some(raw)) => Next::Io(raw),
        Ok(None) => Next::Other,
        Err(fault) => Next::Bad(fault),
    })
}

fn raw_blktrace(
    record: &Record<'_>,
    processes: &mut Processes,
    event: Event,
    tables: &mut Tables<'_>,
) -> Result<Option<Raw>, Fault> {
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
    let (tenant, volume) = tables.ids(name, device.as_bytes())?;
    let text = || record.sector.to_string();
    let offset = record.sector.checked_mul(512);
    let offset = offset.ok_or_else(|| Fault::Range { field: "offset", text: text() })?;
    let (offset, length) = if op == Op::Flush { (0, 0) } else { (offset, record.bytes.into()) };
    let (stamp, prio) = (record.time, IoPrio::default());
    Ok(Some(Raw { stamp, op, offset, length, tenant, volume, prio, latency: None }))
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
pub(crate) fn vscsi_version(head: &[u8]) -> Option<VscsiVersion> {
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

fn raw_vscsi(record: &[u8], version: VscsiVersion, tables: &mut Tables<'_>) -> Result<Raw, Fault> {
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
    let (tenant, volume) = tables.ids(b"", b"")?;
    let (offset, length) = if op == Op::Flush { (0, 0) } else { (offset, length.into()) };
    Ok(Raw { stamp, op, offset, length, tenant, volume, prio: IoPrio::default(), latency: None })
}
