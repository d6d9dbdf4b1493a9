//! The tables of a comparison, with names and formats shared by the terminal and the page: the columns that distinguish
//! its runs; the figures of each job, since totals hide a starved one; those of the groups of a run; and behind which
//! groups a group waited.
//!
//! Jobs of the same name, as created by `numjobs`, are combined.

use super::job::{self, JobResult, Latency, Percentile, ratio};
use super::model::{Groups, Report, Run, Waited};
use super::wording::{Varying, bandwidth, bytes, count, nanos, percent, scheduler};
use blkmq_lab::workload::Direction;
use blkmq_terminal::paper::Align;
use std::cmp::Reverse;

/// One column.
pub struct Column {
    /// Its heading.
    pub name: &'static str,
    /// The meaning, a sentence for a first-time reader.
    pub help: &'static str,
    /// Words or figures.
    pub align: Align,
    cell: fn(&Run, &Run) -> String,
}

impl Column {
    /// The cell of `run`, in a report whose first run is `first`.
    #[must_use]
    pub fn cell(&self, run: &Run, first: &Run) -> String {
        (self.cell)(run, first)
    }
}

const fn words(name: &'static str, help: &'static str, cell: fn(&Run, &Run) -> String) -> Column {
    Column { name, help, align: Align::Left, cell }
}

const fn figures(name: &'static str, help: &'static str, cell: fn(&Run, &Run) -> String) -> Column {
    Column { name, help, align: Align::Right, cell }
}

/// The columns that distinguish the runs of this report: figures that do not vary or were not measured are omitted.
#[must_use]
pub fn columns(report: &Report) -> Vec<Column> {
    let varying = Varying::of(report);
    let scopes = report.runs.windows(2).any(|pair| pair[0].scope != pair[1].scope);
    let merged = report.runs.iter().any(|run| run.counters.merges.total() > 0);
    let verified = report.runs.iter().any(|run| verified(run).is_some());
    let locked = report.runs.iter().any(|run| run.waited_share().is_some());
    let before = [
        (
            true,
            words("scheduler", "and those of its attributes that were set", |r, _| scheduler(r)),
        ),
        (true, words("access", "how threads reach the elevator", |r, _| r.access.clone())),
        (scopes, words("scope", "what one elevator serves", |r, _| r.scope.clone())),
        (varying.device, words("device", "what the I/O went to", |r, _| r.device.text.clone())),
        (true, figures("threads", "that submitted", |r, _| r.threads.to_string())),
        (true, figures("IOPS", "I/Os per second of all threads", |r, _| count(r.iops()))),
        (true, figures("bandwidth", "bytes per second", |r, _| bandwidth(r.bytes_per_second()))),
    ];
    let after = [
        (
            true,
            figures("CPU us/IO", "CPU time of all threads per I/O, in microseconds", |r, _| cpu(r)),
        ),
        (
            merged,
            figures("merged", "I/Os that needed no request of their own", |r, _| {
                percent(r.counters.merged_share())
            }),
        ),
        (
            locked,
            figures("waiting", "thread time spent waiting for the elevator's lock", |r, _| {
                r.waited_share().map_or_else(|| "-".into(), percent)
            }),
        ),
        (
            true,
            figures("rq/batch", "requests per batch that left the elevator", |r, _| {
                format!("{:.1}", r.counters.batch_mean)
            }),
        ),
        (
            true,
            figures("vs first", "IOPS relative to the first row", |r, first| {
                format!("{:.2}x", ratio(r.iops(), first.iops()))
            }),
        ),
        (
            verified,
            figures("verified", "bytes compared, or blocks that were wrong", |r, _| verify(r)),
        ),
    ];
    let shown = |(shown, column): (bool, Column)| shown.then_some(column);
    let mut columns = Vec::from_iter(before.into_iter().filter_map(shown));
    columns.extend(latencies(report));
    columns.extend(after.into_iter().filter_map(shown));
    columns
}

/// Returns percentiles of latency for each kind of I/O that some workload does; none if nothing was measured.
fn latencies(report: &Report) -> Vec<Column> {
    const P50: &str = "half of them took no longer, from the push to the completion";
    const P99: &str = "99 % of them took no longer, from the push to the completion";
    use Direction::{Read, Trim, Write};
    let is_used = |direction: Direction| report.runs.iter().any(|run| run.does(direction));
    let used = Direction::ALL.into_iter().filter(|direction| is_used(*direction)).count();
    if report.runs.iter().all(|run| run.latency().is_none()) {
        return vec![];
    }
    if !report.runs.iter().any(Run::has_clat) {
        return vec![
            figures("lat p50", "half of the I/Os took no longer", |r, _| all(r, Percentile::P50)),
            figures("lat p99", "99 % of the I/Os took no longer", |r, _| all(r, Percentile::P99)),
        ];
    }
    if used < 2 {
        return vec![
            figures("clat p50", P50, |r, _| all(r, Percentile::P50)),
            figures("clat p99", P99, |r, _| all(r, Percentile::P99)),
        ];
    }
    let each = [
        (Read, figures("read clat p50", P50, |r, _| one(r, Read, Percentile::P50))),
        (Read, figures("read clat p99", P99, |r, _| one(r, Read, Percentile::P99))),
        (Write, figures("write clat p50", P50, |r, _| one(r, Write, Percentile::P50))),
        (Write, figures("write clat p99", P99, |r, _| one(r, Write, Percentile::P99))),
        (Trim, figures("trim clat p50", P50, |r, _| one(r, Trim, Percentile::P50))),
        (Trim, figures("trim clat p99", P99, |r, _| one(r, Trim, Percentile::P99))),
    ];
    let shown = each.into_iter().filter(|(direction, _)| is_used(*direction));
    shown.map(|(_, column)| column).collect()
}

/// A percentile of all I/Os.
fn all(run: &Run, percentile: Percentile) -> String {
    shown(run.latency(), percentile)
}

/// A percentile of the I/Os of one kind.
fn one(run: &Run, direction: Direction, percentile: Percentile) -> String {
    shown(run.latency_of(direction), percentile)
}

fn shown(latency: Option<Latency>, percentile: Percentile) -> String {
    let latency = latency.filter(|latency| latency.0.count() > 0);
    latency.map_or_else(|| "-".into(), |l| nanos(percentile.of(&l.0) as f64))
}

/// Returns the verified bytes and errors of all jobs of a run; `None` if no job verified.
fn verified(run: &Run) -> Option<(u64, u64)> {
    let found = run.jobs.iter().filter_map(|job| job.verify.as_ref());
    found.map(|found| (found.bytes, found.errors)).reduce(|a, b| (a.0 + b.0, a.1 + b.1))
}

fn verify(run: &Run) -> String {
    match verified(run) {
        None => "-".into(),
        Some((compared, 0)) => bytes(compared as f64),
        Some((_, errors)) => format!("{errors} WRONG"),
    }
}

fn cpu(run: &Run) -> String {
    run.cpu_ns_per_io().map_or_else(|| "-".into(), |ns| format!("{:.3}", ns / 1e3))
}

/// The most jobs that a table has.
const MOST_JOBS: usize = 12;

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
fn job_names(report: &Report) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for job in report.runs.iter().flat_map(|run| &run.jobs) {
        if !names.contains(&job.name.as_str()) {
            names.push(&job.name);
        }
    }
    names
}

/// The I/Os of the first [`MOST_JOBS`] jobs: by job, then by kind, then by run. Empty if there is only one job.
#[must_use]
pub fn served(report: &Report) -> Vec<Served<'_>> {
    let names = job_names(report);
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
    names.into_iter().take(MOST_JOBS).flat_map(of_job).collect()
}

/// The columns of the table: a name, its meaning, and whether it contains words or figures.
pub const JOB_COLUMNS: [(&str, &str, Align); 8] = [
    ("job", "the jobs of one name", Align::Left),
    ("I/O", "reads, writes, trims or flushes", Align::Left),
    ("run", "scheduler and what else differs", Align::Left),
    ("IOPS", "I/Os per second", Align::Right),
    ("bandwidth", "bytes per second", Align::Right),
    ("clat p50", "half of them took no longer", Align::Right),
    ("clat p99", "99 % of them took no longer", Align::Right),
    ("longest", "the slowest one", Align::Right),
];

/// A row for each of [`served`], with a cell for each of the [`JOB_COLUMNS`].
#[must_use]
pub fn job_rows(report: &Report) -> Vec<Vec<String>> {
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
pub fn jobs_left_out(report: &Report) -> Option<String> {
    let all = job_names(report).len();
    (all > MOST_JOBS).then(|| format!("The first {MOST_JOBS} of {all} jobs; JSON has them all."))
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

fn transfers(of: &job::Direction) -> Amounts<'_> {
    (of.total_ios, Some(of.io_bytes), of.runtime_ns, of.clat.as_ref().or(of.lat.as_ref()))
}

impl Kind {
    /// The I/Os of this kind by all jobs of that name in `run`.
    fn of<'a>(&self, name: &'a str, run: &'a Run) -> Served<'a> {
        let (mut iops, mut bytes, mut latency) = (0.0, None, None);
        for job in run.jobs.iter().filter(|job| job.name == name) {
            let (ios, moved, ns, times) = (self.of)(job);
            let rate = |n: u64| ratio(n as f64 * 1e9, ns as f64);
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

/// A name, its meaning, and whether the column contains words or figures.
pub type Heading = (&'static str, &'static str, Align);

/// The columns; times only if they were counted.
#[must_use]
pub fn group_columns(groups: &Groups) -> Vec<Heading> {
    let mut columns = vec![
        ("group", "a group has what those below it have", Align::Left),
        ("weight", "among its siblings", Align::Right),
        ("due", "share of bytes by weight, if all were always busy", Align::Right),
        ("share", "of all bytes moved while measuring", Align::Right),
        ("bandwidth", "bytes per second", Align::Right),
        ("I/Os", "completed while measuring", Align::Right),
    ];
    if is_timed(groups) {
        columns.extend([
            (
                "wait",
                "that a request, once it had a slot, waited in the scheduler, on average",
                Align::Right,
            ),
            ("service", "that a request was at the device, on average", Align::Right),
        ]);
    }
    columns
}

fn is_timed(groups: &Groups) -> bool {
    (0..groups.all.len()).any(|at| groups.mean(at, "io_wait_time").is_some())
}

/// A row for each group of `run`, with a cell for each of its [`columns`].
#[must_use]
pub fn group_rows(run: &Run) -> Vec<Vec<String>> {
    let groups = &run.groups;
    let timed = is_timed(groups);
    let unknown = || "-".to_owned();
    let row = |at: usize| {
        let group = &groups.all[at];
        let rate = ratio(groups.bytes(at) as f64 * 1e9, run.elapsed_ns as f64);
        let mut cells = vec![
            format!("{}{}", "  ".repeat(groups.depth(at)), group.name),
            group.weight.map_or_else(unknown, |weight| weight.to_string()),
            groups.due(at).map_or_else(unknown, percent),
            percent(groups.share(at)),
            bandwidth(rate),
            count(groups.ios(at) as f64),
        ];
        if timed {
            let mean = |name| groups.mean(at, name).map_or_else(unknown, nanos);
            cells.extend([mean("io_wait_time"), mean("io_service_time")]);
        }
        cells
    };
    (0..groups.all.len()).map(row).collect()
}

/// The maximum number of groups with a column.
const MOST_GROUPS: usize = 8;

/// A row for each group that waited.
#[derive(Debug, PartialEq, Eq)]
pub struct Waits {
    /// A name, its meaning, and whether the column contains words or figures.
    pub columns: Vec<(String, &'static str, Align)>,
    /// A cell for each column.
    pub rows: Vec<Vec<String>>,
}

/// The group behind which time passed; `None` while the device was idle.
type Behind = Option<usize>;

/// The table, if times were counted, at least two groups did I/O, and one of them waited.
#[must_use]
pub fn waits(groups: &Groups) -> Option<Waits> {
    let waiting = || groups.all.iter().filter(|group| !group.waited.is_empty());
    if groups.all.iter().filter(|group| group.ios > 0).count() < 2 || waiting().next().is_none() {
        return None;
    }
    let behind = most_waited_for(groups);
    let mut columns = vec![
        ("group".to_owned(), "that waited, without those below it", Align::Left),
        ("waited".to_owned(), "time in which at least one I/O of it waited", Align::Right),
    ];
    for group in &behind[..behind.len().min(MOST_GROUPS)] {
        let name = group.map_or("(nothing)", |at| &groups.all[at].name);
        columns.push((name.to_owned(), "part of that time behind its requests", Align::Right));
    }
    if behind.len() > MOST_GROUPS {
        columns.push(("(others)".to_owned(), "part of that time behind theirs", Align::Right));
    }
    let rows = waiting().map(|group| {
        let all: u64 = group.waited.iter().map(|waited| waited.ns).sum();
        let part = |of: &[Behind]| {
            let some = group.waited.iter().filter(|waited| of.contains(&waited.behind));
            percent(ratio(some.map(|waited| waited.ns).sum::<u64>() as f64, all as f64))
        };
        let (shown, others) = behind.split_at(behind.len().min(MOST_GROUPS));
        let mut cells = vec![group.name.clone(), nanos(all as f64)];
        cells.extend(shown.iter().map(|one| part(&[*one])));
        cells.extend((!others.is_empty()).then(|| part(others)));
        cells
    });
    let rows = rows.collect();
    Some(Waits { columns, rows })
}

/// The groups behind which any group waited, longest times first.
fn most_waited_for(groups: &Groups) -> Vec<Behind> {
    let mut times = vec![0; groups.all.len() + 1];
    let place = |behind: Behind| behind.map_or(groups.all.len(), |at| at);
    for Waited { behind, ns } in groups.all.iter().flat_map(|group| &group.waited) {
        times[place(*behind)] += ns;
    }
    let all = (0..groups.all.len()).map(Some).chain([None]);
    let mut behind: Vec<Behind> = all.filter(|group| times[place(*group)] > 0).collect();
    behind.sort_by_key(|group| Reverse(times[place(*group)]));
    behind
}

#[cfg(test)]
mod tests {
    use super::super::model::GroupResult;
    use super::super::sample;
    use super::*;

    #[test]
    fn one_job_has_no_table() {
        assert!(job_rows(&sample::comparison()).is_empty());
    }

    #[test]
    fn a_job_has_a_row_for_each_kind_of_io_and_each_run() {
        let report = sample::starved();
        let rows = job_rows(&report);
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
        assert!(rows.iter().all(|row| row.len() == JOB_COLUMNS.len()));
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
        let rows = job_rows(&report);
        let last = rows.last().expect("rows");
        assert_eq!(last[0], "job9");
        let says = jobs_left_out(&report).expect("ten jobs are left out");
        assert_eq!(says, "The first 12 of 22 jobs; JSON has them all.");
        assert_eq!(jobs_left_out(&sample::starved()), None);
    }

    fn cells(rows: &[&[&str]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect()
    }

    #[test]
    fn parts_are_of_the_time_of_the_group_that_waited() {
        let table = waits(&sample::groups()).expect("groups waited");
        let names: Vec<_> = table.columns.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, ["group", "waited", "shop", "(nothing)", "backup"]);
        let expected = cells(&[
            &["shop", "8.00 s", "75.0 %", "25.0 %", "0.0 %"],
            &["backup", "5.00 s", "80.0 %", "0.0 %", "20.0 %"],
        ]);
        assert_eq!(table.rows, expected);
    }

    #[test]
    fn many_groups_share_a_column() {
        let mut groups = Groups::default();
        let group = |at: u64| GroupResult {
            name: format!("g{at}"),
            ios: 1,
            waited: vec![Waited { behind: Some(0), ns: 10 }],
            ..GroupResult::default()
        };
        groups.all = (0..20).map(group).collect();
        groups.all[0].waited = (0..20).map(|at| Waited { behind: Some(at), ns: 10 }).collect();
        let table = waits(&groups).expect("groups waited");
        assert_eq!(table.columns.len(), 2 + MOST_GROUPS + 1);
        assert_eq!((table.rows[0][2].as_str(), table.rows[0][10].as_str()), ("5.0 %", "60.0 %"));
        assert_eq!((table.rows[1][2].as_str(), table.rows[1][10].as_str()), ("100.0 %", "0.0 %"));
    }

    #[test]
    fn a_group_alone_has_no_table() {
        let mut groups = sample::groups();
        groups.all.iter_mut().skip(1).for_each(|group| group.ios = 0);
        assert_eq!(waits(&groups), None);
        let mut groups = sample::groups();
        groups.all.iter_mut().for_each(|group| group.waited.clear());
        assert_eq!(waits(&groups), None);
    }
}
