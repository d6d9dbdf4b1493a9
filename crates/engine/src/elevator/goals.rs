//! Latency goals: connects the controller of `blkmq_sched::goals` with an elevator, whose runner alone touches it.
//!
//! Decisions of the controller take effect in two places: the limit of the queue's budget, and the slots of groups, which
//! may be held back. The state of the goals is published for readers, who never make the runner wait.

use super::lobby::Lobby;
use super::slot_table::SlotTable;
use crate::shared::board::Board;
use crate::sync::Lever;
use blkmq_core::{Instant, IoMeta, Nanos};
use blkmq_sched::goals::{Member, STEP, Sight};
use blkmq_sched::{Capacity, Goals, Taken};

/// The controller of an elevator, and where its decisions go.
pub(crate) struct Keeper {
    pub(super) goals: Goals,
    /// The limit of the queue's budget, and its value without the controller.
    lever: (Lever, u32),
    pub(super) board: Board,
    /// Looks in a row before which no request had ended.
    unanswered: u32,
    /// Something is taken from groups without a goal.
    takes: bool,
    /// The board has the time of the next look.
    pub(super) is_told: bool,
}

/// The longest time from one look to the next where nothing ends is 2^20 of the shortest, more than a day.
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
    /// For a queue with a budget of `most`, which `lever` moves, and a policy that keeps floors by this capacity.
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

    // While nothing is taken, a request is charged for at its end: that is one call for it instead of two, and none where
    // it takes a short way.

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

    /// A request has ended, as a sample of those that ended while nothing is taken. The number of requests until the next
    /// sample, with that.
    pub(super) fn sampled(&mut self, io: &IoMeta, at: Instant) -> u32 {
        self.goals.sampled(io, at)
    }

    /// Returns whether anything is taken from groups without a goal.
    pub(super) fn takes(&self) -> bool {
        self.takes
    }

    /// When the controller wants to look; time zero if the threads that wait are not told that.
    pub(super) fn due(&self) -> Instant {
        if self.is_told { self.goals.due() } else { Instant::ZERO }
    }

    /// When to look although no pass is made: as soon as the controller wants to, and where nothing ends after twice the
    /// time each, so that a device that is stuck is no work.
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

    /// Tells the threads that wait when the next look is, or that none has to be made.
    pub(super) fn tell(&mut self, is_busy: bool) {
        self.is_told = is_busy;
        self.board.set_next_look(is_busy.then(|| self.next_look()));
    }
}
