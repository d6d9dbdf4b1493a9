//! Traces in the format of blktrace: the events of every I/O, as `blkparse` and `btt` read them.
//!
//! [`record`] is the format, without I/O: bytes to records and back. A [`Tracer`] gathers events while a queue is used,
//! in real or virtual time: in a bounded buffer for each CPU, and one for threads that are on none. The code that runs
//! a thread states its CPU and process ([`on_cpu`]): a job's thread once, a simulation before every turn. So observers
//! need not know them. A [`Traced`] port traces a client: its I/Os, cuts, its plug, and merges there.
//! [`Observation`](crate::observe::Observation) attaches observers to policies and devices.
//!
//! Letters are blktrace's. `Q` is an I/O as its client submits it, whole; an `X` follows for each cut. `M` and `F` are
//! I/Os that joined a request, in a plug or in an elevator, and requests that were fused (`M`). `G` and `I` coincide
//! here: a request takes its tag when it is inserted. `D` is a request that a device has accepted. The process number
//! is that of the running thread, as in Linux.

use crate::workload::Port;
use blkmq_core::{Instant, IoFlags, IoResult, Limits, Op, SECTOR_SIZE};
use blkmq_engine::{DeviceShape, Io, PLUG_SECTORS, Refused, WriteCache};
pub use blkmq_trace::record;
use record::{Act, Record, category};
use std::cell::Cell;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

thread_local! {
    /// The CPU that this thread is, and the process number.
    static HERE: Cell<Option<(u16, u32)>> = const { Cell::new(None) };
}

/// The events of this thread from here on are on `cpu`, by process `pid`.
pub fn on_cpu(cpu: u16, pid: u32) {
    HERE.set(Some((cpu, pid)));
}

/// An I/O or a request, and an event of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Event {
    pub(crate) act: Act,
    pub(crate) op: Op,
    pub(crate) flags: IoFlags,
    pub(crate) sector: u64,
    pub(crate) sectors: u32,
}

/// A record as it is kept.
#[derive(Clone, Copy, Default)]
struct Kept {
    time: u64,
    sector: u64,
    bytes: u32,
    action: u32,
    pid: u32,
    error: u16,
    /// The number in the payload.
    number: Option<u64>,
}

/// The events of one CPU, in order.
#[derive(Default)]
struct Kepts {
    events: Vec<Kept>,
    missed: u64,
    latest: u64,
}

/// The events of one CPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Buffer {
    /// The number of the CPU.
    pub cpu: u32,
    /// The records, as they are in a file.
    pub bytes: Vec<u8>,
    /// Events lost because the buffer was full.
    pub missed: u64,
}

/// A clock for events, where the times passed to the tracer are not exact enough.
type Clock = Box<dyn Fn() -> Instant + Send + Sync>;

struct Inner {
    cpus: Box<[Mutex<Kepts>]>,
    capacity: usize,
    clock: Mutex<Option<Clock>>,
}

/// Gathers events; clones share them.
#[derive(Clone)]
pub struct Tracer(Arc<Inner>);

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracer").field("cpus", &self.0.cpus.len()).finish_non_exhaustive()
    }
}

impl Tracer {
    /// A tracer for `cpus` CPUs, on each of which `capacity` events are kept. All other threads count as one more
    /// CPU. Allocates as it fills.
    #[must_use]
    pub fn new(cpus: u16, capacity: usize) -> Self {
        let cpus = (0..=cpus).map(|_| Mutex::default()).collect();
        Self(Arc::new(Inner { cpus, capacity, clock: Mutex::new(None) }))
    }

    /// From now on events take their times from `clock`. In virtual time the times passed by callers are exact.
    pub fn set_clock(&self, clock: impl Fn() -> Instant + Send + Sync + 'static) {
        *self.0.clock.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(clock));
    }

    fn time(&self, told: Instant) -> Instant {
        let clock = self.0.clock.lock().unwrap_or_else(PoisonError::into_inner);
        clock.as_ref().map_or(told, |clock| clock())
    }

    /// The buffer for this thread, and its process number.
    fn here(&self) -> (MutexGuard<'_, Kepts>, u32) {
        let elsewhere = self.0.cpus.len() - 1;
        let (cpu, pid) = HERE.get().map_or((elsewhere, 0), |(cpu, pid)| (cpu.into(), pid));
        let buffer = &self.0.cpus[cpu.min(elsewhere)];
        (buffer.lock().unwrap_or_else(PoisonError::into_inner), pid)
    }

    fn keep(&self, at: Instant, event: Kept) {
        let time = self.time(at).as_nanos();
        let (mut here, pid) = self.here();
        // Times may differ a little between two threads that share a CPU; a trace does not run backwards.
        here.latest = here.latest.max(time);
        if here.events.len() < self.0.capacity {
            let time = here.latest;
            here.events.push(Kept { time, pid, ..event });
        } else {
            here.missed += 1;
        }
    }

    fn kept(event: Event) -> Kept {
        let Event { act, op, flags, sector, sectors } = event;
        let action = record::action(act, op, flags);
        let bytes = sectors.saturating_mul(SECTOR_SIZE);
        Kept { sector, bytes, action, ..Kept::default() }
    }

    /// Records an event of an I/O or a request.
    pub(crate) fn note(&self, at: Instant, event: Event) {
        self.keep(at, Self::kept(event));
    }

    /// Records that an I/O is split, and continues at `rest`.
    pub(crate) fn split(&self, at: Instant, event: Event, rest: u64) {
        self.keep(at, Kept { number: Some(rest), ..Self::kept(event) });
    }

    /// Records that a request has ended.
    pub(crate) fn ended(&self, at: Instant, event: Event, result: IoResult) {
        let error = result.err().map_or(0, |error| error.0);
        self.keep(at, Kept { error, ..Self::kept(event) });
    }

    /// Records that a plug has its first request, or is flushed with `requests` in it.
    pub(crate) fn plug(&self, at: Instant, requests: Option<u32>) {
        let act = if requests.is_some() { Act::Unplug } else { Act::Plug };
        let (number, action) = (requests.map(u64::from), record::plug_action(act));
        self.keep(at, Kept { action, number, ..Kept::default() });
    }

    /// The number of events, on all CPUs, that are missing from the trace.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.0.cpus.iter().map(|cpu| cpu.lock().map_or(0, |kept| kept.missed)).sum()
    }

    /// Takes all events out, CPU by CPU, as the files of a trace. `names` are those of processes by number; they come
    /// first, on the first CPU, where readers look for them. Events of threads on no CPU come last.
    #[must_use]
    pub fn buffers(&self, names: &[(u32, &str)]) -> Vec<Buffer> {
        let mut buffers = Vec::new();
        for (cpu, kept) in self.0.cpus.iter().enumerate() {
            let kept = std::mem::take(&mut *kept.lock().unwrap_or_else(PoisonError::into_inner));
            let is_elsewhere = cpu + 1 == self.0.cpus.len();
            if is_elsewhere && kept.events.is_empty() && kept.missed == 0 {
                continue;
            }
            let mut bytes = Vec::new();
            let mut sequence = 0;
            let action = u64::from(category::NOTIFY) << 16;
            let (device, cpu) = (record::MAJOR, cpu as u32);
            let base = Record { action, device, cpu, ..Record::default() };
            let mut put = |record: Record<'_>| {
                sequence += 1;
                Record { sequence, ..record }.encode(&mut bytes);
            };
            for (pid, name) in names.iter().filter(|_| cpu == 0) {
                let payload = record::process_name(name);
                put(Record { pid: *pid, payload: &payload, ..base });
            }
            for &Kept { time, sector, bytes, action, pid, error, number } in &kept.events {
                // Numbers in a payload are big-endian on every machine.
                let number = number.map(u64::to_be_bytes);
                let payload = number.as_ref().map_or(&[][..], |number| number);
                let action = action.into();
                put(Record { time, sector, bytes, action, pid, error, payload, ..base });
            }
            buffers.push(Buffer { cpu, bytes, missed: kept.missed });
        }
        buffers
    }
}

/// A port that shows the state of its plug.
pub trait Plugged {
    /// Requests in the plug, and I/Os that have merged there so far.
    fn plugged(&self) -> (u32, u64);
}

/// The state of one client.
#[derive(Clone, Debug)]
pub struct ClientTrace {
    tracer: Tracer,
    limits: Limits,
    /// Whether bare flushes go to the device.
    flushes: bool,
    /// The newest request in the plug: its start and its end.
    newest: (u64, u64),
}

impl ClientTrace {
    /// A client without any I/O yet, on a device of this shape.
    #[must_use]
    pub fn new(tracer: Tracer, shape: &DeviceShape) -> Self {
        let flushes = shape.cache != WriteCache::Through;
        Self { tracer, limits: shape.limits, flushes, newest: (0, 0) }
    }

    /// Before a push.
    fn queued(&self, at: Instant, io: Event) {
        self.tracer.note(at, io);
        if io.op == Op::Flush {
            return;
        }
        let mut parts = self.limits.parts(io.op, io.sector, io.sectors).peekable();
        while let Some((sector, sectors)) = parts.next() {
            if let Some((rest, _)) = parts.peek() {
                let part = Event { act: Act::Split, sector, sectors, ..io };
                self.tracer.split(at, part, *rest);
            }
        }
    }

    /// After a push, where the plug's counts were `before` and are `after`.
    fn pushed(&mut self, at: Instant, io: Event, before: (u32, u64), after: (u32, u64)) {
        let end = io.sector + u64::from(io.sectors);
        if after.1 > before.1 {
            let front = end == self.newest.0;
            let act = if front { Act::FrontMerge } else { Act::BackMerge };
            self.tracer.note(at, Event { act, ..io });
            self.newest = (self.newest.0.min(io.sector), self.newest.1.max(end));
            return;
        }
        // The plug was flushed to make room; I/Os that merged in the elevator, as with a lock for each I/O, left it
        // unchanged.
        let full = self.newest.1 - self.newest.0 >= PLUG_SECTORS.into();
        let flushed = before.0 > 0 && (after.0 < before.0 || after.0 == before.0 && full);
        if flushed {
            self.tracer.plug(at, Some(before.0));
        }
        if after.0 > 0 && (flushed || before.0 == 0) {
            self.tracer.plug(at, None);
        }
        self.newest = (io.sector, end);
    }
}

/// A port that traces the calls that pass through it.
pub struct Traced<'a, T> {
    /// The real one.
    pub port: &'a mut T,
    /// The trace.
    pub trace: &'a mut ClientTrace,
}

impl<P, T: Port<P> + Plugged> Port<P> for Traced<'_, T> {
    fn now(&self) -> Instant {
        self.port.now()
    }

    fn push(&mut self, now: Instant, io: Io<P>) -> Result<(), Refused<P>> {
        let Io { op, flags, sector, sectors, .. } = io;
        let event = Event { act: Act::Queue, op, flags, sector, sectors };
        if op == Op::Flush && !self.trace.flushes {
            // Such a flush completes immediately. Linux does not trace it either.
            return self.port.push(now, io);
        }
        let event = if op == Op::Flush {
            Event { flags: flags | IoFlags::PREFLUSH, ..event }
        } else {
            event
        };
        let at = self.port.now();
        self.trace.queued(at, event);
        let before = self.port.plugged();
        self.port.push(now, io)?;
        self.trace.pushed(at, event, before, self.port.plugged());
        Ok(())
    }

    fn flush(&mut self, now: Instant) {
        let (requests, _) = self.port.plugged();
        if requests > 0 {
            self.trace.tracer.plug(self.port.now(), Some(requests));
        }
        self.port.flush(now);
    }

    fn cancel(&mut self, now: Instant, cookie: u64) {
        self.port.cancel(now, cookie);
    }

    fn outstanding(&self) -> u32 {
        self.port.outstanding()
    }

    fn measuring_begins(&mut self) {
        self.port.measuring_begins();
    }

    fn measuring_ends(&mut self) {
        self.port.measuring_ends();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::record::records;

    fn read(sector: u64) -> Event {
        Event { act: Act::Queue, op: Op::Read, flags: IoFlags::SYNC, sector, sectors: 8 }
    }

    #[test]
    fn events_are_on_the_cpu_of_who_notes_them() {
        let tracer = Tracer::new(2, 3);
        tracer.note(Instant::from_nanos(9), read(1));
        on_cpu(1, 77);
        tracer.note(Instant::from_nanos(5), read(2));
        tracer.plug(Instant::from_nanos(4), Some(6));
        tracer.note(Instant::from_nanos(6), read(3));
        tracer.note(Instant::from_nanos(7), read(4));
        assert_eq!(tracer.missed(), 1);
        let buffers = tracer.buffers(&[(77, "a name that is far too long")]);
        let counts: Vec<_> =
            buffers.iter().map(|b| (b.cpu, records(&b.bytes).count(), b.missed)).collect();
        assert_eq!(counts, [(0, 1, 0), (1, 3, 1), (2, 1, 0)]);
        let all: Vec<_> = records(&buffers[1].bytes).map(|r| r.expect("written here")).collect();
        let told: Vec<_> = all.iter().map(|r| (r.sequence, r.time, r.pid, r.cpu)).collect();
        assert_eq!(told, [(1, 5, 77, 1), (2, 5, 77, 1), (3, 6, 77, 1)]);
        assert_eq!(all[1].payload, 6u64.to_be_bytes());
        let name = records(&buffers[0].bytes).next().expect("one").expect("a record");
        assert_eq!(name.payload, b"a name that is \0");
    }
}
