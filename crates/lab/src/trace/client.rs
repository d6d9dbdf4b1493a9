//! Traces a client: its I/Os, cuts, its plug, and merges there.

use super::record::Act;
use super::{Event, Tracer};
use crate::workload::Port;
use blkmq_core::{Instant, IoFlags, Limits, Op};
use blkmq_engine::{DeviceShape, Io, PLUG_SECTORS, Refused, WriteCache};

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

    /// After a push that found the plug like `before` and left it like `after`.
    fn pushed(&mut self, at: Instant, io: Event, before: (u32, u64), after: (u32, u64)) {
        let end = io.sector + u64::from(io.sectors);
        if after.1 > before.1 {
            let front = end == self.newest.0;
            let act = if front { Act::FrontMerge } else { Act::BackMerge };
            self.tracer.note(at, Event { act, ..io });
            self.newest = (self.newest.0.min(io.sector), self.newest.1.max(end));
            return;
        }
        // The plug was flushed to make room; I/Os that merged in the elevator, as with one lock for each, left it
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
