//! One lock around a scheduler does not scale (seed 001).

use super::super::metric::Metric;
use super::{Published, Row, Source, iops, row};

/// The share of time that threads wait for a lock.
const fn waiting(what: &'static str, before: f64, proposed: f64) -> Row {
    row(what, Metric::Waiting, before, proposed)
}

const HARDWARE: &str = "desktop with a Ryzen 7950X, 16 cores and 32 threads";
const WORKLOAD: &str = "fio, 32 threads, random reads of 512 bytes, 4 in flight each, submitted and \
                        completed in fours, io_uring, 60 s";

pub const PUBLISHED: Published = Published {
    title: "One lock around a scheduler does not scale",
    claim: "With mq-deadline, threads that submit spend nearly all of their time waiting for its lock. If only one \
            of them dispatches at a time, insertions that find the lock taken are parked on lists, and merging is \
            left out while it is, most of that is gone.",
    tables: &[
        Source {
            by: "Jens Axboe, second version of the series for mq-deadline, January 2024",
            hardware: HARDWARE,
            workload: WORKLOAD,
            rows: &[
                iops("null_blk, one hardware queue", 879e3, 2_311e3),
                iops("NVMe, many hardware queues", 901e3, 2_610e3),
                waiting("null_blk", 0.936, 0.211),
                waiting("NVMe", 0.945, 0.246),
            ],
            remark: "The source says +257 % and +289 %; its own figures are 2.63 and 2.90 times. Waiting is what it \
                     calls contention.",
        },
        Source {
            by: "Jens Axboe, third version, with bfq, January 2024",
            hardware: HARDWARE,
            workload: WORKLOAD,
            rows: &[
                iops("null_blk, one hardware queue", 879e3, 2_867e3),
                iops("NVMe, many hardware queues", 901e3, 3_162e3),
            ],
            remark: "Contention of about 6 % and 5 %. Never merged: parked requests cannot be merged with.",
        },
    ],
};
