//! fio's options for the engine and the files of a job.

use super::super::engine::Engine;
use super::super::file_draft;
use super::{Group, Kind, Meaning, Opt};
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
