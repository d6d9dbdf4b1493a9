//! The contract of `Scheduler`, for every line of the registry.
//!
//! `Driver` watches each call through the oracle; what is left to do here is to reach many states: slots are
//! few, so that ids are reused at once, and every kind of step happens.

use blkmq_core::{IoMeta, Nanos, Op, Rng};
use blkmq_sched::testkit::{Driver, Script};
use blkmq_sched::{At, Factory, Pick, registry};

const SEEDS: u64 = 300;

fn each(test: impl Fn(&'static Factory, u64)) {
    for factory in registry::ALL {
        (0..SEEDS).for_each(|seed| test(factory, seed));
    }
}

/// Every other seed has owners in groups.
fn script(factory: &Factory, seed: u64) -> Script {
    let new = if seed.is_multiple_of(2) { Script::new } else { Script::with_tenants };
    new(seed, factory.attributes)
}

fn few_slots(seed: u64) -> u32 {
    1 + Rng::new(seed).below(40) as u32
}

#[test]
fn random_scripts_keep_the_contract_and_lose_nothing() {
    each(|factory, seed| {
        let mut script = script(factory, seed);
        let options = script.options();
        let mut driver = Driver::of(factory, few_slots(seed), &options);
        (0..2_000).for_each(|_| {
            let _ = driver.apply(script.step());
        });
        driver.drain();
        assert_eq!(driver.pick(), Pick::Empty);
        assert!(driver.held().is_empty());
    });
}

#[test]
fn everything_can_be_withdrawn_in_any_order_at_any_time_and_the_policy_goes_on() {
    each(|factory, seed| {
        let mut rng = Rng::new(seed);
        let mut script = script(factory, seed);
        let options = script.options();
        let mut driver = Driver::of(factory, few_slots(seed), &options);
        for _ in 0..10 {
            (0..100).for_each(|_| {
                let _ = driver.apply(script.step());
            });
            let mut held = driver.held();
            while !held.is_empty() {
                let at = rng.below(held.len() as u64) as usize;
                driver.withdraw(held.swap_remove(at));
            }
            assert_eq!(driver.pick(), Pick::Empty);
        }
        driver.drain();
    });
}

#[test]
fn a_full_table_of_one_sector_drains() {
    for factory in registry::ALL {
        let mut driver = Driver::of(factory, 64, "");
        for round in 0..20 {
            while driver.insert_meta(IoMeta::new(Op::Write, 8, 8), At::Tail).is_some() {}
            driver.advance(Nanos::from_millis(round));
            assert_eq!(driver.drain().len(), 64);
        }
    }
}

#[test]
fn requests_that_are_put_back_again_and_again_come_out_once_each_time() {
    for factory in registry::ALL {
        let mut driver = Driver::of(factory, 8, "");
        (0..8).for_each(|i| {
            driver.insert(Op::Read, i * 8);
        });
        for _ in 0..50 {
            let rq = driver.issue();
            driver.requeue(rq);
        }
        assert_eq!(driver.drain().len(), 8);
    }
}

#[test]
fn the_same_calls_get_the_same_answers() {
    each(|factory, seed| {
        if seed % 8 != 0 {
            return;
        }
        let run = || {
            let mut script = script(factory, seed);
            let options = script.options();
            let mut driver = Driver::of(factory, few_slots(seed), &options);
            let events: Vec<_> = (0..500).map(|_| driver.apply(script.step())).collect();
            (events, driver.drain(), driver.inspect())
        };
        assert_eq!(run(), run(), "{} seed {seed}", factory.name);
    });
}

#[test]
fn attributes_are_shown_as_set_and_unknown_ones_refused() {
    for factory in registry::ALL {
        let mut driver = Driver::of(factory, 4096, "");
        assert_eq!(driver.attribute("no_such_attribute"), None);
        for attribute in factory.attributes {
            for value in [attribute.min, 1, attribute.default.min(1_000)] {
                let value = value.clamp(attribute.min, attribute.max);
                driver.set(attribute.name, value);
                assert_eq!(driver.attribute(attribute.name), Some(value), "{}", attribute.name);
            }
        }
    }
}
