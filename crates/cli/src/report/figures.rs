//! The tables of a comparison, with names and formats shared by the terminal and the page: the columns that distinguish
//! its runs; the figures of each job, since totals hide a starved one; those of the groups of a run; and behind which
//! groups a group waited.
//!
//! Jobs of the same name, as created by `numjobs`, are combined.

use super::job::{self, JobResult, Latency, Percentile, ratio};
use super::model::{GroupResult, Groups, Report, Run, Waited};
use super::wording::{Varying, bandwidth, bytes, count, distinct, nanos, percent, scheduler};
use blkmq_terminal::paper::{Align, TextTable};
use std::cmp::Reverse;

/// A table for the terminal and the page, with a row for each of its items.
#[derive(Debug)]
pub struct Table<T> {
    items: Vec<T>,
    /// A name, its meaning as a sentence for a first-time reader, and whether the column contains words or figures.
    pub columns: Vec<(String, &'static str, Align)>,
    /// A cell for each column.
    pub rows: Vec<Vec<String>>,
}

impl<T> Table<T> {
    pub(super) fn of(items: Vec<T>) -> Self {
        Self { columns: vec![], rows: vec![vec![]; items.len()], items }
    }

    /// Adds a column of words.
    pub(super) fn words(&mut self, name: &str, help: &'static str, cell: impl Fn(&T) -> String) {
        self.columns.push((name.to_owned(), help, Align::Left));
        let rows = self.rows.iter_mut().zip(&self.items);
        rows.for_each(|(row, item)| row.push(cell(item)));
    }

    /// Adds a column of figures.
    pub(super) fn figures(&mut self, name: &str, help: &'static str, cell: impl Fn(&T) -> String) {
        self.words(name, help, cell);
        self.columns.last_mut().expect("it was just added").2 = Align::Right;
    }
}

/// A table for the terminal with these columns and rows.
pub fn text_table<N: AsRef<str>>(columns: &[(N, &str, Align)], rows: &[Vec<String>]) -> TextTable {
    let columns = columns.iter().map(|(name, _, align)| (name.as_ref().to_owned(), *align));
    let mut table = TextTable::new(columns.collect());
    rows.iter().for_each(|row| table.row(row));
    table
}

/// The columns that distinguish the runs of this report: figures that do not vary or were not measured are omitted.
#[must_use]
pub fn comparison(report: &Report) -> Table<&Run> {
    let (runs, varying) = (&report.runs, Varying::of(report));
    let mut table = Table::of(runs.iter().collect());
    table.words("scheduler", "and those of its attributes that were set", |run| scheduler(run));
    table.words("access", "how threads reach the elevator", |run| run.access.clone());
    if runs.windows(2).any(|pair| pair[0].scope != pair[1].scope) {
        table.words("scope", "what one elevator serves", |run| run.scope.clone());
    }
    if varying.device {
        table.words("device", "what the I/O went to", |run| run.device.text.clone());
    }
    table.figures("threads", "that submitted", |run| run.threads.to_string());
    table.figures("IOPS", "I/Os per second of all threads", |run| count(run.iops()));
    table.figures("bandwidth", "bytes per second", |run| bandwidth(run.bytes_per_second()));
    latencies(&mut table, report);
    table.figures("CPU us/IO", "CPU time of all threads per I/O, in microseconds", |run| {
        or_dash(run.cpu_ns_per_io(), |ns| format!("{:.3}", ns / 1e3))
    });
    if runs.iter().any(|run| run.counters.merges.total() > 0) {
        table.figures("merged", "I/Os that needed no request of their own", |run| {
            percent(run.counters.merged_share())
        });
    }
    if runs.iter().any(|run| run.waited_share().is_some()) {
        table.figures("waiting", "thread time spent waiting for the elevator's lock", |run| {
            or_dash(run.waited_share(), percent)
        });
    }
    table.figures("rq/batch", "requests per batch that left the elevator", |run| {
        format!("{:.1}", run.counters.batch_mean)
    });
    table.figures("vs first", "IOPS relative to the first row", |run| {
        format!("{:.2}x", ratio(run.iops(), runs[0].iops()))
    });
    if runs.iter().any(|run| verified(run).is_some()) {
        table.figures("verified", "bytes compared, or blocks that were wrong", |run| {
            or_dash(verified(run), |(compared, errors)| match errors {
                0 => bytes(compared as f64),
                errors => format!("{errors} WRONG"),
            })
        });
    }
    table
}

/// Adds percentiles of latency for each kind of I/O that some workload does; none if nothing was measured.
fn latencies(table: &mut Table<&Run>, report: &Report) {
    let runs = &report.runs;
    let has_clat = runs.iter().any(Run::has_clat);
    if !has_clat && runs.iter().all(|run| run.latency().is_none()) {
        return;
    }
    let kinds = if has_clat { report.kinds() } else { vec![None] };
    let percentiles = if has_clat {
        [
            ("clat p50", "half of them took no longer, from the push to the completion"),
            ("clat p99", "99 % of them took no longer, from the push to the completion"),
        ]
    } else {
        [
            ("lat p50", "half of the I/Os took no longer"),
            ("lat p99", "99 % of the I/Os took no longer"),
        ]
    };
    for kind in kinds {
        let percentiles = percentiles.into_iter().zip([Percentile::P50, Percentile::P99]);
        for ((name, help), percentile) in percentiles {
            let name =
                kind.map_or_else(|| name.to_owned(), |kind| format!("{} {name}", kind.name()));
            table.figures(&name, help, |run| {
                let latency = run.latency_of_kind(kind).filter(|it| it.0.count() > 0);
                or_dash(latency, |it| nanos(percentile.of(&it.0) as f64))
            });
        }
    }
}

fn or_dash<T>(figure: Option<T>, show: impl FnOnce(T) -> String) -> String {
    figure.map_or_else(|| "-".into(), show)
}

/// Returns the verified bytes and errors of all jobs of a run; `None` if no job verified.
fn verified(run: &Run) -> Option<(u64, u64)> {
    let found = run.jobs.iter().filter_map(|job| job.verify.as_ref());
    found.map(|found| (found.bytes, found.errors)).reduce(|a, b| (a.0 + b.0, a.1 + b.1))
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
fn job_names(report: &Report) -> Vec<&str> {
    distinct(report.runs.iter().flat_map(|run| &run.jobs).map(|job| job.name.as_str()))
}

/// The I/Os of the first [`MOST_JOBS`] jobs: by job, then by kind, then by run. Empty if there is only one job.
#[must_use]
pub fn served(report: &Report) -> Vec<Served<'_>> {
    let names = job_names(report);
    if names.len() < 2 {
        return vec![];
    }
    let of_job = |job| {
        KINDS.into_iter().flat_map(move |kind| {
            let rows = Vec::from_iter(report.runs.iter().map(|run| all_of(kind, job, run)));
            let is_used = rows.iter().any(|row| row.iops > 0.0);
            if is_used { rows } else { vec![] }
        })
    };
    names.into_iter().take(MOST_JOBS).flat_map(of_job).collect()
}

/// A table of [`served`].
#[must_use]
pub fn jobs(report: &Report) -> Table<Served<'_>> {
    let varying = Varying::of(report);
    let time = |ns: Option<u64>| or_dash(ns, |ns| nanos(ns as f64));
    let mut table = Table::of(served(report));
    table.words("job", "the jobs of one name", |it| it.job.to_owned());
    table.words("I/O", "reads, writes, trims or flushes", |it| it.kind.to_owned());
    table.words("run", "scheduler and what else differs", |it| varying.run_name(it.run));
    table.figures("IOPS", "I/Os per second", |it| count(it.iops));
    table.figures("bandwidth", "bytes per second", |it| or_dash(it.bytes, bandwidth));
    let [half, most] = [Percentile::P50, Percentile::P99];
    table.figures("clat p50", "half of them took no longer", |it| time(it.percentile(half)));
    table.figures("clat p99", "99 % of them took no longer", |it| time(it.percentile(most)));
    table.figures("longest", "the slowest one", |it| {
        time(it.latency.as_ref().filter(|it| it.0.count() > 0).map(|it| it.0.max()))
    });
    table
}

/// The sentence for jobs that the table leaves out.
#[must_use]
pub fn jobs_left_out(report: &Report) -> Option<String> {
    let all = job_names(report).len();
    (all > MOST_JOBS).then(|| format!("The first {MOST_JOBS} of {all} jobs; JSON has them all."))
}

/// The I/Os of one kind of a job, their bytes (`None` for flushes), the time in nanoseconds, and their latency.
type Amounts<'a> = (u64, Option<u64>, u64, Option<&'a Latency>);

/// A kind of I/O, and its amounts in a job.
type Kind = (&'static str, fn(&JobResult) -> Amounts<'_>);

const KINDS: [Kind; 4] = [
    ("reads", |job| if job.reads() { transfers(&job.read) } else { (0, Some(0), 0, None) }),
    ("writes", |job| transfers(&job.write)),
    ("trims", |job| transfers(&job.trim)),
    ("flushes", |job| (job.sync.total_ios, None, job.runtime_ns, job.sync.lat.as_ref())),
];

fn transfers(of: &job::Direction) -> Amounts<'_> {
    (of.total_ios, Some(of.io_bytes), of.runtime_ns, of.clat.as_ref().or(of.lat.as_ref()))
}

/// The I/Os of one kind by all jobs of that name in `run`.
fn all_of<'a>((kind, amounts): Kind, job: &'a str, run: &'a Run) -> Served<'a> {
    let (mut iops, mut bytes, mut latency) = (0.0, None, None);
    for job in run.jobs.iter().filter(|it| it.name == job) {
        let (ios, moved, ns, times) = amounts(job);
        let rate = |n: u64| ratio(n as f64 * 1e9, ns as f64);
        iops += rate(ios);
        if let Some(moved) = moved {
            *bytes.get_or_insert(0.0) += rate(moved);
        }
        if let Some(times) = times {
            latency.get_or_insert_with(Latency::default).0.merge(&times.0);
        }
    }
    Served { job, kind, run, iops, bytes, latency }
}

/// The table of the groups of `run`, with times only if they were counted.
#[must_use]
pub fn groups(run: &Run) -> Table<usize> {
    let groups = &run.groups;
    let mut table = Table::of((0..groups.all.len()).collect());
    table.words("group", "a group has what those below it have", |at| {
        format!("{}{}", "  ".repeat(groups.depth(*at)), groups.all[*at].name)
    });
    table.figures("weight", "among its siblings", |at| {
        or_dash(groups.all[*at].weight, |weight| weight.to_string())
    });
    table.figures("due", "share of bytes by weight, if all were always busy", |at| {
        or_dash(groups.due(*at), percent)
    });
    table.figures("share", "of all bytes moved while measuring", |at| percent(groups.share(*at)));
    table.figures("bandwidth", "bytes per second", |at| {
        bandwidth(ratio(groups.bytes(*at) as f64 * 1e9, run.elapsed_ns as f64))
    });
    table.figures("I/Os", "completed while measuring", |at| count(groups.ios(*at) as f64));
    if table.items.iter().any(|at| groups.mean(*at, "io_wait_time").is_some()) {
        let wait = "that a request, once it had a slot, waited in the scheduler, on average";
        let service = "that a request was at the device, on average";
        table.figures("wait", wait, |at| or_dash(groups.mean(*at, "io_wait_time"), nanos));
        table.figures("service", service, |at| or_dash(groups.mean(*at, "io_service_time"), nanos));
    }
    table
}

/// The maximum number of groups with a column.
const MOST_GROUPS: usize = 8;

/// The group behind which time passed; `None` while the device was idle.
type Behind = Option<usize>;

/// The table of the groups that waited, if times were counted, at least two groups did I/O, and one of them waited.
#[must_use]
pub fn waits(groups: &Groups) -> Option<Table<&GroupResult>> {
    let busy = groups.all.iter().filter(|group| group.ios > 0).count();
    let waiting = Vec::from_iter(groups.all.iter().filter(|group| !group.waited.is_empty()));
    if busy < 2 || waiting.is_empty() {
        return None;
    }
    let behind = most_waited_for(groups);
    let all = |group: &GroupResult| group.waited.iter().map(|waited| waited.ns).sum::<u64>() as f64;
    let part = |group: &GroupResult, of: &[Behind]| {
        let some = group.waited.iter().filter(|waited| of.contains(&waited.behind));
        percent(ratio(some.map(|waited| waited.ns).sum::<u64>() as f64, all(group)))
    };
    let mut table = Table::of(waiting);
    table.words("group", "that waited, without those below it", |group| group.name.clone());
    let waited = "time in which at least one I/O of it waited";
    table.figures("waited", waited, |group| nanos(all(group)));
    let (shown, others) = behind.split_at(behind.len().min(MOST_GROUPS));
    for one in shown {
        let name = one.map_or("(nothing)", |at| &groups.all[at].name);
        table.figures(name, "part of that time behind its requests", |group| part(group, &[*one]));
    }
    if !others.is_empty() {
        table.figures("(others)", "part of that time behind theirs", |group| part(group, others));
    }
    Some(table)
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
    use super::super::sample;
    use super::*;

    #[test]
    fn one_job_has_no_table() {
        assert!(served(&sample::comparison()).is_empty());
    }

    #[test]
    fn a_job_has_a_row_for_each_kind_of_io_and_each_run() {
        let report = sample::starved();
        let Table { rows, columns, .. } = jobs(&report);
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
        assert!(rows.iter().all(|row| row.len() == columns.len()));
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
        let rows = jobs(&report).rows;
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
        let groups = sample::groups();
        let table = waits(&groups).expect("groups waited");
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
        assert!(waits(&groups).is_none());
        let mut groups = sample::groups();
        groups.all.iter_mut().for_each(|group| group.waited.clear());
        assert!(waits(&groups).is_none());
    }
}
