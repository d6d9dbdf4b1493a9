//! Virtual time: CPUs take turns at one queue, one event after another.
//!
//! The world knows the time of each CPU's next turn, and which CPUs sleep. It has no clock, no thread and no
//! randomness of its own: the same subject and plans give the same run, event by event. The work of a turn is in
//! `cpu.rs`; the conditions that must hold after it, in `oracle.rs`.

use crate::body::Costs;
use crate::cpu::{Cpu, Plan, Turn};
use crate::operator::Operator;
use crate::scenario::Meddling;
use crate::timeline::{Timeline, Wake, Who};
use crate::{Bug, Subject, Violation};
use blkmq_core::{HwQueue, Instant, Nanos, Rng};
use blkmq_engine::PumpMode;

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
        self.operator.as_ref().map_or(0, Operator::done)
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
        self.cpus.iter().all(Cpu::is_finished)
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
