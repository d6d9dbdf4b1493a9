//! The points of a study as runs: the requirements of each run, and its result.

use super::figure::INVERSIONS;
use super::row::{self, Row};
use super::study::{Axis, Point, Program, Study};
use crate::args::{self, Request};
use crate::plan::{Plan, Time, quote};
use crate::{Failure, bench, replay};
use blkmq_terminal::UsageError;
use blkmq_terminal::interrupt::Stop;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::Read;

/// The most values of an axis that are checked before the first run.
const MOST_CHECKED: usize = 200;

/// The points of a study.
pub struct Points {
    study: Study,
    axes: Vec<Axis>,
    /// The digests of traces by their paths.
    traces: BTreeMap<String, String>,
}

impl Points {
    /// The points of `study`, reading each trace once.
    ///
    /// # Errors
    /// If an axis is invalid, or a trace cannot be read.
    pub fn of(study: Study) -> Result<Self, UsageError> {
        let axes = study.axes()?;
        let on_axis = axes.iter().filter(|axis| axis.name == "trace").flat_map(|axis| &axis.values);
        let paths = study.trace.iter().cloned().chain(on_axis.map(ToString::to_string));
        let traces = paths.map(|path| Ok((path.clone(), digest(&path)?)));
        let traces = traces.collect::<Result<_, UsageError>>()?;
        Ok(Self { study, axes, traces })
    }

    /// Their number.
    pub fn len(&self) -> usize {
        self.axes.iter().map(|axis| axis.values.len()).product()
    }

    /// The study.
    pub fn study(&self) -> &Study {
        &self.study
    }

    /// The axes of its grid.
    pub fn axes(&self) -> &[Axis] {
        &self.axes
    }

    fn point(&self, index: usize) -> Point {
        Study::point(&self.axes, index)
    }

    /// The identity of a point.
    pub fn id(&self, index: usize) -> String {
        let point = self.point(index);
        let trace = self.study.trace_of(&point).map(|path| self.traces[&path].as_str());
        row::id(&self.study, &point, trace)
    }

    /// The values of a point as text.
    pub fn label(&self, index: usize) -> String {
        let point = self.point(index);
        let values = point.values.iter().map(|(name, value)| format!("{name}={value}"));
        Vec::from_iter(values).join(" ")
    }

    /// The command that runs only this point.
    pub fn command(&self, index: usize) -> String {
        quote(self.study.program.word(), &self.study.words(&self.point(index)))
    }

    /// Returns whether runs take real time.
    pub fn is_real(&self) -> bool {
        let word = |index| self.study.words(&self.point(index)).iter().any(|it| it == "--real");
        self.study.program == Program::Bench
            || (self.study.program == Program::Replay && (0..self.len()).any(word))
    }

    /// Checks the values of each axis, combined with the first values of the others. On a long axis, such as seeds,
    /// only some values are checked.
    ///
    /// # Errors
    /// If one of these runs is impossible.
    pub fn check(&self) -> Result<(), UsageError> {
        let mut stride = self.len();
        for axis in &self.axes {
            stride /= axis.values.len();
            for at in (0..axis.values.len()).step_by(axis.values.len().div_ceil(MOST_CHECKED)) {
                let index = at * stride;
                let says = |e: Failure| UsageError::new(format!("{}: {e}", self.label(index)));
                self.plan(index).map(drop).map_err(says)?;
            }
        }
        Ok(())
    }

    /// Returns the plan of a point, which has one run and writes nothing.
    fn plan(&self, index: usize) -> Result<Plan, Failure> {
        let words = self.study.words(&self.point(index));
        let time = match self.study.program {
            Program::Replay => return only(replay::plan_of(&words)?),
            Program::Bench => Time::Real,
            Program::Sim => Time::Virtual { seed: 0 },
        };
        match args::parse(&words, time)? {
            Request::Plan(plan) => only(*plan),
            Request::Help | Request::Command(_) => {
                let text = "an option prints something; accepted: options of a run";
                Err(UsageError::new(text).into())
            }
        }
    }

    /// Runs a point.
    ///
    /// # Errors
    /// If the run is impossible or fails.
    pub fn run(&self, index: usize, stop: &Stop) -> Result<Row, Failure> {
        let mut plan = self.plan(index)?;
        plan.bound();
        plan.eta = false;
        plan.quiet = true;
        plan.inversions = self.study.compare.metrics.iter().any(|name| name == INVERSIONS);
        let report = bench::report(&plan, stop)?;
        Ok(Row::of(self.id(index), &self.point(index), &report))
    }
}

/// Refuses a plan of several runs, and of files that runs side by side would overwrite.
fn only(plan: Plan) -> Result<Plan, Failure> {
    let refuse = |text: String| Err(UsageError::new(text).into());
    if plan.default_matrix || plan.jobs.is_empty() {
        return refuse("no job; accepted: options of one, such as rw".into());
    }
    if plan.cases() != 1 {
        let text = format!(
            "{} runs in one point; accepted: one device, scheduler, access and threads, \
                            and lists in [grid]",
            plan.cases()
        );
        return refuse(text);
    }
    let logs = plan.jobs.iter().any(|job| job.logs.any());
    let writes = [
        (plan.output.is_some(), "output"),
        (plan.report.is_some(), "report"),
        (plan.trace.is_some(), "trace"),
        (plan.elevator_log.is_some(), "elevator_log"),
        (plan.status_interval.is_some(), "status_interval"),
        (plan.dry_run, "dry_run"),
        (logs, "write_*_log"),
    ];
    match writes.into_iter().find(|(is_on, _)| *is_on) {
        Some((_, name)) => {
            refuse(format!("{name}: of a single run; accepted: the results of the experiment"))
        }
        None => Ok(plan),
    }
}

/// The digest of a file.
fn digest(path: &str) -> Result<String, UsageError> {
    let refuse = |e: std::io::Error| UsageError::new(e.to_string()).at(path);
    let mut file = std::fs::File::open(path).map_err(refuse)?;
    let (mut digest, mut part) = (Sha256::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut part).map_err(refuse)? {
            0 => return Ok(row::hex(&digest.finalize())),
            length => digest.update(&part[..length]),
        }
    }
}
