//! From an elevator to its devices: which thread runs an elevator or a pump, and the port that a device implements.
//!
//! Here is the engine of a queue: its elevators and pumps, each behind a gate, and the words that its threads share.
//! `visit.rs` enters the gates for changes and ends of queues. Elevators and pumps are given only the shared words, so
//! no code behind a gate can enter another one. Their duties, and wake-ups, are carried out here.
//!
//! The loops around a pass and a pump's turn are here too. They decide which thread runs an elevator or a pump, for how
//! long, and which work it does next. Plugs and single I/Os enter here. No call blocks. A caller runs the elevator and
//! the pumps inline until no work is due or it has done its share (decision 0002). The run states then keep the work that is
//! still due, for the next caller that submits, polls or waits; a parked submitter is woken for it.

use crate::dispatch::compare::locked::Locked;
use crate::dispatch::pump::Pump;
use crate::elevator::merging::{Own, stage};
use crate::elevator::runner::{Runner, Sent};
use crate::planted::{self, Planted, Stop};
use crate::shared::PumpMode;
use crate::shared::hctx::{Duties, Ready};
use crate::shared::hub::{Follow, Hub, Lasting, Look, Parts, Shard};
use crate::shared::modes::Access;
use crate::shared::stats::{Board, QueueStats, SubmitterCounters};
use crate::sync::{COMPARE, Gate, GlobalCount, Kick, Ordering, RunGuard, fence};
use blkmq_core::{HwQueue, Instant, SubmitterId};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

pub(crate) mod compare;
pub(crate) mod device;
pub(crate) mod pump;
pub(crate) mod visit;

/// The current state of a queue, replaced when the queue is changed.
pub(crate) struct Engine<P> {
    /// Indexed by shard.
    pub(crate) elevators: Box<[Gate<Runner>]>,
    /// Indexed by hardware queue.
    pub(crate) pumps: Box<[Gate<Pump<P>>]>,
    /// Dropped last: tokens in the fields above name cells of its table, which checks for them when it is dropped.
    pub(crate) hub: Hub<P>,
}

impl<P> Engine<P> {
    /// The gate of the elevator of `shard`.
    #[inline]
    pub(crate) fn gate(&self, shard: &Shard) -> &Gate<Runner> {
        &self.elevators[usize::from(shard.index)]
    }

    /// The gate of the pump of `hw`.
    #[inline]
    pub(crate) fn pump_gate(&self, hw: HwQueue) -> &Gate<Pump<P>> {
        &self.pumps[usize::from(hw.0)]
    }

    /// The time at which a submitter of `shard`, which pumps `home` first, has to check for work if no thread wakes it;
    /// [`Instant::MAX`] if it need not.
    pub(crate) fn deadline(&self, shard: &Shard, home: HwQueue) -> Instant {
        let pass = self.pass_deadline(shard);
        self.lanes_of(shard, home).fold(pass, |first, hw| first.min(self.pump_deadline(hw)))
    }

    /// The lanes that a submitter of `shard` serves while it waits: its own, or all. Empty where there are pump
    /// threads.
    #[inline]
    fn lanes_of(&self, shard: &Shard, home: HwQueue) -> impl Iterator<Item = HwQueue> + use<P> {
        let lanes = match self.hub.lasting.pump_mode {
            PumpMode::Inline => shard.hws(),
            PumpMode::Owner => home.0..home.0 + 1,
            PumpMode::Thread => 0..0,
        };
        lanes.map(HwQueue)
    }

    /// The time at which a pass over the elevator of `shard` is due: for a kick, a timer, or the controller of latency
    /// goals; [`Instant::MAX`] for never.
    pub(crate) fn pass_deadline(&self, shard: &Shard) -> Instant {
        let pass = self.gate(shard).deadline().unwrap_or(Instant::MAX);
        self.next_look(shard).map_or(pass, |look| look.min(pass))
    }

    /// The time at which the controller of latency goals has to check. `None` while there is a runner, which checks
    /// itself: otherwise the wake-up time of other threads would be in the past during the run, and they would not
    /// sleep.
    fn next_look(&self, shard: &Shard) -> Option<Instant> {
        let at = self.hub.board.as_ref().and_then(Board::next_look)?;
        (!self.gate(shard).is_running()).then_some(at)
    }

    /// Returns whether a check by the controller of latency goals is due.
    pub(crate) fn is_look_due(&self, shard: &Shard, now: Instant) -> bool {
        self.next_look(shard).is_some_and(|at| at <= now)
    }

    /// The time at which the pump of `hw` has to run, for a kick, a timer, or its device; [`Instant::MAX`] for never.
    pub(crate) fn pump_deadline(&self, hw: HwQueue) -> Instant {
        let turn = self.pump_gate(hw).deadline().unwrap_or(Instant::MAX);
        self.hub.hctx(hw).next_event().map_or(turn, |event| event.min(turn))
    }

    /// Adds the counts of elevators and pumps.
    pub(crate) fn count_into(&self, stats: &mut QueueStats) {
        self.hub.shards.iter().for_each(|shard| stats.add_elevator(&shard.counters));
        self.hub.hctxs.iter().for_each(|hctx| stats.add_pump(&hctx.counters));
    }

    /// Takes the parked mark of one submitter of `shard`, which the caller must wake. `None` if none is parked.
    ///
    /// Pairs with [`Submitter::prepare_park`](crate::Submitter::prepare_park), which sets its mark and then checks
    /// whether work is due. Here work became due before the marks are checked.
    fn find_parked(&self, shard: &Shard) -> Option<SubmitterId> {
        if planted::is(Planted::ForgetsParked) {
            return None;
        }
        fence(Ordering::SeqCst);
        if !shard.sleepers.any() {
            return None;
        }
        let parked = |id: &SubmitterId| self.hub.lasting.senders[usize::from(id.0)].take_parked();
        shard.submitters.iter().copied().find(parked)
    }

    /// For a thread that may not return, and pumps `home` first: if work of `shard` is due, now or later, wakes a
    /// parked submitter to do it, unless one will check by then anyway. If none is parked, the submitters that have
    /// I/Os in flight are awake.
    pub(crate) fn wake_successor(&self, shard: &Shard, home: HwQueue) {
        // Check first the line that no thread writes while all submitters are awake: a thread with few I/Os in flight
        // comes here after every few of them, and the leader writes the words behind that line.
        fence(Ordering::SeqCst);
        if !shard.sleepers.any() || planted::is(Planted::ForgetsToWakeSuccessor) {
            return;
        }
        let due = self.deadline(shard, home);
        if due < Instant::MAX && !shard.sleepers.look_by(due) {
            let parked = self.find_parked(shard);
            self.wake(parked.as_slice());
        }
    }

    /// Takes the parked mark of the submitter that owns `lane`, which the caller must wake. Like
    /// [`find_parked`](Self::find_parked).
    fn find_owner(&self, lane: HwQueue) -> Option<SubmitterId> {
        fence(Ordering::SeqCst);
        let parked = self.hub.lasting.senders[usize::from(lane.0)].take_parked();
        (parked && !planted::is(Planted::ForgetsOwner)).then_some(SubmitterId(lane.0))
    }

    pub(crate) fn wake(&self, submitters: &[SubmitterId]) {
        for id in submitters {
            self.hub.lasting.host.wake_submitter(*id);
        }
        self.call_others();
    }

    /// Kicks other queues that wait for returned tags.
    #[inline]
    pub(crate) fn call_others(&self) {
        // Queues that share tags share them for all of their hardware queues.
        self.hub.hctxs[0].tags.call_others();
    }

    /// Requests a pass over shard `index`. Returns a parked submitter that must be woken for it. If it returns `None`,
    /// a thread is awake and will make the pass.
    pub(crate) fn kick_shard(&self, index: u16) -> Option<SubmitterId> {
        let shard = &self.hub.shards[usize::from(index)];
        match self.gate(shard).kick() {
            Kick::Queued => self.find_parked(shard),
            Kick::Coalesced => None,
        }
    }

    /// Carries out the duties that a pass or a turn behind `gate` left, except for the wake-ups, which it adds to
    /// `wakes` for the time when the gate is released. `duties` keeps its capacity.
    #[inline(never)]
    pub(crate) fn carry_out<T>(
        &self,
        gate: &Gate<T>,
        duties: &mut Duties,
        wakes: &mut Vec<SubmitterId>,
    ) {
        let (again, at, later) = duties.take_own();
        if again {
            // The holder of a run owes another pass; behind a lock, the next thread that polls makes it.
            let _ = gate.kick();
        }
        if let Some(at) = at {
            gate.arm(at);
        }
        if let Some(at) = later {
            gate.run_later(at);
        }
        duties.take_kicks(|shard| wakes.extend(self.kick_shard(shard)));
        duties.take_wakes(wakes);
    }
}

// A count that is part of no protocol. It is a std atomic under the model checkers, whose atomics cannot be in a
// static.

static LEAKED: GlobalCount = GlobalCount::new(0);

/// The number of bios of this process whose payloads were leaked because their queue was dropped before the device had
/// returned the requests: the device kept or forgot them. 0 unless a device is at fault.
///
/// The payload of such a bio is neither dropped nor reused, so the device, or the kernel behind it, may continue to
/// write to it.
#[must_use]
pub fn leaked_bios() -> u64 {
    LEAKED.load()
}

impl<P> Drop for Engine<P> {
    /// No submitter is left, because each of them holds the queue.
    ///
    /// # Panics
    /// If a device panics. Everything else has then been returned.
    fn drop(&mut self) {
        let mut panic = None;
        for (gate, hctx) in self.pumps.iter_mut().zip(&self.hub.hctxs) {
            let pump = gate.get_mut();
            // A device may panic here. The requests that it has returned by then are in `held`, and the rest is leaked.
            let mut held = Vec::new();
            let given_back = catch_unwind(AssertUnwindSafe(|| pump.abandon(&mut held)));
            panic = panic.or(given_back.err());
            for rq in held {
                hctx.tags.put_abandoned(rq.tag);
                rq.into_head().orphan();
            }
            pump.send_rest(&self.hub.lasting);
        }
        if COMPARE {
            self.hub.shards.iter().for_each(Shard::orphan_parked);
        }
        for gate in &mut self.elevators {
            let runner = gate.get_mut();
            runner.end_all();
            runner.completions.send_rest(&self.hub.lasting);
        }
        // A second panic would abort the process and hide the first.
        if let Some(panic) = panic
            && !std::thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}

impl<P> Drop for Lasting<P> {
    fn drop(&mut self) {
        let leaked = self.table.settle(self.seats.drain().map(|Parts { receiver, .. }| receiver));
        LEAKED.add(leaked);
    }
}

/// The caller of the locked path, and the time.
#[derive(Clone, Copy)]
pub(crate) struct By {
    /// The number with which the caller takes locks.
    pub(crate) who: usize,
    pub(crate) now: Instant,
}

/// The calling thread, and the time.
#[derive(Clone, Copy)]
pub(crate) struct Caller<'a> {
    /// The submitter of the thread. `None` for a pump thread, which never leads.
    pub(crate) id: Option<SubmitterId>,
    pub(crate) now: Instant,
    /// The hardware queue that the caller maps to, which is served first.
    pub(crate) home: HwQueue,
    pub(crate) tally: &'a SubmitterCounters,
}

impl Caller<'_> {
    /// This submitter as a caller of the locked path.
    fn locker(&self) -> By {
        let id = self.id.expect("a submitter calls");
        By { who: id.0.into(), now: self.now }
    }
}

impl<P> Engine<P> {
    /// Returns whether the elevator is behind a lock.
    #[inline]
    pub(crate) fn is_locked(&self) -> bool {
        COMPARE && !matches!(self.hub.modes.access, Access::Combining)
    }
}

// Shares of work are small in models, which would otherwise never reach the end of one.

/// Passes that one thread makes before it hands over.
const RUN_PASSES: u32 = if cfg!(shuttle) { 2 } else { 4 };
/// Turns that one thread makes at one pump before it hands over.
const PUMP_TURNS: u32 = if cfg!(shuttle) { 2 } else { 4 };
/// Rounds of elevator and pump that one call makes; a device of depth 1 needs one for each request.
const DRIVE_ROUNDS: u32 = if cfg!(shuttle) { 2 } else { 64 };

/// The turns of one thread at a pump.
#[derive(Clone, Copy)]
struct Turns {
    made: u32,
    /// Another turn is owed.
    is_owed: bool,
}

impl<P: Send> Engine<P> {
    /// Submits the caller's plug. Runs the elevator of `shard` with it if the elevator is free. Otherwise stages the
    /// plug and kicks the runner, which has the run or is about to take it again.
    pub(crate) fn submit(&self, shard: &Shard, by: Caller<'_>, own: Own<'_>, follow: &mut Follow) {
        if self.is_locked() {
            return Locked(self).locked_submit(shard, by.now, by.home, own);
        }
        let tally = by.tally;
        // An owner's I/O leaves by its own lane, so it is not left to the leader.
        let leave = !self.hub.has_owners() && follow.should_leave(shard.lead(), by.now);
        if !leave && let Some(mut guard) = self.gate(shard).try_run() {
            tally.direct.add(1);
            if own.plug.len() == 1
                && let Some(sent) = guard.pass_straight(&self.hub, shard, by.now, own.plug)
            {
                self.drive_straight(shard, guard, by, sent);
                return;
            }
            let ready = self.run(shard, guard, by, Some(own));
            self.drive(shard, ready, by);
            return;
        }
        tally.staged.add(1);
        stage(shard, own);
        if leave {
            match self.gate(shard).kick() {
                Kick::Queued => tally.kicks_sent.add(1),
                Kick::Coalesced => tally.kicks_coalesced.add(1),
            }
        } else {
            self.kick_and_drive(shard, by);
        }
    }

    /// Gets the asks to cancel answered: runs the elevator of `shard`, or makes its runner owe another pass.
    pub(crate) fn ask(&self, shard: &Shard, by: Caller<'_>) {
        if self.is_locked() {
            return Locked(self).locked_ask(shard, by);
        }
        self.kick_and_drive(shard, by);
    }

    /// Runs the elevator of `shard`, or makes its runner owe another pass.
    pub(crate) fn kick_and_drive(&self, shard: &Shard, by: Caller<'_>) {
        if let Some(guard) = self.gate(shard).run_or_owe() {
            by.tally.kicks_sent.add(1);
            let ready = self.run(shard, guard, by, None);
            self.drive(shard, ready, by);
        } else {
            by.tally.kicks_coalesced.add(1);
        }
    }

    /// Pumps the hardware queues in `ready`, and runs the elevator again if it waited for something that the pumps
    /// returned. Returns whether anything ran. If so, work may be left that this thread has to do later.
    pub(crate) fn drive(&self, shard: &Shard, mut ready: Ready, by: Caller<'_>) -> bool {
        let mut ran = !ready.is_empty();
        for _ in 0..DRIVE_ROUNDS {
            let mut restart = false;
            for hw in ready.iter(shard.hws()) {
                restart |= self.pump_or_call(hw, by);
            }
            // A pump may also have kicked this elevator, for a budget that was returned.
            if !restart && !self.gate(shard).due(by.now) {
                return ran;
            }
            let Some(guard) = self.gate(shard).run_or_owe() else { return ran };
            ran = true;
            ready = self.run(shard, guard, by, None);
        }
        // The requests of the last run still need their pumps, and more requests may wait behind them.
        for hw in ready.iter(shard.hws()) {
            if self.pump_or_call(hw, by) {
                // The pump has kicked the elevator, and expected this thread to run it.
                let _ = self.gate(shard).kick();
                let parked = self.find_parked(shard);
                self.wake(parked.as_slice());
            }
        }
        true
    }

    /// Makes passes over the elevator until no further pass is owed or this thread has done its share.
    pub(crate) fn run(
        &self,
        shard: &Shard,
        mut guard: RunGuard<'_, Runner>,
        by: Caller<'_>,
        mut own: Option<Own<'_>>,
    ) -> Ready {
        let mut ready = Ready::default();
        let mut passes = 0;
        let mut wakes = Vec::new();
        let mut book = None;
        loop {
            if let Some(id) = by.id {
                shard.lead().note_pass(id);
            }
            ready.merge(guard.pass(&self.hub, shard, by.now, by.home, own.take()));
            passes += 1;
            if guard.duties.any() {
                self.carry_out(self.gate(shard), &mut guard.duties, &mut wakes);
            }
            book = guard.elevator.env.take_notes(&self.hub.lasting.ledger, book);
            guard.elevator.counters.longest_run.raise(passes);
            if passes >= u64::from(RUN_PASSES) {
                guard.elevator.counters.hand_overs.add(1);
                guard.hand_over();
                wakes.extend(self.find_parked(shard));
                break;
            }
            match guard.finish() {
                None => break,
                Some(again) => guard = again,
            }
        }
        planted::stop(Stop::BeforePump);
        self.wake(&wakes);
        // The elevator has been released, so this delays no thread.
        if let Some(mut book) = book {
            book.count();
        }
        ready
    }

    /// Runs the pump of `hw`, or wakes its thread. Returns whether an elevator waited for something that the pump
    /// returned.
    fn pump_or_call(&self, hw: HwQueue, by: Caller<'_>) -> bool {
        match self.hub.lasting.pump_mode {
            PumpMode::Inline => return self.pump(hw, by.now, by.tally),
            PumpMode::Owner => {
                return if by.id == Some(SubmitterId(hw.0)) {
                    self.pump(hw, by.now, by.tally)
                } else {
                    self.call_owner(hw, by)
                };
            }
            PumpMode::Thread => {}
        }
        match self.pump_gate(hw).kick() {
            Kick::Queued => {
                by.tally.kicks_sent.add(1);
                self.hub.lasting.host.wake_pump(hw);
            }
            Kick::Coalesced => by.tally.kicks_coalesced.add(1),
        }
        false
    }

    /// Gets the lane `hw` of another submitter pumped. While its owner waits, asleep or awake, the owner pumps, because
    /// a completion wakes the thread that has submitted the request. Otherwise the calling thread pumps immediately.
    #[inline(never)]
    fn call_owner(&self, hw: HwQueue, by: Caller<'_>) -> bool {
        let known = self.pump_deadline(hw);
        let _ = self.pump_gate(hw).kick();
        if let Some(owner) = self.find_owner(hw) {
            self.wake(&[owner]);
            return false;
        }
        // Ordered by the fence in the search for the owner.
        if self.hub.lasting.attendance[usize::from(hw.0)].is_waiting() {
            return false;
        }
        self.pump_for_owner(hw, by, known)
    }

    /// Runs the pump of another submitter's lane. An owner that has gone to sleep in the meantime expects no event
    /// before `known`, and is woken if there is an earlier one. Returns whether an elevator waited for something that
    /// the pump returned.
    fn pump_for_owner(&self, hw: HwQueue, by: Caller<'_>, known: Instant) -> bool {
        let restart = self.pump(hw, by.now, by.tally);
        if self.pump_deadline(hw) < known
            && !planted::is(Planted::KeepsDeadline)
            && let Some(owner) = self.find_owner(hw)
        {
            self.wake(&[owner]);
        }
        restart
    }

    /// Runs the pump of `hw` unless another thread does. Returns whether an elevator waited for something that the pump
    /// returned.
    pub(crate) fn pump(&self, hw: HwQueue, now: Instant, tally: &SubmitterCounters) -> bool {
        let (gate, hctx) = (self.pump_gate(hw), self.hub.hctx(hw));
        let Some(mut guard) = gate.run_or_owe() else {
            tally.kicks_coalesced.add(1);
            return false;
        };
        tally.kicks_sent.add(1);
        let waits = guard.turn(&self.hub, hctx, now);
        if COMPARE {
            Locked(self).kick_for_each(hw, guard.take_completed_since_kick(), waits);
        }
        if waits {
            self.owe_pass(hw);
        }
        // Usually one turn suffices, and leaves no duties.
        if !guard.duties.any() {
            let Some(again) = guard.finish() else {
                planted::stop(Stop::BeforePass);
                self.call_others();
                return waits;
            };
            guard = again;
            return self.pump_on(hw, guard, now, Turns { made: 1, is_owed: true }) | waits;
        }
        self.pump_on(hw, guard, now, Turns { made: 1, is_owed: false }) | waits
    }

    /// Marks a pass as due because an elevator waits for something that a pump returns. Called before the pump is
    /// released, although this thread will make the pass: if it loses its CPU afterwards, another one finds the pass
    /// due (decision 0025).
    #[inline]
    fn owe_pass(&self, hw: HwQueue) {
        if !planted::is(Planted::LeavesPasses) {
            self.gate(&self.hub.shards[self.hub.shard_of(hw)]).owe();
        }
    }

    /// Carries out the duties that the last turn of a pump left, and makes the turns that are owed. Returns whether an
    /// elevator waited for something that the pump returned.
    #[inline(never)]
    fn pump_on(
        &self,
        hw: HwQueue,
        mut guard: RunGuard<'_, Pump<P>>,
        now: Instant,
        turns: Turns,
    ) -> bool {
        let (gate, hctx) = (self.pump_gate(hw), self.hub.hctx(hw));
        let Turns { mut made, mut is_owed } = turns;
        let mut restart = false;
        let mut wakes = Vec::new();
        loop {
            if is_owed {
                let waits = guard.turn_again(&self.hub, hctx, now);
                if COMPARE {
                    Locked(self).kick_for_each(hw, guard.take_completed_since_kick(), waits);
                }
                if waits {
                    self.owe_pass(hw);
                }
                restart |= waits;
                made += 1;
            }
            if guard.duties.any() {
                self.carry_out(gate, &mut guard.duties, &mut wakes);
            }
            if made == PUMP_TURNS {
                guard.hand_over();
                if self.hub.has_owners() {
                    wakes.extend(self.find_owner(hw));
                } else {
                    wakes.extend(self.find_parked(&self.hub.shards[self.hub.shard_of(hw)]));
                }
                break;
            }
            match guard.finish() {
                None => break,
                Some(again) => (guard, is_owed) = (again, true),
            }
        }
        planted::stop(Stop::BeforePass);
        self.wake(&wakes);
        restart
    }
}

impl<P: Send> Engine<P> {
    /// Ends a run that consists of a straight pass, and pumps the request that it sent.
    #[inline]
    fn drive_straight(
        &self,
        shard: &Shard,
        mut guard: RunGuard<'_, Runner>,
        by: Caller<'_>,
        sent: Sent,
    ) {
        if let Some(id) = by.id {
            shard.lead().note_pass(id);
        }
        if guard.duties.any() || guard.elevator.env.has_notes() {
            self.end_pass(shard, guard, by, sent);
            return;
        }
        if let Some(owed) = guard.finish() {
            self.go_on(shard, owed, by, sent);
            return;
        }
        planted::stop(Stop::BeforePump);
        let restart = match sent {
            Sent::By(hw) if matches!(self.hub.lasting.pump_mode, PumpMode::Inline) => {
                self.pump(hw, by.now, by.tally)
            }
            Sent::By(hw) => self.pump_or_call(hw, by),
            Sent::Nothing => false,
        };
        // A pump may also have kicked this elevator, for a budget that was returned.
        if restart || self.gate(shard).due(by.now) {
            self.run_again(shard, by);
        }
    }

    /// Carries out the duties that a straight pass left, before the run ends.
    #[inline(never)]
    fn end_pass(&self, shard: &Shard, mut guard: RunGuard<'_, Runner>, by: Caller<'_>, sent: Sent) {
        let mut wakes = Vec::new();
        self.carry_out(self.gate(shard), &mut guard.duties, &mut wakes);
        let book = guard.elevator.env.take_notes(&self.hub.lasting.ledger, None);
        let owed = guard.finish();
        self.wake(&wakes);
        let Some(owed) = owed else {
            if let Some(mut book) = book {
                book.count();
            }
            self.drive(shard, sent.ready(), by);
            return;
        };
        // The notes of the next pass go into the same book.
        drop(book);
        self.go_on(shard, owed, by, sent);
    }

    /// Makes the passes that are owed after a straight one.
    #[inline(never)]
    fn go_on(&self, shard: &Shard, owed: RunGuard<'_, Runner>, by: Caller<'_>, sent: Sent) {
        let mut ready = sent.ready();
        ready.merge(self.run(shard, owed, by, None));
        self.drive(shard, ready, by);
    }

    #[inline(never)]
    fn run_again(&self, shard: &Shard, by: Caller<'_>) {
        if let Some(guard) = self.gate(shard).run_or_owe() {
            let ready = self.run(shard, guard, by, None);
            self.drive(shard, ready, by);
        }
    }

    /// Does the work that is due for `shard`: a pass of its elevator, turns of its pumps. Returns whether anything ran.
    pub(crate) fn poll(&self, shard: &Shard, by: Caller<'_>, follow: &mut Follow) -> bool {
        if self.is_locked() {
            return Locked(self).locked_poll(shard, by.locker(), by.home);
        }
        let (now, has_owners) = (by.now, self.hub.has_owners());
        let look = if has_owners { Look::All } else { follow.look(now) };
        if matches!(look, Look::Nothing) {
            return false;
        }
        let mut ready = Ready::default();
        for hw in self.lanes_of(shard, by.home) {
            // Only the device knows whether an owner has been woken.
            if has_owners || self.pump_due(hw, now, look) {
                ready.add(hw);
            }
        }
        // Only with a pump to run, because the code below decides whether to run the elevator.
        let mut ran = !ready.is_empty() && self.drive(shard, ready, by);
        if matches!(look, Look::Devices) {
            return ran;
        }
        // If anything ran, a pass has made that check.
        if self.gate(shard).due(now) || !ran && self.is_look_due(shard, now) {
            if (has_owners || follow.should_run(shard.lead(), now))
                && let Some(guard) = self.gate(shard).try_run()
            {
                let ready = self.run(shard, guard, by, None);
                self.drive(shard, ready, by);
                ran = true;
            }
        } else if !ran && !has_owners {
            follow.was_in_vain(shard.lead(), self.gate(shard).is_running(), now);
        }
        ran
    }

    /// Does the work that is due at the pump of `hw`, and the work that follows from it, on its pump thread.
    pub(crate) fn serve(&self, hw: HwQueue, now: Instant) {
        let shard = &self.hub.shards[self.hub.shard_of(hw)];
        if self.is_locked() {
            Locked(self).locked_poll(shard, By { who: self.hub.pump_thread(hw), now }, hw);
            return;
        }
        let tally = &self.hub.lasting.pump_tallies[usize::from(hw.0)];
        let by = Caller { id: None, now, home: hw, tally };
        if (!COMPARE || Locked(self).pump_may_run(hw, now)) && self.pump(hw, now, tally) {
            self.kick_and_drive(shard, by);
        }
        if self.gate(shard).due(now) || self.is_look_due(shard, now) {
            self.kick_and_drive(shard, by);
        }
    }

    /// Does the work that is due for `shard`, on the thread that changes the queue. Returns whether anything ran.
    pub(crate) fn help_shard(&self, shard: &Shard, home: HwQueue, now: Instant) -> bool {
        if self.is_locked() {
            return Locked(self).locked_poll(shard, By { who: self.hub.changer(), now }, home);
        }
        let tally = &self.hub.lasting.pump_tallies[self.hub.hctxs.len()];
        let by = Caller { id: None, now, home, tally };
        let mut ready = Ready::default();
        for hw in shard.hws().map(HwQueue).filter(|hw| self.pump_due(*hw, now, Look::All)) {
            ready.add(hw);
        }
        let ran = self.drive(shard, ready, by);
        if !self.gate(shard).due(now) {
            return ran;
        }
        self.kick_and_drive(shard, by);
        true
    }

    /// The time until which a submitter of `shard` may sleep: [`Instant::MAX`] for no end, `None` if work is due at
    /// `now`. A timer that has expired is left to the thread that runs the elevator or the pump, which makes another
    /// pass for it.
    pub(crate) fn rest_until(&self, shard: &Shard, home: HwQueue, now: Instant) -> Option<Instant> {
        let mut until = self.deadline(shard, home);
        if until <= now {
            self.gate(shard).owe_expired(now);
            self.lanes_of(shard, home).for_each(|hw| self.pump_gate(hw).owe_expired(now));
            until = self.deadline(shard, home);
        }
        let is_left = self.lanes_of(shard, home).any(|hw| self.is_left(hw));
        (until > now && !is_left).then_some(until)
    }

    /// A count that changes while threads run the elevator of `shard` or its pumps; `None` if no thread does. A hint.
    pub(crate) fn progress(&self, shard: &Shard, home: HwQueue) -> Option<u64> {
        let run = self.gate(shard).is_running().then(|| shard.counters.passes.get());
        let taken = |hw: &HwQueue| self.pump_gate(*hw).is_running();
        let turns = self
            .lanes_of(shard, home)
            .filter(taken)
            .map(|hw| self.hub.hctx(hw).counters.turns.get());
        run.into_iter().chain(turns).reduce(u64::wrapping_add)
    }

    /// Does the work that is due at the lanes of all submitters of `shard`, for a submitter whose I/Os wait for
    /// resources that other submitters hold: their threads may be busy elsewhere.
    pub(crate) fn poll_all(&self, shard: &Shard, by: Caller<'_>) {
        if planted::is(Planted::LooksAtItsOwn) {
            return;
        }
        let mut restart = false;
        for hw in shard.hws().map(HwQueue).filter(|hw| self.pump_due(*hw, by.now, Look::All)) {
            restart |= self.pump_for_owner(hw, by, self.pump_deadline(hw));
        }
        if restart {
            self.kick_and_drive(shard, by);
        }
    }

    /// Returns whether another thread has kicked the lane `hw` for its owner, or filled its outbox.
    #[inline]
    pub(crate) fn has_been_left(&self, hw: HwQueue, now: Instant) -> bool {
        self.pump_gate(hw).due(now) || self.is_left(hw)
    }

    /// Returns whether a turn of the pump of `hw` is worthwhile for a thread that is awake anyway.
    pub(crate) fn pump_due(&self, hw: HwQueue, now: Instant, look: Look) -> bool {
        let of_device = self.hub.hctx(hw).signals() || self.is_event_due(hw, now);
        of_device || matches!(look, Look::All) && self.has_been_left(hw, now)
    }

    /// Returns whether the device of `hw`, or the timer of a request there, needs a turn now.
    fn is_event_due(&self, hw: HwQueue, now: Instant) -> bool {
        self.hub.hctx(hw).next_event().is_some_and(|at| at <= now)
    }

    /// Returns whether the outbox of `hw` has requests and no thread is at its pump. A runner has then released the
    /// elevator and not reached the pump yet, which takes long if it has lost its CPU in between (decision 0025).
    fn is_left(&self, hw: HwQueue) -> bool {
        self.hub.hctx(hw).has_sent()
            && !self.pump_gate(hw).is_running()
            && !planted::is(Planted::LeavesOutboxes)
    }
}
