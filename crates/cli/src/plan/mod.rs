//! The plan of a bench or a simulation: the command line is completely parsed, and nothing has run yet.
//!
//! A [`Plan`] contains every choice; [`Plan::runs`] expands it into single runs in their order. The code that runs them
//! needs no options or defaults.

pub mod choices;
pub mod groups;
mod print;
pub mod runs;

pub use blkmq_terminal::SchedulerChoice;
pub use choices::{AccessChoice, Choice, Cpus, Nomerges, PumpChoice, ScopeChoice, StatsChoice};
pub use print::{job_file, quote, time};

use crate::report::Format;
use blkmq::Device;
use blkmq_core::Nanos;
use blkmq_device::MachineShape;
use blkmq_engine::{DeviceDepth, GroupTree};
use blkmq_lab::workload::Job;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// All choices of a command line.
#[derive(Clone, Debug)]
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
    pub scope: Option<ScopeChoice>,
    /// How much merging is tried.
    pub nomerges: Nomerges,
    /// Scheduler tags; `None` is the engine's default for the device.
    pub nr_requests: Option<u32>,
    /// How many requests the device may hold.
    pub device_depth: DeviceDepth,
    /// The threads that pump.
    pub pump: PumpChoice,
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
#[derive(Clone, PartialEq, Eq, Debug)]
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Time {
    /// Real time: `blkmq bench`.
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
#[derive(Clone, Default)]
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

/// Choices are compared by their descriptions.
impl PartialEq for Kept {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Kept {}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kept")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{self, Request};

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
            let Ok(Request::Plan(mut plan)) = args::parse(&words, Time::Real) else {
                panic!("{line}")
            };
            plan.add_page();
            assert_eq!(plan.report, page.map(PathBuf::from), "{line}");
            assert_eq!(plan.draws(), page.is_some_and(|page| page.ends_with(".html")));
        }
    }
}
