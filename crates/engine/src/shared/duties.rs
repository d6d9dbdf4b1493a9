//! Wake-ups: the duties that a pass over an elevator, or a turn of a pump, leaves to its caller, and the [`Host`] that
//! wakes threads.
//!
//! A pass or a turn decides and writes words; it kicks no elevator, arms no gate and wakes no thread. It records these
//! duties here, and its caller carries them out (`dispatch/mod.rs`). So one place turns kicks into wake-ups, and no
//! call leaves the engine under a run.

use blkmq_core::{HwQueue, Instant, SubmitterId};

/// Kicks, timers and wake-ups that have yet to be carried out.
#[derive(Default)]
pub(crate) struct Duties {
    /// Whether any of the fields below is set.
    any: bool,
    /// Another pass or turn is needed.
    again: bool,
    /// Another pass or turn is needed no later than this.
    at: Option<Instant>,
    /// Another turn is needed at this time, like the kernel's delayed run.
    later: Option<Instant>,
    /// Elevators for which a resource was released.
    kicks: Vec<u16>,
    /// Parked submitters with completions, to be woken once the run is released.
    wakes: Vec<SubmitterId>,
}

impl Duties {
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any
    }

    /// Requests another pass or turn.
    pub(crate) fn again(&mut self) {
        self.any = true;
        self.again = true;
    }

    /// Requests another pass or turn no later than `at`.
    pub(crate) fn arm(&mut self, at: Instant) {
        self.any = true;
        self.at = Some(self.at.map_or(at, |other| other.min(at)));
    }

    /// Requests another turn at `at`.
    pub(crate) fn run_later(&mut self, at: Instant) {
        self.any = true;
        self.later = Some(at);
    }

    /// Requests a pass over the elevator `shard`.
    pub(crate) fn kick(&mut self, shard: u16) {
        self.any = true;
        self.kicks.push(shard);
    }

    /// Requests that parked submitters be woken. Takes them out of `ids`.
    #[inline]
    pub(crate) fn wake(&mut self, ids: &mut Vec<SubmitterId>) {
        if !ids.is_empty() {
            self.any = true;
            self.wakes.append(ids);
        }
    }

    /// Takes the duties for the same elevator or pump: whether another pass or turn is needed, no later than when, and
    /// at which time.
    pub(crate) fn take_own(&mut self) -> (bool, Option<Instant>, Option<Instant>) {
        self.any = false;
        (std::mem::take(&mut self.again), self.at.take(), self.later.take())
    }

    /// Takes the elevators to be kicked.
    pub(crate) fn take_kicks(&mut self, kick: impl FnMut(u16)) {
        self.kicks.drain(..).for_each(kick);
    }

    /// Takes the submitters to be woken.
    pub(crate) fn take_wakes(&mut self, into: &mut Vec<SubmitterId>) {
        into.append(&mut self.wakes);
    }
}

/// A small set of hardware queues; it rarely holds more than a few.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ready {
    few: [u16; 4],
    len: u8,
    /// More than fit in `few`: all hardware queues of the shard must be checked.
    many: bool,
}

impl Ready {
    /// Adds the hardware queues in `other`.
    #[inline]
    pub(crate) fn merge(&mut self, other: Self) {
        if self.len == 0 {
            *self = Self { many: self.many | other.many, ..other };
            return;
        }
        self.many |= other.many;
        for hw in &other.few[..other.len.into()] {
            self.add(HwQueue(*hw));
        }
    }

    #[inline]
    pub(crate) fn add(&mut self, hw: HwQueue) {
        if self.few[..self.len.into()].contains(&hw.0) {
            return;
        }
        match self.few.get_mut(usize::from(self.len)) {
            Some(place) => {
                *place = hw.0;
                self.len += 1;
            }
            None => self.many = true,
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The hardware queues to pump; `all` are those of the shard.
    #[inline]
    pub(crate) fn iter(self, all: std::ops::Range<u16>) -> impl Iterator<Item = HwQueue> {
        let Self { few, len, many } = self;
        let mut left = if many { all } else { 0..u16::from(len) };
        std::iter::from_fn(move || {
            let next = left.next()?;
            let hw = if many { next } else { few[usize::from(next) % few.len()] };
            Some(HwQueue(hw))
        })
    }
}

/// Wake-ups: thread parking in the runtime, an event heap in the laboratory.
///
/// The engine calls these methods after it has released elevators and pumps, so a system call here delays no other
/// thread. One cause may lead to two calls. A host must not call back into the queue.
pub trait Host: Send + Sync {
    /// Completions have arrived for a parked submitter, or a pass is due that the submitter should run.
    fn wake_submitter(&self, submitter: SubmitterId);

    /// The pump of `hw` has work. Only called for queues with [`PumpMode::Thread`](crate::PumpMode).
    fn wake_pump(&self, hw: HwQueue);

    /// Nanoseconds since any fixed time. The queue uses it to measure how long threads wait for a lock: a thread that
    /// finds a lock taken calls it, once in several such waits; never with `Access::Combining`. With the default, 0,
    /// nothing is measured.
    fn ticks(&self) -> u64 {
        0
    }
}

/// A host that wakes no thread, for single-threaded drivers that poll.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHost;

impl Host for NoHost {
    fn wake_submitter(&self, _: SubmitterId) {}
    fn wake_pump(&self, _: HwQueue) {}
}
