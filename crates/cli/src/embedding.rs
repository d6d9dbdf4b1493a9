//! The commands as functions for the Python package: they take the words of a command and return its results as text,
//! without printing.

pub use blkmq_terminal::program::Stop;

use crate::args::{self, Request};
use crate::experiment::{self, Points, Row};
use crate::plan::{Plan, Time};
use crate::report::{Format, render};
use crate::{Failure, bench, replay, trace};
use blkmq_sched::Factory;
use blkmq_terminal::program::Failure as _;
use blkmq_terminal::{SchedulerChoice, UsageError};
use std::path::Path;

/// The reason why a command has no result.
#[derive(Debug)]
pub struct Error {
    /// The text that the command prints.
    pub text: String,
    /// Whether the words are at fault, rather than the run.
    pub is_usage: bool,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self { text: failure.to_string(), is_usage: failure.exit_code() == 2 }
    }
}

impl From<UsageError> for Error {
    fn from(error: UsageError) -> Self {
        Failure::from(error).into()
    }
}

/// Returns the results of `blkmq sim WORDS`, or if `real` of `blkmq bench WORDS`, in fio's JSON: the bytes printed with
/// `--output-format=json` or `json+`, which must be one of the words. `policy` replaces the scheduler.
///
/// # Errors
/// If the words cannot be understood, a run fails, or `stop` was set.
pub fn run(
    words: &[String],
    real: bool,
    policy: Option<&'static Factory>,
    stop: &Stop,
) -> Result<String, Error> {
    let time = if real { Time::Real } else { Time::Virtual { seed: 0 } };
    let Request::Plan(mut plan) = args::parse(words, time)? else {
        return Err(
            UsageError::new("an option prints something; accepted: options of a run").into()
        );
    };
    if let Some(factory) = policy {
        plan.schedulers = vec![SchedulerChoice::plain(factory)];
    }
    results(&mut plan, stop)
}

/// The results of `blkmq replay WORDS`, likewise.
///
/// # Errors
/// As [`run`], and if the trace cannot be read.
pub fn replay(words: &[String], stop: &Stop) -> Result<String, Error> {
    let mut plan = replay::plan_of(words)?;
    results(&mut plan, stop)
}

fn results(plan: &mut Plan, stop: &Stop) -> Result<String, Error> {
    if !matches!(plan.format, Format::Json | Format::JsonPlus) {
        return Err(UsageError::new("output-format: accepted: json, json+").into());
    }
    plan.bound();
    plan.eta = false;
    plan.quiet = true;
    let report = bench::report(plan, stop)?;
    Ok(render(&report, plan.format))
}

/// The facts about a trace as JSON: the bytes printed by `blkmq trace info WORDS --json`.
///
/// # Errors
/// If it cannot be read.
pub fn trace_info(words: &[String]) -> Result<String, Error> {
    Ok(trace::info_of(words)?)
}

/// An experiment, whose points may be run in any order by any process.
pub struct Study(Points);

impl Study {
    /// Parses a study in JSON, or in the TOML of a study file.
    ///
    /// # Errors
    /// If it is invalid, or a value on an axis cannot be used.
    pub fn parse(text: &str, is_json: bool) -> Result<Self, Error> {
        use experiment::study::Study;
        let study = if is_json { Study::of_json(text) } else { Study::parse(text) };
        let points = Points::of(study?)?;
        points.check()?;
        Ok(Self(points))
    }

    /// The study in JSON, as in a folder of results.
    #[must_use]
    pub fn json(&self) -> String {
        self.0.study.json()
    }

    /// Points of the grid.
    #[must_use]
    pub fn points(&self) -> usize {
        self.0.len()
    }

    /// The identity of the point `index`.
    ///
    /// # Panics
    /// If there is no such point.
    #[must_use]
    pub fn id(&self, index: usize) -> String {
        assert!(index < self.points(), "point {index} of {}", self.points());
        self.0.id(index)
    }

    /// Runs the point `index`, and returns its row of JSON with its end of line.
    ///
    /// # Errors
    /// As [`run`].
    pub fn run(&self, index: usize, stop: &Stop) -> Result<String, Error> {
        if index >= self.points() {
            let text = format!("point {index}; accepted: 0 to {}", self.points() - 1);
            return Err(UsageError::new(text).into());
        }
        Ok(self.0.run(index, stop)?.line())
    }

    /// Writes the results of all `rows` to a folder, as the command does, and returns the answers as text.
    ///
    /// # Errors
    /// If a row is invalid, or a file cannot be written.
    pub fn finish(&self, rows: &[String], folder: Option<&Path>) -> Result<String, Error> {
        let parsed = rows.iter().map(|row| serde_json::from_str::<Row>(row));
        let parsed = parsed.collect::<Result<Vec<_>, _>>();
        let parsed = parsed.map_err(|e| UsageError::new(format!("a row: {e}")))?;
        Ok(experiment::answers(&self.0, &parsed, folder)?)
    }
}

/// The rows of a folder that a study has been running in, and the right to add to them.
pub struct Folder(experiment::Store);

impl Folder {
    /// Opens the folder of `study`. Also returns the rows in it.
    ///
    /// # Errors
    /// If the folder belongs to another study, or is in use.
    pub fn open(folder: &Path, study: &Study) -> Result<(Self, Vec<String>), Error> {
        let (store, rows) =
            experiment::Store::open(folder, &study.0.study, experiment::Shard::ALL)?;
        Ok((Self(store), rows.values().map(Row::line).collect()))
    }

    /// Adds a row.
    ///
    /// # Errors
    /// If the row is invalid or cannot be written.
    pub fn add(&mut self, row: &str) -> Result<(), Error> {
        let row: Row =
            serde_json::from_str(row).map_err(|e| UsageError::new(format!("a row: {e}")))?;
        Ok(self.0.add(&row)?)
    }

    /// Waits until all rows are on the disk.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn sync(&self) -> Result<(), Error> {
        Ok(self.0.sync()?)
    }
}

/// The names of the devices available to simulations.
#[must_use]
pub fn devices() -> Vec<&'static str> {
    blkmq_device::registry::ALL.iter().map(|factory| factory.name).collect()
}

/// The schedulers, each with its attributes: name, default, minimum, maximum and meaning.
#[must_use]
pub fn schedulers() -> Vec<(&'static str, Vec<Attribute>)> {
    let attribute = |it: &blkmq_sched::Attribute| Attribute {
        name: it.name,
        default: it.default,
        min: it.min,
        max: it.max,
        help: it.help,
    };
    let of =
        |factory: &&Factory| (factory.name, factory.attributes.iter().map(attribute).collect());
    blkmq_sched::registry::ALL.iter().map(of).collect()
}

/// An attribute of a scheduler.
#[derive(Clone, Copy, Debug)]
pub struct Attribute {
    /// The name in sysfs.
    pub name: &'static str,
    /// The default value.
    pub default: i64,
    /// The least value.
    pub min: i64,
    /// The greatest value.
    pub max: i64,
    /// The meaning in one line.
    pub help: &'static str,
}
