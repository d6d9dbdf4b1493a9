//! The figures of each job in each run of a comparison, with names and formats shared by the terminal and the page.
//!
//! Totals hide a starved job. Jobs of the same name, as created by `numjobs`, are combined.

use super::job::{Direction, JobResult, Latency};
use super::label::Varying;
use super::model::{Report, Run};
use super::number::{bandwidth, count, nanos};
use super::percentile::Percentile;
use blkmq_terminal::text_table::Align;

/// The most jobs that a table has.
pub const MOST: usize = 12;

/// The I/Os of one kind that one job did in one run.
#[derive(Debug)]
pub struct Served<'a> {
    /// The job's name.
    pub job: &'a str,
    /// `reads`, `writes`, `trims` or `flushes`.
    pub kind: &'static str,
    /// The run.
    pub run: &'a Run,
    /// I/Os per second.
    pub iops: f64,
    /// Bytes per second; `None` for flushes.
    pub bytes: Option<f64>,
    /// The completion latency, if it was measured.
    pub latency: Option<Latency>,
}

impl Served<'_> {
    /// A percentile of the completion latency in nanoseconds.
    #[must_use]
    pub fn percentile(&self, percentile: Percentile) -> Option<u64> {
        let latency = self.latency.as_ref().filter(|latency| latency.0.count() > 0)?;
        Some(percentile.of(&latency.0))
    }
}

/// The names of the jobs, in the order of the first run.
#[must_use]
pub fn names(report: &Report) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for job in report.runs.iter().flat_map(|run| &run.jobs) {
        if !names.contains(&job.name.as_str()) {
            names.push(&job.name);
        }
    }
    names
}

/// The I/Os of the first [`MOST`] jobs: by job, then by kind, then by run. Empty if there is only one job.
#[must_use]
pub fn served(report: &Report) -> Vec<Served<'_>> {
    let names = names(report);
    if names.len() < 2 {
        return vec![];
    }
    let of_job = |job| {
        KINDS.iter().flat_map(move |kind| {
            let rows: Vec<_> = report.runs.iter().map(|run| kind.of(job, run)).collect();
            let is_used = rows.iter().any(|row| row.iops > 0.0);
            rows.into_iter().filter(move |_| is_used)
        })
    };
    names.into_iter().take(MOST).flat_map(of_job).collect()
}

/// The columns of the table: a name, its meaning, and whether it contains words or figures.
pub const COLUMNS: [(&str, &str, Align); 8] = [
    ("job", "the jobs of one name", Align::Left),
    ("I/O", "reads, writes, trims or flushes", Align::Left),
    ("run", "scheduler and what else differs", Align::Left),
    ("IOPS", "I/Os per second", Align::Right),
    ("bandwidth", "bytes per second", Align::Right),
    ("clat p50", "half of them took no longer", Align::Right),
    ("clat p99", "99 % of them took no longer", Align::Right),
    ("longest", "the slowest one", Align::Right),
];

/// A row for each of [`served`], with a cell for each of the [`COLUMNS`].
#[must_use]
pub fn rows(report: &Report) -> Vec<Vec<String>> {
    let varying = Varying::of(report);
    let time = |ns: Option<u64>| ns.map_or_else(|| "-".into(), |ns| nanos(ns as f64));
    let row = |it: Served<'_>| {
        let longest = it.latency.as_ref().filter(|l| l.0.count() > 0).map(|l| l.0.max());
        vec![
            it.job.to_owned(),
            it.kind.to_owned(),
            varying.run_name(it.run),
            count(it.iops),
            it.bytes.map_or_else(|| "-".into(), bandwidth),
            time(it.percentile(Percentile::P50)),
            time(it.percentile(Percentile::P99)),
            time(longest),
        ]
    };
    served(report).into_iter().map(row).collect()
}

/// The sentence for jobs that the table leaves out.
#[must_use]
pub fn left_out(report: &Report) -> Option<String> {
    let all = names(report).len();
    (all > MOST).then(|| format!("The first {MOST} of {all} jobs; JSON has them all."))
}

/// A kind of I/O.
struct Kind {
    name: &'static str,
    of: fn(&JobResult) -> Amounts<'_>,
}

/// The I/Os of one kind of a job, their bytes (`None` for flushes), the time in nanoseconds, and their latency.
type Amounts<'a> = (u64, Option<u64>, u64, Option<&'a Latency>);

const KINDS: [Kind; 4] = [
    Kind {
        name: "reads",
        of: |job| if job.reads() { transfers(&job.read) } else { (0, Some(0), 0, None) },
    },
    Kind { name: "writes", of: |job| transfers(&job.write) },
    Kind { name: "trims", of: |job| transfers(&job.trim) },
    Kind {
        name: "flushes",
        of: |job| (job.sync.total_ios, None, job.runtime_ns, job.sync.lat.as_ref()),
    },
];

fn transfers(of: &Direction) -> Amounts<'_> {
    (of.total_ios, Some(of.io_bytes), of.runtime_ns, of.clat.as_ref().or(of.lat.as_ref()))
}

impl Kind {
    /// The I/Os of this kind by all jobs of that name in `run`.
    fn of<'a>(&self, name: &'a str, run: &'a Run) -> Served<'a> {
        let (mut iops, mut bytes, mut latency) = (0.0, None, None);
        for job in run.jobs.iter().filter(|job| job.name == name) {
            let (ios, moved, ns, times) = (self.of)(job);
            let rate = |n: u64| super::ratio::ratio(n as f64 * 1e9, ns as f64);
            iops += rate(ios);
            if let Some(moved) = moved {
                *bytes.get_or_insert(0.0) += rate(moved);
            }
            if let Some(times) = times {
                latency.get_or_insert_with(Latency::default).0.merge(&times.0);
            }
        }
        Served { job: name, kind: self.name, run, iops, bytes, latency }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn one_job_has_no_table() {
        assert!(rows(&sample::comparison()).is_empty());
    }

    #[test]
    fn a_job_has_a_row_for_each_kind_of_io_and_each_run() {
        let report = sample::starved();
        let rows = rows(&report);
        let names: Vec<[&str; 3]> = rows.iter().map(|row| [0, 1, 2].map(|at| &*row[at])).collect();
        let expected = [
            ["db", "reads", "none"],
            ["db", "reads", "bfq"],
            ["db", "flushes", "none"],
            ["db", "flushes", "bfq"],
            ["scan", "reads", "none"],
            ["scan", "reads", "bfq"],
        ];
        assert_eq!(names, expected);
        assert_eq!(rows[0][3], "2.00");
        assert_eq!(rows[2][4], "-", "a flush moves no bytes");
        assert!(rows.iter().all(|row| row.len() == COLUMNS.len()));
    }

    #[test]
    fn jobs_of_one_name_are_added() {
        let mut report = sample::starved();
        let twin = report.runs[0].jobs[0].clone();
        report.runs[0].jobs.push(twin);
        let served = served(&report);
        assert!((served[0].iops - 4.0).abs() < 1e-9, "{served:?}");
        let twice = served[0].latency.as_ref().expect("measured").0.count();
        assert_eq!(twice, 2 * served[1].latency.as_ref().expect("measured").0.count());
    }

    #[test]
    fn a_table_has_an_end() {
        let mut report = sample::starved();
        let job = report.runs[0].jobs[1].clone();
        for n in 0..20 {
            report.runs[0].jobs.push(JobResult { name: format!("job{n}"), ..job.clone() });
        }
        let rows = rows(&report);
        let last = rows.last().expect("rows");
        assert_eq!(last[0], "job9");
        let says = left_out(&report).expect("ten jobs are left out");
        assert_eq!(says, "The first 12 of 22 jobs; JSON has them all.");
        assert_eq!(left_out(&sample::starved()), None);
    }
}
