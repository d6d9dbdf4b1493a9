//! `--dry-run` of `blkmq bench` and `blkmq sim`: the plan in words, so that a long run can be read before it is
//! started.

use crate::plan::{Choice, Plan, job_file, time};
use blkmq_core::Nanos;
use blkmq_sched::Scope;

/// The plan as text: how much there is to do, the jobs as a job file, the runs in order, and the notes.
pub fn render(plan: &Plan) -> String {
    let mut text = format!("{}\n\n", plan.command);
    text.push_str(&totals(plan));
    text.push_str("\nJobs, as a job file:\n\n");
    if !plan.annotations.is_empty() {
        text.push_str("[global]\n");
        plan.annotations.iter().for_each(|(key, value)| text.push_str(&format!("{key}={value}\n")));
        text.push('\n');
    }
    text.push_str(&job_file(&plan.jobs));
    text.push_str("\nRuns, in order:\n\n");
    text.push_str(&runs(plan));
    if !plan.notes.is_empty() {
        text.push_str("\nNotes:\n\n");
        plan.notes.iter().for_each(|note| text.push_str(&format!("  {note}\n")));
    }
    text
}

fn totals(plan: &Plan) -> String {
    let of = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let runs = plan.cases() * plan.repeat as usize;
    let mut text = String::new();
    if plan.default_matrix {
        text.push_str("Nothing was asked for, so everything is compared.\n");
    }
    text.push_str(&format!(
        "{}: {} x {} x {} x {}, each {}\n",
        of(runs, "run"),
        of(plan.devices.len(), "device"),
        of(plan.threads.len(), "thread count"),
        of(plan.access.len(), "access path"),
        of(plan.schedulers.len(), "scheduler"),
        if plan.repeat == 1 { "once".into() } else { format!("{} times", plan.repeat) },
    ));
    match plan.run_time() {
        Some(run) => {
            let total = Nanos(run.0.saturating_mul(runs as u64));
            text.push_str(&format!("At most {} a run, {} in all.\n", time(run), time(total)));
        }
        None => text.push_str("A job without runtime ends when its I/O is done.\n"),
    }
    let nr_requests = plan.nr_requests.map_or("default".into(), |n| n.to_string());
    let file = |path: &Option<std::path::PathBuf>, without: &str| {
        path.as_ref().map_or(without.into(), |path| path.display().to_string())
    };
    text.push_str(&format!(
        "nomerges={} nr_requests={nr_requests} pump={} format={} output={} report={} trace={}\n",
        plan.nomerges,
        plan.pump,
        Vec::from_iter([plan.format].iter().chain(&plan.also).map(|it| it.word())).join(","),
        file(&plan.output, "standard output"),
        file(&plan.report, "none"),
        plan.trace.as_ref().map_or("none", |trace| trace.prefix.as_str()),
    ));
    text
}

fn runs(plan: &Plan) -> String {
    let mut rows = vec![
        ["run", "case", "rep", "threads", "access", "scope", "scheduler", "device"]
            .map(String::from),
    ];
    for (i, run) in plan.runs().iter().enumerate() {
        let scope = match run.scope {
            Scope::Queue => "queue",
            Scope::HwQueue => "hwqueue",
        };
        rows.push([
            (i + 1).to_string(),
            run.case.to_string(),
            (run.repetition + 1).to_string(),
            run.threads.len().to_string(),
            run.access.text.clone(),
            scope.into(),
            run.scheduler.text.clone(),
            run.device.text.clone(),
        ]);
    }
    align(&rows)
}

/// Columns as wide as their widest cell.
fn align<const N: usize>(rows: &[[String; N]]) -> String {
    let widths: [usize; N] =
        std::array::from_fn(|at| rows.iter().map(|row| row[at].len()).max().unwrap_or(0));
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("  {}\n", Vec::from_iter(cells).join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}
