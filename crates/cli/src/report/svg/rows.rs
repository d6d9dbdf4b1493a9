//! Plots with one row for each run: the name and a figure above the marks, an axis below all rows. They fit the screen
//! of a phone. A row shows I/Os per second, completion latencies, merges, or the groups' shares of the bytes.
//!
//! From at least three numbers of threads, I/Os per second are curves over that number. Error bars extend from the
//! slowest to the fastest repetition.

use super::super::job::{Latency, Percentile, ratio};
use super::super::model::{Report, Run};
use super::super::svg::Markup;
use super::super::wording::{Series, Varying, count, counted, nanos, percent, series, tick};
use super::{Linear, Log, Looks, Shape, WIDTH, bar, line, mark, sized, text};
use blkmq_lab::workload::Direction;
use std::collections::BTreeSet;

/// Width of the plot, in the units of its view box.
const NARROW: f64 = 420.0;

/// The left end of the axis.
pub const LEFT: f64 = 28.0;
/// The right end of the axis.
pub const RIGHT: f64 = NARROW - 24.0;

/// Height of a row, and the middle of its marks.
const ROW: f64 = 42.0;
const MIDDLE: f64 = 28.0;

const ROWS_TOP: f64 = 22.0;

/// Longer names are shortened; the tooltip shows the full name.
const NAME_CHARS: usize = 36;

/// A row without its marks.
pub struct Row {
    /// The run.
    pub name: String,
    /// The figure at the end of the row.
    pub figure: String,
}

/// An axis, and the heading of the figures on the right.
pub struct Axis {
    /// Pixel and name of each tick.
    pub ticks: Vec<(f64, String)>,
    /// Heading of the figures on the right.
    pub figures: &'static str,
}

/// Draws the frame, and calls `mark` to draw the marks of each row (with the row's number and its middle).
pub fn rows(
    m: &mut Markup,
    says: &str,
    axis: &Axis,
    rows: &[Row],
    mark: impl Fn(&mut Markup, usize, f64),
) {
    let bottom = ROWS_TOP + ROW * rows.len() as f64;
    sized(m, "plot rows", (NARROW, bottom + 24.0), says, |m| {
        for (x, name) in &axis.ticks {
            line(m, "grid", (*x, ROWS_TOP - 4.0), (*x, bottom + 2.0));
            text(m, "tick", "middle", (*x, bottom + 18.0), name);
        }
        text(m, "tick", "end", (NARROW - 4.0, ROWS_TOP - 8.0), axis.figures);
        for (index, row) in rows.iter().enumerate() {
            let top = ROWS_TOP + ROW * index as f64;
            m.element("g", &[], |m| {
                m.leaf("title", &[], &row.name);
                text(m, "name", "start", (LEFT, top + 14.0), &shortened(&row.name));
            });
            mark(m, index, top + MIDDLE);
            text(m, "figure", "end", (NARROW - 4.0, top + 14.0), &row.figure);
        }
    });
}

/// The name, or its beginning and end: the scheduler is at the beginning and the number of threads at the end.
fn shortened(name: &str) -> String {
    let chars: Vec<char> = name.chars().collect();
    if chars.len() <= NAME_CHARS {
        return name.to_owned();
    }
    let tail = NAME_CHARS / 3;
    let head: String = chars[..NAME_CHARS - tail - 3].iter().collect();
    let tail: String = chars[chars.len() - tail..].iter().collect();
    format!("{head}...{tail}")
}

const HEIGHT: f64 = 360.0;
const BOTTOM: f64 = 312.0;

const CURVES_TOP: f64 = 16.0;

const AXIS: f64 = 64.0;

/// Draws the rates.
pub fn rates(m: &mut Markup, report: &Report, looks: &Looks) {
    let threads = BTreeSet::from_iter(report.runs.iter().map(|run| run.threads));
    let threads = Vec::from_iter(threads);
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

/// The rows of all runs, with these figures.
fn named(report: &Report, figure: impl Fn(&Run) -> String) -> Vec<Row> {
    let varying = Varying::of(report);
    let row = |run: &Run| Row { name: varying.run_name(run), figure: figure(run) };
    report.runs.iter().map(row).collect()
}

fn bars(m: &mut Markup, report: &Report, looks: &Looks) {
    let scale = Linear::covering(highest(report), LEFT, RIGHT);
    let axis = Axis { ticks: scale.labels(tick), figures: "IOPS" };
    let named = named(report, |run| count(run.iops()));
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
    let scale = Linear::covering(highest(report), BOTTOM, CURVES_TOP);
    let gap = (WIDTH - AXIS - 16.0) / threads.len() as f64;
    let x = |n: u32| {
        let place = threads.iter().position(|t| *t == n).unwrap_or(0);
        AXIS + gap * (place as f64 + 0.5)
    };
    sized(m, "plot", (WIDTH, HEIGHT), "I/Os per second over the number of threads", |m| {
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
        for Series { label, runs } in series(report) {
            let (class, shape) = (looks.series(runs[0]), looks.shape(runs[0]));
            let at = |run: &Run| (x(run.threads), scale.at(run.iops()));
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
                let name = format!("{label}, {}", counted(run.threads.into(), "thread"));
                mark(m, shape, &format!("fill {class}"), (x, y), 4.5, &says(&name, run));
            }
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
        line(m, "limit", (middle, CURVES_TOP), (middle, BOTTOM));
        let says = format!("more than {}", counted(cores.into(), "core"));
        text(m, "tick", "start", (middle + 6.0, CURVES_TOP + 10.0), &says);
    }
}

/// The runs with latencies of one kind of I/O or of all.
pub(super) fn timed<'a>(
    runs: impl Iterator<Item = &'a Run>,
    kind: Option<Direction>,
) -> Vec<(&'a Run, Latency)> {
    let timed = runs.filter_map(|run| Some((run, run.latency_of_kind(kind)?)));
    timed.filter(|(_, latency)| latency.0.count() > 0).collect()
}

/// Draws the latencies, of one kind of I/O or of all, of the runs that have any. Returns whether there was one.
pub fn latencies(m: &mut Markup, report: &Report, looks: &Looks, kind: Option<Direction>) -> bool {
    let varying = Varying::of(report);
    let timed = timed(report.runs.iter(), kind);
    let at = |l: &Latency, p: Percentile| p.of(&l.0) as f64;
    let low = timed.iter().map(|(_, l)| at(l, Percentile::P50)).fold(f64::INFINITY, f64::min);
    let high = timed.iter().map(|(_, l)| l.0.max() as f64).fold(0.0, f64::max);
    if timed.is_empty() {
        return false;
    }
    let scale = Log::covering(low, high, LEFT, RIGHT);
    let axis = Axis { ticks: scale.labels(decade), figures: "p50 / p99" };
    let named: Vec<Row> = timed
        .iter()
        .map(|(run, l)| {
            let [half, most] = [Percentile::P50, Percentile::P99].map(|p| nanos(at(l, p)));
            Row { name: varying.run_name(run), figure: format!("{half} / {most}") }
        })
        .collect();
    rows(m, "Completion latency of each run, logarithmic", &axis, &named, |m, row, y| {
        let (run, latency) = &timed[row];
        marks(m, latency, &scale, y, (&looks.colour(run), looks.shape(run)));
    });
    true
}

fn marks(m: &mut Markup, latency: &Latency, scale: &Log, y: f64, (class, shape): (&str, Shape)) {
    let at = |p: Percentile| p.of(&latency.0) as f64;
    let says = |name: &str, ns: f64| format!("{name}: {}", nanos(ns));
    let max = latency.0.max() as f64;
    let (p50, p99, end) =
        (scale.at(at(Percentile::P50)), scale.at(at(Percentile::P99)), scale.at(max));
    line(m, &format!("thin {class}"), (p50, y), (end, y));
    let body = says("p50 to p99", at(Percentile::P99) - at(Percentile::P50));
    bar(m, &format!("body {class}"), (p50, y - 4.0), (p99 - p50, 8.0), &body);
    bar(m, &format!("fill {class}"), (end - 1.0, y - 6.0), (2.0, 12.0), &says("max", max));
    let dots = [
        (Percentile::P99_9, "hollow", 3.0, "p99.9"),
        (Percentile::P99, "hollow", 4.5, "p99"),
        (Percentile::P50, "fill", 4.5, "p50"),
    ];
    for (percentile, style, radius, name) in dots {
        let ns = at(percentile);
        let class = format!("{style} {class}");
        mark(m, shape, &class, (scale.at(ns), y), radius, &says(name, ns));
    }
}

/// A power of ten: `100 ns`, `10 us`.
pub(super) fn decade(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns < 1e3 => (ns, "ns"),
        ns if ns < 1e6 => (ns / 1e3, "us"),
        ns if ns < 1e9 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    format!("{value:.0} {unit}")
}

/// The greys of plug, back, front, request and discard: colours belong to schedulers.
pub const KINDS: [&str; 5] = ["g0", "g1", "g2", "g3", "g4"];

/// Draws the merges. Returns whether there were any.
pub fn merges(m: &mut Markup, report: &Report) -> bool {
    let share = |run: &Run| 100.0 * run.counters.merged_share();
    let most = report.runs.iter().map(share).fold(0.0, f64::max);
    if most == 0.0 {
        return false;
    }
    let scale = Linear::covering(most, LEFT, RIGHT);
    let axis = Axis { ticks: scale.labels(fine), figures: "merged" };
    let named = named(report, |run| fine(share(run)));
    rows(m, "Share of I/Os merged, by kind", &axis, &named, |m, index, y| {
        let counters = &report.runs[index].counters;
        let mut from = 0.0;
        for (kind, (name, n)) in counters.merges.each().into_iter().enumerate() {
            let share = ratio(n as f64, counters.submitted as f64);
            let (left, right) = (scale.at(100.0 * from), scale.at(100.0 * (from + share)));
            from += share;
            if n > 0 {
                let class = format!("fill {}", KINDS[kind]);
                let says = format!("{name}: {n} ({})", percent(share));
                bar(m, &class, (left, y - 8.0), (right - left, 16.0), &says);
            }
        }
    });
    true
}

/// Formats a percentage with enough decimals to distinguish small ones: `12.5 %`, `0.0015 %`.
fn fine(value: f64) -> String {
    let digits =
        if value > 0.0 { (1.0 - value.log10().floor()).clamp(1.0, 9.0) as usize } else { 0 };
    let text = format!("{value:.digits$}");
    let text =
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text} %")
}

/// The most bars of one plot; more of them cannot be read.
const MOST_BARS: usize = 60;

/// Draws the shares of all groups but the roots. Returns (bars drawn, bars in total), or `None` if there is nothing to
/// draw.
pub fn shares(m: &mut Markup, report: &Report, looks: &Looks) -> Option<(usize, usize)> {
    let varying = Varying::of(report);
    let of_runs = report.runs.iter().map(|run| (1..run.groups.all.len()).map(move |at| (run, at)));
    let mut all = Vec::from_iter(of_runs.flatten());
    let bars = all.len();
    all.truncate(MOST_BARS);
    if all.is_empty() {
        return None;
    }
    let scale = Linear::covering(100.0, LEFT, RIGHT);
    let axis = Axis { ticks: scale.labels(|v| format!("{v} %")), figures: "share / due" };
    let row = |&(run, at): &(&Run, usize)| {
        let groups = &run.groups;
        let due = groups.due(at).map_or_else(|| "-".into(), percent);
        let name = &groups.all[at].name;
        let name = match report.runs.len() {
            1 => name.clone(),
            _ => format!("{}: {name}", varying.run_name(run)),
        };
        Row { name, figure: format!("{} / {due}", percent(groups.share(at))) }
    };
    let named: Vec<Row> = all.iter().map(row).collect();
    rows(m, "Share of bytes of each group", &axis, &named, |m, index, y| {
        let (run, at) = all[index];
        let groups = &run.groups;
        let says = format!("{}: {}", named[index].name, named[index].figure);
        let end = scale.at(100.0 * groups.share(at));
        let class = format!("fill {}", looks.colour(run));
        bar(m, &class, (LEFT, y - 7.0), (end - LEFT, 14.0), &says);
        if let Some(due) = groups.due(at) {
            let due = scale.at(100.0 * due);
            line(m, "error", (due, y - 11.0), (due, y + 11.0));
        }
    });
    Some((all.len(), bars))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_keep_both_ends() {
        let name = format!("mq-deadline {}, 16 threads", "x".repeat(100));
        let short = shortened(&name);
        assert_eq!(short.chars().count(), NAME_CHARS);
        assert!(short.starts_with("mq-deadline ") && short.ends_with(", 16 threads"), "{short}");
        assert_eq!(shortened("none"), "none");
    }

    #[test]
    fn ticks_of_small_shares_differ() {
        for most in [0.000_2, 0.001_7, 0.03, 0.5, 7.0, 99.0] {
            let ticks = Vec::from_iter(Linear::covering(most, LEFT, RIGHT).ticks().map(fine));
            for (at, tick) in ticks.iter().enumerate() {
                assert!(!ticks[..at].contains(tick), "{most}: {ticks:?}");
            }
        }
        assert_eq!(
            [0.0, 0.001, 0.0015, 12.5, 100.0].map(fine),
            ["0 %", "0.001 %", "0.0015 %", "12.5 %", "100 %"]
        );
    }
}
