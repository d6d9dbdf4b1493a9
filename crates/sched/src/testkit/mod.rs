//! Tools for testing a policy: scripts that drive it, and an oracle that checks the contract. Behind the feature
//! `testkit`; never part of a release build.
//!
//! - [`conformance`] is the suite that every policy must pass: one call for each seed.
//! - [`Driver`] is a policy with a slot table and a clock, driven by a test: the tool for tests of one behaviour.
//! - [`Checked`] wraps any policy and panics when it breaks the contract of [`Scheduler`](crate::Scheduler).
//!   Every driver has one.
//! - [`LocalEnv`] is the environment that the engine keeps for a policy, in plain cells.
//! - [`Script`] draws steps from a seed and applies them to a driver.
//! - [`rationed`] is a small policy with tokens that its instances share.
//! - [`FakeDevice`] is a device for tests in which latency matters.

mod driver;
mod env;
mod oracle;
pub mod rationed;
mod script;

use crate::{At, Factory, Pick};
use alloc::string::String;
use alloc::vec::Vec;
use blkmq_core::{IoMeta, RequestId, Rng};
pub use driver::Driver;
pub use env::{FakeDevice, LocalEnv};
pub use oracle::Checked;
pub use script::{Event, Script, Step};

/// Steps of a script.
const STEPS: u32 = 2_000;
/// The most slots that a policy is given.
const SLOTS: u64 = 40;
/// The number of times that everything is withdrawn.
const ROUNDS: u32 = 10;
/// Steps before each withdrawal.
const STEPS_OF_A_ROUND: u32 = 100;

/// The totals of a run, by which a caller can check that it exercised the intended cases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Requests that the policy picked.
    pub picked: u32,
    /// Calls of `pick` that returned no request although some were held.
    pub waited: u32,
    /// Requests withdrawn from it.
    pub withdrawn: u32,
}

/// Drives the policy of `factory` with scripts drawn from `seed`, under a [`Checked`](Checked): the contract
/// of [`Scheduler`](crate::Scheduler) holds at every call, whatever its attributes are set to; in the end every
/// request has been picked; requests can be withdrawn in any order at any time; and the same calls get the same
/// answers. With every other seed the owners of requests are in groups.
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

/// The answers of the policy in the course of a script, the order of the final drain, and the policy's counters after
/// it.
type Answers = (Vec<Event>, Vec<RequestId>, Vec<(&'static str, u64)>);

/// Runs a script to its end, and then until nothing is held.
fn scripted(factory: &Factory, seed: u64, out: &mut Outcome) -> Answers {
    let (mut script, mut driver) = script(factory, seed);
    // A separate generator: the script does not depend on it.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Admission, Bypass, Cx, Facts, Fresh, Observed, Observer, Options, Scheduler, Scope, Shape,
        none,
    };
    use alloc::boxed::Box;
    use blkmq_core::HwQueue;

    /// Panics where requests pass `none`, which is notified of them.
    struct PanicsAtPass;

    impl Observer for PanicsAtPass {
        fn facts(&self, policy: &dyn Scheduler) -> Facts {
            Facts { bypass: Bypass::Told, ..policy.facts() }
        }

        fn passed(&mut self, _: &mut dyn Scheduler, _: &Cx<'_>, _: RequestId, _: HwQueue) {
            panic!("a request passes");
        }
    }

    /// Panics where a request comes alone.
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
}
