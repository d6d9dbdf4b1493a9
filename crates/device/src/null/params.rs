//! The null device's parameters, typed, and the shape and limits of the device that follow from them.
//!
//! `read.rs` reads, rounds and clamps them.

use super::faults::FaultPlan;
use super::times::REQUEST_TIMEOUT;
use crate::basics;
use crate::service::IrqMode;
use blkmq_core::{Limits, Nanos};
use blkmq_engine::{DeviceShape, WriteCache};

/// A virtual boundary is a multiple of this, in bytes.
const PAGE: u64 = 4096;
/// The parameters of a null device, all decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NullParams {
    /// Hardware queues.
    pub submit_queues: u16,
    /// Driver tags, per hardware queue unless they are shared.
    pub hw_queue_depth: u32,
    /// When a request completes.
    pub irqmode: IrqMode,
    /// How long a write takes with [`IrqMode::Timer`], if that is another time than that of other requests.
    pub write_time: Option<Nanos>,
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
    /// The device asks for no default scheduler.
    pub no_sched: bool,
    /// The device supports discard.
    pub discard: bool,
    /// The device announces itself as rotational.
    pub rotational: bool,
    /// The device announces a volatile write cache, and whether it honours FUA.
    pub cache: WriteCache,
    /// The faults of the device.
    pub faults: FaultPlan,
    /// The seed of the faults.
    pub seed: u64,
    /// How many times the device has the engine wait for a lost request before it gives the request up.
    pub timeout_resets: u32,
    /// Requests that the schedulers may have released; `None` for as many as there are tags.
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
            write_time: None,
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
    /// The limits of a request.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let limits = basics::limits(self.blocksize, self.max_sectors, self.discard, self.size);
        // Where a boundary ends segments, their length is no limit: so it is in Linux.
        let (virt_boundary_mask, max_segment_size) = match self.virt_boundary {
            true => (PAGE - 1, u32::MAX),
            false => (0, limits.max_segment_size),
        };
        Limits { virt_boundary_mask, max_segment_size, rotational: self.rotational, ..limits }
    }

    /// The shape of the device for the engine.
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

    /// No feature is on for which the device would have to look at a request.
    pub(super) fn is_plain(&self) -> bool {
        // A service limit does not count: a request that completes within the call is never inside.
        self.irqmode == IrqMode::Inline
            && self.mbps == 0
            && self.faults.is_empty()
            && self.log_size.is_none()
    }
}
