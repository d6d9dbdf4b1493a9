//! Unnecessary wake-ups (seed 002).

use super::{Published, Source, iops};

pub const PUBLISHED: Published = Published {
    title: "Most wake-ups of a deep queue are not needed",
    claim: "Each completion asks for all hardware queues to be run, and each time that is scheduled anew, although a \
            run that has not begun yet would do. A flag spares that; but after a call for now and one for later, another call \
            for now finds the flag set, and waits until later.",
    tables: &[Source {
        by: "Long Li, November 2019",
        hardware: "Hyper-V guest, virtual disk in memory",
        workload: "fio, 8 jobs, random reads of 4 KiB",
        rows: &[
            iops("depth 16", 190e3, 190e3),
            iops("depth 64", 235e3, 240e3),
            iops("depth 256", 180e3, 256e3),
            iops("depth 1024", 156e3, 250e3),
        ],
        remark: "Replaced by running the queue after a completion only if the device was busy.",
    }],
};
