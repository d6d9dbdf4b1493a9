//! fio's options for the I/Os of a job: the engine and the files, the pattern, the contents of writes, and the check
//! that a read returns the data that was written; and for logs of I/Os, written and replayed.

use super::super::file_draft::{self, Engine};
use super::super::job_draft::{block_size, block_sizes, distribution, pattern, range};
use super::{Group, Kind, Meaning, Opt};
use blkmq_core::{Nanos, Op, SECTOR_SIZE};
use blkmq_lab::workload::verify::{Method, Pattern};
use blkmq_lab::workload::{BlockSize, Direction};
use blkmq_terminal::{UsageError, units};
use std::fs::File;
use std::io::Read;

const fn job(
    name: &'static str,
    accepts: &'static str,
    help: &'static str,
    apply: super::ApplyJob,
) -> Opt {
    Opt::job(Group::Pattern, name, accepts, help, apply)
}

/// Returns whether a size is written in KiB, MiB or GiB.
fn says_kib(text: &str) -> bool {
    text.to_ascii_lowercase().contains("ib")
}

/// The options for the pattern.
pub const OPTIONS: &[Opt] = &[
    job(
        "rw",
        "PATTERN[:NUMBER]",
        "read, write, trim, rw, trimwrite, or rand and one of them; NUMBER: I/Os in sequence at each random place, \
         or bytes to leave out between sequential ones (negative: backwards)",
        |d, v| {
            (d.job.rw, d.job.run, d.job.hole) = pattern(v)?;
            Ok(())
        },
    )
    .or(&["readwrite"]),
    job("rwmixread", "0-100", "reads in a mix, in percent (default 50)", |d, v| {
        d.job.rwmixread = v.count(0..=100)?;
        Ok(())
    }),
    job("rwmixwrite", "0-100", "writes in a mix, in percent", |d, v| {
        d.job.rwmixread = 100 - v.count(0..=100u8)?;
        Ok(())
    }),
    job("bs", "SIZE[,SIZE[,SIZE]]", "block size of reads, writes, trims (default 4k)", |d, v| {
        let sizes = v.directions(block_size)?;
        d.says_kib = says_kib(v.text);
        for direction in Direction::ALL {
            if let Some(bs) = sizes[direction] {
                d.job.bs[direction] = BlockSize::Fixed(bs);
            }
        }
        Ok(())
    })
    .or(&["blocksize"]),
    job("bsrange", "MIN-MAX[,MIN-MAX...]", "block sizes are multiples of MIN, and MAX; wins over bs", |d, v| {
        let ranges = v.directions(range)?;
        d.says_kib = says_kib(v.text);
        for direction in Direction::ALL {
            if let Some(range) = &ranges[direction] {
                d.bsrange[direction] = Some(range.clone());
            }
        }
        Ok(())
    })
    .or(&["blocksize_range"]),
    job(
        "bssplit",
        "SIZE/PERCENT:...",
        "block sizes with their shares; wins over bs and bsrange",
        |d, v| {
            d.bssplit = v.directions(block_sizes)?;
            d.says_kib = says_kib(v.text);
            Ok(())
        },
    ),
    job(
        "blockalign",
        "SIZE[,SIZE[,SIZE]]",
        "grid of random places (default bs); implies norandommap",
        |d, v| {
            let grid = v.directions(block_size)?;
            for direction in Direction::ALL {
                d.job.blockalign[direction] = grid[direction].or(d.job.blockalign[direction]);
            }
            Ok(())
        },
    )
    .or(&["ba"]),
    job(
        "random_generator",
        "NAME",
        "lfsr: each block once also with norandommap, if all have one size; tausworthe and tausworthe64 are alike",
        |d, v| {
            d.lfsr = match v.text {
                "lfsr" => true,
                "tausworthe" | "tausworthe64" => false,
                _ => return Err(UsageError::new("accepted: tausworthe, tausworthe64, lfsr")),
            };
            Ok(())
        },
    ),
    job("norandommap", "", "draw blocks independently, instead of each once per pass", |d, v| {
        d.job.norandommap = v.flag()?;
        Ok(())
    })
    .flag(),
    job(
        "random_distribution",
        "KIND",
        "random, zipf:THETA, pareto:POWER, normal:DEVIATION (fio's bell; all three with :CENTRE, 0 to 1, the place of \
         the hottest block), zoned:SHARE/PERCENT:... or zoned_abs:SHARE/SIZE:... (shares of the I/Os, in percent)",
        |d, v| {
            d.job.random_distribution = distribution(v)?;
            Ok(())
        },
    ),
    job(
        "percentage_random",
        "0-100[,0-100...]",
        "random share of a random job (default 100)",
        |d, v| {
            let shares = v.directions(|v| units::percent(v.text))?;
            for direction in Direction::ALL {
                if let Some(share) = shares[direction] {
                    d.job.percentage_random[direction] = share;
                }
            }
            Ok(())
        },
    ),
    job("randseed", "NUMBER", "seed of all random choices (default 0x89)", |d, v| {
        d.job.randseed = v.count(0..=u64::MAX)?;
        Ok(())
    }),
    job(
        "size",
        "SIZE or PERCENT%",
        "region of each thread (default: to the end of the device)",
        |d, v| {
            d.job.size = Some(v.amount()?);
            Ok(())
        },
    ),
    job("io_size", "SIZE or PERCENT%", "what a thread issues in a pass (default: size, of which PERCENT is)", |d, v| {
        let amount = v.amount()?;
        d.job.io_size = Some(amount).filter(|amount| *amount != blkmq_lab::workload::Amount::ZERO);
        Ok(())
    })
    .or(&["io_limit"]),
    job(
        "offset",
        "SIZE or PERCENT%",
        "where the first thread's region begins (default 0)",
        |d, v| {
            d.job.offset = v.amount()?;
            Ok(())
        },
    )
    .or(&["fileoffset"]),
    job(
        "offset_increment",
        "SIZE or PERCENT%",
        "each further thread begins this much later",
        |d, v| {
            d.job.offset_increment = v.amount()?;
            Ok(())
        },
    ),
    job(
        "direct",
        "",
        "writes are waited for, hence sync to a scheduler, as with O_DIRECT",
        |d, v| {
            d.job.direct = v.flag()?;
            d.files.direct = Some(d.job.direct);
            Ok(())
        },
    )
    .flag(),
    job("buffered", "", "the opposite of direct: writes are async, as writeback is", |d, v| {
        d.job.direct = !v.flag()?;
        d.files.direct = Some(d.job.direct);
        Ok(())
    })
    .flag(),
    job("sync", "none, sync, dsync", "each write is durable before it completes (FUA)", |d, v| {
        d.job.sync = match v.text {
            "0" | "none" => false,
            "1" | "sync" | "dsync" => true,
            _ => return Err(UsageError::new("accepted: none, 0, sync, 1, dsync")),
        };
        Ok(())
    }),
    job(
        "fsync",
        "COUNT",
        "flush the device between every COUNT writes (default 0, never)",
        |d, v| {
            d.job.fsync = v.count(0..=u32::MAX)?;
            Ok(())
        },
    ),
    job("fdatasync", "COUNT", "the same, beside fsync (default 0, never)", |d, v| {
        d.job.fdatasync = v.count(0..=u32::MAX)?;
        Ok(())
    }),
    job(
        "kb_base",
        "1024 or 1000",
        "what k means in sizes (default 1024; kib is then 1000, as in fio)",
        |_, _| {
            Ok(()) // `kb_base` is read before all other options, because their values depend on it.
        },
    ),
];

/// The table.
pub const CONTENTS: &[Opt] = &[
    job("zero_buffers", "", "write zeroes (default: random bytes)", |d, v| {
        d.job.contents.is_zero = v.flag()?;
        Ok(())
    })
    .flag(),
    job("refill_buffers", "", "make every byte anew for each write", |d, v| {
        d.job.contents.refills = v.flag()?;
        Ok(())
    })
    .flag(),
    job("scramble_buffers", "", "make some bytes of each sector anew (default: 1)", |d, v| {
        d.job.contents.scrambles = v.flag()?;
        Ok(())
    })
    .flag(),
    job(
        "buffer_pattern",
        "0xHEX, NUMBER, \"TEXT\", 'FILE'",
        "write this over and over; with buffer_compress_percentage, in place of zeroes",
        |d, v| {
            let pattern = Pattern::parse_with(v.text, bytes_of);
            let pattern = pattern.map_err(|e| UsageError::new(e.to_string()))?;
            if pattern.has_offsets() {
                let text =
                    "%o belongs to verify_pattern; accepted: 0xHEX, NUMBER, \"TEXT\", 'FILE'";
                return Err(UsageError::new(text));
            }
            d.job.contents.pattern = Some(pattern);
            Ok(())
        },
    ),
    job(
        "buffer_compress_percentage",
        "0..100",
        "zeroes in this share of each chunk, random bytes in the rest",
        |d, v| {
            let share = v.count(0..=100u8)?;
            d.job.contents.compress = Some(share);
            // As in fio: equal random bytes in neighbours would compress further.
            d.job.contents.refills |= share < 100;
            Ok(())
        },
    ),
    job("buffer_compress_chunk", "BYTES", "the length of such a chunk (512)", |d, v| {
        d.job.contents.chunk = v.count(1..=1u32 << 30)?;
        Ok(())
    }),
    job("dedupe_percentage", "0..100", "writes that repeat the bytes of another one", |d, v| {
        d.job.contents.dedupe = v.count(0..=100u8)?;
        // As in fio: otherwise all writes from one buffer would be alike.
        d.job.contents.refills |= d.job.contents.dedupe > 0;
        Ok(())
    }),
    job(
        "dedupe_mode",
        "WORD",
        "these are the last unique write (repeat, default) or some of a working_set",
        |d, v| {
            d.job.contents.dedupe_mode = v.choice()?;
            Ok(())
        },
    ),
    job(
        "dedupe_working_set_percentage",
        "0..100",
        "the working set, as a share of the blocks of the job (5)",
        |d, v| {
            d.job.contents.working_set = v.count(0..=100u8)?;
            Ok(())
        },
    ),
    job("dedupe_global", "", "all jobs have one working set", |d, v| {
        d.job.contents.is_global = v.flag()?;
        Ok(())
    })
    .flag(),
];

const fn verify(
    name: &'static str,
    accepts: &'static str,
    help: &'static str,
    apply: super::ApplyJob,
) -> Opt {
    Opt::job(Group::Verify, name, accepts, help, apply)
}

/// The bytes of a file that is part of a pattern; of a long one, enough to see that it is too long.
fn bytes_of(name: &str) -> Result<Vec<u8>, String> {
    let failed = |e: std::io::Error| e.to_string();
    // A device has no end, and opening a pipe may block for ever.
    if !std::fs::metadata(name).map_err(failed)?.is_file() {
        return Err("no regular file".into());
    }
    let mut bytes = Vec::new();
    let file = File::open(name).map_err(failed)?;
    file.take(Pattern::MAX as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// The table.
pub const VERIFY: &[Opt] = &[
    verify(
        "verify",
        "METHOD",
        "read back what was written, and check it; or check what is read: with a checksum (crc32c, xxhash), a \
         digest (md5, sha256), meta (headers only), pattern or null",
        |d, v| {
            d.verify.method = match v.text {
                "0" => None,
                word => Some(Method::parse(word).ok_or_else(|| {
                    let words = Method::NAMES.iter().map(|(_, words)| words[0]);
                    let words = Vec::from_iter(words).join(", ");
                    UsageError::new(format!("not built; accepted: {words}, 0 (none)"))
                })?),
            };
            Ok(())
        },
    ),
    verify(
        "verify_pattern",
        "0xHEX, NUMBER, \"TEXT\", 'FILE', %o",
        "fill blocks with this, %o being their offset (default: from a seed)",
        |d, v| {
            let pattern = Pattern::parse_with(v.text, bytes_of);
            d.verify.pattern = Some(pattern.map_err(|e| UsageError::new(e.to_string()))?);
            Ok(())
        },
    ),
    verify(
        "verify_interval",
        "SIZE",
        "block with a header of its own (default: what all block sizes have in common)",
        |d, v| {
            let bs = block_size(v)?;
            let checked = BlockSize::Fixed(bs).validate();
            checked.map_err(|e| UsageError::new(e.to_string()))?;
            d.verify.interval = Some(bs);
            Ok(())
        },
    ),
    verify("do_verify", "", "read back at the end of the job (default 1)", |d, v| {
        d.verify.do_verify = Some(v.flag()?);
        Ok(())
    })
    .flag(),
    verify("verify_fatal", "", "end the job at the first wrong block", |d, v| {
        d.verify.fatal = Some(v.flag()?);
        Ok(())
    })
    .flag(),
    verify(
        "verify_backlog",
        "COUNT",
        "read back after every COUNT writes (default 0, at the end)",
        |d, v| {
            d.verify.backlog = Some(v.count(0..=u32::MAX)?);
            Ok(())
        },
    ),
    verify(
        "verify_state_save",
        "",
        "keep what each block holds in local-NAME-THREAD-verify.state, in a form of blkmq (default 0)",
        |d, v| {
            d.verify.state_save = Some(v.flag()?);
            Ok(())
        },
    )
    .flag(),
    verify("verify_state_load", "", "with verify_only, or in a job that reads: check what such a file says", |d, v| {
        d.verify.state_load = Some(v.flag()?);
        Ok(())
    })
    .flag(),
    verify("verify_only", "", "write nothing; check what the same job has written before", |d, v| {
        d.verify.only = Some(v.flag()?);
        Ok(())
    })
    .flag(),
];

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

const fn of_files(
    name: &'static str,
    accepts: &'static str,
    help: &'static str,
    apply: super::ApplyJob,
) -> Opt {
    Opt::job(Group::Files, name, accepts, help, apply)
}

/// The most files of a thread.
const MAX_FILES: u32 = 65_536;

/// The options for files.
pub const FILES: &[Opt] = &[
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
    of_files(
        "directory",
        "PATH",
        "the folder of filename; alone, of files JOB.THREAD.FILE",
        |d, v| {
            d.files.directory = Some(v.non_empty("the path of a folder")?.into());
            Ok(())
        },
    ),
    of_files("nrfiles", "1-65536", "files of each thread, which share size (default 1)", |d, v| {
        d.files.nrfiles = v.count(1..=MAX_FILES)?;
        Ok(())
    })
    .or(&["nr_files"]),
    of_files(
        "filename_format",
        "NAME",
        "names with $jobname, $jobnum, $filenum in them",
        |d, v| {
            d.files.format = file_draft::format(v.text)?;
            Ok(())
        },
    ),
    of_files(
        "file_service_type",
        "ORDER[:COUNT]",
        "the next of several files: roundrobin (default), random or sequential; and the I/Os of its turn",
        |d, v| {
            d.files.service = file_draft::service(v.text)?;
            Ok(())
        },
    ),
    of_files(
        "openfiles",
        "1-65536",
        "files that a thread visits at a time (default nrfiles)",
        |d, v| {
            d.files.openfiles = Some(v.count(0..=MAX_FILES)?).filter(|files| *files > 0);
            Ok(())
        },
    ),
    of_files("filesize", "SIZE", "the size of each file to lay out; bounds size", |d, v| {
        if v.text.contains('-') {
            return Err(UsageError::new("a range of sizes is not built; accepted: one size"));
        }
        d.files.filesize = Some(units::bytes(v.text, v.base)?).filter(|bytes| *bytes > 0);
        Ok(())
    }),
    of_files(
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
