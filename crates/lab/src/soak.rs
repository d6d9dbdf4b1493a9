//! One seed, all oracles: the run behind `cargo xtask soak`.
//!
//! A run has two phases. In the first the clients submit, faults strike, and nothing that is promised may be
//! broken. In the second nobody submits any more; faults come to an end, and everything must end too, without
//! anybody waiting longer than the times that the engine itself names.

use crate::{Bug, FlushFates, Scenario, Subject, Violation, World};
use blkmq_core::Instant;
use blkmq_engine::QueueStats;
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a run without a violation amounted to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Of every event: equal for two runs of one seed.
    pub hash: u64,
    /// Events in all.
    pub events: u64,
    /// When the last I/O ended.
    pub ended_at: Instant,
    /// The queue's counters.
    pub stats: QueueStats,
    /// What became of flushes at the device.
    pub flushes: FlushFates,
}

/// What went wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cause {
    /// An oracle said so.
    Violation(Violation),
    /// The engine, a policy or a device contradicted itself and said so.
    Panic(String),
}

/// A run that failed. Prints the seed that repeats it and the scenario.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The run.
    pub scenario: Scenario,
    /// What was planted in it, if anything.
    pub bug: Option<Bug>,
    /// What went wrong first.
    pub cause: Cause,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Cause::Violation(violation) => write!(f, "{violation}")?,
            Cause::Panic(message) => write!(f, "panicked: {message}")?,
        }
        if let Some(bug) = self.bug {
            write!(f, " (planted: {bug:?})")?;
        }
        let seed = self.scenario.seed;
        write!(f, "\n  {}\n  BLKMQ_SOAK_FIRST={seed} BLKMQ_SOAK_SEEDS=1 repeats it", self.scenario)
    }
}

impl std::error::Error for Failure {}

/// Runs the scenario of `seed`, with `bug` planted in it if there is one.
///
/// # Errors
/// If anything that must hold did not, panics of the engine included.
pub fn soak(seed: u64, bug: Option<Bug>) -> Result<Outcome, Box<Failure>> {
    let scenario = Scenario::draw(seed);
    let run = catch_unwind(AssertUnwindSafe(|| run(&scenario, bug)));
    let cause = match run {
        Ok(Ok(outcome)) => return Ok(outcome),
        Ok(Err(violation)) => Cause::Violation(violation),
        Err(panic) => Cause::Panic(message(&*panic)),
    };
    Err(Box::new(Failure { scenario, bug, cause }))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "with something that is no text".to_owned())
}

fn run(scenario: &Scenario, bug: Option<Bug>) -> Result<Outcome, Violation> {
    let config = scenario.config();
    let limits = config.device.limits;
    let subject = Subject::new(config, scenario.slack(), bug);
    let subject = subject.expect("scenarios are drawn from what queues can be built for");
    let mut world = World::new(&subject, scenario.costs, scenario.plans(limits));
    if let Some(meddling) = scenario.meddling {
        world.meddle(meddling, scenario.seed, bug);
    }
    world.submit_all(scenario.most_events())?;
    world.finish(scenario.most_events())?;
    subject.check_at_rest()?;
    Ok(Outcome {
        hash: subject.hash(),
        events: world.events(),
        ended_at: world.now(),
        stats: subject.stats(),
        flushes: subject.flushes(),
    })
}
