//! The short ways of new requests into the outbox (decision 0017): past a policy that only keeps the order, and through
//! a policy that holds no request and decides in which order the new ones leave. The requests come alone, in the
//! caller's plug, or from another submitter's staging. Each takes a slot, and uses nothing else of the elevator.

use super::{PASS_STAGED, Runner, ring_of};
use crate::Inflight;
use crate::elevator::merging::{Emptied, Plug};
use crate::elevator::runner::{Lane, TAG_BATCH};
use crate::elevator::{Chain, Elevator, Op, Slots, merge};
use crate::shared::hctx::{Duties, PluggedRequest, Ready};
use crate::shared::hub::{Hub, Shard};
use crate::sync::{Consumer, TagBatch};
use blkmq_core::{HwQueue, Instant, IoMeta, RequestId, SubmitterId, Tag};
use blkmq_sched::{Admission, At, Bypass, Fresh, PLUG, Pick};
use std::borrow::Borrow;

/// The result of a pass for a request that came alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sent {
    /// The request is in the outbox of this lane.
    By(HwQueue),
    /// The policy holds it.
    Nothing,
}

/// A request that came alone and has a slot and a tag.
#[derive(Clone, Copy)]
struct Asked {
    id: RequestId,
    /// The answer of the policy, if that holds the request.
    held: Option<Pick>,
    tag: Tag,
}

impl Sent {
    /// The lanes that were given requests.
    pub(crate) fn ready(self) -> Ready {
        let mut ready = Ready::default();
        if let Self::By(lane) = self {
            ready.add(lane);
        }
        ready
    }
}

impl Runner {
    /// Sends the first requests of the caller's plug past the policy, as far as there are slots and tags.
    #[inline]
    pub(super) fn pass_by<P>(&mut self, hub: &Hub<P>, plug: &mut Emptied<'_>, ready: &mut Ready) {
        if !self.elevator.may_bypass() || !self.is_way_free(hub) {
            return;
        }
        let Some(first) = plug.peek() else { return };
        let by = self.lane_of(hub, hub.lasting.table.submitter(&first.bio));
        let hw = HwQueue(self.first_hw);
        let Self { elevator, lanes, unused, duties, .. } = self;
        let exit = Exit { elevator, lanes, unused, duties, hub, hw, by };
        exit.send_all(plug, ready);
    }

    /// Sends the caller's plug in the policy's order, all of it or nothing.
    #[inline]
    pub(super) fn pass_sorted<P>(&mut self, hub: &Hub<P>, plug: &mut Plug, ready: &mut Ready) {
        if self.elevator.takes_plugs() && plug.len() > 1 && self.is_way_free(hub) {
            self.sort_plug(hub, plug, ready);
        }
    }

    #[inline(never)]
    fn sort_plug<P>(&mut self, hub: &Hub<P>, plug: &mut Plug, ready: &mut Ready) {
        let Some(first) = plug.newest() else { return };
        let by = self.lane_of(hub, hub.lasting.table.submitter(&first.bio));
        let hw = HwQueue(self.first_hw);
        let Self { elevator, lanes, unused, duties, .. } = self;
        let mut exit = Exit { elevator, lanes, unused, duties, hub, hw, by };
        let mut places = Places::new();
        if let Some(tags) = exit.ask(plug.requests().iter(), &mut places) {
            exit.send(plug, &places, tags, ready);
        }
    }

    /// Returns whether nothing waits ahead of new requests, here or at the device.
    #[inline]
    pub(super) fn is_way_free<P>(&self, hub: &Hub<P>) -> bool {
        let hctx = hub.hctx(HwQueue(self.first_hw));
        self.elevator.is_open() && self.blocked.is_empty() && !hctx.is_stuck() && hctx.busy() == 0
    }

    /// Makes a pass for a plug of one request over an elevator that has nothing else to do: takes back finished
    /// requests, and sends the request of the plug. `None` if there is more to do or the request has to wait: the
    /// caller then makes a pass of the ordinary kind.
    #[inline]
    pub(crate) fn pass_straight<P>(
        &mut self,
        hub: &Hub<P>,
        shard: &Shard,
        now: Instant,
        plug: &mut Plug,
    ) -> Option<Sent> {
        if !self.is_quiet(hub, shard) {
            return None;
        }
        self.begin(now);
        if hub.has_owners() {
            self.take_returns(hub, shard);
            if !self.elevator.is_open() {
                // A request was returned to be issued again.
                return None;
            }
        } else {
            let Self { elevator, lanes, .. } = self;
            if !lanes[0].handbacks.is_empty() {
                return None;
            }
            elevator.take_done(&mut lanes[0].returns);
            elevator.time_busy();
        }
        self.elevator.env.set_draining(false);
        // While the policy is asked, the request is in the plug, which is where a panic leaves it.
        let asked = self.ask_alone(hub, plug.newest()?)?;
        let sent = self.send_alone(hub, shard, plug.pop()?, asked);
        self.elevator.counters.passes.add(1);
        self.elevator.counters.longest_run.raise(1);
        if self.elevator.is_look_due() {
            self.end_watched();
        }
        self.publish_forecast();
        self.end();
        Some(sent)
    }

    /// Returns whether nothing is held, staged, asked for or waiting, here or at the device, so that a pass only takes
    /// back and sends.
    #[inline]
    fn is_quiet<P>(&self, hub: &Hub<P>, shard: &Shard) -> bool {
        self.is_way_free(hub)
            && !(self.retry_blocked | self.retired)
            && !hub.lasting.control.is_frozen()
            && !shard.pending.any()
            && !shard.asked.any()
    }

    /// Gets a slot and a tag for the only request of a plug. Lets it bypass the policy if the policy allows it,
    /// otherwise inserts it and asks for it immediately. `None` if there is no slot or tag.
    #[inline(always)]
    fn ask_alone<P>(&mut self, hub: &Hub<P>, io: &PluggedRequest) -> Option<Asked> {
        let hw = HwQueue(self.first_hw);
        let Self { elevator, lanes, .. } = self;
        if !elevator.lets_pass(&io.meta) {
            return None;
        }
        let tag = hub.hctx(hw).tags.get(&mut lanes[0].hint)?;
        if elevator.may_bypass() {
            let id = elevator.pass(io, hw);
            return Some(Asked { id, held: None, tag });
        }
        let (id, held) = elevator.admit_alone(io, hw);
        Some(Asked { id, held, tag })
    }

    /// Sends the request of [`ask_alone`](Self::ask_alone), unless the policy keeps it. It is then held like any other.
    #[inline(always)]
    fn send_alone<P>(
        &mut self,
        hub: &Hub<P>,
        shard: &Shard,
        io: PluggedRequest,
        asked: Asked,
    ) -> Sent {
        let Asked { id, held, tag } = asked;
        self.elevator.counters.inserted.add(1);
        if let Some(pick) = held {
            self.keep_alone(hub, shard, io, (id, tag), pick);
            return Sent::Nothing;
        }
        let hw = self.lane_of(hub, hub.lasting.table.submitter(&io.bio));
        let Self { elevator, lanes, first_hw, .. } = self;
        let lane = &mut lanes[usize::from(hw.0 - *first_hw)];
        lane.outbox.put_with(|| elevator.picked_token(io, id, hw, tag));
        lane.outbox.publish();
        elevator.counters.dispatched.add(1);
        elevator.counters.batches.add(1);
        Sent::By(hw)
    }

    /// The lane by which requests of `id` leave an elevator with short ways: its own, or the only one.
    #[inline]
    fn lane_of<P>(&self, hub: &Hub<P>, id: SubmitterId) -> HwQueue {
        HwQueue(if hub.has_owners() { id.0 } else { self.first_hw })
    }

    #[inline(never)]
    fn keep_alone<P>(
        &mut self,
        hub: &Hub<P>,
        shard: &Shard,
        io: PluggedRequest,
        (id, tag): (RequestId, Tag),
        pick: Pick,
    ) {
        self.elevator.keep(io, id);
        self.unused.push(tag);
        self.give_back(hub, hub.hctx(HwQueue(self.first_hw)), 0);
        self.wait_as_told(hub, shard, pick);
    }

    /// Sends staged requests of `id`, from the oldest on, as if they had come as the caller's plug. Returns whether any
    /// were sent. The [way is free](Self::is_way_free).
    #[inline]
    pub(super) fn pass_staged<P>(
        &mut self,
        hub: &Hub<P>,
        id: SubmitterId,
        ready: &mut Ready,
    ) -> bool {
        if self.elevator.may_bypass() {
            self.pass_staged_by(hub, id, ready)
        } else {
            self.elevator.takes_plugs() && self.pass_staged_sorted(hub, id, ready)
        }
    }

    #[inline(never)]
    fn pass_staged_by<P>(&mut self, hub: &Hub<P>, id: SubmitterId, ready: &mut Ready) -> bool {
        let (lane, first_hw) = (self.lane_of(hub, id), HwQueue(self.first_hw));
        let Self { elevator, lanes, unused, duties, staging, .. } = self;
        let mut portion = Portion::of(ring_of(staging, id), PASS_STAGED);
        // It may contain several plugs, whose requests have not been merged with each other.
        if !elevator.are_apart(portion.all()) {
            return false;
        }
        let exit = Exit { elevator, lanes, unused, duties, hub, hw: first_hw, by: lane };
        exit.send_all(&mut portion, ready) > 0
    }

    #[inline(never)]
    fn pass_staged_sorted<P>(&mut self, hub: &Hub<P>, id: SubmitterId, ready: &mut Ready) -> bool {
        let (by, hw) = (self.lane_of(hub, id), HwQueue(self.first_hw));
        let Self { elevator, lanes, unused, duties, staging, tray, .. } = self;
        let mut portion = Portion::of(ring_of(staging, id), PASS_STAGED);
        let mut exit = Exit { elevator, lanes, unused, duties, hub, hw, by };
        let mut places = Places::new();
        let Some(tags) = exit.ask(portion.all(), &mut places) else { return false };
        while portion.left() > 0 {
            tray.append(portion.take_whole());
        }
        exit.send(tray, &places, tags, ready);
        true
    }
}

/// Requests in the order of submission, of which the first ones are taken.
pub(super) trait Line {
    /// By reference where the request need not be moved.
    type Meta<'a>: Borrow<IoMeta>
    where
        Self: 'a;

    /// The requests that are left, without taking them.
    fn requests(&self) -> impl Iterator<Item = &PluggedRequest> + Clone;
    /// The first request.
    ///
    /// # Panics
    /// If none is left.
    fn first(&mut self) -> &PluggedRequest;
    /// Takes the first request. Not an `Option`, which would be copied in overlapping parts.
    ///
    /// # Panics
    /// If none is left.
    fn take(&mut self) -> (Self::Meta<'_>, Chain);
}

impl Line for Emptied<'_> {
    type Meta<'a>
        = &'a IoMeta
    where
        Self: 'a;

    #[inline]
    fn requests(&self) -> impl Iterator<Item = &PluggedRequest> + Clone {
        self.rest().iter()
    }

    #[inline]
    fn first(&mut self) -> &PluggedRequest {
        self.rest().first().expect("a request is left")
    }

    #[inline(always)]
    fn take(&mut self) -> (&IoMeta, Chain) {
        self.take_next()
    }
}

/// The oldest requests that a submitter has staged.
struct Portion<'a> {
    ring: &'a mut Consumer<PluggedRequest>,
    left: u32,
}

impl<'a> Portion<'a> {
    /// The oldest requests in `ring`, at most `most`.
    #[inline]
    pub(super) fn of(ring: &'a mut Consumer<PluggedRequest>, most: u32) -> Self {
        ring.prefetch(most);
        let left = ring.available(most);
        Self { ring, left }
    }

    #[inline]
    pub(super) fn left(&self) -> u32 {
        self.left
    }

    /// All requests of the portion, without taking them.
    #[inline]
    pub(super) fn all(&self) -> impl ExactSizeIterator<Item = &PluggedRequest> + Clone {
        self.ring.front(self.left)
    }

    /// Takes the oldest request.
    ///
    /// # Panics
    /// If none is left.
    #[inline]
    fn take_whole(&mut self) -> PluggedRequest {
        self.left -= 1;
        self.ring.take()
    }
}

impl Line for Portion<'_> {
    type Meta<'a>
        = IoMeta
    where
        Self: 'a;

    #[inline]
    fn requests(&self) -> impl Iterator<Item = &PluggedRequest> + Clone {
        self.all()
    }

    #[inline]
    fn first(&mut self) -> &PluggedRequest {
        assert!(self.left > 0, "a request is left");
        self.ring.peek().expect("what is left was seen")
    }

    #[inline(always)]
    fn take(&mut self) -> (IoMeta, Chain) {
        let PluggedRequest { meta, bio, bios } = self.take_whole();
        (meta, Chain { head: bio, bios, retries: 0 })
    }
}

/// The slots of requests that come together, and the places of the first, second, ... of them to leave.
pub(super) struct Places {
    ids: [RequestId; PLUG],
    order: [u8; PLUG],
}

impl Places {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self { ids: [RequestId::new(0, 0); PLUG], order: [0; PLUG] }
    }
}

/// The parts of a runner by which requests leave.
struct Exit<'a, P> {
    pub(super) elevator: &'a mut Elevator,
    pub(super) lanes: &'a mut [Lane],
    pub(super) unused: &'a mut Vec<Tag>,
    pub(super) duties: &'a mut Duties,
    pub(super) hub: &'a Hub<P>,
    /// The only hardware queue of the elevator, as the policy knows it.
    pub(super) hw: HwQueue,
    /// The lane by which the requests leave.
    pub(super) by: HwQueue,
}

impl<P> Exit<'_, P> {
    /// Sends the first requests of `line` past the policy, as far as there are slots and tags. Returns how many.
    #[inline(always)]
    fn send_all(self, line: &mut impl Line, ready: &mut Ready) -> u32 {
        let Self { elevator, lanes, hub, hw, by, .. } = self;
        let lane = &mut lanes[usize::from(by.0 - hw.0)];
        let hctx = hub.hctx(by);
        let mut sent = 0;
        loop {
            let mut slots = elevator.passing(line.requests(), TAG_BATCH);
            if slots.all == 0 {
                break;
            }
            let Some(mut tags) = hctx.tags.get_batch(&mut lane.hint, slots.all) else { break };
            if tags.len() < slots.all {
                slots = elevator.passing(line.requests(), tags.len());
            }
            elevator.slots.count(line.first().meta.hw, slots);
            sent += slots.all;
            while let Some(tag) = tags.pop() {
                // While a policy is notified, the request is in the line, which is where a panic leaves it.
                let id = elevator.pass_counted(line.first(), hw);
                let (meta, chain) = line.take();
                // An outbox has room for a request with every tag.
                lane.outbox.put_with(|| elevator.token(meta.borrow(), chain, id, by, tag));
            }
        }
        if sent > 0 {
            publish(elevator, lane, sent);
            ready.add(by);
        }
        sent
    }

    /// Gets slots and tags for `ios`, and asks the policy to issue them. Returns `None`, without an effect, if they
    /// have to be held.
    #[inline(always)]
    pub(super) fn ask<'a>(
        &mut self,
        ios: impl ExactSizeIterator<Item = &'a PluggedRequest> + Clone,
        places: &mut Places,
    ) -> Option<TagBatch> {
        let n = ios.len();
        if n > PLUG {
            return None;
        }
        let slots = self.elevator.lets_all_pass(ios.clone())?;
        let hctx = self.hub.hctx(self.by);
        let lane = &mut self.lanes[usize::from(self.by.0 - self.hw.0)];
        let mut tags = hctx.tags.get_batch(&mut lane.hint, n as u32)?;
        let (ids, order) = (&mut places.ids[..n], &mut places.order[..n]);
        if tags.len() == n as u32 && self.elevator.admit_plug(ios, slots, self.hw, ids, order) {
            return Some(tags);
        }
        while let Some(tag) = tags.pop() {
            self.unused.push(tag);
        }
        hctx.tags.put(self.unused, &self.hub.tag_wait, self.duties);
        self.unused.clear();
        None
    }

    /// Sends the requests of `plug`, which the policy has picked.
    #[inline(always)]
    pub(super) fn send(
        self,
        plug: &mut Plug,
        places: &Places,
        mut tags: TagBatch,
        ready: &mut Ready,
    ) {
        let Self { elevator, lanes, hw, by, .. } = self;
        let lane = &mut lanes[usize::from(by.0 - hw.0)];
        let n = plug.len();
        let (pool, now) = (elevator.env.picked(), elevator.now());
        let mut requests = plug.drain();
        for place in &places.order[..n] {
            let Some(tag) = tags.pop() else { unreachable!("each request has a tag") };
            let place = usize::from(*place);
            let (meta, chain) = requests.take_at(place);
            let id = places.ids[place];
            // An outbox has room for a request with every tag.
            lane.outbox.put_with(|| Inflight::new(chain, id, tag, by, now, meta, pool));
        }
        requests.end();
        publish(elevator, lane, n as u32);
        ready.add(by);
    }
}

/// Shows the pump the requests that were sent.
#[inline(always)]
fn publish(elevator: &Elevator, lane: &mut Lane, sent: u32) {
    lane.outbox.publish();
    elevator.counters.inserted.add(sent.into());
    elevator.counters.dispatched.add(sent.into());
    elevator.counters.batches.add(1);
}

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
    fn may_bypass(&self) -> bool {
        self.facts.bypass != Bypass::Never
    }

    /// Gives a slot to an I/O that comes alone, and passes it to the policy. Returns its id, and the policy's pick, or
    /// `None` if the policy has issued the request without holding it.
    #[inline]
    fn admit_alone(&mut self, io: &PluggedRequest, hw: HwQueue) -> (RequestId, Option<Pick>) {
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
    fn lets_all_pass<'a>(
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
        !self.merges() || merge::are_apart(ios.map(|io| &io.meta))
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
    fn picked_token(&self, io: PluggedRequest, id: RequestId, hw: HwQueue, tag: Tag) -> Inflight {
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
    fn lets_pass(&self, meta: &IoMeta) -> bool {
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
    fn pass_counted(&mut self, io: &PluggedRequest, hw: HwQueue) -> RequestId {
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
