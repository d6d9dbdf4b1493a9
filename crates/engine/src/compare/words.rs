//! The words of one elevator that only the comparison modes have.

use super::parking::Parking;
use crate::sync::{AtomicU32, DispatchGate};
use crate::{Access, EffectiveModes};
use crossbeam_utils::CachePadded;

pub(crate) struct ShardModes {
    /// Requests held, for the locked modes' check before they take the lock. Written under the lock.
    pub(crate) held: CachePadded<AtomicU32>,
    /// Admits one dispatcher, where dispatching is serialised.
    pub(crate) serial: Option<CachePadded<DispatchGate>>,
    /// Requests parked while the lock was taken, in the modes that park them.
    pub(crate) parking: Option<Parking>,
}

impl ShardModes {
    /// With `slots` slots for each of `lanes` hardware queues.
    pub(crate) fn new(modes: EffectiveModes, submitters: u16, lanes: u16, slots: u32) -> Self {
        let serial = modes.access == Access::Serialised;
        Self {
            held: CachePadded::default(),
            serial: serial.then(|| CachePadded::new(DispatchGate::new())),
            parking: modes.parks().then(|| Parking::new(submitters, lanes, slots)),
        }
    }
}
