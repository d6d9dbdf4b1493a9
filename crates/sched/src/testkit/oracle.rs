//! The contract of [`Scheduler`], checked on every call.
//!
//! Safety is checked at each call: a picked request was held, no request is picked twice, `Empty` means empty, a time
//! to wait for is in the future, and a request is in flight when the policy waits for a completion. That every held
//! request is picked *eventually* needs a driver that keeps asking: [`Driver::drain`](super::Driver::drain).

use crate::{
    At, Capacity, Cx, DepthLimits, Done, GroupChange, Grown, Pick, Scheduler, Used, WholePlug,
};
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use blkmq_core::{HwQueue, Instant, IoMeta, Nanos, Owner, RequestId};

/// A policy under observation; itself a policy, so that it can be used in place of one.
pub struct Checked {
    inner: Box<dyn Scheduler>,
    held: BTreeSet<RequestId>,
    issued: BTreeSet<RequestId>,
    now: Instant,
}

impl Checked {
    /// Watches `inner`, which holds nothing yet.
    #[must_use]
    pub fn new(inner: Box<dyn Scheduler>) -> Self {
        Self { inner, held: BTreeSet::new(), issued: BTreeSet::new(), now: Instant::ZERO }
    }

    /// Requests that the policy holds.
    #[must_use]
    pub fn held(&self) -> &BTreeSet<RequestId> {
        &self.held
    }

    /// Requests picked and not completed.
    #[must_use]
    pub fn issued(&self) -> &BTreeSet<RequestId> {
        &self.issued
    }

    fn tick(&mut self, cx: &Cx<'_>) {
        assert!(cx.now >= self.now, "the driver turned the clock back");
        self.now = cx.now;
    }

    /// Judges the answer to a pick.
    fn check(&mut self, cx: &Cx<'_>, pick: Pick) {
        let held = self.held.len();
        match pick {
            Pick::Issue(rq) => {
                self.give_up(cx, rq);
                self.issued.insert(rq);
            }
            Pick::Empty => assert!(held == 0, "Empty with {held} held: {:?}", self.held),
            Pick::WaitUntil(at) => {
                assert!(held > 0, "WaitUntil with nothing held");
                assert!(at > cx.now, "WaitUntil {at:?} at {:?}: not in the future", cx.now);
            }
            Pick::WaitToken => assert!(held > 0, "WaitToken with nothing held"),
            Pick::WaitCompletion => {
                assert!(held > 0, "WaitCompletion with nothing held");
                assert!(!self.issued.is_empty(), "WaitCompletion with nothing in flight");
            }
        }
    }

    fn give_up(&mut self, cx: &Cx<'_>, rq: RequestId) {
        assert!(self.held.remove(&rq), "{rq:?} was given out without being held");
        // Panics if the id is stale.
        let _ = cx.requests.get(rq);
    }
}

impl Scheduler for Checked {
    fn insert(&mut self, cx: &Cx<'_>, rq: RequestId, at: At) {
        self.tick(cx);
        let _ = cx.requests.get(rq);
        let requeued = self.issued.remove(&rq);
        assert!(!requeued || at == At::Head, "the driver requeued {rq:?} at the tail");
        assert!(self.held.insert(rq), "the driver inserted {rq:?} twice");
        self.inner.insert(cx, rq, at);
    }

    fn pick(&mut self, cx: &Cx<'_>, hw: HwQueue) -> Pick {
        self.tick(cx);
        let pick = self.inner.pick(cx, hw);
        self.check(cx, pick);
        pick
    }

    fn insert_and_pick(&mut self, cx: &Cx<'_>, rq: RequestId, hw: HwQueue) -> Pick {
        self.tick(cx);
        let _ = cx.requests.get(rq);
        assert!(self.held.is_empty(), "the driver says that {rq:?} comes alone");
        assert!(!self.issued.contains(&rq), "the driver requeued {rq:?} as a new one");
        self.held.insert(rq);
        let pick = self.inner.insert_and_pick(cx, rq, hw);
        self.check(cx, pick);
        pick
    }

    fn insert_and_pick_all(&mut self, cx: &Cx<'_>, plug: &WholePlug<'_>, order: &mut [u8]) -> bool {
        self.tick(cx);
        assert!(self.held.is_empty(), "the driver says that the policy holds none");
        if !self.inner.insert_and_pick_all(cx, plug, order) {
            return false;
        }
        let mut given = BTreeSet::new();
        for at in &order[..plug.rqs.len()] {
            assert!(given.insert(*at), "the policy gave out request {at} of a plug twice");
            assert!(self.issued.insert(plug.rqs[usize::from(*at)]), "it was issued already");
        }
        true
    }

    fn picks_plugs(&self) -> bool {
        self.inner.picks_plugs()
    }

    fn completed(&mut self, cx: &Cx<'_>, done: &Done) {
        self.tick(cx);
        let _ = cx.requests.get(done.rq);
        assert!(self.issued.remove(&done.rq), "the driver completed {:?}, not issued", done.rq);
        self.inner.completed(cx, done);
    }

    fn withdraw(&mut self, cx: &Cx<'_>, rq: RequestId) {
        self.tick(cx);
        assert!(self.held.remove(&rq), "the driver withdrew {rq:?}, which is not held");
        let _ = cx.requests.get(rq);
        self.inner.withdraw(cx, rq);
    }

    fn absorbed(&mut self, cx: &Cx<'_>, into: RequestId, gone: RequestId) {
        self.tick(cx);
        assert!(into != gone && self.held.contains(&into), "the driver fused into {into:?}");
        self.give_up(cx, gone);
        self.inner.absorbed(cx, into, gone);
    }

    fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        self.inner.inspect(out);
    }

    fn may_merge(&self, cx: &Cx<'_>, into: RequestId, io: &IoMeta) -> bool {
        assert!(self.held.contains(&into), "the driver asked about {into:?}, which is not held");
        self.inner.may_merge(cx, into, io)
    }

    fn front_merges(&self) -> bool {
        self.inner.front_merges()
    }

    fn grown(&mut self, cx: &Cx<'_>, rq: RequestId, edge: Grown) {
        self.tick(cx);
        assert!(self.held.contains(&rq), "the driver grew {rq:?}, which is not held");
        self.inner.grown(cx, rq, edge);
    }

    fn depth_limits(&self) -> DepthLimits {
        self.inner.depth_limits()
    }

    fn limits_slots(&self) -> bool {
        self.inner.limits_slots()
    }

    fn shares_by_group(&self) -> bool {
        self.inner.shares_by_group()
    }

    fn notes_groups(&self) -> bool {
        self.inner.notes_groups()
    }

    fn capacity(&self) -> Option<Capacity> {
        self.inner.capacity()
    }

    fn bounds_device(&self) -> bool {
        self.inner.bounds_device()
    }

    fn charged(&self, rq: RequestId) -> Option<Nanos> {
        self.inner.charged(rq)
    }

    fn admits(&self, cx: &Cx<'_>, io: &IoMeta, used: Used) -> bool {
        self.inner.admits(cx, io, used)
    }

    fn regroup(&mut self, cx: &Cx<'_>, change: GroupChange) {
        self.inner.regroup(cx, change);
    }

    fn owner_gone(&mut self, cx: &Cx<'_>, owner: Owner) {
        self.inner.owner_gone(cx, owner);
    }

    fn attribute(&self, name: &str) -> Option<i64> {
        self.inner.attribute(name)
    }

    fn set_attribute(&mut self, name: &str, value: i64) -> bool {
        let known = self.inner.set_attribute(name, value);
        assert_eq!(known, self.inner.attribute(name).is_some(), "'{name}' set but not shown");
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::Driver;
    use crate::{Options, Shape, none};
    use blkmq_core::Op;

    const SHAPE: Shape =
        Shape { slots: 4, nr_requests: 4, hw_depth: 2, hw_queues: 1, rotational: false };

    /// `none` with one answer replaced, or with another request withdrawn than the one it was given.
    struct Liar {
        inner: Box<dyn Scheduler>,
        lie: fn(Pick) -> Pick,
        withdraws: fn(RequestId) -> Option<RequestId>,
    }

    impl Scheduler for Liar {
        fn insert(&mut self, cx: &Cx<'_>, rq: RequestId, at: At) {
            self.inner.insert(cx, rq, at);
        }
        fn pick(&mut self, cx: &Cx<'_>, hw: HwQueue) -> Pick {
            (self.lie)(self.inner.pick(cx, hw))
        }
        fn completed(&mut self, cx: &Cx<'_>, done: &Done) {
            self.inner.completed(cx, done);
        }
        fn withdraw(&mut self, cx: &Cx<'_>, rq: RequestId) {
            if let Some(rq) = (self.withdraws)(rq) {
                self.inner.withdraw(cx, rq);
            }
        }
        fn absorbed(&mut self, cx: &Cx<'_>, into: RequestId, gone: RequestId) {
            self.inner.absorbed(cx, into, gone);
        }
        fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
            self.inner.inspect(out);
        }
    }

    fn driver(lie: fn(Pick) -> Pick, withdraws: fn(RequestId) -> Option<RequestId>) -> Driver {
        let inner = (none::FACTORY.build)(&SHAPE, &Options::defaults(&[]));
        Driver::new(Box::new(Liar { inner, lie, withdraws }), SHAPE.slots)
    }

    fn pick_from_liar(lie: fn(Pick) -> Pick) {
        let mut driver = driver(lie, Some);
        driver.insert(Op::Read, 0);
        driver.insert(Op::Read, 8);
        driver.pick();
        driver.pick();
    }

    fn withdraw_from_liar(withdraws: fn(RequestId) -> Option<RequestId>) {
        let mut driver = driver(|pick| pick, withdraws);
        driver.insert(Op::Read, 0);
        let second = driver.insert(Op::Read, 8);
        driver.withdraw(second);
        driver.drain();
    }

    #[test]
    fn honest_policies_pass() {
        pick_from_liar(|pick| pick);
        withdraw_from_liar(Some);
    }

    #[test]
    #[should_panic(expected = "without being held")]
    fn a_request_kept_although_it_was_withdrawn_is_caught() {
        withdraw_from_liar(|_| None);
    }

    #[test]
    #[should_panic(expected = "without being held")]
    fn another_request_withdrawn_is_caught() {
        withdraw_from_liar(|_| Some(RequestId::new(0, 0)));
    }

    #[test]
    #[should_panic(expected = "Empty with 2 held")]
    fn empty_while_holding_is_caught() {
        pick_from_liar(|_| Pick::Empty);
    }

    #[test]
    #[should_panic(expected = "without being held")]
    fn a_request_given_twice_is_caught() {
        pick_from_liar(|_| Pick::Issue(RequestId::new(0, 0)));
    }

    #[test]
    #[should_panic(expected = "not in the future")]
    fn waiting_for_the_present_is_caught() {
        pick_from_liar(|_| Pick::WaitUntil(Instant::ZERO));
    }

    #[test]
    #[should_panic(expected = "nothing in flight")]
    fn waiting_for_nobody_is_caught() {
        pick_from_liar(|_| Pick::WaitCompletion);
    }
}
