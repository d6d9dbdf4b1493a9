//! The governor and the instances against their twins under loads that last long enough for percentiles, for many
//! reviews, and for `adaptive` to measure, to learn and to find that it has to measure anew.

use super::common::{factory, ms};
use crate::naive;
use blkmq_core::{IoMeta, Nanos, Op, Owner, Rng};
use blkmq_sched::testkit::{Driver, FakeDevice, LocalEnv};
use blkmq_sched::{At, Options, Pick};
use std::collections::BTreeSet;

const SLOTS: u32 = 512;

fn pair(options: &str) -> [Driver; 2] {
    let (twin, common) = naive::twin("kyber").expect("it has one");
    let options = Options::parse(factory().attributes, options).expect("valid options");
    let shape = Driver::shape(SLOTS);
    let of = |policy, common| {
        let env = LocalEnv::sharing(common, factory(), &shape, &options);
        Driver::with_env(policy, SLOTS, env)
    };
    [of((factory().build)(&shape, &options), factory().common), of(twin(&shape, &options), common)]
}

/// The speed and the load of the device, for a while.
struct Weather {
    device: FakeDevice,
    service: [u64; 4],
    /// The most requests that wait or are in the device.
    most: usize,
    /// The most nanoseconds between bursts.
    pause: u64,
}

impl Weather {
    fn draw(rng: &mut Rng) -> Self {
        let mut service = || 8_000 << rng.below(13);
        Self {
            service: [service(), service(), service(), service()],
            device: FakeDevice::new(1 << rng.below(7)),
            most: 1 << (3 + rng.below(6)),
            pause: 1 << (20 + rng.below(7)),
        }
    }
}

fn draw_op(rng: &mut Rng) -> Op {
    match rng.below(20) {
        0 => Op::WriteZeroes,
        1 | 2 => Op::Discard,
        3..=9 => Op::Write,
        _ => Op::Read,
    }
}

/// The state that is compared after every step.
fn state(d: &Driver) -> impl PartialEq + std::fmt::Debug {
    let env = d.env();
    (env.tokens(), env.values(), env.inspect(), env.due(), d.inspect())
}

/// The events of a run.
#[derive(Default)]
struct Happened {
    /// Steps at which tokens changed.
    changes: usize,
    /// Measurements that began.
    measurements: usize,
    /// Steps at which the period of bursts changed.
    periods: usize,
}

/// Runs a seed.
fn run(seed: u64, options: &str) -> Happened {
    let mut rng = Rng::new(seed);
    let [mut policy, mut twin] = pair(options);
    let mut weather = Weather::draw(&mut rng);
    let mut finished = BTreeSet::new();
    let mut happened = Happened::default();
    let mut outstanding = 0;
    for step in 0..3_000 {
        if rng.chance(1, 1_000) {
            weather = Weather::draw(&mut rng);
        }
        let at = format!("seed {seed} options '{options}' step {step}");
        let before = policy.env();
        let (tokens, values) = (before.tokens(), before.values());
        while outstanding < weather.most {
            outstanding += 1;
            let owner = Owner(rng.below(100) as u32);
            let meta = IoMeta { owner, ..IoMeta::new(draw_op(&mut rng), 8 * rng.below(64), 8) };
            let rqs = [&mut policy, &mut twin].map(|d| d.insert_meta(meta, At::Tail));
            assert_eq!(rqs[0], rqs[1], "{at}");
        }
        loop {
            let picks = [&mut policy, &mut twin].map(Driver::pick);
            assert_eq!(picks[0], picks[1], "{at}");
            let Pick::Issue(rq) = picks[0] else { break };
            let domain = policy.meta(rq).op as usize % 4;
            let service = weather.service[domain] * (75 + rng.below(50)) / 100;
            finished.insert((weather.device.accept(policy.now(), Nanos(service)), rq));
        }
        assert_eq!(state(&policy), state(&twin), "{at}");
        let after = policy.env().values();
        happened.changes += usize::from(policy.env().tokens() != tokens);
        happened.measurements += usize::from(after[3] != 0 && values[3] == 0);
        happened.periods += usize::from(after[4] != values[4]);
        let pause = Nanos(rng.below(weather.pause));
        for d in [&mut policy, &mut twin] {
            d.advance(pause);
        }
        // At least one request comes back, so that the run continues.
        let first = finished.first().map_or(policy.now(), |(when, _)| *when);
        let wait = first - policy.now();
        for d in [&mut policy, &mut twin] {
            d.advance(wait);
        }
        while let Some((when, rq)) = finished.first().copied()
            && when <= policy.now()
        {
            finished.pop_first();
            let requeue = rng.chance(1, 64);
            outstanding -= usize::from(!requeue);
            for d in [&mut policy, &mut twin] {
                if requeue { d.requeue(rq) } else { d.complete(rq) }
            }
        }
    }
    happened
}

/// The same with drawn targets; every third seed keeps the defaults.
fn run_with(seed: u64, options: &str) -> Happened {
    let mut rng = Rng::new(!seed);
    let mut target = || 30_000u64 << rng.below(12);
    let drawn = format!("read_lat_nsec={},write_lat_nsec={},{options}", target(), target());
    run(seed, if seed.is_multiple_of(3) { options } else { &drawn })
}

#[test]
fn the_governor_decides_as_its_twin_does() {
    for options in ["", "linux_quirks=1"] {
        let changes: usize = (0..16).map(|seed| run_with(seed, options).changes).sum();
        assert!(changes > 50, "{changes} changes prove little");
    }
}

#[test]
fn the_learner_decides_as_its_twin_does() {
    let (mut changes, mut measurements, mut periods) = (0, 0, 0);
    for seed in 0..36 {
        let options = ["adaptive=1", "adaptive=1,linux_quirks=1", "adaptive=2"];
        let run = run_with(seed, options[seed as usize % 3]);
        changes += run.changes;
        measurements += run.measurements;
        periods += run.periods;
    }
    assert!(changes > 200, "{changes} changes prove little");
    assert!(measurements > 1, "{measurements} new measurements prove little");
    assert!(periods > 50, "{periods} changes of the period prove little");
}

#[test]
fn switching_under_load_leaves_nothing_behind() {
    let [mut policy, mut twin] = pair("adaptive=1");
    for round in 0..40 {
        for d in [&mut policy, &mut twin] {
            for i in 0..SLOTS {
                d.insert([Op::Read, Op::Write][i as usize % 2], 8);
            }
            let first = d.issue();
            d.set("adaptive", (round / 3) % 3);
            d.set("linux_quirks", round % 2);
            d.advance(ms(50));
            d.complete(first);
            assert_eq!(d.drain().len(), SLOTS as usize - 1);
        }
        assert_eq!(state(&policy), state(&twin), "round {round}");
    }
    policy.set("adaptive", 0);
    assert_eq!(policy.env().tokens(), super::common::TOKENS);
    assert_eq!(policy.env().values(), [2_000_000, 10_000_000, 5_000_000_000, 0, 0, 0]);
}
