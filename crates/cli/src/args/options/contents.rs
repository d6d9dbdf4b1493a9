//! fio's options for the contents of writes that are not verified.

use super::Opt;
use super::pattern::job;
use super::verify::bytes_of;
use blkmq_lab::workload::verify::Pattern;
use blkmq_terminal::UsageError;

/// The table.
pub const OPTIONS: &[Opt] = &[
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
