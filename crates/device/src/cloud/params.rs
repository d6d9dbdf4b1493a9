//! The parameters of a cloud disk, typed, and the shape of the device that follows from them.
//!
//! `read.rs` parses them; the terms of the modelled disks are in `presets.rs`.

use super::bucket::Allowance;
use crate::basics;
use blkmq_core::{Limits, Nanos};
use blkmq_engine::{DEFAULT_TIMEOUT, DeviceShape, WriteCache};

/// The terms of a disk, which a preset consists of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Size in MiB.
    pub size: u64,
    /// Limit on I/Os.
    pub iops: Allowance,
    /// Limit on bytes.
    pub bps: Allowance,
    /// The time's worth of tokens that the bucket of each limit holds.
    pub bucket: Nanos,
    /// Bytes that count as one I/O: a larger request counts as several. 0: each request is one.
    pub io_size: u64,
    /// The least time from leaving the limits to the answer.
    pub latency: Nanos,
    /// The most that is drawn on top of it, evenly.
    pub latency_spread: Nanos,
    /// Bytes a second at which a request is transferred, beside others.
    pub stream_bps: u64,
    /// Commands that the disk holds: driver tags.
    pub hw_queue_depth: u32,
}

/// The parameters of a cloud disk, all decided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CloudParams {
    /// The terms of the disk.
    pub terms: Terms,
    /// Logical block size in bytes.
    pub blocksize: u32,
    /// Sectors in a request; 0 for the default.
    pub max_sectors: u32,
    /// The seed of latencies.
    pub seed: u64,
    /// Arrivals to record; `None` for no log.
    pub log_size: Option<usize>,
}

impl CloudParams {
    /// The limits of a request.
    #[must_use]
    pub fn limits(&self) -> Limits {
        basics::limits(self.blocksize, self.max_sectors, false, self.terms.size)
    }

    /// The shape of the device for the engine.
    #[must_use]
    pub fn shape(&self) -> DeviceShape {
        DeviceShape {
            hw_queues: 1,
            hw_queue_depth: self.terms.hw_queue_depth,
            shared_tags: false,
            budget: None,
            timeout: DEFAULT_TIMEOUT,
            limits: self.limits(),
            cache: WriteCache::Through,
        }
    }
}
