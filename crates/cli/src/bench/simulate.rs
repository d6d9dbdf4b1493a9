//! A run in virtual time: the queue and workers of a real run, on virtual CPUs.

use super::logs::RunLogs;
use super::outcome::{Counted, Outcome, outcome, run_of};
use super::payload::{BenchPayload, Pool};
use super::status::{Beside, all_threads};
use super::tally::Part;
use super::ties::RunTies;
use super::usage::Usage;
use super::{setup, watch};
use crate::Failure;
use crate::plan::Plan;
use crate::plan::runs::{RunSpec, ThreadSpec};
use blkmq::Device;
use blkmq_core::{Buffer, Instant};
use blkmq_engine::Queue;
use blkmq_lab::simulation::{Done, Program, Reports, Settings, Simulation};
use blkmq_terminal::output::complain;
use std::cell::RefCell;

/// Performs the run `spec` to its end, or until the stop of `beside`. All randomness is derived from `seed`.
///
/// # Errors
/// See [`setup::check`]; also if the queue stalls.
pub fn run(
    plan: &Plan,
    spec: &RunSpec<'_>,
    seed: u64,
    beside: Beside<'_>,
) -> Result<Outcome, Failure> {
    let device = setup::device(plan, spec)?;
    let chosen = spec.scheduler.on(device.default_scheduler(), &plan.groups);
    let spec = &spec.under(plan, &chosen);
    let verifies = spec.threads.iter().any(|thread| plan.jobs[thread.job].verify.is_some());
    // Copying bytes takes no virtual time. Payloads carry bytes only for workers that verify them.
    if verifies {
        run_with::<Buffer>(plan, spec, &device, seed, beside)
    } else {
        run_with::<()>(plan, spec, &device, seed, beside)
    }
}

fn run_with<P: BenchPayload<Source = ()> + 'static>(
    plan: &Plan,
    spec: &RunSpec<'_>,
    device: &Device,
    seed: u64,
    beside: Beside<'_>,
) -> Result<Outcome, Failure> {
    let Beside { observation, stop, mut status } = beside;
    let config = setup::config::<P>(plan, spec, device)?;
    let mut notes = setup::notes(plan, spec, &config);
    let stalls = RefCell::new(Vec::new());
    let settings = Settings::new(spec.seed_of(seed));
    let simulation = Simulation::observed(config, settings, observation);
    let mut simulation = simulation.map_err(setup::impossible)?;
    simulation.observe_stalls(|stall| match plan.quiet {
        true => stalls.borrow_mut().push(stall.to_string()),
        false => complain(format_args!("{}: {stall}", spec.scheduler.text)),
    });
    simulation.stop_when(|| stop.is_set());
    let mut parts: Vec<(ThreadSpec, Part)> = Vec::new();
    let mut logs = RunLogs::default();
    let ties = RunTies::new(plan, &spec.threads);
    // The jobs' own times include the CPU time of virtual CPUs.
    let counted = |parts: &[(ThreadSpec, Part)], queue: &Queue<P>, end: Instant| {
        let counted = Counted::of(plan, parts, queue, observation);
        Counted { elapsed: end - Instant::ZERO, end, ..counted }
    };
    let phases = spec.threads.iter().map(|thread| thread.phase).max().unwrap_or(0);
    for phase in 0..=phases {
        let mine = |(_, thread): &(usize, &ThreadSpec)| thread.phase == phase;
        let threads: Vec<(usize, &ThreadSpec)> =
            spec.threads.iter().enumerate().filter(mine).collect();
        let mut program = |(number, thread): &(usize, &ThreadSpec)| {
            let job = &plan.jobs[thread.job];
            let stream = setup::stream(plan, spec, **thread, device, ties.of(plan, thread))?;
            let buffers = Pool::<P>::new(job, thread.thread, setup::bytes(device), ());
            let journal = logs.journal(plan, spec, *number, job)?;
            let (course, pid) = (plan.draws(), watch::pid(*number));
            Ok(Program { job, stream, buffers, course, journal, pid })
        };
        let programs: Vec<_> = threads.iter().map(&mut program).collect::<Result<_, Failure>>()?;
        let every = status.as_ref().map(|status| status.every);
        let mut report = |now: Instant, queue: &Queue<P>, done: &[Done]| {
            let answers = done.iter().cloned().map(part).map(Some).collect();
            let parts = all_threads(plan, spec, &parts, phase, answers, now);
            if let Some(status) = &mut status {
                let counted = counted(&parts, queue, now);
                (status.tell)(run_of(plan, spec, device, &parts, &counted));
            }
        };
        let reports = every.map(|every| Reports { every, report: &mut report });
        let done = simulation.run_reporting(programs, reports);
        let done = done.map_err(|e| Failure::Simulation(e.to_string()))?;
        parts.extend(threads.iter().map(|(_, thread)| **thread).zip(done.into_iter().map(part)));
        let abandoned = parts.iter().any(|(_, part)| part.tally.unfinished.abandoned > 0);
        if abandoned || stop.is_set() {
            break;
        }
    }
    if stop.is_set() {
        parts.retain(|(_, part)| part.counted);
    }
    let counted = counted(&parts, simulation.queue(), simulation.now());
    let incomplete = logs.incomplete();
    notes.extend(stalled(&stalls.borrow()));
    Ok(outcome(plan, spec, device, notes, (&parts, Counted { incomplete, ..counted })))
}

/// A note about the stalls of a run, if there were any.
fn stalled(stalls: &[String]) -> Option<String> {
    let first = stalls.first()?.lines().next().unwrap_or_default();
    Some(format!("{} stalls, the first of them: {first}", stalls.len()))
}

fn part(done: Done) -> Part {
    let Done { tally, busy, counted } = done;
    Part { tally, usage: Usage { user_ns: busy.0, ..Usage::default() }, counted }
}
