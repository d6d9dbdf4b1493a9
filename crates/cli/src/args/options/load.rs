//! fio's options for the depth, the rate and the duration of a job; those by which jobs influence or observe each
//! other; and those of zones.

use super::super::job_draft::{Value, cmdprio_split, percentiles, put, unless_zero};
use super::{Opt, PATTERN, flag, job};
use crate::plan::choices::{Cpus, nodes};
use blkmq_core::Nanos;
use blkmq_lab::workload::{ExitWhat, OnError, Unified};
use blkmq_terminal::{UsageError, units};

/// The maximum queue depth of a thread.
const MAX_DEPTH: u32 = 65_536;
/// The most threads of a job.
pub const MAX_THREADS: u32 = 4_096;
/// The largest weight of a flow.
const MAX_WEIGHT: u32 = 1 << 30;

/// The table.
pub const OPTIONS: &[Opt] = &[
    job("iodepth", |d, v| put(&mut d.job.depth.iodepth, v.count(1..=MAX_DEPTH)))
        .takes("1-65536", "I/Os that a thread keeps in flight (default 1)"),
    job("iodepth_low", |d, v| put(&mut d.job.depth.low, v.count(0..=MAX_DEPTH)))
        .takes("0-65536", "once full, submit again at this many (default iodepth)"),
    job("iodepth_batch_submit", |d, v| put(&mut d.job.depth.batch_submit, v.count(0..=MAX_DEPTH)))
        .or(&["iodepth_batch"])
        .takes("0-65536", "I/Os submitted in one plug (default 1; 0 is iodepth)"),
    job("iodepth_batch_complete_min", |d, v| {
        put(&mut d.job.depth.batch_complete_min, v.count(0..=MAX_DEPTH))
    })
    .or(&["iodepth_batch_complete"])
    .takes("0-65536", "completions to wait for (default 1)"),
    job("iodepth_batch_complete_max", |d, v| {
        put(&mut d.job.depth.batch_complete_max, v.count(1..=MAX_DEPTH))
    })
    .takes("1-65536", "completions to take at once (default: the min)"),
    flag("serialize_overlap", |d| &mut d.job.serialize_overlap)
        .switch("an I/O waits while another one of the thread is in flight to its place"),
    job("numjobs", |d, v| put(&mut d.job.numjobs, v.count(1..=MAX_THREADS)))
        .takes("1-4096", "threads of the job (default 1)"),
    job("runtime", |d, v| put(&mut d.job.runtime, unless_zero(v.seconds())))
        .or(&["timeout"])
        .takes("TIME", "stop after this long; seconds unless a unit is given"),
    // As in fio, any number other than 0 means yes: users often put the runtime here.
    job("time_based", |d, v| {
        put(&mut d.job.time_based, v.count(0..=u64::MAX).map(|number| number != 0))
    })
    .switch("begin again until the runtime is over"),
    job("ramp_time", |d, v| put(&mut d.job.ramp_time, v.seconds()))
        .takes("TIME", "run this long before anything is counted"),
    job("startdelay", |d, v| put(&mut d.job.startdelay, v.seconds()))
        .takes("TIME", "begin this much later"),
    job("loops", |d, v| put(&mut d.job.loops, v.count(1..=u32::MAX)))
        .takes("COUNT", "passes over the region (default 1)"),
    job("number_ios", |d, v| put(&mut d.job.number_ios, unless_zero(v.count(0..=u64::MAX))))
        .takes("COUNT", "end a pass after this many I/Os"),
    job("rate_iops", |d, v| put(&mut d.job.rate_iops, v.rates()))
        .takes("COUNT[,COUNT[,COUNT]]", "I/Os per second and thread, by direction"),
    job("rate", |d, v| put(&mut d.job.rate, v.rates()))
        .takes("SIZE[,SIZE[,SIZE]]", "bytes per second and thread, by direction"),
    job("rate_process", |d, v| {
        put(&mut d.job.poisson, v.word(&[(false, "linear"), (true, "poisson")], "linear, poisson"))
    })
    .takes("linear, poisson", "equal times between rated I/Os, or random ones"),
    job("thinktime", |d, v| put(&mut d.thinktime.pause, v.micros()))
        .takes("TIME", "pause between I/Os; microseconds unless a unit is given"),
    job("thinktime_blocks", |d, v| put(&mut d.thinktime.blocks, v.count(1..=u32::MAX)))
        .takes("COUNT", "I/Os between two pauses (default 1)"),
    job("cpus_allowed", |d, v| put(&mut d.cpus, Cpus::parse(v.text)))
        .takes("CPU[-CPU][,...]", "bind the threads of the job to these CPUs"),
    job("cpumask", |d, v| put(&mut d.cpus, Cpus::of_mask(v.count(1..=u64::MAX)?)))
        .takes("NUMBER", "the same as a number, with a bit for each CPU"),
    job("cpus_allowed_policy", |d, v| {
        put(&mut d.splits_cpus, v.word(&[(false, "shared"), (true, "split")], "shared, split"))
    })
    .takes("shared or split", "all of them for each thread (default), or one in turn"),
    job("prioclass", |d, v| put(&mut d.prioclass, v.count(0..=3u8)))
        .takes("0-3", "0 none, 1 realtime, 2 best-effort, 3 idle"),
    job("prio", |d, v| put(&mut d.prio, v.count(0..=7u16)))
        .takes("0-7", "level within the class, 0 first; alone, it implies best-effort"),
    job("cmdprio_percentage", |d, v| put(&mut d.cmdprio.percentage, v.directions(Value::percent)))
        .takes(
            "0-100[,0-100]",
            "reads and writes with the priority of cmdprio_class and cmdprio, in percent \
         (default 0)",
        ),
    job("cmdprio_class", |d, v| put(&mut d.cmdprio.class, v.directions(|v| v.count(1..=3u8))))
        .takes("1-3[,1-3]", "the class of that priority (default 1, realtime)"),
    job("cmdprio", |d, v| put(&mut d.cmdprio.level, v.directions(|v| v.count(0..=7u16))))
        .takes("0-7[,0-7]", "the level of that priority (default 0)"),
    job("cmdprio_bssplit", |d, v| put(&mut d.cmdprio.split, v.directions(cmdprio_split))).takes(
        "SIZE/PERCENT[/CLASS/LEVEL]:...",
        "the same by the length of the I/O; not with cmdprio_percentage; a hint behind \
         LEVEL has no effect",
    ),
    job("cgroup", |d, v| put(&mut d.job.cgroup, v.non_empty("the name of a group")))
        .takes("NAME", "the group that the I/O is for; see group"),
    job("cgroup_weight", |d, v| put(&mut d.job.cgroup_weight, v.count(1..=1000u32)))
        .takes("1-1000", "the weight of that group (default 100)"),
    job("latency_target", |d, v| put(&mut d.latency.target, v.micros())).takes(
        "TIME",
        "find the most I/Os in flight, up to iodepth, that take no longer, and end; \
         microseconds without a unit",
    ),
    job("latency_window", |d, v| put(&mut d.latency.window, v.micros()))
        .takes("TIME", "try each depth for so long; microseconds without a unit"),
    job("latency_percentile", |d, v| {
        put(&mut d.latency.percentile, units::decimal(v.text, "above 0 and up to 100"))
    })
    .takes("PERCENT", "I/Os that must keep the target (default 100)"),
    flag("latency_run", |d| &mut d.latency.run)
        .switch("go on with the depth that was found, and lower it if it has to be"),
    flag("fill_device", |d| &mut d.job.fill_device)
        .or(&["fill_fs"])
        .switch("work up to the end of the device; no space left is no error"),
    flag("exitall", |d| &mut d.job.exitall)
        .switch("the first job that ends ends all jobs of its group; holds for all groups"),
    flag("stonewall", |d| &mut d.job.stonewall)
        .or(&["wait_for_previous"])
        .switch("wait until all earlier jobs have ended"),
    flag("new_group", |d| &mut d.job.new_group).switch("begin a reporting group"),
    flag("group_reporting", |d| &mut d.job.group_reporting)
        .switch("one result for the group instead of one for each thread"),
    flag("gtod_reduce", |d| &mut d.gtod_reduce)
        .switch("read the clock as rarely as possible: no latencies"),
    job("disable_lat", |d, v| put(&mut d.job.latencies.lat, v.opposite()))
        .switch("take no total latencies"),
    job("disable_clat", |d, v| put(&mut d.job.latencies.clat, v.opposite()))
        .switch("take no completion latencies"),
    job("disable_slat", |d, v| put(&mut d.job.latencies.slat, v.opposite()))
        .switch("take no submission latencies"),
    flag("end_fsync", |d| &mut d.job.end_fsync)
        .switch("flush the device when all is written, within the measured time"),
    flag("fsync_on_close", |d| &mut d.fsync_on_close)
        .switch("the same as end_fsync: files are closed when all is done"),
    flag("clat_percentiles", |d| &mut d.job.percentiles.clat)
        .switch("report percentiles of completion latency (default: 1)"),
    flag("lat_percentiles", |d| &mut d.job.percentiles.lat)
        .switch("report percentiles of total latency"),
    flag("slat_percentiles", |d| &mut d.job.percentiles.slat)
        .switch("report percentiles of submission latency"),
    job("unified_rw_reporting", |d, v| {
        put(&mut d.job.unified, v.word(&Unified::NAMES, "none, mixed, both"))
    })
    .takes(
        "WORD",
        "none, mixed or both: reads, writes and trims are reported each by itself \
         (default), as one, or both ways",
    ),
    job("percentile_list", |d, v| put(&mut d.job.percentile_list, percentiles(v.text)))
        .takes("P:P:...", "percentiles of latency to report, up to 20"),
    job("zonemode", |d, v| put(&mut d.is_strided, is_strided(v))).under(PATTERN).takes(
        "none, strided",
        "strided: zonesize bytes of I/O in each zone of zonerange, and zoneskip to the \
         next one",
    ),
    job("zonesize", |d, v| put(&mut d.zones.size, v.bytes()))
        .under(PATTERN)
        .takes("SIZE", "I/O in a zone before the next one begins"),
    job("zonerange", |d, v| put(&mut d.zones.range, v.bytes()))
        .under(PATTERN)
        .takes("SIZE", "length of a zone (default zonesize)"),
    job("zoneskip", |d, v| put(&mut d.zones.skip, v.bytes()))
        .under(PATTERN)
        .takes("SIZE", "gap between two zones (default 0)"),
    job("flow", |d, v| put(&mut d.flow.weight, v.count(0..=MAX_WEIGHT))).takes(
        "COUNT",
        "weight of each thread among those of one flow_id: a thread that is ahead of its \
         share waits (default 0, none)",
    ),
    job("flow_id", |d, v| put(&mut d.flow.id, v.count(0..=u32::MAX)))
        .takes("NUMBER", "the flow that the job is in (default 0)"),
    job("flow_sleep", |d, v| put(&mut d.flow.sleep, v.micros())).takes(
        "TIME",
        "a thread that is ahead looks again after so long; microseconds without a unit \
         (default 1)",
    ),
    job("wait_for", |d, v| put(&mut d.job.wait_for, v.non_empty("the name of an earlier job")))
        .takes("JOB", "begin when all threads of this earlier job have ended"),
    job("exit_what", |d, v| {
        put(&mut d.job.exit_what, v.word(&ExitWhat::NAMES, "group, stonewall, all"))
    })
    .takes(
        "group, stonewall, all",
        "the jobs that exitall ends: those of the group, those that run meanwhile, or \
         all to come as well",
    ),
    job("continue_on_error", |d, v| {
        put(&mut d.job.on_error, v.word(&OnError::NAMES, "none, read, write, io, verify, all"))
    })
    .takes(
        "WORD",
        "none, read, write, io, verify, all: the I/Os that may fail with EIO without \
         ending the job; they are counted",
    ),
    job("max_latency", |d, v| put(&mut d.job.max_latency, v.limits(Value::micros))).takes(
        "TIME[,TIME[,TIME]]",
        "a thread ends with ETIMEDOUT if one of its I/Os takes longer; microseconds \
         without a unit",
    ),
    job("rate_min", |d, v| put(&mut d.job.rate_min, v.rates())).or(&["ratemin"]).takes(
        "SIZE[,SIZE[,SIZE]]",
        "a thread that moves fewer bytes per second ends with an error",
    ),
    job("rate_iops_min", |d, v| put(&mut d.job.rate_iops_min, v.rates()))
        .takes("COUNT[,COUNT[,COUNT]]", "the same in I/Os per second"),
    job("rate_cycle", |d, v| {
        put(&mut d.job.rate_cycle, v.count(1..=86_400_000).map(Nanos::from_millis))
    })
    .or(&["ratecycle"])
    .takes(
        "MILLISECONDS",
        "the time over which rate_min and rate_iops_min are taken (default 1000)",
    ),
    job("numa_cpu_nodes", |d, v| put(&mut d.cpus, Cpus::of_nodes(v.text)))
        .takes("NODES or all", "bind the threads to the CPUs of these nodes, such as 0-1,3"),
    job("numa_mem_policy", |_, v| mem_policy(v)).takes(
        "POLICY",
        "where memory lies; accepted if that is where a thread runs: local, or one node",
    ),
];

/// `zonemode`: returns whether there are zones with gaps between them.
fn is_strided(value: Value<'_>) -> Result<bool, UsageError> {
    if value.text == "zbd" {
        let text = "zoned block devices are not built; accepted: none, strided";
        return Err(UsageError::new(text));
    }
    value.word(&[(false, "none"), (true, "strided")], "none, strided")
}

/// `numa_mem_policy`, which has no effect on a single node.
fn mem_policy(value: Value<'_>) -> Result<(), UsageError> {
    let policy = value.text.split(':').next().unwrap_or_default();
    let accepted = match policy {
        "default" | "local" => return Ok(()),
        "bind" | "prefer" | "interleave" if nodes().len() <= 1 => return Ok(()),
        "bind" | "prefer" | "interleave" => {
            "memory lies where its thread runs; accepted on a machine with several nodes: default, local"
        }
        _ => "accepted: default, local, bind:NODES, prefer:NODE, interleave:NODES",
    };
    Err(UsageError::new(accepted))
}
