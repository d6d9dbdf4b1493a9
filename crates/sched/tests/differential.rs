//! Every policy of the registry against its naive twin, decision by decision; and the contract of `Scheduler` for each.
//!
//! The seed draws options, workload and steps. On a difference the message names the seed, the options and the step.
//! `ONE_SEED` below reruns that seed alone.
//!
//! `conformance` draws scripts, also for policies of other crates. The tests here add the states that chance misses.

use crate::naive;
use blkmq_core::{Class, IoMeta, IoPrio, Nanos, Op, Owner, Rng};
use blkmq_sched::testkit::{Driver, Event, LocalEnv, Script, Step, conformance};
use blkmq_sched::{At, Factory, Options, PLUG, Pick, Shape, registry};
use std::fmt::Debug;
use std::thread;

/// Set to a seed to run only that one.
const ONE_SEED: Option<u64> = None;
const SEEDS: u64 = 600;
const STEPS: usize = 1_500;
/// Of this many steps, so many of the last are made while the queue is draining.
const DRAINING: (usize, usize) = (300, 50);

fn pair(factory: &Factory, shape: &Shape, options: &str) -> (Driver, Driver) {
    let (twin, common) = naive::twin(factory.name)
        .unwrap_or_else(|| panic!("{} has no twin in tests/naive", factory.name));
    let parsed = Options::parse(factory.attributes, options).expect("drawn from the table");
    let env = LocalEnv::sharing(common, factory, shape, &parsed);
    (
        Driver::of_shape(factory, shape, options),
        Driver::with_env(twin(shape, &parsed), shape.slots, env),
    )
}

/// The shared state, without counters, which differ between policy and twin.
fn shared(driver: &Driver) -> impl PartialEq + Debug {
    let env = driver.env();
    (env.inspect(), [env.tokens(), env.out()], env.due())
}

/// Every other seed has owners in groups, and every third a rotating device.
fn script(factory: &Factory, seed: u64) -> (Script, Shape) {
    let new = if seed.is_multiple_of(2) { Script::new } else { Script::with_tenants };
    let script = new(seed, factory.attributes);
    let shape = Driver::shape(1 << Rng::new(seed).below(8));
    (script, Shape { rotational: seed.is_multiple_of(3), ..shape })
}

/// Runs one seed. Returns the number of requests picked, and of picks without a request although some were held.
fn compare(factory: &Factory, seed: u64) -> (u32, u32) {
    let (mut script, shape) = script(factory, seed);
    let options = script.options();
    let (mut policy, mut twin) = pair(factory, &shape, &options);
    let (mut issued, mut refused) = (0, 0);
    // A separate generator, on which the scripts do not depend.
    let mut alone = Rng::new(seed ^ 0x616c_6f6e);
    for nth in 0..STEPS {
        let draining = nth % DRAINING.0 >= DRAINING.0 - DRAINING.1;
        [&policy, &twin].into_iter().for_each(|driver| driver.env().set_draining(draining));
        let step = script.step();
        let (got, expected) = match step {
            // The policy may issue a whole plug in one step.
            Step::Insert(meta, At::Tail) if policy.held().is_empty() && alone.chance(1, 3) => {
                let plug = plug_of(meta, &mut alone);
                let (got, expected) = (policy.admit(&plug), twin.admit(&plug));
                assert_eq!(got, expected, "{} seed {seed} step {nth}: {plug:?}", factory.name);
                (Event::Quiet, Event::Quiet)
            }
            // The twin inserts and then picks. The policy may do both in one step.
            Step::Insert(meta, At::Tail) if policy.held().is_empty() && alone.chance(1, 2) => {
                (alone_in(&mut policy, meta), alone_in(&mut twin, meta))
            }
            step => (policy.apply(step), twin.apply(step)),
        };
        let at = format!("{} seed {seed} options '{options}' step {nth}: {step:?}", factory.name);
        assert_eq!(got, expected, "{at}");
        assert_eq!(policy.inspect(), twin.inspect(), "{at}");
        assert_eq!(shared(&policy), shared(&twin), "{at}");
        match got {
            Event::Picked(Pick::Issue(_)) => issued += 1,
            Event::Picked(Pick::WaitUntil(_) | Pick::WaitCompletion | Pick::WaitToken) => {
                refused += 1;
            }
            _ => {}
        }
    }
    for attribute in factory.attributes {
        assert_eq!(policy.attribute(attribute.name), twin.attribute(attribute.name));
    }
    let asked = |driver: &Driver| (driver.facts().async_depth, driver.facts().front_merges);
    assert_eq!(asked(&policy), asked(&twin));
    assert_eq!(policy.drain(), twin.drain(), "{} seed {seed}: the order of the rest", factory.name);
    (issued, refused)
}

/// A plug of requests like `meta`, most of them at other sectors, and some of another kind.
fn plug_of(meta: IoMeta, rng: &mut Rng) -> Vec<IoMeta> {
    let mixed = rng.chance(1, 4);
    let one = |rng: &mut Rng| {
        let sector = if rng.chance(1, 8) { meta.sector } else { 8 * rng.below(512) };
        let op = if mixed && rng.chance(1, 2) { Op::Write } else { meta.op };
        let owner = if mixed && rng.chance(1, 8) { Owner(meta.owner.0 + 1) } else { meta.owner };
        let other = mixed && rng.chance(1, 8);
        let ioprio = if other { IoPrio::new(Class::Idle, 4) } else { Some(meta.ioprio) };
        IoMeta { sector, op, owner, ioprio: ioprio.expect("4 is a level"), ..meta }
    };
    let len = rng.below(PLUG as u64 + 1);
    (0..len).map(|_| one(rng)).collect()
}

/// Gives the policy a single request.
fn alone_in(driver: &mut Driver, meta: IoMeta) -> Event {
    driver.admit(&[meta]).first().map_or(Event::Quiet, |pick| Event::Picked(*pick))
}

fn decides_as_its_twin_does(factory: &Factory) {
    let seeds = ONE_SEED.map_or(0..SEEDS, |seed| seed..seed + 1);
    let issued: u32 = seeds.clone().map(|seed| compare(factory, seed).0).sum();
    let name = factory.name;
    assert!(u64::from(issued) > 100 * (seeds.end - seeds.start), "{name}: {issued} picks are few");
}

/// Every policy at the same time, each on a thread of its own, which bears its name.
#[test]
fn every_policy_decides_as_its_twin_does() {
    thread::scope(|scope| {
        for factory in registry::ALL {
            let one = thread::Builder::new().name(factory.name.into());
            one.spawn_scoped(scope, || decides_as_its_twin_does(factory)).expect("a few threads");
        }
    });
}

#[test]
fn the_scripts_reach_refusals_of_mq_deadline() {
    let factory = registry::find("mq-deadline").expect("it is registered");
    let refused: u32 = (0..SEEDS / 4).map(|seed| compare(factory, seed).1).sum();
    assert!(refused > 100, "only {refused} picks were refused");
}

/// The number of picks of other queues in a seed while the device is kept idle for the queue in service.
fn injected(seed: u64) -> u32 {
    let factory = registry::find("bfq").expect("it is registered");
    let (mut script, shape) = script(factory, seed);
    let options = script.options();
    let mut policy = Driver::of_shape(factory, &shape, &options);
    (0..STEPS).fold(0, |injected, _| {
        let issued = matches!(policy.apply(script.step()), Event::Picked(Pick::Issue(_)));
        // A pick from the queue in service ends the idling.
        injected + u32::from(issued && policy.shown("idling") == 1)
    })
}

#[test]
fn the_scripts_reach_the_injection_of_bfq() {
    let seeds = (0..200).filter(|seed| injected(*seed) >= 5).count();
    assert!(seeds >= 5, "only {seeds} seeds");
}

/// The number of seeds, of 200, that reach a state of `bfq` in which the counter `name` is at least `least`.
fn seeds_that_show(name: &str, least: u64) -> usize {
    let factory = registry::find("bfq").expect("it is registered");
    let shows = |seed: &u64| {
        let (mut script, shape) = script(factory, *seed);
        let options = script.options();
        let mut policy = Driver::of_shape(factory, &shape, &options);
        (0..STEPS).any(|_| {
            let _ = policy.apply(script.step());
            policy.shown(name) >= least
        })
    };
    (0..200).filter(shows).count()
}

#[test]
fn the_scripts_reach_what_bfq_is_about() {
    let states = [
        ("idling", 1),
        ("raised_busy", 2),
        ("serving_raised", 3_000),
        ("serving_in_burst", 1),
        ("serving_shared", 1),
        ("groups_pending", 3),
        ("idle_busy", 1),
        ("rt_busy", 1),
        ("queues", 10),
    ];
    for (name, least) in states {
        let seeds = seeds_that_show(name, least);
        assert!(seeds >= 5, "{name} of {least} or more: only {seeds} seeds");
    }
}

#[test]
fn no_twin_is_without_its_policy() {
    for (name, ..) in naive::TWINS {
        assert!(registry::find(name).is_some(), "twin '{name}' mimics nothing");
    }
}

#[test]
#[ignore = "takes a minute; cargo xtask soak runs it"]
fn mclock_decides_as_its_twin_does_in_ten_thousand_histories() {
    let factory = registry::find("mclock").expect("it is registered");
    let (issued, refused) = (0..10_000)
        .map(|seed| compare(factory, seed))
        .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    assert!(issued > 1_000_000 && refused > 100_000, "{issued} picks, {refused} refusals");
}

const CONFORMANCE_SEEDS: u64 = 300;

#[test]
fn random_scripts_keep_the_contract_and_lose_nothing() {
    for factory in registry::ALL {
        let (mut picked, mut withdrawn) = (0, 0);
        for seed in 0..CONFORMANCE_SEEDS {
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
