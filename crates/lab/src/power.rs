//! Power cuts: their number, their kind, and how a run reads the surviving contents.
//!
//! The rules for these contents are in `contents.rs`.

use crate::stamp::{self, Found};
use blkmq_core::{Instant, Nanos, Rng, SECTOR_SIZE};
use blkmq_device::memory::MemoryStore;

/// Power cuts of a run, drawn from its seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PowerCuts {
    /// The number of cuts.
    pub most: u32,
    /// Only the device loses its power, and the queue continues with it; else the machine does, and a new queue
    /// is built around the device.
    pub device_only: bool,
    /// The longest time from the beginning to the first cut, or from one cut to the next.
    pub after: Nanos,
}

impl PowerCuts {
    /// The power stays on.
    pub const NONE: Self = Self { most: 0, device_only: false, after: Nanos::ZERO };
}

/// The times of power cuts, and the store that they affect.
pub(crate) struct Mains {
    cuts: PowerCuts,
    rng: Rng,
    store: Option<MemoryStore>,
}

impl Mains {
    /// For a device that keeps its contents in `store`, if it has any.
    pub(crate) fn new(cuts: PowerCuts, seed: u64, store: Option<MemoryStore>) -> Self {
        Self { cuts, rng: Rng::new(seed ^ 0x006d_6169_6e73), store }
    }

    /// The time of the cut after `now`.
    pub(crate) fn next(&mut self, now: Instant) -> Instant {
        now + Nanos(1 + self.rng.below(self.cuts.after.0.max(1)))
    }

    /// Cuts the power, and restores it.
    pub(crate) fn cut(&mut self) {
        let seed = self.rng.next_u64();
        if let Some(store) = &self.store {
            store.crash(seed);
        }
    }

    /// The contents of `sectors` sectors from `sector` on.
    pub(crate) fn look(&self, sector: u64, sectors: u32) -> Vec<Found> {
        let store = self.store.as_ref().expect("only what is stored is looked at");
        let mut bytes = vec![0; sectors as usize * SECTOR_SIZE as usize];
        store.read_at(sector * u64::from(SECTOR_SIZE), &mut bytes);
        let each = bytes.chunks_exact(SECTOR_SIZE as usize);
        (sector..).zip(each).map(|(sector, bytes)| stamp::read(sector, bytes)).collect()
    }
}
