//! A policy with a recorder beside it: tells the oracle what is picked, and changes nothing.
//!
//! A [`Factory`] builds policies with a plain function, which cannot carry an oracle along. So the plan is
//! left in a thread-local while a queue is being built, and only then: [`build_with`] puts it there and takes
//! it away again.

use crate::oracle::Oracle;
use crate::order::Picked;
use crate::planted::{self, Bug};
use crate::policies;
use blkmq_core::{HwQueue, IoMeta, Owner, RequestId};
use blkmq_sched::{
    At, Cx, DepthLimits, Done, Factory, GroupChange, Grown, Options, Pick, Scheduler, Shape, Used,
};
use std::cell::RefCell;
use std::sync::OnceLock;

/// What the next policies built on this thread are to be.
pub(crate) struct Plan {
    /// The real one.
    pub(crate) factory: &'static Factory,
    /// Who is told.
    pub(crate) oracle: Oracle,
    /// What is to go wrong between the recorder and the engine.
    pub(crate) bug: Option<Bug>,
}

thread_local! {
    static PLAN: RefCell<Option<Plan>> = const { RefCell::new(None) };
}

/// Runs `build`, which builds a queue with the [`factory`] of the plan's policy.
pub(crate) fn build_with<R>(plan: Plan, build: impl FnOnce() -> R) -> R {
    PLAN.set(Some(plan));
    let built = build();
    PLAN.take();
    built
}

/// The policy of `inner` with a recorder beside it; like `inner` in all that is announced. To be used within
/// [`build_with`].
///
/// # Panics
/// If `inner` is none of [`policies`].
pub(crate) fn factory(inner: &'static Factory) -> &'static Factory {
    static RECORDED: OnceLock<Vec<Factory>> = OnceLock::new();
    let recorded = |f: &&Factory| Factory {
        name: f.name,
        summary: f.summary,
        scope: f.scope,
        doc: f.doc,
        attributes: f.attributes,
        common: f.common,
        build,
    };
    let all = RECORDED.get_or_init(|| policies::all().iter().map(recorded).collect());
    all.iter().find(|f| f.name == inner.name).expect("it is one of the policies that are known")
}

fn build(shape: &Shape, options: &Options) -> Box<dyn Scheduler> {
    PLAN.with_borrow(|plan| {
        let plan = plan.as_ref().expect("a recorded policy is built within `build_with`");
        let inner = (plan.factory.build)(shape, options);
        let recorder = Box::new(Recorder { inner, oracle: plan.oracle.clone(), held: 0 });
        planted::in_policy(plan.bug, recorder)
    })
}

struct Recorder {
    inner: Box<dyn Scheduler>,
    oracle: Oracle,
    held: u32,
}

impl Scheduler for Recorder {
    fn pick(&mut self, cx: &Cx<'_>, hw: HwQueue) -> Pick {
        let pick = self.inner.pick(cx, hw);
        let what = match pick {
            Pick::Issue(rq) => {
                self.held -= 1;
                Some(Picked::from(cx.requests.get(rq)))
            }
            _ => None,
        };
        self.oracle.with(|oracle| oracle.asked(cx.now, hw, pick, what));
        pick
    }

    fn insert(&mut self, cx: &Cx<'_>, rq: RequestId, at: At) {
        self.held += 1;
        self.inner.insert(cx, rq, at);
    }

    fn completed(&mut self, cx: &Cx<'_>, done: &Done) {
        self.inner.completed(cx, done);
    }

    fn withdraw(&mut self, cx: &Cx<'_>, rq: RequestId) {
        self.inner.withdraw(cx, rq);
        self.held -= 1;
        if self.held == 0 {
            let hw = cx.requests.get(rq).hw;
            self.oracle.with(|oracle| oracle.emptied(hw));
        }
    }

    fn absorbed(&mut self, cx: &Cx<'_>, into: RequestId, gone: RequestId) {
        self.held -= 1;
        self.inner.absorbed(cx, into, gone);
    }

    fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        self.inner.inspect(out);
    }

    fn may_merge(&self, cx: &Cx<'_>, into: RequestId, io: &IoMeta) -> bool {
        self.inner.may_merge(cx, into, io)
    }

    fn front_merges(&self) -> bool {
        self.inner.front_merges()
    }

    fn grown(&mut self, cx: &Cx<'_>, rq: RequestId, edge: Grown) {
        self.inner.grown(cx, rq, edge);
    }

    fn depth_limits(&self) -> DepthLimits {
        self.inner.depth_limits()
    }

    fn limits_slots(&self) -> bool {
        self.inner.limits_slots()
    }

    fn admits(&self, cx: &Cx<'_>, io: &IoMeta, used: Used) -> bool {
        self.inner.admits(cx, io, used)
    }

    fn regroup(&mut self, cx: &Cx<'_>, change: GroupChange) {
        self.inner.regroup(cx, change);
    }

    fn left(&mut self, cx: &Cx<'_>, owner: Owner) {
        self.inner.left(cx, owner);
    }

    fn attribute(&self, name: &str) -> Option<i64> {
        self.inner.attribute(name)
    }

    fn set_attribute(&mut self, name: &str, value: i64) -> bool {
        self.inner.set_attribute(name, value)
    }
}
