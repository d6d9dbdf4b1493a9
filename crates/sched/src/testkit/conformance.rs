//! The suite that every policy passes, wherever it is written: random scripts under the oracle.
//!
//! Slots are few, so that ids are reused at once, and every kind of step happens. What a policy decides is its own
//! affair; a naive twin or a test of one behaviour is for that.

use super::{Driver, Event, Script};
use crate::{Factory, Pick};
use alloc::string::String;
use alloc::vec::Vec;
use blkmq_core::{RequestId, Rng};

/// Steps of a script.
const STEPS: u32 = 2_000;
/// Most slots that a policy is given.
const SLOTS: u64 = 40;
/// Times that everything is withdrawn.
const ROUNDS: u32 = 10;
/// Steps before that.
const STEPS_OF_A_ROUND: u32 = 100;

/// What a run amounted to, so that a caller can see that it exercised what it meant to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Requests that the policy picked when it was asked.
    pub picked: u32,
    /// Times that it held requests and picked none.
    pub waited: u32,
    /// Requests that were taken back from it.
    pub withdrawn: u32,
}

/// Drives the policy of `factory` with scripts drawn from `seed`, under a [`Checked`](super::Checked): the contract of
/// [`Scheduler`](crate::Scheduler) holds at every call, whatever its attributes are set to; in the end every request
/// has been picked; requests can be withdrawn in any order at any time; and the same calls get the same answers. With
/// every other seed the owners of requests are in groups.
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

/// What was answered in the course of a script, what was left in the end, and what the policy says about itself then.
type Answers = (Vec<Event>, Vec<RequestId>, Vec<(&'static str, u64)>);

/// A script to its end, and until nothing is held.
fn scripted(factory: &Factory, seed: u64, out: &mut Outcome) -> Answers {
    let (mut script, mut driver) = script(factory, seed);
    let mut events = Vec::new();
    for _ in 0..STEPS {
        let event = driver.apply(script.step());
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

/// Now and then everything is taken back, in any order.
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
