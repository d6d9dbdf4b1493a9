//! The governor's rules without a device: 500 samples of chosen latencies per domain, and their effect on the tokens
//! (`mod.rs` has the rules that the list of section 8 names). Also the governor and the instances against their twins,
//! under loads that last long enough for percentiles, many reviews, and several measurements of `adaptive`.
//!
//! Also the promises of `adaptive` in `doc/kyber.md`, in virtual time: it succeeds where configured targets fail. The
//! figures of the table there are from these scenes, and `the_table_of_the_page` prints them. With `adaptive=2`, writes
//! leave in bursts, so that reads have the device to themselves in between. The gate is tested for each reason why it
//! is closed.

use super::{
    Fleet, Load, Scene, Seen, TOKENS, driver, factory, governed, ms, review, serve, serve_enough,
    us,
};
use crate::naive;
use blkmq_core::{Instant, IoMeta, Nanos, Op, Owner, Rng};
use blkmq_sched::testkit::{Driver, FakeDevice, LocalEnv};
use blkmq_sched::{At, Options, Pick};
use std::collections::BTreeSet;

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

const ADAPTIVE: &str = "adaptive=1";

/// A disk array with a write cache: reads cannot meet 2 ms, and writes easily meet 10.
const ARRAY: Scene = Scene { ways: 8, service: [ms(8), us(500)], loops: [4, 4] };
/// Fast flash, a few readers and a flood of writes: 66 requests at a time take less than 2 ms.
const FLASH: Scene = Scene { ways: 2, service: [us(40), us(40)], loops: [2, 64] };
/// A flood of reads alone.
const FLOOD: Scene = Scene { ways: 16, service: [us(100), us(100)], loops: [512, 0] };
/// A remote volume of a thousand disks.
const WIDE: Scene = Scene { ways: 1_000, service: [ms(10), ms(10)], loops: [1_000, 0] };

/// Measures for one second, after `seconds` to settle.
fn settled(scene: Scene, options: &str, seconds: u64) -> (Load, [Seen; 2]) {
    let mut load = Load::new(scene, options);
    load.run(Nanos::from_secs(seconds));
    let seen = load.run(Nanos::from_secs(1));
    (load, seen)
}

/// Asserts that the table of the page has this row, word for word.
fn assert_on_page(name: &str, (load, [reads, writes]): &(Load, [Seen; 2])) {
    let rounded = |n: u64| format!("{}.{:02}", n / 100, n % 100);
    let millis = |span: Nanos| rounded((span.0 + 5_000) / 10_000);
    let thousands = |seen: &Seen| match seen.count() {
        0 => "-".into(),
        n => rounded((n + 5) / 10),
    };
    let depths = load.driver.env().tokens();
    let row = format!(
        "| {name} | {} | {} / {} | {} | {} | {} | {} |",
        millis(Nanos(target(load))),
        depths[0],
        depths[1],
        thousands(reads),
        millis(reads.device(90)),
        millis(reads.total(99)),
        thousands(writes),
    );
    let page = blkmq_sched::registry::page("kyber").expect("it is registered");
    assert!(page.contains(&row), "the page lacks this row:\n{row}");
}

fn target(load: &Load) -> u64 {
    load.driver.env().values()[0]
}

/// Asserts, as the page states, that 90 of 100 reads are at the device for no longer than 5/4 of the target.
fn assert_met(load: &Load, reads: &Seen) {
    let (p90, target) = (reads.device(90).0, target(load));
    assert!(p90 * 4 <= target * 5, "{p90} ns against {target}");
}

/// Asserts, as the page states, that the target of reads is 4 to 5 times the 90th percentile of reads alone.
fn assert_learned(load: &Load, alone: Nanos) {
    let (alone, target) = (alone.0, target(load));
    assert!((4 * alone..=5 * alone).contains(&target), "{target} with {alone} alone");
}

/// The 90th percentile of a read that takes `service` plus or minus a quarter.
fn tail_of(service: Nanos) -> Nanos {
    Nanos(service.0 * 120 / 100)
}

#[test]
fn a_target_out_of_reach_throttles_writes_to_one_and_a_learned_one_does_not() {
    let fixed = settled(ARRAY, "", 6);
    assert_on_page("array, set", &fixed);
    let learned = settled(ARRAY, ADAPTIVE, 6);
    assert_on_page("array, learned", &learned);
    let ((_, [reads, writes]), (load, [reads_too, more])) = (fixed, learned);
    assert_eq!(load.driver.env().tokens()[1], 128);
    assert!(more.count() * 10 >= writes.count() * 35, "{} and {}", more.count(), writes.count());
    assert!(reads_too.count() * 100 >= reads.count() * 98);
    assert_learned(&load, tail_of(ms(8)));
    assert_met(&load, &reads_too);
}

#[test]
fn a_target_too_long_protects_nobody_and_a_learned_one_does() {
    let fixed = settled(FLASH, "", 2);
    assert_on_page("flash, set", &fixed);
    let learned = settled(FLASH, ADAPTIVE, 2);
    assert_on_page("flash, learned", &learned);
    let ((_, [reads, writes]), (load, [quick, fewer])) = (fixed, learned);
    assert_learned(&load, tail_of(us(40)));
    assert_met(&load, &quick);
    assert!(quick.total(99).0 * 5 <= reads.total(99).0);
    assert!(quick.count() >= 5 * reads.count());
    // The device is as busy as before.
    let both = |a: &Seen, b: &Seen| a.count() + b.count();
    assert!(both(&quick, &fewer) * 100 >= both(&reads, &writes) * 99);
}

#[test]
fn a_flood_of_reads_gives_way_to_its_own_target_and_loses_nothing() {
    let fixed = settled(FLOOD, "", 1);
    assert_on_page("flood, set", &fixed);
    let learned = settled(FLOOD, ADAPTIVE, 2);
    assert_on_page("flood, learned", &learned);
    let ((_, [all, _]), (load, [reads, _])) = (fixed, learned);
    assert_learned(&load, tail_of(us(100)));
    assert_met(&load, &reads);
    assert!(reads.device(90).0 * 5 <= all.device(90).0 * 2);
    assert!(reads.count() * 100 >= all.count() * 99);
    assert!(load.driver.env().tokens()[0] <= 120);
}

#[test]
fn depth_grows_beyond_what_it_is_at_first_where_the_device_has_room() {
    let fixed = settled(WIDE, "", 1);
    assert_on_page("wide, set", &fixed);
    // 64 times 0.2 ms is the limit.
    let learned = settled(WIDE, "adaptive=1,read_lat_nsec=200000", 4);
    assert_eq!(target(&learned.0), us(12_800).0);
    assert_on_page("wide, learned", &learned);
    let ((_, [all, _]), (load, [reads, _])) = (fixed, learned);
    assert!(load.driver.env().tokens()[0] > 512);
    assert!(reads.count() >= 2 * all.count(), "{} and {}", reads.count(), all.count());
}

#[test]
fn congestion_of_our_own_never_makes_a_target_longer() {
    for (scene, alone) in [(FLOOD, us(100)), (FLASH, us(40))] {
        let mut load = Load::new(scene, ADAPTIVE);
        load.run(Nanos::from_secs(1));
        let first = target(&load);
        assert_learned(&load, tail_of(alone));
        for _ in 0..6 {
            // The load doubles in each round, up to the number of slots.
            load.scene.loops = load.scene.loops.map(|n| (2 * n).min(512));
            load.run(ms(500));
            assert!(target(&load) <= first);
            assert_eq!(governed(load.driver.env(), "measuring"), 0);
        }
    }
}

#[test]
fn measured_anew_while_it_is_flooded_the_device_looks_as_it_does_alone() {
    let mut load = Load::new(FLOOD, "");
    load.run(Nanos::from_secs(1));
    // 256 requests are in the device, and as many wait.
    load.driver.set("adaptive", 1);
    // OTHER keeps its tokens until there is a review, which its own I/O does not trigger.
    assert_eq!(load.driver.env().tokens(), [1, 1, 1, 16]);
    load.run(ms(200));
    assert_eq!(load.driver.env().tokens(), [1; 4]);
    load.run(Nanos::from_secs(1));
    assert_learned(&load, tail_of(us(100)));
}

#[test]
fn a_device_that_becomes_slower_is_measured_anew_and_one_that_recovers_is_found_out() {
    let mut load = Load::new(FLASH, ADAPTIVE);
    // The first pause must be over.
    load.scene.loops = [1, 1];
    load.run(Nanos::from_secs(11));
    assert_learned(&load, tail_of(us(40)));
    load.scene = Scene { service: [us(400), us(400)], ..FLASH };
    // The change is found after 16 verdicts. Reads are few, so some verdicts take a second.
    load.run(Nanos::from_secs(16));
    assert_learned(&load, tail_of(us(400)));
    let [reads, _] = load.run(Nanos::from_secs(4));
    assert_met(&load, &reads);
    load.scene = FLASH;
    // The second pause is 20 s.
    load.run(Nanos::from_secs(6));
    assert_learned(&load, tail_of(us(40)));
    let [reads, _] = load.run(Nanos::from_secs(1));
    assert_met(&load, &reads);
}

#[test]
fn a_device_that_flaps_is_measured_less_and_less_often() {
    let mut load = Load::new(Scene { loops: [4, 8], ..ARRAY }, ADAPTIVE);
    let mut measured = 0;
    for tenth in 0..4_000 {
        // The device is ten times as slow for seven seconds out of ten.
        let slow = tenth % 100 < 70;
        load.scene.service = [us(if slow { 20_000 } else { 2_000 }); 2];
        let before = governed(load.driver.env(), "measuring");
        load.run(ms(100));
        measured += governed(load.driver.env(), "measuring").saturating_sub(before);
    }
    assert_eq!(governed(load.driver.env(), "measure_pause"), Nanos::from_secs(80).0);
    // Measurements begin after 10, 20 and 40 seconds, and then every 80.
    assert!((5..=8).contains(&measured), "{measured} times in 400 seconds");
}

#[test]
fn learned_targets_stay_within_a_factor_of_those_that_are_set() {
    let quick = Scene { ways: 1, service: [Nanos(700), Nanos(700)], loops: [1, 0] };
    let slow = Scene { ways: 1, service: [ms(900), ms(900)], loops: [1, 0] };
    for (scene, secs, expected) in
        [(quick, 1, [31_250, 156_250]), (slow, 12, [128_000_000, 640_000_000])]
    {
        let mut load = Load::new(scene, ADAPTIVE);
        load.run(Nanos::from_secs(secs));
        assert_eq!(governed(load.driver.env(), "measuring"), 0);
        assert_eq!(load.driver.env().values()[..2], expected);
    }
}

#[test]
fn writes_have_as_much_more_than_reads_as_is_set_and_never_less_than_they_take() {
    let scene = Scene { ways: 4, service: [us(100), us(100)], loops: [1, 1] };
    let mut load = Load::new(scene, "adaptive=1,write_lat_nsec=3000000");
    load.run(Nanos::from_secs(1));
    let [read, write, discard, since, ..] = load.driver.env().values()[..] else { panic!() };
    assert_eq!((write, discard, since), (read * 3 / 2, read * 2_500, 0));
    let scene = Scene { service: [us(100), ms(2)], ..scene };
    let mut load = Load::new(scene, ADAPTIVE);
    load.run(Nanos::from_secs(1));
    let values = load.driver.env().values();
    assert_eq!(values[1], 4 * governed(load.driver.env(), "write_base"));
    assert!(values[1] > 5 * values[0]);
}

#[test]
fn set_to_zero_it_is_as_if_it_had_never_been_set() {
    let (mut load, _) = settled(FLASH, ADAPTIVE, 1);
    load.driver.set("adaptive", 0);
    assert_eq!(load.driver.env().tokens(), TOKENS);
    assert_eq!(load.driver.env().values(), [2_000_000, 10_000_000, 5_000_000_000, 0, 0, 0]);
    assert!(load.driver.env().inspect().iter().all(|(name, _)| *name != "measuring"));
}

/// A device that serves one request at a time, and takes forty times as long for a write as for a read: one write at
/// a time is too many.
const SLOW: Scene = Scene { ways: 1, service: [us(75), ms(3)], loops: [1, 64] };
/// The indices of the values with the period of bursts, and with the time until which only reads leave.
const PERIOD: usize = 4;
const ALONE_UNTIL: usize = 5;

fn with_bursts(options: &str, scene: Scene) -> (Load, [Seen; 2]) {
    let mut load = Load::new(scene, options);
    load.run(Nanos::from_secs(20));
    let seen = load.run(Nanos::from_secs(10));
    (load, seen)
}

#[test]
fn where_one_write_at_a_time_is_too_many_bursts_leave_nearly_all_reads_alone() {
    let (_, [throttled, _]) = with_bursts("adaptive=1", SLOW);
    let (load, [reads, writes]) = with_bursts("adaptive=2", SLOW);
    let target = load.driver.env().values()[0];
    assert!(throttled.device(90).0 > 8 * target, "one at a time: {:?}", throttled.device(90));
    assert!(reads.device(90).0 <= target, "{:?}", reads.device(90));
    assert!(reads.total(99).0 * 4 <= target * 7, "{:?}", reads.total(99));
    assert!(reads.count() > 5 * throttled.count(), "{} reads", reads.count());
    // Writes still leave, whatever their effect on reads.
    let period = load.driver.env().values()[PERIOD];
    assert!(writes.count() >= 100, "{} writes, one in {period} ns", writes.count());
}

#[test]
fn who_does_not_say_so_has_no_bursts() {
    for options in ["", "adaptive=1"] {
        let (load, _) = with_bursts(options, SLOW);
        assert_eq!(load.driver.env().values()[PERIOD], 0, "'{options}'");
    }
}

#[test]
fn where_giving_way_is_enough_there_are_no_bursts() {
    let scene = Scene { ways: 2, service: [us(40), us(40)], loops: [2, 64] };
    let (load, [_, writes]) = with_bursts("adaptive=2", scene);
    let (_, [_, same]) = with_bursts("adaptive=1", scene);
    assert_eq!(load.driver.env().values()[PERIOD], 0);
    assert_eq!(writes.count(), same.count());
}

#[test]
fn without_reads_nobody_waits_for_a_burst() {
    let mut load = Load::new(SLOW, "adaptive=2");
    load.run(Nanos::from_secs(10));
    assert!(load.driver.env().values()[PERIOD] > 0);
    load.scene.loops = [0, 64];
    // The remaining reads are judged within a second.
    load.run(Nanos::from_secs(2));
    assert_eq!(load.driver.env().values()[PERIOD], 0);
    let [_, writes] = load.run(Nanos::from_secs(3));
    assert!(writes.count() >= 990, "{} writes of 3 ms in 3 s", writes.count());
    load.scene.loops = [1, 64];
    load.run(Nanos::from_secs(2));
    let [reads, _] = load.run(Nanos::from_secs(3));
    let target = load.driver.env().values()[0];
    assert!(reads.device(90).0 <= target, "back at once: {:?}", reads.device(90));
}

#[test]
fn while_reads_are_measured_nothing_else_leaves() {
    let mut load = Load::new(SLOW, "adaptive=1");
    let mut alone = 0;
    for _ in 0..100 {
        let before = load.driver.env().values()[ALONE_UNTIL];
        let now = load.driver.now().as_nanos();
        let [reads, writes] = load.run(ms(10));
        if now + ms(10).0 <= before && load.driver.env().values()[ALONE_UNTIL] > 0 {
            alone += 1;
            // One write may have been in the device before.
            assert!(
                writes.count() <= 1 && reads.count() > 80,
                "{} {}",
                reads.count(),
                writes.count()
            );
        }
    }
    assert!(alone > 5, "{alone} looks");
    // So the time of reads alone is known, in spite of the writes.
    let base = governed(load.driver.env(), "read_base");
    assert!((us(75).0..us(120).0).contains(&base), "{base}");
}

#[test]
fn nobody_is_held_back_for_reads_that_do_not_come() {
    let mut load = Load::new(Scene { loops: [0, 4], ..SLOW }, "adaptive=1");
    let [_, writes] = load.run(Nanos::from_secs(2));
    assert!(writes.count() >= 500, "{} writes of 3 ms in 2 s", writes.count());
    assert_eq!(governed(load.driver.env(), "measuring"), 0);
    // When reads arrive, they are measured first.
    load.scene.loops = [1, 4];
    load.run(Nanos::from_secs(3));
    let base = governed(load.driver.env(), "read_base");
    assert!((us(75).0..us(120).0).contains(&base), "{base}");
}

/// Instances with a period of bursts of 10 ms, and with this many tokens.
fn bursts(instances: usize, tokens: u32) -> Fleet {
    let mut fleet = Fleet::new(instances, "adaptive=2");
    fleet.env.set_value(PERIOD, ms(10).0);
    fleet.env.set_tokens(1, tokens);
    fleet.now = Instant::ZERO + ms(42);
    fleet
}

#[test]
fn a_burst_is_what_there_are_tokens_for_at_one_moment() {
    let mut fleet = bursts(1, 3);
    (0..9).for_each(|_| _ = fleet.insert(0, Op::Write).expect("a slot"));
    let first = [(); 3].map(|()| fleet.pick(0));
    assert!(first.iter().all(|pick| matches!(pick, Pick::Issue(_))), "{first:?}");
    fleet.now += us(1);
    let Pick::Issue(rq) = first[0] else { unreachable!() };
    fleet.complete(rq);
    // There is a token again, but it is not the time for a burst.
    let next = Instant::ZERO + ms(50);
    assert_eq!(fleet.pick(0), Pick::WaitUntil(next));
    fleet.insert(0, Op::Read).expect("a slot");
    assert!(matches!(fleet.pick(0), Pick::Issue(_)), "reads have no such time");
    fleet.now = next;
    assert!(matches!(fleet.pick(0), Pick::Issue(_)));
    assert_eq!(fleet.pick(0), Pick::WaitToken, "two are still in the device");
}

#[test]
fn who_got_no_token_in_a_burst_gets_the_first_that_comes_back() {
    let mut fleet = bursts(2, 1);
    for nth in [0, 0, 1] {
        fleet.insert(nth, Op::Write).expect("a slot");
    }
    let Pick::Issue(rq) = fleet.pick(0) else { panic!("the first one has a token") };
    assert_eq!(fleet.pick(1), Pick::WaitToken);
    fleet.now += ms(3);
    fleet.complete(rq);
    assert!(matches!(fleet.pick(0), Pick::WaitUntil(_)), "it has had its burst");
    assert!(matches!(fleet.pick(1), Pick::Issue(_)));
}

#[test]
fn instances_begin_their_bursts_together_and_a_late_one_has_its_own() {
    let mut fleet = bursts(2, 8);
    for nth in [0, 0, 1, 1] {
        fleet.insert(nth, Op::Write).expect("a slot");
    }
    assert!(matches!(fleet.pick(0), Pick::Issue(_)));
    fleet.now += ms(5);
    assert_eq!(fleet.pick(0), Pick::WaitUntil(Instant::ZERO + ms(50)));
    assert!(matches!(fleet.pick(1), Pick::Issue(_)), "it was not looked at before");
    fleet.now = Instant::ZERO + ms(50);
    assert!(matches!((fleet.pick(0), fleet.pick(1)), (Pick::Issue(_), Pick::Issue(_))));
}

#[test]
fn a_queue_that_is_drained_waits_for_no_burst() {
    let mut d = driver("adaptive=2");
    d.env().set_value(ALONE_UNTIL, ms(500).0);
    d.insert(Op::Write, 0);
    d.insert(Op::WriteZeroes, 8);
    assert_eq!(d.pick(), Pick::WaitUntil(Instant::ZERO + ms(500)));
    d.env().set_draining(true);
    assert!(matches!((d.pick(), d.pick()), (Pick::Issue(_), Pick::Issue(_))));
}
