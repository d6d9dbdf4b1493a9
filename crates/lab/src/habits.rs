//! The habits of a virtual CPU, independent of its client: batches, being caught in mid-run, absences.

use blkmq_core::{Nanos, Rng};

/// A chance, in thousandths.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Permille(pub u16);

impl Permille {
    /// Returns whether the event happens this time.
    pub(crate) fn strikes(self, rng: &mut Rng) -> bool {
        self.0 > 0 && rng.chance(self.0.into(), 1000)
    }
}

/// Being caught in mid-run: the CPU takes the run of its elevator and keeps it, like a thread that is interrupted,
/// descheduled, or simply slow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caught {
    /// The chance per turn. It needs an elevator that is free at that moment.
    pub chance: Permille,
    /// The most passes made while it is caught; the number is drawn from 0 up.
    pub steps: u32,
    /// The longest time between passes, and before releasing the run; drawn from 0 up.
    pub gap: Nanos,
}

/// The habits of a virtual CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Habits {
    /// I/Os that it pushes before it flushes, at least 1.
    pub batch: u32,
    /// Being caught in mid-run.
    pub caught: Caught,
    /// The chance per turn that it is absent for a while, neither polling nor parking.
    pub absent: Permille,
    /// The longest absence.
    pub absence: Nanos,
    /// The chance that it stops between leaving a batch in staging and telling any thread of it, instead of flushing
    /// it in one go: like a thread that is descheduled in the worst place.
    pub stalls: Permille,
    /// The longest stop.
    pub stall: Nanos,
    /// The chance per turn that it asks for one of its I/Os to be cancelled: before it flushes, and once more after
    /// that. The I/O is drawn from all I/Os that have not completed.
    pub cancels: Permille,
    /// When its client wants nothing more and every I/O has ended, the CPU leaves instead of parking: it will neither
    /// poll nor be woken.
    pub leaves: bool,
}

impl Habits {
    /// A CPU that does nothing but its I/O, `batch` at a time, and is never caught.
    #[must_use]
    pub const fn diligent(batch: u32) -> Self {
        Self {
            batch,
            caught: Caught { chance: Permille(0), steps: 0, gap: Nanos::ZERO },
            absent: Permille(0),
            absence: Nanos::ZERO,
            stalls: Permille(0),
            stall: Nanos::ZERO,
            cancels: Permille(0),
            leaves: false,
        }
    }

    /// The longest time that it may keep other CPUs waiting, if a pass takes `step`.
    pub(crate) fn longest(&self, step: Nanos) -> Nanos {
        let held = if self.caught.chance == Permille(0) {
            0
        } else {
            (self.caught.gap.0 + step.0) * (u64::from(self.caught.steps) + 1)
        };
        let away = if self.absent == Permille(0) { 0 } else { self.absence.0 };
        let stalled = if self.stalls == Permille(0) { 0 } else { self.stall.0 };
        Nanos(held + away + stalled)
    }
}
