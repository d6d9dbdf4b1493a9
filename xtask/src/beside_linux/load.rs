//! The two sides that are compared, the models of devices, and the loads with the options that fio and `blkmq bench`
//! get for them: in the same words, as far as possible.

/// Threads with the same work.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) name: &'static str,
    pub(super) rw: &'static str,
    pub(super) bs: &'static str,
    pub(super) depth: u32,
    pub(super) threads: u32,
    /// GiB: the start of the first thread's region, the size of each thread's region, and the distance of their starts.
    pub(super) place: (u32, u32, u32),
    /// Writes that no thread waits for: through the page cache of Linux; ours are async.
    pub(super) is_async: bool,
    /// Class and level, as numbers.
    priority: (u32, u32),
    /// The weight of the group that the job is in.
    pub(super) weight: Option<u32>,
    /// Its I/Os may wait for longer than the ramp, which makes its client's count wrong. Its rate is the device's rate
    /// without the other jobs of its direction; its latencies are mostly of I/Os after the end of the others.
    pub(super) starves: bool,
}

/// A load: jobs beside each other.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) jobs: &'static [Job],
    /// The schedulers to which the load applies; empty: all.
    pub(super) schedulers: &'static [&'static str],
    /// The ratio of the rates of the last job and the first is compared, too.
    pub(super) shares: bool,
}

/// Best-effort, in the middle: the priority of programs that set none.
const MIDDLE: (u32, u32) = (2, 4);

const JOB: Job = Job {
    name: "",
    rw: "randread",
    bs: "4k",
    depth: 1,
    threads: 1,
    place: (0, 8, 0),
    is_async: false,
    priority: MIDDLE,
    weight: None,
    starves: false,
};

const STREAM: Job = Job { rw: "read", bs: "64k", ..JOB };

pub(super) const LOADS: &[Load] = &[
    Load {
        name: "W1",
        about: "64 sequential writers of 4 KiB, each with 4 in flight",
        jobs: &[Job {
            name: "writers",
            rw: "write",
            depth: 4,
            threads: 64,
            place: (0, 1, 1),
            ..JOB
        }],
        schedulers: &[],
        shares: false,
    },
    Load {
        name: "W2",
        about: "a random reader beside 4 sequential writers of 64 KiB, each with 4 in flight",
        jobs: &[
            Job { name: "reader", ..JOB },
            Job { name: "writers", rw: "write", depth: 4, threads: 4, place: (8, 2, 2), ..STREAM },
        ],
        schedulers: &[],
        shares: false,
    },
    Load {
        name: "W3a",
        about: "two sequential readers in groups of weight 100 and 300",
        jobs: &[
            Job { name: "light", weight: Some(100), ..STREAM },
            Job { name: "heavy", weight: Some(300), place: (8, 8, 0), ..STREAM },
        ],
        schedulers: &["bfq"],
        shares: true,
    },
    Load {
        name: "W3b",
        about: "two random readers, each with 8 in flight, in groups of weight 100 and 300",
        jobs: &[
            Job { name: "light", depth: 8, weight: Some(100), ..JOB },
            Job { name: "heavy", depth: 8, weight: Some(300), place: (8, 8, 0), ..JOB },
        ],
        schedulers: &["bfq"],
        shares: true,
    },
    Load {
        name: "W3c",
        about: "two sequential readers, best-effort 7 and 5",
        jobs: &[
            Job { name: "be7", priority: (2, 7), ..STREAM },
            Job { name: "be5", priority: (2, 5), place: (8, 8, 0), ..STREAM },
        ],
        schedulers: &["bfq"],
        shares: true,
    },
    Load {
        name: "W3d",
        about: "a random reader of the idle class beside one with 8 in flight",
        jobs: &[
            Job { name: "idle", priority: (3, 0), starves: true, ..JOB },
            Job { name: "other", depth: 8, place: (8, 8, 0), ..JOB },
        ],
        schedulers: &["mq-deadline", "bfq"],
        shares: false,
    },
    Load {
        name: "W4a",
        about: "64 random readers beside 4 random writers",
        jobs: &[
            Job { name: "readers", threads: 64, ..JOB },
            Job { name: "writers", rw: "randwrite", threads: 4, place: (8, 8, 0), ..JOB },
        ],
        schedulers: &[],
        shares: false,
    },
    Load {
        name: "W4b",
        about: "4 random readers beside 64 random writers",
        jobs: &[
            Job { name: "readers", threads: 4, ..JOB },
            Job { name: "writers", rw: "randwrite", threads: 64, place: (8, 8, 0), ..JOB },
        ],
        schedulers: &[],
        shares: false,
    },
    Load {
        name: "W5",
        about: "64 random readers beside 64 random writers",
        jobs: &[
            Job { name: "readers", threads: 64, ..JOB },
            Job { name: "writers", rw: "randwrite", threads: 64, place: (8, 8, 0), ..JOB },
        ],
        schedulers: &[],
        shares: false,
    },
    Load {
        name: "W6",
        about: "a sequential reader of 64 KiB, as of a program that starts, beside 4 writers of 256 KiB with 8 in flight",
        jobs: &[
            Job { name: "reader", ..STREAM },
            Job {
                name: "writers",
                rw: "write",
                bs: "256k",
                depth: 8,
                threads: 4,
                place: (8, 2, 2),
                ..JOB
            },
        ],
        schedulers: &[],
        shares: false,
    },
    Load {
        name: "W7",
        about: "4 random readers of 16 KiB beside 2 sequential writers that wait for nothing",
        jobs: &[
            Job { name: "readers", bs: "16k", threads: 4, ..JOB },
            Job {
                name: "writers",
                rw: "write",
                bs: "128k",
                depth: 32,
                threads: 2,
                place: (8, 2, 2),
                is_async: true,
                ..JOB
            },
        ],
        schedulers: &[],
        shares: false,
    },
];

/// The seconds of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Time {
    /// Seconds before counting begins.
    pub(super) ramp: u32,
    pub(super) counted: u32,
}

impl Job {
    pub(super) fn writes(&self) -> bool {
        self.rw.ends_with("write")
    }

    /// Bytes, rather than I/Os, are the rate of a stream of large I/Os.
    pub(super) fn is_stream(&self) -> bool {
        !self.rw.starts_with("rand") && self.bs != "4k"
    }

    /// The unit of its rate.
    pub(super) fn unit(&self) -> &'static str {
        if self.is_stream() { "MB/s" } else { "IOPS" }
    }

    /// Returns whether the time of the job's I/Os is compared.
    pub(super) fn has_latency(&self) -> bool {
        !self.is_async && !self.starves
    }

    /// Bytes of an I/O.
    pub(super) fn block(&self) -> f64 {
        let kib: u32 = self.bs.trim_end_matches('k').parse().expect("blocks are so many k");
        f64::from(kib * 1024)
    }

    /// The options that fio and bench spell alike.
    fn options(&self, time: Time) -> String {
        let Self { rw, bs, threads, place: (at, size, step), priority: (class, level), .. } = self;
        let Time { ramp, counted } = time;
        format!(
            "--rw={rw} --bs={bs} --numjobs={threads} --offset={at}g --size={size}g --offset_increment={step}g \
             --norandommap --prioclass={class} --prio={level} --time_based --ramp_time={ramp} --runtime={counted} \
             --group_reporting"
        )
    }

    /// The options of fio.
    pub(super) fn of_fio(&self, time: Time) -> String {
        let way = if self.is_async {
            "--ioengine=psync --direct=0".to_owned()
        } else {
            format!("--ioengine=io_uring --direct=1 --iodepth={}", self.depth)
        };
        format!("--name={} {way} {}", self.name, self.options(time))
    }

    /// The options of `blkmq bench`; `first`: no other job precedes this one.
    pub(super) fn of_bench(&self, time: Time, first: bool) -> String {
        let direct = u32::from(!self.is_async);
        let group = self.weight.map_or_else(String::new, |_| format!(" --cgroup={}", self.name));
        let report = if first { "" } else { " --new_group" };
        let depth = self.depth;
        format!(
            "--name={}{report} --direct={direct} --iodepth={depth}{group} {}",
            self.name,
            self.options(time)
        )
    }
}

/// A model, served as a block device.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) name: &'static str,
    /// A description of the device for the page.
    pub(super) about: &'static str,
    /// As `blkmqd --device` has it.
    pub(super) model: &'static str,
    /// Driver tags, on both sides. A loop device takes no fewer than 4.
    pub(super) depth: u32,
    /// Passed to Linux, which does not know the model.
    pub(super) rotational: bool,
}

pub(super) const DEVICES: &[Device] = &[
    Device {
        name: "hdd4",
        about: "a disk of 15,000 revolutions that serves 4 commands in the order of arrival",
        model: "disk,preset=sas15k,hw_queue_depth=4,reorder=0",
        depth: 4,
        rotational: true,
    },
    Device {
        name: "hdd32",
        about: "the same disk with a queue of 32 commands that it reorders by itself; 10 of them are in use at a time, \
                the threads of nbdfuse",
        model: "disk,preset=sas15k,hw_queue_depth=32",
        depth: 32,
        rotational: true,
    },
    Device {
        name: "ssd",
        about: "4 commands at a time, a read in 1 ms, a write in 4 ms",
        model: "null,irqmode=2,completion_nsec=1ms,write_nsec=4ms,hw_queue_depth=4,gb=64",
        depth: 4,
        rotational: false,
    },
    Device {
        name: "disk",
        about: "the model of a SATA disk of 7200 revolutions, with its cache and its queue",
        model: "disk",
        depth: 32,
        rotational: true,
    },
    Device {
        name: "flash",
        about: "the model of a SATA SSD; here processors are the limit",
        model: "flash,preset=sata,gb=64",
        depth: 32,
        rotational: false,
    },
];

/// Both sides, in the order of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Side {
    Linux,
    Ours,
}

impl Side {
    pub(super) const BOTH: [Self; 2] = [Self::Linux, Self::Ours];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Linux => "Linux",
            Self::Ours => "blkmq",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn both_sides_are_told_the_same() {
        let time = Time { ramp: 1, counted: 5 };
        let load = LOADS.iter().find(|load| load.name == "W3a").unwrap();
        let (fio, ours) = (load.jobs[1].of_fio(time), load.jobs[1].of_bench(time, false));
        for word in ["--bs=64k", "--offset=8g", "--prioclass=2", "--ramp_time=1", "--runtime=5"] {
            assert!(fio.contains(word) && ours.contains(word), "{word}: {fio}, {ours}");
        }
        assert!(ours.contains("--cgroup=heavy") && ours.contains("--new_group"), "{ours}");
        assert!(!load.jobs[0].of_bench(time, true).contains("--new_group"));
    }

    #[test]
    fn names_are_different_and_places_are_on_every_device() {
        let names: BTreeSet<_> = LOADS.iter().map(|load| load.name).collect();
        assert_eq!(names.len(), LOADS.len());
        for job in LOADS.iter().flat_map(|load| load.jobs) {
            let (at, size, step) = job.place;
            assert!(at + (job.threads - 1) * step + size <= 64, "{job:?}");
        }
    }
}
