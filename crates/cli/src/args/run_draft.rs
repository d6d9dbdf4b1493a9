//! The options for the runs as a whole, and the plan that they make together with the jobs.
//!
//! The plan is checked: jobs fit their devices, and those that verify find what they wrote. So devices that store
//! nothing are refused with `verify`, and threads that write where another thread verifies concurrently.

use super::file_draft::FileDraft;
use super::target;
use crate::devices;
use crate::plan::runs::{self, ThreadSpec};
use crate::plan::{
    AccessChoice, Cpus, DeviceChoice, Nomerges, Plan, PumpChoice, SchedulerChoice, ScopeChoice,
    StatsChoice, Time, TracePlan, Written, groups, quote,
};
use crate::report::{Format, terse};
use blkmq_core::Nanos;
use blkmq_engine::{Access, DeviceDepth, GroupSpec, Modes};
use blkmq_lab::workload::verify::Method;
use blkmq_lab::workload::{Direction, Job, Region};
use blkmq_terminal::UsageError;
use std::path::PathBuf;

/// Options that hold for all runs, wherever they are written.
#[derive(Debug)]
pub struct RunDraft {
    /// The command, and `seed`.
    pub time: Time,
    /// `scheduler`.
    pub schedulers: Vec<SchedulerChoice>,
    /// `ioscheduler`.
    pub ioscheduler: Option<String>,
    /// `group_stats`.
    pub group_stats: StatsChoice,
    /// `iostats`.
    pub iostats: bool,
    /// `group`.
    pub groups: Vec<GroupSpec>,
    /// The engine and the file of each job.
    pub files: Vec<FileDraft>,
    /// `device`.
    pub devices: Vec<DeviceChoice>,
    /// `threads`.
    pub threads: Vec<u32>,
    /// `access`.
    pub access: Vec<AccessChoice>,
    /// `dispatch`, `insert`, `merge` and `kick`.
    pub modes: Modes,
    /// `scope`.
    pub scope: Option<ScopeChoice>,
    /// `nomerges`.
    pub nomerges: Nomerges,
    /// `nr_requests`.
    pub nr_requests: Option<u32>,
    /// `device_depth`.
    pub device_depth: DeviceDepth,
    /// `pump`.
    pub pump: PumpChoice,
    /// `repeat`.
    pub repeat: Option<u32>,
    /// `readonly`.
    pub readonly: bool,
    /// `dry_run`.
    pub dry_run: bool,
    /// `output_format`.
    pub format: Format,
    /// Additional formats of `output_format`.
    pub also: Vec<Format>,
    /// `terse_version`.
    pub terse: terse::Version,
    /// The CPUs of each job.
    pub cpus: Vec<Option<Cpus>>,
    /// `output`.
    pub output: Option<PathBuf>,
    /// `report`.
    pub report: Option<PathBuf>,
    /// `trace`.
    pub trace: Option<String>,
    /// `trace_events`.
    pub trace_events: Option<usize>,
    /// `elevator_log`.
    pub elevator_log: Option<String>,
    /// `disk_util`.
    pub disk_util: bool,
    /// `eta`: false for `never`.
    pub eta: bool,
    /// `status_interval`.
    pub status_interval: Option<Nanos>,
    /// The options of jobs as they were written.
    pub written: Written,
    /// Options that only describe the run, each value once.
    pub annotations: Vec<(&'static str, String)>,
    /// Options without effect, each once, with the reason.
    pub ignored: Vec<(&'static str, &'static str)>,
    /// Adjustments that the user should know.
    pub notes: Vec<String>,
}

impl RunDraft {
    /// Creates a draft with all options at their defaults.
    pub fn new(time: Time) -> Self {
        Self {
            time,
            schedulers: Vec::new(),
            ioscheduler: None,
            group_stats: StatsChoice::Off,
            iostats: false,
            groups: Vec::new(),
            files: Vec::new(),
            devices: Vec::new(),
            threads: Vec::new(),
            access: vec![AccessChoice::plain(Access::Combining)],
            modes: Modes::default(),
            scope: None,
            nomerges: Nomerges::All,
            nr_requests: None,
            device_depth: DeviceDepth::default(),
            pump: PumpChoice::Inline,
            repeat: None,
            readonly: false,
            dry_run: false,
            format: Format::Normal,
            also: Vec::new(),
            terse: terse::Version::default(),
            cpus: Vec::new(),
            output: None,
            report: None,
            trace: None,
            trace_events: None,
            elevator_log: None,
            disk_util: true,
            eta: true,
            status_interval: None,
            written: Written::default(),
            annotations: Vec::new(),
            ignored: Vec::new(),
            notes: Vec::new(),
        }
    }
}

/// The default maximum of trace events for each CPU: some 50 MB.
const TRACE_EVENTS: usize = 1 << 20;

/// The most threads that a run may have, over all jobs.
const MAX_THREADS: usize = 4_096;

impl RunDraft {
    /// Builds the plan for `jobs`, or for the default jobs if there are none.
    ///
    /// # Errors
    /// If choices contradict each other or a job does not fit a device.
    pub fn finish(mut self, mut jobs: Vec<Job>, args: &[String]) -> Result<Plan, UsageError> {
        let schedulers = self.take_schedulers()?;
        if self.trace.is_none() && self.trace_events.is_some() {
            return Err(UsageError::new(
                "trace_events without a trace; accepted: with --trace=PREFIX",
            ));
        }
        self.choose_device(&mut jobs)?;
        self.check_output(&jobs)?;
        let free_choice = jobs.is_empty();
        let mut threads = Vec::from_iter(self.threads.iter().copied().map(Some));
        if threads.is_empty() {
            threads = if free_choice { runs::thread_counts(self.time) } else { vec![None] };
        }
        let repeat = self.repeat.unwrap_or(if free_choice { runs::repeats(self.time) } else { 1 });
        for choice in &mut self.access {
            choice.fill(self.modes)?;
        }
        let terse = self.terse;
        for format in [&mut self.format].into_iter().chain(&mut self.also) {
            // The version may be given before or after the format.
            if let Format::Terse(version) = format {
                *version = terse;
            }
        }
        let notes = self.all_notes(&schedulers);
        let events = self.trace_events.unwrap_or(TRACE_EVENTS);
        let groups = groups::tree(std::mem::take(&mut self.groups), &jobs)?;
        let mut plan = Plan {
            time: self.time,
            jobs,
            written: self.written,
            disk_util: self.disk_util,
            eta: self.eta,
            quiet: false,
            status_interval: self.status_interval,
            groups,
            group_stats: self.group_stats,
            iostats: self.iostats,
            devices: self.devices,
            schedulers,
            access: self.access,
            threads,
            scope: self.scope,
            nomerges: self.nomerges,
            nr_requests: self.nr_requests,
            device_depth: self.device_depth,
            inversions: false,
            pump: self.pump,
            repeat,
            format: self.format,
            also: self.also,
            cpus: self.cpus,
            output: self.output,
            report: self.report,
            elevator_log: self.elevator_log,
            trace: self.trace.map(|prefix| TracePlan { prefix, events }),
            annotations: self.annotations,
            notes,
            command: quote(self.time.command(), args),
            default_matrix: args.is_empty(),
            dry_run: self.dry_run,
        };
        if free_choice {
            plan.cpus = vec![None];
            plan.jobs = vec![runs::matrix_job(plan.cases() * repeat as usize, plan.time)];
        }
        check(&plan, self.readonly)?;
        Ok(plan)
    }

    /// Determines the device: without `--device`, the files of the jobs; with it, the jobs' files are ranges of the
    /// device.
    fn choose_device(&mut self, jobs: &mut [Job]) -> Result<(), UsageError> {
        let Self { files, threads, time, dry_run, readonly, .. } = &*self;
        let (time, dry_run, readonly) = (*time, *dry_run, *readonly);
        let asked = target::Asked { files, threads, time, dry_run, readonly };
        if let Some(smallest) = self.devices.iter().map(|device| device.size_bytes).min() {
            target::divide(&asked, jobs, smallest)?;
            // Nothing is done to files.
            self.files.clear();
        } else {
            let mut notes = Vec::new();
            self.devices.push(target::choose(&asked, jobs, &mut notes)?);
            self.notes.append(&mut notes);
        }
        Ok(())
    }

    /// Checks that the requested outputs and CPU bindings are possible.
    fn check_output(&self, jobs: &[Job]) -> Result<(), UsageError> {
        if self.output.is_some() && !self.also.is_empty() {
            let text = "several formats in one file; accepted with --output: one format";
            return Err(UsageError::new(text).at("--output-format"));
        }
        if self.status_interval.is_some()
            && [self.format].iter().chain(&self.also).any(|format| *format == Format::Html)
        {
            let text = "one page has the results at the end; accepted with status_interval: normal, json, json+, csv, terse";
            return Err(UsageError::new(text).at("--output-format"));
        }
        if self.time != Time::Real && self.cpus.iter().any(Option::is_some) {
            let text = "each virtual thread has a CPU of its own; accepted by blkmq bench";
            return Err(UsageError::new(text).at("cpus_allowed"));
        }
        if self.time != Time::Real && jobs.iter().any(|job| job.logs.unix_epoch) {
            let text = "virtual time has no date; accepted by blkmq bench";
            return Err(UsageError::new(text).at("log_unix_epoch"));
        }
        Ok(())
    }

    fn take_schedulers(&mut self) -> Result<Vec<SchedulerChoice>, UsageError> {
        let given = std::mem::take(&mut self.schedulers);
        match &self.ioscheduler {
            Some(name) if given.is_empty() => SchedulerChoice::parse(name),
            Some(name) if given.iter().any(|choice| choice.text != *name) => {
                let text = "contradicts --scheduler; accepted: one of the two";
                Err(UsageError::new(text).at(format!("--ioscheduler={name}")))
            }
            _ if given.is_empty() => Ok(SchedulerChoice::all()),
            _ => Ok(given),
        }
    }

    fn all_notes(&mut self, schedulers: &[SchedulerChoice]) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.annotations.is_empty() {
            let said = self.annotations.iter().map(|(name, value)| format!("{name}={value}"));
            let said = Vec::from_iter(said).join(", ");
            let names = Vec::from_iter(self.devices.iter().map(|device| device.name.as_str()));
            notes.push(match self.devices.as_slice() {
                [file] if file.name == "uring" && !self.files.is_empty() => {
                    format!("{said}: I/O goes to device {}", file.text)
                }
                _ => format!("{said}: annotates the run; I/O goes to device {}", names.join(", ")),
            });
            let names_file = self.annotations.iter().any(|(name, _)| *name == "filename");
            if names_file && self.time != Time::Real {
                notes.push("no file is touched in virtual time".into());
            }
        }
        if !self.ignored.is_empty() {
            let said = self.ignored.iter().map(|(name, why)| format!("{name} ({why})"));
            notes.push(format!("no effect here: {}", Vec::from_iter(said).join(", ")));
        }
        for note in self.devices.iter().flat_map(|device| &device.notes) {
            // If a device is chosen twice, its notes appear once.
            if !notes.contains(note) {
                notes.push(note.clone());
            }
        }
        notes.extend(schedulers.iter().flat_map(|choice| choice.clamped.iter().cloned()));
        notes.append(&mut self.notes);
        notes
    }
}

/// Checks that every job fits every device, with every number of threads.
fn check(plan: &Plan, readonly: bool) -> Result<(), UsageError> {
    for job in &plan.jobs {
        let writes = job.rw.directions().iter().any(|way| *way != Direction::Read);
        if readonly && writes {
            let text = format!("rw={} writes; accepted with --readonly: read, randread", job.rw);
            return Err(UsageError::new(text).at(format!("job '{}'", job.name)));
        }
        for numjobs in plan.threads.iter().map(|numjobs| numjobs.unwrap_or(job.numjobs)) {
            for device in &plan.devices {
                // Threads' regions begin one after the other, so the last thread has the least room.
                job.regions(numjobs - 1, device.size_bytes).map_err(|e| {
                    let place = format!("job '{}' on device {}", job.name, device.text);
                    UsageError::new(e.to_string()).at(place)
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
    check_verified(plan)
}

/// Checks every job that verifies, on every device and with every number of threads.
///
/// # Errors
/// For the first job that cannot be verified.
fn check_verified(plan: &Plan) -> Result<(), UsageError> {
    if plan.jobs.iter().all(|job| job.verify.is_none()) {
        return Ok(());
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
    match &job.verify {
        Some(verify) if verify.method != Method::Null && !device.keeps => {
            let (method, devices) = (verify.method, devices::keeping());
            let text = format!(
                "verify={method}, but this device keeps nothing of what is written; accepted: --device with one \
                 that does ({devices}), or verify=null, which does not look at contents"
            );
            Err(UsageError::new(text).at(format!("job '{}' on device {}", job.name, device.text)))
        }
        _ => Ok(()),
    }
}

/// One thread's part of the device, in bytes.
struct Part<'a> {
    job: &'a Job,
    thread: ThreadSpec,
    regions: Vec<Region>,
}

impl Part<'_> {
    fn writes(&self) -> bool {
        let only = self.job.verify.as_ref().is_some_and(|verify| verify.only);
        !only && self.job.rw.directions().iter().any(|way| *way != Direction::Read)
    }

    /// Returns two overlapping regions of the parts, or `None` if the verification of this part cannot read data
    /// written by `other` in the meantime.
    fn is_disturbed_by(&self, other: &Part<'_>, jobs: &[Job]) -> Option<[Region; 2]> {
        let at_once = self.job.verify.is_some()
            && other.writes()
            && self.thread.phase == other.thread.phase
            && !waits(jobs, self.thread.job, other.thread.job)
            && !waits(jobs, other.thread.job, self.thread.job);
        if !at_once {
            return None;
        }
        let end = |region: &Region| region.start + region.size;
        self.regions.iter().find_map(|mine| {
            let overlaps = |it: &&Region| mine.start < end(it) && it.start < end(mine);
            other.regions.iter().find(overlaps).map(|theirs| [*mine, *theirs])
        })
    }
}

/// Returns whether job `later` begins after job `earlier` (`wait_for`), directly or indirectly.
fn waits(jobs: &[Job], later: usize, earlier: usize) -> bool {
    let Some(awaited) = &jobs[later].wait_for else { return false };
    let named = (0..later).filter(|at| jobs[*at].name == *awaited);
    named.into_iter().any(|at| at == earlier || waits(jobs, at, earlier))
}

/// Quadratic in the threads, of which there are a few thousand at most.
fn apart(plan: &Plan, device: &DeviceChoice, threads: &[ThreadSpec]) -> Result<(), UsageError> {
    let part = |thread: &ThreadSpec| {
        let job = &plan.jobs[thread.job];
        // Other code checks that the job fits.
        let regions = job.regions(thread.thread, device.size_bytes).ok()?;
        Some(Part { job, thread: *thread, regions })
    };
    let parts = Vec::from_iter(threads.iter().filter_map(part));
    let disturbed = |verifying: &Part<'_>| {
        let others = parts.iter().filter(|other| other.thread != verifying.thread);
        let (other, [mine, theirs]) = others
            .into_iter()
            .find_map(|other| Some((other, verifying.is_disturbed_by(other, &plan.jobs)?)))?;
        let text = format!(
            "thread {} verifies bytes {} to {}, and thread {} of job '{}' writes from {} to {} meanwhile; \
             accepted: parts that do not overlap, such as size=1g with offset_increment=1g, or stonewall",
            verifying.thread.thread,
            mine.start,
            mine.start + mine.size,
            other.thread.thread,
            other.job.name,
            theirs.start,
            theirs.start + theirs.size,
        );
        Some(UsageError::new(text).at(format!("job '{}'", verifying.job.name)))
    };
    parts.iter().find_map(disturbed).map_or(Ok(()), Err)
}
