//! fio's iologs. In version 2 a line is `file action offset length`, with waits between the I/Os; in version 3 each
//! line begins with microseconds from the start.

use crate::columns::Tables;
use crate::fault::{Fault, shown};
use crate::number::{scaled, whole};
use crate::record::Raw;
use blkmq_core::{IoPrio, Op};

/// The version of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// Version 2, with waits.
    V2,
    /// Version 3, with times.
    V3,
}

/// The version that the first line names.
pub(crate) fn version(line: &[u8]) -> Option<Version> {
    match line {
        b"fio version 2 iolog" => Some(Version::V2),
        b"fio version 3 iolog" => Some(Version::V3),
        _ => None,
    }
}

/// Parses a line. Returns `None` if it opens or closes a file, or waits. `clock` is the time reached in a log of
/// version 2.
pub(crate) fn row(
    line: &[u8],
    of: Version,
    clock: &mut u64,
    tables: &mut Tables<'_>,
) -> Result<Option<Raw>, Fault> {
    if line.trim_ascii().is_empty() || version(line).is_some() {
        return Ok(None);
    }
    let mut cells = line.split(u8::is_ascii_whitespace).filter(|cell| !cell.is_empty());
    let missing = |field| Fault::Missing { field };
    let stamp = match of {
        Version::V2 => *clock,
        Version::V3 => scaled("time", cells.next().ok_or(missing("time"))?, 1_000)?,
    };
    let file = cells.next().ok_or(missing("file"))?;
    let action = cells.next().ok_or(missing("action"))?;
    let op = match action {
        b"add" | b"open" | b"close" => return Ok(None),
        b"wait" if of == Version::V2 => {
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
