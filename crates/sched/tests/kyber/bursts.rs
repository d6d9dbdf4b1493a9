//! `adaptive=2` in virtual time: writes that leave in bursts, so that reads have the device to themselves in between;
//! and the properties of the gate, for whichever reason it is closed.

use super::common::{Fleet, driver, governed, ms, us};
use super::load::{Load, Scene, Seen};
use blkmq_core::{Instant, Nanos, Op};
use blkmq_sched::Pick;

/// A device that serves one request at a time, and takes forty times as long for a write as for a read: one write at
/// a time is too many.
const SLOW: Scene = Scene { ways: 1, service: [us(75), ms(3)], loops: [1, 64] };
/// The values with the period of bursts, and with the time until which only reads leave.
const PERIOD: usize = 4;
const ALONE_UNTIL: usize = 5;

fn settled(options: &str, scene: Scene) -> (Load, [Seen; 2]) {
    let mut load = Load::new(scene, options);
    load.run(Nanos::from_secs(20));
    let seen = load.run(Nanos::from_secs(10));
    (load, seen)
}

#[test]
fn where_one_write_at_a_time_is_too_many_bursts_leave_nearly_all_reads_alone() {
    let (_, [throttled, _]) = settled("adaptive=1", SLOW);
    let (load, [reads, writes]) = settled("adaptive=2", SLOW);
    let target = load.driver.env().values()[0];
    assert!(throttled.device(90).0 > 8 * target, "one at a time: {:?}", throttled.device(90));
    assert!(reads.device(90).0 <= target, "{:?}", reads.device(90));
    assert!(reads.total(99).0 * 4 <= target * 7, "{:?}", reads.total(99));
    assert!(reads.count() > 5 * throttled.count(), "{} reads", reads.count());
    // A write now and then, whatever its effect on reads.
    let period = load.driver.env().values()[PERIOD];
    assert!(writes.count() >= 100, "{} writes, one in {period} ns", writes.count());
}

#[test]
fn who_does_not_say_so_has_no_bursts() {
    for options in ["", "adaptive=1"] {
        let (load, _) = settled(options, SLOW);
        assert_eq!(load.driver.env().values()[PERIOD], 0, "'{options}'");
    }
}

#[test]
fn where_giving_way_is_enough_there_are_no_bursts() {
    let scene = Scene { ways: 2, service: [us(40), us(40)], loops: [2, 64] };
    let (load, [_, writes]) = settled("adaptive=2", scene);
    let (_, [_, same]) = settled("adaptive=1", scene);
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
    // When reads come, they are measured first.
    load.scene.loops = [1, 4];
    load.run(Nanos::from_secs(3));
    let base = governed(load.driver.env(), "read_base");
    assert!((us(75).0..us(120).0).contains(&base), "{base}");
}

/// Instances with writes that leave once in 10 ms, and with this many tokens.
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
