//! Statistics of groups through a whole queue: the notes of a run are counted exactly, whenever they are counted.

use crate::common;

use blkmq_core::{GroupId, GroupIndex, Instant, Nanos, Op, Owner};
use blkmq_engine::{Config, GroupTree, Io, Plan, Promise, Queue, StatsMode, Submitter};
use blkmq_sched::{FloorCause, FloorState, Options, Reading, StatsLevel, registry};
use common::{assert_at_rest, config, replan, shape, ways};

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
    for submitter in submitters {
        submitter.poll(*now);
        submitter.reap(u32::MAX, |done| assert!(done.result.is_ok()));
    }
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
