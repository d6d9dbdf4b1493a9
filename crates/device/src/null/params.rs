//! The null device's parameters, typed, and what follows from them for the engine.
//!
//! How they are read, rounded and clamped is in `read.rs`.

use super::faults::FaultPlan;
use super::queue::REQUEST_TIMEOUT;
use super::read::read;
use crate::basics;
use crate::service::IrqMode;
use crate::{MachineShape, ParamError};
use blkmq_core::Limits;
use blkmq_engine::{DeviceShape, WriteCache};

/// What a virtual boundary is a multiple of, in bytes.
const PAGE: u64 = 4096;
/// A null device, decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NullParams {
    /// Hardware queues.
    pub submit_queues: u16,
    /// Driver tags, per hardware queue unless they are shared.
    pub hw_queue_depth: u32,
    /// When a request is answered.
    pub irqmode: IrqMode,
    /// Logical block size in bytes.
    pub blocksize: u32,
    /// Size in MiB.
    pub size: u64,
    /// Sectors in a request; 0 for the default.
    pub max_sectors: u32,
    /// Bandwidth in MiB/s over all hardware queues; 0 for no cap.
    pub mbps: u32,
    /// One set of driver tags for all hardware queues.
    pub shared_tags: bool,
    /// Segments meet at pages only.
    pub virt_boundary: bool,
    /// Asks for no default scheduler.
    pub no_sched: bool,
    /// Supports discard.
    pub discard: bool,
    /// Announces itself as rotational.
    pub rotational: bool,
    /// Announces a volatile write cache, and whether it does FUA.
    pub cache: WriteCache,
    /// Faults.
    pub faults: FaultPlan,
    /// Of the faults.
    pub seed: u64,
    /// How often the engine is told to wait for a lost request before it is given up.
    pub timeout_resets: u32,
    /// Requests that may have left the schedulers; `None` for as many as there are tags.
    pub budget: Option<u32>,
    /// Requests inside one hardware queue; `None` for as many as there are tags.
    pub service_limit: Option<u32>,
    /// Arrivals to record; `None` for no log.
    pub log_size: Option<usize>,
}

impl Default for NullParams {
    /// null_blk's defaults on a machine of one CPU.
    fn default() -> Self {
        Self {
            submit_queues: 1,
            hw_queue_depth: 64,
            irqmode: IrqMode::Softirq,
            blocksize: 512,
            size: 250 * 1024,
            max_sectors: 0,
            mbps: 0,
            shared_tags: false,
            virt_boundary: false,
            no_sched: false,
            discard: false,
            rotational: false,
            cache: WriteCache::Through,
            faults: FaultPlan::default(),
            seed: 0,
            timeout_resets: 0,
            budget: None,
            service_limit: None,
            log_size: None,
        }
    }
}

impl NullParams {
    /// Reads pairs; of two with one name the later counts. Also says, in a sentence each, what was not taken
    /// as it was given.
    ///
    /// # Errors
    /// For the first pair that has no such name or no such value, or if all together describe no device.
    pub fn parse(
        pairs: &[(String, String)],
        host: &MachineShape,
    ) -> Result<(Self, Vec<String>), ParamError> {
        let mut notes = Vec::new();
        let params = read(pairs, host, &mut notes)?;
        params.limits().validate().map_err(ParamError::Limits)?;
        Ok((params, notes))
    }

    /// What fits into a request.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits {
            virt_boundary_mask: if self.virt_boundary { PAGE - 1 } else { 0 },
            rotational: self.rotational,
            ..basics::limits(self.blocksize, self.max_sectors, self.discard, self.size)
        }
    }

    /// What the engine is told.
    #[must_use]
    pub fn shape(&self) -> DeviceShape {
        DeviceShape {
            hw_queues: self.submit_queues,
            hw_queue_depth: self.hw_queue_depth,
            shared_tags: self.shared_tags,
            budget: self.budget,
            limits: self.limits(),
            cache: self.cache,
            timeout: REQUEST_TIMEOUT,
        }
    }

    /// Nothing is on that a request would have to be looked at for.
    pub(super) fn is_plain(&self) -> bool {
        // A service limit does not count: what is answered within the call is never inside.
        self.irqmode == IrqMode::Inline
            && self.mbps == 0
            && self.faults.is_empty()
            && self.log_size.is_none()
    }
}
