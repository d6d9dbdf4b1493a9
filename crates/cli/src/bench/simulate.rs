//! One run in virtual time: the same queue and workers as in a real one, on virtual CPUs.

use super::groups;
use super::logs::RunLogs;
use super::outcome::{Counted, Outcome, outcome};
use super::payload::{BenchPayload, Pool};
use super::setup;
use super::tally::Part;
use super::ties::RunTies;
use super::usage::Usage;
use super::watch;
use crate::error::Failure;
use crate::interrupt::Stop;
use crate::output::complain;
use crate::plan::Plan;
use crate::plan::runs::{RunSpec, ThreadSpec};
use blkmq::Device;
use blkmq_core::{Buffer, Instant};
use blkmq_lab::observe::Observation;
use blkmq_lab::simulation::{Done, Program, Settings, Simulation};

/// Runs `spec`, or its beginning until `stop` is set; all randomness comes from `seed`.
///
/// # Errors
/// As [`setup::check`], and if the queue stands still.
pub fn run(
    plan: &Plan,
    spec: &RunSpec<'_>,
    seed: u64,
    observation: &Observation,
    stop: &Stop,
) -> Result<Outcome, Failure> {
    let device = setup::device(plan, spec)?;
    let chosen = spec.scheduler.on(&device, &plan.groups);
    let spec = &spec.under(plan, &chosen);
    let verifies = spec.threads.iter().any(|thread| plan.jobs[thread.job].verify.is_some());
    // Moving bytes takes no virtual time. Payloads carry bytes only for workers that verify them.
    if verifies {
        run_with::<Buffer>(plan, spec, &device, (seed, observation, stop))
    } else {
        run_with::<()>(plan, spec, &device, (seed, observation, stop))
    }
}

fn run_with<P: BenchPayload<Source = ()> + 'static>(
    plan: &Plan,
    spec: &RunSpec<'_>,
    device: &Device,
    (seed, observation, stop): (u64, &Observation, &Stop),
) -> Result<Outcome, Failure> {
    let config = setup::config::<P>(plan, spec, device)?;
    let mut notes = setup::notes(plan, spec, &config);
    let settings = Settings::new(spec.seed_of(seed));
    let simulation = Simulation::observed(config, settings, observation);
    let mut simulation = simulation.map_err(setup::impossible)?;
    simulation.observe_stalls(|stall| complain(format_args!("{}: {stall}", spec.scheduler.text)));
    simulation.stop_when(|| stop.is_set());
    let mut parts: Vec<(ThreadSpec, Part)> = Vec::new();
    let mut logs = RunLogs::default();
    let ties = RunTies::new(plan, &spec.threads);
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
        let done = simulation.run(programs).map_err(|e| Failure::Simulation(e.to_string()))?;
        let part = |Done { tally, busy, counted }| Part {
            tally,
            usage: Usage { user_ns: busy.0, ..Usage::default() },
            counted,
        };
        parts.extend(threads.iter().map(|(_, thread)| **thread).zip(done.into_iter().map(part)));
        let abandoned = parts.iter().any(|(_, part)| part.tally.unfinished.abandoned > 0);
        if abandoned || stop.is_set() {
            break;
        }
    }
    if stop.is_set() {
        parts.retain(|(_, part)| part.counted);
    }
    notes.extend(groups::goals(plan, simulation.queue()));
    notes.extend(groups::floors(plan, simulation.queue()));
    let counted = Counted {
        notes,
        parts: &parts,
        stats: simulation.stats(),
        groups: groups::results(plan, &parts, simulation.queue()),
        shared: groups::shared(simulation.queue()),
        times: groups::times(plan, simulation.queue()),
        elapsed: simulation.now() - Instant::ZERO,
        end: simulation.now(),
        // The CPU time of virtual CPUs is in the jobs' own times.
        cpu_ns: None,
        observed: observation,
        incomplete: logs.incomplete(),
    };
    Ok(outcome(plan, spec, device, counted))
}
