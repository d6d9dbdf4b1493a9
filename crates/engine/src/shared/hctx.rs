//! The shared state of one hardware queue: its driver tags, and the words by which its pump informs elevators and
//! waiting threads.
//!
//! The pump owns the device side (`dispatch/pump.rs`).

use crate::Inflight;
use crate::shared::stats::PumpCounters;
use crate::shared::tags::Tags;
use crate::sync::{Arc, AtomicBool, AtomicU8, AtomicU64, Level, Ordering, Restart};
use blkmq_core::Instant;
use crossbeam_utils::CachePadded;

/// The divisor of the busy average: the old value has this weight less one.
const EWMA_WEIGHT: u8 = 8;
/// A busy dispatch adds this, before the division.
const EWMA_FACTOR: u8 = 16;

pub(crate) struct Hctx {
    pub(crate) tags: Tags,
    /// One for all lanes that share a hardware queue.
    pub(crate) restart: Arc<CachePadded<Restart>>,
    /// The fill level of the outbox.
    level: Level<Inflight>,
    status: CachePadded<PumpStatus>,
    pub(crate) counters: Arc<CachePadded<PumpCounters>>,
}

/// The state of a pump: written by the pump, read by runners and waiting threads.
struct PumpStatus {
    busy: DispatchBusy,
    /// Requests that the device refused wait in the pump, and none may overtake them.
    stuck: AtomicBool,
    /// The device holds requests, and its descriptor signals completions.
    signals: AtomicBool,
    /// In nanoseconds; `u64::MAX` for no event.
    next_event: AtomicU64,
}

/// The exponential average of "the device had no room" (`spec/framework.md` 8.2). Only zero or not matters.
#[derive(Default)]
pub(crate) struct DispatchBusy(AtomicU8);

impl DispatchBusy {
    /// Adds the result of a dispatch. One writer at a time.
    #[inline]
    pub(crate) fn note(&self, busy: bool) {
        let old = self.0.load(Ordering::Relaxed);
        if old != 0 || busy {
            let new = (old * (EWMA_WEIGHT - 1) + if busy { EWMA_FACTOR } else { 0 }) / EWMA_WEIGHT;
            self.0.store(new, Ordering::Relaxed);
        }
    }

    pub(crate) fn get(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Hctx {
    pub(crate) fn new(
        tags: Tags,
        level: Level<Inflight>,
        restart: Arc<CachePadded<Restart>>,
        counters: Arc<CachePadded<PumpCounters>>,
    ) -> Self {
        Self {
            tags,
            level,
            restart,
            status: CachePadded::new(PumpStatus {
                busy: DispatchBusy::default(),
                stuck: AtomicBool::new(false),
                signals: AtomicBool::new(false),
                next_event: AtomicU64::new(u64::MAX),
            }),
            counters,
        }
    }

    pub(crate) fn busy(&self) -> &DispatchBusy {
        &self.status.busy
    }

    /// Returns whether requests that the device refused wait in the pump.
    #[inline]
    pub(crate) fn is_stuck(&self) -> bool {
        self.status.stuck.load(Ordering::Acquire)
    }

    pub(crate) fn set_stuck(&self, stuck: bool) {
        if self.is_stuck() != stuck {
            self.status.stuck.store(stuck, Ordering::Release);
        }
    }

    /// Returns whether requests wait in the outbox. A hint: a pump may be about to take them.
    #[inline]
    pub(crate) fn has_sent(&self) -> bool {
        self.level.waits()
    }

    /// Returns whether the device holds requests, so that a check may find completions, although no thread needs to
    /// stay awake for it. A hint: a sleeping thread watches the device's descriptor in any case.
    #[inline]
    pub(crate) fn signals(&self) -> bool {
        self.status.signals.load(Ordering::Relaxed)
    }

    pub(crate) fn set_signals(&self, signals: bool) {
        if self.signals() != signals {
            self.status.signals.store(signals, Ordering::Relaxed);
        }
    }

    /// When the pump next has work without a kick: an event of the device, or a timeout of a request there. `None` for
    /// never.
    #[inline]
    pub(crate) fn next_event(&self) -> Option<Instant> {
        match self.status.next_event.load(Ordering::Acquire) {
            u64::MAX => None,
            ns => Some(Instant::from_nanos(ns)),
        }
    }

    pub(crate) fn set_next_event(&self, at: Option<Instant>) {
        let ns = at.map_or(u64::MAX, Instant::as_nanos);
        if self.status.next_event.load(Ordering::Relaxed) != ns {
            self.status.next_event.store(ns, Ordering::Release);
        }
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn s16_05_ewma_rises_and_decays_as_specified() {
        let busy = DispatchBusy::default();
        let mut up = vec![busy.get()];
        for _ in 0..9 {
            busy.note(true);
            up.push(busy.get());
        }
        assert_eq!(up, [0, 2, 3, 4, 5, 6, 7, 8, 9, 9]);
        let mut down = Vec::new();
        for _ in 0..8 {
            busy.note(false);
            down.push(busy.get());
        }
        assert_eq!(down, [7, 6, 5, 4, 3, 2, 1, 0]);
        busy.note(false);
        assert_eq!(busy.get(), 0);
    }
}
