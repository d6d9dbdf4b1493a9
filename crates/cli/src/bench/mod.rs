//! Runs a plan: builds each queue, drives it with real threads or in virtual time, and fills a report.
//!
//! The plan defines order and repetitions; the laboratory's [`Worker`] defines the work of a single thread, and
//! `run.rs` drives it. The report goes to [`Outputs`]: files, written after each run, and standard output, written at
//! the end.
//!
//! [`Worker`]: blkmq_lab::workload::Worker

mod logs;
mod outcome;
mod run;
mod setup;
mod shares;
pub mod status;
mod tally;

pub use setup::StartError;

use crate::Failure;
use crate::plan::{Plan, RunSpec, Time, time};
use crate::report::model::{Machine, Partial, Report, Run};
use crate::report::{Format, Output, open, open_as, render};
use blkmq_lab::observe::Observation;
use blkmq_lab::workload::LatencyTarget;
use blkmq_terminal::UsageError;
use blkmq_terminal::output::{print_results, shown};
use blkmq_terminal::program::Stop;
use outcome::{Disks, Outcome};
use status::{Beside, Progress, Status};
use std::borrow::Cow;
use tally::Troubles;

/// Runs all of `plan`, and prints and writes its report. After a signal, the report covers the runs so far.
///
/// # Errors
/// If a device or queue cannot be created, a result cannot be written, a block does not contain the data written to it,
/// I/Os failed or did not end, or a signal ended the runs.
pub fn run(plan: &Plan) -> Result<(), Failure> {
    let stop = Stop::on_signals();
    let mut outputs = Outputs::open(plan)?;
    let (report, verdict) = measure(plan, &stop, &mut outputs)?;
    let printed = outputs.print(&report);
    let written = outputs.verdict();
    match Failure::of_partial(report.partial) {
        Err(interrupted) => printed.and(written).and(Err(interrupted)),
        Ok(()) => verdict.and(printed).and(written),
    }
}

/// The report of `plan`'s runs, or of the runs before `stop` is set.
///
/// # Errors
/// See [`run`](fn@run), except for the signal.
pub fn report(plan: &Plan, stop: &Stop) -> Result<Report, Failure> {
    let mut outputs = Outputs::open(plan)?;
    let (report, verdict) = measure(plan, stop, &mut outputs)?;
    verdict.map(|()| report)
}

/// Performs the runs of `plan` until `stop` is set. Returns the report, which has also been written to the files of
/// `outputs`, and the verdict.
///
/// # Errors
/// If a device or queue cannot be created.
fn measure(
    plan: &Plan,
    stop: &Stop,
    outputs: &mut Outputs<'_>,
) -> Result<(Report, Result<(), Failure>), Failure> {
    let specs = plan.runs();
    // Everything is checked before any time is spent.
    let mut opened = Vec::new();
    for spec in specs.iter().take(plan.cases()) {
        opened.extend(setup::check(plan, spec)?);
    }
    let mut report = begin(plan, &specs);
    // A file that was laid out first had not been opened when the plan was made.
    opened.retain(|note| !report.notes.contains(note));
    opened.dedup();
    report.notes.append(&mut opened);
    let mut repetitions: Vec<Vec<Run>> = (0..plan.cases()).map(|_| Vec::new()).collect();
    let mut progress =
        Progress::new(specs.len(), plan.run_time().filter(|_| plan.time == Time::Real), plan.eta);
    let mut troubles = Troubles::default();
    let mut done = 0;
    let partial = |done| Partial { done, planned: specs.len(), signal: stop.signal() };
    let disks = Disks::of(plan);
    for spec in &specs {
        if stop.is_set() {
            report.partial = Some(partial(done));
            break;
        }
        progress.begin(&label(plan, spec));
        let observation = outcome::observation(plan, spec);
        let mut tell = |run| {
            let report = so_far(plan, &report, (spec, run), &repetitions, &disks);
            progress.aside(|| outputs.add(&report));
        };
        let mut outcome = carry_out(plan, spec, (&observation, stop), &mut tell)?;
        if stop.is_set() {
            report.partial = Some(partial(done));
            // Of a repeated case, only complete runs count; a run that has not begun to measure is meaningless.
            if !repetitions[spec.case].is_empty() || outcome.run.total_ios() == 0 {
                break;
            }
            outcome.run.is_partial = true;
        } else {
            done += 1;
            report.partial = (done < specs.len()).then(|| partial(done));
        }
        let written = outputs.records(spec, &observation);
        let found = depths_found(&label(plan, spec), &outcome.run);
        for note in outcome.notes.into_iter().chain(written).chain(found) {
            if !report.notes.contains(&note) {
                report.notes.push(note);
            }
        }
        // Also added as a note, since the report may show another repetition.
        report.notes.extend(troubles.add(&label(plan, spec), &outcome.troubles));
        repetitions[spec.case].push(outcome.run);
        report.runs = repetitions.iter().filter_map(|runs| median(runs)).collect();
        finish(&mut report, &disks);
        outputs.write(&report);
        progress.end();
    }
    progress.finish();
    if let Some(partial) = &mut report.partial {
        // The signal may have come between two runs; it is written to the files, too.
        partial.signal = stop.signal();
        outputs.write(&report);
    }
    Ok((report, troubles.verdict(specs.len())))
}

/// Performs the run `spec` in the time of `plan`. `tell` gets the figures so far when a status is requested.
fn carry_out(
    plan: &Plan,
    spec: &RunSpec<'_>,
    (observation, stop): (&Observation, &Stop),
    tell: &mut (dyn FnMut(Run) + Send),
) -> Result<Outcome, Failure> {
    let status = plan.status_interval.map(|every| Status { every, tell });
    let beside = Beside { observation, stop, status };
    match plan.time {
        Time::Real => run::run(plan, spec, beside),
        Time::Virtual { seed } => run::simulate(plan, spec, seed, beside),
    }
}

/// Returns `report` with `run`, the figures so far of the unfinished run `spec`, as the result of its case.
fn so_far(
    plan: &Plan,
    report: &Report,
    (spec, run): (&RunSpec<'_>, Run),
    repetitions: &[Vec<Run>],
    disks: &Disks,
) -> Report {
    let planned = plan.cases() * plan.repeat as usize;
    let done = repetitions.iter().map(Vec::len).sum();
    let mut report = report.clone();
    report.partial = Some(Partial { done, planned, signal: None });
    let run = Run { is_partial: true, ..median(&[run]).expect("a run") };
    let mut run = Some(run);
    let of_case = |(case, runs): (usize, &Vec<Run>)| {
        if case == spec.case { run.take() } else { median(runs) }
    };
    report.runs = repetitions.iter().enumerate().filter_map(of_case).collect();
    finish(&mut report, disks);
    report
}

/// Sets the figures of a report that refer to the moment of its creation.
fn finish(report: &mut Report, disks: &Disks) {
    report.disks = disks.used();
    if report.seed.is_none() {
        report.time_ms = blkmq_runtime::wall_clock_millis();
    }
}

/// The report before the first run.
fn begin(plan: &Plan, specs: &[RunSpec<'_>]) -> Report {
    let mut report = Report {
        command: plan.command.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        seed: plan.time.seed(),
        notes: plan.notes.clone(),
        global_options: plan.written.globals.clone(),
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

/// The run with the median rate, with the rates of all runs.
fn median(runs: &[Run]) -> Option<Run> {
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

impl From<crate::report::OutputError> for Failure {
    fn from(e: crate::report::OutputError) -> Self {
        Self::Usage(UsageError::new(e.to_string()))
    }
}

/// A sentence for each job of `run` that has found a depth. `label` names the run.
fn depths_found(label: &str, run: &Run) -> Vec<String> {
    let searched = run.jobs.iter().filter(|job| job.error == 0);
    let note = |name: &str, depth: u32, wanted: LatencyTarget| {
        let LatencyTarget { target, percentile, .. } = wanted;
        let target = time(target);
        format!(
            "{label}: job '{name}' does {percentile} % of its I/Os within {target} at a depth of {depth}"
        )
    };
    searched.filter_map(|job| Some(note(&job.name, job.iodepth, job.latency_target?))).collect()
}

/// The destinations of a plan's report.
struct Outputs<'a> {
    plan: &'a Plan,
    /// The file for the results, if it is to be written and can be.
    results: Option<Output>,
    /// The additional page or data file.
    report: Option<Output>,
    /// The destinations that could not be written, in the order of the failures.
    failures: Vec<String>,
}

impl<'a> Outputs<'a> {
    /// Opens the files.
    ///
    /// # Errors
    /// If one of them cannot be opened.
    fn open(plan: &'a Plan) -> Result<Self, Failure> {
        let results = plan.output.as_deref().map(|path| open_as(path, plan.format)).transpose()?;
        let report = plan.report.as_deref().map(open).transpose()?;
        Ok(Self { plan, results, report, failures: Vec::new() })
    }

    /// Writes the report to the files.
    fn write(&mut self, report: &Report) {
        for place in [&mut self.results, &mut self.report] {
            let Some(Err(e)) = place.as_mut().map(|file| file.write(report)) else { continue };
            *place = None;
            self.failures.push(e.to_string());
        }
    }

    /// Writes the records of a run, and returns the notes about them.
    fn records(&mut self, spec: &RunSpec<'_>, observation: &Observation) -> Vec<String> {
        outcome::write_records(self.plan, spec, observation).unwrap_or_else(|e| {
            let text = e.to_string();
            if !self.failures.contains(&text) {
                self.failures.push(text);
            }
            Vec::new()
        })
    }

    /// Prints the status of an unfinished run, or appends it to the file of the results.
    fn add(&mut self, report: &Report) {
        let added = match &mut self.results {
            Some(file) => file.add(report).map_err(|e| e.to_string()),
            None => self.show(report, "\n").map_err(|e| e.to_string()),
        };
        let Err(text) = added else { return };
        self.results = None;
        if !self.failures.contains(&text) {
            self.failures.push(text);
        }
    }

    /// Prints the report in each format; `after` follows text.
    fn show(&self, report: &Report, after: &str) -> Result<(), Failure> {
        for format in [self.plan.format].iter().chain(&self.plan.also) {
            let text = render(report, *format);
            print_results(&match format {
                Format::Normal => shown(&(text + after)).into_owned().into(),
                _ => Cow::from(text),
            })?;
        }
        Ok(())
    }

    /// Prints the report if it was not written to a file.
    ///
    /// # Errors
    /// If standard output cannot be written.
    fn print(&self, report: &Report) -> Result<(), Failure> {
        if self.results.is_some() {
            return Ok(());
        }
        self.show(report, "")?;
        match (&self.plan.report, &self.report) {
            (Some(path), Some(_)) if self.plan.format == Format::Normal => {
                print_results(&format!("\nThe same with plots: {}\n", path.display()))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// An error if anything could not be written.
    fn verdict(self) -> Result<(), Failure> {
        if self.failures.is_empty() {
            Ok(())
        } else {
            Err(Failure::Results(self.failures.join("; ")))
        }
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
