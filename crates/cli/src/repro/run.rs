//! Runs the cases of each claim and fills the model.
//!
//! Rows that are compared take turns: each row of a group is run once before any is run again, so that a machine
//! whose speed drifts affects all rows alike.

use super::args::Wanted;
use super::cases::{self, REPETITIONS};
use super::memory_disk::MemoryDisk;
use super::metric::Metric;
use super::model::{Call, Case, Experiment, Point, Repro, Timeline, Variant};
use super::name::Name;
use crate::args;
use crate::bench::{self, progress::Progress};
use crate::error::Failure;
use crate::plan::{Plan, Time};
use crate::report::machine::Machine;
use crate::report::model::{Partial, Run};
use blkmq_core::{Instant, Nanos};
use blkmq_engine::KickMode;
use blkmq_engine::calls;
use blkmq_lab::observe::{Inversions, Observation};
use blkmq_terminal::interrupt::Stop;

/// The slots of every observed elevator, and to spare.
const REQUESTS: usize = 1 << 16;

/// Measures the claims of `wanted`, or the first of them until `stop` is set. `command` is the command line.
///
/// # Errors
/// If a case cannot be run on this machine.
pub fn run(wanted: &Wanted, command: String, stop: &Stop) -> Result<Repro, Failure> {
    let machine = Machine::detect();
    let disk = wanted.names.contains(&Name::Kick).then(MemoryDisk::new);
    let (queues, depth) = cases::KICK_QUEUES;
    let device = disk.as_ref().map_or(String::new(), |disk| disk.device(queues, depth));
    let claims: Vec<(Name, Vec<Case>)> = wanted
        .names
        .iter()
        .map(|name| (*name, cases::cases(*name, wanted, machine.cores, &device)))
        .collect();
    let rows: usize = claims.iter().map(|(_, cases)| cases.len()).sum();
    let planned = rows * REPETITIONS as usize;
    let mut turns = Turns { progress: Progress::new(planned, None, true), stop, done: 0 };
    let mut repro = Repro {
        command,
        version: env!("CARGO_PKG_VERSION").into(),
        time_ms: blkmq_runtime::wall_clock_millis(),
        machine,
        experiments: Vec::new(),
        partial: None,
    };
    for (name, cases) in &claims {
        if stop.is_set() {
            break;
        }
        let (mut points, mut notes) = (Vec::new(), Vec::new());
        if *name == Name::Kick {
            notes.extend(disk.as_ref().and_then(MemoryDisk::note).map(String::from));
        }
        for group in cases.chunk_by(|a, b| (a.scheduler, a.setting) == (b.scheduler, b.setting)) {
            points.extend(in_turns(*name, group, &mut turns, &mut notes)?);
        }
        let timelines = if *name == Name::Kick { timelines() } else { Vec::new() };
        let workload = cases::workload(*name, wanted);
        repro.experiments.push(Experiment { name: *name, workload, points, timelines, notes });
    }
    turns.progress.finish();
    if turns.done < planned {
        repro.partial = Some(Partial { done: turns.done, planned, signal: stop.signal() });
    }
    Ok(repro)
}

/// The course of all runs.
struct Turns<'a> {
    progress: Progress,
    stop: &'a Stop,
    /// Runs that have ended as planned.
    done: usize,
}

/// A row while it is measured.
struct Row<'a> {
    case: &'a Case,
    plan: Plan,
    runs: Vec<Run>,
    /// Inversions per thousand requests, run by run.
    inverted: Vec<f64>,
}

/// The points of rows that are compared, as far as they were measured; notes about them are added to `notes`.
fn in_turns(
    name: Name,
    group: &[Case],
    turns: &mut Turns<'_>,
    notes: &mut Vec<String>,
) -> Result<Vec<Point>, Failure> {
    let mut rows = Vec::new();
    for case in group {
        let plan = plan(case)?;
        rows.push(Row { case, plan, runs: Vec::new(), inverted: Vec::new() });
    }
    for _ in 0..REPETITIONS {
        for row in &mut rows {
            let Case { scheduler, how, setting, .. } = row.case;
            turns.progress.begin(&format!(
                "{}: {scheduler}, {how}, {} {}",
                name.word(),
                setting.what,
                setting.value
            ));
            let Some(found) = row.once(name, turns.stop)? else { return Ok(points(&rows)) };
            for note in found {
                if !notes.contains(&note) {
                    notes.push(note);
                }
            }
            turns.progress.end();
            turns.done += 1;
        }
    }
    Ok(points(&rows))
}

/// The points of the rows that were run at least once.
fn points(rows: &[Row<'_>]) -> Vec<Point> {
    rows.iter().filter_map(Row::point).collect()
}

/// The plan of a case. Its only run is repeated here, in turns with others.
fn plan(case: &Case) -> Result<Plan, Failure> {
    match args::parse(&case.args, Time::Real)? {
        args::Request::Plan(plan) => Ok(*plan),
        args::Request::Help | args::Request::Command(_) => unreachable!("no case asks for text"),
    }
}

impl Row<'_> {
    /// Runs the row once more, and returns the notes about it; `None` if `stop` is set before the end of the run.
    fn once(&mut self, name: Name, stop: &Stop) -> Result<Option<Vec<String>>, Failure> {
        let inversions = (name == Name::Order).then(|| Inversions::new(REQUESTS));
        let observation = Observation { inversions: inversions.clone(), ..Observation::default() };
        let Some((run, notes)) = bench::once(&self.plan, &observation, stop)? else {
            return Ok(None);
        };
        self.runs.push(run);
        if let Some(inversions) = inversions {
            let (arrived, inverted) = inversions.counts();
            self.inverted.push(inverted as f64 * 1_000.0 / arrived.max(1) as f64);
        }
        Ok(Some(notes))
    }

    /// The row's run with the median rate; the share of time waiting is that run's, inversions are the median. `None`
    /// before the first run.
    fn point(&self) -> Option<Point> {
        let run = bench::median(&self.runs)?;
        let command = format!("blkmq bench {} --repeat={REPETITIONS}", self.case.args.join(" "));
        let mut point = Point::of(self.case, command, &run);
        point.figures.extend(run.waited_share().map(|share| (Metric::Waiting, share)));
        let mut inverted = self.inverted.clone();
        inverted.sort_by(f64::total_cmp);
        point.figures.extend(inverted.get(inverted.len() / 2).map(|n| (Metric::Inversions, *n)));
        Some(point)
    }
}

/// Three calls, *now*, *in 3 ms*, *now*, a microsecond apart, for a worker that needs 50 us to come.
fn timelines() -> Vec<Timeline> {
    let delays = [0, 3_000_000, 0];
    let made: Vec<calls::Call> = (0..)
        .zip(delays)
        .map(|(n, delay)| calls::Call { at: Instant::from_nanos(n * 1_000), delay: Nanos(delay) })
        .collect();
    let ways = [
        (Variant::Before, KickMode::Always),
        (Variant::Proposed, KickMode::Flag),
        (Variant::Ours, KickMode::Coalesced),
    ];
    ways.into_iter()
        .map(|(variant, kick)| Timeline {
            variant,
            how: format!("kick={kick}"),
            calls: made
                .iter()
                .map(|call| Call { at: call.at.as_nanos(), delay: call.delay.0 })
                .collect(),
            passes: calls::passes(kick, &made, Nanos::from_micros(50))
                .iter()
                .map(|at| at.as_nanos())
                .collect(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::args::tests::wanted;
    use super::super::render;
    use super::*;
    use crate::report::Format;

    #[test]
    fn only_the_flag_lets_the_last_call_wait() {
        let answered: Vec<Option<u64>> = timelines().iter().map(Timeline::answered_after).collect();
        assert_eq!(answered, [Some(48_000), Some(3_049_000), Some(48_000)]);
    }

    #[test]
    fn after_a_signal_there_is_what_was_measured_until_then() {
        let stop = Stop::after_ctrl_c();
        let repro = run(&wanted("batch"), "blkmq repro".into(), &stop).expect("it ends");
        assert!(repro.experiments.is_empty());
        let partial = repro.partial.expect("everything is missing");
        assert!(partial.done == 0 && partial.planned > 0 && partial.signal == Some(2));
        for format in [Format::Normal, Format::Json, Format::Html] {
            assert!(render(&repro, format).to_lowercase().contains("partial"), "{format:?}");
        }
    }

    #[test]
    fn every_claim_can_be_run() {
        let mut wanted = wanted("--runtime=25ms --threads=2");
        // Merge and Depth need seconds for any result at all.
        wanted.names.retain(|name| !matches!(name, Name::Merge | Name::Depth));
        let repro =
            run(&wanted, "blkmq repro".into(), &Stop::default()).expect("it can be measured");
        for experiment in &repro.experiments {
            let metric = experiment.name.metric();
            for point in &experiment.points {
                assert!(point.get(metric).is_some(), "{:?} {}", experiment.name, point.how);
                assert!(point.get(Metric::Iops).is_some_and(|iops| iops > 0.0));
                let waits = point.get(Metric::Waiting).is_some();
                assert!(
                    experiment.name != Name::Contention
                        || waits == (point.variant != Variant::Ours)
                );
            }
        }
        let order = repro.experiments.iter().find(|experiment| experiment.name == Name::Order);
        let ours =
            order.expect("all names").points.iter().filter(|point| point.variant == Variant::Ours);
        assert!(ours.map(|point| point.get(Metric::Inversions)).all(|n| n == Some(0.0)));
    }
}
