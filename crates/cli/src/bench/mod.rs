//! Runs a plan: builds each queue, drives it with real threads or in virtual time, and fills a report.
//!
//! The plan defines order and repetitions; the laboratory's [`Worker`] defines the work of a single thread, and
//! `drive.rs` drives it.
//!
//! [`Worker`]: blkmq_lab::workload::Worker

mod drive;
mod groups;
mod logs;
mod outcome;
mod payload;
pub mod progress;
mod run;
mod setup;
mod simulate;
pub mod start;
mod state;
mod tally;
mod trouble;
mod usage;
mod watch;

use crate::error::{Failure, UsageError};
use crate::plan::runs::RunSpec;
use crate::plan::{Plan, Time};
use crate::report::machine::Machine;
use crate::report::model::{Report, Run};
use crate::report::{Format, Output, open, open_as, render};
use blkmq_lab::observe::Observation;
use progress::Progress;
use std::io::Write;
use trouble::Troubles;

/// Runs all of `plan`, and prints and writes its report.
///
/// # Errors
/// If the requested device or queue cannot be made, a result cannot be written, a block did not hold the data written
/// to it, or I/Os failed or did not end.
pub fn run(plan: &Plan) -> Result<(), Failure> {
    let mut outputs = outputs(plan)?;
    let specs = plan.runs();
    // Every refusal comes before the first second is spent.
    for spec in specs.iter().take(plan.cases()) {
        setup::check(plan, spec)?;
    }
    let mut report = begin(plan, &specs);
    let mut repetitions: Vec<Vec<Run>> = (0..plan.cases()).map(|_| Vec::new()).collect();
    let mut progress = Progress::new(specs.len(), plan.run_time().is_some());
    let mut troubles = Troubles::default();
    for spec in &specs {
        progress.begin(&label(plan, spec));
        let observation = watch::observation(plan, spec);
        let outcome = match plan.time {
            Time::Real => run::run(plan, spec, &observation)?,
            Time::Virtual { seed } => simulate::run(plan, spec, seed, &observation)?,
        };
        let written = watch::write(plan, spec, &observation)?;
        for note in outcome.notes.into_iter().chain(written) {
            if !report.notes.contains(&note) {
                report.notes.push(note);
            }
        }
        // The note is added as well, since the report may show another repetition.
        report.notes.extend(troubles.add(&label(plan, spec), &outcome.troubles));
        repetitions[spec.case].push(outcome.run);
        report.runs = repetitions.iter().filter_map(|runs| median(runs)).collect();
        for output in &mut outputs {
            output.write(&report)?;
        }
        progress.end();
    }
    progress.finish();
    if plan.output.is_none() {
        print(&render(&report, plan.format))?;
    }
    if let Some(path) = &plan.report
        && plan.format == Format::Normal
        && plan.output.is_none()
    {
        print(&format!("\nThe same with plots: {}\n", path.display()))?;
    }
    troubles.verdict(specs.len())
}

/// The only run of `plan`, in real time, with this `observation`, and the notes about it. Makes no report.
///
/// # Errors
/// If the requested device or queue cannot be made, or the run did not go well.
pub fn once(plan: &Plan, observation: &Observation) -> Result<(Run, Vec<String>), Failure> {
    let specs = plan.runs();
    let [spec] = specs.as_slice() else { panic!("a plan of {} runs, not of one", specs.len()) };
    setup::check(plan, spec)?;
    let outcome = run::run(plan, spec, observation)?;
    let mut troubles = Troubles::default();
    troubles.add(&label(plan, spec), &outcome.troubles);
    troubles.verdict(1)?;
    Ok((outcome.run, outcome.notes))
}

/// The files of the report.
fn outputs(plan: &Plan) -> Result<Vec<Output>, Failure> {
    let mut outputs = Vec::new();
    if let Some(path) = &plan.output {
        outputs.push(open_as(path, plan.format)?);
    }
    if let Some(path) = &plan.report {
        outputs.push(open(path)?);
    }
    Ok(outputs)
}

/// The report before the first run.
fn begin(plan: &Plan, specs: &[RunSpec<'_>]) -> Report {
    let mut report = Report {
        command: plan.command.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        seed: plan.time.seed(),
        notes: plan.notes.clone(),
        ..Report::default()
    };
    match plan.time {
        Time::Real => {
            report.time_ms = blkmq_runtime::wall_clock_millis();
            report.machine = Machine::detect();
        }
        Time::Virtual { .. } => {
            let cpus = specs.iter().map(|spec| spec.threads.len()).max().unwrap_or(0);
            report.machine = Machine::simulated(cpus as u32);
        }
    }
    report
}

/// The run with the median rate, which carries the rates of all runs.
pub fn median(runs: &[Run]) -> Option<Run> {
    let mut order: Vec<usize> = (0..runs.len()).collect();
    order.sort_by(|a, b| runs[*a].iops().total_cmp(&runs[*b].iops()));
    let middle = *order.get(order.len().checked_sub(1)? / 2)?;
    let repetitions = runs.iter().map(Run::iops).collect();
    Some(Run { repetitions, ..runs[middle].clone() })
}

fn label(plan: &Plan, spec: &RunSpec<'_>) -> String {
    let mut label = spec.scheduler.text.clone();
    if plan.devices.len() > 1 {
        label.push_str(&format!(" on {}", spec.device.text));
    }
    if plan.access.len() > 1 {
        label.push_str(&format!(", {}", spec.access.text));
    }
    let threads = spec.threads.len();
    label.push_str(&format!(", {threads} thread{}", if threads == 1 { "" } else { "s" }));
    label
}

fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // A reader that closed the pipe has read enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(Failure::Output),
    }
}

impl From<crate::report::OutputError> for Failure {
    fn from(e: crate::report::OutputError) -> Self {
        Self::Usage(UsageError::new(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn the_median_repetition_is_reported_with_all_rates() {
        let runs = [300, 100, 200].map(|iops| sample::run("none", "combining", 1, iops, 1000));
        let run = median(&runs).expect("three runs");
        assert_eq!(run.iops().round() as u64, 200);
        assert_eq!(
            run.repetitions.iter().map(|r| r.round() as u64).collect::<Vec<_>>(),
            [300, 100, 200]
        );
        assert!(median(&[]).is_none());
    }
}
