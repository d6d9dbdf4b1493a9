//! Tools for testing a policy: scripts that drive it, and an oracle that checks the contract. Behind the feature
//! `testkit`; never part of a release build.
//!
//! - [`conformance`] is the suite that every policy must pass: one call for each seed.
//! - [`Driver`] is a policy with a slot table and a clock, driven by a test: the tool for tests of one behaviour.
//! - [`Checked`] wraps any policy and panics when it breaks the contract of [`Scheduler`](crate::Scheduler). Every
//!   driver has one.
//! - [`LocalEnv`] is the environment that the engine keeps for a policy, in plain cells.
//! - [`Script`] draws steps from a seed and applies them to a driver.
//! - [`rationed`] is a small policy with tokens that its instances share.
//! - [`FakeDevice`] is a device for tests in which latency matters.
//!
//! The suite is random scripts under the oracle. Slots are few, so that ids are reused immediately, and every kind of
//! step occurs. The decisions of a policy are judged by its naive twin and by tests of single behaviours, not by the
//! suite.
//!
//! Safety is checked at each call: a picked request was held, no request is picked twice, `Empty` means empty, a time
//! to wait for is in the future, and a request is in flight when the policy waits for a completion. Liveness, that
//! every held request is picked *eventually*, is checked by [`Driver::drain`].

mod driver;
pub mod rationed;
mod script;

use crate::{Admission, At, Cx, Done, Factory, Fresh, Grown, Observed, Observer, Pick, Scheduler};
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use blkmq_core::{HwQueue, Instant, IoMeta, RequestId, Rng};
pub use driver::{Driver, FakeDevice, LocalEnv};
pub use script::{Event, Script, Step};

/// Steps of a script.
const STEPS: u32 = 2_000;
/// The most slots that a policy is given.
const SLOTS: u64 = 40;
/// The number of times that all requests are withdrawn.
const ROUNDS: u32 = 10;
/// Steps before each withdrawal.
const STEPS_OF_A_ROUND: u32 = 100;

/// The totals of a run, to check that it exercised the intended cases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Requests that the policy picked.
    pub picked: u32,
    /// Calls of `pick` that returned no request although some were held.
    pub waited: u32,
    /// Requests withdrawn from it.
    pub withdrawn: u32,
}

/// Drives the policy of `factory` with scripts drawn from `seed`, under a [`Checked`](Checked). It checks that the
/// contract of [`Scheduler`](crate::Scheduler) holds at every call, with any values of its attributes; that in the end
/// every request has been picked; that requests can be withdrawn in any order at any time; and that the same calls get
/// the same answers. With every other seed the owners of requests are in groups.
///
/// # Panics
/// At the first violation.
pub fn conformance(factory: &Factory, seed: u64) -> Outcome {
    let mut outcome = Outcome { picked: 0, waited: 0, withdrawn: 0 };
    let one = scripted(factory, seed, &mut outcome);
    let other = scripted(factory, seed, &mut Outcome { ..outcome });
    assert!(one == other, "{}, seed {seed}: another answer to the same calls", factory.name);
    withdrawn(factory, seed, &mut outcome);
    outcome
}

fn script(factory: &Factory, seed: u64) -> (Script, Driver) {
    let new = if seed.is_multiple_of(2) { Script::new } else { Script::with_tenants };
    let mut script = new(seed, factory.attributes);
    let options: String = script.options();
    let slots = 1 + Rng::new(seed).below(SLOTS) as u32;
    (script, Driver::of(factory, slots, &options))
}

/// The answers of the policy in a script, the order of the final drain, and the policy's counters after it.
type Answers = (Vec<Event>, Vec<RequestId>, Vec<(&'static str, u64)>);

/// Runs a script to its end, and then until no request is held.
fn scripted(factory: &Factory, seed: u64, out: &mut Outcome) -> Answers {
    let (mut script, mut driver) = script(factory, seed);
    // A separate generator, on which the script does not depend.
    let mut ways = Rng::new(seed ^ 0x0077_6179);
    let mut events = Vec::new();
    for _ in 0..STEPS {
        let event = match script.step() {
            Step::Insert(meta, At::Tail) if driver.held().is_empty() && ways.chance(1, 2) => {
                let alike = |nth| IoMeta { sector: meta.sector + 64 * nth, ..meta };
                let plug: Vec<IoMeta> = (0..1 + ways.below(4)).map(alike).collect();
                driver.admit(&plug).first().map_or(Event::Quiet, |pick| Event::Picked(*pick))
            }
            step => driver.apply(step),
        };
        match &event {
            Event::Picked(Pick::Issue(_)) => out.picked += 1,
            Event::Picked(pick) if *pick != Pick::Empty => out.waited += 1,
            Event::Withdrawn(Some(_)) => out.withdrawn += 1,
            _ => {}
        }
        events.push(event);
    }
    let rest = driver.drain();
    assert_eq!(driver.pick(), Pick::Empty, "{}, seed {seed}: after the last", factory.name);
    assert!(driver.held().is_empty(), "{}, seed {seed}: requests are left", factory.name);
    (events, rest, driver.inspect())
}

/// Withdraws all held requests from time to time, in any order.
fn withdrawn(factory: &Factory, seed: u64, out: &mut Outcome) {
    let mut rng = Rng::new(seed);
    let (mut script, mut driver) = script(factory, seed);
    for _ in 0..ROUNDS {
        (0..STEPS_OF_A_ROUND).for_each(|_| {
            let _ = driver.apply(script.step());
        });
        let mut held = driver.held();
        while !held.is_empty() {
            let at = rng.below(held.len() as u64) as usize;
            driver.withdraw(held.swap_remove(at));
            out.withdrawn += 1;
        }
        assert_eq!(driver.pick(), Pick::Empty, "{}, seed {seed}: nothing is held", factory.name);
    }
    driver.drain();
}

/// The observer of a policy that checks the contract.
#[derive(Default)]
pub struct Contract {
    held: BTreeSet<RequestId>,
    issued: BTreeSet<RequestId>,
    now: Instant,
}

/// A policy under observation. It is a policy itself, and can be used in place of one.
pub type Checked = Observed<Contract>;

impl Checked {
    /// Watches `policy`, which holds no request.
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
    use crate::{
        Admission, Bypass, Cx, Facts, Fresh, Observed, Observer, Options, Scheduler, Scope, Shape,
        none,
    };
    use alloc::boxed::Box;
    use blkmq_core::{HwQueue, Op};

    /// An observer that panics when requests pass `none`.
    struct PanicsAtPass;

    impl Observer for PanicsAtPass {
        fn facts(&self, policy: &dyn Scheduler) -> Facts {
            Facts { bypass: Bypass::Told, ..policy.facts() }
        }

        fn passed(&mut self, _: &mut dyn Scheduler, _: &Cx<'_>, _: RequestId, _: HwQueue) {
            panic!("a request passes");
        }
    }

    /// An observer that panics when a request arrives alone.
    struct PanicsAtAdmission;

    impl Observer for PanicsAtAdmission {
        fn facts(&self, policy: &dyn Scheduler) -> Facts {
            Facts { bypass: Bypass::Never, ..policy.facts() }
        }

        fn admit(
            &mut self,
            _: &mut dyn Scheduler,
            _: &Cx<'_>,
            _: &Fresh<'_>,
            _: &mut [u8],
        ) -> Admission {
            panic!("a request comes alone");
        }
    }

    fn observed(build: fn(&Shape, &Options) -> Box<dyn Scheduler>) -> Factory {
        Factory {
            name: "observed",
            summary: "",
            scope: Scope::HwQueue,
            attributes: &[],
            common: None,
            build,
        }
    }

    #[test]
    #[should_panic(expected = "a request passes")]
    fn a_policy_is_notified_of_requests_that_pass() {
        let build = |shape: &Shape, options: &Options| -> Box<dyn Scheduler> {
            Box::new(Observed::new((none::FACTORY.build)(shape, options), PanicsAtPass))
        };
        conformance(&observed(build), 1);
    }

    #[test]
    #[should_panic(expected = "a request comes alone")]
    fn a_policy_is_given_requests_that_come_alone() {
        let build = |shape: &Shape, options: &Options| -> Box<dyn Scheduler> {
            Box::new(Observed::new((none::FACTORY.build)(shape, options), PanicsAtAdmission))
        };
        conformance(&observed(build), 1);
    }

    const SHAPE: Shape =
        Shape { slots: 4, nr_requests: 4, hw_depth: 2, hw_queues: 1, rotational: false };

    /// Replaces answers to picks, and withdraws another request than the given one, or none.
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
