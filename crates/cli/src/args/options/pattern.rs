//! fio's options for the pattern of a job's I/Os.

use super::super::job_draft::{block_size, split};
use super::super::places::{distribution, pattern, range};
use super::{Group, Opt};
use blkmq_lab::workload::{BlockSize, Direction};
use blkmq_terminal::UsageError;
use blkmq_terminal::units;

pub(super) const fn job(
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
            d.bssplit = v.directions(split)?;
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
