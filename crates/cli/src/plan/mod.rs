//! The plan of a bench or a simulation: the command line is completely parsed, and nothing has run yet.
//!
//! A [`Plan`] contains every choice; [`Plan::runs`] expands it into single runs in their order. The code that runs them
//! needs no options or defaults. Each case has a name that distinguishes it, in the jobs of a report and in the files
//! of a run: `mq-deadline`, or `mq-deadline-fifo_batch=8.spin.4threads`. A plan with one case needs none.
//!
//! Jobs without an end get a runtime: a pass over a whole disk takes longer than a user expects, and in virtual time
//! its length would not be noticed. A command without arguments gets a workload and thread counts that show the cost of
//! schedulers on any machine in a few seconds.

pub mod choices;
mod print;

pub use blkmq_terminal::SchedulerChoice;
pub use choices::{AccessChoice, Choice, Cpus, StatsChoice};
pub use print::{job_file, quote, time};

use crate::report::Format;
use blkmq::Device;
use blkmq_core::Nanos;
use blkmq_device::MachineShape;
use blkmq_engine::{DeviceDepth, GroupTree, NoMerges, PumpMode};
use blkmq_lab::workload::{Depth, Job, Latencies, Rw};
use blkmq_sched::Scope;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// All choices of a command line.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Real or virtual.
    pub time: Time,
    /// The jobs, in the order given; `Job::index` is the position.
    pub jobs: Vec<Job>,
    /// Their options as they were written.
    pub written: Written,
    /// `disk_util`: whether the disks under files are observed.
    pub disk_util: bool,
    /// `eta`: whether progress is shown on a terminal.
    pub eta: bool,
    /// Events of a simulation are notes of its report, and are not printed.
    pub quiet: bool,
    /// `status_interval`: the interval at which the results so far are printed.
    pub status_interval: Option<Nanos>,
    /// The groups that jobs are in.
    pub groups: GroupTree,
    /// The CPUs that the threads of each job are bound to, if they are; one for each job.
    pub cpus: Vec<Option<Cpus>>,
    /// The level of statistics about groups.
    pub group_stats: StatsChoice,
    /// Whether requests and the stages of their time are counted.
    pub iostats: bool,
    /// The devices to compare; at least one.
    pub devices: Vec<DeviceChoice>,
    /// The schedulers to compare; at least one.
    pub schedulers: Vec<SchedulerChoice>,
    /// The ways of sharing an elevator to compare; at least one.
    pub access: Vec<AccessChoice>,
    /// Thread counts to compare. Each replaces `numjobs` of every job; `None` keeps it.
    pub threads: Vec<Option<u32>>,
    /// The scope, if it overrides the scheduler's own.
    pub scope: Option<Scope>,
    /// How much merging is tried.
    pub nomerges: NoMerges,
    /// Scheduler tags; `None` is the engine's default for the device.
    pub nr_requests: Option<u32>,
    /// How many requests the device may hold.
    pub device_depth: DeviceDepth,
    /// The threads that pump.
    pub pump: PumpMode,
    /// The number of runs of each case; the median is reported.
    pub repeat: u32,
    /// The format of the results.
    pub format: Format,
    /// Additional formats, printed after that one.
    pub also: Vec<Format>,
    /// The file for the results; `None` is standard output.
    pub output: Option<PathBuf>,
    /// The file for an additional page with plots.
    pub report: Option<PathBuf>,
    /// The files and the size of traces.
    pub trace: Option<TracePlan>,
    /// Whether requests that overtake others on their way to the device are counted.
    pub inversions: bool,
    /// The prefix of the files that record the calls of policies and their answers.
    pub elevator_log: Option<String>,
    /// fio options that describe the run without changing it, by name and value.
    pub annotations: Vec<(&'static str, String)>,
    /// Warnings about the results, a line each.
    pub notes: Vec<String>,
    /// The command line that repeats this, quoted for a shell.
    pub command: String,
    /// Whether the command had no arguments: the jobs, schedulers and thread counts are the defaults.
    pub default_matrix: bool,
    /// Show the plan instead of running it.
    pub dry_run: bool,
}

impl Plan {
    /// Returns whether a page with plots is to be written.
    pub fn draws(&self) -> bool {
        let paths = || self.report.iter().chain(&self.output);
        self.format == Format::Html
            || self.also.contains(&Format::Html)
            || paths().any(|path| Format::of_path(path) == Some(Format::Html))
    }

    /// Adds the page `FILE.html` to results written to `FILE` as text, unless another report is requested. Adds nothing
    /// for a pipe or a device.
    pub fn add_page(&mut self) {
        let Some(output) = self.output.as_ref().filter(|_| self.report.is_none()) else { return };
        let is_file = output.metadata().map_or(true, |it| it.is_file());
        if self.format == Format::Normal && is_file {
            let mut name = output.clone().into_os_string();
            name.push(".html");
            self.report = Some(PathBuf::from(name));
        }
    }
}

/// A trace to be written.
#[derive(Clone, Debug)]
pub struct TracePlan {
    /// The prefix of file names.
    pub prefix: String,
    /// The maximum number of events for each CPU.
    pub events: usize,
}

/// A device with its parameters.
#[derive(Clone, Debug, Default)]
pub struct DeviceChoice {
    /// A name in the registry of devices.
    pub name: String,
    /// The complete description, as `--device` accepts it.
    pub text: String,
    /// The option that the user chose it by, for messages.
    pub chosen_by: String,
    /// Capacity.
    pub size_bytes: u64,
    /// Whether the device stores written data.
    pub keeps: bool,
    /// Notes of the device about its parameters.
    pub notes: Vec<String>,
    /// The files that it consists of, if these are several.
    pub files: Vec<PlacedFile>,
    /// Whether it is a file that begins as a hole of its size, because its jobs fill it.
    pub is_filled: bool,
    /// Whether it stands for the files of jobs that name none. As in fio, such a file ends with the size of its job.
    pub is_stand_in: bool,
    /// The device itself, until the first run takes it.
    pub kept: Kept,
}

/// One of the files of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlacedFile {
    /// The offset on the device at which it begins.
    pub start: u64,
    /// The description, as `--device` accepts it.
    pub text: String,
}

/// The options of jobs as written, for reports: names as in the table of options, values as given by the user. As in
/// fio, options without a value are omitted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Written {
    /// Options that hold for all jobs.
    pub globals: Vec<(String, String)>,
    /// Options of each job, in the order of the jobs; empty for a command without options.
    pub jobs: Vec<Vec<(String, String)>>,
}

impl Written {
    /// Adds an option to `options`; if it is repeated, the last value counts, at the first position.
    pub fn add(options: &mut Vec<(String, String)>, (name, value): (String, String)) {
        match options.iter_mut().find(|(known, _)| *known == name) {
            Some((_, last)) => *last = value,
            None => options.push((name, value)),
        }
    }
}

/// The kind of time of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Time {
    /// Real time: `blkmq bench`.
    #[default]
    Real,
    /// The virtual time of a simulation: `blkmq sim`.
    Virtual {
        /// The source of all randomness.
        seed: u64,
    },
}

/// The machine of every simulation, so that a run does not depend on the host.
const VIRTUAL: MachineShape = MachineShape { cpus: 8, nodes: 1 };

impl Time {
    /// The command that runs plans in this time.
    pub fn command(self) -> &'static str {
        match self {
            Self::Real => "bench",
            Self::Virtual { .. } => "sim",
        }
    }

    /// The seed, if there is one.
    pub fn seed(self) -> Option<u64> {
        match self {
            Self::Real => None,
            Self::Virtual { seed } => Some(seed),
        }
    }

    /// The machine, which determines defaults such as the number of hardware queues.
    pub fn machine(self) -> MachineShape {
        match self {
            Self::Real => MachineShape {
                cpus: blkmq_runtime::available_cpus(),
                nodes: blkmq_runtime::numa_nodes(),
            },
            Self::Virtual { .. } => VIRTUAL,
        }
    }
}

/// A slot for an open device, shared by copies of a choice.
#[derive(Clone, Debug, Default)]
pub struct Kept(Arc<Mutex<Option<Device>>>);

impl Kept {
    /// Keeps `device`, unless opening it again costs nothing.
    pub fn keep(&self, device: Device) {
        #[cfg(target_os = "linux")]
        if matches!(device, Device::Nbd(_)) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(device);
        }
        #[cfg(not(target_os = "linux"))]
        drop(device);
    }

    /// Takes the device, if one is kept.
    pub fn take(&self) -> Option<Device> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The virtual runtime of a job without an end.
const SIMULATED: Nanos = Nanos::from_secs(10);
/// The total real time of all runs, if jobs have no end.
const BUDGET_MS: u64 = 20_000;
/// The minimum and maximum share of it for such a job in one run.
const SHARE_MS: (u64, u64) = (500, 10_000);

/// One run: one queue, built and torn down.
#[derive(Clone, Debug)]
pub struct RunSpec<'a> {
    /// Runs with the same number repeat one measurement. Consecutive from 0.
    pub case: usize,
    /// The number of the repetition of the case, from 0.
    pub repetition: u32,
    /// The device.
    pub device: &'a DeviceChoice,
    /// The scheduler.
    pub scheduler: &'a SchedulerChoice,
    /// How threads share the elevator.
    pub access: &'a AccessChoice,
    /// How many elevators there are.
    pub scope: Scope,
    /// Every thread of every job.
    pub threads: Vec<ThreadSpec>,
}

impl RunSpec<'_> {
    /// Returns this run with `scheduler` and its scope.
    pub fn under<'b>(&'b self, plan: &Plan, scheduler: &'b SchedulerChoice) -> RunSpec<'b> {
        RunSpec { scheduler, scope: plan.scope_of(scheduler), ..self.clone() }
    }

    /// The seed of this repetition. Each is different, or it would repeat the same run.
    pub fn seed_of(&self, seed: u64) -> u64 {
        seed.wrapping_add(self.repetition.into())
    }
}

/// One thread of one job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreadSpec {
    /// Index into the plan's jobs.
    pub job: usize,
    /// Index within the job, from 0: the `thread` of the workload generator.
    pub thread: u32,
    /// Reporting group (`new_group`, `stonewall`), from 0.
    pub group: u32,
    /// Threads of phase n start when all threads of phase n - 1 have ended (`stonewall`), from 0.
    pub phase: u32,
}

impl Plan {
    /// Every run in order. Repetitions are the outermost loop and schedulers the innermost, so that compared runs are
    /// close in time and a drift of the machine affects all alike.
    pub fn runs(&self) -> Vec<RunSpec<'_>> {
        let mut runs = Vec::new();
        for repetition in 0..self.repeat {
            let mut case = 0;
            for device in &self.devices {
                for &numjobs in &self.threads {
                    for access in &self.access {
                        for scheduler in &self.schedulers {
                            let scope = self.scope_of(scheduler);
                            let threads = self.threads_of(numjobs);
                            let spec = RunSpec {
                                case,
                                repetition,
                                device,
                                scheduler,
                                access,
                                scope,
                                threads,
                            };
                            runs.push(spec);
                            case += 1;
                        }
                    }
                }
            }
        }
        runs
    }

    /// The number of different measurements.
    pub fn cases(&self) -> usize {
        self.devices.len() * self.threads.len() * self.access.len() * self.schedulers.len()
    }

    /// The number of elevators of a queue with `scheduler`.
    fn scope_of(&self, scheduler: &SchedulerChoice) -> Scope {
        self.scope.unwrap_or(scheduler.factory.scope)
    }

    /// The threads of a run with `numjobs` threads per job, or with each job's own number.
    pub fn threads_of(&self, numjobs: Option<u32>) -> Vec<ThreadSpec> {
        let mut threads = Vec::new();
        let (mut group, mut phase) = (0, 0);
        for (job, spec) in self.jobs.iter().enumerate() {
            if job > 0 {
                // As in fio, a stonewall also begins a new group.
                group += u32::from(spec.new_group || spec.stonewall);
                phase += u32::from(spec.stonewall);
            }
            let count = numjobs.unwrap_or(spec.numjobs);
            threads.extend((0..count).map(|thread| ThreadSpec { job, thread, group, phase }));
        }
        threads
    }

    /// The duration of a run: the sum over phases of the longest job. `None` if a job has no runtime, and ends with its
    /// I/O.
    pub fn run_time(&self) -> Option<Nanos> {
        let (mut done, mut phase, mut ends) = (0u64, 0u64, Vec::new());
        for (i, job) in self.jobs.iter().enumerate() {
            if i > 0 && job.stonewall {
                done = done.saturating_add(std::mem::take(&mut phase));
            }
            let named = |at: &usize| Some(&self.jobs[*at].name) == job.wait_for.as_ref();
            let behind = (0..i).filter(named).map(|at| ends[at]).max().unwrap_or(0);
            let start = done.saturating_add(job.startdelay.0).max(behind);
            let end = start.saturating_add(job.ramp_time.0).saturating_add(job.runtime?.0);
            phase = phase.max(end - done);
            ends.push(end);
        }
        Some(Nanos(done.saturating_add(phase)))
    }

    /// Gives jobs with neither runtime nor size a runtime, and notes it.
    pub fn bound(&mut self) {
        let phases = 1 + self.jobs.iter().skip(1).filter(|job| job.stonewall).count();
        let turns = (self.cases() * self.repeat as usize * phases).max(1) as u64;
        let (runtime, says) = match self.time {
            Time::Virtual { .. } => (SIMULATED, "10 s of virtual time".to_owned()),
            Time::Real => {
                let ms = (BUDGET_MS / turns).clamp(SHARE_MS.0, SHARE_MS.1) / 100 * 100;
                let runtime = Nanos::from_millis(ms);
                (runtime, format!("it ends after {} in each run", time(runtime)))
            }
        };
        for job in &mut self.jobs {
            let is_sized = job.files.as_ref().is_some_and(|files| files.is_sized);
            let is_bounded = is_sized || job.runtime.is_some() || job.number_ios.is_some();
            let is_bounded = is_bounded || job.tape.is_some();
            if !is_bounded && job.size.is_none() && job.io_size.is_none() {
                (job.runtime, job.time_based) = (Some(runtime), true);
                self.notes.push(format!("job '{}': neither runtime nor size: {says}", job.name));
            }
        }
    }
}

impl Plan {
    /// The name of the case of `spec`; empty if there is only one.
    pub fn case_name(&self, spec: &RunSpec<'_>) -> String {
        let name = self.plain_case_name(spec);
        // Replacing characters that are invalid in a file name may make names equal.
        let runs = self.runs();
        let earlier = runs.iter().take(self.cases()).filter(|other| other.case < spec.case);
        let like = earlier.filter(|other| self.plain_case_name(other) == name).count();
        if like == 0 { name } else { format!("{name}-{}", like + 1) }
    }

    fn plain_case_name(&self, spec: &RunSpec<'_>) -> String {
        let threads = spec.threads.len();
        let parts = [
            (self.schedulers.len() > 1, spec.scheduler.text.clone()),
            (self.access.len() > 1, spec.access.text.clone()),
            (self.threads.len() > 1, format!("{threads}threads")),
            (self.devices.len() > 1, spec.device.text.clone()),
        ];
        let shown = parts.into_iter().filter_map(|(shown, part)| shown.then(|| fit(&part)));
        Vec::from_iter(shown).join(".")
    }

    /// The name of a file of `spec` that begins with `prefix`. It contains the case if there are several, and the
    /// repetition, from 0, if there are several of those.
    pub fn file_of(&self, spec: &RunSpec<'_>, prefix: &str) -> String {
        let mut name = prefix.to_owned();
        if self.cases() > 1 {
            name.push_str(&format!(".{}", self.case_name(spec)));
        }
        if self.repeat > 1 {
            name.push_str(&format!(".rep{}", spec.repetition));
        }
        name
    }
}

/// `text` with a dash for each character that has a meaning to shells or in paths.
fn fit(text: &str) -> String {
    let keeps = |c: char| c.is_ascii_alphanumeric() || "-_=".contains(c);
    text.chars().map(|c| if keeps(c) { c } else { '-' }).collect()
}

/// Repetitions: several where results differ between them, for a median.
pub fn repeats(time: Time) -> u32 {
    match time {
        Time::Real => 3,
        Time::Virtual { .. } => 1,
    }
}

/// The time of all runs together.
const BUDGET: Nanos = Nanos::from_secs(8);
const SHORTEST: Nanos = Nanos::from_millis(50);
const LONGEST: Nanos = Nanos::from_secs(1);

/// One thread, two, and twice the number of cores, since locks cost most when threads wait.
pub fn thread_counts(time: Time) -> Vec<Option<u32>> {
    let cpus = u32::from(time.machine().cpus);
    let mut counts = match time {
        Time::Real => vec![1, 2, 2 * cpus],
        // Every virtual thread has its own CPU.
        Time::Virtual { .. } => vec![1, 2, cpus],
    };
    counts.dedup();
    counts.into_iter().map(Some).collect()
}

/// The job of each of `runs` runs: random writes in portions of eight, by which the kernel's schedulers were found not
/// to scale.
pub fn matrix_job(runs: usize, time: Time) -> Job {
    let share = BUDGET.0 / (runs.max(1) as u64);
    let runtime = match time {
        // Whole tens of milliseconds print well.
        Time::Real => share.clamp(SHORTEST.0, LONGEST.0) / 10_000_000 * 10_000_000,
        // Some 100 000 I/Os for each thread; virtual time does not drift, so a short run is enough.
        Time::Virtual { .. } => 10_000_000,
    };
    Job {
        name: "randwrite".into(),
        rw: Rw::RandWrite,
        direct: true,
        norandommap: true,
        depth: Depth {
            iodepth: 32,
            low: 32,
            batch_submit: 8,
            batch_complete_min: 8,
            batch_complete_max: 8,
        },
        runtime: Some(Nanos(runtime)),
        time_based: true,
        group_reporting: true,
        latencies: Latencies::ALL,
        ..Job::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Request, parse};

    #[test]
    fn a_text_in_a_file_has_a_page_beside_it() {
        for (line, page) in [
            ("--output=/tmp/none-such.txt", Some("/tmp/none-such.txt.html")),
            ("--output=/tmp/none-such.txt --report=x.json", Some("x.json")),
            ("--output=/tmp/none-such.txt --output-format=json", None),
            ("--output=/dev/null", None),
            ("", None),
        ] {
            let line = format!("--rw=read --size=1m {line}");
            let words = Vec::from_iter(line.split_whitespace().map(String::from));
            let Ok(Request::Plan(mut plan)) = parse(&words, Time::Real) else { panic!("{line}") };
            plan.add_page();
            assert_eq!(plan.report, page.map(PathBuf::from), "{line}");
            assert_eq!(plan.draws(), page.is_some_and(|page| page.ends_with(".html")));
        }
    }

    fn bounded(line: &str, time: Time) -> Plan {
        let words = Vec::from_iter(line.split_whitespace().map(String::from));
        let Ok(Request::Plan(mut plan)) = parse(&words, time) else { panic!("{line}") };
        plan.bound();
        *plan
    }

    /// The command of the README ran for twenty minutes.
    #[test]
    fn all_runs_together_end_in_time_and_the_report_says_so() {
        let readme = "--scheduler none,mq-deadline --access combining,spin --threads 1,2 --rw=randread --bs=4k \
                      --iodepth=32";
        for line in
            [readme, "--rw=read", "--name=a --name=b --stonewall --scheduler=none --repeat=3"]
        {
            let plan = bounded(line, Time::Real);
            let run = plan.run_time().expect("it is bounded");
            assert!(run.0 * plan.runs().len() as u64 <= 25_000_000_000, "{line}: {run}");
            assert!(plan.notes.iter().any(|note| note.contains("neither runtime nor size")));
        }
        let plan = bounded(readme, Time::Real);
        assert_eq!(plan.jobs[0].runtime, Some(Nanos::from_millis(2_500)));
    }

    #[test]
    fn a_job_with_an_end_keeps_it() {
        for time in [Time::Real, Time::Virtual { seed: 0 }] {
            for end in ["--size=1m", "--runtime=600", "--io_size=1m", "--number_ios=7"] {
                let plan = bounded(&format!("--rw=read {end}"), time);
                assert!(
                    plan.notes.is_empty() && !plan.jobs[0].time_based,
                    "{end}: {:?}",
                    plan.notes
                );
            }
        }
        let plan = bounded("--rw=read", Time::Virtual { seed: 0 });
        assert_eq!(plan.jobs[0].runtime, Some(SIMULATED));
    }

    fn plan(line: &str) -> Box<Plan> {
        let args = Vec::from_iter(line.split_whitespace().map(String::from));
        match parse(&args, Time::Virtual { seed: 0 }).expect(line) {
            Request::Plan(plan) => plan,
            Request::Help | Request::Command(_) => panic!("{line} is no plan"),
        }
    }

    fn names(line: &str) -> Vec<String> {
        let plan = plan(line);
        plan.runs().iter().map(|spec| plan.file_of(spec, "p")).collect()
    }

    #[test]
    fn one_case_has_no_name() {
        assert_eq!(names("--rw=read --size=1m --scheduler=bfq"), ["p"]);
        let repeated = names("--rw=read --size=1m --scheduler=bfq --repeat=2");
        assert_eq!(repeated, ["p.rep0", "p.rep1"]);
    }

    #[test]
    fn several_cases_are_named_by_what_differs() {
        let two =
            names("--rw=read --size=1m --scheduler=none,mq-deadline:fifo_batch=8,read_expire=9");
        assert_eq!(two, ["p.none", "p.mq-deadline-fifo_batch=8-read_expire=9"]);
        let four = names("--rw=read --size=1m --scheduler=none,bfq --threads=1,2 --repeat=2");
        assert_eq!(four.len(), 8);
        assert_eq!(
            (four[0].as_str(), four[7].as_str()),
            ("p.none.1threads.rep0", "p.bfq.2threads.rep1")
        );
    }

    #[test]
    fn no_two_cases_share_a_name() {
        let same = names("--rw=read --size=1m --scheduler=none,none");
        assert_eq!(same, ["p.none", "p.none-2"]);
    }
}
