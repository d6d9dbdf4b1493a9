//! What a bench or a simulation is to do, completely: the command line understood, nothing run yet.
//!
//! A [`Plan`] holds every choice; [`Plan::runs`] expands it into single runs in the order in which they
//! happen. Whoever runs them needs no option and no default.

pub mod access;
pub mod choices;
pub mod groups;
pub mod matrix;
pub mod overlap;
mod print;
pub mod runs;
pub mod scheduler;
pub mod spec;
mod time;

use crate::report::Format;
pub use access::AccessChoice;
use blkmq_engine::GroupTree;
use blkmq_lab::workload::Job;
pub use choices::{Choice, Nomerges, PumpChoice, ScopeChoice, StatsChoice};
pub use print::{job_file, time};
pub use scheduler::SchedulerChoice;
use std::path::PathBuf;
pub use time::Time;

/// Everything that was asked for.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Real or virtual.
    pub time: Time,
    /// The jobs, in the order in which they were given; `Job::index` is the position.
    pub jobs: Vec<Job>,
    /// The groups that jobs are in.
    pub groups: GroupTree,
    /// What is counted about them.
    pub group_stats: StatsChoice,
    /// The devices to compare; at least one.
    pub devices: Vec<DeviceChoice>,
    /// The schedulers to compare; at least one.
    pub schedulers: Vec<SchedulerChoice>,
    /// The ways of sharing an elevator to compare; at least one.
    pub access: Vec<AccessChoice>,
    /// Thread counts to compare. Each replaces `numjobs` of every job; `None` leaves it.
    pub threads: Vec<Option<u32>>,
    /// Overrules the scheduler's own scope.
    pub scope: Option<ScopeChoice>,
    /// How much merging is tried.
    pub nomerges: Nomerges,
    /// Scheduler tags; `None` is the engine's default for the device.
    pub nr_requests: Option<u32>,
    /// Who pumps.
    pub pump: PumpChoice,
    /// How often each case is run; the median is reported.
    pub repeat: u32,
    /// How results are printed.
    pub format: Format,
    /// Where they are printed; `None` is standard output.
    pub output: Option<PathBuf>,
    /// A page with plots besides.
    pub report: Option<PathBuf>,
    /// Where traces go, and how much of them is kept.
    pub trace: Option<TracePlan>,
    /// Where it is written what policies are told and answer.
    pub elevator_log: Option<String>,
    /// fio options that describe the run and change nothing, by name and value.
    pub annotations: Vec<(&'static str, String)>,
    /// What the user should know before believing a result, a line each.
    pub notes: Vec<String>,
    /// The command line that repeats this, quoted for a shell.
    pub command: String,
    /// Called without any argument: the jobs, schedulers and thread counts are those that fit everyone.
    pub default_matrix: bool,
    /// Show the plan instead of running it.
    pub dry_run: bool,
}

impl Plan {
    /// Is a page with plots to be written?
    pub fn draws(&self) -> bool {
        let paths = || self.report.iter().chain(&self.output);
        self.format == Format::Html || paths().any(|path| Format::of_path(path) == Format::Html)
    }
}

/// A trace to be written.
#[derive(Clone, Debug)]
pub struct TracePlan {
    /// What the names of its files begin with.
    pub prefix: String,
    /// Events kept on each CPU.
    pub events: usize,
}

/// A device with its parameters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceChoice {
    /// A name in the registry of devices.
    pub name: String,
    /// Its whole description, as `--device` takes it.
    pub text: String,
    /// Capacity.
    pub size_bytes: u64,
    /// Does it keep what is written?
    pub keeps: bool,
    /// What the device had to say about its parameters.
    pub notes: Vec<String>,
}
