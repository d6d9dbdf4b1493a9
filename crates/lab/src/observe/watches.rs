//! The observers: the number of requests in the elevators and at the device over time, inversions, and the events of
//! a trace.
//!
//! An inversion is a request that reaches a hardware queue before another one that the policy picked earlier for that
//! queue. Picks are numbered, and each arrival is compared with the highest number that has arrived there. A request
//! that the device requeues is picked again and gets a new number; flushes have none, and are not counted.

use super::{DeviceWatch, Fate, PolicyWatch, Seen};
use crate::trace::record::Act;
use crate::trace::{Event, Tracer};
use crate::workload::{Course, Series};
use blkmq_core::{HwQueue, Instant, IoMeta, Op, RequestId};
use blkmq_sched::{At, Cx, Grown, Pick, Shape};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Both depths of one queue; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Depths {
    elevator: SharedDepths,
    device: SharedDepths,
}

#[derive(Clone, Debug, Default)]
struct SharedDepths(Arc<Mutex<Course>>);

impl SharedDepths {
    fn change(&self, at: Instant, by: i64) {
        let mut course = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let level = course.level().saturating_add_signed(by);
        course.change(at, level);
    }

    fn until(&self, until: Instant) -> Series {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone().into_series(until)
    }
}

impl Depths {
    /// Requests held by policies, up to `until`.
    #[must_use]
    pub fn elevator(&self, until: Instant) -> Series {
        self.elevator.until(until)
    }

    /// Requests at the device, up to `until`.
    #[must_use]
    pub fn device(&self, until: Instant) -> Series {
        self.device.until(until)
    }
}

impl PolicyWatch for Depths {
    fn inserted(&mut self, cx: &Cx<'_>, _: RequestId, _: At) {
        self.elevator.change(cx.now, 1);
    }

    fn asked(&mut self, cx: &Cx<'_>, _: HwQueue, answer: Pick) {
        if matches!(answer, Pick::Issue(_)) {
            self.elevator.change(cx.now, -1);
        }
    }

    fn withdrawn(&mut self, cx: &Cx<'_>, _: RequestId) {
        self.elevator.change(cx.now, -1);
    }

    fn absorbed(&mut self, cx: &Cx<'_>, _: RequestId, _: RequestId) {
        self.elevator.change(cx.now, -1);
    }
}

impl DeviceWatch for Depths {
    fn issued(&mut self, now: Instant, _: &Seen) {
        self.device.change(now, 1);
    }

    fn returned(&mut self, now: Instant, _: &Seen, _: Fate) {
        self.device.change(now, -1);
    }
}

/// The count for one queue with one elevator; clones share it.
#[derive(Clone, Debug)]
pub struct Inversions(Arc<SharedInversions>);

#[derive(Debug)]
struct SharedInversions {
    /// The number of the latest pick. One elevator at a time adds to it.
    picks: AtomicU64,
    /// The number of each request's pick, by request.
    numbers: Box<[AtomicU64]>,
    arrived: AtomicU64,
    inverted: AtomicU64,
}

impl Inversions {
    /// A counter for queues with up to `requests` requests.
    #[must_use]
    pub fn new(requests: usize) -> Self {
        Self(Arc::new(SharedInversions {
            picks: AtomicU64::new(0),
            numbers: (0..requests).map(|_| AtomicU64::new(0)).collect(),
            arrived: AtomicU64::new(0),
            inverted: AtomicU64::new(0),
        }))
    }

    /// (requests that have arrived at the device, those of them that arrived after a request that was picked later for
    /// the same hardware queue).
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.0.arrived.load(Ordering::Relaxed), self.0.inverted.load(Ordering::Relaxed))
    }

    pub(super) fn beside_device(&self) -> impl DeviceWatch + use<> {
        Arrivals { shared: Arc::clone(&self.0), latest: 0 }
    }
}

// Orderings: the thread that hands a request to the device got it from the thread that picked it, and so sees its
// number.
impl PolicyWatch for Inversions {
    fn asked(&mut self, _: &Cx<'_>, _: HwQueue, answer: Pick) {
        if let Pick::Issue(rq) = answer {
            let number = self.0.picks.fetch_add(1, Ordering::Relaxed) + 1;
            self.number(rq).store(number, Ordering::Relaxed);
        }
    }
}

impl Inversions {
    fn number(&self, rq: RequestId) -> &AtomicU64 {
        self.0
            .numbers
            .get(rq.index())
            .expect("a queue has no more requests than it was said to have")
    }
}

/// The observer of one hardware queue.
struct Arrivals {
    shared: Arc<SharedInversions>,
    /// The highest number so far.
    latest: u64,
}

impl DeviceWatch for Arrivals {
    fn issued(&mut self, _: Instant, rq: &Seen) {
        if rq.op == Op::Flush {
            return;
        }
        let number = self.shared.numbers[rq.id.index()].load(Ordering::Relaxed);
        self.shared.arrived.fetch_add(1, Ordering::Relaxed);
        if number < self.latest {
            self.shared.inverted.fetch_add(1, Ordering::Relaxed);
        }
        self.latest = self.latest.max(number);
    }

    fn returned(&mut self, _: Instant, _: &Seen, _: Fate) {}
}

pub(super) struct TracedPolicy {
    tracer: Tracer,
    /// Start and length of each held request, by slot, to compute by how much it grows.
    extents: Box<[(u64, u32)]>,
}

impl TracedPolicy {
    pub(super) fn new(tracer: Tracer, shape: &Shape) -> Self {
        Self { tracer, extents: vec![(0, 0); shape.slots as usize].into_boxed_slice() }
    }
}

fn event(act: Act, meta: &IoMeta) -> Event {
    let IoMeta { op, flags, sector, sectors, .. } = *meta;
    Event { act, op, flags, sector, sectors }
}

impl PolicyWatch for TracedPolicy {
    fn inserted(&mut self, cx: &Cx<'_>, rq: RequestId, at: At) {
        let meta = cx.requests.get(rq);
        self.extents[rq.index()] = (meta.sector, meta.sectors);
        if at == At::Tail {
            self.tracer.note(cx.now, event(Act::GetRequest, meta));
        }
        self.tracer.note(cx.now, event(Act::Insert, meta));
    }

    fn grown(&mut self, cx: &Cx<'_>, rq: RequestId, edge: Grown) {
        let meta = cx.requests.get(rq);
        let (sector, sectors) = self.extents[rq.index()];
        self.extents[rq.index()] = (meta.sector, meta.sectors);
        let more = meta.sectors - sectors;
        let joined = match edge {
            Grown::Front { .. } => Event { sectors: more, ..event(Act::FrontMerge, meta) },
            Grown::Back => {
                let sector = sector + u64::from(sectors);
                Event { sector, sectors: more, ..event(Act::BackMerge, meta) }
            }
            // The call does not include the position of a joined range of a discard.
            Grown::Discard => Event { sectors: more, ..event(Act::BackMerge, meta) },
        };
        self.tracer.note(cx.now, joined);
    }

    fn absorbed(&mut self, cx: &Cx<'_>, into: RequestId, gone: RequestId) {
        let meta = cx.requests.get(into);
        self.extents[into.index()] = (meta.sector, meta.sectors);
        self.tracer.note(cx.now, event(Act::BackMerge, cx.requests.get(gone)));
    }
}

pub(super) struct TracedDevice(pub(super) Tracer);

fn request(act: Act, rq: &Seen) -> Event {
    let Seen { op, flags, sector, sectors, .. } = *rq;
    Event { act, op, flags, sector, sectors }
}

impl DeviceWatch for TracedDevice {
    fn issued(&mut self, now: Instant, rq: &Seen) {
        self.0.note(now, request(Act::Issue, rq));
    }

    fn returned(&mut self, now: Instant, rq: &Seen, fate: Fate) {
        match fate {
            Fate::Ended(result) => self.0.ended(now, request(Act::Complete, rq), result),
            Fate::Again => self.0.note(now, request(Act::Requeue, rq)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::IoFlags;

    fn seen(id: usize) -> Seen {
        let id = RequestId::new(id as u32, 0);
        Seen { id, op: Op::Read, flags: IoFlags::NONE, sector: 0, sectors: 8 }
    }

    #[test]
    fn a_request_is_inverted_if_a_later_one_came_first() {
        let all = Inversions::new(8);
        for (number, rq) in [4, 2, 0, 1].into_iter().enumerate() {
            all.number(seen(rq).id).store(number as u64 + 1, Ordering::Relaxed);
        }
        let mut here = all.beside_device();
        // Picked as 4 2 0 1, arrived as 4 0 2 1: one inversion. Each hardware queue counts separately.
        for rq in [4, 0, 2, 1] {
            here.issued(Instant::ZERO, &seen(rq));
        }
        assert_eq!(all.counts(), (4, 1));
        let mut there = all.beside_device();
        there.issued(Instant::ZERO, &seen(4));
        assert_eq!(all.counts(), (5, 1));
        there.issued(Instant::ZERO, &Seen { op: Op::Flush, ..seen(7) });
        assert_eq!(all.counts(), (5, 1));
    }
}
