//! How a virtual CPU behaves, whatever it is that its client wants: batches, being caught, absent-mindedness.

use blkmq_core::{Nanos, Rng};

/// A chance, in thousandths.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Permille(pub u16);

impl Permille {
    /// Does it happen this time?
    pub(crate) fn strikes(self, rng: &mut Rng) -> bool {
        self.0 > 0 && rng.chance(self.0.into(), 1000)
    }
}

/// Being caught in mid-run: the CPU takes the run of its elevator and keeps it, as one does that is
/// interrupted, descheduled, or simply slow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caught {
    /// How often, per turn. It needs an elevator that is free at that moment.
    pub chance: Permille,
    /// Passes made meanwhile, at most; the number is drawn from 0 up.
    pub steps: u32,
    /// Time between passes, and before letting go, at most; drawn from 0 up.
    pub gap: Nanos,
}

/// How a virtual CPU behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Habits {
    /// I/Os that it pushes before it flushes, at least 1.
    pub batch: u32,
    /// Being caught in mid-run.
    pub caught: Caught,
    /// How often, per turn, it turns to something else for a while, neither polling nor parking.
    pub absent: Permille,
    /// For how long, at most.
    pub absence: Nanos,
    /// How often it stops between leaving a batch in staging and telling anybody, instead of flushing it in one go:
    /// as one that is descheduled in the worst place.
    pub stalls: Permille,
    /// For how long, at most.
    pub stall: Nanos,
    /// How often, per turn, it asks for one of its I/Os to be given up: before it flushes, and once more behind
    /// that. Which one is drawn from all that have not come back.
    pub cancels: Permille,
    /// When its client wants nothing more and everything has ended, it goes away instead of parking: it
    /// will neither poll nor be woken.
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

    /// The longest that it may keep others waiting, if a pass takes `step`.
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
