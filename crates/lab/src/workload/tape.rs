//! The I/Os of a recording, each with its time, as the stream of a thread.
//!
//! In an open loop each I/O leaves at its time after the start, whatever the device does. An I/O that drains waits for
//! all earlier ones, and its time counts from then: so a replay of a process that waited for its answers waits for
//! those of this device.

use super::{Direction, NextIo};
use blkmq_core::{Histogram, Instant, IoPrio, Nanos, Op};
use std::fmt;
use std::sync::Arc;

/// An I/O of a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taped {
    /// Time after the start, or after the last I/O that drained was issued.
    pub at: Nanos,
    /// Waits until nothing is in flight; `at` then counts from that moment.
    pub drains: bool,
    /// The I/O.
    pub io: NextIo,
}

/// The I/Os of a thread, in the order of issue.
#[derive(Clone, PartialEq, Eq)]
pub struct Tape {
    ios: Vec<Taped>,
    is_timed: bool,
}

impl fmt::Debug for Tape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a tape of {} I/Os", self.ios.len())
    }
}

impl Tape {
    /// A tape of `ios`.
    #[must_use]
    pub fn new(ios: Vec<Taped>) -> Self {
        Self { ios, is_timed: true }
    }

    /// Issues the I/Os of `self` as fast as their thread can: times and drains have no effect.
    #[must_use]
    pub fn without_times(self) -> Self {
        Self { is_timed: false, ..self }
    }

    /// Returns whether the times of the I/Os have an effect.
    pub(super) fn is_timed(&self) -> bool {
        self.is_timed
    }

    /// The I/Os.
    #[must_use]
    pub fn ios(&self) -> &[Taped] {
        &self.ios
    }

    /// The sector behind the last one that an I/O touches.
    #[must_use]
    pub fn end(&self) -> u64 {
        let ends =
            self.ios.iter().map(|taped| taped.io.sector.saturating_add(taped.io.sectors.into()));
        ends.max().unwrap_or(0)
    }

    /// Returns whether there is a flush among them.
    pub(super) fn flushes(&self) -> bool {
        self.ios.iter().any(|taped| taped.io.op == Op::Flush)
    }

    /// The priorities of the I/Os of `direction`.
    pub(super) fn prios(&self, direction: Direction) -> Vec<IoPrio> {
        let mut prios = Vec::new();
        for taped in self.ios.iter().filter(|taped| Direction::of(taped.io.op) == Some(direction)) {
            if !prios.contains(&taped.io.prio) {
                prios.push(taped.io.prio);
            }
        }
        prios
    }
}

/// A tape in play: the times of its I/Os, and how late each was.
#[derive(Debug)]
pub(super) struct Playing {
    tape: Arc<Tape>,
    next: usize,
    base: Instant,
    /// The time at which nothing was in flight before an I/O that drains.
    drained: Option<Instant>,
    /// The time at which the last I/O that may leave was due.
    due: Instant,
    lateness: Histogram,
}

/// The decision on the next I/O: it leaves, at a later time, or once all others have ended.
pub(super) enum Play {
    Go,
    At(Instant),
    Drain,
}

impl Playing {
    pub(super) fn new(tape: &Arc<Tape>, start: Instant) -> Self {
        let (tape, lateness) = (Arc::clone(tape), Histogram::new());
        Self { tape, next: 0, base: start, drained: None, due: start, lateness }
    }

    pub(super) fn restart(&mut self, start: Instant) {
        self.base = start;
    }

    pub(super) fn poll(&mut self, now: Instant, in_flight: u32) -> Play {
        let Some(taped) = self.tape.ios.get(self.next) else { return Play::Go };
        if taped.drains && self.drained.is_none() {
            if in_flight > 0 {
                return Play::Drain;
            }
            self.drained = Some(now);
            self.base = now;
        }
        let due = self.base + taped.at;
        if now < due {
            return Play::At(due);
        }
        self.lateness.record((now - due).0);
        self.due = due;
        if taped.drains {
            self.base = now;
        }
        self.drained = None;
        self.next += 1;
        Play::Go
    }

    /// The time at which the last I/O that may leave was due. Its latency counts from there, so that a delay by the
    /// depth of the job is part of it, as it was for the recorded process.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    pub(super) fn lateness(&self) -> &Histogram {
        &self.lateness
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::IoFlags;

    fn taped(at: u64, drains: bool) -> Taped {
        let (flags, prio) = (IoFlags::NONE, IoPrio::default());
        let io = NextIo { op: Op::Read, flags, prio, sectors: 8, sector: 0 };
        Taped { at: Nanos(at), drains, io }
    }

    #[test]
    fn an_open_loop_keeps_the_clock_and_counts_lateness() {
        let tape = Arc::new(Tape::new(vec![taped(0, false), taped(100, false), taped(100, false)]));
        let at = Instant::from_nanos;
        let mut playing = Playing::new(&tape, at(1000));
        assert!(matches!(playing.poll(at(1000), 0), Play::Go));
        assert!(matches!(playing.poll(at(1050), 9), Play::At(due) if due == at(1100)));
        assert!(matches!(playing.poll(at(1130), 9), Play::Go));
        assert!(matches!(playing.poll(at(1130), 9), Play::Go));
        assert_eq!((playing.lateness().count(), playing.lateness().max()), (3, 30));
    }

    #[test]
    fn an_io_that_drains_keeps_the_gap_behind_the_answers() {
        let tape = Arc::new(Tape::new(vec![taped(0, false), taped(50, true), taped(10, false)]));
        let at = Instant::from_nanos;
        let mut playing = Playing::new(&tape, at(0));
        assert!(matches!(playing.poll(at(0), 0), Play::Go));
        assert!(matches!(playing.poll(at(60), 1), Play::Drain));
        assert!(matches!(playing.poll(at(500), 0), Play::At(due) if due == at(550)));
        assert!(matches!(playing.poll(at(550), 0), Play::Go));
        assert!(matches!(playing.poll(at(551), 1), Play::At(due) if due == at(560)));
    }
}
