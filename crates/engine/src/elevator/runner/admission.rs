//! The first half of a pass: staged I/Os and the caller's plug enter the elevator, and asks to cancel are answered.
//!
//! Each I/O is offered to merging first, and takes a slot only if it did not merge. An I/O without a slot waits in
//! staging, or in the lobby where slots go by group.
//!
//! # Cancelling
//!
//! A submitter that cancels an I/O leaves an [`Ask`] in a ring of its own, adds itself to its shard's set of submitters
//! that asked, and kicks. It stages I/Os in the same way, with the same guarantees. The runner looks at the set once a
//! pass and answers the asks before it admits anything.
//!
//! | where the I/O is | effect of an ask |
//! |---|---|
//! | staged | it is taken out of the ring, also from between others, and also of a frozen queue |
//! | waiting for a slot by group | it is taken out of its line |
//! | held by the policy | it is withdrawn and its slot is free |
//! | in a request with others | none: it continues |
//! | divided into parts | none, wherever they are: the parts have its cookie, but are not the I/O |
//! | in a flush sequence, which begins with its slot | none |
//! | issued, or on its way back | none |
//!
//! A cancelled I/O ends with [`IoError::CANCELLED`] and is counted where it was. No pass keeps an ask for later, so
//! none can be lost when a queue is rebuilt: unanswered asks go to the new queue with the staging.
//!
//! *Invariant: an ask is for an I/O that was pushed before it.* A cookie may be used again as soon as it has been
//! returned, while the ask may still be on its way. So the ask has the place in the staging ring at which it was made.
//! If an I/O behind that place has been admitted, the old I/O and a new one with its cookie cannot be told apart, and
//! the ask is too late. Only the submitter's own plug does not come through that ring, and the plug is staged as long
//! as one of the submitter's asks is unanswered.

use super::Runner;
use crate::elevator::Place;
use crate::elevator::plug::{Own, Staging, stage};
use crate::planted::Planted;
use crate::shared::duties::Ready;
use crate::shared::hub::{Ask, Hub, Shard};
use crate::shared::inflight::PluggedRequest;
#[cfg(feature = "compare")]
use crate::shared::modes::Parked;
use crate::sync::Consumer;
#[cfg(feature = "compare")]
use crate::sync::Ordering;
use crate::{BioTable, planted};
#[cfg(feature = "compare")]
use blkmq_core::HwQueue;
use blkmq_core::{IoError, SubmitterId};

/// The most staged requests that one pass takes from one submitter. A policy's structures cost more the fuller they
/// are, so while the device takes requests it is better to keep them moving: portions of 8 gave 6.4 M IOPS, taking
/// everything that was staged (27 on average) gave 5.8 M (decision 0005).
pub(super) const PASS_STAGED: u32 = if cfg!(shuttle) { 2 } else { 8 };
/// The limit, in place of [`PASS_STAGED`], while staged requests continue to join held ones. Joining needs no slot and
/// leaves the structures as full as they were, and a request left in staging may later find that the one it could have
/// joined has been issued.
const PASS_JOINING: u32 = 4 * PASS_STAGED;
/// Portions of one submitter that one pass sends by the short way, which leaves the policy's structures empty.
const PASS_PORTIONS: u32 = 4;
/// The result of admitting a submitter's staged requests.
struct Admitted {
    /// At least one request was admitted.
    any: bool,
    /// The oldest request left in staging found no slot.
    waits: bool,
}

impl Runner {
    /// Returns whether the queue is frozen, or a later queue has taken over.
    pub(crate) fn admits_nothing<P>(&self, hub: &Hub<P>) -> bool {
        self.retired || hub.lasting.control.is_frozen()
    }

    /// Asks for another pass over the requests that this one left in staging.
    #[inline]
    fn owe_unfinished(&mut self, shard: &Shard) {
        if !self.unfinished.is_empty() {
            self.owe_all(shard);
        }
    }

    #[inline(never)]
    fn owe_all(&mut self, shard: &Shard) {
        for id in self.unfinished.drain(..) {
            shard.pending.set(id.0);
        }
        // With combining, this runner then owes another pass; in the locked modes, the next thread that polls makes it.
        self.duties.again();
    }

    /// Admits I/Os that wait for a slot, if slots became free, then staged requests, then the caller's plug. Begins the
    /// flushes that these, and finished steps of flush sequences, ask for. A request that need not wait may go to its
    /// hardware queue immediately, which is then added to `ready`.
    pub(crate) fn admit_all<P>(
        &mut self,
        hub: &Hub<P>,
        shard: &Shard,
        (freed, own): (bool, Option<Own<'_>>),
        ready: &mut Ready,
    ) {
        let closed = self.admits_nothing(hub);
        self.elevator.env.set_draining(closed);
        if closed {
            self.retry_blocked = true;
            if let Some(own) = own {
                stage(shard, own);
            }
        } else {
            let freed = freed | std::mem::take(&mut self.retry_blocked);
            if freed {
                self.retry_waiting(hub, ready);
            }
            if shard.pending.any() {
                shard.pending.take_ahead(|id, next| {
                    if let Some(next) = next {
                        // Prefetched while the requests of this submitter are admitted.
                        ring_of(&mut self.staging, SubmitterId(next)).prefetch(PASS_STAGED);
                    }
                    self.drain_staged(hub, shard, SubmitterId(id), ready);
                });
                if std::mem::take(&mut self.freed_meanwhile) {
                    self.retry_waiting(hub, ready);
                }
            }
            match own {
                Some(own) if shard.asked.has(own.id.0) => stage(shard, own),
                Some(own) => self.admit_plug(hub, shard, own, ready),
                None => {}
            }
            if self.elevator.has_newcomers() {
                self.elevator.fill(&hub.lasting.table);
            }
        }
        self.begin_flushes();
        if !self.blocked.is_empty() || self.elevator.some_wait() {
            self.wait_for_slot(hub, shard);
        }
        self.owe_unfinished(shard);
    }

    /// Admits requests that `id` staged, oldest first, until one finds no slot. A portion that need not wait goes to
    /// its hardware queue immediately.
    fn drain_staged<P>(&mut self, hub: &Hub<P>, shard: &Shard, id: SubmitterId, ready: &mut Ready) {
        let at = usize::from(id.0);
        if shard.asked.has(id.0) {
            // The submitter has unanswered asks, new or left over, which come first.
            self.unfinished.push(id);
        } else if self.is_blocked[at] {
            // The submitter keeps its place among the blocked ones, but its requests may join held ones that arrived
            // since.
            self.merge_staged(&hub.lasting.table, id);
        } else {
            if !self.elevator.slots.has(PASS_STAGED) {
                // Requests that a pump has finished since this pass began leave their slots.
                self.freed_meanwhile |= self.take_returns(hub, shard);
            }
            if self.admit_portions(hub, id, PASS_PORTIONS, ready).waits {
                self.is_blocked[at] = true;
                self.blocked.push(id);
            }
        }
    }

    /// Admits requests that `id` staged, oldest first: at most `most` portions by a short way, or one by the long way.
    fn admit_portions<P>(
        &mut self,
        hub: &Hub<P>,
        id: SubmitterId,
        most: u32,
        ready: &mut Ready,
    ) -> Admitted {
        let mut any = false;
        for _ in 0..most {
            if ring_of(&mut self.staging, id).is_empty() {
                return Admitted { any, waits: false };
            }
            if !self.is_way_free(hub) || !self.pass_staged(hub, id, ready) {
                let rest = self.admit_staged(&hub.lasting.table, id);
                return Admitted { any: any | rest.any, ..rest };
            }
            any = true;
        }
        if !ring_of(&mut self.staging, id).is_empty() {
            self.unfinished.push(id);
        }
        Admitted { any, waits: false }
    }

    /// Admits requests that `id` staged, oldest first, until its portion is used up or one finds no slot.
    fn admit_staged<P>(&mut self, table: &BioTable<P>, id: SubmitterId) -> Admitted {
        if self.elevator.has_lobby() {
            return self.admit_by_group(table, id);
        }
        let ring = ring_of(&mut self.staging, id);
        ring.prefetch(PASS_STAGED);
        let most = if self.elevator.slots_come_first() { PASS_STAGED } else { PASS_JOINING };
        let mut joined = false;
        for n in 0..most {
            if n >= PASS_STAGED && !joined {
                break;
            }
            let Some(staged) = ring.peek() else { return Admitted { any: n > 0, waits: false } };
            let Some(place) = self.elevator.place(&staged.meta) else {
                return Admitted { any: n > 0, waits: true };
            };
            joined = matches!(place, Place::Join(..));
            self.elevator.admit(table, place, ring.take());
        }
        if !ring.is_empty() {
            self.unfinished.push(id);
        }
        Admitted { any: true, waits: false }
    }

    /// Admits staged requests where I/Os without a slot wait in the lobby: no request stays in staging for want of a
    /// slot.
    fn admit_by_group<P>(&mut self, table: &BioTable<P>, id: SubmitterId) -> Admitted {
        let ring = ring_of(&mut self.staging, id);
        ring.prefetch(PASS_STAGED);
        let mut any = false;
        for _ in 0..PASS_JOINING {
            let Some(proto) = ring.pop() else { return Admitted { any, waits: false } };
            self.elevator.take_in(table, id, proto);
            any = true;
        }
        if !ring.is_empty() {
            self.unfinished.push(id);
        }
        Admitted { any, waits: false }
    }

    /// Merges requests that `id` staged, oldest first, until one needs a slot.
    fn merge_staged<P>(&mut self, table: &BioTable<P>, id: SubmitterId) {
        let ring = ring_of(&mut self.staging, id);
        while let Some(staged) = ring.peek() {
            match self.elevator.place(&staged.meta) {
                Some(place @ Place::Join(..)) => self.elevator.admit(table, place, ring.take()),
                Some(Place::Slot) | None => return,
            }
        }
        self.is_blocked[usize::from(id.0)] = false;
        self.blocked.retain(|other| *other != id);
    }

    /// Gives freed slots to I/Os in the lobby, and to blocked submitters.
    fn retry_waiting<P>(&mut self, hub: &Hub<P>, ready: &mut Ready) {
        if self.elevator.some_wait() {
            self.elevator.fill(&hub.lasting.table);
        }
        if !self.blocked.is_empty() {
            self.retry_blocked(hub, ready);
        }
    }

    /// Gives freed slots to blocked submitters in turn. A submitter that got some and needs more goes behind those
    /// that got none; otherwise a submitter that always has more would take all slots.
    fn retry_blocked<P>(&mut self, hub: &Hub<P>, ready: &mut Ready) {
        let mut waiting = std::mem::take(&mut self.blocked);
        waiting.retain(|id| {
            let Admitted { any, waits } = self.admit_portions(hub, *id, 1, ready);
            self.is_blocked[usize::from(id.0)] = waits;
            if any && waits {
                self.served.push(*id);
            }
            waits && !any
        });
        waiting.append(&mut self.served);
        self.blocked = waiting;
    }

    /// Admits the caller's plug without staging it. Where there is no lobby, a request that finds no slot, and all
    /// behind it, go behind those that are staged already.
    #[allow(clippy::needless_pass_by_value, reason = "it borrows what the caller submits")]
    fn admit_plug<P>(&mut self, hub: &Hub<P>, shard: &Shard, own: Own<'_>, ready: &mut Ready) {
        let at = usize::from(own.id.0);
        let was_blocked = self.is_blocked[at];
        self.pass_sorted(hub, own.plug, ready);
        if own.plug.is_empty() {
            return;
        }
        let mut rest = own.plug.drain();
        self.pass_by(hub, &mut rest, ready);
        if self.elevator.has_lobby() && !was_blocked {
            for proto in &mut rest {
                self.elevator.take_in(&hub.lasting.table, own.id, proto);
            }
            rest.end();
            return;
        }
        let mut staged = false;
        while let Some(next) = rest.peek() {
            let place = if self.is_blocked[at] { None } else { self.elevator.place(&next.meta) };
            let Some(proto) = rest.next() else { break };
            if let Some(place) = place {
                self.elevator.admit_here(&hub.lasting.table, place, proto);
                continue;
            }
            if !self.is_blocked[at] {
                self.is_blocked[at] = true;
                self.blocked.push(own.id);
            }
            own.staging.put(proto);
            staged = true;
        }
        rest.end();
        if staged {
            own.staging.publish();
            if was_blocked {
                // The new requests may merge although older ones wait: the next pass must try.
                shard.pending.set(own.id.0);
            }
        }
    }
}

pub(super) fn ring_of(
    staging: &mut [Option<Staging>],
    id: SubmitterId,
) -> &mut Consumer<PluggedRequest> {
    &mut staging[usize::from(id.0)].as_mut().expect("a submitter of this shard").protos
}

#[cfg(feature = "compare")]
impl Runner {
    /// Takes over parked requests. Each is inserted if it has a slot, or merged with a held request.
    pub(crate) fn take_over<P>(&mut self, hub: &Hub<P>, shard: &Shard) {
        let Some(parking) = &shard.modes.parking else { return };
        if parking.lists.any() && !planted::is(Planted::ForgetsParkedRequests) {
            let Parked { line, lanes } = &mut self.parked;
            parking.lists.take(|proto| {
                let lane = &mut lanes[usize::from(proto.meta.hw.0 - shard.first_hw)];
                lane.promised = lane.promised.wrapping_sub(1);
                line.push_back(proto);
            });
        }
        self.let_line_in(hub, shard);
    }

    /// Admits requests from the line, as far as there are slots.
    fn let_line_in<P>(&mut self, hub: &Hub<P>, shard: &Shard) {
        let before = self.parked.line.len();
        while let Some(first) = self.parked.line.front() {
            let Some(place) = self.elevator.place(&first.meta) else {
                self.wait_for_slot(hub, shard);
                break;
            };
            let proto = self.parked.line.pop_front().expect("it was seen just now");
            self.elevator.admit(&hub.lasting.table, place, proto);
        }
        if self.parked.line.len() < before {
            self.begin_flushes();
        }
    }

    /// Takes in all that a holder of the lock must take in: finished requests, parked ones, then staged I/Os and the
    /// caller's own plug.
    pub(crate) fn take_in<P>(
        &mut self,
        hub: &Hub<P>,
        shard: &Shard,
        freed: bool,
        own: Option<Own<'_>>,
    ) {
        let mut freed = freed | self.take_returns(hub, shard);
        self.take_over(hub, shard);
        if self.answer_asks(hub, shard) {
            // The slot of a cancelled I/O may be the one for which the line waits. No completion follows it.
            self.let_line_in(hub, shard);
            freed = true;
        }
        // Under a lock no request bypasses the policy.
        self.admit_all(hub, shard, (freed, own), &mut Ready::default());
    }

    /// Publishes the hints that are read without the lock: the number of held requests, and the slots that may be
    /// promised.
    pub(crate) fn publish(&mut self, shard: &Shard) {
        shard.modes.held.store(self.elevator.held(), Ordering::Release);
        let Some(parking) = &shard.modes.parking else { return };
        let Parked { line, lanes } = &mut self.parked;
        for ((lane, promises), hw) in lanes.iter_mut().zip(&parking.promises).zip(shard.hws()) {
            let free = self.elevator.slots.free_of(HwQueue(hw)).saturating_sub(line.len() as u32);
            promises.renew(free, lane);
        }
    }
}

/// The most asks of one submitter that a pass answers, because each one searches all I/Os that wait.
const PASS_ASKS: u32 = if cfg!(shuttle) { 2 } else { 32 };

impl Runner {
    /// Answers asks to cancel, before anything is admitted. Returns whether an I/O was cancelled, so that others may
    /// have its slot.
    #[inline]
    pub(crate) fn answer_asks<P>(&mut self, hub: &Hub<P>, shard: &Shard) -> bool {
        shard.asked.any() && self.answer_all(hub, shard)
    }

    /// Answers the asks of all submitters in the set.
    #[cold]
    fn answer_all<P>(&mut self, hub: &Hub<P>, shard: &Shard) -> bool {
        let mut any = false;
        shard.asked.take(|id| any |= self.answer(hub, shard, SubmitterId(id)));
        self.completions.flush(&hub.lasting);
        if planted::is(Planted::CancelsInSilence) {
            self.completions.wake.clear();
        }
        self.duties.wake(&mut self.completions.wake);
        any
    }

    /// Answers some of the asks of `id`. Returns whether an I/O was cancelled.
    fn answer<P>(&mut self, hub: &Hub<P>, shard: &Shard, id: SubmitterId) -> bool {
        let Self { elevator, staging, completions, duties, .. } = self;
        // A later queue has taken over the rings, and answers there.
        let Some(Staging { protos, asks }) = &mut staging[usize::from(id.0)] else { return false };
        let mut any = false;
        for _ in 0..PASS_ASKS {
            let Some(Ask { cookie, before }) = asks.pop() else { return any };
            if protos.has_passed(before) && !planted::is(Planted::ForgetsMarks) {
                continue;
            }
            // A held I/O was pushed before a staged one.
            let table = &hub.lasting.table;
            let bio = elevator.give_up(table, id, cookie).or_else(|| {
                let is =
                    |proto: &PluggedRequest| proto.bios == 1 && table.is_io(&proto.bio, cookie);
                #[cfg(feature = "compare")]
                let mine = |proto: &PluggedRequest| is(proto) && table.submitter(&proto.bio) == id;
                #[cfg(feature = "compare")]
                let parked = self.parked.remove(mine);
                #[cfg(not(feature = "compare"))]
                let parked = None;
                let proto = parked
                    .or_else(|| elevator.withdraw_waiting(id, is))
                    .or_else(|| protos.remove_before(before, is))?;
                elevator.counters.cancelled_staged.add(1);
                Some(proto.bio)
            });
            if let Some(bio) = bio {
                any = true;
                completions.push(&hub.lasting, bio, Err(IoError::CANCELLED));
            }
        }
        if !asks.is_empty() {
            // With combining, this runner then owes another pass; in the locked modes, the next thread that polls
            // makes it.
            shard.asked.set(id.0);
            duties.again();
        }
        any
    }
}
