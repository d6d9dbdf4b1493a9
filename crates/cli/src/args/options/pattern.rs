//! fio's options for the pattern of a job's I/Os, for the contents of its writes, and for checking that a read returns
//! the data that was written.

use super::super::value::{block_size, block_sizes, distribution, pattern, range};
use super::{Group, Opt};
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

/// The table.
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
