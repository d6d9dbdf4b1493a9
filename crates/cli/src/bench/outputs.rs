//! The destinations of a report: files, written after each run, and standard output, written at the end.
//!
//! A destination that fails is given up, and the runs continue; if the report's own file fails, the report goes to
//! standard output. The command then fails, but no result is lost that can still be printed.

use super::watch;
use crate::Failure;
use crate::plan::Plan;
use crate::plan::runs::RunSpec;
use crate::report::model::Report;
use crate::report::{Format, Output, open, open_as, render};
use blkmq_lab::observe::Observation;
use blkmq_terminal::output::print_results;
use blkmq_terminal::screen::shown;
use std::borrow::Cow;

/// The destinations of a plan's report.
pub struct Outputs<'a> {
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
    pub fn open(plan: &'a Plan) -> Result<Self, Failure> {
        let results = plan.output.as_deref().map(|path| open_as(path, plan.format)).transpose()?;
        let report = plan.report.as_deref().map(open).transpose()?;
        Ok(Self { plan, results, report, failures: Vec::new() })
    }

    /// Writes the report to the files.
    pub fn write(&mut self, report: &Report) {
        for place in [&mut self.results, &mut self.report] {
            let Some(Err(e)) = place.as_mut().map(|file| file.write(report)) else { continue };
            *place = None;
            self.failures.push(e.to_string());
        }
    }

    /// Writes the records of a run, and returns the notes about them.
    pub fn records(&mut self, spec: &RunSpec<'_>, observation: &Observation) -> Vec<String> {
        watch::write(self.plan, spec, observation).unwrap_or_else(|e| {
            let text = e.to_string();
            if !self.failures.contains(&text) {
                self.failures.push(text);
            }
            Vec::new()
        })
    }

    /// Prints the status of an unfinished run, or appends it to the file of the results.
    pub fn add(&mut self, report: &Report) {
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
    pub fn print(&self, report: &Report) -> Result<(), Failure> {
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
    pub fn verdict(self) -> Result<(), Failure> {
        if self.failures.is_empty() {
            Ok(())
        } else {
            Err(Failure::Results(self.failures.join("; ")))
        }
    }
}
