//! The device that a command without `--device` runs on: the file or disk that its jobs name, or the null device.
//!
//! A run has one queue around one device, so all jobs name the same file. It is not opened here, and nothing is
//! created here: a file that does not exist, or is too short, is laid out when the first run begins.

use super::file_draft::FileDraft;
use crate::devices;
use crate::error::UsageError;
use crate::plan::{DeviceChoice, Time};
use blkmq_core::SECTOR_SIZE;
use blkmq_lab::workload::{Amount, Direction, Job};
use std::fs::FileType;

/// The input of the choice.
pub struct Asked<'a> {
    /// The options about files, for each job.
    pub files: &'a [FileDraft],
    /// The jobs.
    pub jobs: &'a [Job],
    /// `threads`: replaces the number of threads of every job.
    pub threads: &'a [u32],
    /// The kind of time.
    pub time: Time,
    /// Show the plan only: a device that does not exist is no error.
    pub dry_run: bool,
}

/// Chooses the device. What the user should know about it is added to `notes`.
///
/// # Errors
/// If jobs name different files, or the file does not exist and cannot be laid out.
pub fn choose(asked: &Asked<'_>, notes: &mut Vec<String>) -> Result<DeviceChoice, UsageError> {
    // Files have no place in virtual time; a note says so.
    if asked.time == Time::Real
        && let Some(path) = asked.path()?
    {
        return asked.storage(&path, notes);
    }
    let null = devices::choose("null", asked.time)?;
    // As in fio, the null device is as large as the jobs want it.
    match asked.needed().filter(|bytes| *bytes > null.size_bytes) {
        Some(bytes) => devices::choose(&format!("null,gb={}", bytes.div_ceil(1 << 30)), asked.time),
        None => Ok(null),
    }
}

impl Asked<'_> {
    /// The most threads of `job` in a run.
    fn threads_of(&self, job: &Job) -> u32 {
        self.threads.iter().copied().max().unwrap_or(job.numjobs)
    }

    /// The file of all jobs; `None` if none of them has one.
    fn path(&self) -> Result<Option<String>, UsageError> {
        let mut all: Option<(&FileDraft, Option<String>)> = None;
        for (draft, job) in self.files.iter().zip(self.jobs) {
            let path = draft.path(self.threads_of(job))?;
            match &all {
                Some((first, known)) if *known != path => {
                    let (one, other) = (said(known.as_deref()), said(path.as_deref()));
                    let text = format!(
                        "{other}, and job '{}' {one}; a run has one queue around one device; accepted: the same \
                         filename for all jobs, or --device",
                        first.job
                    );
                    return Err(draft.at(text));
                }
                Some(_) => {}
                None => all = Some((draft, path)),
            }
        }
        Ok(all.and_then(|(_, path)| path))
    }

    /// The device for the file at `path`.
    fn storage(&self, path: &str, notes: &mut Vec<String>) -> Result<DeviceChoice, UsageError> {
        let mut text = format!("uring:{path}");
        if !self.direct(path, notes)? {
            text.push_str(",direct=0");
        }
        let found = match std::fs::metadata(path) {
            Ok(found) => Some(found),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
            Err(e) => return Err(UsageError::new(format!("filename={path}: {e}"))),
        };
        let reads = self.jobs.iter().all(|job| *job.rw.directions() == [Direction::Read]);
        let Some(found) = found else { return self.laid_out(path, text, notes) };
        if !found.is_file() {
            if !is_block_device(found.file_type()) {
                let text = format!(
                    "filename={path}: neither a file nor a block device; accepted: one of these, or ioengine=null"
                );
                return Err(UsageError::new(text));
            }
            if reads {
                text.push_str(",readonly=1");
            }
            return devices::choose(&text, self.time);
        }
        match self.needed() {
            Some(bytes) if bytes > found.len() => self.laid_out(path, text, notes),
            _ => {
                if reads {
                    text.push_str(",readonly=1");
                }
                Ok(choice(text, found.len()))
            }
        }
    }

    /// Is the page cache to be passed by? It is unless all jobs say otherwise.
    fn direct(&self, path: &str, notes: &mut Vec<String>) -> Result<bool, UsageError> {
        let given = Vec::from_iter(self.files.iter().filter_map(|draft| draft.direct));
        match (given.contains(&true), given.contains(&false)) {
            (true, true) => {
                let text = "direct=0 and direct=1 for one file; accepted: the same for all jobs";
                return Err(UsageError::new(text));
            }
            (false, false) => notes.push(format!(
                "I/O to {path} passes by the page cache: direct is not given, and schedulers are behind the cache; \
                 direct=0 goes through it"
            )),
            (false, true) => notes.push(format!(
                "I/O to {path} goes through the page cache, as direct=0 asks for: what is measured is mostly memory"
            )),
            (true, false) => {}
        }
        Ok(!given.contains(&false) || given.contains(&true))
    }

    /// The device for a file that is created, or extended, before the first run.
    fn laid_out(
        &self,
        path: &str,
        text: String,
        notes: &mut Vec<String>,
    ) -> Result<DeviceChoice, UsageError> {
        let refuse = |why: &str| Err(UsageError::new(format!("filename={path}: {why}")));
        let Some(bytes) = self.needed().filter(|_| !path.starts_with("/dev/")) else {
            if self.dry_run {
                notes.push(format!("filename={path} does not exist here: no size is checked"));
                return Ok(choice(text, u64::MAX));
            }
            return refuse(if path.starts_with("/dev/") {
                "no such device; accepted: a block device, or a file"
            } else {
                "no such file; accepted: one that exists, or size= or filesize= in bytes to lay it out"
            });
        };
        if self.files.iter().any(|draft| !draft.may_create) {
            return refuse("too short or not there, and allow_file_create=0 forbids to lay it out");
        }
        notes.push(format!(
            "{path} is laid out before the first run: {bytes} bytes, written through"
        ));
        Ok(choice(format!("{text},size={bytes}b"), bytes))
    }

    /// The bytes that the file must have for all jobs; `None` if no option says so.
    fn needed(&self) -> Option<u64> {
        let of = |(draft, job): (&FileDraft, &Job)| {
            let bytes = |amount| match amount {
                Amount::Bytes(bytes) => Some(bytes),
                Amount::Percent(_) => None,
            };
            let last = u64::from(self.threads_of(job).saturating_sub(1));
            let start = bytes(job.offset)?
                .saturating_add(bytes(job.offset_increment)?.saturating_mul(last));
            let end = start.saturating_add(bytes(job.size?)?);
            Some(end.max(draft.filesize.unwrap_or(0)))
        };
        self.files.iter().zip(self.jobs).filter_map(of).max()
    }
}

fn choice(text: String, bytes: u64) -> DeviceChoice {
    let size_bytes = bytes - bytes % u64::from(SECTOR_SIZE);
    DeviceChoice { name: "uring".into(), text, size_bytes, keeps: true, notes: Vec::new() }
}

fn said(path: Option<&str>) -> String {
    path.map_or("has no file".into(), |path| format!("has filename={path}"))
}

#[cfg(unix)]
fn is_block_device(file_type: FileType) -> bool {
    std::os::unix::fs::FileTypeExt::is_block_device(&file_type)
}

#[cfg(not(unix))]
fn is_block_device(_: FileType) -> bool {
    false
}
