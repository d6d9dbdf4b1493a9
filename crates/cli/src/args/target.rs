//! Chooses the device of a command without `--device`: the files or the disk named by its jobs, or the null device.
//!
//! A run has one queue on one device. Files on one file system share a disk and so its queue: they form one device,
//! with a range for each file (decision 0019). Nothing is opened or created here: a file that does not exist or is too
//! short is laid out when the first run begins.

use super::file_draft::FileDraft;
use super::roster::{Names, Roster, Wanted, paths, stretches};
use crate::devices;
use crate::plan::{DeviceChoice, Kept, PlacedFile, Time};
use blkmq_core::SECTOR_SIZE;
use blkmq_lab::workload::{Amount, Direction, Job};
use blkmq_terminal::UsageError;
use std::fs::{FileType, Metadata};
use std::io::ErrorKind;
#[cfg(unix)]
use std::path::Path;

/// The most files that are opened: below 1024, the usual limit of a process.
const MAX_OPEN: usize = 900;

/// The input of the choice.
pub struct Asked<'a> {
    /// The options about files, for each job.
    pub files: &'a [FileDraft],
    /// `threads`: replaces the number of threads of every job.
    pub threads: &'a [u32],
    /// The kind of time.
    pub time: Time,
    /// Whether only the plan is shown: then a missing device is not an error.
    pub dry_run: bool,
    /// `readonly`: whether files must not be created or changed.
    pub readonly: bool,
}

/// Chooses the device, and places the files of `jobs` on it. Appends information for the user to `notes`.
///
/// # Errors
/// If the files cannot form one device, or one of them does not exist and cannot be laid out.
pub fn choose(
    asked: &Asked<'_>,
    jobs: &mut [Job],
    notes: &mut Vec<String>,
) -> Result<DeviceChoice, UsageError> {
    // Files are not used in virtual time; a note says so.
    if asked.time == Time::Real {
        let roster = asked.roster(jobs, paths)?;
        match (roster.files.as_slice(), roster.mixed()) {
            ([], _) => {}
            ([file, ..], Some((with, without))) => {
                let text = format!(
                    "has no file, and job '{}' has filename={}; a run has one queue around one device; accepted: \
                     filename for all jobs, or --device",
                    asked.files[with].job, file.name
                );
                return Err(asked.files[without].at(text));
            }
            ([file], None) => {
                let chosen_by = format!("filename={}", file.name);
                return Ok(DeviceChoice { chosen_by, ..asked.storage(file, jobs, notes)? });
            }
            (files, None) => {
                let (choice, lengths) = asked.several(files, notes)?;
                roster.assign(jobs, asked.files, &lengths);
                let names = Vec::from_iter(files.iter().map(|file| file.name.to_string()));
                let chosen_by = format!("filename={}", names.join(":"));
                return Ok(DeviceChoice { chosen_by, ..choice });
            }
        }
    }
    // As in fio, it accepts trims.
    let trims = jobs.iter().any(|job| job.rw.directions().contains(&Direction::Trim));
    let text = if trims { "null,discard=1" } else { "null" };
    let null = devices::choose(text, asked.time)?;
    // As in fio, the null device is as large as the jobs need.
    let chosen = match asked.needed(jobs)?.filter(|bytes| *bytes > null.size_bytes) {
        Some(bytes) => {
            devices::choose(&format!("{text},gb={}", bytes.div_ceil(1 << 30)), asked.time)
        }
        None => Ok(null),
    }?;
    divide(asked, jobs, chosen.size_bytes)?;
    Ok(DeviceChoice { is_stand_in: true, ..chosen })
}

/// For `jobs` with several files on a device of `bytes` that does not consist of their files, sets the positions of the
/// files.
///
/// # Errors
/// If there are too many.
pub fn divide(asked: &Asked<'_>, jobs: &mut [Job], bytes: u64) -> Result<(), UsageError> {
    let roster = asked.roster(jobs, stretches)?;
    let even = Roster::even(bytes, roster.files.len());
    let lengths = roster.files.iter().map(|file| file.needed.unwrap_or(even));
    roster.assign(jobs, asked.files, &Vec::from_iter(lengths));
    Ok(())
}

impl Asked<'_> {
    fn roster(&self, jobs: &[Job], names: Names) -> Result<Roster, UsageError> {
        Roster::new(self.files, jobs, |job| self.threads_of(job), names)
    }

    /// The most threads of `job` in a run.
    fn threads_of(&self, job: &Job) -> u32 {
        self.threads.iter().copied().max().unwrap_or(job.numjobs)
    }

    /// The device for the only file of `jobs`, which receive its length.
    fn storage(
        &self,
        file: &Wanted,
        jobs: &mut [Job],
        notes: &mut Vec<String>,
    ) -> Result<DeviceChoice, UsageError> {
        let path = &file.name;
        let is_direct = self.direct(path, notes)?;
        let found = look(path)?;
        let is_missing = found.is_none();
        if is_missing && self.dry_run && (file.needed.is_none() || path.starts_with("/dev/")) {
            notes.push(format!("filename={path} does not exist here: no size is checked"));
            return Ok(choice(described(file, is_direct, None), u64::MAX));
        }
        if found.as_ref().is_some_and(|found| is_block_device(found.file_type())) {
            return devices::choose(&described(file, is_direct, None), self.time);
        }
        let length = found.map_or(0, |found| found.len());
        let needed = self.extend(jobs, length).max(file.needed.unwrap_or(0));
        if !is_missing && needed <= length {
            return Ok(choice(described(file, is_direct, None), length));
        }
        let mut bytes = self.laid_out(file, needed)?;
        let writes = |job: &Job| job.rw.directions() == [Direction::Write];
        let is_filled = jobs.iter().all(|job| job.fill_device && writes(job));
        if is_filled {
            bytes -= bytes % u64::from(SECTOR_SIZE);
        }
        notes.push(if is_filled {
            format!("{path} begins as a hole of {bytes} bytes, which fill_device fills")
        } else {
            format!("{path} is laid out before the first run: {bytes} bytes, written through")
        });
        Ok(DeviceChoice { is_filled, ..choice(described(file, is_direct, Some(bytes)), bytes) })
    }

    /// Sets the length of the file of each job at its beginning; initially it is `length`. Returns the final length.
    fn extend(&self, jobs: &mut [Job], length: u64) -> u64 {
        jobs.iter_mut().fold(length, |length, job| {
            job.found = Some(length);
            job.extended(self.threads_of(job), length)
        })
    }

    /// The device of several files, and their lengths.
    fn several(
        &self,
        files: &[Wanted],
        notes: &mut Vec<String>,
    ) -> Result<(DeviceChoice, Vec<u64>), UsageError> {
        if files.len() > MAX_OPEN {
            let text = format!("{} files in a run; accepted: up to {MAX_OPEN}", files.len());
            return Err(UsageError::new(text).at("nrfiles"));
        }
        let is_direct = self.direct(&format!("{} files", files.len()), notes)?;
        let (mut texts, mut lengths, mut disks) = (Vec::new(), Vec::new(), Vec::new());
        let (mut new, mut new_bytes) = (0, 0u64);
        for file in files {
            let found = look(&file.name)?;
            disks.extend(disk_of(&file.name, found.as_ref()));
            let length = found.as_ref().map_or(0, Metadata::len);
            if found.is_none() || file.needed.is_some_and(|bytes| bytes > length) {
                let bytes = self.laid_out(file, file.needed.unwrap_or(0))?;
                (new, new_bytes) = (new + 1, new_bytes.saturating_add(bytes - length.min(bytes)));
                texts.push(described(file, is_direct, Some(bytes)));
                lengths.push(bytes);
            } else {
                if found.is_some_and(|found| is_block_device(found.file_type())) {
                    return Err(apart(&file.name, "is a block device"));
                }
                texts.push(described(file, is_direct, None));
                lengths.push(length);
            }
        }
        if let Some(at) = disks.iter().position(|disk| *disk != disks[0]) {
            return Err(apart(&files[at].name, "lies on another file system"));
        }
        if new > 0 {
            notes.push(format!(
                "{new} files are laid out before the first run: {new_bytes} bytes, written through"
            ));
        }
        let (starts, end) = Roster::place(&lengths);
        let text = match files {
            [first, .., last] => {
                format!("uring:{} to {} ({} files)", first.name, last.name, files.len())
            }
            _ => unreachable!("one file is a device by itself"),
        };
        let placed = starts.into_iter().zip(texts);
        let placed = placed.map(|(start, text)| PlacedFile { start, text }).collect();
        Ok((DeviceChoice { files: placed, ..choice(text, end) }, lengths))
    }

    /// Returns whether I/O bypasses the page cache: yes unless all jobs say otherwise.
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

    /// The length of a file that is created, or extended to `needed` bytes, before the first run.
    fn laid_out(&self, file: &Wanted, needed: u64) -> Result<u64, UsageError> {
        let path = &file.name;
        let refuse = |why: &str| Err(UsageError::new(format!("filename={path}: {why}")));
        if path.starts_with("/dev/") {
            return refuse("no such device; accepted: a block device, or a file");
        }
        if needed == 0 {
            return refuse(
                "no such file; accepted: one that exists, or size= or filesize= in bytes to lay it out",
            );
        }
        if self.readonly {
            return refuse(
                "too short or not there, and --readonly forbids to lay it out; accepted: a size that the file has",
            );
        }
        if self.files.iter().any(|draft| !draft.may_create) {
            return refuse("too short or not there, and allow_file_create=0 forbids to lay it out");
        }
        Ok(needed)
    }

    /// The size in bytes that all jobs need; `None` if no option determines it.
    fn needed(&self, jobs: &[Job]) -> Result<Option<u64>, UsageError> {
        let roster = self.roster(jobs, stretches)?;
        let lengths = roster.files.iter().map(|file| file.needed.unwrap_or(0));
        let (_, end) = Roster::place(&Vec::from_iter(lengths));
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
        let single = self.files.iter().zip(jobs).filter(|(draft, _)| !draft.is_of_several());
        let most = single.filter_map(of).max();
        Ok(most.max((end > 0).then_some(end)))
    }
}

/// The metadata of the file or block device at `path`, or `None` if it does not exist.
fn look(path: &str) -> Result<Option<Metadata>, UsageError> {
    let found = match std::fs::metadata(path) {
        Ok(found) => found,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(UsageError::new(format!("filename={path}: {e}"))),
    };
    if !found.is_file() && !is_block_device(found.file_type()) {
        let text = format!(
            "filename={path}: neither a file nor a block device; accepted: one of these, or ioengine=null"
        );
        return Err(UsageError::new(text));
    }
    Ok(Some(found))
}

/// The description of a file, of which `bytes` are laid out.
fn described(file: &Wanted, is_direct: bool, bytes: Option<u64>) -> String {
    let mut text = format!("uring:{}", file.name);
    if !is_direct {
        text.push_str(",direct=0");
    }
    match bytes {
        Some(bytes) => text.push_str(&format!(",size={bytes}b")),
        None if !file.is_written => {
            text.push_str(",readonly=1");
            if is_image(&file.name) {
                // A read-only run only concerns the bytes, whatever format they have.
                text.push_str(",format=raw");
            }
        }
        None => {}
    }
    text
}

#[cfg(target_os = "linux")]
fn is_image(path: &str) -> bool {
    blkmq_uring::UringDevice::image_format(path).is_some()
}

#[cfg(not(target_os = "linux"))]
fn is_image(_: &str) -> bool {
    false
}

/// The error for a file with a separate queue.
fn apart(path: &str, why: &str) -> UsageError {
    UsageError::new(format!(
        "filename={path} {why}, and would have a queue of its own; a run has one queue; accepted: files on one file \
         system, or one block device"
    ))
}

fn choice(text: String, bytes: u64) -> DeviceChoice {
    let size_bytes = bytes - bytes % u64::from(SECTOR_SIZE);
    let chosen_by = format!("--device {text}");
    let (name, notes, files) = ("uring".into(), Vec::new(), Vec::new());
    let kept = Kept::default();
    let (is_filled, is_stand_in) = (false, false);
    DeviceChoice {
        name,
        text,
        chosen_by,
        size_bytes,
        keeps: true,
        notes,
        files,
        is_filled,
        is_stand_in,
        kept,
    }
}

/// The file system that a file is on, or will be.
#[cfg(unix)]
fn disk_of(path: &str, found: Option<&Metadata>) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    if let Some(found) = found {
        return Some(found.dev());
    }
    let folder = Path::new(path).parent().filter(|folder| !folder.as_os_str().is_empty());
    std::fs::metadata(folder.unwrap_or(Path::new("."))).ok().map(|found| found.dev())
}

#[cfg(not(unix))]
fn disk_of(_: &str, _: Option<&Metadata>) -> Option<u64> {
    None
}

#[cfg(unix)]
fn is_block_device(file_type: FileType) -> bool {
    std::os::unix::fs::FileTypeExt::is_block_device(&file_type)
}

#[cfg(not(unix))]
fn is_block_device(_: FileType) -> bool {
    false
}
