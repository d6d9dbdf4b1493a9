//! The options for the runs as a whole, and the plan that they make together with the jobs.
//!
//! The plan is checked: jobs fit their devices, and those that verify find what they wrote. So devices that store
//! nothing are refused with `verify`, and threads that write where another thread verifies concurrently.
//!
//! A command without `--device` has the device that [`choose`] makes of its jobs: their files, the disk that they name,
//! or the null device. A run has one queue on one device. Files on one file system share a disk and so its queue: they
//! form one device, with a range for each file (decision 0019). Nothing is opened or created here: a file that does not
//! exist or is too short is laid out when the first run begins.

use super::file_draft::{FileDraft, Names, Roster, Wanted, needed, writes};
use crate::devices;
use crate::plan::{
    AccessChoice, DeviceChoice, PlacedFile, Plan, SchedulerChoice, ThreadSpec, Time, TracePlan,
    choices, matrix_job, quote, repeats, thread_counts,
};
use crate::report::{Format, TerseVersion};
use blkmq_core::SECTOR_SIZE;
use blkmq_engine::{Access, GroupSpec, Modes};
use blkmq_lab::workload::verify::Method;
use blkmq_lab::workload::{Direction, Job, Region};
use blkmq_terminal::UsageError;
use std::fs::{FileType, Metadata};
use std::io::ErrorKind;
#[cfg(unix)]
use std::path::Path;

/// Options that hold for all runs, wherever they are written.
#[derive(Debug, Default)]
pub struct RunDraft {
    /// The choices that an option fills in directly, and everything about the jobs that were read. No repetitions mean
    /// the default number of them.
    pub plan: Plan,
    /// `ioscheduler`.
    pub ioscheduler: Option<String>,
    /// `group`.
    pub groups: Vec<GroupSpec>,
    /// The engine and the file of each job.
    pub files: Vec<FileDraft>,
    /// `dispatch`, `insert`, `merge` and `kick`.
    pub modes: Modes,
    /// `readonly`.
    pub readonly: bool,
    /// `terse_version`.
    pub terse: TerseVersion,
    /// `trace`.
    pub trace: Option<String>,
    /// `trace_events`.
    pub trace_events: Option<usize>,
    /// Options without effect, each once, with the reason.
    pub ignored: Vec<(&'static str, &'static str)>,
}

/// The default maximum of trace events for each CPU: some 50 MB.
const TRACE_EVENTS: usize = 1 << 20;

/// The most threads that a run may have, over all jobs.
const MAX_THREADS: usize = 4_096;

impl RunDraft {
    /// Creates a draft with all options at their defaults.
    pub fn new(time: Time) -> Self {
        let access = vec![AccessChoice::plain(Access::Combining)];
        let plan = Plan { time, access, disk_util: true, eta: true, ..Plan::default() };
        Self { plan, ..Self::default() }
    }

    /// Builds the plan for `jobs`, or for the default jobs if there are none.
    ///
    /// # Errors
    /// If choices contradict each other or a job does not fit a device.
    pub fn finish(mut self, mut jobs: Vec<Job>, args: &[String]) -> Result<Plan, UsageError> {
        self.choose_schedulers()?;
        if self.trace.is_none() && self.trace_events.is_some() {
            return Err(UsageError::new(
                "trace_events without a trace; accepted: with --trace=PREFIX",
            ));
        }
        self.choose_device(&mut jobs)?;
        self.check_output(&jobs)?;
        self.plan.notes = self.all_notes();
        let Self { mut plan, groups, modes, readonly, terse, trace, trace_events, .. } = self;
        for choice in &mut plan.access {
            choice.fill(modes)?;
        }
        for format in [&mut plan.format].into_iter().chain(&mut plan.also) {
            // The version may be given before or after the format.
            if let Format::Terse(version) = format {
                *version = terse;
            }
        }
        let events = trace_events.unwrap_or(TRACE_EVENTS);
        plan.trace = trace.map(|prefix| TracePlan { prefix, events });
        plan.groups = choices::group_tree(groups, &jobs)?;
        plan.command = quote(plan.time.command(), args);
        plan.default_matrix = args.is_empty();
        let free_choice = jobs.is_empty();
        if plan.threads.is_empty() {
            plan.threads = if free_choice { thread_counts(plan.time) } else { vec![None] };
        }
        if plan.repeat == 0 {
            plan.repeat = if free_choice { repeats(plan.time) } else { 1 };
        }
        if free_choice {
            plan.cpus = vec![None];
            jobs = vec![matrix_job(plan.cases() * plan.repeat as usize, plan.time)];
        }
        plan.jobs = jobs;
        check(&plan, readonly)?;
        Ok(plan)
    }

    /// Determines the device: without `--device`, the files of the jobs; with it, the jobs' files are ranges of the
    /// device.
    fn choose_device(&mut self, jobs: &mut [Job]) -> Result<(), UsageError> {
        if let Some(smallest) = self.plan.devices.iter().map(|device| device.size_bytes).min() {
            self.divide(jobs, smallest)?;
            // Nothing is done to files.
            self.files.clear();
        } else {
            let device = self.choose(jobs)?;
            self.plan.devices.push(device);
        }
        Ok(())
    }

    /// Checks that the requested outputs and CPU bindings are possible.
    fn check_output(&self, jobs: &[Job]) -> Result<(), UsageError> {
        let plan = &self.plan;
        let refuse = |option: &str, text: &str| Err(UsageError::new(text).at(option));
        if plan.output.is_some() && !plan.also.is_empty() {
            let text = "several formats in one file; accepted with --output: one format";
            return refuse("--output-format", text);
        }
        if plan.status_interval.is_some()
            && (plan.format == Format::Html || plan.also.contains(&Format::Html))
        {
            let text = "one page has the results at the end; accepted with status_interval: normal, json, json+, csv, terse";
            return refuse("--output-format", text);
        }
        if plan.time != Time::Real && plan.cpus.iter().any(Option::is_some) {
            let text = "each virtual thread has a CPU of its own; accepted by blkmq bench";
            return refuse("cpus_allowed", text);
        }
        if plan.time != Time::Real && jobs.iter().any(|job| job.logs.unix_epoch) {
            return refuse("log_unix_epoch", "virtual time has no date; accepted by blkmq bench");
        }
        Ok(())
    }

    fn choose_schedulers(&mut self) -> Result<(), UsageError> {
        let schedulers = &mut self.plan.schedulers;
        match &self.ioscheduler {
            Some(name) if schedulers.is_empty() => *schedulers = SchedulerChoice::parse(name)?,
            Some(name) if schedulers.iter().any(|choice| choice.text != *name) => {
                let text = "contradicts --scheduler; accepted: one of the two";
                return Err(UsageError::new(text).at(format!("--ioscheduler={name}")));
            }
            _ if schedulers.is_empty() => *schedulers = SchedulerChoice::all(),
            _ => {}
        }
        Ok(())
    }

    fn all_notes(&self) -> Vec<String> {
        let Plan { annotations, devices, schedulers, .. } = &self.plan;
        let mut notes = Vec::new();
        if !annotations.is_empty() {
            let said = annotations.iter().map(|(name, value)| format!("{name}={value}"));
            let said = Vec::from_iter(said).join(", ");
            let names = Vec::from_iter(devices.iter().map(|device| device.name.as_str()));
            notes.push(match devices.as_slice() {
                [file] if file.name == "uring" && !self.files.is_empty() => {
                    format!("{said}: I/O goes to device {}", file.text)
                }
                _ => format!("{said}: annotates the run; I/O goes to device {}", names.join(", ")),
            });
            let names_file = annotations.iter().any(|(name, _)| *name == "filename");
            if names_file && self.plan.time != Time::Real {
                notes.push("no file is touched in virtual time".into());
            }
        }
        if !self.ignored.is_empty() {
            let said = self.ignored.iter().map(|(name, why)| format!("{name} ({why})"));
            notes.push(format!("no effect here: {}", Vec::from_iter(said).join(", ")));
        }
        for note in devices.iter().flat_map(|device| &device.notes) {
            // If a device is chosen twice, its notes appear once.
            if !notes.contains(note) {
                notes.push(note.clone());
            }
        }
        let clamped = schedulers.iter().flat_map(|choice| &choice.clamped);
        notes.extend(clamped.chain(&self.plan.notes).cloned());
        notes
    }
}

/// Checks that every job fits every device, with every number of threads.
fn check(plan: &Plan, readonly: bool) -> Result<(), UsageError> {
    for job in &plan.jobs {
        if readonly && writes(job) {
            let text = format!("rw={} writes; accepted with --readonly: read, randread", job.rw);
            return Err(UsageError::new(text).at(format!("job '{}'", job.name)));
        }
        for numjobs in plan.threads.iter().map(|numjobs| numjobs.unwrap_or(job.numjobs)) {
            for device in &plan.devices {
                // Threads' regions begin one after the other, so the last thread has the least room.
                job.regions(numjobs - 1, device.size_bytes).map_err(|e| {
                    let place = format!("job '{}' on device {}", job.name, device.text);
                    UsageError::new(e).at(place)
                })?;
            }
        }
    }
    for &numjobs in &plan.threads {
        let threads = plan.threads_of(numjobs).len();
        if threads > MAX_THREADS {
            let text = format!("{threads} threads in one run; accepted: up to {MAX_THREADS}");
            return Err(UsageError::new(text));
        }
    }
    for device in &plan.devices {
        plan.jobs.iter().try_for_each(|job| keeps(job, device))?;
        for &numjobs in &plan.threads {
            apart(plan, device, &plan.threads_of(numjobs))?;
        }
    }
    Ok(())
}

fn keeps(job: &Job, device: &DeviceChoice) -> Result<(), UsageError> {
    let verify = job.verify.as_ref().filter(|verify| verify.method != Method::Null);
    let Some(verify) = verify.filter(|_| !device.keeps) else { return Ok(()) };
    let (method, devices) = (verify.method, devices::keeping());
    let text = format!(
        "verify={method}, but this device keeps nothing of what is written; accepted: --device with one that does \
         ({devices}), or verify=null, which does not look at contents"
    );
    Err(UsageError::new(text).at(format!("job '{}' on device {}", job.name, device.text)))
}

/// One thread's part of the device, in bytes.
struct Part<'a> {
    job: &'a Job,
    thread: ThreadSpec,
    regions: Vec<Region>,
}

/// Returns whether job `later` begins after job `earlier` (`wait_for`), directly or indirectly.
fn waits(jobs: &[Job], later: usize, earlier: usize) -> bool {
    let Some(awaited) = &jobs[later].wait_for else { return false };
    let named = (0..later).filter(|at| jobs[*at].name == *awaited);
    named.into_iter().any(|at| at == earlier || waits(jobs, at, earlier))
}

/// Checks that no thread verifies a region while another thread writes to it. Quadratic in the threads, of which there
/// are a few thousand at most.
fn apart(plan: &Plan, device: &DeviceChoice, threads: &[ThreadSpec]) -> Result<(), UsageError> {
    let part = |thread: &ThreadSpec| {
        let job = &plan.jobs[thread.job];
        // Other code checks that the job fits.
        let regions = job.regions(thread.thread, device.size_bytes).ok()?;
        Some(Part { job, thread: *thread, regions })
    };
    let parts = Vec::from_iter(threads.iter().filter_map(part));
    for verifying in parts.iter().filter(|part| part.job.verify.is_some()) {
        let thread = verifying.thread;
        let is_beside = |other: &&Part<'_>| {
            other.thread != thread
                && other.thread.phase == thread.phase
                && !waits(&plan.jobs, thread.job, other.thread.job)
                && !waits(&plan.jobs, other.thread.job, thread.job)
        };
        let writes = |job: &Job| writes(job) && job.verify.as_ref().is_none_or(|it| !it.only);
        for other in parts.iter().filter(is_beside).filter(|other| writes(other.job)) {
            let Some((mine, theirs)) = overlap(&verifying.regions, &other.regions) else {
                continue;
            };
            let text = format!(
                "thread {} verifies bytes {} to {}, and thread {} of job '{}' writes from {} to {} meanwhile; \
                 accepted: parts that do not overlap, such as size=1g with offset_increment=1g, or stonewall",
                thread.thread,
                mine.start,
                mine.start + mine.size,
                other.thread.thread,
                other.job.name,
                theirs.start,
                theirs.start + theirs.size,
            );
            return Err(UsageError::new(text).at(format!("job '{}'", verifying.job.name)));
        }
    }
    Ok(())
}

/// The first two regions that overlap.
fn overlap(all: &[Region], others: &[Region]) -> Option<(Region, Region)> {
    let end = |region: &Region| region.start + region.size;
    all.iter().find_map(|mine| {
        let overlaps = |it: &&Region| mine.start < end(it) && it.start < end(mine);
        others.iter().find(overlaps).map(|theirs| (*mine, *theirs))
    })
}

/// The most files that are opened: below 1024, the usual limit of a process.
const MAX_OPEN: usize = 900;

impl RunDraft {
    /// Chooses the device, and places the files of `jobs` on it.
    ///
    /// # Errors
    /// If the files cannot form one device, or one of them does not exist and cannot be laid out.
    fn choose(&mut self, jobs: &mut [Job]) -> Result<DeviceChoice, UsageError> {
        let time = self.plan.time;
        // Files are not used in virtual time; a note says so.
        if time == Time::Real {
            let roster = self.roster(jobs, FileDraft::paths)?;
            match (roster.files.as_slice(), roster.mixed()) {
                ([], _) => {}
                ([file, ..], Some((with, without))) => {
                    let text = format!(
                        "has no file, and job '{}' has filename={}; a run has one queue around one device; accepted: \
                         filename for all jobs, or --device",
                        self.files[with].job, file.name
                    );
                    return Err(self.files[without].at(text));
                }
                (files, None) => {
                    let names = Vec::from_iter(files.iter().map(|file| file.name.as_str()));
                    let chosen_by = format!("filename={}", names.join(":"));
                    let choice = match files {
                        [file] => self.storage(file, jobs)?,
                        _ => self.several(&roster, jobs)?,
                    };
                    return Ok(DeviceChoice { chosen_by, ..choice });
                }
            }
        }
        // As in fio, it accepts trims.
        let trims = jobs.iter().any(|job| job.rw.directions().contains(&Direction::Trim));
        let text = if trims { "null,discard=1" } else { "null" };
        let mut chosen = devices::choose(text, time)?;
        // As in fio, the null device is as large as the jobs need.
        if let Some(bytes) = self.needed(jobs)?.filter(|bytes| *bytes > chosen.size_bytes) {
            chosen = devices::choose(&format!("{text},gb={}", bytes.div_ceil(1 << 30)), time)?;
        }
        self.divide(jobs, chosen.size_bytes)?;
        Ok(DeviceChoice { is_stand_in: true, ..chosen })
    }

    /// For `jobs` with several files on a device of `bytes` that does not consist of their files, sets the positions of
    /// the files.
    ///
    /// # Errors
    /// If there are too many.
    fn divide(&self, jobs: &mut [Job], bytes: u64) -> Result<(), UsageError> {
        let roster = self.roster(jobs, FileDraft::stretches)?;
        let even = Roster::even(bytes, roster.files.len());
        let lengths = roster.files.iter().map(|file| file.needed.unwrap_or(even));
        roster.assign(jobs, &self.files, &Vec::from_iter(lengths));
        Ok(())
    }

    fn roster(&self, jobs: &[Job], names: Names) -> Result<Roster, UsageError> {
        Roster::new(&self.files, jobs, |job| self.threads_of(job), names)
    }

    /// The most threads of `job` in a run.
    fn threads_of(&self, job: &Job) -> u32 {
        self.plan.threads.iter().copied().flatten().max().unwrap_or(job.numjobs)
    }

    /// The device for the only file of `jobs`, which receive its length.
    fn storage(&mut self, file: &Wanted, jobs: &mut [Job]) -> Result<DeviceChoice, UsageError> {
        let path = &file.name;
        let is_direct = self.direct(path)?;
        let (found, as_it_is) = (look(path)?, described(file, is_direct, None));
        let is_missing = found.is_none();
        if is_missing && self.plan.dry_run && (file.needed.is_none() || path.starts_with("/dev/")) {
            let note = format!("filename={path} does not exist here: no size is checked");
            self.plan.notes.push(note);
            return Ok(choice(as_it_is, u64::MAX));
        }
        if found.as_ref().is_some_and(|found| is_block_device(found.file_type())) {
            return devices::choose(&as_it_is, self.plan.time);
        }
        let length = found.map_or(0, |found| found.len());
        let needed = self.extend(jobs, length).max(file.needed.unwrap_or(0));
        if !is_missing && needed <= length {
            return Ok(choice(as_it_is, length));
        }
        let mut bytes = self.laid_out(file, needed)?;
        let writes = |job: &Job| job.rw.directions() == [Direction::Write];
        let is_filled = jobs.iter().all(|job| job.fill_device && writes(job));
        if is_filled {
            bytes -= bytes % u64::from(SECTOR_SIZE);
        }
        self.plan.notes.push(if is_filled {
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

    /// The device of several files, on which it places those of `jobs`.
    fn several(&mut self, roster: &Roster, jobs: &mut [Job]) -> Result<DeviceChoice, UsageError> {
        let files = roster.files.as_slice();
        if files.len() > MAX_OPEN {
            let text = format!("{} files in a run; accepted: up to {MAX_OPEN}", files.len());
            return Err(UsageError::new(text).at("nrfiles"));
        }
        let is_direct = self.direct(&format!("{} files", files.len()))?;
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
                    return Err(with_own_queue(&file.name, "is a block device"));
                }
                texts.push(described(file, is_direct, None));
                lengths.push(length);
            }
        }
        if let Some(at) = disks.iter().position(|disk| *disk != disks[0]) {
            return Err(with_own_queue(&files[at].name, "lies on another file system"));
        }
        if new > 0 {
            self.plan.notes.push(format!(
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
        roster.assign(jobs, &self.files, &lengths);
        Ok(DeviceChoice { files: placed, ..choice(text, end) })
    }

    /// Returns whether I/O bypasses the page cache: yes unless all jobs say otherwise.
    fn direct(&mut self, path: &str) -> Result<bool, UsageError> {
        let given = Vec::from_iter(self.files.iter().filter_map(|draft| draft.direct));
        match (given.contains(&true), given.contains(&false)) {
            (true, true) => {
                let text = "direct=0 and direct=1 for one file; accepted: the same for all jobs";
                return Err(UsageError::new(text));
            }
            (false, false) => self.plan.notes.push(format!(
                "I/O to {path} passes by the page cache: direct is not given, and schedulers are behind the cache; \
                 direct=0 goes through it"
            )),
            (false, true) => self.plan.notes.push(format!(
                "I/O to {path} goes through the page cache, as direct=0 asks for: what is measured is mostly memory"
            )),
            (true, false) => {}
        }
        Ok(!given.contains(&false))
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
        let roster = self.roster(jobs, FileDraft::stretches)?;
        let lengths = roster.files.iter().map(|file| file.needed.unwrap_or(0));
        let (_, end) = Roster::place(&Vec::from_iter(lengths));
        let of = |(draft, job): (&FileDraft, &Job)| {
            needed(draft, job, self.threads_of(job).saturating_sub(1), (0, 1))
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
fn with_own_queue(path: &str, why: &str) -> UsageError {
    UsageError::new(format!(
        "filename={path} {why}, and would have a queue of its own; a run has one queue; accepted: files on one file \
         system, or one block device"
    ))
}

fn choice(text: String, bytes: u64) -> DeviceChoice {
    DeviceChoice {
        name: "uring".into(),
        chosen_by: format!("--device {text}"),
        text,
        size_bytes: bytes - bytes % u64::from(SECTOR_SIZE),
        keeps: true,
        ..DeviceChoice::default()
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
