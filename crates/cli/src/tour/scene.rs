//! The workloads that show the purpose of schedulers, on modelled devices in virtual time.

use crate::plan::time;
use blkmq_core::Nanos;

/// A workload on a device.
pub struct Scene {
    /// The description of the workload.
    pub title: &'static str,
    /// The device.
    pub device: &'static str,
    /// The workload.
    pub kind: Kind,
    /// Milliseconds of virtual time, enough for percentiles.
    ms: u64,
}

/// The workloads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A reader of small random blocks beside four writers of large ones that began earlier.
    Beside,
    /// Eight sequential readers of small blocks.
    Streams,
}

/// All scenes, in their order.
pub const SCENES: [Scene; 4] = [
    Scene {
        title: "A reader beside writers, on a disk",
        device: "disk",
        kind: Kind::Beside,
        ms: 20_000,
    },
    Scene {
        title: "A reader beside writers, on flash",
        device: "flash",
        kind: Kind::Beside,
        ms: 500,
    },
    Scene {
        title: "Eight sequential readers, on a disk",
        device: "disk",
        kind: Kind::Streams,
        ms: 3_000,
    },
    Scene {
        title: "Eight sequential readers, on flash",
        device: "flash",
        kind: Kind::Streams,
        ms: 100,
    },
];

/// Writers that keep 64 large requests each in flight, and a reader, which begins later and waits for each block. To
/// bfq, threads that begin together are one application (decision 0021).
const BESIDE: &str = "--direct=1 --time_based --group_reporting --name=reader --startdelay=300ms --rw=randread --bs=4k \
    --size=1g --name=writers --startdelay=0 --new_group --rw=write --bs=128k --iodepth=64 --numjobs=4 --offset=2g \
    --offset_increment=1g --size=1g";
/// Readers at distant positions.
const STREAMS: &str = "--direct=1 --time_based --group_reporting --name=streams --rw=read --bs=4k --iodepth=8 \
    --numjobs=8 --size=1g --offset_increment=1g";

impl Scene {
    /// The arguments of `blkmq sim`.
    pub fn words(&self) -> Vec<String> {
        let jobs = match self.kind {
            Kind::Beside => BESIDE,
            Kind::Streams => STREAMS,
        };
        let common = [
            format!("--device={}", self.device),
            format!("--runtime={}", time(Nanos::from_millis(self.ms))),
        ];
        common.into_iter().chain(jobs.split_whitespace().map(String::from)).collect()
    }
}
