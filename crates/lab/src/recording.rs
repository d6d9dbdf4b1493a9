//! A policy with a recorder beside it: tells the oracle what is picked, and changes nothing.

use crate::observe::policy::{self, PolicyWatch, watched};
use crate::oracle::Oracle;
use crate::order::Picked;
use crate::planted::{self, Bug};
use blkmq_core::{HwQueue, RequestId};
use blkmq_sched::{At, Cx, Factory, Pick};

pub(crate) use policy::factory;

/// What the next policies built on this thread are to be.
pub(crate) struct Plan {
    /// The real one.
    pub(crate) factory: &'static Factory,
    /// Who is told.
    pub(crate) oracle: Oracle,
    /// What is to go wrong between the recorder and the engine.
    pub(crate) bug: Option<Bug>,
}

/// Runs `build`, which builds a queue with the [`factory`] of the plan's policy.
pub(crate) fn build_with<R>(plan: Plan, build: impl FnOnce() -> R) -> R {
    let Plan { factory, oracle, bug } = plan;
    let wrap = move |inner, _: &_, _: &_| {
        let recorder = Box::new(Recorder { oracle: oracle.clone(), held: 0 });
        planted::in_policy(bug, watched(inner, vec![recorder]))
    };
    policy::build_with(factory, wrap, build)
}

struct Recorder {
    oracle: Oracle,
    held: u32,
}

impl PolicyWatch for Recorder {
    fn asked(&mut self, cx: &Cx<'_>, hw: HwQueue, answer: Pick) {
        let what = match answer {
            Pick::Issue(rq) => {
                self.held -= 1;
                Some(Picked::from(cx.requests.get(rq)))
            }
            _ => None,
        };
        self.oracle.with(|oracle| oracle.asked(cx.now, hw, answer, what));
    }

    fn inserted(&mut self, _: &Cx<'_>, _: RequestId, _: At) {
        self.held += 1;
    }

    fn withdrawn(&mut self, cx: &Cx<'_>, rq: RequestId) {
        self.held -= 1;
        if self.held == 0 {
            let hw = cx.requests.get(rq).hw;
            self.oracle.with(|oracle| oracle.emptied(hw));
        }
    }

    fn absorbed(&mut self, _: &Cx<'_>, _: RequestId, _: RequestId) {
        self.held -= 1;
    }
}
