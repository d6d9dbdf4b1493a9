//! Under a policy that shares by group, waiting I/Os get scheduler tags by group (decision 0013).

use crate::common;

use blkmq_core::{GroupId, Instant, IoError, Op, Owner};
use blkmq_engine::{Config, GroupSpec, GroupTree, Io, IoMax, Queue, Submitter, leaked_bios};
use blkmq_sched::{Factory, Options, registry};
use common::{Handle, accesses, assert_at_rest, config, drain, replan, shape};

const BFQ: &str = "bfq";

fn policy(name: &str) -> &'static Factory {
    registry::find(name).expect("it is registered")
}

/// Groups `a` and `b`, on a device with one tag and two scheduler tags; one submitter.
struct Fixture {
    queue: Queue<u32>,
    submitter: Submitter<u32>,
    device: Handle,
    groups: [GroupId; 2],
}

fn fixture(scheduler: &str, change: impl Fn(&mut Config<u32>)) -> Fixture {
    let wanted = |name: &str| GroupSpec {
        name: name.into(),
        parent: "/".into(),
        weight: 100,
        max: IoMax::default(),
        ..GroupSpec::default()
    };
    let tree = GroupTree::of(vec![wanted("a"), wanted("b")]).expect("a tree");
    let groups = ["a", "b"].map(|name| tree.find(name).expect("it is there"));
    let (config, device) = config(shape(1, 1));
    let mut config = Config { groups: tree, depth: 64, ..config }.scheduler(policy(scheduler));
    change(&mut config);
    let queue = Queue::new(config).expect("valid");
    let submitter = queue.submitter().expect("one was asked for");
    Fixture { queue, submitter, device, groups }
}

impl Fixture {
    fn push(&mut self, now: Instant, group: usize, sectors: impl IntoIterator<Item = u64>) {
        for sector in sectors {
            let io = Io::new(Op::Read, sector, 8, sector, sector as u32);
            let io = Io { group: self.groups[group], owner: Owner(group as u32 + 1), ..io };
            self.submitter.push(now, io).expect("there is credit");
            self.submitter.flush(now);
        }
    }
}

/// Ten I/Os that do not merge.
fn ten(from: u64) -> impl Iterator<Item = u64> {
    (0..10).map(move |n| from + n * 1000)
}

#[test]
fn a_group_does_not_wait_behind_another_ones_backlog() {
    for access in accesses() {
        // Turns of one I/O, so that the policy does not prefer the group in service.
        let mut it = fixture(BFQ, |c| {
            c.access = access;
            let options = Options::parse(c.scheduler.attributes, "low_latency=0,max_budget=8");
            c.options = options.expect("options of bfq");
        });
        let mut now = Instant::from_nanos(1_000_000_000);
        it.push(now, 0, ten(0));
        it.push(now, 1, [500_000]);
        it.device.with(|c| c.service = Some(blkmq_core::Nanos::from_millis(1)));
        it.device.finish(1);
        assert_eq!(drain(&mut it.submitter, &mut now, 1000).len(), 11);
        let at = it.device.sectors().iter().position(|sector| *sector == 500_000);
        assert!(at <= Some(4), "{access:?}: {:?}", it.device.sectors());
        assert_at_rest(&it.queue, 1);
    }
}

#[test]
fn without_groups_in_the_policy_the_order_of_arrival_stays() {
    let mut it = fixture("none", |c| c.nr_requests = Some(2));
    let mut now = Instant::ZERO;
    it.push(now, 0, ten(0));
    it.push(now, 1, [500_000]);
    it.device.with(|c| c.service = Some(blkmq_core::Nanos(1)));
    it.device.finish(1);
    drain(&mut it.submitter, &mut now, 1000);
    assert_eq!(it.device.sectors().last(), Some(&500_000));
}

#[test]
fn what_waits_still_merges_with_what_is_held() {
    for access in accesses() {
        let mut it = fixture(BFQ, |c| c.access = access);
        let mut now = Instant::from_nanos(1_000_000_000);
        // One I/O at the device, one held; sixteen contiguous ones wait.
        it.push(now, 0, [1 << 20, 1 << 21]);
        it.push(now, 0, (0..16).map(|n| n * 8));
        it.device.with(|c| c.service = Some(blkmq_core::Nanos::from_millis(1)));
        it.device.finish(1);
        assert_eq!(drain(&mut it.submitter, &mut now, 1000).len(), 18);
        assert_eq!(it.device.with(|c| c.arrivals.len()), 3, "{access:?}");
        assert_at_rest(&it.queue, 1);
    }
}

#[test]
fn what_waits_can_be_given_up() {
    for access in accesses() {
        let mut it = fixture(BFQ, |c| c.access = access);
        let mut now = Instant::from_nanos(1_000_000_000);
        it.push(now, 0, ten(0));
        it.push(now, 1, ten(500_000));
        for cookie in [0, 7000, 503_000] {
            it.submitter.cancel(now, cookie);
        }
        let mut cancelled = Vec::new();
        it.submitter.poll(now);
        it.submitter.reap(u32::MAX, |done| {
            assert_eq!(done.result, Err(IoError::CANCELLED));
            cancelled.push(done.cookie);
        });
        cancelled.sort_unstable();
        // The I/O at 0 is at the device.
        assert_eq!(cancelled, [7000, 503_000], "{access:?}");
        it.device.with(|c| c.service = Some(blkmq_core::Nanos::from_millis(1)));
        it.device.finish(1);
        assert_eq!(drain(&mut it.submitter, &mut now, 1000).len(), 18);
        assert_eq!(it.queue.stats().cancelled.staged, 2);
        assert_at_rest(&it.queue, 1);
    }
}

#[test]
fn what_waits_outlives_its_queue_and_its_group() {
    for access in accesses() {
        for next in ["none", "mq-deadline", BFQ] {
            let mut it = fixture(BFQ, |c| c.access = access);
            let mut now = Instant::from_nanos(1_000_000_000);
            it.push(now, 0, ten(0));
            it.push(now, 1, ten(500_000));
            it.device.with(|c| c.service = Some(blkmq_core::Nanos::from_millis(1)));
            it.device.finish(1);
            let mut plan = it.queue.plan();
            plan.groups.remove("b").expect("nothing is below it");
            let mut change = replan(&it.queue, plan).expect("possible");
            while !change.step(now) {}
            it.push(now, 1, ten(900_000));
            let plan = it.queue.plan().scheduler(policy(next)).nr_requests(4);
            let mut change = replan(&it.queue, plan).expect("possible");
            while !change.step(now) {
                it.submitter.poll(now);
                now = it.submitter.next_deadline().map_or(now, |at| at.max(now));
            }
            let mut done = drain(&mut it.submitter, &mut now, 1000);
            done.sort_unstable();
            let expected: Vec<u64> = ten(0).chain(ten(500_000)).chain(ten(900_000)).collect();
            assert_eq!(done, expected, "{access:?} {next}");
            assert_at_rest(&it.queue, 1);
        }
    }
}

#[test]
fn groups_may_come_while_i_os_wait_in_staging() {
    for access in accesses() {
        let mut it = fixture(BFQ, |c| {
            c.access = access;
            c.groups = GroupTree::default();
        });
        it.groups = [GroupId::ROOT; 2];
        let mut now = Instant::from_nanos(1_000_000_000);
        it.push(now, 0, ten(0));
        let mut plan = it.queue.plan();
        it.groups = ["c", "d"].map(|name| plan.groups.add(name, "/").expect("a new name"));
        let mut change = replan(&it.queue, plan).expect("possible");
        while !change.step(now) {}
        it.push(now, 1, ten(500_000));
        it.device.with(|c| c.service = Some(blkmq_core::Nanos::from_millis(1)));
        it.device.finish(1);
        assert_eq!(drain(&mut it.submitter, &mut now, 1000).len(), 20, "{access:?}");
        assert_at_rest(&it.queue, 1);
    }
}

#[test]
fn payloads_of_what_waits_are_freed_with_the_queue() {
    let before = leaked_bios();
    let mut it = fixture(BFQ, |_| {});
    it.push(Instant::ZERO, 0, ten(0));
    it.push(Instant::ZERO, 1, ten(500_000));
    drop(it);
    assert_eq!(leaked_bios(), before);
}
