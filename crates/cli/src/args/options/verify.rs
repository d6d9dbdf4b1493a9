//! fio's options for checking that a read returns the data that was written.

use super::super::job_draft::block_size;
use super::{Group, Opt};
use blkmq_lab::workload::verify::{Method, Pattern};
use blkmq_terminal::UsageError;
use std::fs::File;
use std::io::Read;

const fn job(
    name: &'static str,
    accepts: &'static str,
    help: &'static str,
    apply: super::ApplyJob,
) -> Opt {
    Opt::job(Group::Verify, name, accepts, help, apply)
}

/// The bytes of a file that is part of a pattern; of a long one, enough to see that it is too long.
pub(super) fn bytes_of(name: &str) -> Result<Vec<u8>, String> {
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
pub const OPTIONS: &[Opt] = &[
    job(
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
    job(
        "verify_pattern",
        "0xHEX, NUMBER, \"TEXT\", 'FILE', %o",
        "fill blocks with this, %o being their offset (default: from a seed)",
        |d, v| {
            let pattern = Pattern::parse_with(v.text, bytes_of);
            d.verify.pattern = Some(pattern.map_err(|e| UsageError::new(e.to_string()))?);
            Ok(())
        },
    ),
    job(
        "verify_interval",
        "SIZE",
        "block with a header of its own (default: what all block sizes have in common)",
        |d, v| {
            let bs = block_size(v)?;
            let checked = blkmq_lab::workload::BlockSize::Fixed(bs).validate();
            checked.map_err(|e| UsageError::new(e.to_string()))?;
            d.verify.interval = Some(bs);
            Ok(())
        },
    ),
    job("do_verify", "", "read back at the end of the job (default 1)", |d, v| {
        d.verify.do_verify = Some(v.flag()?);
        Ok(())
    })
    .flag(),
    job("verify_fatal", "", "end the job at the first wrong block", |d, v| {
        d.verify.fatal = Some(v.flag()?);
        Ok(())
    })
    .flag(),
    job(
        "verify_backlog",
        "COUNT",
        "read back after every COUNT writes (default 0, at the end)",
        |d, v| {
            d.verify.backlog = Some(v.count(0..=u32::MAX)?);
            Ok(())
        },
    ),
    job(
        "verify_state_save",
        "",
        "keep what each block holds in local-NAME-THREAD-verify.state, in a form of blkmq (default 0)",
        |d, v| {
            d.verify.state_save = Some(v.flag()?);
            Ok(())
        },
    )
    .flag(),
    job("verify_state_load", "", "with verify_only, or in a job that reads: check what such a file says", |d, v| {
        d.verify.state_load = Some(v.flag()?);
        Ok(())
    })
    .flag(),
    job("verify_only", "", "write nothing; check what the same job has written before", |d, v| {
        d.verify.only = Some(v.flag()?);
        Ok(())
    })
    .flag(),
];
