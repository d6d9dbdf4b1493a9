//! The contract of [`Scheduler`], checked on every call.
//!
//! Safety is checked at each call: a picked request was held, no request is picked twice, `Empty` means empty, a time
//! to wait for is in the future, and a request is in flight when the policy waits for a completion. That every held
//! request is picked *eventually* needs a driver that keeps asking: [`Driver::drain`](super::Driver::drain).

use crate::{Admission, At, Cx, Done, Fresh, Grown, Observed, Observer, Pick, Scheduler};
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use blkmq_core::{HwQueue, Instant, IoMeta, RequestId};

/// The observer of a policy that checks the contract.
#[derive(Default)]
pub struct Contract {
    held: BTreeSet<RequestId>,
    issued: BTreeSet<RequestId>,
    now: Instant,
}

/// A policy under observation; itself a policy, so that it can be used in place of one.
pub type Checked = Observed<Contract>;

impl Checked {
    /// Watches `policy`, which holds nothing yet.
    #[must_use]
    pub fn checking(policy: Box<dyn Scheduler>) -> Self {
        Self::new(policy, Contract::default())
    }
}

impl Contract {
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

impl Observer for Contract {
    fn insert(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, rq: RequestId, at: At) {
        self.tick(cx);
        let _ = cx.requests.get(rq);
        let requeued = self.issued.remove(&rq);
        assert!(!requeued || at == At::Head, "the driver requeued {rq:?} at the tail");
        assert!(self.held.insert(rq), "the driver inserted {rq:?} twice");
        policy.insert(cx, rq, at);
    }

    fn pick(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, hw: HwQueue) -> Pick {
        self.tick(cx);
        let pick = policy.pick(cx, hw);
        self.check(cx, pick);
        pick
    }

    fn admit(
        &mut self,
        policy: &mut dyn Scheduler,
        cx: &Cx<'_>,
        fresh: &Fresh<'_>,
        order: &mut [u8],
    ) -> Admission {
        self.tick(cx);
        assert!(self.held.is_empty(), "the driver says that the policy holds none");
        for rq in fresh.rqs {
            let _ = cx.requests.get(*rq);
            assert!(!self.issued.contains(rq), "the driver requeued {rq:?} as a new one");
        }
        let takes_several = fresh.rqs.len() == 1 || policy.facts().takes_plugs;
        assert!(takes_several, "the driver gave a plug to a policy that takes none");
        let admission = policy.admit(cx, fresh, order);
        match (admission, fresh.rqs) {
            (Admission::Refused, _) => {}
            (Admission::Held(pick), [rq]) => {
                assert!(fresh.used.is_none(), "the policy holds {rq:?} instead of refusing it");
                assert!(!matches!(pick, Pick::Issue(_)), "the policy issued {rq:?} and holds it");
                self.held.insert(*rq);
                self.check(cx, pick);
            }
            (Admission::Held(_), rqs) => panic!("the policy holds {} new requests", rqs.len()),
            (Admission::Issued, rqs) => {
                let mut given = BTreeSet::new();
                for at in &order[..rqs.len()] {
                    assert!(given.insert(*at), "the policy gave out request {at} of a plug twice");
                    assert!(self.issued.insert(rqs[usize::from(*at)]), "it was issued already");
                }
            }
        }
        admission
    }

    fn passed(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, rq: RequestId, hw: HwQueue) {
        self.tick(cx);
        let _ = cx.requests.get(rq);
        assert!(self.held.is_empty(), "the driver let {rq:?} pass requests that are held");
        assert!(self.issued.insert(rq), "the driver let {rq:?} pass twice");
        policy.passed(cx, rq, hw);
    }

    fn completed(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, done: &Done) {
        self.tick(cx);
        let _ = cx.requests.get(done.rq);
        assert!(self.issued.remove(&done.rq), "the driver completed {:?}, not issued", done.rq);
        policy.completed(cx, done);
    }

    fn withdraw(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, rq: RequestId) {
        self.tick(cx);
        assert!(self.held.remove(&rq), "the driver withdrew {rq:?}, which is not held");
        let _ = cx.requests.get(rq);
        policy.withdraw(cx, rq);
    }

    fn absorbed(
        &mut self,
        policy: &mut dyn Scheduler,
        cx: &Cx<'_>,
        into: RequestId,
        gone: RequestId,
    ) {
        self.tick(cx);
        assert!(into != gone && self.held.contains(&into), "the driver fused into {into:?}");
        self.give_up(cx, gone);
        policy.absorbed(cx, into, gone);
    }

    fn may_merge(&self, policy: &dyn Scheduler, cx: &Cx<'_>, into: RequestId, io: &IoMeta) -> bool {
        assert!(self.held.contains(&into), "the driver asked about {into:?}, which is not held");
        policy.may_merge(cx, into, io)
    }

    fn grown(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, rq: RequestId, edge: Grown) {
        self.tick(cx);
        assert!(self.held.contains(&rq), "the driver grew {rq:?}, which is not held");
        policy.grown(cx, rq, edge);
    }

    fn set_attribute(&mut self, policy: &mut dyn Scheduler, name: &str, value: i64) -> bool {
        let known = policy.set_attribute(name, value);
        assert_eq!(known, policy.attribute(name).is_some(), "'{name}' set but not shown");
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

    /// Replaces answers to picks, and withdraws another request than the one that it was given, or none.
    struct Liar {
        lie: fn(Pick) -> Pick,
        withdraws: fn(RequestId) -> Option<RequestId>,
    }

    impl Observer for Liar {
        fn pick(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, hw: HwQueue) -> Pick {
            (self.lie)(policy.pick(cx, hw))
        }

        fn withdraw(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, rq: RequestId) {
            if let Some(rq) = (self.withdraws)(rq) {
                policy.withdraw(cx, rq);
            }
        }
    }

    fn driver(lie: fn(Pick) -> Pick, withdraws: fn(RequestId) -> Option<RequestId>) -> Driver {
        let inner = (none::FACTORY.build)(&SHAPE, &Options::defaults(&[]));
        let liar = Observed::new(inner, Liar { lie, withdraws });
        Driver::new(Box::new(liar), SHAPE.slots)
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
