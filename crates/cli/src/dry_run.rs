//! `--dry-run` of `blkmq bench` and `blkmq sim`: describes the plan, so that a long run can be checked before it is
//! started.

use crate::plan::{Choice, Plan, job_file, time};
use blkmq_core::Nanos;
use blkmq_engine::{AUTO, PolicyChoice};
use blkmq_sched::Scope;
use blkmq_terminal::paper::{Paper, paragraph, push_command, push_line};
use blkmq_terminal::text_table::{Align, TextTable};

/// The plan as text of at most `width` columns, except for the job file: the amount of work, the jobs as a job file,
/// the runs in order, and the notes.
pub fn render(plan: &Plan, width: usize) -> String {
    let mut out = Paper::new(width);
    push_command(&mut out, 0, &plan.command);
    out.push('\n');
    totals(&mut out, plan);
    out.push_str("\nJobs, as a job file:\n\n");
    if !plan.annotations.is_empty() {
        out.push_str("[global]\n");
        plan.annotations.iter().for_each(|(key, value)| out.push_str(&format!("{key}={value}\n")));
        out.push('\n');
    }
    out.push_str(&job_file(&plan.jobs));
    out.push_str("\nRuns, in order:\n\n");
    out.table(&runs(plan));
    if !plan.notes.is_empty() {
        out.push_str("\nNotes:\n\n");
        plan.notes.iter().for_each(|note| paragraph(&mut out, "  ", note));
    }
    out.finish()
}

fn totals(out: &mut Paper, plan: &Plan) {
    let of = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let count = plan.cases() * plan.repeat as usize;
    if plan.default_matrix {
        paragraph(out, "", "Nothing was asked for, so everything is compared.");
    }
    let sizes = format!(
        "{}: {} x {} x {} x {}, each {}",
        of(count, "run"),
        of(plan.devices.len(), "device"),
        of(plan.threads.len(), "thread count"),
        of(plan.access.len(), "access path"),
        of(plan.schedulers.len(), "scheduler"),
        if plan.repeat == 1 { "once".into() } else { format!("{} times", plan.repeat) },
    );
    paragraph(out, "", &sizes);
    let runs = plan.runs();
    // The full names, since the table shortens long ones.
    named(out, "device", runs.iter().map(|run| run.device.text.as_str()));
    named(out, "scheduler", runs.iter().map(|run| run.scheduler.text.as_str()));
    match plan.run_time() {
        Some(run) => {
            let total = Nanos(run.0.saturating_mul(count as u64));
            let text = format!("At most {} a run, {} in all.", time(run), time(total));
            paragraph(out, "", &text);
        }
        None => paragraph(out, "", "A job without runtime ends when its I/O is done."),
    }
    let nr_requests = plan.nr_requests.map_or("default".into(), |n| n.to_string());
    let file = |path: &Option<std::path::PathBuf>, without: &str| {
        path.as_ref().map_or(without.into(), |path| path.display().to_string())
    };
    let settings = format!(
        "nomerges={} nr_requests={nr_requests} device_depth={} pump={} format={} output={} report={} trace={}",
        plan.nomerges,
        plan.device_depth,
        plan.pump,
        Vec::from_iter([plan.format].iter().chain(&plan.also).map(|it| it.word())).join(","),
        file(&plan.output, "standard output"),
        file(&plan.report, "none"),
        plan.trace.as_ref().map_or("none", |trace| trace.prefix.as_str()),
    );
    paragraph(out, "", &settings);
}

/// Adds a line for each distinct name.
fn named<'a>(out: &mut Paper, what: &str, names: impl Iterator<Item = &'a str>) {
    let mut known: Vec<&str> = Vec::new();
    for name in names {
        if !known.contains(&name) {
            known.push(name);
            push_line(out, 2, &format!("{what} {name}"));
        }
    }
}

fn runs(plan: &Plan) -> TextTable {
    // The numbers of the run and of its repetition are those used in JSON and in file names.
    let figures = ["order", "run", "rep", "threads"].map(|name| (name.to_owned(), Align::Right));
    let words = ["access", "scope", "scheduler", "device"];
    let words = words.map(|name| (name.to_owned(), Align::Left));
    let mut table = TextTable::new(figures.into_iter().chain(words).collect());
    table.keys(1);
    for (i, run) in plan.runs().iter().enumerate() {
        let scope = match run.scope {
            // As the scheduler that will be chosen prefers.
            _ if plan.scope.is_none() && run.scheduler.choice == PolicyChoice::Auto => AUTO,
            Scope::Queue => "queue",
            Scope::HwQueue => "hwqueue",
        };
        table.row(&[
            (i + 1).to_string(),
            run.case.to_string(),
            run.repetition.to_string(),
            run.threads.len().to_string(),
            run.access.text.clone(),
            scope.into(),
            run.scheduler.text.clone(),
            run.device.text.clone(),
        ]);
    }
    table
}
