//! `blkmq bench` and `blkmq sim` without arguments: the purpose of schedulers, and their cost.
//!
//! The scenes are workloads on modelled devices in virtual time. Each is shown as a table and a sentence about the
//! visible effect, generated from the figures. The cost, in real time, is the default matrix of `blkmq bench`.

use crate::args::{self, Request};
use crate::plan::{Plan, Time, time};
use crate::report::job::{Direction, JobResult, Latency, Percentile};
use crate::report::model::{Report, Run};
use crate::report::table;
use crate::report::wording::{bandwidth, count, nanos, percent, scheduler};
use crate::{Failure, bench};
use blkmq_core::Nanos;
use blkmq_terminal::output::{print_results, shown, width};
use blkmq_terminal::paper::{Align, Paper, TextTable, paragraph, push_command, push_line};
use blkmq_terminal::program::Stop;

/// Shows the scenes, which take a moment, and then the cost of `plan`, if it is in real time.
///
/// # Errors
/// If a run is impossible, standard output cannot be written, or a signal ended the runs.
pub fn run(plan: &Plan) -> Result<(), Failure> {
    let stop = Stop::on_signals();
    let detail = match plan.time {
        Time::Real => Detail::Brief,
        Time::Virtual { .. } => Detail::Full,
    };
    print_with(|out| paragraph(out, "", behaviour(detail)))?;
    for scene in &SCENES {
        let report = bench::report(&plan_of(scene)?, &stop)?;
        print_with(|out| write_scene(out, scene, &report, detail))?;
        Failure::of_partial(report.partial)?;
    }
    if plan.time == Time::Real {
        print_with(|out| paragraph(out, "", COST))?;
        let report = bench::report(plan, &stop)?;
        print_results(&shown(&format!("\n{}", table::render(&report, width()))))?;
        Failure::of_partial(report.partial)?;
    }
    print_with(|out| paragraph(out, "", further(detail)))
}

/// The plan of a scene.
fn plan_of(scene: &Scene) -> Result<Plan, Failure> {
    match args::parse(&scene.words(), Time::Virtual { seed: 0 })? {
        Request::Plan(plan) => Ok(*plan),
        Request::Help | Request::Command(_) => unreachable!("a scene is a plan"),
    }
}

fn print_with(write: impl FnOnce(&mut Paper)) -> Result<(), Failure> {
    let mut paper = Paper::new(width());
    paper.push('\n');
    write(&mut paper);
    Ok(print_results(&shown(&paper.finish()))?)
}

/// The amount of detail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Detail {
    /// The figures that make the point.
    Brief,
    /// More of them, and the command that repeats the scene.
    Full,
}

/// The heading of the cost.
const COST: &str = "What schedulers cost: random writes on a null device of this machine, with real threads. See \
    how the rate falls below that of none, and how it changes with more threads.";

/// The heading of the scenes.
fn behaviour(detail: Detail) -> &'static str {
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
fn further(detail: Detail) -> &'static str {
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

const BESIDE_FIGURES: &[Figure] = &[
    figure("reads/s", |run| count(reads(run).iops())),
    figure("read p50", |run| latency(run, |l| Percentile::P50.of(&l.0))),
    detail("read p90", |run| latency(run, |l| Percentile::P90.of(&l.0))),
    figure("read p99", |run| latency(run, |l| Percentile::P99.of(&l.0))),
    detail("read p99.9", |run| latency(run, |l| Percentile::P99_9.of(&l.0))),
    detail("read max", |run| latency(run, |l| l.0.max())),
    figure("written", |run| bandwidth(written(run))),
    detail("merged", |run| percent(run.counters.merged_share())),
];

const STREAMS_FIGURES: &[Figure] = &[
    figure("read", |run| bandwidth(run.bytes_per_second())),
    figure("IOPS", |run| count(run.iops())),
    detail("read p50", |run| latency(run, |l| Percentile::P50.of(&l.0))),
    figure("read p99", |run| latency(run, |l| Percentile::P99.of(&l.0))),
    detail("read max", |run| latency(run, |l| l.0.max())),
    figure("merged", |run| percent(run.counters.merged_share())),
    detail("rq/batch", |run| format!("{:.1}", run.counters.batch_mean)),
];

/// Writes a scene: its title, its table, and the visible effect.
fn write_scene(out: &mut Paper, scene: &Scene, report: &Report, detail: Detail) {
    push_line(out, 0, scene.title);
    if detail == Detail::Full {
        push_command(out, 0, &report.command);
    }
    let figures = match scene.kind {
        Kind::Beside => BESIDE_FIGURES,
        Kind::Streams => STREAMS_FIGURES,
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

/// A workload on a device.
struct Scene {
    /// The description of the workload.
    title: &'static str,
    /// The device.
    device: &'static str,
    /// The workload.
    kind: Kind,
    /// Milliseconds of virtual time, enough for percentiles.
    ms: u64,
}

/// The workloads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// A reader of small random blocks beside four writers of large ones that began earlier.
    Beside,
    /// Eight sequential readers of small blocks.
    Streams,
}

/// All scenes, in their order.
const SCENES: [Scene; 4] = [
    Scene {
        title: "A reader beside writers, on a disk",
        device: "disk",
        kind: Kind::Beside,
        ms: 20_000,
    },
    Scene {
        title: "A reader beside writers, on flash",
        device: "flash",
        kind: Kind::Beside,
        ms: 500,
    },
    Scene {
        title: "Eight sequential readers, on a disk",
        device: "disk",
        kind: Kind::Streams,
        ms: 3_000,
    },
    Scene {
        title: "Eight sequential readers, on flash",
        device: "flash",
        kind: Kind::Streams,
        ms: 100,
    },
];

/// Writers that keep 64 large requests each in flight, and a reader, which begins later and waits for each block. To
/// bfq, threads that begin together are one application (decision 0021).
const BESIDE_JOBS: &str = "--direct=1 --time_based --group_reporting --name=reader --startdelay=300ms --rw=randread --bs=4k \
    --size=1g --name=writers --startdelay=0 --new_group --rw=write --bs=128k --iodepth=64 --numjobs=4 --offset=2g \
    --offset_increment=1g --size=1g";
/// Readers at distant positions.
const STREAMS_JOBS: &str = "--direct=1 --time_based --group_reporting --name=streams --rw=read --bs=4k --iodepth=8 \
    --numjobs=8 --size=1g --offset_increment=1g";

impl Scene {
    /// The arguments of `blkmq sim`.
    fn words(&self) -> Vec<String> {
        let jobs = match self.kind {
            Kind::Beside => BESIDE_JOBS,
            Kind::Streams => STREAMS_JOBS,
        };
        let common = [
            format!("--device={}", self.device),
            format!("--runtime={}", time(Nanos::from_millis(self.ms))),
        ];
        common.into_iter().chain(jobs.split_whitespace().map(String::from)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::judgement::findings;

    /// The text of a scene as the README has it.
    fn brief(scene: &Scene, report: &Report) -> String {
        let mut paper = Paper::new(80);
        write_scene(&mut paper, scene, report, Detail::Brief);
        paper.finish()
    }

    /// Every scene shows a difference between schedulers, or says that there is none; in virtual time this is
    /// reproducible.
    #[test]
    fn every_scene_runs_and_says_what_to_see() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
        let (readme, mut shown) = (std::fs::read_to_string(path).expect("it is there"), 0);
        for scene in &SCENES {
            let plan = plan_of(scene).expect("a scene is a command line");
            assert_eq!(plan.schedulers.len(), blkmq_sched::registry::ALL.len());
            let report = bench::report(&plan, &Stop::default()).expect("it can be run");
            let brief = brief(scene, &report);
            shown += usize::from(readme.contains(&brief));
            let is_stale = readme.contains(scene.title) && !readme.contains(&brief);
            assert!(!is_stale, "the README is to contain\n\n{brief}");
            assert!(report.partial.is_none() && findings(&report).len() < 5);
            for (detail, width) in [(Detail::Brief, 60), (Detail::Full, 200)] {
                let mut paper = Paper::new(width);
                write_scene(&mut paper, scene, &report, detail);
                let text = paper.finish();
                assert!(text.lines().all(|line| line.len() <= width), "{text}");
                for choice in &plan.schedulers {
                    assert!(text.contains(&choice.text), "{text}");
                }
                assert!(text.contains("See: ") && !text.contains("NaN"), "{text}");
            }
        }
        assert!(shown > 1, "a reader of the README sees scenes");
    }

    #[test]
    fn after_ctrl_c_no_scene_goes_on() {
        let plan = plan_of(&SCENES[0]).expect("a scene is a command line");
        let report = bench::report(&plan, &Stop::after_ctrl_c()).expect("it ends");
        assert!(
            matches!(Failure::of_partial(report.partial), Err(Failure::Interrupted(2, _))),
            "{:?}",
            report.partial
        );
    }
}
