//! fio's options for the depth, the rate and the duration of a job; those by which jobs influence or observe each
//! other; and those of zones.

use super::super::job_draft::{self, Value, percentiles, rates};
use super::{Group, Opt};
use crate::plan::Cpus;
use crate::plan::choices::nodes;
use blkmq_core::Nanos;
use blkmq_lab::workload::{Direction, ExitWhat, OnError, Unified};
use blkmq_terminal::UsageError;
use blkmq_terminal::units::{self, TimeUnit};

const fn job(
    name: &'static str,
    accepts: &'static str,
    help: &'static str,
    apply: super::ApplyJob,
) -> Opt {
    Opt::job(Group::Load, name, accepts, help, apply)
}

/// The maximum queue depth of a thread.
const MAX_DEPTH: u32 = 65_536;
/// The most threads of a job.
pub const MAX_THREADS: u32 = 4_096;

/// The table.
pub const OPTIONS: &[Opt] = &[
    job("iodepth", "1-65536", "I/Os that a thread keeps in flight (default 1)", |d, v| {
        d.iodepth = v.count(1..=MAX_DEPTH)?;
        Ok(())
    }),
    job(
        "iodepth_low",
        "0-65536",
        "once full, submit again at this many (default iodepth)",
        |d, v| {
            d.low = Some(v.count(0..=MAX_DEPTH)?);
            Ok(())
        },
    ),
    job(
        "iodepth_batch_submit",
        "0-65536",
        "I/Os submitted in one plug (default 1; 0 is iodepth)",
        |d, v| {
            d.batch_submit = Some(v.count(0..=MAX_DEPTH)?);
            Ok(())
        },
    )
    .or(&["iodepth_batch"]),
    job("iodepth_batch_complete_min", "0-65536", "completions to wait for (default 1)", |d, v| {
        d.complete_min = Some(v.count(0..=MAX_DEPTH)?);
        Ok(())
    })
    .or(&["iodepth_batch_complete"]),
    job(
        "iodepth_batch_complete_max",
        "1-65536",
        "completions to take at once (default: the min)",
        |d, v| {
            d.complete_max = Some(v.count(1..=MAX_DEPTH)?);
            Ok(())
        },
    ),
    job(
        "serialize_overlap",
        "",
        "an I/O waits while another one of the thread is in flight to its place",
        |d, v| {
            d.job.serialize_overlap = v.flag()?;
            Ok(())
        },
    )
    .flag(),
    job("numjobs", "1-4096", "threads of the job (default 1)", |d, v| {
        d.job.numjobs = v.count(1..=MAX_THREADS)?;
        Ok(())
    }),
    job("runtime", "TIME", "stop after this long; seconds unless a unit is given", |d, v| {
        d.job.runtime = Some(v.time(TimeUnit::Seconds)?).filter(|span| span.0 > 0);
        Ok(())
    })
    .or(&["timeout"]),
    job("time_based", "", "begin again until the runtime is over", |d, v| {
        // As in fio, any number other than 0 means yes: users often put the runtime here.
        d.job.time_based = v.count(0..=u64::MAX)? != 0;
        Ok(())
    })
    .flag(),
    job("ramp_time", "TIME", "run this long before anything is counted", |d, v| {
        d.job.ramp_time = v.time(TimeUnit::Seconds)?;
        Ok(())
    }),
    job("startdelay", "TIME", "begin this much later", |d, v| {
        d.job.startdelay = v.time(TimeUnit::Seconds)?;
        Ok(())
    }),
    job("loops", "COUNT", "passes over the region (default 1)", |d, v| {
        d.job.loops = v.count(1..=u32::MAX)?;
        Ok(())
    }),
    job("number_ios", "COUNT", "end a pass after this many I/Os", |d, v| {
        d.job.number_ios = Some(v.count(0..=u64::MAX)?).filter(|ios| *ios > 0);
        Ok(())
    }),
    job(
        "rate_iops",
        "COUNT[,COUNT[,COUNT]]",
        "I/Os per second and thread, by direction",
        |d, v| {
            d.job.rate_iops = rates(v)?;
            Ok(())
        },
    ),
    job("rate", "SIZE[,SIZE[,SIZE]]", "bytes per second and thread, by direction", |d, v| {
        d.job.rate = rates(v)?;
        Ok(())
    }),
    job(
        "rate_process",
        "linear, poisson",
        "equal times between rated I/Os, or random ones",
        |d, v| {
            d.job.poisson = match v.text {
                "linear" => false,
                "poisson" => true,
                _ => return Err(UsageError::new("accepted: linear, poisson")),
            };
            Ok(())
        },
    ),
    job("thinktime", "TIME", "pause between I/Os; microseconds unless a unit is given", |d, v| {
        d.thinktime = v.time(TimeUnit::Micros)?;
        Ok(())
    }),
    job("thinktime_blocks", "COUNT", "I/Os between two pauses (default 1)", |d, v| {
        d.thinktime_blocks = v.count(1..=u32::MAX)?;
        Ok(())
    }),
    job("cpus_allowed", "CPU[-CPU][,...]", "bind the threads of the job to these CPUs", |d, v| {
        d.cpus.list = Some(Cpus::parse(v.text)?);
        Ok(())
    }),
    job("cpumask", "NUMBER", "the same as a number, with a bit for each CPU", |d, v| {
        d.cpus.list = Some(Cpus::of_mask(v.count(1..=u64::MAX)?)?);
        Ok(())
    }),
    job(
        "cpus_allowed_policy",
        "shared or split",
        "all of them for each thread (default), or one in turn",
        |d, v| {
            d.cpus.is_split = match v.text {
                "shared" => false,
                "split" => true,
                _ => return Err(UsageError::new("accepted: shared, split")),
            };
            Ok(())
        },
    ),
    job("prioclass", "0-3", "0 none, 1 realtime, 2 best-effort, 3 idle", |d, v| {
        d.prioclass = Some(v.count(0..=3)?);
        Ok(())
    }),
    job("prio", "0-7", "level within the class, 0 first; alone, it implies best-effort", |d, v| {
        d.prio = Some(v.count(0..=7)?);
        Ok(())
    }),
    job(
        "cmdprio_percentage",
        "0-100[,0-100]",
        "reads and writes with the priority of cmdprio_class and cmdprio, in percent (default 0)",
        |d, v| {
            d.cmdprio.percentage = v.directions(|v| units::percent(v.text))?;
            Ok(())
        },
    ),
    job(
        "cmdprio_class",
        "1-3[,1-3]",
        "the class of that priority (default 1, realtime)",
        |d, v| {
            d.cmdprio.class = v.directions(|v| v.count(1..=3))?;
            Ok(())
        },
    ),
    job("cmdprio", "0-7[,0-7]", "the level of that priority (default 0)", |d, v| {
        d.cmdprio.level = v.directions(|v| v.count(0..=7))?;
        Ok(())
    }),
    job(
        "cmdprio_bssplit",
        "SIZE/PERCENT[/CLASS/LEVEL]:...",
        "the same by the length of the I/O; not with cmdprio_percentage; a hint behind LEVEL has no effect",
        |d, v| {
            d.cmdprio.split = v.directions(job_draft::cmdprio_split)?;
            Ok(())
        },
    ),
    job("cgroup", "NAME", "the group that the I/O is for; see group", |d, v| {
        d.job.cgroup = Some(v.non_empty("the name of a group")?.into());
        Ok(())
    }),
    job("cgroup_weight", "1-1000", "the weight of that group (default 100)", |d, v| {
        d.job.cgroup_weight = Some(v.count(1..=1000)?);
        Ok(())
    }),
    job(
        "latency_target",
        "TIME",
        "find the most I/Os in flight, up to iodepth, that take no longer, and end; microseconds without a unit",
        |d, v| {
            d.latency_target = v.time(TimeUnit::Micros)?;
            Ok(())
        },
    ),
    job(
        "latency_window",
        "TIME",
        "try each depth for so long; microseconds without a unit",
        |d, v| {
            d.latency.window = v.time(TimeUnit::Micros)?;
            Ok(())
        },
    ),
    job("latency_percentile", "PERCENT", "I/Os that must keep the target (default 100)", |d, v| {
        d.latency.percentile = units::decimal(v.text, "above 0 and up to 100")?;
        Ok(())
    }),
    job(
        "latency_run",
        "",
        "go on with the depth that was found, and lower it if it has to be",
        |d, v| {
            d.latency.run = v.flag()?;
            Ok(())
        },
    )
    .flag(),
    job(
        "fill_device",
        "",
        "work up to the end of the device; no space left is no error",
        |d, v| {
            d.job.fill_device = v.flag()?;
            Ok(())
        },
    )
    .flag()
    .or(&["fill_fs"]),
    job(
        "exitall",
        "",
        "the first job that ends ends all jobs of its group; holds for all groups",
        |d, v| {
            d.job.exitall = v.flag()?;
            Ok(())
        },
    )
    .flag(),
    job("stonewall", "", "wait until all earlier jobs have ended", |d, v| {
        d.job.stonewall = v.flag()?;
        Ok(())
    })
    .flag()
    .or(&["wait_for_previous"]),
    job("new_group", "", "begin a reporting group", |d, v| {
        d.job.new_group = v.flag()?;
        Ok(())
    })
    .flag(),
    job(
        "group_reporting",
        "",
        "one result for the group instead of one for each thread",
        |d, v| {
            d.job.group_reporting = v.flag()?;
            Ok(())
        },
    )
    .flag(),
    job("gtod_reduce", "", "read the clock as rarely as possible: no latencies", |d, v| {
        d.gtod_reduce = v.flag()?;
        Ok(())
    })
    .flag(),
    job("disable_lat", "", "take no total latencies", |d, v| {
        d.job.latencies.lat = !v.flag()?;
        Ok(())
    })
    .flag(),
    job("disable_clat", "", "take no completion latencies", |d, v| {
        d.job.latencies.clat = !v.flag()?;
        Ok(())
    })
    .flag(),
    job("disable_slat", "", "take no submission latencies", |d, v| {
        d.job.latencies.slat = !v.flag()?;
        Ok(())
    })
    .flag(),
    job(
        "end_fsync",
        "",
        "flush the device when all is written, within the measured time",
        |d, v| {
            d.job.end_fsync = v.flag()?;
            Ok(())
        },
    )
    .flag(),
    job(
        "fsync_on_close",
        "",
        "the same as end_fsync: files are closed when all is done",
        |d, v| {
            d.fsync_on_close = v.flag()?;
            Ok(())
        },
    )
    .flag(),
    job("clat_percentiles", "", "report percentiles of completion latency (default: 1)", |d, v| {
        d.job.percentiles.clat = v.flag()?;
        Ok(())
    })
    .flag(),
    job("lat_percentiles", "", "report percentiles of total latency", |d, v| {
        d.job.percentiles.lat = v.flag()?;
        Ok(())
    })
    .flag(),
    job("slat_percentiles", "", "report percentiles of submission latency", |d, v| {
        d.job.percentiles.slat = v.flag()?;
        Ok(())
    })
    .flag(),
    job(
        "unified_rw_reporting",
        "WORD",
        "none, mixed or both: reads, writes and trims are reported each by itself (default), as one, or both ways",
        |d, v| {
            let found = Unified::NAMES.iter().find(|(_, name)| *name == v.text);
            let (unified, _) =
                found.ok_or_else(|| UsageError::new("accepted: none, mixed, both"))?;
            d.job.unified = *unified;
            Ok(())
        },
    ),
    job("percentile_list", "P:P:...", "percentiles of latency to report, up to 20", |d, v| {
        d.job.percentile_list = percentiles(v.text)?;
        Ok(())
    }),
];

const fn zone(name: &'static str, help: &'static str, apply: super::ApplyJob) -> Opt {
    Opt::job(Group::Pattern, name, "SIZE", help, apply)
}

/// The largest weight of a flow.
const MAX_WEIGHT: u32 = 1 << 30;

/// `zonemode`: returns whether there are zones with gaps between them.
fn is_strided(value: Value<'_>) -> Result<bool, UsageError> {
    match value.text {
        "none" => Ok(false),
        "strided" => Ok(true),
        "zbd" => Err(UsageError::new("zoned block devices are not built; accepted: none, strided")),
        _ => Err(UsageError::new("accepted: none, strided")),
    }
}

/// `numa_mem_policy`, which has no effect on a single node.
fn mem_policy(value: Value<'_>) -> Result<(), UsageError> {
    let policy = value.text.split(':').next().unwrap_or_default();
    match policy {
        "default" | "local" => Ok(()),
        "bind" | "prefer" | "interleave" if nodes().len() <= 1 => Ok(()),
        "bind" | "prefer" | "interleave" => Err(UsageError::new(
            "memory lies where its thread runs; accepted on a machine with several nodes: default, local",
        )),
        _ => Err(UsageError::new(
            "accepted: default, local, bind:NODES, prefer:NODE, interleave:NODES",
        )),
    }
}

/// The table.
pub const STEERING: &[Opt] = &[
    Opt::job(
        Group::Pattern,
        "zonemode",
        "none, strided",
        "strided: zonesize bytes of I/O in each zone of zonerange, and zoneskip to the next one",
        |d, v| {
            d.zones.strided = is_strided(v)?;
            Ok(())
        },
    ),
    zone("zonesize", "I/O in a zone before the next one begins", |d, v| {
        d.zones.size = units::bytes(v.text, v.base)?;
        Ok(())
    }),
    zone("zonerange", "length of a zone (default zonesize)", |d, v| {
        d.zones.range = units::bytes(v.text, v.base)?;
        Ok(())
    }),
    zone("zoneskip", "gap between two zones (default 0)", |d, v| {
        d.zones.skip = units::bytes(v.text, v.base)?;
        Ok(())
    }),
    job(
        "flow",
        "COUNT",
        "weight of each thread among those of one flow_id: a thread that is ahead of its share waits (default 0, none)",
        |d, v| {
            d.flow.weight = v.count(0..=MAX_WEIGHT)?;
            Ok(())
        },
    ),
    job("flow_id", "NUMBER", "the flow that the job is in (default 0)", |d, v| {
        d.flow.id = v.count(0..=u32::MAX)?;
        Ok(())
    }),
    job(
        "flow_sleep",
        "TIME",
        "a thread that is ahead looks again after so long; microseconds without a unit (default 1)",
        |d, v| {
            d.flow.sleep = v.time(TimeUnit::Micros)?;
            Ok(())
        },
    ),
    job("wait_for", "JOB", "begin when all threads of this earlier job have ended", |d, v| {
        d.job.wait_for = Some(v.non_empty("the name of an earlier job")?.into());
        Ok(())
    }),
    job(
        "exit_what",
        "group, stonewall, all",
        "the jobs that exitall ends: those of the group, those that run meanwhile, or all to come as well",
        |d, v| {
            let found = ExitWhat::NAMES.iter().find(|(_, name)| *name == v.text);
            let (what, _) =
                found.ok_or_else(|| UsageError::new("accepted: group, stonewall, all"))?;
            d.job.exit_what = *what;
            Ok(())
        },
    ),
    job(
        "continue_on_error",
        "WORD",
        "none, read, write, io, verify, all: the I/Os that may fail with EIO without ending the job; they are counted",
        |d, v| {
            let found = OnError::NAMES.iter().find(|(_, name)| *name == v.text);
            let (on_error, _) = found
                .ok_or_else(|| UsageError::new("accepted: none, read, write, io, verify, all"))?;
            d.job.on_error = *on_error;
            Ok(())
        },
    ),
    job(
        "max_latency",
        "TIME[,TIME[,TIME]]",
        "a thread ends with ETIMEDOUT if one of its I/Os takes longer; microseconds without a unit",
        |d, v| {
            let most = v.directions(|v| v.time(TimeUnit::Micros))?;
            for direction in Direction::ALL {
                d.job.max_latency[direction] = most[direction].filter(|most| most.0 > 0);
            }
            Ok(())
        },
    ),
    job(
        "rate_min",
        "SIZE[,SIZE[,SIZE]]",
        "a thread that moves fewer bytes per second ends with an error",
        |d, v| {
            d.job.rate_min = rates(v)?;
            Ok(())
        },
    )
    .or(&["ratemin"]),
    job("rate_iops_min", "COUNT[,COUNT[,COUNT]]", "the same in I/Os per second", |d, v| {
        d.job.rate_iops_min = rates(v)?;
        Ok(())
    }),
    job(
        "rate_cycle",
        "MILLISECONDS",
        "the time over which rate_min and rate_iops_min are taken (default 1000)",
        |d, v| {
            d.job.rate_cycle = Nanos::from_millis(v.count(1..=86_400_000)?);
            Ok(())
        },
    )
    .or(&["ratecycle"]),
    job(
        "numa_cpu_nodes",
        "NODES or all",
        "bind the threads to the CPUs of these nodes, such as 0-1,3",
        |d, v| {
            d.cpus.list = Some(Cpus::of_nodes(v.text)?);
            Ok(())
        },
    ),
    job(
        "numa_mem_policy",
        "POLICY",
        "where memory lies; accepted if that is where a thread runs: local, or one node",
        |_, v| mem_policy(v),
    ),
];
