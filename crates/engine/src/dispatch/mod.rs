//! From an elevator to its devices: which thread runs an elevator or a pump, and the port that a device implements.
//!
//! Here is the engine of a queue: its elevators and pumps, each behind a gate, and the words that its threads share.
//! `drive.rs` enters the gates, and `visit.rs` for changes and ends of queues. Elevators and pumps are given only the
//! shared words, so no code behind a gate can enter another one. Their duties, and wake-ups, are carried out here.

#[cfg(feature = "compare")]
pub(crate) mod compare;
pub(crate) mod device;
pub(crate) mod drive;
pub(crate) mod pump;
pub(crate) mod visit;

#[cfg(feature = "compare")]
pub(crate) use compare::gate;

use crate::dispatch::gate::Gate;
use crate::dispatch::pump::Pump;
use crate::elevator::runner::Runner;
use crate::planted;
use crate::planted::Planted;
use crate::shared::PumpMode;
use crate::shared::duties::Duties;
use crate::shared::hub::{Hub, Lasting, Parts, Shard};
#[cfg(feature = "compare")]
use crate::shared::modes::Access;
use crate::shared::stats::Board;
use crate::shared::stats::{QueueStats, SubmitterCounters};
use crate::sync::{GlobalCount, Kick, Ordering, fence};
use blkmq_core::{HwQueue, Instant, SubmitterId};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

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
        #[cfg(feature = "compare")]
        self.hub.shards.iter().for_each(Shard::orphan_parked);
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
#[cfg(feature = "compare")]
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

#[cfg(feature = "compare")]
impl Caller<'_> {
    /// This submitter as a caller of the locked path.
    fn locker(&self) -> By {
        let id = self.id.expect("a submitter calls");
        By { who: id.0.into(), now: self.now }
    }
}

#[cfg(feature = "compare")]
impl<P> Engine<P> {
    /// Returns whether the elevator is behind a lock.
    #[inline]
    pub(crate) fn is_locked(&self) -> bool {
        self.hub.modes.access != Access::Combining
    }
}

/// Gates: how a thread enters an elevator or a pump, and how kicks and timers are kept.
///
/// A build with the feature `compare` has `compare/gate.rs` instead, which also knows locks and the kernel's kicks. The
/// two have the same methods, so the code around them is the same.
#[cfg(not(feature = "compare"))]
pub(crate) mod gate {
    use crate::sync::{AlarmRef, Kick, RunCell, RunGuard};
    use blkmq_core::Instant;
    use std::ops::{Deref, DerefMut};

    /// The parts from which a gate is built, besides its value.
    pub(crate) struct GateShape {
        /// Raised when a holder panics.
        pub(crate) alarm: AlarmRef,
    }

    /// A value that one thread at a time may enter, with a word that says whether a pass is due.
    pub(crate) struct Gate<T>(RunCell<T>);

    /// The right to the value behind a gate. Dropping it hands the run over: a pass is then due, and another thread has
    /// to begin it.
    pub(crate) struct Entered<'a, T>(RunGuard<'a, T>);

    impl<T> Deref for Entered<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            &self.0
        }
    }

    impl<T> DerefMut for Entered<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.0
        }
    }

    impl<T> Entered<'_, T> {
        /// Returns whether an earlier holder has panicked or closed the gate.
        pub(crate) fn is_poisoned(&self) -> bool {
            self.0.is_poisoned()
        }

        /// Closes the gate. Afterwards it can only be [seized](Gate::seize).
        pub(crate) fn close(&self) {
            self.0.close();
        }

        /// Releases the right without work left. Hands over a pass that became owed in the meantime.
        pub(crate) fn finish(self) {
            if let Some(owed) = self.0.finish() {
                owed.hand_over();
            }
        }
    }

    impl<T> Gate<T> {
        pub(crate) fn new(shape: &GateShape, value: T) -> Self {
            Self(RunCell::with_alarm(value, shape.alarm.clone()))
        }

        /// Takes the run; `None` if it is taken.
        #[inline]
        pub(crate) fn try_run(&self) -> Option<RunGuard<'_, T>> {
            self.0.try_enter()
        }

        /// Takes the run. If it is taken, its holder owes another pass.
        #[inline]
        pub(crate) fn run_or_owe(&self) -> Option<RunGuard<'_, T>> {
            self.0.enter_or_owe()
        }

        /// Enters, for a caller that makes no pass. `None` if the run is taken. A run does not depend on the thread.
        pub(crate) fn enter(&self, _thread: usize) -> Option<Entered<'_, T>> {
            self.0.try_enter().map(Entered)
        }

        /// Enters even if an earlier holder panicked or closed the gate. `None` if the run is taken.
        pub(crate) fn seize(&self, _thread: usize) -> Option<Entered<'_, T>> {
            self.0.seize().map(Entered)
        }

        /// Requests a pass. After `Queued` the caller must make sure that a thread begins it.
        pub(crate) fn kick(&self) -> Kick {
            self.0.kick()
        }

        /// Marks a pass as due that the caller is about to begin, or that the runner makes. If the caller loses its CPU
        /// before, another thread begins it.
        pub(crate) fn owe(&self) {
            let _ = self.0.kick();
        }

        /// Requests a pass no later than `at`.
        pub(crate) fn arm(&self, at: Instant) {
            self.0.arm(at);
        }

        /// Requests a pass at `at`. An earlier pass serves the request as well.
        pub(crate) fn run_later(&self, at: Instant) {
            self.0.arm(at);
        }

        /// Returns whether a pass is due by `now`.
        #[inline]
        pub(crate) fn due(&self, now: Instant) -> bool {
            self.0.due(now)
        }

        /// Returns whether there is a runner. A hint.
        #[inline]
        pub(crate) fn is_running(&self) -> bool {
            self.0.is_running()
        }

        /// Makes an active runner owe another pass if a timer has expired; that pass serves the timer. A thread that is
        /// about to sleep calls this, because its wake-up time would otherwise be in the past as long as the runner is
        /// active.
        pub(crate) fn owe_expired(&self, now: Instant) {
            if self.0.is_running() && self.deadline().is_some_and(|at| at <= now) {
                // If the runner has finished in the meantime, the pass is due and the caller does not sleep.
                let _ = self.0.kick();
            }
        }

        /// The time at which a pass is due without a further kick; zero if one was requested. `None` if no pass is due.
        pub(crate) fn deadline(&self) -> Option<Instant> {
            if self.due(Instant::ZERO) { Some(Instant::ZERO) } else { self.0.deadline() }
        }

        pub(crate) fn get_mut(&mut self) -> &mut T {
            self.0.get_mut()
        }
    }
}
