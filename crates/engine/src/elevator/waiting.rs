//! I/Os that wait for a slot by group: carries out the decisions of the [`Lobby`](crate::elevator::lobby::Lobby).

use super::{Elevator, Place, PluggedRequest};
use crate::BioTable;
use crate::elevator::lobby::{Slots, Turn};
use blkmq_core::{IoMeta, Op, RequestId, SubmitterId};
use blkmq_sched::GroupChange;

impl Elevator {
    /// True if I/Os that find no slot wait in the lobby, by group, and not in staging.
    #[inline]
    pub(crate) fn has_lobby(&self) -> bool {
        self.lobby.is_open()
    }

    /// True if I/Os wait in the lobby.
    #[inline]
    pub(crate) fn some_wait(&self) -> bool {
        !self.lobby.is_empty()
    }

    /// I/Os that wait in the lobby.
    pub(crate) fn in_lobby(&self) -> usize {
        self.lobby.waiting()
    }

    /// Tells the lobby of a change to a group, if the policy shares by group or groups have latency goals.
    pub(super) fn regroup_lobby(&mut self, change: GroupChange) {
        if self.facts.shares_by_group || self.has_goals() {
            let Self { lobby, requests, chains, flushes, config, .. } = self;
            let is_held = |id: &RequestId| chains[id.index()].is_some() && !flushes.has(*id);
            let held = requests.live().filter(is_held).map(|id| (id, requests.get(id)));
            lobby.regroup(change, (requests.capacity(), held), config.credit);
        }
    }

    /// Takes in an I/O of a submitter: into a held request, into a slot, or into the lobby. O(1) look-ups, or O(log
    /// groups).
    pub(crate) fn take_in<P>(
        &mut self,
        table: &BioTable<P>,
        by: SubmitterId,
        proto: PluggedRequest,
    ) {
        match self.place(&proto.meta) {
            Some(Place::Slot) if !self.may_pass(&proto.meta) => {
                self.lobby.push(self.now, by, proto);
            }
            Some(place) => self.admit(table, place, proto),
            None => self.lobby.push(self.now, by, proto),
        }
    }

    /// May an I/O have a slot although others wait for one? A bare flush may: it has slots of its own.
    fn may_pass(&self, io: &IoMeta) -> bool {
        self.lobby.is_empty() || io.op == Op::Flush
    }

    /// Puts an I/O that waited in an earlier queue into the lobby.
    pub(crate) fn adopt(&mut self, by: SubmitterId, proto: PluggedRequest) {
        self.lobby.push(self.now, by, proto);
    }

    /// Takes all I/Os out of the lobby, in the order of arrival.
    pub(crate) fn take_waiting(&mut self) -> Vec<(SubmitterId, PluggedRequest)> {
        self.lobby.take_all()
    }

    /// Takes the oldest I/O of `by` that waits in the lobby and that `is` accepts.
    #[cold]
    pub(crate) fn withdraw_waiting(
        &mut self,
        by: SubmitterId,
        is: impl Fn(&PluggedRequest) -> bool,
    ) -> Option<PluggedRequest> {
        self.lobby.remove(by, is)
    }

    /// True if an I/O has come into the lobby since slots were last given out.
    #[inline]
    pub(crate) fn has_newcomers(&self) -> bool {
        self.lobby.is_fresh()
    }

    /// Gives out the free slots, in the order that the lobby decides: to groups that have less than their part, those
    /// whose floors are due first, then to any group. O(log groups) for each slot; where no waiting I/O may have the free
    /// slots, O(waiting groups).
    pub(crate) fn fill<P>(&mut self, table: &BioTable<P>) {
        self.lobby.advance(self.now);
        let queues = u32::from(self.config.hw_queues);
        let all = self.config.nr_requests * queues;
        let enough = self.config.hw_queue_depth * queues;
        self.give_out(table, Slots { all, enough });
        if self.has_any_slot() && !self.lobby.is_empty() {
            self.give_out(table, Slots::EVERYTHING);
        }
    }

    /// One round over the waiting groups, in which no group gets more than its part of the slots.
    fn give_out<P>(&mut self, table: &BioTable<P>, slots: Slots) {
        while self.has_any_slot() {
            let Some(turn) = self.lobby.next() else { break };
            let Some(meta) = self.lobby.first(turn).copied() else { break };
            if self.lobby.has_its_part(turn, slots) {
                self.lobby.pass_over_group(turn);
                continue;
            }
            match self.place(&meta) {
                None => self.lobby.pass_over(turn),
                Some(place @ Place::Join(..)) => {
                    let proto = self.lobby.pop(turn);
                    self.admit(table, place, proto);
                }
                Some(Place::Slot) => {
                    let proto = self.lobby.take(turn);
                    self.admit(table, Place::Slot, proto);
                    // The next I/Os in its line may continue it.
                    self.join_line(table, turn);
                }
            }
        }
        self.lobby.end_round();
    }

    /// Merges I/Os from the front of a line until one needs a slot.
    fn join_line<P>(&mut self, table: &BioTable<P>, turn: Turn) {
        while let Some(meta) = self.lobby.first(turn).copied()
            && let Some(place @ Place::Join(..)) = self.place(&meta)
        {
            let proto = self.lobby.pop(turn);
            self.admit(table, place, proto);
        }
    }

    /// Is there a slot that some I/O may have? If only slots for bare flushes are free, one such flush must wait.
    pub(super) fn has_any_slot(&self) -> bool {
        let of_queues = self.used.iter().any(|used| used.all < self.config.nr_requests);
        (of_queues || self.lobby.has_flush()) && self.requests.in_use() < self.requests.capacity()
    }
}
