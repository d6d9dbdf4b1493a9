//! The watches over the requests of an elevator: the counts of their times, a trace, the controller of latency goals
//! (`goals.rs`), a forecast (`watches.rs`), and the account of floors (`blkmq_sched::floors`). Without any, each call here is a
//! branch; the work behind it is out of line, where it costs the path of an I/O nothing. The runner alone touches them.
//!
//! The runner tells the account of floors of every request that ends under a policy that charges device time. Every tenth of a
//! second the account looks at the requests that have not ended. The lobby learns from it how often a group needs a
//! slot, so that slots go to floors first.

use super::config::{Budgets, Tapping};
use super::goals::{InElevator, Keeper};
use super::timing::Timing;
use super::{Done, Elevator, PluggedRequest};
use crate::elevator::merge;
use crate::elevator::watches::Watch;
use crate::shared::inflight::Way;
use crate::trace::Kind;
use crate::{BioTable, StatsMode};
use blkmq_core::{GroupIndex, Instant, IoFlags, IoMeta, Nanos, Op, RequestId};
use blkmq_sched::floors::FloorPlace;
use blkmq_sched::goals::Member;
use blkmq_sched::{Bypass, Floors, Scheduler};

/// A flush of the device, in the name of the request `io`.
fn flush(io: &IoMeta) -> IoMeta {
    let flags = IoFlags::SYNC | IoFlags::PREFLUSH;
    IoMeta { op: Op::Flush, sector: 0, sectors: 0, flags, ..*io }
}

impl Elevator {
    /// Returns whether a trace is being taken. Its requests take no short way, on which their I/Os cannot be noted.
    #[inline]
    pub(super) fn is_traced(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.trace.is_some())
    }

    /// Watches as `mode` and `tapping` say from now on.
    pub(super) fn tune_watch(&mut self, mode: StatsMode, tapping: Tapping) {
        let mut watch = *self.watch.take().unwrap_or_default();
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
            None => Some(Timing::new(self.config.slots(), mode.slow)),
        };
        self.watch = watch.if_any();
        self.settle_watch();
    }

    /// Changes the account of floors.
    pub(super) fn with_floors(&mut self, change: impl FnOnce(Option<Floors>) -> Option<Floors>) {
        let mut watch = *self.watch.take().unwrap_or_default();
        watch.floors = change(watch.floors);
        self.watch = watch.if_any();
        self.settle_watch();
    }

    /// Follows a change of the watches, or of what the controller of latency goals takes: sets the words that the path
    /// of an I/O looks at instead.
    pub(super) fn settle_watch(&mut self) {
        self.longest = self.longest_request();
        let watch = self.watch.as_deref();
        let goals = watch.and_then(|watch| watch.goals.as_ref());
        let floors = watch.and_then(|watch| watch.floors.as_ref());
        let takes = goals.is_some_and(Keeper::takes);
        self.notes_requests =
            watch.is_some_and(|watch| watch.times.is_some() || watch.forecaster.is_some());
        self.notes_passing = self.facts.bypass == Bypass::Told || self.notes_requests;
        self.limits_slots = self.facts.limits_slots || takes;
        self.takes_budgets = match self.config.budgets {
            Budgets::Never => false,
            Budgets::WhileTaken => takes,
            Budgets::Always => true,
        };
        // The lobby is open where the policy shares by group, or groups have latency goals.
        let is_by_group = self.lobby.is_open() && self.facts.shares_by_group;
        self.is_short = self.config.has_short_ways()
            && !(is_by_group || takes || self.takes_budgets || self.is_traced());
        let looks_only = !takes && !self.notes_requests;
        self.is_sampled = goals.is_some() && looks_only && floors.is_none() && !self.is_traced();
        let dues = goals.map(Keeper::due).into_iter().chain(floors.map(Floors::due));
        self.looks_at = dues.min().filter(|_| looks_only).unwrap_or(Instant::ZERO);
    }

    /// Returns whether there is any watch.
    #[inline]
    pub(super) fn is_watched(&self) -> bool {
        self.watch.is_some()
    }

    /// Returns whether a watch has work now, beyond the requests that end.
    #[inline]
    pub(super) fn is_look_due(&self) -> bool {
        self.watch.is_some() && self.now >= self.looks_at
    }

    /// Ends this elevator's part of a trace: its queue is replaced by another.
    pub(crate) fn end_trace(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.trace = None;
        }
        self.settle_watch();
    }

    /// Moves the counts to the ledger, after waiting for another thread that counts.
    pub(crate) fn count_times(&mut self) {
        self.count_floors();
        if let Some(Watch { times: Some(times), .. }) = self.watch.as_deref_mut() {
            self.env.count_times(times.settled(self.now));
        }
    }

    /// The request has a slot and its bios.
    #[inline]
    pub(super) fn watch_inserted<P>(&mut self, table: &BioTable<P>, id: RequestId) {
        if self.watch.is_some() {
            self.note_inserted(table, id);
        }
    }

    #[inline(never)]
    fn note_inserted<P>(&mut self, table: &BioTable<P>, id: RequestId) {
        let Some(watch) = &mut self.watch else { return };
        let Some(chain) = &self.chains[id.index()] else { return };
        let io = self.requests.get(id);
        if let Some(times) = &mut watch.times {
            times.inserted(self.now, id, io, chain.bios);
        }
        if let Some(goals) = &mut watch.goals {
            goals.inserted(self.now, io);
        }
        if let Some(forecaster) = &mut watch.forecaster {
            forecaster.inserted(self.now, id, io);
        }
        watch.began(self.now, table, io, &chain.head);
    }

    /// The request, which has this many bios, has a slot and a tag, and leaves immediately.
    #[inline]
    pub(super) fn watch_passed(&mut self, id: RequestId, bios: u32) {
        if self.notes_requests {
            self.note_passed(id, bios);
        }
    }

    #[inline(never)]
    fn note_passed(&mut self, id: RequestId, bios: u32) {
        let at_device = self.at_device();
        let Some(watch) = &mut self.watch else { return };
        let io = self.requests.get(id);
        if let Some(times) = &mut watch.times {
            times.is_supplied(self.now);
            times.passed(self.now, id, (io, bios), at_device);
        }
        if let Some(forecaster) = &mut watch.forecaster {
            forecaster.inserted(self.now, id, io);
            forecaster.issued(self.now, id, io);
        }
    }

    /// The request leaves for the device.
    #[inline]
    pub(super) fn watch_issued(&mut self, id: RequestId) {
        if self.watch.is_some() {
            self.note_issued(id);
        }
    }

    #[inline(never)]
    fn note_issued(&mut self, id: RequestId) {
        let at_device = self.at_device();
        let Some(watch) = &mut self.watch else { return };
        if let Some(times) = &mut watch.times {
            times.issued(self.now, id, at_device);
        }
        if let Some(forecaster) = &mut watch.forecaster {
            forecaster.issued(self.now, id, self.requests.get(id));
        }
        if let Some(tap) = &mut watch.trace {
            let io = self.requests.get(id);
            let is_flush = !self.flushes.is_empty() && self.flushes.way(id) == Way::Flush;
            let io = if is_flush { &flush(io) } else { io };
            tap.note(self.now, Kind::Issued, io, Ok(()));
        }
    }

    /// The I/Os of `proto` join a request; in a moment they are not told apart any more.
    #[inline]
    pub(super) fn watch_joined<P>(
        &mut self,
        table: &BioTable<P>,
        proto: &PluggedRequest,
        kind: merge::Kind,
    ) {
        if self.watch.is_some() {
            self.note_joined(table, proto, kind);
        }
    }

    #[inline(never)]
    fn note_joined<P>(&mut self, table: &BioTable<P>, proto: &PluggedRequest, kind: merge::Kind) {
        let Some(watch) = &mut self.watch else { return };
        if let Some(times) = &mut watch.times {
            times.merged(&proto.meta, proto.bios);
        }
        if let Some(goals) = &mut watch.goals {
            goals.joined(self.now, &proto.meta);
        }
        watch.joined(self.now, table, (&proto.meta, kind), &proto.bio);
    }

    /// The request `id`, which was `gone`, was fused into another.
    pub(super) fn watch_fused(&mut self, id: RequestId, gone: &IoMeta) {
        let Some(watch) = &mut self.watch else { return };
        if let Some(forecaster) = &mut watch.forecaster {
            forecaster.gone(self.now, id);
        }
        if let Some(times) = &mut watch.times {
            times.merged(gone, 1);
        }
        if let Some(tap) = &mut watch.trace {
            tap.note(self.now, Kind::Fused, gone, Ok(()));
        }
    }

    /// The request has ended at the device.
    #[inline]
    pub(super) fn watch_completed(&mut self, done: &Done) {
        if self.watch.is_some() {
            self.note_completed(done);
        }
    }

    /// Samples a completion where the controller of latency goals alone watches, and takes nothing.
    #[inline(always)]
    pub(super) fn sample_completed(&mut self, done: &Done) {
        self.until_sample -= 1;
        if self.until_sample == 0 {
            self.take_sample(done);
        }
    }

    #[inline(never)]
    fn take_sample(&mut self, done: &Done) {
        self.until_sample = 1;
        if let Some(Watch { goals: Some(goals), .. }) = self.watch.as_deref_mut() {
            self.until_sample = goals.sampled(self.requests.get(done.rq), done.completed);
        }
    }

    #[inline(never)]
    fn note_completed(&mut self, done: &Done) {
        let others = self.at_device().saturating_sub(1);
        let Some(watch) = &mut self.watch else { return };
        let io = self.requests.get(done.rq);
        if let Some(times) = &mut watch.times {
            times.completed(io, done, (self.policy.charged(done.rq), others));
        }
        if let Some(goals) = &mut watch.goals {
            goals.completed(io, done.completed);
            self.some_ended = true;
        }
        if let Some(floors) = &mut watch.floors {
            completed(floors, &*self.policy, io, done);
        }
        if let Some(forecaster) = &mut watch.forecaster {
            forecaster.completed(io, done, &self.counters);
        }
        if let Some(tap) = &mut watch.trace {
            tap.note(done.completed, Kind::Completed, io, done.result);
        }
    }

    /// The request goes back, to be issued again.
    pub(super) fn watch_requeued(&mut self, id: RequestId, way: Way) {
        let Some(watch) = &mut self.watch else { return };
        if let Some(forecaster) = &mut watch.forecaster {
            forecaster.requeued(self.now, id);
        }
        if let Some(tap) = &mut watch.trace {
            let io = self.requests.get(id);
            let io = if way == Way::Flush { &flush(io) } else { io };
            tap.note(self.now, Kind::Requeued, io, Ok(()));
        }
    }

    /// The request is given up while the policy holds it.
    pub(super) fn watch_given_up(&mut self, id: RequestId) {
        if let Some(Watch { forecaster: Some(forecaster), .. }) = self.watch.as_deref_mut() {
            forecaster.gone(self.now, id);
        }
    }

    /// A flush of the device has ended.
    pub(super) fn watch_flushed(&mut self, done: &Done) {
        let Some(watch) = &mut self.watch else { return };
        if let Some(times) = &mut watch.times {
            times.flushed(done);
        }
        if let Some(forecaster) = &mut watch.forecaster {
            // The device has done a step. The request has others to come, or is served by it.
            forecaster.gone(done.completed, done.rq);
        }
        if let Some(tap) = &mut watch.trace {
            let io = flush(self.requests.get(done.rq));
            tap.note(done.completed, Kind::Completed, &io, done.result);
        }
    }

    /// The request `id` ends at the flush `by`. If it is a bare flush, it is counted; data was counted separately.
    pub(super) fn watch_served(&mut self, id: RequestId, by: &Done) {
        let at_device = self.at_device();
        let io = self.requests.get(id);
        let Some(watch) = &mut self.watch else { return };
        if io.op == Op::Flush {
            if let Some(times) = &mut watch.times {
                times.completed(io, &Done { rq: id, ..*by }, (Some(Nanos::ZERO), at_device));
            }
            if let Some(goals) = watch.goals.as_mut().filter(|_| !self.is_sampled) {
                goals.completed(io, by.completed);
            }
        }
        let is_sample = self.is_sampled && io.op == Op::Flush;
        if let Some(forecaster) = &mut watch.forecaster {
            forecaster.gone(by.completed, id);
        }
        if is_sample {
            self.sample_completed(&Done { rq: id, ..*by });
        }
        self.some_ended = true;
    }

    /// A tag, a budget or room at the device is missing.
    #[inline]
    pub(super) fn is_short(&mut self) {
        if let Some(Watch { times: Some(times), .. }) = self.watch.as_deref_mut() {
            times.is_short(self.now);
        }
    }

    /// There is one again.
    #[inline]
    pub(super) fn is_supplied(&mut self) {
        if let Some(Watch { times: Some(times), .. }) = self.watch.as_deref_mut() {
            times.is_supplied(self.now);
        }
    }

    /// Requests were returned, or a pass has ended. True if the controller of latency goals has looked or takes
    /// something, so that groups that had to wait may have slots now.
    #[inline]
    pub(super) fn time_busy(&mut self) -> bool {
        self.is_look_due() && self.look_up()
    }

    #[inline(never)]
    fn look_up(&mut self) -> bool {
        if let Some(Watch { times: Some(times), .. }) = self.watch.as_deref_mut() {
            times.look(self.now, self.requests.in_use() > self.held as usize);
        }
        self.look_at_floors();
        self.look_at_goals()
    }
}

/// Tells the account of a request that has ended.
#[inline]
pub(super) fn completed(floors: &mut Floors, policy: &dyn Scheduler, io: &IoMeta, done: &Done) {
    if io.op == Op::Flush {
        return;
    }
    if let Some(cost) = policy.charged(done.rq) {
        floors.completed(io.group, io.arrived, done.completed, cost);
    }
}

impl Elevator {
    /// Follows a change of the groups: an account is kept while one of them has a floor and the policy keeps floors.
    pub(crate) fn tune_floors(&mut self, members: &[Member]) {
        let some = members.iter().any(|member| !member.reserve.is_none());
        let capacity = self.facts.capacity.filter(|_| some);
        self.with_floors(|floors| {
            let capacity = capacity?;
            let mut floors = floors.unwrap_or_else(|| Floors::new(capacity));
            floors.set(members, capacity);
            Some(floors)
        });
        for member in members {
            self.lobby.set_gap(member.group, 0);
        }
        self.set_gaps();
    }

    fn set_gaps(&mut self) {
        let floors = self.watch.as_deref().and_then(|watch| watch.floors.as_ref());
        for (group, gap) in floors.into_iter().flat_map(Floors::gaps) {
            self.lobby.set_gap(group, gap);
        }
    }

    /// Lets the account look, if that is due.
    pub(super) fn look_at_floors(&mut self) {
        let now = self.now;
        let floors = self.watch.as_mut().and_then(|watch| watch.floors.as_mut());
        if floors.is_some_and(|floors| floors.due() <= now) {
            self.look_at_them();
        }
    }

    #[cold]
    #[inline(never)]
    fn look_at_them(&mut self) {
        let Some(capacity) = self.facts.capacity else { return };
        // Groups that latency goals hold back wait in the lobby as well.
        let is_held = self.takes_for_goals() && self.has_any_slot();
        let outside = if is_held { FloorPlace::Goal } else { FloorPlace::Slot };
        let Some(mut floors) = self.watch.as_mut().and_then(|watch| watch.floors.take()) else {
            return;
        };
        floors.look(self.now, capacity, |show| {
            for id in self.requests.live().take(self.requests.in_use()) {
                let io = self.requests.get(id);
                let is_held = self.chains[id.index()].is_some();
                let place = if is_held { FloorPlace::Policy } else { FloorPlace::Device };
                if io.op != Op::Flush {
                    show(io.group, io.arrived, place);
                }
            }
            self.lobby.show_waiting(|io| show(io.group, io.arrived, outside));
        });
        if let Some(watch) = &mut self.watch {
            watch.floors = Some(floors);
        }
        self.set_gaps();
        self.settle_watch();
    }

    /// Moves the counts of the account to the ledger, after waiting for another thread that counts.
    pub(super) fn count_floors(&mut self) {
        self.look_at_floors();
        if let Some(floors) = self.watch.as_mut().and_then(|watch| watch.floors.as_mut()) {
            self.env.count_floors(floors);
        }
    }
}

impl Elevator {
    fn keeper(&self) -> Option<&Keeper> {
        self.watch.as_ref().and_then(|watch| watch.goals.as_ref())
    }

    /// Returns whether a length, depth or rate is bounded for a latency goal.
    pub(super) fn takes_for_goals(&self) -> bool {
        self.keeper().is_some_and(Keeper::takes)
    }

    /// Returns whether a group has a latency goal.
    pub(super) fn has_goals(&self) -> bool {
        self.keeper().is_some()
    }

    /// Returns whether latency goals let the group of `io` have a slot.
    pub(super) fn paces(&self, io: &IoMeta) -> bool {
        self.keeper().is_none_or(|keeper| keeper.goals.admits(io.group, self.now))
    }

    /// When a group that has to wait may have a slot.
    pub(crate) fn next_admission(&self) -> Option<Instant> {
        self.keeper().and_then(|keeper| keeper.goals.next_admission(self.now))
    }

    /// Requests that have left for the device and have not ended.
    fn at_device(&self) -> u32 {
        (self.requests.in_use() as u32).saturating_sub(self.held)
    }

    /// Lets the controller look, if that is due. True if there is one.
    pub(super) fn look_at_goals(&mut self) -> bool {
        let at_device = self.at_device();
        let (now, requests, lobby) = (self.now, &self.requests, &self.lobby);
        let keeper = self.watch.as_mut().and_then(|watch| watch.goals.as_mut());
        let Some(keeper) = keeper else { return false };
        if keeper.goals.due() <= now {
            let some_ended = std::mem::take(&mut self.some_ended);
            keeper.look(now, &InElevator { requests, lobby, at_device }, some_ended);
            self.until_sample = self.until_sample.min(keeper.goals.stride());
            self.settle_watch();
        }
        true
    }

    /// Tells the threads that wait when the controller has to look although no pass is made: a device that ends nothing
    /// calls for none, and would be taken for a good one.
    pub(super) fn tell_look(&mut self) {
        let is_busy = self.requests.in_use() > 0;
        let keeper = self.watch.as_mut().and_then(|watch| watch.goals.as_mut());
        if let Some(keeper) = keeper.filter(|keeper| is_busy && !keeper.is_told) {
            keeper.tell(true);
            self.settle_watch();
        }
    }

    /// When the controller has to look although no pass is made; `None` without one, or while no request has a slot.
    #[cfg(feature = "compare")]
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.keeper().filter(|_| self.requests.in_use() > 0).map(Keeper::next_look)
    }

    /// Tells the controller of the groups as they are from now on.
    pub(super) fn tune_goals(&mut self, members: &[Member]) {
        let capacity = self.facts.capacity;
        if let Some(keeper) = self.watch.as_mut().and_then(|watch| watch.goals.as_mut()) {
            keeper.goals.set(members, capacity);
            keeper.board.set_shortened(&keeper.goals);
        }
    }

    /// The most sectors of a request of a group whose requests are shortened; `u32::MAX` for any number.
    pub(super) fn longest_request(&self) -> u32 {
        self.keeper().and_then(|keeper| keeper.goals.taken().sectors).unwrap_or(u32::MAX)
    }

    /// Returns whether the requests of `group` are shortened.
    pub(super) fn shortens(&self, group: GroupIndex) -> bool {
        self.keeper().is_some_and(|keeper| keeper.goals.shortens(group))
    }
}

impl Elevator {
    /// Time has passed from the last pass to `now`, and nothing has changed yet. The nanoseconds to account for, if the
    /// stretch is to be looked at. I/Os wait for a slot outside, or not. O(1).
    #[inline]
    pub(super) fn stretch(&mut self, now: Instant, some_staged: bool) -> Option<u64> {
        let stretch = now.since(self.now).0;
        // Of the passes of a run, the first one has a new time.
        if stretch == 0 {
            return None;
        }
        if self.held == 0 && !some_staged && self.lobby.is_empty() && self.flushes.is_empty() {
            return None;
        }
        let times = self.watch.as_mut().and_then(|watch| watch.times.as_mut())?;
        times.waits().0.passed(stretch)
    }

    /// Accounts for so many nanoseconds, by the groups that are here. `staged` shows the groups of I/Os that wait for a slot
    /// outside. O(slots + groups + pairs of groups that are here).
    #[cold]
    pub(super) fn account_waits(
        &mut self,
        time: u64,
        staged: impl FnOnce(&mut dyn FnMut(GroupIndex)),
    ) {
        let Self { watch, requests, chains, lobby, .. } = self;
        let Some(times) = watch.as_mut().and_then(|watch| watch.times.as_mut()) else { return };
        let (waits, sums) = times.waits();
        let crowd = &mut waits.crowd;
        // As a rule those in use are the first ones.
        for id in requests.live().take(requests.in_use()) {
            let group = requests.get(id).group;
            if chains[id.index()].is_some() {
                crowd.waits(group);
            } else {
                crowd.is_at_device(group);
            }
        }
        lobby.show_waiting(|io| crowd.waits(io.group));
        staged(&mut |group| crowd.waits(group));
        let work = crowd.charge(time, sums);
        waits.worked(work);
    }
}

impl Elevator {
    /// Returns whether there is a forecast.
    #[inline]
    pub(super) fn forecasts(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.forecaster.is_some())
    }

    /// Publishes the forecast, where `staged` I/Os wait for a slot outside the elevator.
    pub(super) fn publish_forecast(&mut self, staged: u32) {
        let outside = staged + self.lobby.waiting() as u32;
        if let Some(forecaster) = self.watch.as_ref().and_then(|watch| watch.forecaster.as_ref()) {
            forecaster.prospect.publish(&forecaster.forecast.outlook(outside));
        }
    }
}
