//! Flush sequences, which make writes durable on a device with a volatile cache (`spec/framework.md` section 12).
//!
//! An I/O goes through those of the steps PRE, DATA and POST that it needs. PRE and POST are flushes of the device, and
//! one flush serves every request that was waiting for one when it began. This file decides which request waits for
//! which step: a plain state machine for each hardware queue, which receives events and the time. It knows requests by
//! id only; `elevator/merging.rs` has their bios, tags and slots, and carries out the decisions.
//!
//! | event | request in PRE | in DATA | in POST |
//! |---|---|---|---|
//! | [`enter`](FlushQueues::enter) | pending | in flight immediately, if there is no PRE | - |
//! | its flush succeeded | to DATA, or ended if it has no data | - | ended |
//! | its data arrived | - | to POST, and pending; or ended | - |
//! | its flush or data failed | ended with the error | ended with the error | ended with the error |
//!
//! Pending requests are in one of two lists: *filling*, for the next flush, and *serving*, for the flush under way. A
//! flush begins only if
//!
//! * C1: none is under way, and
//! * C2: no data step is in flight (its POST could share the flush), or
//! * C3: the oldest pending request has been pending for [`PENDING_AGE`].
//!
//! *Invariant: a flush serves no request that became pending after the flush began.* The flush may have missed data
//! that was still on its way to the cache.

use crate::planted::Planted;
use crate::shared::inflight::Way;
use crate::{WriteCache, planted};
use blkmq_core::{HwQueue, Instant, IoFlags, IoResult, Nanos, Op, RequestId};

/// The longest that a flush is delayed for data steps in flight (`spec/framework.md` section 1).
pub(crate) const PENDING_AGE: Nanos = Nanos::from_secs(5);

const NIL: u32 = u32::MAX;

/// The flags that ask for a flush, or for durability, which takes a flush if the device has no FUA.
pub(crate) const BARRIERS: IoFlags = IoFlags::PREFLUSH.union(IoFlags::FUA);

impl WriteCache {
    /// The flags on data that mean nothing to a device with this cache; they are removed immediately.
    pub(crate) fn meaningless(self) -> IoFlags {
        match self {
            Self::Through => BARRIERS,
            Self::Back { .. } => IoFlags::NONE,
        }
    }

    /// The flags on data that need a sequence and that the device never sees.
    pub(crate) fn sequenced(self) -> IoFlags {
        match self {
            Self::Through => IoFlags::NONE,
            Self::Back { fua: true } => IoFlags::PREFLUSH,
            Self::Back { fua: false } => BARRIERS,
        }
    }
}

/// The steps that a request goes through, at least one of them a flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sequence {
    /// A flush ahead of the data.
    pub(crate) pre: bool,
    /// Data.
    pub(crate) data: bool,
    /// A flush behind the data.
    pub(crate) post: bool,
}

impl Sequence {
    /// The steps that an I/O needs; `None` if it is dispatched normally. On a device without a volatile cache no I/O
    /// needs a sequence, not even a bare flush.
    pub(crate) fn of(cache: WriteCache, op: Op, flags: IoFlags) -> Option<Self> {
        let WriteCache::Back { fua } = cache else { return None };
        if op == Op::Flush {
            return Some(Self { pre: true, data: false, post: false });
        }
        let pre = flags.contains(IoFlags::PREFLUSH);
        let post = flags.contains(IoFlags::FUA) && !fua;
        (pre || post).then_some(Self { pre, data: true, post })
    }
}

/// The step of a sequence that a request is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// In no sequence.
    Outside,
    /// Waits for the flush ahead of its data, or for its only flush if it has no data.
    Pre,
    /// Its data is in flight.
    Data,
    /// Waits for the flush behind its data.
    Post,
}

/// The next step of a request after its flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Issue its data.
    Data,
    /// The request is done.
    End {
        /// The result of the request.
        result: IoResult,
        /// Its data has reached the device. False for a bare flush, and if the flush ahead of the data failed.
        data: bool,
    },
}

#[derive(Clone, Copy)]
struct Entry {
    id: RequestId,
    next: u32,
    step: Step,
    data: bool,
    post: bool,
    /// The flush under way is issued in the name of this request.
    carries: bool,
}

/// Pending requests in order of arrival, linked through their entries.
#[derive(Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

impl List {
    const EMPTY: Self = Self { first: NIL, last: NIL };

    fn is_empty(self) -> bool {
        self.first == NIL
    }
}

/// The state machine of one hardware queue.
#[derive(Clone, Copy)]
struct Lane {
    filling: List,
    /// While a flush is under way, the requests that it serves. After it, the served requests not yet taken.
    serving: List,
    /// The result of a flush that is over, until all requests in `serving` are taken; otherwise `None`.
    result: Option<IoResult>,
    /// A flush is under way.
    flushing: bool,
    /// The time at which the first request entered `filling`.
    since: Instant,
    /// Data steps in flight.
    data: u32,
}

/// The state machines of all hardware queues of one elevator. Allocates once, and no entries for a device without a
/// volatile cache.
pub(crate) struct FlushQueues {
    first_hw: u16,
    lanes: Box<[Lane]>,
    /// By slot.
    entries: Box<[Entry]>,
    /// Requests in sequences.
    inside: u32,
}

impl FlushQueues {
    /// For the hardware queues `hws` of a device with this cache, and requests in `slots` slots.
    pub(crate) fn new(cache: WriteCache, hws: std::ops::Range<u16>, slots: u32) -> Self {
        let slots = if cache == WriteCache::Through { 0 } else { slots };
        let entry = |index| Entry {
            id: RequestId::new(index, 0),
            next: NIL,
            step: Step::Outside,
            data: false,
            post: false,
            carries: false,
        };
        let lane = Lane {
            filling: List::EMPTY,
            serving: List::EMPTY,
            result: None,
            flushing: false,
            since: Instant::ZERO,
            data: 0,
        };
        Self {
            first_hw: hws.start,
            lanes: vec![lane; hws.len()].into_boxed_slice(),
            entries: (0..slots).map(entry).collect(),
            inside: 0,
        }
    }

    /// Returns whether no request is in a sequence.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.inside == 0
    }

    /// The hardware queues of the elevator.
    pub(crate) fn hws(&self) -> impl Iterator<Item = HwQueue> + use<> {
        let first = self.first_hw;
        (first..first + self.lanes.len() as u16).map(HwQueue)
    }

    fn lane(&mut self, hw: HwQueue) -> &mut Lane {
        &mut self.lanes[usize::from(hw.0 - self.first_hw)]
    }

    fn entry(&mut self, id: RequestId) -> &mut Entry {
        let entry = &mut self.entries[id.index()];
        assert!(entry.id == id && entry.step != Step::Outside, "{id:?} is in no sequence");
        entry
    }

    /// Starts the sequence of `id`, of hardware queue `hw`. Returns whether its data goes to the device immediately,
    /// and then counts it as in flight.
    #[must_use = "data that goes at once is nobody else's to issue"]
    pub(crate) fn enter(
        &mut self,
        now: Instant,
        hw: HwQueue,
        id: RequestId,
        steps: Sequence,
    ) -> bool {
        let entry = &mut self.entries[id.index()];
        assert!(entry.step == Step::Outside, "{id:?} is in a sequence already");
        let Sequence { pre, data, post } = steps;
        let step = if pre { Step::Pre } else { Step::Data };
        *entry = Entry { id, next: NIL, step, data, post, carries: false };
        self.inside += 1;
        if pre {
            self.pend(now, hw, id);
        } else {
            self.lane(hw).data += 1;
        }
        !pre
    }

    fn pend(&mut self, now: Instant, hw: HwQueue, id: RequestId) {
        let index = id.index() as u32;
        let lane = self.lane(hw);
        let late = lane.flushing && planted::is(Planted::ServesLateComers);
        let list = if late { &mut lane.serving } else { &mut lane.filling };
        let last = std::mem::replace(&mut list.last, index);
        if last == NIL {
            list.first = index;
            lane.since = now;
        } else {
            self.entries[last as usize].next = index;
        }
    }

    /// Returns whether the request `id` is in a sequence.
    pub(crate) fn has(&self, id: RequestId) -> bool {
        let entry = self.entries.get(id.index());
        entry.is_some_and(|entry| entry.id == id && entry.step != Step::Outside)
    }

    /// The purpose of the request `id`, which is about to be issued.
    #[inline]
    pub(crate) fn way(&self, id: RequestId) -> Way {
        match self.entries.get(id.index()) {
            Some(entry) if entry.id == id && entry.carries => Way::Flush,
            Some(entry) if entry.id == id && entry.step == Step::Data => Way::Data,
            _ => Way::Plain,
        }
    }

    /// Begins a flush for `hw` if a request is pending and C1 to C3 allow it. Returns the carrier: the request
    /// in the name of which the flush is issued.
    #[must_use = "a flush that has begun is to be issued"]
    pub(crate) fn begin(&mut self, now: Instant, hw: HwQueue) -> Option<RequestId> {
        let lane = self.lane(hw);
        let old = now >= lane.since + PENDING_AGE;
        if lane.filling.is_empty() || lane.flushing || lane.data > 0 && !old {
            return None;
        }
        assert!(lane.serving.is_empty(), "those served before have been told");
        lane.serving = std::mem::replace(&mut lane.filling, List::EMPTY);
        lane.flushing = true;
        let carrier = &mut self.entries[self.lane(hw).serving.first as usize];
        carrier.carries = true;
        Some(carrier.id)
    }

    /// Returns the time at which C3 allows a flush for `hw` that waits for data steps. `None` if no flush waits for
    /// them. If one is under way, its end lets the next one begin.
    pub(crate) fn deadline(&self, hw: HwQueue) -> Option<Instant> {
        let lane = &self.lanes[usize::from(hw.0 - self.first_hw)];
        let waits = !lane.filling.is_empty() && !lane.flushing;
        waits.then_some(lane.since + PENDING_AGE)
    }

    /// Ends the flush for `hw`, in the name of `carrier`. The caller then takes the served requests with
    /// [`next_served`](Self::next_served).
    pub(crate) fn flushed(&mut self, hw: HwQueue, carrier: RequestId, result: IoResult) {
        let entry = self.entry(carrier);
        assert!(std::mem::take(&mut entry.carries), "{carrier:?} carries no flush");
        let lane = self.lane(hw);
        lane.flushing = false;
        lane.result = Some(result);
    }

    /// Returns the next request that the last flush for `hw` served, and the next step of the request. The oldest
    /// request comes first, and `None` follows the last one.
    pub(crate) fn next_served(&mut self, hw: HwQueue) -> Option<(RequestId, Next)> {
        let Lane { serving, result, .. } = *self.lane(hw);
        let result = result?;
        if serving.is_empty() {
            self.lane(hw).result = None;
            return None;
        }
        let entry = &mut self.entries[serving.first as usize];
        let (id, next, after) = (entry.id, entry.next, entry.step == Step::Post);
        entry.next = NIL;
        let to_data = !after && entry.data && result.is_ok();
        entry.step = if to_data { Step::Data } else { Step::Outside };
        let lane = self.lane(hw);
        lane.serving = if next == NIL { List::EMPTY } else { List { first: next, ..serving } };
        if to_data {
            lane.data += 1;
            return Some((id, Next::Data));
        }
        self.inside -= 1;
        Some((id, Next::End { result, data: after }))
    }

    /// Ends the data step of `id`, of hardware queue `hw`. Returns the result of the request if that was its last step
    /// or it failed. Otherwise the request becomes pending.
    pub(crate) fn data_done(
        &mut self,
        now: Instant,
        hw: HwQueue,
        id: RequestId,
        result: IoResult,
    ) -> Option<IoResult> {
        let entry = self.entry(id);
        assert!(entry.step == Step::Data, "{id:?} has no data in flight");
        let on = entry.post && result.is_ok();
        entry.step = if on { Step::Post } else { Step::Outside };
        self.lane(hw).data -= 1;
        if on {
            self.pend(now, hw, id);
            return None;
        }
        self.inside -= 1;
        Some(result)
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests;
