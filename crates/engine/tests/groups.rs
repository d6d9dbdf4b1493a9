//! Groups: the limits of `io.max` under every scheduler, and the changes of the tree that schedulers are notified of.

use crate::common;

use blkmq_core::{GroupId, GroupIndex, Instant, IoError, Nanos, Op};
use blkmq_engine::{Config, GroupSpec, GroupTree, Io, IoMax, Plan, Queue, Submitter};
use blkmq_sched::{
    Cx, Factory, GroupChange, Observed, Observer, Options, Scheduler, Scope, Shape, none,
};
use common::{accesses, assert_at_rest, config, replan, shape};
use std::cell::RefCell;

fn tree(list: &[(&str, &str, &str)]) -> GroupTree {
    let wanted = |&(name, parent, max): &(&str, &str, &str)| GroupSpec {
        name: name.into(),
        parent: parent.into(),
        weight: 100,
        max: IoMax::default().set(max).expect("right"),
        ..GroupSpec::default()
    };
    GroupTree::of(list.iter().map(wanted).collect()).expect("a tree")
}

/// A queue with these groups around a device that completes immediately, and a submitter with a credit of 64.
fn grouped(groups: GroupTree, change: impl Fn(&mut Config<u32>)) -> (Queue<u32>, Submitter<u32>) {
    let (config, device) = config(shape(1, 64));
    device.with(|c| c.inline = true);
    let mut config = Config { groups, depth: 64, ..config };
    change(&mut config);
    let queue = Queue::new(config).expect("valid");
    let submitter = queue.submitter().expect("one was asked for");
    (queue, submitter)
}

fn io(op: Op, sector: u64, group: GroupId) -> Io<u32> {
    Io { group, ..Io::new(op, sector, 8, sector, sector as u32) }
}

fn set(queue: &Queue<u32>, now: Instant, edit: impl FnOnce(&mut GroupTree)) {
    let mut plan: Plan = queue.plan();
    edit(&mut plan.groups);
    let mut change = replan(queue, plan).expect("possible");
    while !change.step(now) {}
}

/// Keeps `in_flight` reads of each group in flight for a second, sleeping whenever that is allowed. Returns how many of
/// each group completed.
fn second(submitter: &mut Submitter<u32>, groups: &[GroupId], in_flight: u64) -> Vec<u64> {
    let begin = Instant::from_nanos(10_000_000_000);
    let (mut now, end) = (begin, begin + Nanos::from_secs(1));
    let (mut pushed, mut ended) = (vec![0; groups.len()], vec![0; groups.len()]);
    while now < end {
        for (at, group) in groups.iter().enumerate() {
            while pushed[at] - ended[at] < in_flight {
                let sector = (at as u64) << 32 | (pushed[at] * 64);
                submitter.push(now, io(Op::Read, sector, *group)).expect("there is credit");
                pushed[at] += 1;
            }
        }
        submitter.flush(now);
        submitter.poll(now);
        submitter.reap(u32::MAX, |done| ended[(done.cookie >> 32) as usize] += 1);
        let full = pushed.iter().zip(&ended).all(|(pushed, ended)| pushed - ended == in_flight);
        if full && submitter.prepare_park(now).is_some() {
            now = submitter.next_deadline().expect("something is to come").max(now);
            submitter.unpark();
        } else {
            now += Nanos::from_micros(100);
        }
    }
    // Waits for the I/Os that are still held back.
    while submitter.in_flight() > 0 {
        now += Nanos::from_millis(1);
        submitter.poll(now);
        submitter.reap(u32::MAX, |_| {});
    }
    ended
}

#[test]
fn a_limited_group_has_its_rate_and_the_others_do_not_wait_for_it() {
    for access in accesses() {
        let groups = tree(&[("a", "/", "riops=1000"), ("b", "/", "rbps=2048000"), ("c", "/", "")]);
        let ids = ["a", "b", "c"].map(|name| groups.find(name).expect("there"));
        let (queue, mut submitter) = grouped(groups, |c| c.access = access);
        let ended = second(&mut submitter, &ids, 8);
        // Within the slack of 10 ms.
        assert!((1000..=1011).contains(&ended[0]), "{access:?}: {ended:?}");
        assert!((500..=506).contains(&ended[1]), "{access:?}: {ended:?}");
        assert!(ended[2] > 5_000, "{access:?}: {ended:?}");
        assert!(queue.stats().throttled > 1000);
        assert_at_rest(&queue, 1);
    }
}

#[test]
fn groups_share_the_limit_of_the_group_above_them() {
    let groups = tree(&[("top", "/", "riops=900"), ("a", "top", ""), ("b", "top", "riops=300")]);
    let ids = ["a", "b"].map(|name| groups.find(name).expect("there"));
    let (_, mut submitter) = grouped(groups, |_| {});
    let ended = second(&mut submitter, &ids, 4);
    assert!((900..=912).contains(&(ended[0] + ended[1])), "{ended:?}");
    assert!(ended[1] <= 304, "{ended:?}");
}

#[test]
fn a_burst_exceeds_the_limit_by_its_credit() {
    let max = "iops=1000 burst=3 burst_length=0.25";
    let groups = tree(&[("a", "/", max), ("b", "a", ""), ("c", "/", "iops=1000")]);
    let ids = ["b", "c"].map(|name| groups.find(name).expect("there"));
    let (_, mut submitter) = grouped(groups, |_| {});
    let ended = second(&mut submitter, &ids, 8);
    // A quarter of a second at three times the limit, and the rest at the limit.
    assert!((1500..=1511).contains(&ended[0]), "{ended:?}");
    assert!((1000..=1011).contains(&ended[1]), "{ended:?}");
}

#[test]
fn what_is_held_back_keeps_its_order_and_can_be_given_up() {
    let groups = tree(&[("slow", "/", "wiops=10")]);
    let slow = groups.find("slow").expect("there");
    let (queue, mut submitter) = grouped(groups, |_| {});
    let mut now = Instant::from_nanos(1_000_000_000);
    for n in 0..6 {
        submitter.push(now, io(Op::Write, n * 64, slow)).expect("there is credit");
    }
    submitter.flush(now);
    submitter.cancel(now, 3 * 64);
    let mut ended = Vec::new();
    for _ in 0..7 {
        submitter.poll(now);
        submitter.reap(u32::MAX, |done| ended.push((done.cookie / 64, done.result)));
        assert!(submitter.prepare_park(now).is_some(), "there is nothing to do");
        submitter.unpark();
        now = submitter.next_deadline().unwrap_or(now);
    }
    let order = [
        (0, Ok(())),
        (3, Err(IoError::CANCELLED)),
        (1, Ok(())),
        (2, Ok(())),
        (4, Ok(())),
        (5, Ok(())),
    ];
    let mut sorted = ended.clone();
    sorted.sort_by_key(|(cookie, _)| order.iter().position(|(at, _)| at == cookie));
    assert_eq!(sorted, order);
    let done = ended.iter().filter(|(_, result)| result.is_ok()).map(|(cookie, _)| *cookie);
    assert_eq!(done.collect::<Vec<_>>(), [0, 1, 2, 4, 5]);
    // Four more I/Os, a tenth of a second each, less the slack.
    assert!(now.since(Instant::from_nanos(1_000_000_000)) >= Nanos::from_millis(390));
    assert_at_rest(&queue, 1);
}

/// Only the oldest I/O held back by a group's limits has a time; the next one gets its time when the oldest leaves.
/// Regression test: when the oldest was cancelled, the next one went at that time without being counted, so a group
/// could let small I/Os wait, cancel them, and send large ones at their price.
#[test]
fn what_is_given_up_does_not_pay_for_what_is_behind_it() {
    let groups = tree(&[("slow", "/", "wbps=512000")]);
    let slow = groups.find("slow").expect("there");
    let (_, mut submitter) = grouped(groups, |_| {});
    let begin = Instant::from_nanos(1_000_000_000);
    let write = |cookie: u64, sectors| {
        let at = cookie * 2000;
        Io { group: slow, ..Io::new(Op::Write, at, sectors, cookie, 0) }
    };
    // A second's worth, which goes immediately. Then, alternately, a small I/O, which is cancelled, and a large one.
    submitter.push(begin, write(0, 1000)).expect("there is credit");
    for n in 0..10 {
        submitter.push(begin, write(1 + 2 * n, 1)).expect("there is credit");
        submitter.push(begin, write(2 + 2 * n, 1000)).expect("there is credit");
    }
    submitter.flush(begin);
    let (mut now, mut ended) = (begin, Vec::new());
    for n in 0..10 {
        submitter.cancel(now, 1 + 2 * n);
        assert!(submitter.prepare_park(now).is_some() || submitter.has_completions(1));
        now = submitter.next_deadline().expect("the next one has a time").max(now);
        submitter.unpark();
        submitter.poll(now);
        submitter.reap(u32::MAX, |done| ended.push((done.cookie, done.result)));
    }
    let done = ended.iter().filter(|(_, result)| result.is_ok()).count();
    assert_eq!((done, ended.len()), (11, 21));
    let seconds = (now - begin).0 / 1_000_000_000;
    assert!(seconds >= 9, "11 seconds' worth took {seconds} s");
}

#[test]
fn a_limit_that_is_lifted_is_felt_at_once() {
    let groups = tree(&[("slow", "/", "riops=2")]);
    let slow = groups.find("slow").expect("there");
    let (queue, mut submitter) = grouped(groups, |_| {});
    let now = Instant::from_nanos(1_000_000_000);
    for n in 0..20 {
        submitter.push(now, io(Op::Read, n * 64, slow)).expect("there is credit");
    }
    submitter.flush(now);
    set(&queue, now, |tree| tree.set_max("slow", IoMax::default()).expect("there"));
    submitter.poll(now);
    assert_eq!(submitter.reap(u32::MAX, |done| assert!(done.result.is_ok())), 20);
    assert_at_rest(&queue, 1);
}

thread_local! {
    static HEARD: RefCell<Vec<GroupChange>> = const { RefCell::new(Vec::new()) };
}

/// `none`, which records the changes of groups that it is notified of.
static LISTENING: Factory = Factory {
    name: "listening",
    summary: "none, and it listens",
    scope: Scope::HwQueue,
    attributes: &[],
    common: None,
    build: |shape: &Shape, options: &Options| {
        Box::new(Observed::new((none::FACTORY.build)(shape, options), Listening))
    },
};

struct Listening;

impl Observer for Listening {
    fn regroup(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, change: GroupChange) {
        HEARD.with_borrow_mut(|heard| heard.push(change));
        policy.regroup(cx, change);
    }
}

#[test]
fn schedulers_hear_of_the_tree_when_they_are_built_and_of_every_change() {
    let (queue, _submitter) = grouped(tree(&[("b", "a", ""), ("a", "/", "")]), |c| {
        c.scheduler = &LISTENING;
        c.options = Options::defaults(&[]);
    });
    let heard = || HEARD.with_borrow_mut(std::mem::take);
    let (a, b) = (GroupIndex(1), GroupIndex(2));
    let added = |group, parent, weight| GroupChange::Added { group, parent, weight };
    assert_eq!(heard(), [added(a, GroupIndex::ROOT, 100), added(b, a, 100)]);
    let now = Instant::ZERO;
    set(&queue, now, |tree| tree.set_weight("b", 7).expect("there"));
    assert_eq!(heard(), [GroupChange::Weight { group: b, weight: 7 }]);
    set(&queue, now, |tree| {
        tree.remove("b").expect("nothing is below it");
        tree.add("c", "/").expect("free");
    });
    let c = GroupIndex(3);
    assert_eq!(heard(), [GroupChange::Removed { group: b }, added(c, GroupIndex::ROOT, 100)]);
    // Another depth needs another instance of the policy, which knows no groups yet.
    let mut change = queue.set_attribute("queue/nr_requests", "8").expect("possible");
    while !change.step(now) {}
    assert_eq!(heard(), [added(a, GroupIndex::ROOT, 100), added(c, GroupIndex::ROOT, 100)]);
}
