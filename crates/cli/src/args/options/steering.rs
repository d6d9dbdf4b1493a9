//! fio's options by which jobs influence or observe each other, and those of zones.

use super::super::job_draft::rates;
use super::super::value::Value;
use super::{Group, Opt};
use crate::plan::Cpus;
use crate::plan::cpus::nodes;
use blkmq_core::Nanos;
use blkmq_lab::workload::{Direction, ExitWhat, OnError};
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
pub const OPTIONS: &[Opt] = &[
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
