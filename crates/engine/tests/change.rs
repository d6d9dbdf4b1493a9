//! Freeze, quiesce and live change, seen from a submitter and a device (`spec/framework.md` sections 10, 11, 16).

use crate::common;

use blkmq_core::{Class, HwQueue, Instant, IoPrio, Owner, RequestId};
use blkmq_engine::{
    Access, ChangeError, Config, ConfigError, EditError, Io, NoMerges, Plan, Queue,
};
use blkmq_sched::{
    Admission, At, Cx, Done, Factory, Fresh, Observed, Observer, Options, Scheduler, Scope, Shape,
    registry,
};
use common::{
    accesses, assert_at_rest, config, deadline, drain, read, replan, shape, submit_each, write,
};
use std::cell::RefCell;

const T0: Instant = Instant::ZERO;

fn none() -> &'static Factory {
    registry::find("none").expect("registered")
}

/// Steps a change until it is done.
fn change(queue: &Queue<u32>, to: Plan) {
    let mut change = replan(queue, to).expect("a plan that is possible");
    assert!(
        (0..100).any(|_| change.step(T0)),
        "a change with nothing in its way takes a few steps"
    );
}

#[test]
fn a_scheduler_is_switched_while_it_holds_requests_and_more_are_staged() {
    for access in accesses() {
        let (config, device) = config(shape(1, 2));
        let queue = Queue::new(Config { access, ..config.scheduler(deadline()) }).expect("valid");
        let mut sub = queue.submitter().expect("one is free");
        submit_each(&mut sub, T0, [write(800, 8), write(100, 8), write(400, 8), write(200, 8)]);
        assert_eq!(device.sectors(), [800, 100], "two at the device, two in the elevator");
        let mut switch = replan(&queue, queue.plan().scheduler(none())).expect("possible");
        assert!(!switch.step(T0));
        submit_each(&mut sub, T0, [write(5000, 8), write(0, 8)]);
        device.finish(2);
        assert!(!switch.step(T0));
        assert_eq!(device.sectors(), [800, 100, 200, 400], "the old one sorts to its last request");
        assert_eq!(queue.plan().scheduler.name, "mq-deadline");
        device.finish(2);
        assert!((0..3).any(|_| switch.step(T0)));
        assert_eq!(queue.plan().scheduler.name, "none");
        sub.poll(T0);
        let arrived = device.sectors();
        assert_eq!(&arrived[4..], [5000, 0], "{access:?}: in the order of submission");
        device.finish(2);
        assert_eq!(drain(&mut sub, &mut { T0 }, 3).len(), 6);
        assert_at_rest(&queue, 1);
        let stats = queue.stats();
        assert_eq!((stats.inserted, stats.dispatched), (6, 6), "counted on");
    }
}

thread_local! {
    /// Requests inserted and completed, for each policy that this thread has built, in the order of building.
    static BALANCE: RefCell<Vec<(u64, u64)>> = const { RefCell::new(Vec::new()) };
}

fn note(number: usize, f: impl FnOnce(&mut (u64, u64))) {
    BALANCE.with_borrow_mut(|balance| f(&mut balance[number]));
}

/// Counts the requests of a policy, and checks the balance when it is dropped.
struct Accountant {
    number: usize,
}

impl Drop for Accountant {
    fn drop(&mut self) {
        note(self.number, |(inserts, ends)| assert_eq!(inserts, ends, "policy {}", self.number));
    }
}

impl Observer for Accountant {
    fn insert(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, rq: RequestId, at: At) {
        note(self.number, |(inserts, _)| *inserts += 1);
        policy.insert(cx, rq, at);
    }

    fn admit(
        &mut self,
        policy: &mut dyn Scheduler,
        cx: &Cx<'_>,
        fresh: &Fresh<'_>,
        order: &mut [u8],
    ) -> Admission {
        let admission = policy.admit(cx, fresh, order);
        if admission != Admission::Refused {
            note(self.number, |(inserts, _)| *inserts += fresh.rqs.len() as u64);
        }
        admission
    }

    fn completed(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, done: &Done) {
        note(self.number, |(_, ends)| *ends += 1);
        policy.completed(cx, done);
    }

    fn withdraw(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, rq: RequestId) {
        note(self.number, |(_, ends)| *ends += 1);
        policy.withdraw(cx, rq);
    }

    fn absorbed(
        &mut self,
        policy: &mut dyn Scheduler,
        cx: &Cx<'_>,
        into: RequestId,
        gone: RequestId,
    ) {
        note(self.number, |(_, ends)| *ends += 1);
        policy.absorbed(cx, into, gone);
    }
}

fn accounting(shape: &Shape, options: &Options) -> Box<dyn Scheduler> {
    let number = BALANCE.with_borrow_mut(|balance| {
        balance.push((0, 0));
        balance.len() - 1
    });
    Box::new(Observed::new((deadline().build)(shape, options), Accountant { number }))
}

#[test]
fn s16_17_a_switch_under_load_loses_and_doubles_nothing() {
    static ACCOUNTING: std::sync::OnceLock<Factory> = std::sync::OnceLock::new();
    let factory = ACCOUNTING.get_or_init(|| Factory {
        name: "accounting",
        build: accounting,
        attributes: deadline().attributes,
        common: None,
        ..*none()
    });
    for access in accesses() {
        BALANCE.take();
        let (config, device) = config(shape(2, 4));
        let config = Config { access, depth: 64, submitters: 2, ..config.scheduler(factory) };
        let queue = Queue::new(config).expect("valid");
        let mut subs = [0, 1].map(|_| queue.submitter().expect("two are free"));
        let (mut ended, mut next) = (Vec::new(), 0);
        for round in 0_u64..200 {
            let sub = &mut subs[round as usize % 2];
            for _ in 0..8 {
                // Some are adjacent, so that requests merge as well.
                let sector = (next * 16 + next % 3 * 8) % 4096;
                let io = Io { cookie: next, payload: next as u32, ..write(sector, 8) };
                if sub.push(T0, io).is_ok() {
                    next += 1;
                }
            }
            sub.flush(T0);
            let plan = queue.plan();
            let scope = [Scope::Queue, Scope::HwQueue][round as usize / 2 % 2];
            let mut switch = replan(&queue, Plan { scope: Some(scope), ..plan }).expect("possible");
            let give_up = round % 7 == 0;
            for _ in 0..1000 {
                if give_up || switch.step(T0) {
                    break;
                }
                device.finish(3);
            }
            drop(switch);
            for sub in &mut subs {
                sub.reap(u32::MAX, |done| ended.push(done.cookie));
            }
        }
        device.finish(10_000);
        device.with(|device| device.inline = true);
        for sub in &mut subs {
            ended.append(&mut drain(sub, &mut { T0 }, 1000));
        }
        ended.sort_unstable();
        assert_eq!(ended, Vec::from_iter(0..next), "{access:?}: each once");
        assert_at_rest(&queue, 2);
        // Policies learn of a completion in the next pass.
        let mut freeze = queue.freeze();
        assert!((0..3).any(|_| freeze.step(T0)));
        drop((subs, freeze, queue));
        let built = BALANCE.with_borrow(Vec::len);
        assert!(built > 100, "{built} policies were in use");
    }
}

#[test]
fn s16_18_a_frozen_queue_has_nothing_in_flight_and_admits_nothing() {
    for access in accesses() {
        let (config, device) = config(shape(1, 4));
        let queue = Queue::new(Config { access, ..config }).expect("valid");
        let mut sub = queue.submitter().expect("one is free");
        submit_each(&mut sub, T0, [write(0, 8)]);
        let (mut one, mut other) = (queue.freeze(), queue.freeze());
        assert!(!one.step(T0), "one is at the device");
        device.finish(1);
        assert!((0..3).any(|_| one.step(T0)) && other.step(T0));
        submit_each(&mut sub, T0, [write(8, 8), write(16, 8)]);
        sub.poll(T0);
        assert!(one.step(T0));
        drop(one);
        sub.poll(T0);
        assert_eq!(
            (device.sectors().len(), queue.tags_in_use(HwQueue(0))),
            (1, 0),
            "still held once"
        );
        drop(other);
        sub.poll(T0);
        assert_eq!(device.sectors(), [0, 8], "{access:?}: and merged, as it was staged");
        device.finish(2);
        assert_eq!(drain(&mut sub, &mut { T0 }, 3).len(), 3);
    }
}

#[test]
fn s16_18_a_quiesced_queue_issues_nothing_and_completes_what_was_issued() {
    for access in accesses() {
        let (config, device) = config(shape(1, 4));
        let queue = Queue::new(Config { access, ..config }).expect("valid");
        let mut sub = queue.submitter().expect("one is free");
        submit_each(&mut sub, T0, [write(0, 8)]);
        let mut quiesce = queue.quiesce();
        assert!(quiesce.step(T0));
        submit_each(&mut sub, T0, [write(100, 8), write(200, 8)]);
        device.finish(1);
        sub.poll(T0);
        assert_eq!(sub.reap(9, |done| assert_eq!(done.cookie, 0)), 1, "completions go on");
        assert_eq!(device.sectors(), [0]);
        drop(quiesce);
        sub.poll(T0);
        assert_eq!(device.sectors(), [0, 100, 200], "{access:?}");
        device.finish(2);
        assert_eq!(drain(&mut sub, &mut { T0 }, 3).len(), 2);
        assert_at_rest(&queue, 1);
    }
}

/// A policy that idles waits for I/O that a frozen queue does not admit. Regression test: with `slice_idle` of days, a
/// switch of the scheduler took days if a single request was held.
#[test]
fn s16_18_idling_holds_up_neither_a_freeze_nor_a_change() {
    let ways = accesses().into_iter().flat_map(|access| [(access, false), (access, true)]);
    for (access, by_change) in ways {
        let (config, device) = config(shape(1, 1));
        let bfq = registry::find("bfq").expect("registered");
        let mut config = Config { access, ..config }.scheduler(bfq);
        let days = "slice_idle=2147483647,low_latency=0,injection=0";
        config.options = Options::parse(bfq.attributes, days).expect("they exist");
        let queue = Queue::new(config).expect("valid");
        let mut sub = queue.submitter().expect("one is free");
        let urgent = IoPrio::new(Class::Realtime, 0).expect("0 is a level");
        let first = Io { owner: Owner(1), ioprio: urgent, ..read(0, 8) };
        submit_each(&mut sub, T0, [first, Io { owner: Owner(2), ..read(800, 8) }]);
        device.finish(1);
        (0..3).for_each(|_| sub.poll(T0));
        assert_eq!(device.sectors(), [0], "{access:?}: idle for owner 1");
        device.with(|device| device.inline = true);
        if by_change {
            change(&queue, queue.plan().scheduler(none()));
            assert_eq!(queue.plan().scheduler.name, "none");
        } else {
            let mut freeze = queue.freeze();
            assert!((0..4).any(|_| freeze.step(T0)), "{access:?}");
        }
        assert_eq!(device.sectors(), [0, 800]);
        assert_eq!(drain(&mut sub, &mut { T0 }, 9).len(), 2);
    }
}

/// Options change in the current policy while it holds requests, and so do depths.
#[test]
fn options_change_without_a_pause() {
    let (config, device) = config(shape(1, 1));
    let config = Config { nr_requests: Some(64), ..config.scheduler(deadline()) };
    let queue = Queue::new(config).expect("valid");
    let mut sub = queue.submitter().expect("one is free");
    submit_each(&mut sub, T0, [write(0, 8)]);
    let set = |name, value: &str| {
        let mut plan = queue.plan();
        plan.options.set(name, value).expect("an option");
        change(&queue, plan);
    };
    set("async_depth", "1");
    submit_each(&mut sub, T0, [write(108, 8)]);
    assert_eq!(queue.stats().inserted, 1, "one async request at a time, the one at the device");
    set("async_depth", "64");
    submit_each(&mut sub, T0, [write(508, 8), write(500, 8)]);
    assert_eq!((queue.stats().inserted, queue.stats().merges.front), (3, 1));
    set("front_merges", "0");
    // It does not continue the request that merged last, which the elevator tries regardless of this option.
    submit_each(&mut sub, T0, [write(100, 8)]);
    assert_eq!((queue.stats().inserted, queue.stats().merges.front), (4, 1));
    assert_eq!(device.sectors().len(), 1, "and the first one is still at the device");
    assert_eq!(queue.plan().options.get("front_merges"), 0);
    device.with(|device| device.inline = true);
    device.finish(1);
    assert_eq!(drain(&mut sub, &mut { T0 }, 9).len(), 5);
}

#[test]
fn depth_access_scope_and_merging_change() {
    let (config, device) = config(shape(2, 8));
    device.with(|device| device.inline = true);
    let queue = Queue::new(config.scheduler(deadline())).expect("valid");
    let mut sub = queue.submitter().expect("one is free");
    let mut done = 0;
    for access in accesses() {
        for (scope, nr_requests) in [(Scope::Queue, 5), (Scope::HwQueue, 2048)] {
            let (scope, nr_requests) = (Some(scope), Some(nr_requests));
            let nomerges = NoMerges::None;
            change(&queue, Plan { access, scope, nr_requests, nomerges, ..queue.plan() });
            submit_each(&mut sub, T0, (0..20).map(|i| write(i * 8, 8)));
            done += drain(&mut sub, &mut { T0 }, 100).len();
        }
    }
    assert_eq!(done, 160);
    assert_eq!(queue.stats().merges.total(), 0);
    assert_eq!(queue.stats().dispatched, 160, "those of all that it has been");
    assert_at_rest(&queue, 2);
}

#[test]
fn what_is_impossible_is_refused_and_changes_nothing() {
    let (config, _device) = config(shape(1, 8));
    let queue = Queue::new(config).expect("valid");
    let plan = queue.plan();
    let refused = |to: Plan| replan(&queue, to).expect_err("impossible");
    let deep = Plan { nr_requests: Some(4096), ..plan.clone() };
    assert_eq!(refused(deep), ChangeError::Config(ConfigError::NrRequests(4096)));
    let mut other = plan.clone();
    other.device.hw_queue_depth = 4;
    assert_eq!(refused(other), ChangeError::Device);
    let under_way = replan(&queue, plan.clone().scheduler(deadline())).expect("possible");
    assert_eq!(refused(plan.clone()), ChangeError::Busy);
    drop(under_way);
    assert_eq!(queue.plan().scheduler.name, "none", "given up");
    change(&queue, Plan { access: Access::Mutex, ..plan });
    let mut sub = queue.submitter().expect("one is free");
    submit_each(&mut sub, T0, [write(0, 8)]);
    assert_eq!(sub.in_flight(), 1);
}

/// Each of several threads adds groups; a thread that finds the queue busy tries again. Regression test: when an edit
/// was a copy that replaced the plan, 157 of 200 groups were left.
#[test]
fn concurrent_edits_are_all_there() {
    let (config, _) = config(shape(1, 2));
    let queue = Queue::new(config).expect("valid");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let queue = &queue;
            scope.spawn(move || {
                for n in 0..25 {
                    let add = |plan: &mut Plan| {
                        plan.groups.add(&format!("t{thread}-{n}"), "/").map(|_| ())
                    };
                    let mut change = loop {
                        match queue.edit(add) {
                            Err(EditError::Change(ChangeError::Busy)) => std::thread::yield_now(),
                            result => break result.expect("a new name"),
                        }
                    };
                    while !change.step(T0) {
                        std::thread::yield_now();
                    }
                    assert_eq!(change.outcome(), Ok(()));
                }
            });
        }
    });
    assert_eq!(queue.plan().groups.iter().count(), 100);
}

#[test]
fn an_edit_that_refuses_changes_nothing() {
    let (config, _) = config(shape(1, 2));
    let queue = Queue::new(config).expect("valid");
    let refused = queue.edit(|plan| {
        plan.nr_requests = Some(7);
        Err("not now")
    });
    assert_eq!(refused.map(|_| ()), Err(EditError::Edit("not now")));
    assert_eq!(queue.plan().nr_requests, None);
    assert!(
        queue.edit(|_| Ok::<(), std::convert::Infallible>(())).is_ok(),
        "and the queue is not busy"
    );
}
