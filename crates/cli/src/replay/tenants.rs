//! The result of a replay: a row for each tenant, device and scheduler, and on a page a latency curve for each.

use crate::report::html;
use crate::report::job::{JobResult, Latency};
use crate::report::model::{Report, Run};
use crate::report::number::nanos;
use crate::report::svg::distributions;
use crate::report::svg::look::Looks;
use blkmq_terminal::paper::Paper;
use blkmq_terminal::text_table::{Align, TextTable};

const COLUMNS: [(&str, Align); 10] = [
    ("device", Align::Left),
    ("tenant", Align::Left),
    ("scheduler", Align::Left),
    ("I/Os", Align::Right),
    ("read p50", Align::Right),
    ("p99", Align::Right),
    ("write p50", Align::Right),
    ("p99", Align::Right),
    ("late p99", Align::Right),
    ("longest", Align::Right),
];

/// The cells of all rows: by device, then by tenant, then by scheduler.
fn cells(report: &Report) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for (device, tenant) in pairs(report) {
        for run in report.runs.iter().filter(|run| run.device.text == device) {
            for job in run.jobs.iter().filter(|job| job.name == tenant) {
                rows.push(row(run, job));
            }
        }
    }
    rows
}

/// Devices and the tenants on them.
fn pairs(report: &Report) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    for run in &report.runs {
        for job in &run.jobs {
            let pair = (run.device.text.clone(), job.name.clone());
            if !pairs.contains(&pair) {
                pairs.push(pair);
            }
        }
    }
    pairs
}

fn row(run: &Run, job: &JobResult) -> Vec<String> {
    let at = |times: Option<&Latency>, percent: u64| match times.filter(|it| it.0.count() > 0) {
        Some(times) if percent == 100 => nanos(times.0.max() as f64),
        Some(times) => nanos(times.0.quantile(percent, 100) as f64),
        None => "-".into(),
    };
    let (reads, writes, late) =
        (job.read.lat.as_ref(), job.write.lat.as_ref(), job.lateness.as_ref());
    let ios = job.read.total_ios + job.write.total_ios + job.trim.total_ios + job.sync.total_ios;
    let scheduler = match run.scheduler_options.as_str() {
        "" => run.scheduler.clone(),
        options => format!("{}:{options}", run.scheduler),
    };
    let figures =
        [at(reads, 50), at(reads, 99), at(writes, 50), at(writes, 99), at(late, 99), at(late, 100)];
    let words = [run.device.text.clone(), job.name.clone(), scheduler, ios.to_string()];
    words.into_iter().chain(figures).collect()
}

/// Formats the rows as text of at most `width` columns, where that is possible.
pub fn text(report: &Report, width: usize) -> String {
    let mut out = Paper::new(width);
    let columns = COLUMNS.map(|(name, align)| (name.to_owned(), align)).to_vec();
    let mut table = TextTable::new(columns);
    cells(report).iter().for_each(|row| table.row(row));
    out.table(&table);
    out.finish()
}

/// The page.
pub fn page(name: &str, report: &Report) -> String {
    let title = format!("blkmq replay: {name}");
    html::page(&title, |m| {
        m.leaf("h1", &[], &title);
        m.leaf("p", &[("class", &"soft")], &report.command);
        let notes: Vec<String> = report.notes.iter().map(|note| format!("Note: {note}")).collect();
        html::list(m, "notes", &notes);
        let looks = Looks::of(report);
        html::looks_legend(m, &looks);
        for (device, tenant) in pairs(report) {
            let part = part(report, &device, &tenant);
            for (kind, whose) in html::kinds(&part) {
                m.leaf("h2", &[], &format!("Latency of {tenant} on {device}{whose}"));
                let says = "Which share of the I/Os took no longer; further left is better.";
                m.leaf("p", &[("class", &"soft")], says);
                distributions(m, &part, &looks, kind);
            }
        }
        m.leaf("h2", &[], "All figures");
        html::table(m, &COLUMNS.map(|(name, align)| (name, "", align)), &cells(report));
    })
}

/// The runs on `device` with only the job of `tenant`.
fn part(report: &Report, device: &str, tenant: &str) -> Report {
    let runs =
        report.runs.iter().filter(|run| run.device.text == device).cloned().map(|mut run| {
            run.jobs.retain(|job| job.name == tenant);
            run
        });
    Report {
        runs: runs.collect(),
        machine: report.machine.clone(),
        seed: report.seed,
        ..Report::default()
    }
}
