//! A policy with an observer around it.

use crate::{Admission, At, Cx, Done, Facts, Fresh, GroupChange, Grown, Pick, Scheduler, Used};
use alloc::boxed::Box;
use blkmq_core::{HwQueue, IoMeta, Nanos, Owner, RequestId};

/// Stands between the engine and a policy. Each method is called in place of the policy's method of that name, and
/// calls it by default. An observer implements the methods that it watches or changes, and no others.
pub trait Observer: Send {
    /// See [`Scheduler::facts`].
    fn facts(&self, policy: &dyn Scheduler) -> Facts {
        policy.facts()
    }

    /// See [`Scheduler::insert`].
    fn insert(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, rq: RequestId, at: At) {
        policy.insert(cx, rq, at);
    }

    /// See [`Scheduler::pick`].
    fn pick(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, hw: HwQueue) -> Pick {
        policy.pick(cx, hw)
    }

    /// See [`Scheduler::admit`].
    fn admit(
        &mut self,
        policy: &mut dyn Scheduler,
        cx: &Cx<'_>,
        fresh: &Fresh<'_>,
        order: &mut [u8],
    ) -> Admission {
        policy.admit(cx, fresh, order)
    }

    /// See [`Scheduler::passed`].
    fn passed(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, rq: RequestId, hw: HwQueue) {
        policy.passed(cx, rq, hw);
    }

    /// See [`Scheduler::completed`].
    fn completed(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, done: &Done) {
        policy.completed(cx, done);
    }

    /// See [`Scheduler::withdraw`].
    fn withdraw(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, rq: RequestId) {
        policy.withdraw(cx, rq);
    }

    /// See [`Scheduler::absorbed`].
    fn absorbed(
        &mut self,
        policy: &mut dyn Scheduler,
        cx: &Cx<'_>,
        into: RequestId,
        gone: RequestId,
    ) {
        policy.absorbed(cx, into, gone);
    }

    /// See [`Scheduler::may_merge`].
    fn may_merge(&self, policy: &dyn Scheduler, cx: &Cx<'_>, into: RequestId, io: &IoMeta) -> bool {
        policy.may_merge(cx, into, io)
    }

    /// See [`Scheduler::grown`].
    fn grown(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, rq: RequestId, edge: Grown) {
        policy.grown(cx, rq, edge);
    }

    /// See [`Scheduler::admits`].
    fn admits(&self, policy: &dyn Scheduler, cx: &Cx<'_>, io: &IoMeta, used: Used) -> bool {
        policy.admits(cx, io, used)
    }

    /// See [`Scheduler::regroup`].
    fn regroup(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, change: GroupChange) {
        policy.regroup(cx, change);
    }

    /// See [`Scheduler::owner_gone`].
    fn owner_gone(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, owner: Owner) {
        policy.owner_gone(cx, owner);
    }

    /// See [`Scheduler::set_attribute`].
    fn set_attribute(&mut self, policy: &mut dyn Scheduler, name: &str, value: i64) -> bool {
        policy.set_attribute(name, value)
    }

    /// Returns whether the observer may be removed ([`Scheduler::release`]).
    fn may_leave(&self) -> bool {
        false
    }
}

/// A policy with an [`Observer`] around it; itself a policy.
pub struct Observed<O> {
    policy: Box<dyn Scheduler>,
    observer: O,
}

impl<O: Observer> Observed<O> {
    /// `policy` with `observer` around it.
    pub fn new(policy: Box<dyn Scheduler>, observer: O) -> Self {
        Self { policy, observer }
    }

    /// The observer.
    pub fn observer(&self) -> &O {
        &self.observer
    }
}

// The only wrapper of a policy. The lint finds a method that was added to the trait and is not forwarded here.
#[deny(clippy::missing_trait_methods)]
impl<O: Observer> Scheduler for Observed<O> {
    fn facts(&self) -> Facts {
        self.observer.facts(&*self.policy)
    }

    fn insert(&mut self, cx: &Cx<'_>, rq: RequestId, at: At) {
        self.observer.insert(&mut *self.policy, cx, rq, at);
    }

    fn pick(&mut self, cx: &Cx<'_>, hw: HwQueue) -> Pick {
        self.observer.pick(&mut *self.policy, cx, hw)
    }

    fn admit(&mut self, cx: &Cx<'_>, fresh: &Fresh<'_>, order: &mut [u8]) -> Admission {
        self.observer.admit(&mut *self.policy, cx, fresh, order)
    }

    fn passed(&mut self, cx: &Cx<'_>, rq: RequestId, hw: HwQueue) {
        self.observer.passed(&mut *self.policy, cx, rq, hw);
    }

    fn completed(&mut self, cx: &Cx<'_>, done: &Done) {
        self.observer.completed(&mut *self.policy, cx, done);
    }

    fn withdraw(&mut self, cx: &Cx<'_>, rq: RequestId) {
        self.observer.withdraw(&mut *self.policy, cx, rq);
    }

    fn absorbed(&mut self, cx: &Cx<'_>, into: RequestId, gone: RequestId) {
        self.observer.absorbed(&mut *self.policy, cx, into, gone);
    }

    fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        self.policy.inspect(out);
    }

    fn may_merge(&self, cx: &Cx<'_>, into: RequestId, io: &IoMeta) -> bool {
        self.observer.may_merge(&*self.policy, cx, into, io)
    }

    fn grown(&mut self, cx: &Cx<'_>, rq: RequestId, edge: Grown) {
        self.observer.grown(&mut *self.policy, cx, rq, edge);
    }

    fn admits(&self, cx: &Cx<'_>, io: &IoMeta, used: Used) -> bool {
        self.observer.admits(&*self.policy, cx, io, used)
    }

    fn charged(&self, rq: RequestId) -> Option<Nanos> {
        self.policy.charged(rq)
    }

    fn regroup(&mut self, cx: &Cx<'_>, change: GroupChange) {
        self.observer.regroup(&mut *self.policy, cx, change);
    }

    fn owner_gone(&mut self, cx: &Cx<'_>, owner: Owner) {
        self.observer.owner_gone(&mut *self.policy, cx, owner);
    }

    fn attribute(&self, name: &str) -> Option<i64> {
        self.policy.attribute(name)
    }

    fn set_attribute(&mut self, name: &str, value: i64) -> bool {
        self.observer.set_attribute(&mut *self.policy, name, value)
    }

    fn release(&mut self) -> Option<Box<dyn Scheduler>> {
        let gone = || core::mem::replace(&mut self.policy, Box::new(Gone));
        self.observer.may_leave().then(gone)
    }
}

/// The replacement of a released policy. The engine drops it without another call.
struct Gone;

impl Scheduler for Gone {
    fn insert(&mut self, _: &Cx<'_>, _: RequestId, _: At) {
        unreachable!("the policy was released");
    }

    fn pick(&mut self, _: &Cx<'_>, _: HwQueue) -> Pick {
        unreachable!("the policy was released");
    }

    fn completed(&mut self, _: &Cx<'_>, _: &Done) {
        unreachable!("the policy was released");
    }

    fn withdraw(&mut self, _: &Cx<'_>, _: RequestId) {
        unreachable!("the policy was released");
    }

    fn absorbed(&mut self, _: &Cx<'_>, _: RequestId, _: RequestId) {
        unreachable!("the policy was released");
    }

    fn inspect(&self, _: &mut dyn FnMut(&'static str, u64)) {}
}
