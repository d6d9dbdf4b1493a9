//! The engine of a queue: its elevators and pumps, each behind a gate, and the words that its threads share.
//!
//! The code that enters gates is in `drive.rs` and, for changes and ends of queues, in `visit.rs`. Elevators and pumps are
//! given the words only, so nothing behind a gate can enter another one. Their duties, and wake-ups, are carried out here.

use super::gate::Gate;
use super::pump::Pump;
use crate::elevator::runner::Runner;
use crate::planted;
use crate::planted::Planted;
use crate::shared::board::Board;
use crate::shared::duties::Duties;
use crate::shared::hub::{Hub, Lasting, Shard};
#[cfg(feature = "compare")]
use crate::shared::modes::Access;
use crate::shared::seats::Parts;
use crate::shared::settings::PumpMode;
use crate::shared::stats::{QueueStats, SubmitterCounters};
use crate::sync::{GlobalCount, Kick, Ordering, fence};
use blkmq_core::{HwQueue, Instant, SubmitterId};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The current state of a queue, replaced when the queue is changed.
pub(crate) struct Engine<P> {
    /// By number of the shard.
    pub(crate) elevators: Box<[Gate<Runner>]>,
    /// By number of the hardware queue.
    pub(crate) pumps: Box<[Gate<Pump<P>>]>,
    /// Dropped last: tokens in the fields above name cells of its table, which looks for them at its end.
    pub(crate) hub: Hub<P>,
}

impl<P> Engine<P> {
    /// The way into the elevator of `shard`.
    #[inline]
    pub(crate) fn gate(&self, shard: &Shard) -> &Gate<Runner> {
        &self.elevators[usize::from(shard.index)]
    }

    /// The way into the pump of `hw`.
    #[inline]
    pub(crate) fn pump_gate(&self, hw: HwQueue) -> &Gate<Pump<P>> {
        &self.pumps[usize::from(hw.0)]
    }

    /// When a submitter of `shard`, which pumps `home` first, has to look again if no thread wakes it; [`Instant::MAX`]
    /// for never.
    pub(crate) fn deadline(&self, shard: &Shard, home: HwQueue) -> Instant {
        let pass = self.pass_deadline(shard);
        self.lanes_of(shard, home).fold(pass, |first, hw| first.min(self.pump_deadline(hw)))
    }

    /// The lanes that a submitter of `shard` looks after as long as it waits: its own one, or all; none where there are
    /// pump threads.
    #[inline]
    pub(crate) fn lanes_of(
        &self,
        shard: &Shard,
        home: HwQueue,
    ) -> impl Iterator<Item = HwQueue> + use<P> {
        let lanes = match self.hub.lasting.pump_mode {
            PumpMode::Inline => shard.hws(),
            PumpMode::Owner => home.0..home.0 + 1,
            PumpMode::Thread => 0..0,
        };
        lanes.map(HwQueue)
    }

    /// When a pass over the elevator of `shard` has to be made, for a kick, a timer, or a look of the controller of latency
    /// goals; [`Instant::MAX`] for never.
    pub(crate) fn pass_deadline(&self, shard: &Shard) -> Instant {
        let pass = self.gate(shard).deadline().unwrap_or(Instant::MAX);
        self.next_look(shard).map_or(pass, |look| look.min(pass))
    }

    /// When the controller of latency goals has to look. Not while there is a runner, which looks on its own: other
    /// threads would receive a time in the past during the run, and would not sleep.
    fn next_look(&self, shard: &Shard) -> Option<Instant> {
        let at = self.hub.board.as_ref().and_then(Board::next_look)?;
        (!self.gate(shard).is_running()).then_some(at)
    }

    /// Returns whether a look of the controller of latency goals is due by `now`.
    pub(crate) fn is_look_due(&self, shard: &Shard, now: Instant) -> bool {
        self.next_look(shard).is_some_and(|at| at <= now)
    }

    /// When the pump of `hw` has to run, for a kick, a timer, or its device; [`Instant::MAX`] for never.
    pub(crate) fn pump_deadline(&self, hw: HwQueue) -> Instant {
        let turn = self.pump_gate(hw).deadline().unwrap_or(Instant::MAX);
        self.hub.hctx(hw).next_event().map_or(turn, |event| event.min(turn))
    }

    /// Adds the counts of elevators and pumps.
    pub(crate) fn count_into(&self, stats: &mut QueueStats) {
        self.hub.shards.iter().for_each(|shard| stats.add_elevator(&shard.counters));
        self.hub.hctxs.iter().for_each(|hctx| stats.add_pump(&hctx.counters));
    }

    /// Takes the parked mark of one submitter of `shard`; the caller must wake that submitter.
    ///
    /// Pairs with [`Submitter::prepare_park`](crate::Submitter::prepare_park): that sets its mark, then looks whether
    /// work is due; here work became due before the marks are looked at.
    pub(crate) fn find_parked(&self, shard: &Shard) -> Option<SubmitterId> {
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
    /// parked submitter to do it, unless one looks by then anyway. If none is parked, the submitters that have I/Os in
    /// flight are awake.
    pub(crate) fn wake_successor(&self, shard: &Shard, home: HwQueue) {
        // First the line that no thread writes while all submitters are awake: a thread with few I/Os in flight comes
        // here after each handful, and the leader writes the words behind it.
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

    /// Takes the parked mark of the submitter that owns `lane`; the caller must wake that submitter. As
    /// [`find_parked`](Self::find_parked).
    pub(crate) fn find_owner(&self, lane: HwQueue) -> Option<SubmitterId> {
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

    /// Calls other queues that wait for returned tags.
    #[inline]
    pub(crate) fn call_others(&self) {
        // If several queues share the tags, so do all hardware queues of this one.
        self.hub.hctxs[0].tags.call_others();
    }

    /// Asks for a pass over shard `index`. Returns a parked submitter that must be woken for it; if there is none, a
    /// thread is awake and will make the pass.
    pub(crate) fn kick_shard(&self, index: u16) -> Option<SubmitterId> {
        let shard = &self.hub.shards[usize::from(index)];
        match self.gate(shard).kick() {
            Kick::Queued => self.find_parked(shard),
            Kick::Coalesced => None,
        }
    }

    /// Carries out the duties that a pass or a turn behind `gate` left, except for the wake-ups: these are added to
    /// `wakes`, for the time when the gate is released. The capacity stays with `duties`.
    #[inline(never)]
    pub(crate) fn carry_out<T>(
        &self,
        gate: &Gate<T>,
        duties: &mut Duties,
        wakes: &mut Vec<SubmitterId>,
    ) {
        let (again, at, later) = duties.take_own();
        if again {
            // The holder of a run owes another pass; where there is a lock, the next thread that polls makes it.
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

// A count and no protocol. It is the same under the model checkers: their atomics cannot be in a static.

static LEAKED: GlobalCount = GlobalCount::new(0);

/// Bios of this process whose payloads were leaked, because their queue went away before the device had given the
/// requests back: the device kept the requests, or forgot them. 0 unless a device is at fault.
///
/// The payload of such a bio is neither dropped nor reused, so that a device, or the kernel behind it, may continue to
/// write to it.
#[must_use]
pub fn leaked_bios() -> u64 {
    LEAKED.load()
}

impl<P> Drop for Engine<P> {
    /// No submitter is left, since each of them holds the queue.
    ///
    /// # Panics
    /// If a device does, after everything else has been given back.
    fn drop(&mut self) {
        let mut panic = None;
        for (gate, hctx) in self.pumps.iter_mut().zip(&self.hub.hctxs) {
            let pump = gate.get_mut();
            // A device may panic here. The requests that it has given back by then are in `held`, and the rest is
            // leaked.
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
        // A second panic would abort, and hide the first.
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
    /// The submitter that the thread belongs to. `None` for a pump thread, which never leads.
    pub(crate) id: Option<SubmitterId>,
    pub(crate) now: Instant,
    /// The hardware queue that the caller maps to; it is served first.
    pub(crate) home: HwQueue,
    pub(crate) tally: &'a SubmitterCounters,
}

#[cfg(feature = "compare")]
impl Caller<'_> {
    /// This submitter as a caller of the locked path.
    pub(crate) fn locker(&self) -> By {
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
