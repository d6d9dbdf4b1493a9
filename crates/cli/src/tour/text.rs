//! The words and tables of the scenes.

use super::scene::{Kind, Scene};
use crate::report::job::{Direction, JobResult, Latency};
use crate::report::label::scheduler;
use crate::report::model::{Report, Run};
use crate::report::number::{bandwidth, count, nanos, percent};
use crate::report::percentile::Percentile;
use blkmq_terminal::paper::{Paper, paragraph, push_command, push_line};
use blkmq_terminal::text_table::{Align, TextTable};

/// The amount of detail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    /// The figures that make the point.
    Brief,
    /// More of them, and the command that repeats the scene.
    Full,
}

/// The heading of the cost.
pub const COST: &str = "What schedulers cost: random writes on a null device of this machine, with real threads. See \
    how the rate falls below that of none, and how it changes with more threads.";

/// The heading of the scenes.
pub fn behaviour(detail: Detail) -> &'static str {
    match detail {
        Detail::Brief => {
            "What schedulers are for: workloads on a modelled disk and a modelled SSD, in virtual time."
        }
        Detail::Full => {
            "What schedulers are for: workloads on a modelled disk and a modelled SSD. Times are virtual: what the device \
             takes is simulated, what the processor takes is assumed. The same command gives the same figures, \
             everywhere."
        }
    }
}

/// Pointers to further commands.
pub fn further(detail: Detail) -> &'static str {
    match detail {
        Detail::Brief => {
            "The same in more detail, with the commands that repeat it: blkmq sim. About a scheduler: blkmq doc \
             mq-deadline. Your own workload: blkmq help bench."
        }
        Detail::Full => {
            "About a scheduler: blkmq doc mq-deadline. About a device: blkmq doc disk. Your own workload: blkmq help sim."
        }
    }
}

/// A figure of a run.
struct Figure {
    name: &'static str,
    is_brief: bool,
    of: fn(&Run) -> String,
}

const fn figure(name: &'static str, of: fn(&Run) -> String) -> Figure {
    Figure { name, is_brief: true, of }
}

const fn detail(name: &'static str, of: fn(&Run) -> String) -> Figure {
    Figure { name, is_brief: false, of }
}

const BESIDE: &[Figure] = &[
    figure("reads/s", |run| count(reads(run).iops())),
    figure("read p50", |run| latency(run, |l| Percentile::P50.of(&l.0))),
    detail("read p90", |run| latency(run, |l| Percentile::P90.of(&l.0))),
    figure("read p99", |run| latency(run, |l| Percentile::P99.of(&l.0))),
    detail("read p99.9", |run| latency(run, |l| Percentile::P99_9.of(&l.0))),
    detail("read max", |run| latency(run, |l| l.0.max())),
    figure("written", |run| bandwidth(written(run))),
    detail("merged", |run| percent(run.counters.merged_share())),
];

const STREAMS: &[Figure] = &[
    figure("read", |run| bandwidth(run.bytes_per_second())),
    figure("IOPS", |run| count(run.iops())),
    detail("read p50", |run| latency(run, |l| Percentile::P50.of(&l.0))),
    figure("read p99", |run| latency(run, |l| Percentile::P99.of(&l.0))),
    detail("read max", |run| latency(run, |l| l.0.max())),
    figure("merged", |run| percent(run.counters.merged_share())),
    detail("rq/batch", |run| format!("{:.1}", run.counters.batch_mean)),
];

/// Writes a scene: its title, its table, and the visible effect.
pub fn scene(out: &mut Paper, scene: &Scene, report: &Report, detail: Detail) {
    push_line(out, 0, scene.title);
    if detail == Detail::Full {
        push_command(out, 0, &report.command);
    }
    let figures = match scene.kind {
        Kind::Beside => BESIDE,
        Kind::Streams => STREAMS,
    };
    let figures: Vec<&Figure> =
        figures.iter().filter(|figure| figure.is_brief || detail == Detail::Full).collect();
    let names = figures.iter().map(|figure| (figure.name.to_owned(), Align::Right));
    let mut table =
        TextTable::new([("scheduler".to_owned(), Align::Left)].into_iter().chain(names).collect());
    for run in &report.runs {
        let cells = figures.iter().map(|figure| (figure.of)(run));
        table.row(&[scheduler(run)].into_iter().chain(cells).collect::<Vec<_>>());
    }
    out.table(&table);
    let seen = match scene.kind {
        Kind::Beside => beside(&report.runs),
        Kind::Streams => streams(&report.runs),
    };
    if let Some(sentence) = seen {
        paragraph(out, "See: ", &sentence);
    }
}

/// The gain of the reader from a scheduler, and the price that the writers pay.
fn beside(runs: &[Run]) -> Option<String> {
    let median = |run: &Run| times(reads(run)).map(|l| Percentile::P50.of(&l.0));
    let none = runs.iter().find(|run| run.scheduler == "none")?;
    let best = runs.iter().min_by_key(|run| median(run).unwrap_or(u64::MAX))?;
    let (before, after) = (median(none)? as f64, median(best)? as f64);
    if after * 1.1 > before {
        let before = nanos(before);
        return Some(format!(
            "no scheduler does more than none for the reader: half of its reads take {before} or longer."
        ));
    }
    Some(format!(
        "half of the reads take {} or longer with none, and {} with {}, {:.1} times less; the writers then write {} of what \
         they write with none.",
        nanos(before),
        nanos(after),
        scheduler(best),
        before / after,
        percent(written(best) / written(none).max(1.0)),
    ))
}

/// The differences between the rates.
fn streams(runs: &[Run]) -> Option<String> {
    let none = runs.iter().find(|run| run.scheduler == "none")?;
    let by_rate = |a: &&Run, b: &&Run| a.iops().total_cmp(&b.iops());
    let (best, worst) = (runs.iter().max_by(by_rate)?, runs.iter().min_by(by_rate)?);
    let share = |run: &Run| run.iops() / none.iops().max(1.0);
    let merged = |run: &Run| percent(run.counters.merged_share());
    let mut text = if share(best) < 1.1 {
        "no scheduler reads a tenth more than none: the device finds its way between the streams alone".to_owned()
    } else {
        format!("{} reads {:.1} times as much as none", scheduler(best), share(best))
    };
    if share(worst) < 0.9 {
        text.push_str(&format!("; {} reads {} of it", scheduler(worst), percent(share(worst))));
    }
    let most = runs
        .iter()
        .max_by(|a, b| a.counters.merged_share().total_cmp(&b.counters.merged_share()))?;
    if most.counters.merged_share() > 0.01 {
        text.push_str(&format!(
            ". {} of the I/Os become part of another one's request with {}, {} with none",
            merged(most),
            scheduler(most),
            merged(none)
        ));
    }
    text.push('.');
    Some(text)
}

/// The reads of the first job.
fn reads(run: &Run) -> &Direction {
    static NOTHING: std::sync::LazyLock<Direction> = std::sync::LazyLock::new(Direction::default);
    run.jobs.first().map_or(&*NOTHING, |job| &job.read)
}

fn written(run: &Run) -> f64 {
    run.jobs.iter().map(|job: &JobResult| job.write.bytes_per_second()).sum()
}

fn times(direction: &Direction) -> Option<&Latency> {
    direction.clat.as_ref().filter(|latency| latency.0.count() > 0)
}

fn latency(run: &Run, of: fn(&Latency) -> u64) -> String {
    times(reads(run)).map_or_else(|| "-".into(), |latency| nanos(of(latency) as f64))
}
