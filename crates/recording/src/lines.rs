//! Lines of text without columns.
//!
//! blkparse's have device, CPU, sequence, seconds, process, action, letters, and for an I/O its sector and length. In
//! version 2 of fio's iologs a line is `file action offset length`, with waits between the I/Os; in version 3 each line
//! begins with microseconds from the start.

use crate::columns::{Tables, op_of_rwbs};
use crate::error::{Fault, shown};
use crate::number::{scaled, whole};
use crate::record::{Event, Raw};
use blkmq_core::{IoPrio, Op};

const BLKPARSE: &str = "blkparse";

/// Returns whether `line` looks like an event.
pub(crate) fn is_blkparse(line: &[u8]) -> bool {
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
) -> Result<Option<Raw>, Fault> {
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
    let (tenant, volume) = tables.ids(name, device)?;
    // A bare flush is queued without a length; a write preceded by a flush may be, too.
    let op = if length == 0 && op == Op::Write { Op::Flush } else { op };
    let (offset, length) = if op == Op::Flush { (0, 0) } else { (offset, length) };
    let (prio, latency) = (IoPrio::default(), None);
    Ok(Some(Raw { stamp, op, offset, length, tenant, volume, prio, latency }))
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
pub(crate) fn iolog_version(line: &[u8]) -> Option<IologVersion> {
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
) -> Result<Option<Raw>, Fault> {
    if line.trim_ascii().is_empty() || iolog_version(line).is_some() {
        return Ok(None);
    }
    let mut cells = line.split(u8::is_ascii_whitespace).filter(|cell| !cell.is_empty());
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
    let (tenant, volume) = tables.ids(file, file)?;
    let (prio, latency) = (IoPrio::default(), None);
    Ok(Some(Raw { stamp, op, offset, length, tenant, volume, prio, latency }))
}
