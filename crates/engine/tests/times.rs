//! Where the time of requests goes, through a whole queue: exact counts, whichever thread reads them, and whenever.

use crate::common;

use blkmq_core::{GroupIndex, Instant, IoFlags, Nanos, Op, Owner};
use blkmq_engine::{Io, IoTimes, Plan, Submitter, WriteCache};
use blkmq_sched::registry;
use common::{assert_at_rest, replan, ways};

const SERVICE: Nanos = Nanos::from_micros(100);

fn push(submitter: &mut Submitter<u32>, now: Instant, group: u16, n: u64) {
    let op = if n.is_multiple_of(4) { Op::Write } else { Op::Read };
    let io = Io::new(op, (u64::from(group) << 20) | (n * 1024), 8, n, n as u32);
    let io = Io { owner: Owner(group.into()), group: common::group(group), ..io };
    submitter.push(now, io).expect("there is credit");
    submitter.flush(now);
}

fn turn(submitters: &mut [Submitter<u32>], now: &mut Instant) {
    for submitter in submitters {
        submitter.poll(*now);
        submitter.reap(u32::MAX, |done| assert!(done.result.is_ok()));
    }
    *now += Nanos::from_micros(10);
}

/// Each of two submitters, in groups 1 and 2, does `ios` reads and writes of 4 KiB.
fn work(submitters: &mut [Submitter<u32>], now: &mut Instant, ios: u64) {
    for n in 0..ios {
        for (at, submitter) in submitters.iter_mut().enumerate() {
            push(submitter, *now, at as u16 + 1, n);
        }
        while submitters.iter().any(|submitter| submitter.in_flight() > 16) {
            turn(submitters, now);
        }
    }
    while submitters.iter().any(|submitter| submitter.in_flight() > 0) {
        turn(submitters, now);
    }
}

fn counts(of: &[IoTimes; 4]) -> [u64; 4] {
    of.each_ref().map(|times| times.ios)
}

/// Each distribution has each request once, and the stages add up.
fn assert_adds_up(of: &[IoTimes; 4], at: &str) {
    for times in of {
        for distribution in [&times.queue_times, &times.device_times, &times.total_times] {
            let all: u64 = distribution.buckets().map(|(_, count)| count).sum();
            assert_eq!(all, times.ios, "{at}");
        }
        let total = times.slot + times.policy + times.tag + times.device;
        let bound: u64 = times.total_times.buckets().map(|(end, count)| end * count).sum();
        assert!(total <= bound && bound <= total + total / 30 + times.ios, "{at}: {total} {bound}");
    }
}

#[test]
fn every_request_counts_once_however_the_elevator_is_reached() {
    for scheduler in ["none", "mq-deadline", "kyber", "bfq"] {
        for (access, modes) in ways() {
            let (queue, mut submitters) = common::grouped(SERVICE, scheduler, 8, |c| {
                (c.access, c.modes) = (access, modes);
            });
            let mut now = Instant::ZERO;
            work(&mut submitters, &mut now, 200);
            let times = queue.times();
            let at = format!("{scheduler} {access} {modes:?}");
            assert_eq!(times.busy_elevators, 0, "{at}");
            for group in [1, 2] {
                let of = times.group(common::group(group));
                assert_eq!(counts(&of), [150, 50, 0, 0], "{at}");
                assert_eq!(of.each_ref().map(|it| it.bytes), [150 << 12, 50 << 12, 0, 0], "{at}");
                assert_adds_up(&of, &at);
                assert!(of[0].device >= 150 * SERVICE.0, "{at}: {}", of[0].device);
            }
            assert_eq!(counts(&times.all()), [300, 100, 0, 0], "{at}");
            assert_eq!((times.reads_in_flight, times.others_in_flight), (0, 0), "{at}");
            assert_eq!(times.waiting, 0, "{at}");
            assert!(times.busy > 0 && times.busy <= now.as_nanos(), "{at}");
            assert_at_rest(&queue, 1);
        }
    }
}

/// As in Linux, an I/O that joined another in a plug counts as merged (fields 2 and 6 of a disk's `stat`). Regression
/// test: merges in plugs were missing, so fewer I/Os were counted than a client had done.
#[test]
fn each_io_is_a_request_or_merged_into_one_wherever_that_happens() {
    for scheduler in ["none", "mq-deadline", "kyber", "bfq"] {
        for (access, modes) in ways() {
            // The device takes two requests, so that later ones meet in the elevator.
            let (queue, mut submitters) = common::grouped(SERVICE, scheduler, 2, |c| {
                (c.access, c.modes) = (access, modes);
            });
            let mut now = Instant::ZERO;
            for n in 0..120u64 {
                for (at, submitter) in submitters.iter_mut().enumerate() {
                    let (group, op) = (at as u16 + 1, [Op::Read, Op::Write][at]);
                    // Plugs of 1, of 2 and of 3 I/Os, all adjacent except for a gap after every twelve.
                    let sector = (u64::from(group) << 20) | ((n + n / 12) * 8);
                    let io = Io::new(op, sector, 8, n, n as u32);
                    let io = Io { owner: Owner(group.into()), group: common::group(group), ..io };
                    submitter.push(now, io).expect("there is credit");
                    if matches!(n % 6, 0 | 2 | 5) {
                        submitter.flush(now);
                    }
                }
                while submitters.iter().any(|submitter| submitter.in_flight() > 32) {
                    turn(&mut submitters, &mut now);
                }
            }
            while submitters.iter().any(|submitter| submitter.in_flight() > 0) {
                turn(&mut submitters, &mut now);
            }
            let (times, stats) = (queue.times(), queue.stats());
            let at = format!("{scheduler} {access} {modes:?}");
            for (group, kind) in [(1, 0), (2, 1)] {
                let of = &times.group(common::group(group))[kind];
                assert_eq!(of.ios + of.merged, 120, "{at}: {} requests", of.ios);
                assert_eq!(of.bytes, 120 << 12, "{at}");
            }
            let merged: u64 = times.all().iter().map(|of| of.merged).sum();
            assert_eq!(merged, stats.merges.total(), "{at}");
            assert!(stats.merges.plug > 0 && merged > stats.merges.plug, "{at}: {stats:?}");
            assert_at_rest(&queue, 1);
        }
    }
}

#[test]
fn time_is_counted_where_it_passes() {
    // Eight I/Os together, a device that takes one, and four slots: 100 us each, one after the other.
    let (queue, mut submitters) =
        common::grouped(SERVICE, "mq-deadline", 1, |c| c.nr_requests = Some(4));
    let mut now = Instant::from_nanos(1_000_000);
    (0..8).for_each(|n| push(&mut submitters[0], now, 1, 4 * n + 1));
    let held = queue.times();
    assert_eq!((held.reads_in_flight, held.others_in_flight), (1, 0));
    assert_eq!(held.waiting, 3, "of those with slots; the others are in staging");
    while submitters[0].in_flight() > 0 {
        turn(&mut submitters, &mut now);
    }
    let times = queue.times();
    let reads = &times.group(common::group(1))[0];
    let us = |ns: u64| ns / 1000;
    // The first does not wait, and each of the others waits 100 us longer than its predecessor.
    assert_eq!(us(reads.device), 8 * 100);
    assert_eq!(us(reads.slot + reads.policy + reads.tag), (0..8).map(|n| n * 100).sum::<u64>());
    assert_eq!(us(reads.slot), (1..5).map(|n| n * 100).sum::<u64>(), "the last four");
    assert_eq!(us(reads.policy), 0, "it never had a choice");
    assert_eq!(us(times.busy), 8 * 100);
}

#[test]
fn an_idle_time_is_not_busy() {
    let (queue, mut submitters) = common::grouped(SERVICE, "none", 8, |_| {});
    let mut now = Instant::ZERO;
    for n in 0..10 {
        push(&mut submitters[0], now, 1, n);
        while submitters[0].in_flight() > 0 {
            turn(&mut submitters, &mut now);
        }
        now += Nanos::from_millis(1);
    }
    assert_eq!(queue.times().busy, 10 * SERVICE.0);
}

#[test]
fn numbers_stay_when_the_scheduler_is_switched_and_when_counting_ends() {
    let (queue, mut submitters) = common::grouped(SERVICE, "mq-deadline", 8, |_| {});
    let mut now = Instant::ZERO;
    let change =
        |edit: &dyn Fn(&mut Plan), submitters: &mut [Submitter<u32>], now: &mut Instant| {
            let mut plan = queue.plan();
            edit(&mut plan);
            let mut change = replan(&queue, plan).expect("possible");
            while !change.step(*now) {
                turn(submitters, now);
            }
        };
    let mut before = [0; 4];
    for (round, name) in (1u64..).zip(["bfq", "none", "kyber", "mq-deadline"]) {
        work(&mut submitters, &mut now, 40);
        let factory = registry::find(name).expect("registered");
        change(&|plan| *plan = plan.clone().scheduler(factory), &mut submitters, &mut now);
        let counted = counts(&queue.times().all());
        assert!(counted.iter().zip(before).all(|(now, before)| *now >= before), "{name}");
        assert_eq!(counted.iter().sum::<u64>(), round * 80, "{name}");
        before = counted;
    }
    change(&|plan| plan.stats.times = false, &mut submitters, &mut now);
    work(&mut submitters, &mut now, 40);
    assert_eq!(counts(&queue.times().all()), before, "it is off");
    change(&|plan| plan.stats.times = true, &mut submitters, &mut now);
    work(&mut submitters, &mut now, 40);
    assert_eq!(counts(&queue.times().all()).iter().sum::<u64>(), 5 * 80);
}

#[test]
fn slow_requests_are_listed_with_their_stages() {
    let (queue, mut submitters) = common::grouped(SERVICE, "mq-deadline", 1, |c| {
        c.stats.slow = Nanos::from_micros(250);
    });
    let mut now = Instant::ZERO;
    (0..4).for_each(|n| push(&mut submitters[0], now, 1, 4 * n + 1));
    while submitters[0].in_flight() > 0 {
        turn(&mut submitters, &mut now);
    }
    assert_eq!(counts(&queue.times().all()), [4, 0, 0, 0]);
    let (slow, lost) = queue.take_slow();
    assert_eq!(lost, 0);
    let sums = slow.iter().map(|io| (io.slot.0 + io.policy.0 + io.tag.0 + io.device.0) / 1000);
    assert_eq!(sums.collect::<Vec<_>>(), [300, 400], "the others took less");
    assert!(
        slow.iter().all(|io| io.group == GroupIndex(1) && io.op == Op::Read && io.sectors == 8)
    );
    assert_eq!(queue.take_slow().0, []);
}

#[test]
fn flushes_of_clients_and_of_the_device_are_counted_apart() {
    let (queue, mut submitters) = common::grouped(SERVICE, "mq-deadline", 8, |c| {
        c.device.cache = WriteCache::Back { fua: false };
    });
    let mut now = Instant::ZERO;
    for submitter in &mut submitters {
        let io = Io { group: common::group(1), ..Io::new(Op::Flush, 0, 0, 1, 1) };
        submitter.push(now, io).expect("there is credit");
        submitter.flush(now);
    }
    let io = Io { flags: IoFlags::FUA, group: common::group(2), ..Io::new(Op::Write, 8, 8, 2, 2) };
    submitters[0].push(now, io).expect("there is credit");
    submitters[0].flush(now);
    while submitters.iter().any(|submitter| submitter.in_flight() > 0) {
        turn(&mut submitters, &mut now);
    }
    let times = queue.times();
    assert_eq!(counts(&times.group(common::group(1))), [0, 0, 0, 2]);
    assert_eq!(counts(&times.group(common::group(2))), [0, 1, 0, 0]);
    assert_eq!(times.flushes, queue.stats().flushes.issued);
    assert_eq!(times.flush_time, times.flushes * SERVICE.0);
}
