//! The watches over the requests of an elevator: the counts of their times, a trace, the controller of latency goals
//! and the forecast ([`InElevator`]), and the account of floors (`blkmq_sched::floors`). Without a watch, each hook in
//! the elevator costs a branch, and the work behind it is out of line. Only the runner uses the watches.
//!
//! The runner reports every request that ends to the account of floors, if the policy charges device time. Every tenth
//! of a second the account looks at the requests that have not ended. It tells the lobby how often a group needs a
//! slot, so that slots go to floors first.
//!
//! Decisions of the controller of goals take effect in three places: the limit of the queue's budget, the slots of
//! groups, which may be held back, and the length of requests. The state of the goals is published, so that a reader
//! never makes the runner wait.

use super::flush::FlushQueues;
use super::lobby::Lobby;
use super::timing::Timing;
use super::{PluggedRequest, SlotTable};
use crate::elevator::{Budgets, Config, Done, Tapping, merge};
use crate::shared::common::ElevatorEnv;
use crate::shared::hctx::Way;
use crate::shared::slots::Bio;
use crate::shared::stats::{Board, ElevatorCounters, Prospect};
use crate::sync::{Arc, TokenPool};
use crate::trace::{Kind, Tap};
use crate::{BioTable, StatsMode};
use blkmq_core::{GroupIndex, Instant, IoFlags, IoMeta, Nanos, Op, RequestId};
use blkmq_sched::floors::FloorPlace;
use blkmq_sched::goals::{Member, STEP, Sight};
use blkmq_sched::{Bypass, Capacity, Facts, Floors, Forecast, Goals, Scheduler, Taken};

/// A flush of the device, in the name of the request `io`.
fn flush(io: &IoMeta) -> IoMeta {
    let flags = IoFlags::SYNC | IoFlags::PREFLUSH;
    IoMeta { op: Op::Flush, sector: 0, sectors: 0, flags, ..*io }
}

/// The words that the path of an I/O reads in place of the settings, the policy and the watches.
#[allow(clippy::struct_excessive_bools, reason = "each is one branch")]
pub(super) struct FastPath {
    /// The policy limits slots, or the controller of latency goals takes something.
    pub(super) limits_slots: bool,
    /// Whether a plug may take a short way, as far as settings, watches and groups are concerned.
    pub(super) is_short: bool,
    /// Requests need a budget to leave.
    pub(super) takes_budgets: bool,
    /// A request that bypasses the policy is noted: the policy is notified of it, or each request is noted.
    pub(super) notes_passing: bool,
    /// Each request is noted: times are counted, or there is a forecast.
    pub(super) notes_requests: bool,
    /// The only watch is the controller of latency goals, and it takes nothing. It then counts only samples of the
    /// requests that end.
    pub(super) is_sampled: bool,
    /// The most sectors of a request of a group whose requests are shortened for a latency goal; `u32::MAX` if there is
    /// none.
    pub(super) longest: u32,
    /// From this time on, the watches have work in every pass.
    pub(super) looks_at: Instant,
}

impl FastPath {
    pub(super) fn of(config: &Config, facts: &Facts, watch: Option<&Watch>, lobby: &Lobby) -> Self {
        let goals = watch.and_then(|watch| watch.goals.as_ref());
        let floors = watch.and_then(|watch| watch.floors.as_ref());
        let is_traced = watch.is_some_and(|watch| watch.trace.is_some());
        let takes = goals.is_some_and(Keeper::takes);
        let notes_requests =
            watch.is_some_and(|watch| watch.times.is_some() || watch.forecaster.is_some());
        let takes_budgets = match config.budgets {
            Budgets::Never => false,
            Budgets::WhileTaken => takes,
            Budgets::Always => true,
        };
        // The lobby is open where the policy shares by group, or groups have latency goals.
        let is_by_group = lobby.is_open() && facts.shares_by_group;
        let looks_only = !takes && !notes_requests;
        let dues = goals.map(Keeper::due).into_iter().chain(floors.map(Floors::due));
        let longest = goals.and_then(|keeper| keeper.goals.taken().sectors);
        Self {
            limits_slots: facts.limits_slots || takes,
            // The I/Os of a request that takes a short way cannot be noted for a trace.
            is_short: config.has_short_ways()
                && !(is_by_group || takes || takes_budgets || is_traced),
            takes_budgets,
            notes_passing: facts.bypass == Bypass::Told || notes_requests,
            notes_requests,
            is_sampled: goals.is_some() && looks_only && floors.is_none() && !is_traced,
            longest: longest.unwrap_or(u32::MAX),
            looks_at: dues.min().filter(|_| looks_only).unwrap_or(Instant::ZERO),
        }
    }
}

/// The watches of an elevator that has at least one.
#[derive(Default)]
pub(super) struct Watch {
    pub(super) times: Option<Timing>,
    pub(super) trace: Option<Tap>,
    pub(super) goals: Option<Keeper>,
    pub(super) forecaster: Option<Forecaster>,
    pub(super) floors: Option<Floors>,
}

impl Watch {
    /// For an elevator with this many slots; `None` if nothing watches.
    pub(super) fn of(mode: StatsMode, slots: u32, watches: Watches) -> Option<Box<Self>> {
        let Watches { trace, goals, forecaster } = watches;
        let times = mode.times.then(|| Timing::new(slots, mode.slow));
        Self { times, trace, goals, forecaster, floors: None }.if_any()
    }

    fn if_any(self) -> Option<Box<Self>> {
        let Self { times, trace, goals, forecaster, floors } = &self;
        let kept = times.is_some() || goals.is_some() || forecaster.is_some() || floors.is_some();
        (kept || trace.is_some()).then(|| Box::new(self))
    }

    /// Applies `mode` and `tapping`. Returns `None` if nothing watches.
    pub(super) fn tuned(
        watch: Option<Box<Self>>,
        mode: StatsMode,
        tapping: Tapping,
        slots: u32,
    ) -> Option<Box<Self>> {
        let mut watch = *watch.unwrap_or_default();
        match tapping {
            Tapping::Keep => {}
            Tapping::End => watch.trace = None,
            Tapping::Begin(tap) => watch.trace = Some(tap),
        }
        watch.times = match watch.times {
            _ if !mode.times => None,
            Some(mut times) => {
                times.set_slow(mode.slow);
                Some(times)
            }
            None => Some(Timing::new(slots, mode.slow)),
        };
        watch.if_any()
    }

    /// Follows a change of the groups, under a policy that keeps floors by `capacity`. The account of floors exists
    /// while a group has a floor.
    pub(super) fn with_floors(
        watch: Option<Box<Self>>,
        members: &[Member],
        capacity: Option<Capacity>,
    ) -> Option<Box<Self>> {
        let mut watch = *watch.unwrap_or_default();
        let some = members.iter().any(|member| !member.reserve.is_none());
        watch.floors = capacity.filter(|_| some).map(|capacity| {
            let mut floors = watch.floors.unwrap_or_else(|| Floors::new(capacity));
            floors.set(members, capacity);
            floors
        });
        watch.if_any()
    }

    /// Passes the changed groups to the controller of latency goals.
    pub(super) fn tune_goals(&mut self, members: &[Member], capacity: Option<Capacity>) {
        if let Some(keeper) = &mut self.goals {
            keeper.goals.set(members, capacity);
            keeper.board.set_shortened(&keeper.goals);
        }
    }

    /// Moves the counts to the ledger, after waiting for another thread that counts.
    pub(super) fn count(&mut self, env: &ElevatorEnv, now: Instant) {
        if let Some(floors) = &mut self.floors {
            env.count_floors(floors);
        }
        if let Some(times) = &mut self.times {
            env.count_times(times.settled(now));
        }
    }

    /// Notes a request that has a slot and its bios.
    #[inline(never)]
    pub(super) fn inserted<P>(&mut self, slots: &SlotTable, table: &BioTable<P>, id: RequestId) {
        let Some(chain) = &slots.chains[id.index()] else { return };
        let (now, io) = (slots.now, slots.requests.get(id));
        if let Some(times) = &mut self.times {
            times.inserted(now, id, io, chain.bios);
        }
        if let Some(goals) = &mut self.goals {
            goals.inserted(now, io);
        }
        if let Some(forecaster) = &mut self.forecaster {
            forecaster.inserted(now, id, io);
        }
        self.began(now, table, io, &chain.head);
    }

    /// Notes a request with this many bios that has a slot and a tag, and leaves immediately.
    #[inline(never)]
    pub(super) fn passed(&mut self, slots: &SlotTable, id: RequestId, bios: u32) {
        let (now, io) = (slots.now, slots.requests.get(id));
        if let Some(times) = &mut self.times {
            times.is_supplied(now);
            times.passed(now, id, (io, bios), slots.at_device());
        }
        if let Some(forecaster) = &mut self.forecaster {
            forecaster.inserted(now, id, io);
            forecaster.issued(now, id, io);
        }
    }

    /// Notes that the request leaves for the device.
    #[inline(never)]
    pub(super) fn issued(&mut self, slots: &SlotTable, flushes: &FlushQueues, id: RequestId) {
        let now = slots.now;
        if let Some(times) = &mut self.times {
            times.issued(now, id, slots.at_device());
        }
        if let Some(forecaster) = &mut self.forecaster {
            forecaster.issued(now, id, slots.requests.get(id));
        }
        if let Some(tap) = &mut self.trace {
            let io = slots.requests.get(id);
            let is_flush = !flushes.is_empty() && flushes.way(id) == Way::Flush;
            let io = if is_flush { &flush(io) } else { io };
            tap.note(now, Kind::Issued, io, Ok(()));
        }
    }

    /// Notes the I/Os of `proto`, which join a request, while they can still be told apart.
    #[inline(never)]
    pub(super) fn joined<P>(
        &mut self,
        now: Instant,
        table: &BioTable<P>,
        proto: &PluggedRequest,
        kind: merge::Kind,
    ) {
        if let Some(times) = &mut self.times {
            times.merged(&proto.meta, proto.bios);
        }
        if let Some(goals) = &mut self.goals {
            goals.joined(now, &proto.meta);
        }
        self.trace_joined(now, table, (&proto.meta, kind), &proto.bio);
    }

    /// Notes that the request `id`, with the metadata `gone`, was fused into another.
    pub(super) fn fused(&mut self, now: Instant, id: RequestId, gone: &IoMeta) {
        self.given_up(now, id);
        if let Some(times) = &mut self.times {
            times.merged(gone, 1);
        }
        if let Some(tap) = &mut self.trace {
            tap.note(now, Kind::Fused, gone, Ok(()));
        }
    }

    /// Notes that the request has ended at the device.
    #[inline]
    pub(super) fn completed(
        &mut self,
        slots: &SlotTable,
        policy: &dyn Scheduler,
        counters: &ElevatorCounters,
        done: &Done,
    ) {
        let io = slots.requests.get(done.rq);
        if let Some(times) = &mut self.times {
            let others = slots.at_device().saturating_sub(1);
            times.completed(io, done, (policy.charged(done.rq), others));
        }
        if let Some(goals) = &mut self.goals {
            goals.completed(io, done.completed);
        }
        if let Some(floors) = &mut self.floors {
            completed(floors, policy, io, done);
        }
        if let Some(forecaster) = &mut self.forecaster {
            forecaster.completed(io, done, counters);
        }
        if let Some(tap) = &mut self.trace {
            tap.note(done.completed, Kind::Completed, io, done.result);
        }
    }

    /// Notes that the request was returned, to be issued again.
    pub(super) fn requeued(&mut self, slots: &SlotTable, id: RequestId, way: Way) {
        if let Some(forecaster) = &mut self.forecaster {
            forecaster.requeued(slots.now, id);
        }
        if let Some(tap) = &mut self.trace {
            let io = slots.requests.get(id);
            let io = if way == Way::Flush { &flush(io) } else { io };
            tap.note(slots.now, Kind::Requeued, io, Ok(()));
        }
    }

    /// Removes the request from the forecast.
    pub(super) fn given_up(&mut self, now: Instant, id: RequestId) {
        if let Some(forecaster) = &mut self.forecaster {
            forecaster.gone(now, id);
        }
    }

    /// Notes that a flush of the device has ended.
    pub(super) fn flushed(&mut self, slots: &SlotTable, done: &Done) {
        if let Some(times) = &mut self.times {
            times.flushed(done);
        }
        // The device has done one step. The request has further steps, or is one of those that this flush serves.
        self.given_up(done.completed, done.rq);
        if let Some(tap) = &mut self.trace {
            let io = flush(slots.requests.get(done.rq));
            tap.note(done.completed, Kind::Completed, &io, done.result);
        }
    }

    /// Notes that the request ends with a flush, as `done`. A bare flush is counted, for latency goals unless it
    /// `is_sampled`. Data was counted separately.
    pub(super) fn served(&mut self, slots: &SlotTable, done: &Done, is_sampled: bool) {
        let io = slots.requests.get(done.rq);
        if io.op == Op::Flush {
            if let Some(times) = &mut self.times {
                times.completed(io, done, (Some(Nanos::ZERO), slots.at_device()));
            }
            if let Some(goals) = self.goals.as_mut().filter(|_| !is_sampled) {
                goals.completed(io, done.completed);
            }
        }
        self.given_up(done.completed, done.rq);
    }

    /// Tells the lobby how often each group with a floor needs a slot.
    pub(super) fn set_gaps(&self, lobby: &mut Lobby) {
        for (group, gap) in self.floors.iter().flat_map(Floors::gaps) {
            lobby.set_gap(group, gap);
        }
    }

    /// Lets the account of floors look at the requests that have not ended.
    #[cold]
    #[inline(never)]
    pub(super) fn look_at_floors(
        &mut self,
        slots: &SlotTable,
        lobby: &mut Lobby,
        capacity: Capacity,
    ) {
        // Groups that latency goals hold back wait in the lobby as well.
        let takes = self.goals.as_ref().is_some_and(Keeper::takes);
        let is_held = takes && slots.has_any(lobby.has_flush());
        let outside = if is_held { FloorPlace::Goal } else { FloorPlace::Slot };
        let Some(floors) = &mut self.floors else { return };
        floors.look(slots.now, capacity, |show| {
            for (_, io, is_held) in slots.live() {
                let place = if is_held { FloorPlace::Policy } else { FloorPlace::Device };
                if io.op != Op::Flush {
                    show(io.group, io.arrived, place);
                }
            }
            lobby.show_waiting(|io| show(io.group, io.arrived, outside));
        });
        self.set_gaps(lobby);
    }

    /// Returns whether latency goals let `group` have a slot.
    pub(super) fn paces(&self, group: GroupIndex, now: Instant) -> bool {
        self.goals.as_ref().is_none_or(|keeper| keeper.goals.admits(group, now))
    }

    /// Returns whether the requests of `group` are shortened for a latency goal.
    pub(super) fn shortens(&self, group: GroupIndex) -> bool {
        self.goals.as_ref().is_some_and(|keeper| keeper.goals.shortens(group))
    }

    /// Charges `time` nanoseconds to the groups that wait here. `staged` shows the groups of I/Os in staging that wait
    /// for a slot. O(slots + groups + pairs of groups that are here).
    #[cold]
    pub(super) fn account_waits(
        &mut self,
        slots: &SlotTable,
        lobby: &Lobby,
        time: u64,
        staged: impl FnOnce(&mut dyn FnMut(GroupIndex)),
    ) {
        let Some(times) = &mut self.times else { return };
        let (waits, sums) = times.waits();
        let crowd = &mut waits.crowd;
        for (_, io, is_held) in slots.live() {
            if is_held {
                crowd.waits(io.group);
            } else {
                crowd.is_at_device(io.group);
            }
        }
        lobby.show_waiting(|io| crowd.waits(io.group));
        staged(&mut |group| crowd.waits(group));
        let work = crowd.charge(time, sums);
        waits.worked(work);
    }

    /// Traces the I/Os that became a request: the first one, and those that joined it in their plug.
    fn began<P>(&mut self, now: Instant, table: &BioTable<P>, io: &IoMeta, bios: &Bio) {
        let Some(tap) = &mut self.trace else { return };
        let mut kind = Kind::First;
        let mut count = 0;
        for bio in table.iter(bios) {
            let one = IoMeta { sector: bio.sector, sectors: bio.sectors, ..*io };
            // Most requests have one I/O, for which one note is enough.
            if count == 0 && one.sectors == io.sectors {
                tap.note(now, Kind::Alone, io, Ok(()));
                return;
            }
            tap.note(now, kind, &one, Ok(()));
            (kind, count) = (Kind::Behind, count + 1);
        }
        tap.note(now, Kind::Inserted, io, Ok(()));
    }

    /// Traces the I/Os that joined a request.
    fn trace_joined<P>(
        &mut self,
        now: Instant,
        table: &BioTable<P>,
        (io, kind): (&IoMeta, merge::Kind),
        bios: &Bio,
    ) {
        let Some(tap) = &mut self.trace else { return };
        let kind = if kind == merge::Kind::Front { Kind::Ahead } else { Kind::Behind };
        for bio in table.iter(bios) {
            let one = IoMeta { sector: bio.sector, sectors: bio.sectors, ..*io };
            tap.note(now, kind, &one, Ok(()));
        }
    }
}

/// Reports a request that has ended to the account of floors, if the policy charged for it.
#[inline]
fn completed(floors: &mut Floors, policy: &dyn Scheduler, io: &IoMeta, done: &Done) {
    if io.op == Op::Flush {
        return;
    }
    if let Some(cost) = policy.charged(done.rq) {
        floors.completed(io.group, io.arrived, done.completed, cost);
    }
}

/// The controller of latency goals, and the places where its decisions take effect.
pub(crate) struct Keeper {
    pub(super) goals: Goals,
    /// The budgets of the queue, and their number without the controller.
    budget: (Arc<TokenPool>, u32),
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
    /// The controller for a queue with this budget, whose limit it sets, and for a policy that keeps floors by
    /// `capacity`.
    pub(crate) fn new(
        budget: Arc<TokenPool>,
        (members, capacity): (&[Member], Option<Capacity>),
        board: &Board,
    ) -> Self {
        let most = budget.limit();
        let goals = Goals::new(most, members, capacity);
        board.set_shortened(&goals);
        Self {
            goals,
            budget: (budget, most),
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
        let (taken, (budget, most)) = (self.goals.taken(), &self.budget);
        self.takes = taken != Taken::default();
        // At least 1, so that the return of a budget kicks the waiting elevators.
        budget.limit_to(taken.device_depth.unwrap_or(*most).max(1));
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
