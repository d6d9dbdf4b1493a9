//! Turns the calls of policies and devices into events of a trace.

use super::device::{DeviceWatch, Fate, Seen};
use super::policy::PolicyWatch;
use crate::trace::record::Act;
use crate::trace::{Event, Tracer};
use blkmq_core::{Instant, IoMeta, RequestId};
use blkmq_sched::{At, Cx, Grown, Shape};

/// The observer beside a policy.
pub(super) struct TracedPolicy {
    tracer: Tracer,
    /// Start and length of each held request, by slot, to know by how much it grows.
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
            // The call does not say where the joined range of a discard is.
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

/// The observer beside a device.
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
