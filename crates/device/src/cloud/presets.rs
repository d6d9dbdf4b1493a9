//! The modelled disks: their terms, and the sources of these.
//!
//! The page (`doc/cloud.md`) compares the model with measurements. A figure that is not published is marked.

use super::bucket::Allowance;
use super::params::Terms;
use blkmq_core::Nanos;

/// A preset by name.
pub(super) struct Preset {
    pub(super) name: &'static str,
    pub(super) terms: Terms,
}

/// All presets; the first is the default.
pub(super) const ALL: &[Preset] = &[
    Preset { name: "azure-p20", terms: AZURE_P20 },
    Preset { name: "ebs-gp3", terms: EBS_GP3 },
    Preset { name: "ebs-gp2", terms: EBS_GP2 },
    Preset { name: "gcp-pd", terms: GCP_PD },
];

const MIB: u64 = 1 << 20;

const fn steady(rate: u64) -> Allowance {
    Allowance { rate, burst: rate, credits: 0 }
}

/// Azure Premium SSD P20, 512 GiB: 2300 IOPS and 150 MB/s, bursts of half an hour. The rates of bursts are those
/// measured for the change of Linux's io.cost of March 2026, 3566 IOPS and 173,471,131 bytes a second; the provider
/// says 3500 and 170 MB.
const AZURE_P20: Terms = Terms {
    size: 512 * 1024,
    iops: Allowance { rate: 2_300, burst: 3_566, credits: (3_566 - 2_300) * 1_800 },
    bps: Allowance {
        rate: 150_000_000,
        burst: 173_471_131,
        credits: (173_471_131 - 150_000_000) * 1_800,
    },
    // Not published. The measurement shows that an I/O need not wait for the transfer of one of 1 MiB.
    bucket: Nanos::from_millis(20),
    io_size: 256 * 1024,
    // From the average completion latencies of 4 KiB and 256 KiB beside a paced load: 1.95 and 3.69 ms.
    latency: Nanos::from_micros(1_500),
    latency_spread: Nanos::from_micros(800),
    stream_bps: 150_000_000,
    // Not published. The measurement had 128 I/Os of 1 MiB in the disk.
    hw_queue_depth: 256,
};

/// Amazon EBS gp3 as it comes: 3000 IOPS and 125 MiB/s, no credits.
const EBS_GP3: Terms = Terms {
    size: 100 * 1024,
    iops: steady(3_000),
    bps: steady(125 * MIB),
    // Not published.
    bucket: Nanos::from_millis(20),
    io_size: 256 * 1024,
    // "Single-digit milliseconds"; no more is published.
    latency: Nanos::from_micros(1_000),
    latency_spread: Nanos::from_micros(600),
    stream_bps: 250_000_000,
    hw_queue_depth: 128,
};

/// Amazon EBS gp2 of 100 GiB: 3 IOPS for each GiB, bursts of 3000 from 5.4 million credits, 128 MiB/s.
const EBS_GP2: Terms = Terms {
    iops: Allowance { rate: 300, burst: 3_000, credits: 5_400_000 },
    bps: steady(128 * MIB),
    ..EBS_GP3
};

/// Google Persistent Disk, balanced, 500 GiB: 3000 IOPS and 6 for each GiB, 140 MiB/s and 0.28 for each GiB.
const GCP_PD: Terms = Terms {
    size: 500 * 1024,
    iops: steady(6_000),
    bps: steady(280 * MIB),
    // Not published, down to the rate of a transfer.
    bucket: Nanos::from_millis(20),
    io_size: 0,
    latency: Nanos::from_micros(1_000),
    latency_spread: Nanos::from_micros(800),
    stream_bps: 250_000_000,
    hw_queue_depth: 128,
};
