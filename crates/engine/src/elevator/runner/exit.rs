//! The way of requests that are never held: they get slots and tags, and go into the outbox (decision 0017).

use super::{Lane, TAG_BATCH};
use crate::Inflight;
use crate::dispatch::duties::Duties;
use crate::dispatch::ready::Ready;
use crate::elevator::{Chain, Elevator};
use crate::shared::hub::Hub;
use crate::submission::plug::{Emptied, Plug};
use crate::submission::plugged::PluggedRequest;
use crate::sync::{Consumer, TagBatch};
use blkmq_core::{HwQueue, IoMeta, RequestId, Tag};
use blkmq_sched::PLUG;
use std::borrow::Borrow;

/// Requests in the order of submission, of which the first ones are taken.
pub(super) trait Line {
    /// By reference where the request need not be moved.
    type Meta<'a>: Borrow<IoMeta>
    where
        Self: 'a;

    /// Those that are left, without taking them.
    fn requests(&self) -> impl Iterator<Item = &PluggedRequest> + Clone;
    /// The first one.
    ///
    /// # Panics
    /// If none is left.
    fn first(&mut self) -> &PluggedRequest;
    /// Takes the first one. Not an `Option`, which would be copied in overlapping parts.
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
    /// At most `most` of those in `ring`.
    #[inline]
    pub(super) fn of(ring: &'a mut Consumer<PluggedRequest>, most: u32) -> Self {
        ring.prefetch(most);
        let left = ring.available(most);
        Self { ring, left }
    }

    /// Requests that are left.
    #[inline]
    pub(super) fn left(&self) -> u32 {
        self.left
    }

    /// All of them, without taking them.
    #[inline]
    pub(super) fn all(&self) -> impl ExactSizeIterator<Item = &PluggedRequest> + Clone {
        self.ring.front(self.left)
    }

    /// Takes the oldest one.
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
    /// The lane.
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
            elevator.count_slots(line.first().meta.hw, slots);
            sent += slots.all;
            while let Some(tag) = tags.pop() {
                // While a policy is told, the request is in the line, which is where a panic leaves it.
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

    /// Gets slots and tags for `ios`, and has the policy insert and pick them. `None`, and nothing has happened, if they
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

/// Shows the pump what was sent.
#[inline(always)]
fn publish(elevator: &Elevator, lane: &mut Lane, sent: u32) {
    lane.outbox.publish();
    elevator.counters.inserted.add(sent.into());
    elevator.counters.dispatched.add(sent.into());
    elevator.counters.batches.add(1);
}
