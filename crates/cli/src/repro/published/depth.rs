//! Merging needs a scheduler that is deeper than the device (seed 003).

use super::{Published, Source, iops};

pub const PUBLISHED: Published = Published {
    title: "A scheduler merges only what the device does not take",
    claim: "Requests can be merged while they wait, and they wait only if the scheduler has more room than the \
            device. So nothing may leave for a device that cannot take it: budgets are reserved before a \
            request is picked.",
    tables: &[Source {
        by: "Ming Lei, slides, October 2017",
        hardware: "SCSI disk over InfiniBand (SRP), Linux 4.14-rc4",
        workload: "fio, 64 jobs of depth 64, 4 KiB, libaio",
        rows: &[
            iops("read, mq-deadline", 154.12e3, 474.0e3),
            iops("write, mq-deadline", 135.88e3, 481.89e3),
        ],
        remark: "Merged for 4.15. The old single queue with deadline had 450.0k and 419.65k.",
    }],
};
