//! The lines of blkparse: device, CPU, sequence, seconds, process, action, letters, and for an I/O its sector and
//! length.

use crate::columns::{Tables, op_of_rwbs};
use crate::fault::{Fault, shown};
use crate::number::{scaled, whole};
use crate::record::{Event, Raw};
use blkmq_core::{IoPrio, Op};

const FORMAT: &str = "blkparse";

/// Returns whether `line` looks like an event.
pub(crate) fn is_line(line: &[u8]) -> bool {
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
pub(crate) fn row(
    line: &[u8],
    event: Event,
    tables: &mut Tables<'_>,
) -> Result<Option<Raw>, Fault> {
    if !line.trim_ascii_start().first().is_some_and(u8::is_ascii_digit) {
        return Ok(None);
    }
    if !is_line(line) {
        return Err(Fault::Shape { format: FORMAT, text: shown(line) });
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
            return Err(Fault::Shape { format: FORMAT, text: shown(line) });
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
