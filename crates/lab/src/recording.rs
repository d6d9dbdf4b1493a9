//! A policy with a recorder beside it: tells the oracle which requests are picked and where they were joined, and
//! changes nothing.

use crate::observe::policy::{self, PolicyWatch, watched};
use crate::oracle::Oracle;
use crate::order::Picked;
use crate::planted::{self, Bug};
use crate::seams::Agreements;
use blkmq_core::{HwQueue, IoMeta, RequestId};
use blkmq_sched::{At, Cx, Factory, Grown, Pick};

pub(crate) use policy::factory;

/// The wrapper of the next policies built on this thread.
pub(crate) struct Plan {
    /// The real factory.
    pub(crate) factory: &'static Factory,
    /// The oracle that is notified.
    pub(crate) oracle: Oracle,
    /// The bug between the recorder and the engine.
    pub(crate) bug: Option<Bug>,
}

/// Runs `build`, which builds a queue with the [`factory`] of the plan's policy.
pub(crate) fn build_with<R>(plan: Plan, build: impl FnOnce() -> R) -> R {
    let Plan { factory, oracle, bug } = plan;
    let wrap = move |inner, _: &_, _: &_| {
        let recorder = Box::new(Recorder {
            oracle: oracle.clone(),
            held: 0,
            agreements: Agreements::default(),
        });
        planted::in_policy(bug, watched(inner, vec![recorder]))
    };
    policy::build_with(factory, wrap, build)
}

struct Recorder {
    oracle: Oracle,
    held: u32,
    agreements: Agreements,
}

impl PolicyWatch for Recorder {
    fn asked(&mut self, cx: &Cx<'_>, hw: HwQueue, answer: Pick) {
        let what = match answer {
            Pick::Issue(rq) => {
                self.held -= 1;
                Some((Picked::from(cx.requests.get(rq)), self.agreements.take(rq)))
            }
            _ => None,
        };
        self.oracle.with(|oracle| oracle.asked(cx.now, hw, answer, what));
    }

    fn inserted(&mut self, _: &Cx<'_>, _: RequestId, _: At) {
        self.held += 1;
    }

    fn may_merge(&mut self, _: &Cx<'_>, into: RequestId, io: &IoMeta, answer: bool) {
        self.agreements.answered(into, io, answer);
    }

    fn grown(&mut self, _: &Cx<'_>, rq: RequestId, edge: Grown) {
        self.agreements.grown(rq, edge);
    }

    fn withdrawn(&mut self, cx: &Cx<'_>, rq: RequestId) {
        self.held -= 1;
        self.agreements.take(rq);
        if self.held == 0 {
            let hw = cx.requests.get(rq).hw;
            self.oracle.with(|oracle| oracle.emptied(hw));
        }
    }

    fn absorbed(&mut self, _: &Cx<'_>, into: RequestId, gone: RequestId) {
        self.held -= 1;
        self.agreements.absorbed(into, gone);
    }
}
