//! A trace of a device, as a source of blktrace's records.

use super::session::{Counts, Source};
use crate::worker::Shared;
use blkmq::{GroupIndex, Instant, Trace, TraceError};
use blkmq_trace::record::Record;
use blkmq_trace::{Order, Stream};
use std::sync::Arc;

/// Notes that are taken from the queue at a time.
const AT_A_TIME: usize = 1024;
/// Bytes of a note in the memory of a trace.
const NOTE: u64 = 40;

pub(super) struct Blktrace {
    shared: Arc<Shared>,
    /// The place of its device.
    disk: usize,
    trace: Trace,
    stream: Stream,
    recorded: u64,
    /// No note was there when it was last looked for some.
    is_idle: bool,
}

impl Blktrace {
    /// Begins a trace with `buffer` bytes for each elevator of the device at `disk`.
    pub(super) fn begin(
        shared: &Arc<Shared>,
        disk: usize,
        buffer: u64,
    ) -> Result<Self, TraceError> {
        let notes = u32::try_from(buffer / NOTE).unwrap_or(u32::MAX);
        let trace = shared.disks[disk].service().begin_trace(notes)?;
        let minor = u16::try_from(disk).unwrap_or(u16::MAX);
        let (shared, stream) = (Arc::clone(shared), Stream::new(minor));
        Ok(Self { shared, disk, trace, stream, recorded: 0, is_idle: false })
    }

    /// Takes up to [`AT_A_TIME`] notes; true if there may be more.
    fn read(&mut self) -> bool {
        let before = self.recorded;
        let Self { trace, stream, recorded, .. } = self;
        let more = trace.read(AT_A_TIME, |event| {
            *recorded += 1;
            stream.push(event);
        });
        self.is_idle = self.recorded == before;
        more
    }

    fn write(&mut self, order: Order, out: &mut Vec<u8>) {
        let Self { shared, disk, stream, .. } = self;
        stream.write(order, |group| name(shared, *disk, group), out);
    }
}

/// The name of the export whose I/Os are of `group`.
fn name(shared: &Shared, disk: usize, group: GroupIndex) -> String {
    let exports = shared.exports.now();
    let mut all = exports.all().filter(|export| export.disk == disk);
    let of = all.find(|export| export.group.id().index() == group);
    of.map_or_else(|| format!("group {}", group.0), |export| export.info.name.clone())
}

impl Source for Blktrace {
    fn take(&mut self, now: Instant, room: usize, out: &mut Vec<u8>) {
        if self.is_idle {
            self.shared.disks[self.disk].service().queue().settle_trace();
        }
        let begin = out.len();
        loop {
            let more = self.read();
            self.write(Order::Until(now), out);
            if !more || out.len() - begin >= room {
                break;
            }
        }
    }

    fn is_full(&self) -> bool {
        false
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        // It is refused for a queue that has failed, and then there are no more events either.
        let _ = self.shared.disks[self.disk].service().end_trace(&self.trace);
        while self.read() {}
        self.write(Order::End, out);
    }

    fn counts(&self) -> Counts {
        Counts { recorded: self.recorded, dropped: self.trace.lost() }
    }

    fn cut(&self, bytes: &[u8], most: usize) -> usize {
        let mut at = 0;
        while let Ok(Some((_, length))) = Record::decode(&bytes[at..], 0)
            && at + length <= most
        {
            at += length;
        }
        at
    }
}
