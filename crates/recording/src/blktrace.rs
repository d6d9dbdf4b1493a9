//! blktrace's binary records, versions 1 and 2. Only one kind of event yields I/Os, by default their queueing.

use crate::columns::Tables;
use crate::error::Error;
use crate::fault::Fault;
use crate::input::Input;
use crate::next::Next;
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
pub(crate) fn next(
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
    let row = raw(&record, processes, event, tables);
    input.skip(length);
    Ok(match row {
        Ok(Some(raw)) => Next::Io(raw),
        Ok(None) => Next::Other,
        Err(fault) => Next::Bad(fault),
    })
}

fn raw(
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
