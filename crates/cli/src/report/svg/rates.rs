//! I/Os per second: curves over the number of threads if there are at least three numbers, otherwise a bar for each
//! run. Error bars extend from the slowest to the fastest repetition.

use super::super::label::{Series, Varying, series};
use super::super::markup::Markup;
use super::super::model::{Report, Run};
use super::super::number::{count, counted, tick};
use super::look::{Looks, mark};
use super::rows::{Axis, LEFT, RIGHT, Row, rows};
use super::scale::Linear;
use super::{WIDTH, bar, line, plot, text};

const HEIGHT: f64 = 360.0;
const BOTTOM: f64 = 312.0;
const TOP: f64 = 16.0;
const AXIS: f64 = 64.0;

/// Draws the rates.
pub fn rates(m: &mut Markup, report: &Report, looks: &Looks) {
    let mut threads: Vec<u32> = report.runs.iter().map(|run| run.threads).collect();
    threads.sort_unstable();
    threads.dedup();
    if threads.len() < 3 {
        bars(m, report, looks);
    } else {
        curves(m, report, &threads, looks);
    }
}

fn highest(report: &Report) -> f64 {
    let reach = |run: &Run| run.range().map_or(0.0, |(_, high)| high).max(run.iops());
    report.runs.iter().map(reach).fold(0.0, f64::max)
}

fn says(name: &str, run: &Run) -> String {
    let rate = format!("{name}: {} IOPS", count(run.iops()));
    match run.range() {
        Some((low, high)) if run.repetitions.len() > 1 => {
            format!("{rate} (repetitions {} to {})", count(low), count(high))
        }
        _ => rate,
    }
}

fn bars(m: &mut Markup, report: &Report, looks: &Looks) {
    let varying = Varying::of(report);
    let scale = Linear::covering(highest(report), LEFT, RIGHT);
    let axis =
        Axis { ticks: scale.ticks().map(|v| (scale.at(v), tick(v))).collect(), figures: "IOPS" };
    let named: Vec<Row> = report
        .runs
        .iter()
        .map(|run| Row { name: varying.run_name(run), figure: count(run.iops()) })
        .collect();
    rows(m, "I/Os per second of each run", &axis, &named, |m, index, y| {
        let run = &report.runs[index];
        let class = format!("fill {}", looks.colour(run));
        let size = (scale.at(run.iops()) - LEFT, 16.0);
        bar(m, &class, (LEFT, y - 8.0), size, &says(&named[index].name, run));
        if let Some((low, high)) = run.range().filter(|_| run.repetitions.len() > 1) {
            let (from, to) = (scale.at(low), scale.at(high));
            line(m, "error", (from, y), (to, y));
            line(m, "error", (from, y - 4.0), (from, y + 4.0));
            line(m, "error", (to, y - 4.0), (to, y + 4.0));
        }
    });
}

fn curves(m: &mut Markup, report: &Report, threads: &[u32], looks: &Looks) {
    let scale = Linear::covering(highest(report), BOTTOM, TOP);
    let gap = (WIDTH - AXIS - 16.0) / threads.len() as f64;
    let x = |n: u32| {
        let place = threads.iter().position(|t| *t == n).unwrap_or(0);
        AXIS + gap * (place as f64 + 0.5)
    };
    plot(m, HEIGHT, "I/Os per second over the number of threads", |m| {
        for value in scale.ticks() {
            let y = scale.at(value);
            line(m, "grid", (AXIS, y), (WIDTH - 16.0, y));
            text(m, "tick", "end", (AXIS - 8.0, y + 4.0), &tick(value));
        }
        for &n in threads {
            text(m, "tick", "middle", (x(n), BOTTOM + 18.0), &n.to_string());
        }
        text(m, "tick", "middle", (f64::midpoint(AXIS, WIDTH - 16.0), BOTTOM + 38.0), "threads");
        cores(m, report, threads, x);
        for series in &series(report) {
            let at = |run: &Run| (x(run.threads), scale.at(run.iops()));
            curve(m, report, series, looks, at, &scale);
        }
    });
}

/// Marks the number of threads at which they begin to outnumber cores.
fn cores(m: &mut Markup, report: &Report, threads: &[u32], x: impl Fn(u32) -> f64) {
    let cores = report.machine.cores;
    let below = threads.iter().rev().find(|n| **n <= cores);
    let above = threads.iter().find(|n| **n > cores);
    if let (Some(&below), Some(&above)) = (below, above) {
        let middle = f64::midpoint(x(below), x(above));
        line(m, "limit", (middle, TOP), (middle, BOTTOM));
        let says = format!("more than {}", counted(cores.into(), "core"));
        text(m, "tick", "start", (middle + 6.0, TOP + 10.0), &says);
    }
}

fn curve(
    m: &mut Markup,
    report: &Report,
    series: &Series,
    looks: &Looks,
    at: impl Fn(&Run) -> (f64, f64),
    scale: &Linear,
) {
    let runs: Vec<&Run> = series.runs.iter().map(|&index| &report.runs[index]).collect();
    let (class, shape) = (looks.series(runs[0]), looks.shape(runs[0]));
    for pair in runs.windows(2) {
        line(m, &format!("curve {class}"), at(pair[0]), at(pair[1]));
    }
    for run in runs {
        let (x, y) = at(run);
        if let Some((low, high)) = run.range().filter(|_| run.repetitions.len() > 1) {
            let (low, high) = (scale.at(low), scale.at(high));
            let whisker = format!("whisker {class}");
            line(m, &whisker, (x, low), (x, high));
            line(m, &whisker, (x - 4.0, low), (x + 4.0, low));
            line(m, &whisker, (x - 4.0, high), (x + 4.0, high));
        }
        let name = format!("{}, {}", series.label, counted(run.threads.into(), "thread"));
        mark(m, shape, &format!("fill {class}"), (x, y), 4.5, &says(&name, run));
    }
}
