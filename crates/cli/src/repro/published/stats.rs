//! The cost of statistics about groups (seed 004).

use super::{Published, Source, iops};

pub const PUBLISHED: Published = Published {
    title: "Statistics of groups cost bfq 40 % of its time",
    claim: "They were counted under the scheduler's lock. Outside of it they cost less, and behind an option for \
            those who debug, nothing.",
    tables: &[
        Source {
            by: "Paolo Valente, cover letter for Linux 4.15, 2017",
            hardware: "Intel i7-4850HQ",
            workload: "the most I/Os per second that bfq can sustain",
            rows: &[
                iops("under the lock, and outside", 250e3, 310e3),
                iops("outside, and not at all", 310e3, 400e3),
            ],
            remark: "",
        },
        Source {
            by: "Paolo Valente, documentation of bfq, 2017",
            hardware: "AMD A8-3850; Cortex-A53 with eight cores",
            workload: "the same, with the option for debugging on and off",
            rows: &[
                iops("A8-3850, on and off", 200e3, 250e3),
                iops("Cortex-A53, on and off", 56e3, 80e3),
            ],
            remark: "Merged; the option is now CONFIG_BFQ_CGROUP_DEBUG.",
        },
    ],
};
