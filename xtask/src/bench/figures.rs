//! Rates of I/O, read from the JSON of fio and of `blkmq bench`, sorted into cells.

use crate::Result;
use serde_json::Value;
use std::collections::BTreeMap;

/// The form in which fio does the work of one thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fio {
    /// One I/O at a time, fio's default.
    Plain,
    /// In batches of 8. fio's null engine does not even see single I/Os then.
    Batched,
}

impl Fio {
    /// Both forms.
    pub(super) const ALL: [Self; 2] = [Self::Plain, Self::Batched];

    /// The name in place of an access; fio has no access.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Plain => "fio",
            Self::Batched => "fio, batches of 8",
        }
    }
}

/// The subject of a measurement: one line of a table.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Cell {
    pub(super) workload: Workload,
    /// A policy's name.
    pub(super) scheduler: String,
    /// `combining`, `spin`, `mutex`, or one of [`Fio`]'s names for runs without a block layer.
    pub(super) access: String,
    pub(super) threads: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Workload {
    /// Several threads, one elevator, the load of the published figures.
    Contention,
    /// Like [`Contention`](Self::Contention), but with larger plugs and more I/Os in flight.
    Plugs,
    /// Several threads, an elevator for each.
    PerQueue,
    /// One thread, random reads.
    Alone,
}

impl Workload {
    /// The name in the data.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Contention => "contention",
            Self::Plugs => "plugs",
            Self::PerQueue => "per-queue",
            Self::Alone => "alone",
        }
    }
}

impl Cell {
    pub(super) fn new(workload: Workload, scheduler: &str, access: &str, threads: u32) -> Self {
        Self { workload, scheduler: scheduler.into(), access: access.into(), threads }
    }

    pub(super) fn alone(scheduler: &str) -> Self {
        Self::new(Workload::Alone, scheduler, "combining", 1)
    }

    /// fio, measured in turns with the policy `scheduler`.
    pub(super) fn fio_beside(scheduler: &str, fio: Fio) -> Self {
        Self { access: fio.name().into(), ..Self::alone(scheduler) }
    }
}

/// I/Os per second of every repetition of every cell.
#[derive(Default)]
pub(super) struct Figures(pub(super) BTreeMap<Cell, Vec<f64>>);

impl Figures {
    /// Adds a result of `blkmq bench` for an experiment: the `blkmq` object of a job names its run, and each run
    /// carries the rates of its repetitions.
    ///
    /// # Errors
    /// If a job failed, lacks a field, or did no I/O.
    pub(super) fn add_ours(&mut self, workload: Workload, report: &Value) -> Result<()> {
        let mut seen = Vec::new();
        for job in jobs(report)? {
            check(job)?;
            let ours = &job["blkmq"];
            // All jobs of a run repeat the run's rates.
            if seen.contains(&&ours["run"]) {
                continue;
            }
            seen.push(&ours["run"]);
            let text = |key: &str| ours[key].as_str().ok_or(format!("a job without blkmq.{key}"));
            let threads = ours["threads"].as_u64().ok_or("a job without blkmq.threads")?;
            let threads = u32::try_from(threads)?;
            let cell = Cell::new(workload, text("scheduler")?, text("access")?, threads);
            let rates = ours["repetitions_iops"].as_array().filter(|rates| !rates.is_empty());
            for rate in rates.ok_or("a job without blkmq.repetitions_iops")? {
                self.add(&cell, rate.as_f64().unwrap_or(0.0))?;
            }
        }
        Ok(())
    }

    /// Adds a result of fio: one run, with the sum of its jobs' rates.
    ///
    /// # Errors
    /// If a job failed or did no I/O.
    pub(super) fn add_fio(&mut self, cell: &Cell, report: &Value) -> Result<()> {
        let mut rate = 0.0;
        for job in jobs(report)? {
            check(job)?;
            for direction in ["read", "write", "trim"] {
                rate += job[direction]["iops"].as_f64().unwrap_or(0.0);
            }
        }
        self.add(cell, rate)
    }

    fn add(&mut self, cell: &Cell, rate: f64) -> Result<()> {
        if rate <= 0.0 {
            return Err(format!("{cell:?} did no I/O").into());
        }
        self.0.entry(cell.clone()).or_default().push(rate);
        Ok(())
    }

    /// The median rate of a cell, if it was measured.
    pub(super) fn median(&self, cell: &Cell) -> Option<f64> {
        median(self.0.get(cell)?)
    }

    /// The difference between the fastest and the slowest repetition of a cell, relative to its median.
    pub(super) fn spread(&self, cell: &Cell) -> Option<f64> {
        let rates = self.0.get(cell)?;
        let max = rates.iter().copied().fold(f64::MIN, f64::max);
        let min = rates.iter().copied().fold(f64::MAX, f64::min);
        Some((max - min) / median(rates)?)
    }
}

/// The jobs of a report, of which there is at least one.
///
/// # Errors
/// If there is none.
pub(super) fn jobs(report: &Value) -> Result<&Vec<Value>> {
    let jobs = report["jobs"].as_array().filter(|jobs| !jobs.is_empty());
    Ok(jobs.ok_or("a report without jobs")?)
}

/// Checks that a job succeeded.
///
/// # Errors
/// If it did not.
pub(super) fn check(job: &Value) -> Result<()> {
    match job["error"].as_i64() {
        Some(0) => Ok(()),
        error => Err(format!("job {} ended with error {error:?}", job["jobname"]).into()),
    }
}

/// The middle value, or the mean of the two in the middle.
pub(super) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = sorted[(sorted.len() - 1) / 2];
    Some(f64::midpoint(lower, upper))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn job(run: u32, access: &str, rates: &[f64], error: i32) -> Value {
        json!({
            "error": error, "blkmq": { "run": run, "scheduler": "mq-deadline", "access": access, "threads": 2,
                       "repetitions_iops": rates },
        })
    }

    #[test]
    fn jobs_of_one_run_count_once() {
        let rates = [3.0, 1.0, 2.0];
        let report = json!({ "jobs": [job(0, "spin", &rates, 0), job(0, "spin", &rates, 0),
                                      job(1, "mutex", &[7.0], 0)] });
        let mut figures = Figures::default();
        figures.add_ours(Workload::Plugs, &report).unwrap();
        let cell = |access| Cell::new(Workload::Plugs, "mq-deadline", access, 2);
        assert_eq!(figures.median(&cell("spin")), Some(2.0));
        assert_eq!(figures.spread(&cell("spin")), Some(1.0));
        assert_eq!(figures.0[&cell("spin")].len(), 3);
        assert_eq!(figures.median(&cell("mutex")), Some(7.0));
        assert_eq!(figures.median(&cell("combining")), None);
    }

    #[test]
    fn a_failed_or_idle_job_is_an_error() {
        let add = |report: &Value| Figures::default().add_ours(Workload::Plugs, report);
        let report = |job: Value| json!({ "jobs": [job] });
        assert!(add(&report(job(0, "spin", &[1.0], 5))).is_err());
        assert!(add(&report(job(0, "spin", &[0.0], 0))).is_err());
        assert!(add(&report(job(0, "spin", &[], 0))).is_err());
        assert!(add(&json!({ "jobs": [] })).is_err());
    }

    #[test]
    fn fio_is_summed_over_its_jobs() {
        let report = json!({ "jobs": [
            { "error": 0, "read": { "iops": 1.5 }, "write": { "iops": 0.0 } },
            { "error": 0, "read": { "iops": 2.0 } },
        ]});
        let mut figures = Figures::default();
        figures.add_fio(&Cell::fio_beside("none", Fio::Plain), &report).unwrap();
        assert_eq!(figures.median(&Cell::fio_beside("none", Fio::Plain)), Some(3.5));
    }

    #[test]
    fn the_median_of_an_even_number_is_in_between() {
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }
}
