//! The sources of recordings: a trace of a device as blktrace's records, and a log of the calls of its scheduler.

use super::session::{Counts, Source};
use crate::worker::Shared;
use blkmq::{GroupIndex, Instant, Nanos, PolicyObserver, Trace, TraceError};
use blkmq_trace::elevator_log::{ElevatorLog, Log};
use blkmq_trace::record::Record;
use blkmq_trace::{Order, Stream};
use std::sync::Arc;

/// The maximum number of notes taken from the queue at a time.
const AT_A_TIME: usize = 1024;
/// The size of a note in the memory of a trace, in bytes.
const NOTE: u64 = 40;

pub(super) struct Blktrace {
    shared: Arc<Shared>,
    /// The index of its disk.
    disk: usize,
    trace: Trace,
    stream: Stream,
    recorded: u64,
    /// Whether the last poll found no note.
    is_idle: bool,
}

impl Blktrace {
    /// Begins a trace of the device at `disk`, with `buffer` bytes for each elevator.
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

    /// Takes up to [`AT_A_TIME`] notes. Returns whether there may be more.
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

/// The name of the export that has `group`.
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
        // This fails only for a failed queue, which has no more events.
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

/// How long to wait for I/Os in flight, so that the device can get a new instance of its scheduler.
const PATIENCE: Nanos = Nanos::from_secs(5);

/// A log of the calls of a device's scheduler. All bytes are produced at its end, because only then is the length of
/// each part known.
pub(super) struct Elevator {
    shared: Arc<Shared>,
    /// The index of its disk.
    disk: usize,
    log: ElevatorLog,
    counts: Counts,
}

impl Elevator {
    /// Begins a log of `bytes` bytes.
    pub(super) fn begin(
        shared: &Arc<Shared>,
        disk: usize,
        bytes: usize,
    ) -> Result<Self, TraceError> {
        let log = ElevatorLog::new(bytes);
        let observer: Arc<dyn PolicyObserver> = Arc::new(log.clone());
        shared.disks[disk].service().observe_policies(&observer, PATIENCE)?;
        Ok(Self { shared: Arc::clone(shared), disk, log, counts: Counts::default() })
    }
}

impl Source for Elevator {
    fn take(&mut self, _: Instant, _: usize, _: &mut Vec<u8>) {}

    fn is_full(&self) -> bool {
        self.log.is_full()
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        // This fails only for a failed queue, whose scheduler is not called any more.
        let _ = self.shared.disks[self.disk].service().unobserve_policies();
        let bytes = self.log.bytes(&format!("blkmqctl elevator-log --device={}", self.disk + 1));
        if let Ok(log) = Log::parse(&bytes) {
            let recorded = log.instances.iter().map(|it| it.calls().count() as u64).sum();
            self.counts = Counts { recorded, dropped: self.log.missed() };
        }
        self.log = ElevatorLog::new(0);
        out.extend_from_slice(&bytes);
    }

    fn counts(&self) -> Counts {
        self.counts
    }

    fn cut(&self, _: &[u8], most: usize) -> usize {
        most
    }
}
