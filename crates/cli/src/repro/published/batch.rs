//! Several requests for each hold of the lock (seed 000).

use super::{Published, Source, iops};

const WORKLOAD: &str = "fio, 16 jobs, random writes of 4 KiB, 32 in flight each, submitted and completed \
                        in eights, io_uring, 30 s";

pub const PUBLISHED: Published = Published {
    title: "Several requests for each hold of the lock",
    claim: "The kernel takes the lock of a scheduler for each request that it dispatches. If it takes as many \
            requests as there are tags for while it has the lock, threads meet there less often.",
    tables: &[
        Source {
            by: "Yu Kuai, second version of the series, July 2025",
            hardware: "null_blk that completes at once, a hardware queue of 1024 for each core; the \
                       machine is not named",
            workload: WORKLOAD,
            rows: &[iops("mq-deadline", 263e3, 475e3), iops("bfq", 124e3, 292e3)],
            remark: "",
        },
        Source {
            by: "Yu Kuai, third version, August 2025",
            hardware: "Kunpeng 920, 128 cores on 4 nodes",
            workload: WORKLOAD,
            rows: &[
                iops("null_blk, mq-deadline", 256e3, 594e3),
                iops("null_blk, bfq", 153e3, 283e3),
                iops("NVMe, mq-deadline", 258e3, 568e3),
                iops("NVMe, bfq", 142e3, 214e3),
            ],
            remark: "Not merged.",
        },
    ],
};
