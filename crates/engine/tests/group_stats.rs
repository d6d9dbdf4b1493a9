//! Statistics of groups through a whole queue, exact whenever they are counted: the notes of a run, the times of
//! requests whichever thread reads them, and the group behind which another one waited.

use crate::common;
use crate::common::{assert_at_rest, config, replan, shape, ways};
use blkmq_core::{GroupId, GroupIndex, Instant, IoFlags, Nanos, Op, Owner};
use blkmq_engine::{
    Config, GroupTree, Io, IoTimes, Plan, Promise, Queue, StatsMode, Submitter, WriteCache,
};
use blkmq_sched::{FloorCause, FloorState, Options, Reading, StatsLevel, registry};

fn stats(level: StatsLevel, inline: bool) -> StatsMode {
    StatsMode { level, inline, ..StatsMode::default() }
}

/// A queue with bfq and the groups `top`, and `a` and `b` below it. The device takes 100 us per request.
fn grouped(
    stats: StatsMode,
    change: impl Fn(&mut Config<u32>),
) -> (Queue<u32>, Vec<Submitter<u32>>) {
    let (config, device) = config(shape(1, 8));
    device.with(|c| c.service = Some(Nanos::from_micros(100)));
    let mut groups = GroupTree::default();
    for (name, parent) in [("top", "/"), ("a", "top"), ("b", "top")] {
        groups.add(name, parent).expect("free");
    }
    let bfq = registry::find("bfq").expect("registered");
    let mut config = Config { submitters: 2, depth: 32, groups, stats, ..config }.scheduler(bfq);
    change(&mut config);
    let queue = Queue::new(config).expect("valid");
    let submitters = (0..2).map(|_| queue.submitter().expect("there are two")).collect();
    (queue, submitters)
}

fn id(queue: &Queue<u32>, name: &str) -> GroupId {
    queue.plan().groups.find(name).expect("there")
}

/// Each of two submitters, in groups `a` and `b`, does `ios` reads and writes of 4 KiB.
fn work(queue: &Queue<u32>, submitters: &mut [Submitter<u32>], now: &mut Instant, ios: u64) {
    let groups = [id(queue, "a"), id(queue, "b")];
    for n in 0..ios {
        for (at, submitter) in submitters.iter_mut().enumerate() {
            let op = if n % 4 == 0 { Op::Write } else { Op::Read };
            let sector = ((at as u64) << 20) | (n * 1024);
            let io = Io::new(op, sector, 8, n, n as u32);
            let io = Io { owner: Owner(at as u32), group: groups[at], ..io };
            submitter.push(*now, io).expect("there is credit");
            submitter.flush(*now);
        }
        *now += Nanos::from_micros(20);
        while submitters.iter().any(|submitter| submitter.in_flight() > 16) {
            turn(submitters, now);
        }
    }
    while submitters.iter().any(|submitter| submitter.in_flight() > 0) {
        turn(submitters, now);
    }
}

fn turn(submitters: &mut [Submitter<u32>], now: &mut Instant) {
    poll_all(submitters, *now);
    *now += Nanos::from_micros(20);
}

fn flow(queue: &Queue<u32>, group: GroupId, name: &str) -> [u64; 3] {
    match queue.group_stat(group, name) {
        Some(Reading::Flow(flow)) => [flow.read, flow.write, flow.total()],
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn counts_are_exact_whenever_they_are_made_and_however_the_elevator_is_reached() {
    for (access, modes) in ways() {
        for inline in [false, true] {
            let (queue, mut submitters) = grouped(stats(StatsLevel::Full, inline), |c| {
                (c.access, c.modes) = (access, modes);
            });
            let mut now = Instant::ZERO;
            work(&queue, &mut submitters, &mut now, 200);
            assert_at_rest(&queue, 1);
            let (top, a) = (id(&queue, "top"), id(&queue, "a"));
            let at = format!("{access} {modes:?}, inline: {inline}");
            assert_eq!(flow(&queue, a, "io_serviced"), [150, 50, 200], "{at}");
            assert_eq!(
                flow(&queue, a, "io_service_bytes"),
                [150 << 12, 50 << 12, 200 << 12],
                "{at}"
            );
            assert_eq!(flow(&queue, top, "io_serviced"), [0; 3], "{at}");
            assert_eq!(flow(&queue, top, "io_serviced_recursive"), [300, 100, 400], "{at}");
            assert_eq!(flow(&queue, a, "io_queued"), [0; 3], "{at}");
            assert_eq!(queue.group_stat(a, "sectors"), Some(Reading::Number(1600)), "{at}");
            let [.., served] = flow(&queue, a, "io_service_time");
            assert!(served >= 200 * 100_000, "{at}: {served}");
        }
    }
}

#[test]
fn levels_change_at_run_time_and_off_counts_nothing() {
    let (queue, mut submitters) = grouped(StatsMode::default(), |_| {});
    let mut now = Instant::ZERO;
    work(&queue, &mut submitters, &mut now, 50);
    let a = id(&queue, "a");
    assert_eq!(flow(&queue, a, "io_serviced"), [0; 3]);
    for (level, counted) in [("basic", 40), ("full", 80), ("off", 80)] {
        let mut change = queue.set_attribute("blkmq/group_stats", level).expect("possible");
        while !change.step(now) {}
        work(&queue, &mut submitters, &mut now, 40);
        assert_eq!(flow(&queue, a, "io_serviced")[2], counted, "{level}");
    }
    assert_eq!(queue.group_stat(a, "nothing"), None);
    assert_eq!(queue.group_stat(GroupId::new(GroupIndex(77), 1), "time"), None);
}

#[test]
fn a_group_that_goes_away_while_busy_leaves_its_numbers_to_its_parent() {
    let (queue, mut submitters) = grouped(stats(StatsLevel::Full, false), |_| {});
    let mut now = Instant::ZERO;
    work(&queue, &mut submitters, &mut now, 40);
    let (top, a) = (id(&queue, "top"), id(&queue, "a"));
    // Some of the group's own I/Os are in flight.
    for n in 0..10 {
        let io = Io { group: a, ..Io::new(Op::Read, n * 2048, 8, n, 0) };
        submitters[0].push(now, io).expect("there is credit");
    }
    submitters[0].flush(now);
    let mut plan: Plan = queue.plan();
    plan.groups.remove("a").expect("nothing is below it");
    let mut change = replan(&queue, plan).expect("possible");
    while !change.step(now) {}
    while submitters[0].in_flight() > 0 {
        turn(&mut submitters, &mut now);
    }
    assert_eq!(queue.group_stat(a, "io_serviced"), None);
    let [.., here] = flow(&queue, top, "io_serviced");
    let [.., below] = flow(&queue, top, "io_serviced_recursive");
    assert_eq!((here, below), (50, 90), "40 of a, 10 that came back later; and 40 of b");
    assert_at_rest(&queue, 1);
}

#[test]
fn what_is_not_counted_yet_outlives_the_elevator_that_noted_it_down() {
    let (queue, mut submitters) = grouped(stats(StatsLevel::Full, false), |_| {});
    let mut now = Instant::ZERO;
    let a = id(&queue, "a");
    for (n, nr_requests) in [(1, "32"), (2, "64"), (3, "128")] {
        // Too few passes for a thread to have moved the notes.
        work(&queue, &mut submitters, &mut now, 2);
        let mut change = queue.set_attribute("queue/nr_requests", nr_requests).expect("possible");
        while !change.step(now) {}
        assert_eq!(flow(&queue, a, "io_serviced")[2], 2 * n);
    }
}

#[test]
fn what_is_not_counted_yet_is_not_that_of_a_group_with_the_same_number() {
    let (queue, mut submitters) = grouped(stats(StatsLevel::Full, false), |_| {});
    let mut now = Instant::ZERO;
    let (top, a) = (id(&queue, "top"), id(&queue, "a"));
    work(&queue, &mut submitters, &mut now, 2);
    let alter = |alter: &dyn Fn(&mut Plan)| {
        let mut plan = queue.plan();
        alter(&mut plan);
        let mut change = replan(&queue, plan).expect("possible");
        while !change.step(now) {}
    };
    alter(&|plan| {
        plan.groups.remove("a").expect("nothing is below it");
        while plan.groups.add("c", "/").expect("free").index() != a.index() {
            plan.groups.remove("c").expect("nothing is below it");
        }
    });
    assert_eq!(flow(&queue, id(&queue, "c"), "io_serviced")[2], 0);
    assert_eq!(queue.group_stat(a, "io_serviced"), None, "the other one's numbers are not its own");
    assert_eq!(flow(&queue, top, "io_serviced")[2], 2);
}

#[test]
fn requests_are_counted_under_every_scheduler() {
    for scheduler in ["none", "mq-deadline", "kyber", "bfq"] {
        for (access, modes) in ways() {
            let (queue, mut submitters) = grouped(stats(StatsLevel::Basic, false), |c| {
                let scheduler = registry::find(scheduler).expect("it is registered");
                (c.access, c.modes) = (access, modes);
                (c.scheduler, c.options) = (scheduler, Options::defaults(scheduler.attributes));
                c.nr_requests = (scheduler.name != "none").then_some(64);
            });
            let mut now = Instant::ZERO;
            work(&queue, &mut submitters, &mut now, 100);
            let at = format!("{scheduler} {access} {modes:?}");
            let [a, top] = ["a", "top"].map(|name| queue.group_io(id(&queue, name)));
            let [a, top] = [a, top].map(|io| io.expect("the group is there"));
            assert_eq!((a.ios.read, a.ios.write, a.ios.discard), (75, 25, 0), "{at}");
            assert_eq!((a.bytes.read, a.bytes.write), (75 << 12, 25 << 12), "{at}");
            assert_eq!(top.ios.total(), 200, "{at}: of all below it");
            assert!(a.service.total() >= 100 * 100_000, "{at}: {a:?}");
            assert_eq!(queue.group_io(GroupId::new(GroupIndex(77), 1)), None, "{at}");
        }
    }
}

#[test]
fn merges_are_counted_for_the_group_whose_they_are() {
    for scheduler in ["mq-deadline", "bfq"] {
        let (queue, mut submitters) = grouped(stats(StatsLevel::Basic, false), |c| {
            let scheduler = registry::find(scheduler).expect("it is registered");
            (c.scheduler, c.options) = (scheduler, Options::defaults(scheduler.attributes));
            // One request at the device, so that the others wait and merge.
            c.device.hw_queue_depth = 1;
            c.nr_requests = Some(16);
        });
        let mut now = Instant::ZERO;
        let b = id(&queue, "b");
        // In descending order, so that the plug does not merge them.
        for n in (0..10).rev() {
            let io = Io::new(Op::Write, n * 8, 8, n, n as u32);
            submitters[0].push(now, Io { group: b, ..io }).expect("there is credit");
            submitters[0].flush(now);
        }
        while submitters[0].in_flight() > 0 {
            turn(&mut submitters, &mut now);
        }
        let io = queue.group_io(b).expect("it is there");
        assert_eq!(io.bytes.write, 10 << 12, "{scheduler}");
        assert_eq!(io.ios.write + io.merged.write, 10, "{scheduler}: {io:?}");
        assert!(io.merged.write >= 8, "{scheduler}: {io:?}");
    }
}

/// Two floors of 100 I/Os per second on a device that does 100: each gets half, and lacks half. The numbers survive a
/// rebuild of the queue, and those of a removed group go to its parent.
#[test]
fn floors_that_are_not_kept_are_counted_by_group() {
    let (base, device) = config(shape(1, 1));
    let mut groups = GroupTree::default();
    for name in ["a", "b"] {
        groups.add(name, "/").expect("free");
        let promise = Promise::default().set("reserve_iops=100 overcommit=1").expect("right");
        groups.set_promise(name, promise).expect("there");
    }
    let mclock = registry::find("mclock").expect("registered");
    let options = Options::parse(mclock.attributes, "rrandiops=100,rbps=1000000000");
    let base = Config { groups, depth: 32, nr_requests: Some(16), ..base.scheduler(mclock) };
    let queue = Queue::new(Config { options: options.expect("right"), ..base }).expect("valid");
    let mut submitter = queue.submitter().expect("there is one");
    let [a, b] = ["a", "b"].map(|name| id(&queue, name));
    let (mut now, mut pushed) = (Instant::ZERO, 0_u64);
    let mut run = |hundredths: u32| {
        for _ in 0..hundredths {
            while submitter.in_flight() < 16 {
                let group = if pushed.is_multiple_of(2) { a } else { b };
                let io = Io::new(Op::Read, pushed * 64 % (1 << 20), 8, pushed, 0);
                submitter.push(now, Io { group, ..io }).expect("there is credit");
                pushed += 1;
            }
            submitter.flush(now);
            now += Nanos::from_millis(10);
            device.finish(1);
            submitter.poll(now);
            submitter.reap(u32::MAX, |done| assert_eq!(done.result, Ok(())));
        }
        now
    };
    run(300);
    let before = queue.times();
    let now = run(1_000);
    let times = queue.times();
    for group in [a, b] {
        let lacks = times.shortfall(group) - before.shortfall(group);
        assert!(lacks.abs_diff(5_000_000_000) < 200_000_000, "{group:?} lacks {lacks}");
    }
    for (_, report) in &times.floors {
        assert_eq!(
            (report.state, report.cause()),
            (FloorState::Infeasible, Some(FloorCause::Infeasible))
        );
        assert!(report.missed >= 12 && report.seconds == report.missed, "{report:?}");
        assert!(
            report.least.abs_diff(500_000) < 20_000 && report.best / 10_000 == 50,
            "{report:?}"
        );
    }
    assert_eq!(times.floors.len(), 2);
    let mut plan = queue.plan();
    plan.nr_requests = Some(5);
    plan.groups.remove("b").expect("there");
    let mut change = replan(&queue, plan).expect("possible");
    while !change.step(now) {
        device.finish(1);
        queue.poll(now);
        submitter.poll(now);
        submitter.reap(u32::MAX, |_| {});
    }
    let after = queue.times();
    assert_eq!(after.shortfall(b), 0);
    assert!(after.shortfall(GroupId::ROOT) >= times.shortfall(b), "{after:?}");
    assert!(after.shortfall(a) >= times.shortfall(a), "{after:?}");
}

const SERVICE: Nanos = Nanos::from_micros(100);

fn push(submitter: &mut Submitter<u32>, now: Instant, group: u16, n: u64) {
    let op = if n.is_multiple_of(4) { Op::Write } else { Op::Read };
    let io = Io::new(op, (u64::from(group) << 20) | (n * 1024), 8, n, n as u32);
    let io = Io { owner: Owner(group.into()), group: common::group(group), ..io };
    submitter.push(now, io).expect("there is credit");
    submitter.flush(now);
}

fn short_turn(submitters: &mut [Submitter<u32>], now: &mut Instant) {
    poll_all(submitters, *now);
    *now += Nanos::from_micros(10);
}

/// Each of two submitters, in groups 1 and 2, does `ios` reads and writes of 4 KiB.
fn push_and_finish(submitters: &mut [Submitter<u32>], now: &mut Instant, ios: u64) {
    for n in 0..ios {
        for (at, submitter) in submitters.iter_mut().enumerate() {
            push(submitter, *now, at as u16 + 1, n);
        }
        while submitters.iter().any(|submitter| submitter.in_flight() > 16) {
            short_turn(submitters, now);
        }
    }
    while submitters.iter().any(|submitter| submitter.in_flight() > 0) {
        short_turn(submitters, now);
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
            push_and_finish(&mut submitters, &mut now, 200);
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
                    short_turn(&mut submitters, &mut now);
                }
            }
            while submitters.iter().any(|submitter| submitter.in_flight() > 0) {
                short_turn(&mut submitters, &mut now);
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
        short_turn(&mut submitters, &mut now);
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
            short_turn(&mut submitters, &mut now);
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
                short_turn(submitters, now);
            }
        };
    let mut before = [0; 4];
    for (round, name) in (1u64..).zip(["bfq", "none", "kyber", "mq-deadline"]) {
        push_and_finish(&mut submitters, &mut now, 40);
        let factory = registry::find(name).expect("registered");
        change(&|plan| *plan = plan.clone().scheduler(factory), &mut submitters, &mut now);
        let counted = counts(&queue.times().all());
        assert!(counted.iter().zip(before).all(|(now, before)| *now >= before), "{name}");
        assert_eq!(counted.iter().sum::<u64>(), round * 80, "{name}");
        before = counted;
    }
    change(&|plan| plan.stats.times = false, &mut submitters, &mut now);
    push_and_finish(&mut submitters, &mut now, 40);
    assert_eq!(counts(&queue.times().all()), before, "it is off");
    change(&|plan| plan.stats.times = true, &mut submitters, &mut now);
    push_and_finish(&mut submitters, &mut now, 40);
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
        short_turn(&mut submitters, &mut now);
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
        short_turn(&mut submitters, &mut now);
    }
    let times = queue.times();
    assert_eq!(counts(&times.group(common::group(1))), [0, 0, 0, 2]);
    assert_eq!(counts(&times.group(common::group(2))), [0, 1, 0, 0]);
    assert_eq!(times.flushes, queue.stats().flushes.issued);
    assert_eq!(times.flush_time, times.flushes * SERVICE.0);
}

const LONG_SERVICE: Nanos = Nanos::from_millis(10);

const A: u16 = 1;

const B: u16 = 2;

/// Group `group` reads 4 KiB at a separate place, through its own submitter.
fn read(submitters: &mut [Submitter<u32>], now: Instant, group: u16, n: u64) {
    let io = Io::new(Op::Read, (u64::from(group) << 20) | (n * 1024), 8, n, n as u32);
    let io = Io { owner: Owner(group.into()), group: common::group(group), ..io };
    let submitter = &mut submitters[usize::from(group) - 1];
    submitter.push(now, io).expect("there is credit");
    submitter.flush(now);
    // The submitter may have left its I/O to the other one, which has run the elevator lately.
    poll_all(submitters, now);
}

fn poll_all(submitters: &mut [Submitter<u32>], now: Instant) {
    for submitter in submitters {
        submitter.poll(now);
        submitter.reap(u32::MAX, |done| assert!(done.result.is_ok()));
    }
}

/// Runs until nothing is in flight, with a pass every `step`.
fn finish(submitters: &mut [Submitter<u32>], now: &mut Instant, step: Nanos) {
    while submitters.iter().any(|submitter| submitter.in_flight() > 0) {
        *now += step;
        poll_all(submitters, *now);
    }
}

/// Milliseconds by pair, which must be whole.
fn waits(queue: &Queue<u32>) -> Vec<(u16, Option<u16>, u64)> {
    let one = |wait: blkmq_engine::Wait| {
        assert_eq!(wait.time.0 % 1_000_000, 0, "{wait:?}");
        (wait.waiting.0, wait.behind.map(|group| group.0), wait.time.0 / 1_000_000)
    };
    queue.waits().into_iter().map(one).collect()
}

/// Nanoseconds for which reads of a group waited before the device, summed over requests.
fn before_device(queue: &Queue<u32>, group: u16) -> u64 {
    let reads = &queue.times().group(common::group(group))[0];
    reads.slot + reads.policy + reads.tag
}

#[test]
fn a_group_waits_behind_the_group_at_the_device_and_behind_itself() {
    let (queue, mut submitters) = common::grouped(LONG_SERVICE, "mq-deadline", 1, |_| {});
    let mut now = Instant::from_nanos(5);
    read(&mut submitters, now, A, 0);
    read(&mut submitters, now, B, 0);
    read(&mut submitters, now, B, 1);
    assert_eq!(queue.waits(), [], "no time has passed");
    // The wait in progress is not reported yet.
    finish(&mut submitters, &mut now, LONG_SERVICE);
    assert_eq!(waits(&queue), [(B, Some(A), 10), (B, Some(B), 10)]);
    // An idle time, and I/Os that go to the device immediately.
    now += Nanos::from_secs(5);
    read(&mut submitters, now, A, 1);
    finish(&mut submitters, &mut now, LONG_SERVICE);
    assert_eq!(waits(&queue), [(B, Some(A), 10), (B, Some(B), 10)]);
    assert_at_rest(&queue, 1);
}

#[test]
fn time_is_divided_by_the_requests_at_the_device() {
    let (queue, mut submitters) = common::grouped(LONG_SERVICE, "none", 4, |_| {});
    let mut now = Instant::ZERO;
    (0..3).for_each(|n| read(&mut submitters, now, A, n));
    (0..2).for_each(|n| read(&mut submitters, now, B, n));
    finish(&mut submitters, &mut now, LONG_SERVICE);
    let all = queue.waits();
    let of = |at: usize| (all[at].waiting.0, all[at].behind, all[at].time);
    assert_eq!(of(0), (B, Some(GroupIndex(A)), Nanos(LONG_SERVICE.0 / 4 * 3)));
    assert_eq!(of(1), (B, Some(GroupIndex(B)), Nanos(LONG_SERVICE.0 / 4)));
    assert_eq!(all.len(), 2);
}

/// A tenant with one I/O at a time beside one with many: the sum over all `behind` groups is the time for which its I/O
/// waited, wherever it did.
#[test]
fn the_time_of_a_group_is_that_in_which_its_io_waited() {
    // With few slots, I/Os wait in staging or, under policies that share by group, in the lobby.
    for nr_requests in [64, 4] {
        for scheduler in ["none", "mq-deadline", "kyber", "bfq", "mclock"] {
            let (queue, mut submitters) =
                common::grouped(LONG_SERVICE, scheduler, 2, |c| c.nr_requests = Some(nr_requests));
            let mut now = Instant::ZERO;
            let (mut flood, mut one) = (0, 0);
            while one < 40 {
                while submitters[0].in_flight() < 32 {
                    read(&mut submitters, now, A, flood);
                    flood += 1;
                }
                if submitters[1].in_flight() == 0 {
                    read(&mut submitters, now, B, one);
                    one += 1;
                }
                now += Nanos::from_millis(2);
                poll_all(&mut submitters, now);
            }
            finish(&mut submitters, &mut now, Nanos::from_millis(2));
            let at = format!("{scheduler}, {nr_requests} slots");
            let all = queue.waits();
            let of = |group: u16| all.iter().filter(move |wait| wait.waiting == GroupIndex(group));
            let sum: u64 = of(B).map(|wait| wait.time.0).sum();
            assert_eq!(sum, before_device(&queue, B), "{at}: {all:?}");
            assert!(sum > 0, "{at}");
            let behind = |group, other: u16| {
                let found = of(group).find(|wait| wait.behind == Some(GroupIndex(other)));
                found.map_or(0, |wait| wait.time.0)
            };
            // Its only I/O never waits behind itself.
            assert_eq!(behind(B, B), 0, "{at}: {all:?}");
            assert!(behind(A, A) > behind(A, B), "{at}: {all:?}");
            assert!(of(A).map(|wait| wait.time.0).sum::<u64>() <= now.as_nanos(), "{at}");
            assert_at_rest(&queue, 1);
        }
    }
}

#[test]
fn a_policy_that_keeps_the_device_idle_is_no_group() {
    // bfq idles for the next I/O of the process in service, and holds back those of other processes.
    let (queue, mut submitters) = common::grouped(LONG_SERVICE, "bfq", 1, |_| {});
    let mut now = Instant::ZERO;
    for n in 0..20 {
        read(&mut submitters, now, A, n);
        read(&mut submitters, now, B, n);
        finish(&mut submitters, &mut now, Nanos::from_millis(1));
    }
    let idle = queue.waits().into_iter().filter(|wait| wait.behind.is_none());
    assert!(idle.map(|wait| wait.time.0).sum::<u64>() > 0, "{:?}", queue.waits());
}

#[test]
fn nothing_is_accounted_for_while_nothing_is_counted_and_what_was_stays() {
    let (queue, mut submitters) = common::grouped(LONG_SERVICE, "mq-deadline", 1, |_| {});
    let mut now = Instant::ZERO;
    let both = |submitters: &mut [Submitter<u32>], now: &mut Instant| {
        read(submitters, *now, A, 0);
        read(submitters, *now, B, 0);
        finish(submitters, now, LONG_SERVICE);
    };
    both(&mut submitters, &mut now);
    let before = waits(&queue);
    assert_eq!(before, [(B, Some(A), 10)]);
    let mut plan = queue.plan();
    plan.stats.times = false;
    let mut change = replan(&queue, plan.clone()).expect("possible");
    while !change.step(now) {
        poll_all(&mut submitters, now);
    }
    both(&mut submitters, &mut now);
    assert_eq!(waits(&queue), before);
    // A removed group leaves its time to its parent.
    plan.stats.times = true;
    plan.groups.remove("a").expect("it is there");
    let mut change = replan(&queue, plan).expect("possible");
    while !change.step(now) {
        poll_all(&mut submitters, now);
    }
    assert_eq!(waits(&queue), [(B, Some(0), 10)]);
}
