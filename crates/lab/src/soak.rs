//! One scenario with all oracles: the run behind `cargo xtask soak`.
//!
//! A run has two phases. In the first the clients submit, faults strike, the power may be cut, and no promise may be
//! broken. In the second no client submits; faults end, and every I/O must end too, without waiting longer than the
//! times that the engine itself names.
//!
//! A failing run can be printed in one line and repeated ([`Replay`]), and shrunk: the same failure with fewer CPUs,
//! fewer I/Os, and fewer features switched on. Shrinking tries one change after another and keeps it if the run still
//! fails in the same way, beginning with those that make runs short. It ends when no change is left, or after a number
//! of runs. The seed is part of the scenario: if a change makes the failure disappear, small seeds are tried with it,
//! since another stream of I/Os may show the failure as well.
//!
//! A [`Tally`] records the conditions that many runs reached, so that "passed" does not hide "was not tested".

use crate::contents::{Contents, Mains};
use crate::oracle::EventHash;
use crate::scenario::{FIELDS, Field, Kind, ScenarioError};
use crate::{Bug, FlushFates, Scenario, Subject, Violation, World};
use blkmq_core::{Instant, SECTOR_SIZE};
use blkmq_device::Device;
use blkmq_device::registry::{self, Argument};
use blkmq_engine::QueueStats;
use std::any::Any;
use std::fmt;
use std::ops::AddAssign;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;

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

    /// Runs until the whole machine stops, with I/O in flight or not.
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
            compared = contents.compared;
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

/// A run that can be repeated.
#[derive(Clone, Debug)]
pub struct Replay {
    /// Its scenario.
    pub scenario: Scenario,
    /// The planted bug.
    pub bug: Option<Bug>,
}

/// Why a text describes no run.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReplayError {
    /// No such bug can be planted.
    #[error(
        "no bug '{0}'; accepted: {all}",
        all = Bug::ALL.map(|bug| format!("{bug:?}")).join(", ")
    )]
    Bug(String),
    /// The rest is no scenario.
    #[error("{0}")]
    Scenario(ScenarioError),
}

const BUG: &str = "bug=";

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.scenario.fmt(f)?;
        if let Some(bug) = self.bug {
            write!(f, " {BUG}{bug:?}")?;
        }
        Ok(())
    }
}

impl FromStr for Replay {
    type Err = ReplayError;

    fn from_str(text: &str) -> Result<Self, ReplayError> {
        let (bugs, rest): (Vec<&str>, Vec<&str>) =
            text.split_whitespace().partition(|word| word.starts_with(BUG));
        let mut bug = None;
        for word in bugs {
            let name = &word[BUG.len()..];
            let found = Bug::ALL.into_iter().find(|bug| format!("{bug:?}") == name);
            bug = Some(found.ok_or_else(|| ReplayError::Bug(name.to_owned()))?);
        }
        let scenario = rest.join(" ").parse().map_err(ReplayError::Scenario)?;
        Ok(Self { scenario, bug })
    }
}

/// A condition that a run may reach.
struct Reach {
    name: &'static str,
    amount: fn(&Outcome) -> u64,
}

/// The conditions, in the order in which they are printed.
const REACHES: &[Reach] = &[
    Reach { name: "merges", amount: |o| o.stats.merges.total() },
    Reach { name: "splits", amount: |o| o.stats.splits },
    Reach { name: "staged", amount: |o| o.stats.staged },
    Reach { name: "parked", amount: |o| o.stats.locks.parked },
    Reach { name: "merges_skipped", amount: |o| o.stats.locks.merges_skipped },
    Reach { name: "sent_away", amount: |o| o.stats.locks.left },
    Reach { name: "flushes", amount: |o| o.flushes.ended() },
    Reach { name: "busy", amount: |o| o.stats.busy },
    Reach { name: "requeues", amount: |o| o.stats.requeues - o.stats.retries },
    Reach { name: "tail_requeues", amount: |o| o.stats.tail_requeues },
    Reach { name: "taken_apart", amount: |o| o.stats.taken_apart },
    Reach { name: "timeouts", amount: |o| o.stats.timeouts },
    Reach { name: "retries", amount: |o| o.stats.retries },
    Reach { name: "cancelled", amount: |o| o.stats.cancelled.total() },
    Reach { name: "throttled", amount: |o| o.stats.throttled },
    Reach { name: "changes", amount: |o| o.changes.into() },
    Reach { name: "power_cuts", amount: |o| o.cuts.into() },
    Reach { name: "lost_blocks", amount: |o| o.lost },
    Reach { name: "compared_blocks", amount: |o| o.compared },
];

/// The number of runs, and for each condition the number of runs that reached it. Prints `name=number` pairs; those
/// of two tallies may be added up.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    seeds: u64,
    ios: u64,
    events: u64,
    reached: [u64; REACHES.len()],
}

impl Tally {
    /// Adds a run.
    pub fn count(&mut self, outcome: &Outcome) {
        self.seeds += 1;
        self.ios += outcome.stats.submitted - outcome.stats.splits;
        self.events += outcome.events;
        for (reached, Reach { amount, .. }) in self.reached.iter_mut().zip(REACHES) {
            *reached += u64::from(amount(outcome) > 0);
        }
    }

    /// The number of runs that reached the condition called `name`; `None` if there is no such condition.
    #[must_use]
    pub fn reached(&self, name: &str) -> Option<u64> {
        let at = REACHES.iter().position(|reach| reach.name == name)?;
        Some(self.reached[at])
    }

    /// The names of all conditions.
    pub fn names() -> impl Iterator<Item = &'static str> {
        REACHES.iter().map(|reach| reach.name)
    }
}

impl AddAssign<&Self> for Tally {
    fn add_assign(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.ios += other.ios;
        self.events += other.events;
        for (sum, more) in self.reached.iter_mut().zip(other.reached) {
            *sum += more;
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seeds={} ios={} events={}", self.seeds, self.ios, self.events)?;
        for (reached, Reach { name, .. }) in self.reached.iter().zip(REACHES) {
            write!(f, " {name}={reached}")?;
        }
        Ok(())
    }
}

/// Other seeds tried with each change.
const SEEDS: [u64; 3] = [1, 2, 3];

/// Numbers not farther from the plain one than this are tried one by one.
const NEAR: u64 = 64;

/// A shrunk failure.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// The smaller failure, of the same kind.
    pub failure: Box<Failure>,
    /// The number of runs that shrinking took.
    pub runs: u32,
}

/// Makes `failure` smaller in at most `most` runs.
#[must_use]
pub fn shrink(failure: Box<Failure>, most: u32) -> Shrunk {
    let mut search = Search { best: failure, runs: 0, most };
    while search.round() {}
    Shrunk { failure: search.best, runs: search.runs }
}

struct Search {
    best: Box<Failure>,
    runs: u32,
    most: u32,
}

impl Search {
    /// Tries to reduce every field once. Returns true if any became smaller and there are runs left.
    fn round(&mut self) -> bool {
        let mut smaller = false;
        for field in FIELDS.iter().filter(|field| field.key != "seed") {
            // Repeated while it helps: a number is halved, a list loses one item after another.
            while self.runs < self.most && self.reduce(field) {
                smaller = true;
            }
        }
        smaller && self.runs < self.most
    }

    /// Tries smaller values of one field.
    fn reduce(&mut self, field: &Field) -> bool {
        let now = field.text(&self.best.replay.scenario);
        let smaller = smaller(field, &now);
        smaller.iter().any(|value| {
            let mut scenario = self.best.replay.scenario.clone();
            field.set(&mut scenario, value).is_ok() && self.attempt(&scenario)
        })
    }

    /// Keeps `scenario`, or a variant with another seed, if it fails in the same way.
    fn attempt(&mut self, scenario: &Scenario) -> bool {
        if scenario.check().is_err() {
            return false;
        }
        let own = scenario.seed;
        std::iter::once(own).chain(SEEDS.into_iter().filter(|seed| *seed != own)).any(|seed| {
            if self.runs == self.most {
                return false;
            }
            self.runs += 1;
            let scenario = Scenario { seed, ..scenario.clone() };
            let found = run(&Replay { scenario, bug: self.best.replay.bug }).err();
            let found = found.filter(|found| found.cause.is_like(&self.best.cause));
            found.map(|found| self.best = found).is_some()
        })
    }
}

/// Smaller values of a field that has the value `now`, the smallest first.
fn smaller(field: &Field, now: &str) -> Vec<String> {
    let plain = field.text(&Scenario::plain());
    let mut values = match field.kind {
        Kind::Number { .. } => smaller_numbers(&plain, now),
        Kind::Word { .. } => vec![plain],
        Kind::List { .. } => shorter_lists(plain, now),
    };
    values.retain(|value| value != now);
    values
}

/// The plain number; a number half way to it; an eighth of the way; one less, unless that would take too many runs.
fn smaller_numbers(plain: &str, now: &str) -> Vec<String> {
    let number = |text: &str| text.parse().expect("it was printed as a number");
    let (plain, now): (u64, u64) = (number(plain), number(now));
    let mut values = vec![plain];
    if now > plain {
        values.extend([plain + (now - plain) / 2, now - ((now - plain) / 8).max(1)]);
        values.extend((now - plain <= NEAR).then(|| now - 1));
        values.dedup();
    }
    values.iter().map(u64::to_string).collect()
}

/// The plain list; a device without the device around it; the list without one of its items.
fn shorter_lists(plain: String, now: &str) -> Vec<String> {
    let (around, inside) = match now.split_once(':') {
        Some((around, inside)) if stands_around(around) => (Some(around), inside),
        _ => (None, now),
    };
    let mut lists = vec![plain];
    lists.extend(around.map(|_| inside.to_owned()));
    let wrap = |list: String| around.map_or(list.clone(), |around| format!("{around}:{list}"));
    lists.extend(without_one(inside).map(wrap));
    if let Some(around) = around {
        lists.extend(without_one(around).map(|list| format!("{list}:{inside}")));
    }
    lists
}

/// Returns whether `text` begins the description of a device that wraps another one.
fn stands_around(text: &str) -> bool {
    let name = text.split(',').next().unwrap_or_default();
    registry::find(name).is_some_and(|factory| factory.argument == Argument::Device)
}

fn without_one(list: &str) -> impl Iterator<Item = String> {
    let items: Vec<&str> = list.split(',').collect();
    (0..items.len()).map(move |at| {
        let mut rest = items.clone();
        rest.remove(at);
        rest.join(",")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bug_is_part_of_the_line() {
        let line = "seed=3 cpus=2 ios=9 bug=LostRequest";
        let replay: Replay = line.parse().expect("right");
        assert_eq!(replay.bug, Some(Bug::LostRequest));
        assert_eq!(replay.to_string(), line);
        let error = "bug=Beetle".parse::<Replay>().expect_err("no such bug").to_string();
        assert!(error.contains("no bug 'Beetle'; accepted: LostWakeUp, "), "{error}");
        assert!("cpus=0".parse::<Replay>().is_err());
    }

    #[test]
    fn numbers_and_lists_become_smaller() {
        assert_eq!(smaller_numbers("1", "9"), ["1", "5", "8"]);
        assert_eq!(smaller_numbers("0", "32"), ["0", "16", "28", "31"]);
        assert_eq!(smaller_numbers("0", "8000"), ["0", "4000", "7000"]);
        assert_eq!(smaller_numbers("64", "2"), ["64"]);
        let lists = |now| shorter_lists("null".to_owned(), now).join(" ");
        assert_eq!(lists("a=1,b=2"), "null b=2 a=1");
        let faulty = "null null,bs=512 faults,times=1:bs=512 faults,times=1:null times=1:null,bs=512 \
                      faults:null,bs=512";
        assert_eq!(lists("faults,times=1:null,bs=512"), faulty);
        assert_eq!(lists("null,resource=1:5:0:1"), "null resource=1:5:0:1 null");
    }
}
