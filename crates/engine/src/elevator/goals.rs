//! The controller of latency goals and the forecast, either of which an elevator may have. Only its runner uses them.
//!
//! Decisions of the controller take effect in three places: the limit of the queue's budget, the slots of groups, which
//! may be held back, and the length of requests. The state of the goals is published, so that a reader never makes the
//! runner wait.

use super::lobby::Lobby;
use super::slot_table::SlotTable;
use crate::elevator::Done;
use crate::shared::stats::ElevatorCounters;
use crate::shared::stats::{Board, Prospect};
use crate::sync::{Arc, Lever};
use crate::trace::Tap;
use blkmq_core::{Instant, IoMeta, Nanos, RequestId};
use blkmq_sched::goals::{Member, STEP, Sight};
use blkmq_sched::{Capacity, Forecast, Goals, Taken};

/// The controller of latency goals, and the places where its decisions take effect.
pub(crate) struct Keeper {
    pub(super) goals: Goals,
    /// The limit of the queue's budget, and its value without the controller.
    lever: (Lever, u32),
    pub(super) board: Board,
    /// Consecutive looks without a completion since the previous look.
    unanswered: u32,
    /// Something is taken from groups without a goal.
    takes: bool,
    /// The board has the time of the next look.
    pub(super) is_told: bool,
}

/// While nothing ends, the interval between looks grows to at most 2^20 times the shortest, more than a day.
const MOST_DOUBLINGS: u32 = 20;

/// The requests that have slots, and the I/Os that wait for one.
pub(super) struct InElevator<'a> {
    pub(super) slots: &'a SlotTable,
    pub(super) lobby: &'a Lobby,
}

impl Sight for InElevator<'_> {
    fn waiting(&self, show: &mut dyn FnMut(&IoMeta)) {
        self.slots.live().for_each(|(_, io, _)| show(io));
        self.lobby.all().for_each(show);
    }

    fn at_device(&self) -> u32 {
        self.slots.at_device()
    }
}

impl Keeper {
    /// The controller for a queue with a budget of `most`, whose limit `lever` sets, and for a policy that keeps floors
    /// by `capacity`.
    pub(crate) fn new(
        (lever, most): (Lever, u32),
        (members, capacity): (&[Member], Option<Capacity>),
        board: &Board,
    ) -> Self {
        let goals = Goals::new(most, members, capacity);
        board.set_shortened(&goals);
        Self {
            goals,
            lever: (lever, most),
            board: board.clone(),
            unanswered: 0,
            takes: false,
            is_told: false,
        }
    }

    // While nothing is taken, a request is charged only at its end: one call instead of two, and none on a short way.

    pub(super) fn inserted(&mut self, now: Instant, io: &IoMeta) {
        if self.takes {
            self.goals.inserted(now, io);
        }
    }

    pub(super) fn joined(&mut self, now: Instant, io: &IoMeta) {
        if self.takes {
            self.goals.joined(now, io);
        }
    }

    pub(super) fn completed(&mut self, io: &IoMeta, at: Instant) {
        if self.takes {
            self.goals.completed(io, at);
        } else {
            self.goals.passed(io, at);
        }
    }

    /// Counts a request that has ended as a sample, while nothing is taken. Returns the number of completions up to and
    /// including the next sample.
    pub(super) fn sampled(&mut self, io: &IoMeta, at: Instant) -> u32 {
        self.goals.sampled(io, at)
    }

    pub(super) fn takes(&self) -> bool {
        self.takes
    }

    /// The time of the controller's next look; zero while the board does not have it.
    pub(super) fn due(&self) -> Instant {
        if self.is_told { self.goals.due() } else { Instant::ZERO }
    }

    /// The time of the next look if no pass is made before. While nothing ends, the interval doubles with each look, so
    /// that a stuck device costs little.
    pub(super) fn next_look(&self) -> Instant {
        let steps = (1 << self.unanswered.min(MOST_DOUBLINGS)) - 1;
        self.goals.due() + Nanos(STEP.0 * steps)
    }

    pub(super) fn look(&mut self, now: Instant, sight: &InElevator<'_>, some_ended: bool) {
        self.goals.look(now, sight);
        self.unanswered = if some_ended { 0 } else { self.unanswered.saturating_add(1) };
        let (taken, (lever, most)) = (self.goals.taken(), &self.lever);
        self.takes = taken != Taken::default();
        lever.set(taken.device_depth.unwrap_or(*most));
        self.board.set_longest(taken.sectors);
        self.board.publish(now, &self.goals);
        self.tell(false);
    }

    /// Publishes the time of the next look for the threads that wait, or that no look is needed.
    pub(super) fn tell(&mut self, is_busy: bool) {
        self.is_told = is_busy;
        self.board.set_next_look(is_busy.then(|| self.next_look()));
    }
}

/// The forecast of an elevator. Publishes it for threads that push, and counts how its predictions agree with the
/// outcomes.
pub(crate) struct Forecaster {
    forecast: Forecast,
    prospect: Arc<Prospect>,
}

impl Forecaster {
    /// For an elevator with this many slots, and groups with numbers below `groups`.
    pub(crate) fn new(slots: u32, groups: u16, prospect: Arc<Prospect>) -> Self {
        Self { forecast: Forecast::new(slots, groups), prospect }
    }

    pub(super) fn inserted(&mut self, now: Instant, id: RequestId, io: &IoMeta) {
        self.forecast.inserted(now, id, io);
    }

    pub(super) fn issued(&mut self, now: Instant, id: RequestId, io: &IoMeta) {
        self.forecast.issued(now, id, io);
    }

    pub(super) fn requeued(&mut self, now: Instant, id: RequestId) {
        self.forecast.requeued(now, id);
    }

    pub(super) fn gone(&mut self, now: Instant, id: RequestId) {
        self.forecast.gone(now, id);
    }

    /// Publishes the forecast, with `outside` I/Os that wait for a slot.
    pub(super) fn publish(&self, outside: u32) {
        self.prospect.publish(&self.forecast.outlook(outside));
    }

    /// Corrects the forecast by a request that has ended, and compares its prediction with the outcome.
    pub(super) fn completed(&mut self, io: &IoMeta, done: &Done, counters: &ElevatorCounters) {
        let Some(expected) = self.forecast.completed(done.completed, done.rq, io) else { return };
        let writes = io.op.is_write();
        let share = self.forecast.share(io.group, writes);
        self.prospect.publish_share(io.group, writes, share);
        if io.deadline.is_some() {
            let within = io.deadline.within();
            let took = done.completed.since(io.arrived);
            let counter = match (expected > within, took > within) {
                (false, false) => &counters.in_time,
                (false, true) => &counters.missed,
                (true, true) => &counters.late,
                (true, false) => &counters.false_alarms,
            };
            counter.add(1);
        }
    }
}

/// The watches that an elevator is built with, besides the times.
#[derive(Default)]
pub(crate) struct Watches {
    pub(crate) trace: Option<Tap>,
    pub(crate) goals: Option<Keeper>,
    pub(crate) forecaster: Option<Forecaster>,
}
