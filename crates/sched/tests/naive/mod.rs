//! Naive twins: a second implementation of each policy of the registry, written from its page with vectors and scans
//! only, to be compared decision by decision. The twin of `none`, a list, is here.

pub mod bfq;
mod deadline;
mod kyber;
mod mclock;

use blkmq_core::{HwQueue, RequestId};
use blkmq_sched::{At, Common, Cx, Done, Options, Pick, Scheduler, Shape};

/// Creates a twin.
pub type Build = fn(&Shape, &Options) -> Box<dyn Scheduler>;

/// Every twin, under the name of its policy, with the state that its instances share.
pub const TWINS: &[(&str, Build, Option<Common>)] = &[
    ("none", build_none, None),
    ("mq-deadline", deadline::build, None),
    ("kyber", kyber::build, Some(kyber::COMMON)),
    ("bfq", bfq::build, None),
    ("mclock", mclock::build, None),
];

/// The twin of the policy called `name`, with the state that its instances share.
#[must_use]
pub fn twin(name: &str) -> Option<(Build, Option<Common>)> {
    TWINS.iter().find(|(n, ..)| *n == name).map(|(_, build, common)| (*build, *common))
}

fn build_none(_: &Shape, _: &Options) -> Box<dyn Scheduler> {
    Box::new(First(Vec::new()))
}

struct First(Vec<RequestId>);

impl Scheduler for First {
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
