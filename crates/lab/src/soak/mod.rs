//! One scenario, all oracles: the run behind `cargo xtask soak`.
//!
//! A run has two phases. In the first the clients submit, faults strike, the power may be cut, and no promise may be
//! broken. In the second no client submits any more; faults come to an end, and every I/O must end too, without any
//! of them waiting longer than the times that the engine itself names.
//!
//! A failing run can be printed in one line and run again (`replay.rs`), and made smaller (`shrink.rs`).

mod replay;
mod shrink;
mod tally;

pub use replay::{Replay, ReplayError};
pub use shrink::{Shrunk, shrink};
pub use tally::Tally;

use crate::contents::Contents;
use crate::hash::EventHash;
use crate::power::Mains;
use crate::{Bug, FlushFates, Scenario, Subject, Violation, World};
use blkmq_core::{Instant, SECTOR_SIZE};
use blkmq_device::Device;
use blkmq_engine::QueueStats;
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The outcome of a run without a violation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The hash of all events: equal for two runs of one scenario.
    pub hash: u64,
    /// The number of events.
    pub events: u64,
    /// The time at which the last I/O ended.
    pub ended_at: Instant,
    /// The queue's counters; of the last one, if the power was cut.
    pub stats: QueueStats,
    /// The outcomes of flushes at the device, likewise.
    pub flushes: FlushFates,
    /// Changes and holds of the queue, likewise.
    pub changes: u32,
    /// Power cuts.
    pub cuts: u32,
    /// Blocks that lost their newest write in power cuts.
    pub lost: u64,
    /// Blocks that were compared with their expected contents.
    pub compared: u64,
}

/// The cause of a failure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cause {
    /// An oracle found a violation.
    Violation(Violation),
    /// The engine, a policy or a device panicked because of a contradiction.
    Panic(String),
}

impl Cause {
    /// Returns whether both causes are of the same kind.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Violation(one), Self::Violation(other)) => {
                std::mem::discriminant(one) == std::mem::discriminant(other)
            }
            (Self::Panic(_), Self::Panic(_)) => true,
            _ => false,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Violation(violation) => write!(f, "{violation}"),
            Self::Panic(message) => write!(f, "panicked: {message}"),
        }
    }
}

/// A run that failed. Prints the cause and the line that repeats the run.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{cause}\n  cargo xtask soak --replay '{replay}'")]
pub struct Failure {
    /// The run.
    pub replay: Replay,
    /// The first thing that went wrong.
    pub cause: Cause,
}

/// Runs the scenario of `seed`, with `bug` planted in it if there is one.
///
/// # Errors
/// If any condition was violated, panics of the engine included.
pub fn soak(seed: u64, bug: Option<Bug>) -> Result<Outcome, Box<Failure>> {
    run(&Replay { scenario: Scenario::draw(seed), bug })
}

/// Runs a scenario.
///
/// # Errors
/// If any condition was violated, panics of the engine included; and if the scenario is impossible, as
/// [`Scenario::check`] says.
pub fn run(replay: &Replay) -> Result<Outcome, Box<Failure>> {
    let ended = catch_unwind(AssertUnwindSafe(|| live(&replay.scenario, replay.bug)));
    let cause = match ended {
        Ok(Ok(outcome)) => return Ok(outcome),
        Ok(Err(violation)) => Cause::Violation(violation),
        Err(panic) => Cause::Panic(message(&*panic)),
    };
    Err(Box::new(Failure { replay: replay.clone(), cause }))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "with something that is no text".to_owned())
}

/// A device from its first queue to its last.
struct Lives<'a> {
    scenario: &'a Scenario,
    bug: Option<Bug>,
    device: Device,
    mains: Mains,
    contents: Option<Contents>,
    hash: EventHash,
    events: u64,
    cuts: u32,
    lost: u64,
}

fn live(scenario: &Scenario, bug: Option<Bug>) -> Result<Outcome, Violation> {
    let device = scenario.device().expect("scenarios are drawn from the registry's devices");
    let store = device.memory().cloned();
    let shape = &device.shape;
    let block = shape.limits.logical_block_size / SECTOR_SIZE;
    let mut lives = Lives {
        scenario,
        bug,
        contents: store.is_some().then(|| Contents::new(shape.cache, block)),
        mains: Mains::new(scenario.power, scenario.seed, store),
        device,
        hash: EventHash::new(),
        events: 0,
        cuts: 0,
        lost: 0,
    };
    let machine_cuts = if scenario.power.device_only { 0 } else { scenario.power.most };
    for life in 0..machine_cuts {
        lives.until_the_power_goes(life)?;
    }
    lives.finish(machine_cuts)
}

impl Lives<'_> {
    /// A queue around the present contents of the device, for life number `life`.
    fn subject(&mut self, life: u32) -> Subject {
        let config = self.scenario.config(&self.device);
        let subject = Subject::new(config, self.scenario.slack(), self.bug);
        let subject = subject.expect("scenarios are drawn from what queues can be built for");
        let block = self.device.shape.limits.logical_block_size / SECTOR_SIZE;
        subject.scatter(self.scenario.load.range * block);
        if let Some(contents) = self.contents.take() {
            subject.keep(contents, life);
        }
        subject
    }

    fn world<'q>(&self, subject: &'q Subject, life: u32) -> World<'q> {
        let Self { scenario, bug, device, .. } = self;
        let plans = scenario.plans(device.shape.limits, &subject.queue.plan().groups, life);
        let mut world = World::beginning(scenario.begin, subject, scenario.costs, plans);
        world.delay_pumps(scenario.pump_late, scenario.seed);
        if scenario.meddling.most > 0 {
            world.meddle(scenario.meddling, scenario.seed, *bug);
        }
        world
    }

    /// The whole machine stops at some time, with I/O in flight or not.
    fn until_the_power_goes(&mut self, life: u32) -> Result<(), Violation> {
        let subject = self.subject(life);
        let mut world = self.world(&subject, life);
        let until = self.mains.next(world.now());
        world.run_until(until, self.scenario.most_events())?;
        self.mains.cut();
        self.events += world.events();
        self.hash.note(&[subject.hash()]);
        drop(world);
        self.contents = subject.take_contents();
        drop(subject);
        self.after_cut(true)
    }

    /// The power of the whole machine or of the device was cut. Checks the surviving contents.
    fn after_cut(&mut self, all: bool) -> Result<(), Violation> {
        self.cuts += 1;
        if let Some(contents) = &mut self.contents {
            let lost = contents.cut(all, |sector, sectors| self.mains.look(sector, sectors))?;
            self.lost += lost;
        }
        Ok(())
    }

    /// The last life: every I/O is submitted, and every I/O ends.
    fn finish(mut self, life: u32) -> Result<Outcome, Violation> {
        let scenario = self.scenario;
        let subject = self.subject(life);
        let mut world = self.world(&subject, life);
        if scenario.power.device_only {
            for _ in 0..scenario.power.most {
                let until = self.mains.next(world.now());
                world.run_until(until, scenario.most_events())?;
                self.mains.cut();
                self.contents = subject.take_contents();
                self.after_cut(false)?;
                if let Some(contents) = self.contents.take() {
                    subject.keep(contents, life);
                }
            }
        }
        world.submit_all(scenario.most_events())?;
        world.finish(scenario.most_events())?;
        subject.check_at_rest()?;
        self.contents = subject.take_contents();
        let mut compared = 0;
        if let Some(contents) = &mut self.contents {
            contents.check_at_rest(|sector, sectors| self.mains.look(sector, sectors))?;
            compared = contents.compared();
        }
        self.hash.note(&[subject.hash()]);
        Ok(Outcome {
            hash: self.hash.get(),
            events: self.events + world.events(),
            ended_at: world.now(),
            stats: subject.stats(),
            flushes: subject.flushes(),
            changes: world.changes(),
            cuts: self.cuts,
            lost: self.lost,
            compared,
        })
    }
}
