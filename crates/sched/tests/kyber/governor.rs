//! The governor's rules without a device: 500 samples of chosen latencies per domain, and their effect on the tokens
//! (`section8.rs` has the rules that the list names). Also the governor and the instances against their twins, under
//! loads that last long enough for percentiles, many reviews, and several measurements of `adaptive`.

use super::section8::{review, serve, serve_enough};
use super::{TOKENS, factory, governed, ms, us};
use crate::naive;
use blkmq_core::{IoMeta, Nanos, Op, Owner, Rng};
use blkmq_sched::testkit::{Driver, FakeDevice, LocalEnv};
use blkmq_sched::{At, Options, Pick};
use std::collections::BTreeSet;

fn driver(options: &str) -> Driver {
    super::driver(options)
}

/// A latency in the middle of a bucket of reads.
fn in_bucket(bucket: u64) -> Nanos {
    us(500 * bucket + 250)
}

#[test]
fn during_congestion_each_percentile_has_its_factor() {
    // 64 tokens become 1 to 8 quarters of 64.
    for bucket in 0..8 {
        let mut d = driver("");
        d.env().set_tokens(0, 64);
        serve_enough(&mut d, Op::Read, in_bucket(bucket));
        serve_enough(&mut d, Op::Write, ms(20));
        review(&mut d);
        assert_eq!(d.env().tokens()[0], 16 * (bucket as u32 + 1), "p99 in bucket {bucket}");
    }
}

#[test]
fn without_congestion_only_those_who_are_late_get_more() {
    for bucket in 0..8 {
        let mut d = driver("");
        d.env().set_tokens(0, 64);
        // Half of the requests wait in the scheduler as long as the others are in the device.
        let rounds = 500 / 64 + 1;
        for _ in 0..rounds {
            (0..64).for_each(|i| {
                d.insert(Op::Read, 8 * i);
            });
            d.advance(in_bucket(bucket));
            let issued: Vec<_> = (0..64).map(|_| d.issue()).collect();
            issued.into_iter().for_each(|rq| d.complete(rq));
        }
        review(&mut d);
        let expected = if bucket < 4 { 64 } else { 16 * (bucket as u32 + 1) };
        assert_eq!(d.env().tokens()[0], expected, "p99 in bucket {bucket}");
    }
}

#[test]
fn depth_stays_between_one_and_what_it_was_at_first() {
    let mut d = driver("");
    for expected in [64, 16, 4, 1, 1] {
        serve_enough(&mut d, Op::Read, us(100));
        serve_enough(&mut d, Op::Write, ms(20));
        review(&mut d);
        assert_eq!(d.env().tokens(), [expected, 128, 64, 16]);
    }
    // Latency in the device itself brings the tokens back, by doubling.
    for expected in [2, 4, 8, 16, 32, 64, 128, 256, 256] {
        serve_enough(&mut d, Op::Read, ms(4));
        review(&mut d);
        assert_eq!(d.env().tokens()[0], expected);
    }
}

#[test]
fn congestion_is_a_tenth_of_the_requests_above_the_target() {
    for (late, congested) in [(49, false), (50, false), (51, true)] {
        let mut d = driver("");
        serve_enough(&mut d, Op::Read, us(100));
        (0..4).for_each(|_| serve(&mut d, Op::Write, 100, ms(1)));
        serve(&mut d, Op::Write, 100 - late, ms(1));
        serve(&mut d, Op::Write, late, ms(11));
        review(&mut d);
        assert_eq!(d.env().tokens()[0] < 256, congested, "{late} of 500 late");
    }
}

#[test]
fn discards_have_a_target_of_five_seconds_and_others_none() {
    let mut d = driver("");
    serve_enough(&mut d, Op::Read, us(100));
    serve(&mut d, Op::Discard, 1, ms(5_001));
    serve(&mut d, Op::WriteZeroes, 16, ms(60_000));
    review(&mut d);
    assert_eq!(d.env().tokens(), TOKENS, "one sample is none, for a second");
    d.advance(ms(1_000));
    serve(&mut d, Op::Discard, 1, ms(5_001));
    serve_enough(&mut d, Op::Read, us(100));
    review(&mut d);
    assert_eq!(d.env().tokens(), [64, 128, 64, 16]);
}

#[test]
fn others_bring_no_review() {
    let mut d = driver("");
    serve(&mut d, Op::WriteZeroes, 16, ms(1));
    assert_eq!(d.env().due(), None);
    serve(&mut d, Op::Discard, 1, ms(1));
    let due = d.env().due().expect("a discard is measured");
    assert_eq!(due - d.now(), ms(100));
    // A later completion does not postpone the review.
    d.advance(ms(50));
    serve(&mut d, Op::Read, 1, ms(1));
    assert_eq!(d.env().due(), Some(due));
}

/// The numbers of the reviews, ten a second, with a percentile of total latency, for a few requests at a time.
fn reviews_with_a_percentile(options: &str, reviews: usize) -> Vec<usize> {
    let mut d = driver(options);
    let mut found = Vec::new();
    for nth in 0..reviews {
        let before = governed(d.env(), "read_total_samples");
        serve(&mut d, Op::Read, 10, us(100));
        review(&mut d);
        if governed(d.env(), "read_total_samples") < before + 10 {
            found.push(nth);
        }
    }
    found
}

#[test]
fn with_linux_quirks_a_trickle_is_judged_every_five_hundred_samples_and_otherwise_every_second() {
    // Reviews are 100.1 ms apart, and the timeout of a second begins with the first one.
    assert_eq!(reviews_with_a_percentile("", 60), [10, 21, 32, 43, 54]);
    assert_eq!(reviews_with_a_percentile("linux_quirks=1", 120), [49, 99]);
}

#[test]
fn targets_take_effect_with_the_next_sample() {
    let mut d = driver("read_lat_nsec=1000000");
    assert_eq!(d.env().values()[..3], [1_000_000, 10_000_000, 5_000_000_000]);
    d.set("write_lat_nsec", 4_000);
    d.set("read_lat_nsec", 0);
    assert_eq!(d.env().values()[..3], [0, 4_000, 5_000_000_000]);
    // Buckets are one nanosecond wide, so every request is late.
    d.env().set_tokens(0, 64);
    serve_enough(&mut d, Op::Read, Nanos(9));
    review(&mut d);
    assert_eq!(d.env().tokens()[0], 128);
}

#[test]
fn a_target_out_of_reach_throttles_the_others_for_nothing() {
    // The weakness that `adaptive` addresses: reads cannot do better than 8 ms, whatever writes do.
    let mut d = driver("");
    for _ in 0..5 {
        serve_enough(&mut d, Op::Read, ms(8));
        serve_enough(&mut d, Op::Write, ms(1));
        review(&mut d);
    }
    assert_eq!(d.env().tokens()[..2], [256, 1]);
}

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
        // At least one request completes, so that the run continues.
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

/// Runs a seed with drawn targets. Every third seed keeps the defaults.
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
    assert_eq!(policy.env().tokens(), TOKENS);
    assert_eq!(policy.env().values(), [2_000_000, 10_000_000, 5_000_000_000, 0, 0, 0]);
}
