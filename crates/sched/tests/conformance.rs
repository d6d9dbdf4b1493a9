//! The contract of `Scheduler`, for every line of the registry.
//!
//! `conformance` draws scripts and is meant for policies elsewhere as well; the tests here add the states that chance
//! does not reach.

use blkmq_core::{IoMeta, Nanos, Op};
use blkmq_sched::testkit::{Driver, conformance};
use blkmq_sched::{At, registry};

const SEEDS: u64 = 300;

#[test]
fn random_scripts_keep_the_contract_and_lose_nothing() {
    for factory in registry::ALL {
        let (mut picked, mut withdrawn) = (0, 0);
        for seed in 0..SEEDS {
            let outcome = conformance(factory, seed);
            picked += outcome.picked;
            withdrawn += outcome.withdrawn;
        }
        assert!(picked > 1000 && withdrawn > 1000, "{}: {picked}, {withdrawn}", factory.name);
    }
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
