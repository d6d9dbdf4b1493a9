//! `none`, written from its page: a list.

use blkmq_core::{HwQueue, RequestId};
use blkmq_sched::{At, Cx, Done, Options, Pick, Scheduler, Shape};

pub(super) fn build(_: &Shape, _: &Options) -> Box<dyn Scheduler> {
    Box::new(Naive(Vec::new()))
}

struct Naive(Vec<RequestId>);

impl Scheduler for Naive {
    fn insert(&mut self, _: &Cx<'_>, rq: RequestId, at: At) {
        let place = if at == At::Head { 0 } else { self.0.len() };
        self.0.insert(place, rq);
    }

    fn pick(&mut self, _: &Cx<'_>, _: HwQueue) -> Pick {
        if self.0.is_empty() { Pick::Empty } else { Pick::Issue(self.0.remove(0)) }
    }

    fn completed(&mut self, _: &Cx<'_>, _: &Done) {}

    fn withdraw(&mut self, _: &Cx<'_>, rq: RequestId) {
        self.0.retain(|other| *other != rq);
    }

    fn absorbed(&mut self, _: &Cx<'_>, _: RequestId, gone: RequestId) {
        self.0.retain(|rq| *rq != gone);
    }

    fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        out("queued", self.0.len() as u64);
    }
}
