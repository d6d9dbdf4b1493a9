//! Requests that take a short way (decision 0017): each takes a slot, and uses nothing else of the elevator. Also the
//! statistics of groups under a policy that keeps none: requests merged and completed, as iostat counts them for a
//! device.

use super::{
    Chain, Elevator, HwQueue, Inflight, NoMerges, Op, PluggedRequest, RequestId, Slots, Tag, merge,
};
use crate::elevator::Done;
use blkmq_core::{IoFlags, IoMeta, SECTOR_SIZE};
use blkmq_sched::{About, Admission, At, Bypass, Event, Facts, Fresh, Pick, StatsLevel};

impl Elevator {
    /// Returns whether a new I/O may take a short way. False if it would overtake a request that is held, that waits
    /// for a slot by group, or that is in a flush sequence. Also false while requests are traced, need a budget, or are
    /// held back for a latency goal.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.fast.is_short
            && self.slots.held == 0
            && self.flushes.is_empty()
            && self.lobby.is_empty()
    }

    #[inline]
    pub(crate) fn takes_budgets(&self) -> bool {
        self.fast.takes_budgets
    }

    /// Returns whether all I/Os of a plug may pass. If false, only an I/O that comes alone may pass.
    #[inline]
    pub(crate) fn may_bypass(&self) -> bool {
        self.facts.bypass != Bypass::Never
    }

    /// Gives a slot to an I/O that comes alone, and passes it to the policy. Returns its id, and the policy's pick, or
    /// `None` if the policy has issued the request without holding it.
    #[inline]
    pub(crate) fn admit_alone(
        &mut self,
        io: &PluggedRequest,
        hw: HwQueue,
    ) -> (RequestId, Option<Pick>) {
        let id = self.slots.take(&io.meta);
        self.note_passed(id, io.bios);
        let cx = self.slots.cx(&self.env);
        let policy = &mut self.policy;
        let fresh = Fresh { rqs: &[id], hw, used: None };
        let admission = self.env.for_one(|| match policy.admit(&cx, &fresh, &mut [0]) {
            Admission::Refused => {
                policy.insert(&cx, id, At::Tail);
                Admission::of_one(id, policy.pick(&cx, hw))
            }
            admission => admission,
        });
        match admission {
            Admission::Held(pick) => (id, Some(pick)),
            Admission::Issued | Admission::Refused => (id, None),
        }
    }

    #[inline]
    pub(crate) fn takes_plugs(&self) -> bool {
        self.facts.takes_plugs
    }

    /// Returns the slots that `ios` need to pass together. `None` if slots are missing, if an I/O needs a flush
    /// sequence, if two of them could merge, or if they are not all reads or all writes. A policy that limits slots is
    /// asked later, by [`admit_plug`](Self::admit_plug).
    pub(crate) fn lets_all_pass<'a>(
        &self,
        ios: impl ExactSizeIterator<Item = &'a PluggedRequest> + Clone,
    ) -> Option<Slots> {
        let used = self.slots.used(self.slots.first_hw);
        let room = self.slots.room();
        let PluggedRequest { meta: first, .. } = ios.clone().next()?;
        if used.all as usize + ios.len() > self.config.nr_requests as usize
            || ios.len() > room
            || !matches!(first.op, Op::Read | Op::Write)
        {
            return None;
        }
        let mut slots = Slots::default();
        for PluggedRequest { meta, .. } in ios.clone() {
            slots.add(meta);
            if meta.op != first.op || meta.flags.intersects(self.sequenced) {
                return None;
            }
        }
        let below = slots.limited == 0 || used.limited + slots.limited <= self.async_depth;
        (below && self.are_apart(ios)).then_some(slots)
    }

    /// Returns whether none of `ios` may merge with another one.
    #[inline]
    pub(crate) fn are_apart<'a>(
        &self,
        ios: impl ExactSizeIterator<Item = &'a PluggedRequest> + Clone,
    ) -> bool {
        self.config.nomerges == NoMerges::None || merge::are_apart(ios.map(|io| &io.meta))
    }

    /// Gives `slots` to I/Os that may pass together, and passes the I/Os to the policy, to leave by `hw`. Writes their
    /// ids and their order to `ids` and `order`. Returns whether the policy issues all of them. If not, their slots are
    /// free again.
    pub(crate) fn admit_plug<'a>(
        &mut self,
        ios: impl ExactSizeIterator<Item = &'a PluggedRequest> + Clone,
        slots: Slots,
        hw: HwQueue,
        ids: &mut [RequestId],
        order: &mut [u8],
    ) -> bool {
        let first_hw = self.slots.first_hw;
        let used = *self.slots.used(first_hw);
        self.slots.count(first_hw, slots);
        for (id, io) in ids.iter_mut().zip(ios.clone()) {
            *id = self.slots.fill(&io.meta);
        }
        let cx = self.slots.cx(&self.env);
        match self.policy.admit(&cx, &Fresh { rqs: ids, hw, used: Some(used) }, order) {
            Admission::Issued => {}
            Admission::Refused => {
                ids.iter().for_each(|id| self.slots.free(*id));
                return false;
            }
            Admission::Held(_) => panic!("a policy holds requests that are issued or refused"),
        }
        for (id, io) in ids.iter().zip(ios) {
            self.note_passed(*id, io.bios);
        }
        true
    }

    /// Turns the I/O of [`admit_alone`](Self::admit_alone), which the policy has picked, into a token for the device.
    #[inline]
    pub(crate) fn picked_token(
        &self,
        io: PluggedRequest,
        id: RequestId,
        hw: HwQueue,
        tag: Tag,
    ) -> Inflight {
        let PluggedRequest { meta, bio, bios } = io;
        let chain = Chain { head: bio, bios, retries: 0 };
        Inflight::new(chain, id, tag, hw, self.slots.now, &meta, self.env.picked())
    }

    /// Stores the I/O of [`admit_alone`](Self::admit_alone), which the policy holds and has not picked.
    #[inline(never)]
    pub(crate) fn keep(&mut self, io: PluggedRequest, id: RequestId) {
        self.env.unpicked();
        let PluggedRequest { meta, bio, bios } = io;
        self.slots.put_chain(id, Chain { head: bio, bios, retries: 0 });
        self.hold(id);
        self.index_held(id, &meta);
    }

    /// Returns whether an I/O may bypass the policy. False if there is no slot for it, or if it needs a flush sequence.
    #[inline]
    pub(crate) fn lets_pass(&self, meta: &IoMeta) -> bool {
        meta.op != Op::Flush && !meta.flags.intersects(self.sequenced) && self.has_slot_for(meta)
    }

    /// Returns the slots for as many of the first `ios` as [may pass](Self::lets_pass) together, at most `most`. All of
    /// `ios` are of one hardware queue.
    #[inline(always)]
    pub(crate) fn passing<'a>(
        &self,
        ios: impl Iterator<Item = &'a PluggedRequest> + Clone,
        most: u32,
    ) -> Slots {
        let mut slots = Slots::default();
        let Some(PluggedRequest { meta: first, .. }) = ios.clone().next() else { return slots };
        let used = self.slots.used(first.hw);
        let free = self.slots.room() as u32;
        let mut room = self.config.nr_requests.saturating_sub(used.all).min(free).min(most);
        if self.fast.limits_slots && room > 0 {
            room = u32::from(self.admits(first, *used));
        }
        for PluggedRequest { meta, .. } in ios.take(room as usize) {
            let takes_data = meta.op != Op::Flush && !meta.flags.intersects(self.sequenced);
            let below = meta.is_sync_read() || used.limited + slots.limited < self.async_depth;
            if !(takes_data && below) {
                break;
            }
            slots.add(meta);
        }
        slots
    }

    /// Gives a slot to an I/O that [may pass](Self::lets_pass).
    #[inline]
    pub(crate) fn pass(&mut self, io: &PluggedRequest, hw: HwQueue) -> RequestId {
        let id = self.slots.take(&io.meta);
        if self.fast.notes_passing {
            self.note_passing(id, io.bios, hw);
        }
        id
    }

    /// Like [`pass`](Self::pass), but with a slot that is [counted](super::SlotTable::count) already.
    #[inline]
    pub(crate) fn pass_counted(&mut self, io: &PluggedRequest, hw: HwQueue) -> RequestId {
        let id = self.slots.fill(&io.meta);
        if self.fast.notes_passing {
            self.note_passing(id, io.bios, hw);
        }
        id
    }

    /// Out of line: as a rule there is nothing to note.
    #[inline(never)]
    fn note_passing(&mut self, id: RequestId, bios: u32, hw: HwQueue) {
        if self.facts.bypass == Bypass::Told {
            self.policy.passed(&self.slots.cx(&self.env), id, hw);
        }
        self.note_passed(id, bios);
    }

    /// Notes a request that leaves immediately.
    #[inline]
    fn note_passed(&mut self, id: RequestId, bios: u32) {
        if self.fast.notes_requests
            && let Some(watch) = &mut self.watch
        {
            watch.passed(&self.slots, id, bios);
        }
    }

    /// Turns the I/O of [`pass`](Self::pass) or [`pass_counted`](Self::pass_counted) into a token for the device.
    #[inline]
    pub(crate) fn token(
        &self,
        meta: &IoMeta,
        chain: Chain,
        id: RequestId,
        hw: HwQueue,
        tag: Tag,
    ) -> Inflight {
        Inflight::new(chain, id, tag, hw, self.slots.now, meta, None)
    }
}

/// Returns whether the elevator counts the events of groups, for a policy with these properties at this level.
pub(super) fn counts(facts: &Facts, level: StatsLevel) -> bool {
    level > StatsLevel::Off && !facts.notes_groups
}

/// The group of an I/O, its direction, and whether its submitter waits for it, by bfq's rule.
#[inline]
fn about(meta: &IoMeta) -> About {
    let waits = meta.flags.intersects(IoFlags::SYNC | IoFlags::FUA | IoFlags::PREFLUSH);
    About::new(meta.group, meta.op, waits)
}

impl Elevator {
    /// Counts a request that has joined another.
    #[inline]
    pub(super) fn count_merged(&mut self, meta: &IoMeta) {
        if self.counts_groups {
            self.slots.cx(&self.env).note(about(meta), Event::Merged);
        }
    }

    /// Counts a finished request in one step: its pick is not counted separately.
    #[inline]
    pub(super) fn count_done(&mut self, done: &Done) {
        if self.counts_groups {
            self.count_whole(done);
        }
    }

    #[inline(never)]
    fn count_whole(&mut self, done: &Done) {
        let meta = self.slots.requests.get(done.rq);
        let bytes = meta.sectors.saturating_mul(SECTOR_SIZE);
        let wait = done.issued.since(meta.arrived);
        let service = done.completed.since(done.issued);
        self.env.count_whole(about(meta), bytes, wait, service);
    }
}
