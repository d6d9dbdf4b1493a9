//! The effect of batches and parking on merging (seed 000, and the outcome of seed 001).

use super::super::metric::Metric;
use super::{Published, Source, iops, row};

pub const PUBLISHED: Published = Published {
    title: "What leaves the scheduler early cannot be merged with",
    claim: "Ming Lei objected to batches that a request which has left for the device, or waits somewhere else, is \
            one that the next bio cannot join, and that a device says too late that it is busy. For requests \
            that are parked on lists this is what happened.",
    tables: &[
        Source {
            by: "Yu Kuai, third version of the series on batches, August 2025",
            hardware: "Kunpeng 920, 128 cores; a disk of 5 TB",
            workload: "128 jobs, 1 GiB apart, sequential writes submitted one by one, 32 in flight each",
            rows: &[
                row("disk, mq-deadline", Metric::Merged, 0.9688, 0.9688),
                iops("disk, mq-deadline, requests per second", 92.25, 92.63),
            ],
            remark: "Batches do no harm where budgets keep them from exceeding the device's depth.",
        },
        Source {
            by: "kernel test robot, on the insertion lists of the series on contention, January 2024",
            hardware: "a machine with one rotating disk and XFS",
            workload: "fio, 64 tasks, sequential direct writes of 4 KiB, io_uring",
            rows: &[iops("disk, mq-deadline", 23_454.0, 6_361.0)],
            remark: "The robot's -72.9 %: parked requests were not merged.",
        },
    ],
};
