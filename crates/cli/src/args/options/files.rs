//! fio's options for the engine and the files of a job.

use super::super::engine::Engine;
use super::{Group, Kind, Meaning, Opt};
use crate::error::UsageError;

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

/// The table.
pub const OPTIONS: &[Opt] = &[
    described(
        "filename",
        "PATH",
        "the file or block device for I/O, unless there is --device; laid out if needed",
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
    job("directory", "PATH", "the folder of filename; alone, of a file JOB.0.0", |d, v| {
        d.files.directory = Some(v.non_empty("the path of a folder")?.into());
        Ok(())
    }),
    job("filesize", "SIZE", "the size of the file to lay out; bounds size", |d, v| {
        if v.text.contains('-') {
            return Err(UsageError::new("a range of sizes is not built; accepted: one size"));
        }
        d.files.filesize = Some(crate::units::bytes(v.text, v.base)?).filter(|bytes| *bytes > 0);
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
