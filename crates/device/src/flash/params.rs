//! The typed parameters of a flash device, the shape and limits derived from them, and the figures of real drives as
//! parameters. `read.rs` reads, rounds and clamps them.
//!
//! The device's page (`doc/flash.md`) has the sources of the figures, and compares the model with the published results
//! of each drive; `tests/published.rs` checks the comparison.

use super::geometry::{Geometry, Timing, UNIT};
use super::reclaim::{Preconditioned, Watermarks};
use crate::basics;
use blkmq_core::Limits;
use blkmq_engine::{DEFAULT_TIMEOUT, DeviceShape, WriteCache};

/// The final parameters of a flash device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlashParams {
    /// Hardware queues.
    pub submit_queues: u16,
    /// Driver tags per hardware queue.
    pub hw_queue_depth: u32,
    /// Logical block size in bytes.
    pub blocksize: u32,
    /// Size in MiB.
    pub size: u64,
    /// The maximum sectors of a request; 0 for the default.
    pub max_sectors: u32,
    /// Whether the device supports discards.
    pub discard: bool,
    /// The write cache that the device reports.
    pub cache: WriteCache,
    /// The number and size of channels, dies, blocks and pages.
    pub geometry: Geometry,
    /// The times and rates of the device.
    pub timing: Timing,
    /// Whether the link transfers data in both directions at the same time.
    pub link_duplex: bool,
    /// Write buffer in KiB.
    pub buffer_kib: u32,
    /// Whether programs and erases may be suspended for reads.
    pub suspend: bool,
    /// The maximum number of reads that overtake a program or an erase.
    pub reads_first: u32,
    /// The numbers of free blocks at which garbage collection begins and ends.
    pub watermarks: Watermarks,
    /// How the device was written before the first request.
    pub preconditioned: Preconditioned,
    /// Page reads in a million that have to be repeated.
    pub retry_ppm: u32,
    /// The maximum number of repetitions of a page read.
    pub retry_steps: u32,
    /// The seed of retries and of preconditioning.
    pub seed: u64,
    /// The number of arrivals to record; `None` for no log.
    pub log_size: Option<usize>,
    /// The number of spans to record; `None` for no log.
    pub occupancy_size: Option<usize>,
}

impl FlashParams {
    /// The limits of a request. A write may be smaller than a unit of the mapping table, but costs as much as a unit.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let limits = basics::limits(self.blocksize, self.max_sectors, self.discard, self.size);
        let granularity = if self.discard { UNIT } else { 0 };
        Limits { physical_block_size: UNIT, discard_granularity: granularity, ..limits }
    }

    /// The shape of the device for the engine.
    #[must_use]
    pub fn shape(&self) -> DeviceShape {
        DeviceShape {
            hw_queues: self.submit_queues,
            hw_queue_depth: self.hw_queue_depth,
            shared_tags: false,
            budget: None,
            limits: self.limits(),
            cache: self.cache,
            timeout: DEFAULT_TIMEOUT,
        }
    }

    /// The number of slots in the write buffer.
    #[must_use]
    pub fn buffer_units(&self) -> u32 {
        self.buffer_kib / (UNIT / 1024)
    }
}

/// A preset: the figures of one drive.
pub(super) struct Preset {
    pub(super) name: &'static str,
    /// The maximum number of hardware queues; the default is one for each CPU, up to this number.
    pub(super) most_queues: u16,
    pub(super) pairs: &'static [(&'static str, &'static str)],
}

/// The preset used if none is named.
pub(super) const DEFAULT: &str = "nvme-tlc";

/// All presets, in the order in which messages list them.
pub(super) const ALL: &[Preset] = &[SATA, SATA_DC, NVME_TLC, NVME_CLIENT, NVME_MLC, LOW_LATENCY];

/// Samsung 870 EVO, 1 TB.
const SATA: Preset = Preset {
    name: "sata",
    most_queues: 1,
    pairs: &[
        ("hw_queue_depth", "32"),
        ("write_cache", "1"),
        ("fua", "0"),
        ("channels", "8"),
        ("dies_per_channel", "2"),
        ("planes", "2"),
        ("page_size", "16384"),
        ("overprovisioning", "9"),
        ("read_ns", "45000"),
        ("program_ns", "400000"),
        ("erase_ns", "3500000"),
        ("channel_mbps", "800"),
        ("link_mbps", "560"),
        ("link_duplex", "0"),
        ("read_command_ns", "10100"),
        ("write_command_ns", "11200"),
        ("read_latency_ns", "9000"),
        ("write_latency_ns", "9000"),
        ("buffer_kib", "262144"),
        ("buffer_mbps", "0"),
        ("suspend", "1"),
        ("suspend_ns", "20000"),
    ],
};

/// Intel D3-S4610, 480 GB, behind an IBM M1015.
const SATA_DC: Preset = Preset {
    name: "sata-dc",
    most_queues: 1,
    pairs: &[
        ("hw_queue_depth", "32"),
        ("write_cache", "0"),
        ("fua", "1"),
        ("channels", "8"),
        ("dies_per_channel", "2"),
        ("planes", "4"),
        ("page_size", "16384"),
        ("overprovisioning", "14"),
        ("read_ns", "72000"),
        ("program_ns", "1350000"),
        ("erase_ns", "6000000"),
        ("channel_mbps", "400"),
        ("link_mbps", "560"),
        ("link_duplex", "0"),
        ("read_command_ns", "15500"),
        ("write_command_ns", "17000"),
        ("read_latency_ns", "22000"),
        ("write_latency_ns", "42000"),
        ("buffer_kib", "16384"),
        ("buffer_mbps", "0"),
        ("suspend", "1"),
        ("suspend_ns", "40000"),
        ("reads_first", "6"),
    ],
};

/// Intel SSD DC P4500, 1 TB.
const NVME_TLC: Preset = Preset {
    name: "nvme-tlc",
    most_queues: 32,
    pairs: &[
        ("hw_queue_depth", "256"),
        ("write_cache", "0"),
        ("fua", "1"),
        ("channels", "12"),
        ("dies_per_channel", "2"),
        ("planes", "4"),
        ("page_size", "16384"),
        ("overprovisioning", "15"),
        ("read_ns", "65000"),
        ("program_ns", "2200000"),
        ("erase_ns", "6000000"),
        ("channel_mbps", "533"),
        ("link_mbps", "3250"),
        ("link_duplex", "1"),
        ("read_command_ns", "1500"),
        ("write_command_ns", "2000"),
        ("read_latency_ns", "9500"),
        ("write_latency_ns", "16700"),
        ("buffer_kib", "16384"),
        ("buffer_mbps", "0"),
        ("suspend", "1"),
        ("suspend_ns", "40000"),
    ],
};

/// Samsung 980 PRO, 1 TB.
const NVME_CLIENT: Preset = Preset {
    name: "nvme-client",
    most_queues: 128,
    pairs: &[
        ("hw_queue_depth", "1023"),
        ("write_cache", "1"),
        ("fua", "1"),
        ("channels", "8"),
        ("dies_per_channel", "4"),
        ("planes", "2"),
        ("page_size", "49152"),
        ("overprovisioning", "40"),
        ("read_ns", "47000"),
        ("program_ns", "1500000"),
        ("erase_ns", "4600000"),
        ("channel_mbps", "1200"),
        ("link_mbps", "7000"),
        ("link_duplex", "1"),
        ("read_command_ns", "1000"),
        ("write_command_ns", "1000"),
        ("read_latency_ns", "17000"),
        ("write_latency_ns", "14200"),
        ("buffer_kib", "16384"),
        ("buffer_mbps", "0"),
        ("suspend", "0"),
        ("suspend_ns", "0"),
        ("reads_first", "1"),
    ],
};

/// Intel SSD DC P3700, 2 TB.
const NVME_MLC: Preset = Preset {
    name: "nvme-mlc",
    most_queues: 31,
    pairs: &[
        ("hw_queue_depth", "256"),
        ("write_cache", "0"),
        ("fua", "1"),
        ("channels", "18"),
        ("dies_per_channel", "7"),
        ("planes", "2"),
        ("page_size", "16384"),
        ("pages_per_block", "32"),
        ("overprovisioning", "32"),
        ("read_ns", "44000"),
        ("program_ns", "1600000"),
        ("erase_ns", "5000000"),
        ("channel_mbps", "166"),
        ("link_mbps", "2850"),
        ("link_duplex", "1"),
        ("read_command_ns", "2150"),
        ("write_command_ns", "2150"),
        ("read_latency_ns", "5500"),
        ("write_latency_ns", "15000"),
        ("buffer_kib", "32768"),
        ("buffer_mbps", "2000"),
        ("suspend", "0"),
        ("suspend_ns", "0"),
    ],
};

/// Intel Optane SSD DC P4800X, 375 GB.
const LOW_LATENCY: Preset = Preset {
    name: "low-latency",
    most_queues: 32,
    pairs: &[
        ("hw_queue_depth", "256"),
        ("write_cache", "0"),
        ("fua", "1"),
        ("channels", "7"),
        ("dies_per_channel", "4"),
        ("planes", "1"),
        ("page_size", "4096"),
        ("pages_per_block", "1"),
        ("overprovisioning", "15"),
        ("read_ns", "2500"),
        ("program_ns", "20000"),
        ("erase_ns", "0"),
        ("channel_mbps", "2400"),
        ("link_mbps", "2450"),
        ("link_duplex", "1"),
        ("read_command_ns", "1750"),
        ("write_command_ns", "2000"),
        ("read_latency_ns", "1200"),
        ("write_latency_ns", "4700"),
        ("buffer_kib", "256"),
        ("buffer_mbps", "2050"),
        ("suspend", "0"),
        ("suspend_ns", "0"),
    ],
};
