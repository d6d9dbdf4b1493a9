//! The short ways of new requests into the outbox (decision 0017): past a policy that only keeps the order, and through
//! a policy that holds no request and decides in which order the new ones leave. The requests come alone, in the
//! caller's plug, or from another submitter's staging.

use super::{PASS_STAGED, Runner, ring_of};
use crate::Inflight;
use crate::elevator::merging::{Emptied, Plug};
use crate::elevator::runner::{Lane, TAG_BATCH};
use crate::elevator::{Chain, Elevator};
use crate::shared::duties::{Duties, Ready};
use crate::shared::hctx::PluggedRequest;
use crate::shared::hub::{Hub, Shard};
use crate::sync::{Consumer, TagBatch};
use blkmq_core::{HwQueue, Instant, IoMeta, RequestId, SubmitterId, Tag};
use blkmq_sched::{PLUG, Pick};
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
        self.elevator.is_open()
            && self.blocked.is_empty()
            && !hctx.is_stuck()
            && hctx.busy().get() == 0
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
    pub(super) fn lane_of<P>(&self, hub: &Hub<P>, id: SubmitterId) -> HwQueue {
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
pub(super) struct Portion<'a> {
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
    pub(super) fn take_whole(&mut self) -> PluggedRequest {
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
pub(super) struct Exit<'a, P> {
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
    pub(super) fn send_all(self, line: &mut impl Line, ready: &mut Ready) -> u32 {
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
