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
use crate::shared::hctx::Way;
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
    #[must_use = "no other code issues data that goes immediately"]
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
mod tests {
    use super::*;
    use blkmq_core::IoError;

    const HW: HwQueue = HwQueue(2);
    const T0: Instant = Instant::ZERO;
    const BARE: Sequence = Sequence { pre: true, data: false, post: false };
    const PRE: Sequence = Sequence { pre: true, data: true, post: false };
    const POST: Sequence = Sequence { pre: false, data: true, post: true };
    const BOTH: Sequence = Sequence { pre: true, data: true, post: true };
    const BACK: WriteCache = WriteCache::Back { fua: false };

    fn rq(index: u32) -> RequestId {
        RequestId::new(index, 0)
    }

    fn queues() -> FlushQueues {
        FlushQueues::new(BACK, 2..4, 16)
    }

    fn enter(flushes: &mut FlushQueues, index: u32, steps: Sequence) {
        assert_eq!(flushes.enter(T0, HW, rq(index), steps), !steps.pre);
    }

    /// A flush in the name of `carrier` is over; returns the next steps of the requests that it served.
    fn flushed(flushes: &mut FlushQueues, carrier: u32, result: IoResult) -> Vec<(u32, Next)> {
        flushes.flushed(HW, rq(carrier), result);
        let served = std::iter::from_fn(|| flushes.next_served(HW));
        served.map(|(id, next)| (id.index() as u32, next)).collect()
    }

    fn end(data: bool) -> Next {
        Next::End { result: Ok(()), data }
    }

    #[test]
    fn what_an_io_needs_follows_from_its_flags_and_the_cache() {
        let of = |cache, op, flags| Sequence::of(cache, op, flags);
        let fua = WriteCache::Back { fua: true };
        for op in [Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes, Op::Read] {
            assert_eq!(of(WriteCache::Through, op, BARRIERS), None);
        }
        assert_eq!(of(BACK, Op::Flush, IoFlags::NONE), Some(BARE));
        assert_eq!(of(fua, Op::Flush, IoFlags::NONE), Some(BARE));
        assert_eq!(of(BACK, Op::Write, IoFlags::SYNC), None);
        assert_eq!(of(BACK, Op::Write, IoFlags::PREFLUSH), Some(PRE));
        assert_eq!(of(BACK, Op::Write, IoFlags::FUA), Some(POST));
        assert_eq!(of(BACK, Op::Write, BARRIERS), Some(BOTH));
        assert_eq!(of(fua, Op::Write, IoFlags::FUA), None, "the device does it");
        assert_eq!(of(fua, Op::Write, BARRIERS), Some(PRE));
        assert!(fua.sequenced() == IoFlags::PREFLUSH && BACK.sequenced() == BARRIERS);
        assert!(fua.meaningless() == IoFlags::NONE && BACK.meaningless() == IoFlags::NONE);
        let through = WriteCache::Through;
        assert!(through.sequenced() == IoFlags::NONE && through.meaningless() == BARRIERS);
    }

    #[test]
    fn all_three_steps_come_in_order() {
        let mut f = queues();
        enter(&mut f, 0, BOTH);
        assert_eq!(f.begin(T0, HW), Some(rq(0)));
        assert_eq!(f.way(rq(0)), Way::Flush);
        assert_eq!(flushed(&mut f, 0, Ok(())), [(0, Next::Data)]);
        assert_eq!((f.way(rq(0)), f.begin(T0, HW)), (Way::Data, None));
        assert_eq!(f.data_done(T0, HW, rq(0), Ok(())), None);
        assert_eq!(f.begin(T0, HW), Some(rq(0)));
        assert_eq!(flushed(&mut f, 0, Ok(())), [(0, end(true))]);
        assert!(f.is_empty() && f.way(rq(0)) == Way::Plain);
    }

    #[test]
    fn steps_that_are_not_needed_are_left_out() {
        let mut f = queues();
        enter(&mut f, 0, BARE);
        enter(&mut f, 1, PRE);
        enter(&mut f, 2, POST);
        assert_eq!(f.way(rq(2)), Way::Data);
        assert_eq!(f.data_done(T0, HW, rq(2), Ok(())), None);
        assert_eq!(f.begin(T0, HW), Some(rq(0)));
        let after = [(0, end(false)), (1, Next::Data), (2, end(true))];
        assert_eq!(flushed(&mut f, 0, Ok(())), after);
        assert_eq!(f.data_done(T0, HW, rq(1), Ok(())), Some(Ok(())));
        assert!(f.is_empty() && f.begin(T0, HW).is_none());
    }

    #[test]
    fn c1_one_flush_at_a_time_and_who_comes_later_waits_for_the_next() {
        let mut f = queues();
        (0..3).for_each(|i| enter(&mut f, i, BARE));
        assert_eq!(f.begin(T0, HW), Some(rq(0)));
        (3..6).for_each(|i| enter(&mut f, i, BARE));
        let late = T0 + PENDING_AGE + PENDING_AGE;
        assert_eq!((f.begin(late, HW), f.deadline(HW)), (None, None), "not even after 5 s");
        let first: Vec<_> = (0..3).map(|i| (i, end(false))).collect();
        assert_eq!(flushed(&mut f, 0, Ok(())), first);
        assert_eq!(f.begin(late, HW), Some(rq(3)));
        let second: Vec<_> = (3..6).map(|i| (i, end(false))).collect();
        assert_eq!(flushed(&mut f, 3, Ok(())), second);
        assert!(f.is_empty());
    }

    /// The rule that makes FUA true: the flush under way may have begun before the data was in the cache.
    #[test]
    fn a_flush_that_began_before_the_data_was_done_does_not_count() {
        let mut f = queues();
        enter(&mut f, 0, BARE);
        assert_eq!(f.begin(T0, HW), Some(rq(0)));
        enter(&mut f, 1, POST);
        assert_eq!(f.data_done(T0, HW, rq(1), Ok(())), None);
        assert_eq!(flushed(&mut f, 0, Ok(())), [(0, end(false))], "1 is not served");
        assert_eq!(f.begin(T0, HW), Some(rq(1)));
        assert_eq!(flushed(&mut f, 1, Ok(())), [(1, end(true))]);
    }

    #[test]
    fn c2_a_flush_waits_for_data_that_could_share_it() {
        let mut f = queues();
        (0..8).for_each(|i| enter(&mut f, i, POST));
        for i in 0..8 {
            assert_eq!(f.begin(T0, HW), None, "{i} done");
            assert_eq!(f.data_done(T0, HW, rq(i), Ok(())), None);
        }
        assert_eq!(f.begin(T0, HW), Some(rq(0)));
        assert_eq!(flushed(&mut f, 0, Ok(())).len(), 8);
    }

    #[test]
    fn c3_after_5_s_it_waits_no_longer() {
        let mut f = queues();
        let since = T0 + Nanos::from_millis(7);
        enter(&mut f, 0, POST);
        assert_eq!(f.deadline(HW), None, "no flush is pending");
        assert!(!f.enter(since, HW, rq(1), BARE));
        assert!(!f.enter(since + Nanos::from_secs(3), HW, rq(2), BARE), "the oldest counts");
        let due = since + PENDING_AGE;
        assert_eq!(f.deadline(HW), Some(due));
        assert_eq!(f.begin(Instant::from_nanos(due.as_nanos() - 1), HW), None);
        assert_eq!(f.begin(due, HW), Some(rq(1)));
        assert_eq!(flushed(&mut f, 1, Ok(())).len(), 2);
        assert_eq!(f.data_done(due, HW, rq(0), Ok(())), None);
        assert_eq!(f.begin(due, HW), Some(rq(0)), "its age begins when it becomes pending");
    }

    #[test]
    fn an_error_in_any_step_ends_the_sequence() {
        let error = Err(IoError::TIMED_OUT);
        let failed = |data| Next::End { result: error, data };
        let mut f = queues();
        enter(&mut f, 0, BOTH);
        enter(&mut f, 1, BARE);
        assert_eq!(f.begin(T0, HW), Some(rq(0)));
        assert_eq!(flushed(&mut f, 0, error), [(0, failed(false)), (1, failed(false))], "in PRE");

        enter(&mut f, 0, POST);
        assert_eq!(f.data_done(T0, HW, rq(0), error), Some(error), "in DATA");
        assert!(f.is_empty());

        enter(&mut f, 0, POST);
        assert_eq!(f.data_done(T0, HW, rq(0), Ok(())), None);
        assert_eq!(f.begin(T0, HW), Some(rq(0)));
        assert_eq!(flushed(&mut f, 0, error), [(0, failed(true))], "in POST");
        assert!(f.is_empty() && f.begin(T0, HW).is_none());
    }

    #[test]
    fn hardware_queues_flush_by_themselves() {
        let mut f = queues();
        enter(&mut f, 0, POST);
        assert!(!f.enter(T0, HwQueue(3), rq(1), BARE));
        assert_eq!(
            f.begin(T0, HwQueue(3)),
            Some(rq(1)),
            "the data of another one does not hold it up"
        );
        assert_eq!(f.begin(T0, HW), None);
        assert_eq!(f.hws().collect::<Vec<_>>(), [HW, HwQueue(3)]);
        let f = FlushQueues::new(BACK, 3..6, 16);
        assert_eq!(f.hws().collect::<Vec<_>>(), [3, 4, 5].map(HwQueue));
    }

    #[test]
    fn a_reused_slot_is_not_taken_for_what_was_in_it() {
        let mut f = queues();
        enter(&mut f, 0, POST);
        assert_eq!(f.way(rq(0).next_generation()), Way::Plain);
        assert_eq!(f.data_done(T0, HW, rq(0), Err(IoError::IO)), Some(Err(IoError::IO)));
        let again = rq(0).next_generation();
        assert!(!f.enter(T0, HW, again, BARE));
        assert_eq!(f.begin(T0, HW), Some(again));
    }

    #[test]
    fn a_request_is_in_a_sequence_from_its_entry_to_its_end() {
        let mut f = queues();
        assert!(!f.has(rq(0)) && !f.has(rq(99)), "a slot beyond the last one has no entry");
        enter(&mut f, 0, BOTH);
        assert!(f.has(rq(0)) && !f.has(rq(0).next_generation()) && !f.is_empty());
        assert_eq!(f.way(rq(0)), Way::Plain, "it waits, and is not issued");
        assert_eq!(f.begin(T0, HW), Some(rq(0)));
        assert_eq!(f.way(rq(0).next_generation()), Way::Plain, "the flush goes by another name");
        assert_eq!(flushed(&mut f, 0, Ok(())), [(0, Next::Data)]);
        assert!(f.has(rq(0)) && !f.is_empty());
        assert_eq!(f.data_done(T0, HW, rq(0), Ok(())), None);
        assert!(f.has(rq(0)));
        assert_eq!(f.begin(T0, HW), Some(rq(0)));
        assert_eq!(flushed(&mut f, 0, Ok(())), [(0, end(true))]);
        assert!(!f.has(rq(0)) && f.is_empty());
    }

    #[test]
    #[should_panic(expected = "is in a sequence already")]
    fn a_request_enters_once() {
        let mut f = queues();
        enter(&mut f, 0, BARE);
        enter(&mut f, 0, BARE);
    }

    #[test]
    #[should_panic(expected = "is in no sequence")]
    fn data_of_a_request_that_ended_is_refused() {
        let mut f = queues();
        enter(&mut f, 0, POST);
        assert_eq!(f.data_done(T0, HW, rq(0), Err(IoError::IO)), Some(Err(IoError::IO)));
        let _ = f.data_done(T0, HW, rq(0), Ok(()));
    }

    #[test]
    #[should_panic(expected = "is in no sequence")]
    fn data_of_another_request_in_the_slot_is_refused() {
        let mut f = queues();
        enter(&mut f, 0, POST);
        let _ = f.data_done(T0, HW, rq(0).next_generation(), Ok(()));
    }

    #[test]
    #[should_panic(expected = "has no data in flight")]
    fn data_that_has_not_been_issued_is_refused() {
        let mut f = queues();
        enter(&mut f, 0, PRE);
        let _ = f.data_done(T0, HW, rq(0), Ok(()));
    }

    #[test]
    #[should_panic(expected = "carries no flush")]
    fn a_flush_ends_in_the_name_in_which_it_began() {
        let mut f = queues();
        (0..2).for_each(|i| enter(&mut f, i, BARE));
        assert_eq!(f.begin(T0, HW), Some(rq(0)));
        f.flushed(HW, rq(1), Ok(()));
    }

    #[test]
    fn without_a_cache_there_is_nothing_to_look_at() {
        let f = FlushQueues::new(WriteCache::Through, 0..1, 1 << 20);
        assert!(f.is_empty() && f.entries.is_empty());
        assert_eq!(f.way(rq(3)), Way::Plain);
    }
}
