//! Virtual time: CPUs taking turns at one queue, one event after the other.
//!
//! The world knows who has its next turn when, and who sleeps. It has no clock, no thread and no chance of its
//! own: the same subject and plans give the same run, event by event. What a turn does is in `cpu.rs`; what
//! must hold afterwards, in `oracle.rs`.

use crate::agenda::Agenda;
use crate::costs::Costs;
use crate::cpu::{Cpu, Next, Plan, Turn};
use crate::host::Wake;
use crate::operator::{Meddling, Operator};
use crate::{Bug, Subject, Violation};
use blkmq_core::{HwQueue, Instant};
use blkmq_engine::PumpMode;

/// Somebody's next turn, unless it was rescheduled since.
#[derive(Clone, Copy)]
struct Event {
    who: Who,
    epoch: u64,
}

#[derive(Clone, Copy)]
enum Who {
    Cpu(usize),
    /// A pump thread.
    Pump(HwQueue),
    /// Whoever changes the queue.
    Operator,
}

/// When somebody has its next turn.
#[derive(Clone, Copy, Default)]
struct Scheduled {
    at: Option<Instant>,
    /// Events of earlier epochs do not count any more.
    epoch: u64,
}

/// A subject and the virtual CPUs that use it.
///
/// Pump threads, if the queue has them, are CPUs of their own. A CPU that is parked is woken by the engine's
/// [`Host`](blkmq_engine::Host) calls, after what a wake-up costs, or by the deadline that the engine named
/// when it parked.
pub struct World<'q> {
    subject: &'q Subject,
    costs: Costs,
    now: Instant,
    agenda: Agenda<Event>,
    cpus: Vec<(Cpu, Scheduled)>,
    pumps: Vec<Scheduled>,
    operator: Option<(Operator, Scheduled)>,
    events: u64,
}

impl<'q> World<'q> {
    /// A CPU for each of `plans`, all of which begin at time zero.
    ///
    /// # Panics
    /// If the queue was built for fewer.
    #[must_use]
    pub fn new(subject: &'q Subject, costs: Costs, plans: Vec<Plan>) -> Self {
        let cpus: Vec<_> = plans
            .into_iter()
            .enumerate()
            .map(|(at, plan)| {
                let submitter = subject.queue.submitter();
                let submitter = submitter.expect("the queue was built for as many CPUs");
                assert_eq!(usize::from(submitter.id().0), at, "numbers are given out in order");
                (Cpu::new(submitter, plan), Scheduled::default())
            })
            .collect();
        let pumps = match subject.pump {
            PumpMode::Inline => 0,
            PumpMode::Thread => subject.shape.hw_queues,
        };
        let mut world = Self {
            subject,
            costs,
            now: Instant::ZERO,
            agenda: Agenda::new(),
            cpus,
            pumps: vec![Scheduled::default(); pumps.into()],
            operator: None,
            events: 0,
        };
        for at in 0..world.cpus.len() {
            world.schedule(Who::Cpu(at), Some(Instant::ZERO));
        }
        for hw in (0..pumps).map(HwQueue) {
            world.schedule(Who::Pump(hw), Some(Instant::ZERO));
        }
        world
    }

    /// From now on somebody changes the queue now and then, with `bug` in the policies that they build.
    pub fn meddle(&mut self, meddling: Meddling, seed: u64, bug: Option<Bug>) {
        self.operator = Some((Operator::new(meddling, !seed, bug), Scheduled::default()));
        self.schedule(Who::Operator, Some(self.now));
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Events so far.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }

    /// I/Os that have not ended.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.subject.oracle.with(|oracle| oracle.in_flight())
    }

    /// Every client has submitted all that it wants to.
    #[must_use]
    pub fn all_submitted(&self) -> bool {
        self.cpus.iter().all(|(cpu, _)| cpu.is_finished())
    }

    /// Runs until every client has submitted everything, within so many events.
    ///
    /// # Errors
    /// The first violation.
    pub fn submit_all(&mut self, events: u64) -> Result<(), Violation> {
        self.run(events, Self::all_submitted)
    }

    /// Runs until every I/O has ended, within so many events.
    ///
    /// # Errors
    /// The first violation.
    pub fn finish(&mut self, events: u64) -> Result<(), Violation> {
        self.run(events, |world| world.all_submitted() && world.in_flight() == 0)
    }

    fn run(&mut self, events: u64, is_over: impl Fn(&Self) -> bool) -> Result<(), Violation> {
        let limit = self.events + events;
        while !is_over(self) {
            if self.events == limit {
                return Err(Violation::Endless { in_flight: self.in_flight(), events });
            }
            let Some((at, who)) = self.next_event() else {
                return Err(Violation::Stuck { in_flight: self.in_flight(), since: self.now });
            };
            self.now = at;
            self.events += 1;
            self.subject.oracle.with(|oracle| oracle.advance(at));
            self.subject.check()?;
            self.turn(who)?;
            self.subject.check()?;
        }
        Ok(())
    }

    fn next_event(&mut self) -> Option<(Instant, Who)> {
        loop {
            let (at, Event { who, epoch }) = self.agenda.pop()?;
            if self.scheduled(who).epoch == epoch {
                return Some((at, who));
            }
        }
    }

    fn scheduled(&mut self, who: Who) -> &mut Scheduled {
        match who {
            Who::Cpu(at) => &mut self.cpus[at].1,
            Who::Pump(hw) => &mut self.pumps[usize::from(hw.0)],
            Who::Operator => &mut self.operator.as_mut().expect("there is one").1,
        }
    }

    /// The next turn of `who` is at `at`, or when it is woken, and at no other time.
    fn schedule(&mut self, who: Who, at: Option<Instant>) {
        let scheduled = self.scheduled(who);
        scheduled.at = at;
        scheduled.epoch += 1;
        let epoch = scheduled.epoch;
        if let Some(at) = at {
            self.agenda.enter(at, Event { who, epoch });
        }
    }

    fn turn(&mut self, who: Who) -> Result<(), Violation> {
        let now = self.now;
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
                due.map(|at| at.max(now + self.costs.poll))
            }
            Who::Operator => {
                let Subject { queue, oracle, .. } = self.subject;
                let (operator, _) = self.operator.as_mut().expect("there is one");
                operator.turn(now, queue, oracle)
            }
        };
        self.schedule(who, next);
        for wake in self.subject.wakes.take() {
            self.wake(wake);
        }
        Ok(())
    }

    fn turn_of_cpu(&mut self, at: usize) -> Result<Option<Instant>, Violation> {
        let turn = Turn {
            now: self.now,
            queue: &self.subject.queue,
            costs: &self.costs,
            oracle: &self.subject.oracle,
        };
        Ok(match self.cpus[at].0.turn(&turn)? {
            Next::At(at) => Some(at),
            Next::Parked(at) => at,
            Next::Never => None,
        })
    }

    /// The engine wants somebody awake. Who is awake hears nothing of it; who is on the way comes no later.
    fn wake(&mut self, wake: Wake) {
        let who = match wake {
            Wake::Submitter(id) => Who::Cpu(id.0.into()),
            Wake::Pump(hw) => Who::Pump(hw),
        };
        let sleeps = match who {
            Who::Cpu(at) => self.cpus[at].0.is_parked(),
            Who::Pump(_) | Who::Operator => true,
        };
        let at = self.now + self.costs.wake;
        if sleeps && self.scheduled(who).at.is_none_or(|before| before > at) {
            self.schedule(who, Some(at));
        }
    }
}
