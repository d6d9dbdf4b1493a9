//! `none`: first come, first served. The template for a new policy.
//!
//! Requests still merge, because the engine merges them. The policy has no options.

use crate::index::Fifo;
use crate::{At, Bypass, Cx, Done, Factory, Facts, Pick, Scheduler, Scope};
use alloc::boxed::Box;
use blkmq_core::{HwQueue, RequestId};

/// The registry line.
pub const FACTORY: Factory = Factory {
    name: "none",
    summary: "first come, first served",
    scope: Scope::HwQueue,
    attributes: &[],
    common: None,
    build: |shape, _| Box::new(Noop { queue: Fifo::new(shape.slots) }),
};

// An instance has cache lines of its own, since another thread may write that of another hardware queue.
#[repr(align(128))]
struct Noop {
    queue: Fifo,
}

impl Scheduler for Noop {
    fn facts(&self) -> Facts {
        Facts { bypass: Bypass::Untold, ..Facts::default() }
    }

    fn insert(&mut self, _: &Cx<'_>, rq: RequestId, at: At) {
        match at {
            At::Head => self.queue.push_front(rq),
            At::Tail => self.queue.push_back(rq),
        }
    }

    fn pick(&mut self, _: &Cx<'_>, _: HwQueue) -> Pick {
        self.queue.pop_front().map_or(Pick::Empty, Pick::Issue)
    }

    fn completed(&mut self, _: &Cx<'_>, _: &Done) {}

    fn withdraw(&mut self, _: &Cx<'_>, rq: RequestId) {
        self.queue.remove(rq);
    }

    fn absorbed(&mut self, _: &Cx<'_>, _into: RequestId, gone: RequestId) {
        self.queue.remove(gone);
    }

    fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        out("queued", self.queue.len() as u64);
    }
}
