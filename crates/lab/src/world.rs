//! Virtual time: CPUs take turns at one queue, one event after another, and an operator changes its plan while I/O
//! runs, or freezes or quiesces it for a while.
//!
//! The world knows the time of each CPU's next turn, and which CPUs sleep. It has no clock, no thread and no
//! randomness of its own: the same subject and plans give the same run, event by event. The work of a turn is in
//! `cpu.rs`; the conditions that must hold after it, in `oracle.rs`.
//!
//! One change of the operator follows another; each is drawn from the seed at its time, and stepped as the runtime
//! steps it. Their number is limited, so that the run can end.

use crate::cpu::{Costs, Cpu, Plan, Timeline, Turn, Wake, Who};
use crate::oracle::{Evidence, Oracle};
use crate::scenario::{Meddling, STATS, group_name, some_goal, some_limits};
use crate::subject::{self, Bug};
use crate::{Stamp, Subject, Violation, draw, policies};
use blkmq_core::{HwQueue, Instant, Nanos, Rng};
use blkmq_engine::{
    Access, Change, Freeze, GroupError, GroupTree, Modes, NoMerges, Plan as QueuePlan, PumpMode,
    Queue, Quiesce,
};
use blkmq_sched::{Factory, Options, Scope};
use std::convert::Infallible;

/// A subject and the virtual CPUs that use it.
///
/// Pump threads, if the queue has them, are CPUs of their own. A CPU that is parked is woken by the engine's
/// [`Host`](blkmq_engine::Host) calls, after the cost of a wake-up, or by the deadline that the engine named
/// when it parked.
pub struct World<'q> {
    subject: &'q Subject,
    costs: Costs,
    timeline: Timeline,
    /// The list that wake-ups are taken into; empty between turns.
    wakes: Vec<Wake>,
    cpus: Vec<Cpu>,
    operator: Option<Operator>,
    /// The longest delay of pump threads, and the generator that draws each delay.
    late: (Nanos, Rng),
}

impl<'q> World<'q> {
    /// A CPU for each of `plans`, all of which begin at time zero.
    ///
    /// # Panics
    /// If the queue was built for fewer submitters.
    #[must_use]
    pub fn new(subject: &'q Subject, costs: Costs, plans: Vec<Plan>) -> Self {
        Self::beginning(Instant::ZERO, subject, costs, plans)
    }

    /// Like [`new`](Self::new), but the clock begins at `begin`: the queue is made at time zero, as always, and gets
    /// no call before `begin`.
    ///
    /// # Panics
    /// If the queue was built for fewer submitters.
    #[must_use]
    pub fn beginning(begin: Instant, subject: &'q Subject, costs: Costs, plans: Vec<Plan>) -> Self {
        let cpus: Vec<_> = plans
            .into_iter()
            .enumerate()
            .map(|(at, plan)| {
                let submitter = subject.queue.submitter();
                let submitter = submitter.expect("the queue was built for as many CPUs");
                assert_eq!(usize::from(submitter.id().0), at, "numbers are given out in order");
                Cpu::new(submitter, plan)
            })
            .collect();
        let pumps = match subject.pump {
            PumpMode::Inline | PumpMode::Owner => 0,
            PumpMode::Thread => subject.shape.hw_queues,
        };
        let mut world = Self {
            subject,
            costs,
            timeline: Timeline::new(begin, cpus.len(), pumps),
            wakes: Vec::new(),
            cpus,
            operator: None,
            late: (Nanos::ZERO, Rng::new(0)),
        };
        for at in 0..world.cpus.len() {
            world.timeline.schedule(Who::Cpu(at), Some(begin));
        }
        for hw in (0..pumps).map(HwQueue) {
            world.timeline.schedule(Who::Pump(hw), Some(begin));
        }
        world
    }

    /// From now on an operator changes the queue from time to time, with `bug` in the policies that it builds.
    pub fn meddle(&mut self, meddling: Meddling, seed: u64, bug: Option<Bug>) {
        self.operator = Some(Operator::new(meddling, !seed, bug));
        self.timeline.schedule(Who::Operator, Some(self.now()));
    }

    /// From now on pump threads are late, by up to `most` each time.
    pub fn delay_pumps(&mut self, most: Nanos, seed: u64) {
        self.late = (most, Rng::new(seed));
    }

    /// The delay of a pump thread this time.
    fn late(&mut self) -> Nanos {
        let (most, rng) = &mut self.late;
        Nanos(if most.0 > 0 { rng.below(most.0 + 1) } else { 0 })
    }

    /// The number of changes and holds of the queue so far.
    #[must_use]
    pub fn changes(&self) -> u32 {
        self.operator.as_ref().map_or(0, |operator| operator.done)
    }

    /// The virtual time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.timeline.now()
    }

    /// The number of events so far.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.timeline.events()
    }

    /// The number of I/Os that have not ended.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.subject.oracle.with(|oracle| oracle.in_flight())
    }

    /// Returns whether every client has submitted all its I/Os.
    #[must_use]
    pub fn all_submitted(&self) -> bool {
        self.cpus.iter().all(|cpu| cpu.finished)
    }

    /// Runs until every client has submitted all its I/Os, within `events` events.
    ///
    /// # Errors
    /// The first violation.
    pub fn submit_all(&mut self, events: u64) -> Result<(), Violation> {
        self.run(events, Self::all_submitted)
    }

    /// Runs until every I/O has ended, within `events` events.
    ///
    /// # Errors
    /// The first violation.
    pub fn finish(&mut self, events: u64) -> Result<(), Violation> {
        self.run(events, |world| world.all_submitted() && world.in_flight() == 0)
    }

    /// Runs up to the first event at or after `until`, or until every I/O has ended, within `events` events.
    ///
    /// # Errors
    /// The first violation.
    pub fn run_until(&mut self, until: Instant, events: u64) -> Result<(), Violation> {
        let over = |world: &Self| world.all_submitted() && world.in_flight() == 0;
        self.run(events, |world| world.now() >= until || over(world))
    }

    fn run(&mut self, events: u64, is_over: impl Fn(&Self) -> bool) -> Result<(), Violation> {
        let limit = self.events() + events;
        while !is_over(self) {
            if self.events() == limit {
                return Err(Violation::Endless { in_flight: self.in_flight(), events });
            }
            let Some(who) = self.timeline.next_turn() else {
                return Err(Violation::Stuck { in_flight: self.in_flight(), since: self.now() });
            };
            let now = self.now();
            self.subject.oracle.with(|oracle| {
                oracle.advance(now);
                oracle.check()
            })?;
            self.turn(who)?;
            self.subject.check()?;
        }
        Ok(())
    }

    fn turn(&mut self, who: Who) -> Result<(), Violation> {
        let now = self.now();
        let number = match who {
            Who::Cpu(at) => at as u64,
            Who::Pump(hw) => 1 << 32 | u64::from(hw.0),
            Who::Operator => 1 << 33,
        };
        self.subject.oracle.with(|oracle| oracle.acts(now, number));
        let next = match who {
            Who::Cpu(at) => self.turn_of_cpu(at)?,
            Who::Pump(hw) => {
                let due = self.subject.queue.pump(hw, now).filter(|at| *at < Instant::MAX);
                due.map(|at| at.max(now + self.costs.poll) + self.late())
            }
            Who::Operator => {
                let Subject { queue, oracle, .. } = self.subject;
                let operator = self.operator.as_mut().expect("there is one");
                operator.turn(now, queue, oracle)
            }
        };
        self.timeline.schedule(who, next);
        let mut wakes = std::mem::take(&mut self.wakes);
        self.subject.wakes.take_into(&mut wakes);
        wakes.drain(..).for_each(|wake| self.wake(wake));
        self.wakes = wakes;
        Ok(())
    }

    fn turn_of_cpu(&mut self, at: usize) -> Result<Option<Instant>, Violation> {
        let turn = Turn {
            now: self.now(),
            queue: &self.subject.queue,
            costs: &self.costs,
            oracle: &self.subject.oracle,
        };
        Ok(self.cpus[at].turn(&turn)?.at())
    }

    /// The engine asks for a wake-up. A thread that is awake is not affected.
    fn wake(&mut self, wake: Wake) {
        let who = match wake {
            Wake::Submitter(id) if !self.cpus[usize::from(id.0)].is_parked() => return,
            Wake::Submitter(id) => Who::Cpu(id.0.into()),
            Wake::Pump(hw) => Who::Pump(hw),
        };
        let late = if matches!(who, Who::Pump(_)) { self.late() } else { Nanos::ZERO };
        self.timeline.wake(who, Nanos(self.costs.wake.0 + late.0));
    }
}

/// The action under way.
enum Doing {
    Nothing,
    Changing(Change<Stamp>),
    Freezing(Freeze<Stamp>),
    Quiescing(Quiesce<Stamp>),
}

pub(crate) struct Operator {
    meddling: Meddling,
    rng: Rng,
    doing: Doing,
    /// The end of a hold that has been reached.
    until: Option<Instant>,
    done: u32,
    /// Steps taken for the action under way.
    steps: u32,
    bug: Option<Bug>,
}

/// The real policy with the name of the recorded one.
fn real(recorded: &Factory) -> &'static Factory {
    policies::find(recorded.name).expect("recorded policies are those that are known")
}

impl Operator {
    pub(crate) fn new(meddling: Meddling, seed: u64, bug: Option<Bug>) -> Self {
        let (doing, until) = (Doing::Nothing, None);
        Self { meddling, rng: Rng::new(seed), doing, until, done: 0, steps: 0, bug }
    }

    fn some(&mut self, most: Nanos) -> Nanos {
        Nanos(1 + self.rng.below(most.0.max(1)))
    }

    /// One turn. Returns the time of the next one, if there is one.
    pub(crate) fn turn(
        &mut self,
        now: Instant,
        queue: &Queue<Stamp>,
        oracle: &Oracle,
    ) -> Option<Instant> {
        // The pauses grow with the number of steps: the obstacle may be a lost request.
        let soon = now + self.some(Nanos(2_000 << self.steps.min(17)));
        self.steps += 1;
        match std::mem::replace(&mut self.doing, Doing::Nothing) {
            Doing::Nothing => {
                self.steps = 0;
                return self.begin(now, queue, oracle);
            }
            Doing::Changing(mut change) => {
                if !change.step(now) {
                    self.doing = Doing::Changing(change);
                    return Some(soon);
                }
                let plan = queue.plan();
                oracle.with(|oracle| oracle.rebuilt(plan.shards(), plan.budget()));
            }
            Doing::Freezing(mut freeze) => {
                let frozen = freeze.step(now);
                if self.is_held(now, frozen) {
                    if self.until.is_some() {
                        oracle.with(Evidence::check_frozen);
                    }
                    self.doing = Doing::Freezing(freeze);
                    return Some(soon);
                }
            }
            Doing::Quiescing(mut quiesce) => {
                let quiesced = quiesce.step(now);
                if quiesced && self.until.is_none() {
                    oracle.with(|oracle| oracle.hold(now, true));
                }
                if self.is_held(now, quiesced) {
                    self.doing = Doing::Quiescing(quiesce);
                    return Some(soon);
                }
                oracle.with(|oracle| oracle.hold(now, false));
            }
        }
        self.until = None;
        self.done += 1;
        (self.done < self.meddling.most).then(|| now + self.some(self.meddling.pause))
    }

    /// Returns whether a hold must continue. It lasts for a while from the moment at which it took effect.
    fn is_held(&mut self, now: Instant, reached: bool) -> bool {
        match self.until {
            Some(until) => now < until,
            None => {
                if reached {
                    self.until = Some(now + self.some(self.meddling.hold));
                }
                true
            }
        }
    }

    fn begin(&mut self, now: Instant, queue: &Queue<Stamp>, oracle: &Oracle) -> Option<Instant> {
        self.doing = match self.rng.below(8) {
            0 => Doing::Freezing(queue.freeze()),
            1 => {
                // Duties that arise from now on are due when the hold ends.
                oracle.with(|oracle| oracle.hold(now, true));
                Doing::Quiescing(queue.quiesce())
            }
            _ => {
                let plan = self.change(oracle, queue.plan());
                let recorded = subject::Plan {
                    factory: real(plan.scheduler),
                    oracle: oracle.clone(),
                    bug: self.bug,
                };
                let edit = |current: &mut QueuePlan| {
                    *current = plan;
                    Ok::<(), Infallible>(())
                };
                let change = subject::build_with(recorded, || queue.edit(edit));
                Doing::Changing(change.expect("what is drawn is possible"))
            }
        };
        Some(now)
    }

    /// A plan that differs by one choice or two.
    fn change(&mut self, oracle: &Oracle, mut plan: QueuePlan) -> QueuePlan {
        for _ in 0..=self.rng.below(2) {
            // A tree without groups stays without them.
            match self.rng.below(if plan.groups.is_empty() { 7 } else { 9 }) {
                0 | 1 => {
                    let all = policies::all();
                    let next = all[self.rng.below(all.len() as u64) as usize];
                    plan = plan.scheduler(subject::factory(next));
                }
                2 => plan.nr_requests = Some(1 + self.rng.below(128) as u32),
                3 => {
                    let (_, access) = Access::ALL[self.rng.below(4) as usize];
                    plan = plan.access(access);
                    // The kick mode stays, since it bounds how late events may be.
                    plan.modes =
                        Modes { kick: plan.modes.kick, ..draw::modes(&mut self.rng, access) };
                }
                4 => {
                    let scopes = [None, Some(Scope::Queue), Some(Scope::HwQueue)];
                    plan.scope = scopes[self.rng.below(3) as usize];
                }
                5 => {
                    let all = [NoMerges::All, NoMerges::Simple, NoMerges::None];
                    plan.nomerges = all[self.rng.below(3) as usize];
                }
                6 => plan.device_depth = draw::device_depth(&mut self.rng),
                _ => {
                    oracle.with(|oracle| oracle.rates.forget());
                    self.regroup(&mut plan.groups);
                }
            }
        }
        if self.rng.chance(1, 2) {
            let attributes = plan.scheduler.attributes;
            let text = draw::options(&mut self.rng, attributes);
            plan.options = Options::parse(attributes, &text).expect("options are the policy's");
        }
        if plan.groups.has_goals() {
            oracle.with(Evidence::has_goals);
            plan.scope = None;
        }
        if self.rng.chance(1, 4) {
            (_, plan.stats) = STATS[self.rng.below(4) as usize];
        }
        plan
    }
}

impl Operator {
    /// Adds or removes a group, or gives it another weight or other limits; does nothing if that is not possible.
    fn regroup(&mut self, groups: &mut GroupTree) {
        let number = groups.iter().count() as u64;
        let some = groups.iter().nth(self.rng.below(number) as usize);
        let name = some.map(|group| group.name.clone()).unwrap_or_default();
        let done = match self.rng.below(5) {
            0 => groups.set_weight(&name, 1 + self.rng.below(1000) as u32),
            1 => groups.set_max(&name, some_limits(&mut self.rng, 2)),
            2 => groups.set_promise(&name, some_goal(&mut self.rng, 2)),
            3 => groups.add(&group_name(1 + self.rng.below(100) as u16), &name).map(|_| ()),
            // One group always stays, so that there is something to change.
            _ if number > 1 => groups.remove(&name),
            _ => Ok(()),
        };
        let is_known =
            matches!(done, Ok(()) | Err(GroupError::HasChildren { .. } | GroupError::Exists(_)));
        assert!(is_known, "groups are changed by their names: {done:?}");
    }
}
