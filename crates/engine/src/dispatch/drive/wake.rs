//! Kicks, timers and wake-ups: what passes and turns leave is carried out here, and nowhere else.

use super::Engine;
use crate::dispatch::duties::Duties;
use crate::dispatch::gate::Gate;
use crate::planted::{self, Planted};
use crate::shared::shard::Shard;
use crate::sync::{Kick, Ordering, fence};
use blkmq_core::{HwQueue, SubmitterId};

impl<P> Engine<P> {
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

    /// For a thread that may not come back, and pumps `home` first: if work of `shard` is due, now or later, wakes a parked
    /// submitter to do it, unless one looks by then anyway. If none is parked, the submitters that have I/Os in flight
    /// are awake.
    pub(crate) fn wake_successor(&self, shard: &Shard, home: HwQueue) {
        // First the line that no thread writes while all submitters are awake: a thread with few I/Os in flight comes
        // here after each handful, and the leader writes the words behind it.
        fence(Ordering::SeqCst);
        if !shard.sleepers.any() || planted::is(Planted::ForgetsToWakeSuccessor) {
            return;
        }
        if let Some(due) = self.deadline(shard, home)
            && !shard.sleepers.look_by(due)
        {
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

    /// Calls other queues that wait for tags which came back.
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

    /// Carries out what a pass or a turn behind `gate` left, except for the wake-ups: these are added to `wakes`, for
    /// the time when the gate is released. The capacity stays with `duties`.
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
