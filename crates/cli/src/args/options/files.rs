//! fio's options for the engine and the files of a job, and for logs of I/Os, written and replayed.

use super::super::file_draft::{self, Engine};
use super::{Group, Kind, Meaning, Opt};
use blkmq_core::{Nanos, Op, SECTOR_SIZE};
use blkmq_lab::workload::Logs;
use blkmq_terminal::UsageError;

const fn described(
    name: &'static str,
    accepts: &'static str,
    help: &'static str,
    apply: super::ApplyJob,
) -> Opt {
    let (aliases, kind): (&[&str], _) = (&[], Kind::Value);
    Opt {
        name,
        aliases,
        group: Group::Files,
        kind,
        accepts,
        help,
        meaning: Meaning::Described(apply),
    }
}

const fn job(
    name: &'static str,
    accepts: &'static str,
    help: &'static str,
    apply: super::ApplyJob,
) -> Opt {
    Opt::job(Group::Files, name, accepts, help, apply)
}

/// The most files of a thread.
const MAX_FILES: u32 = 65_536;

/// The table.
pub const OPTIONS: &[Opt] = &[
    described(
        "filename",
        "PATH[:PATH...]",
        "the files or the block device for I/O, unless there is --device; laid out if needed",
        |d, v| {
            d.files.filename = Some(v.non_empty("the path of a file or block device")?.into());
            Ok(())
        },
    ),
    described(
        "ioengine",
        "NAME",
        "null, or an engine for files; all of them go through io_uring",
        |d, v| {
            d.files.engine = Some(Engine::named(v.text)?);
            Ok(())
        },
    ),
    job("directory", "PATH", "the folder of filename; alone, of files JOB.THREAD.FILE", |d, v| {
        d.files.directory = Some(v.non_empty("the path of a folder")?.into());
        Ok(())
    }),
    job("nrfiles", "1-65536", "files of each thread, which share size (default 1)", |d, v| {
        d.files.nrfiles = v.count(1..=MAX_FILES)?;
        Ok(())
    })
    .or(&["nr_files"]),
    job("filename_format", "NAME", "names with $jobname, $jobnum, $filenum in them", |d, v| {
        d.files.format = file_draft::format(v.text)?;
        Ok(())
    }),
    job(
        "file_service_type",
        "ORDER[:COUNT]",
        "the next of several files: roundrobin (default), random or sequential; and the I/Os of its turn",
        |d, v| {
            d.files.service = file_draft::service(v.text)?;
            Ok(())
        },
    ),
    job(
        "openfiles",
        "1-65536",
        "files that a thread visits at a time (default nrfiles)",
        |d, v| {
            d.files.openfiles = Some(v.count(0..=MAX_FILES)?).filter(|files| *files > 0);
            Ok(())
        },
    ),
    job("filesize", "SIZE", "the size of each file to lay out; bounds size", |d, v| {
        if v.text.contains('-') {
            return Err(UsageError::new("a range of sizes is not built; accepted: one size"));
        }
        d.files.filesize =
            Some(blkmq_terminal::units::bytes(v.text, v.base)?).filter(|bytes| *bytes > 0);
        Ok(())
    }),
    job(
        "allow_file_create",
        "",
        "a file that does not exist may be laid out (default 1)",
        |d, v| {
            d.files.may_create = v.flag()?;
            Ok(())
        },
    )
    .flag(),
];

const fn log_setting(
    name: &'static str,
    accepts: &'static str,
    help: &'static str,
    apply: super::ApplyJob,
) -> Opt {
    Opt::job(Group::Logs, name, accepts, help, apply)
}

/// Defines an option for a log. Without a value its files are named after the job, whose name is not known yet.
const fn log(name: &'static str, help: &'static str, apply: super::ApplyJob) -> Opt {
    Opt { kind: Kind::Optional, ..job(name, "PREFIX", help, apply) }
}

/// The longest time of a line: a day.
const MAX_MSEC: u64 = 86_400_000;

/// A kind of I/O that a replay leaves out.
fn skipped(kind: &str) -> Result<Op, UsageError> {
    match kind.trim() {
        "read" => Ok(Op::Read),
        "write" => Ok(Op::Write),
        "trim" => Ok(Op::Discard),
        "sync" => Ok(Op::Flush),
        _ => Err(UsageError::new("accepted: read, write, trim, sync, with commas between them")),
    }
}

/// The table.
pub const LOGS: &[Opt] = &[
    log(
        "write_bw_log",
        "log of bandwidth: PREFIX_bw.1.log and so on (default: the job's name)",
        |d, v| {
            d.job.logs.bw = Some(v.text.into());
            Ok(())
        },
    ),
    log("write_iops_log", "log of I/Os per second: PREFIX_iops.1.log and so on", |d, v| {
        d.job.logs.iops = Some(v.text.into());
        Ok(())
    }),
    log("write_lat_log", "logs of latencies: PREFIX_slat.1.log, _clat and _lat", |d, v| {
        d.job.logs.lat = Some(v.text.into());
        Ok(())
    }),
    log("write_hist_log", "log of latencies as histograms: PREFIX_clat_hist.1.log", |d, v| {
        d.job.logs.hist = Some(v.text.into());
        Ok(())
    }),
    log_setting(
        "write_iolog",
        "FILE",
        "log of the I/Os as they are issued, for fio's read_iolog; FILE.1 and so on if there are several threads",
        |d, v| {
            d.job.logs.io = Some(v.non_empty("the name of a file")?.into());
            Ok(())
        },
    ),
    log_setting(
        "read_iolog",
        "FILE",
        "replay the I/Os of a trace, as it is, instead of a pattern: fio's iolog, blktrace, or any form of blkmq trace",
        |d, v| {
            d.iolog.file = Some(v.non_empty("the name of a file")?.into());
            Ok(())
        },
    ),
    log_setting(
        "replay_no_stall",
        "",
        "with read_iolog: without the times of the trace",
        |d, v| {
            d.iolog.no_stall = v.flag()?;
            Ok(())
        },
    )
    .flag(),
    log_setting(
        "replay_time_scale",
        "PERCENT",
        "with read_iolog: the rate of the trace; 200 is twice as fast (default 100)",
        |d, v| {
            d.iolog.time_scale = v.count(1..=1_000_000)?;
            Ok(())
        },
    ),
    log_setting(
        "replay_scale",
        "NUMBER",
        "with read_iolog: divide offsets by this (default 1)",
        |d, v| {
            d.iolog.scale = v.count(1..=1 << 20)?;
            Ok(())
        },
    ),
    log_setting(
        "replay_align",
        "BYTES",
        "with read_iolog: round offsets down to multiples of this power of two (default 512)",
        |d, v| {
            let align: u32 = v.count(0..=1 << 30)?;
            match align {
                0 => d.iolog.align = SECTOR_SIZE,
                _ if align.is_power_of_two() => d.iolog.align = align.max(SECTOR_SIZE),
                _ => return Err(UsageError::new("accepted: a power of two")),
            }
            Ok(())
        },
    ),
    log_setting(
        "replay_skip",
        "read, write, trim, sync",
        "with read_iolog: leave out the I/Os of these kinds",
        |d, v| {
            d.iolog.skip = v.text.split(',').map(skipped).collect::<Result<_, _>>()?;
            Ok(())
        },
    ),
    log_setting(
        "log_avg_msec",
        "MSEC",
        "a line for each so long time (default 0, for each I/O)",
        |d, v| {
            d.job.logs.avg = Nanos::from_millis(v.count(0..=MAX_MSEC)?);
            Ok(())
        },
    ),
    log_setting(
        "log_hist_msec",
        "MSEC",
        "a histogram for each so long time (default 0, none)",
        |d, v| {
            d.job.logs.hist_window = Nanos::from_millis(v.count(0..=MAX_MSEC)?);
            Ok(())
        },
    ),
    log_setting(
        "log_hist_coarseness",
        "0-6",
        "each step halves the 1856 bins (default 0)",
        |d, v| {
            d.job.logs.coarseness = v.count(0..=6)?;
            Ok(())
        },
    ),
    log_setting("log_offset", "", "lines have the offset of the I/O", |d, v| {
        d.job.logs.offset = v.flag()?;
        Ok(())
    })
    .flag(),
    log_setting("log_prio", "", "lines have the priority of the I/O", |d, v| {
        d.job.logs.prio = v.flag()?;
        Ok(())
    })
    .flag(),
    log_setting("log_unix_epoch", "", "times since the epoch, in a real run", |d, v| {
        d.job.logs.unix_epoch = v.flag()?;
        Ok(())
    })
    .flag(),
    log_setting(
        "log_max_value",
        "",
        "with log_avg_msec: the largest latency, not the mean",
        |d, v| {
            d.job.logs.max_value = v.flag()?;
            Ok(())
        },
    )
    .flag(),
    log_setting("per_job_logs", "", "files of its own for each thread (default 1)", |d, v| {
        d.job.logs.per_job = v.flag()?;
        Ok(())
    })
    .flag(),
];

/// The logs of the job `name`, checked as a whole.
///
/// # Errors
/// If a prefix cannot begin a file name.
pub fn finish_logs(mut logs: Logs, name: &str) -> Result<Logs, UsageError> {
    let Logs { bw, iops, lat, hist, io, .. } = &mut logs;
    for prefix in [bw, iops, lat, hist, io].into_iter().flatten() {
        if prefix.is_empty() {
            *prefix = name.into();
        }
        if prefix.ends_with('/') {
            let text = format!("log {prefix}: a folder; accepted: what names of files begin with");
            return Err(UsageError::new(text));
        }
    }
    Ok(logs)
}
