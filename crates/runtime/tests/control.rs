//! One thread reads and changes a queue while others do I/O with it. The duration of changes is not tested here.
//! Groups that exist as long as their guards.

use crate::common::{PUMPS, block_on, null, read};
use blkmq_core::{GroupId, Instant, IoError, Limits, Nanos, Op};
use blkmq_engine::attributes::{Permission, SetAttributeError};
use blkmq_engine::{
    BioTable, ChangeError, Config, DEFAULT_TIMEOUT, DeviceQueue, DeviceShape, EditError, Enqueued,
    Finished, GroupError, GroupSpec, GroupTree, Inflight, Io, IoMax, NoMerges, Plan, PumpMode,
    Refusal, Verdict, WriteCache,
};
use blkmq_runtime::{GroupGuard, GroupOptions, Service, SubmitError, Unavailable};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const IOS: u64 = 20_000;

const BATCH: u64 = 16;

/// Finishes all its requests at every reap.
#[derive(Default)]
struct Prompt(VecDeque<Inflight>);

impl DeviceQueue<u64> for Prompt {
    fn enqueue(&mut self, _: Instant, _: &BioTable<u64>, rq: Inflight) -> Enqueued {
        self.0.push_back(rq);
        Enqueued::Accepted
    }

    fn reap(&mut self, _: Instant, _: &BioTable<u64>, out: &mut Vec<Finished>) {
        out.extend(self.0.drain(..).map(|rq| Finished { rq, verdict: Verdict::Done(Ok(())) }));
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        out.extend(self.0.drain(..));
    }
}

fn service(pump: PumpMode) -> Service<u64> {
    let device = DeviceShape {
        hw_queues: 2,
        hw_queue_depth: 8,
        shared_tags: false,
        budget: None,
        limits: Limits::default(),
        cache: WriteCache::Back { fua: false },
        timeout: DEFAULT_TIMEOUT,
    };
    let queues = (0..2).map(|_| Box::new(Prompt::default()) as _).collect();
    let config = Config { submitters: 2, depth: 64, pump, ..Config::new(device, queues) };
    Service::start(config).expect("valid")
}

/// Each I/O completes once, whatever changes are made to the queue.
fn run(service: &Service<u64>, id: u64) {
    let mut client = service.client().expect("as many as there are threads");
    let mut seen = vec![false; IOS as usize];
    let mut next = 0;
    while next < IOS || client.in_flight() > 0 {
        let now = client.clock().now();
        while next < IOS && u64::from(client.in_flight()) < 2 * BATCH {
            let op = if next % 64 == 0 { Op::Flush } else { Op::Write };
            let sectors = if op == Op::Flush { 0 } else { 8 };
            let io = Io::new(op, (next * 2 + id) * 8, sectors, next, next);
            client.push_at(now, io).expect("there is credit");
            next += 1;
        }
        client.wait(1, u32::MAX, |done| {
            assert_eq!((done.result, done.payload), (Ok(()), done.cookie));
            assert!(!std::mem::replace(&mut seen[done.cookie as usize], true), "done twice");
        });
    }
    assert!(seen.into_iter().all(|seen| seen));
}

fn meddle(service: &Service<u64>) {
    for (path, text) in [
        ("queue/scheduler", "mq-deadline"),
        ("iosched/fifo_batch", "3"),
        ("queue/nr_requests", "64"),
        ("queue/async_depth", "5"),
        ("queue/nomerges", "1"),
        ("blkmq/scope", "hwqueue"),
        ("queue/max_sectors_kb", "64"),
        ("queue/write_cache", "write through"),
        ("queue/nr_requests", "32"),
        ("queue/write_cache", "write back"),
        ("queue/scheduler", "none"),
    ] {
        service.set_attribute(path, text).expect("accepted");
        let value = service.attribute(path).expect("there is such an attribute");
        assert!(value == text || value.contains(&format!("[{text}]")), "{path}={text}: {value}");
    }
    let plan = service.queue().plan();
    assert_eq!(plan.nomerges, NoMerges::Simple, "what else was set stays");
}

#[test]
fn attributes_are_set_while_others_do_io() {
    for pump in [PumpMode::Inline, PumpMode::Thread] {
        let service = service(pump);
        std::thread::scope(|scope| {
            for id in 0..2 {
                let service = &service;
                scope.spawn(move || run(service, id));
            }
            for _ in 0..5 {
                meddle(&service);
            }
        });
        let stats = service.stats();
        assert_eq!((stats.submitted, stats.completed), (2 * IOS, 2 * IOS));
        assert!(
            service
                .attributes()
                .iter()
                .all(|(a, value)| { !a.path.ends_with("/active") || value == "0" })
        );
    }
}

/// Threads take turns, and none reverts the setting of another that changed the plan after it was read.
#[test]
fn two_who_set_attributes_do_not_undo_each_other() {
    let service = service(PumpMode::Inline);
    std::thread::scope(|scope| {
        for (path, values) in [("queue/nomerges", ["1", "2"]), ("queue/nr_requests", ["5", "6"])] {
            let service = &service;
            scope.spawn(move || {
                for turn in 0..200 {
                    let value = values[turn % 2];
                    service.set_attribute(path, value).expect("accepted");
                    assert_eq!(service.attribute(path).as_deref(), Ok(value));
                }
            });
        }
    });
}

#[test]
fn a_plan_is_made_true_or_refused() {
    let service = service(PumpMode::Inline);
    let edit = |plan: &mut Plan| {
        plan.nr_requests = Some(4);
        Ok::<(), Infallible>(())
    };
    service.edit(edit).expect("possible");
    assert_eq!(service.attribute("queue/nr_requests").as_deref(), Ok("4"));
    let edit = |plan: &mut Plan| {
        plan.device.hw_queue_depth = 4;
        Ok::<(), Infallible>(())
    };
    assert_eq!(service.edit(edit), Err(EditError::Change(ChangeError::Device)));
    assert_eq!(service.edit(|_| Err("not now")), Err(EditError::Edit("not now")));
    let refused = service.set_attribute("queue/nr_requests", "9").expect_err("none has 8 tags");
    assert!(matches!(refused, SetAttributeError::Attribute(_)), "{refused}");
}

#[test]
fn the_list_says_what_each_attribute_says() {
    let service = service(PumpMode::Thread);
    let all = service.attributes();
    assert!(all.iter().all(|(a, value)| service.attribute(&a.path).as_ref() == Ok(value)));
    let pump = all.iter().find(|(a, _)| a.path == "blkmq/pump").expect("listed");
    assert_eq!((pump.1.as_str(), pump.0.permission), ("thread", Permission::ReadOnly));
}

#[test]
fn a_group_is_there_as_long_as_its_guard() {
    for pump in PUMPS {
        let service = null::<u64>("null", |config| config.pump = pump);
        let groups = || service.queue().snapshot().plan.groups;
        let options = GroupOptions { weight: 300, ..GroupOptions::default() };
        let tenant = service.add_group("tenant", &options).expect("the name is free");
        let found = groups().get(tenant.id()).cloned().expect("it is there");
        assert_eq!(
            (found.name.as_str(), found.weight, found.parent),
            ("tenant", 300, GroupId::ROOT)
        );
        let below = GroupOptions { parent: "tenant", ..GroupOptions::default() };
        let disk = service.add_group("disk", &below).expect("the name is free");
        assert_eq!(groups().parent(disk.id()), tenant.id());
        disk.set_weight(7).expect("a weight");
        assert_eq!(groups().get(disk.id()).expect("it is there").weight, 7);
        let refused = disk.set_weight(1001).expect_err("no weight");
        assert!(matches!(refused, EditError::Edit(GroupError::Weight(1001))), "{refused}");
        let refused = service.add_group("disk", &options).expect_err("the name is taken");
        assert!(matches!(refused, EditError::Edit(GroupError::Exists(_))), "{refused}");
        drop(disk);
        drop(tenant);
        assert!(groups().is_empty(), "{pump:?}");
    }
}

#[test]
fn a_group_with_others_below_it_stays() {
    let service = null::<u64>("null", |_| {});
    let above = service.add_group("above", &GroupOptions::default()).expect("the name is free");
    let options = GroupOptions { parent: "above", ..GroupOptions::default() };
    let below = service.add_group("below", &options).expect("the name is free");
    drop(above);
    assert!(service.queue().snapshot().plan.groups.find("above").is_ok());
    drop(below);
}

#[test]
fn a_guard_removes_no_other_group_of_its_name() {
    let service = null::<u64>("null", |_| {});
    let guard = service.add_group("a", &GroupOptions::default()).expect("the name is free");
    service
        .edit(|plan| {
            plan.groups.remove("a")?;
            plan.groups.add("a", "/").map(drop)
        })
        .expect("nothing stands against it");
    drop(guard);
    assert!(service.queue().snapshot().plan.groups.find("a").is_ok());
}

/// Regression test: the id of a group was its index, which was reused by the 1023rd group after it. A connection that
/// outlived its tenant was charged to another tenant and limited like it.
#[test]
fn an_id_that_its_group_has_outlived_is_refused() {
    let service = null::<u64>("null,irqmode=0", |_| {});
    let add = |name: &str| service.add_group(name, &GroupOptions::default()).expect("a free name");
    let stale = add("first").id();
    let mut blocking = service.blocking().expect("one place");
    let mut call = |id| blocking.call(read(0).group(id)).map(|(result, _)| result);
    assert!(matches!(call(stale), Ok(Ok(()))), "no other group has its index");
    let next = std::iter::repeat_with(|| add("next")).find(|it| it.id().index() == stale.index());
    let next = next.expect("indices are given out in a circle");
    let refused = call(stale).expect_err("it is another one's").into_refused().expect("not lost");
    assert_eq!(refused.why, Refusal::NoGroup);
    assert!(call(next.id()).is_ok() && call(GroupId::ROOT).is_ok());
    let other = null::<u64>("null", |_| {});
    let id = other.add_group("next", &GroupOptions::default()).expect("a free name").id();
    assert!(call(id).is_err(), "of another queue");
    assert_eq!(service.queue().group_io(stale), None);
    // Of an edit that was refused.
    let mut lost = GroupId::ROOT;
    let refused = service.edit(|plan| {
        lost = plan.groups.add("lost", "/")?;
        Err::<(), _>(GroupError::Full)
    });
    assert!(refused.is_err() && add("found").id().index() == lost.index());
    assert!(call(lost).is_err());
}

/// Regression test: after a tree had been replaced, its ids and names were taken for those of the new tree: a guard
/// changed and removed the group that had taken its name and its index.
#[test]
fn a_tree_that_is_replaced_leaves_no_group_to_its_guards() {
    let service = null::<u64>("null,irqmode=0", |_| {});
    let guard = service.add_group("a", &GroupOptions::default()).expect("the name is free");
    let spec = || GroupSpec { name: "a".into(), ..GroupSpec::default() };
    let other = GroupTree::of(vec![spec()]).expect("a tree");
    let id = other.find("a").expect("there");
    assert_eq!(id.index(), guard.id().index());
    let replaced = service.edit(|plan| {
        plan.groups = other;
        Ok::<_, GroupError>(())
    });
    replaced.expect("nothing stands against it");
    let gone = guard.set_weight(7).expect_err("it is another group");
    assert!(matches!(gone, EditError::Edit(GroupError::Gone(_))), "{gone}");
    let mut blocking = service.blocking().expect("one place");
    assert!(blocking.call(read(0).group(guard.id())).is_err());
    drop(guard);
    assert!(blocking.call(read(0).group(id)).is_ok());
    assert!(service.queue().snapshot().plan.groups.get(id).is_some());
}

/// With I/O in flight, on the thread that waits for it.
#[test]
fn limits_hold_from_the_first_io_and_end_with_the_guard() {
    let service = null::<u64>("null,irqmode=2,completion_nsec=10000", |_| {});
    let mut client = service.client().expect("one place");
    let max = IoMax { riops: Some(1000), ..IoMax::default() };
    let options = GroupOptions { max, ..GroupOptions::default() };
    let slow = service.add_group("slow", &options).expect("the name is free");
    let begun = client.clock().now();
    for n in 0..30 {
        client.push(read(n).group(slow.id())).expect("there is credit");
    }
    client.flush();
    assert_eq!(client.wait(30, 30, |io| assert_eq!(io.result, Ok(()))), 30);
    // The first few I/Os are within the slack of the limit, 10 ms.
    assert!(client.clock().now() - begun >= Nanos::from_millis(15));
    for n in 0..30 {
        client.push(read(n).group(slow.id())).expect("there is credit");
    }
    client.flush();
    drop(slow);
    assert_eq!(client.wait(30, 30, |io| assert_eq!(io.result, Ok(()))), 30);
}

/// A removed tenant whose clients continue has no limits of its own; the limits of its parent hold.
#[test]
fn ios_of_a_group_that_is_gone_keep_to_the_limits_of_its_parent() {
    let service = null::<u64>("null,irqmode=2,completion_nsec=10000", |_| {});
    let mut client = service.client().expect("one place");
    let max = IoMax { riops: Some(1000), ..IoMax::default() };
    let options = GroupOptions { max, ..GroupOptions::default() };
    let _tenants = service.add_group("tenants", &options).expect("the name is free");
    let below = GroupOptions { parent: "tenants", ..GroupOptions::default() };
    let tenant = service.add_group("tenant", &below).expect("the name is free");
    let id = tenant.id();
    drop(tenant);
    let begun = client.clock().now();
    for n in 0..30 {
        client.push(read(n).group(id)).expect("there is credit");
    }
    client.flush();
    assert_eq!(client.wait(30, 30, |io| assert_eq!(io.result, Ok(()))), 30);
    // The first few I/Os are within the slack of the limit, 10 ms.
    assert!(client.clock().now() - begun >= Nanos::from_millis(15));
}

/// A service with a device that answers immediately, a group that may read 16 times per second, and the number of its
/// answered reads.
struct Throttled {
    service: Service<u64>,
    slow: GroupGuard<u64>,
    answered: Arc<AtomicU64>,
}

impl Throttled {
    fn new(depth: u32) -> Self {
        let service = null("null", |config: &mut Config<u64>| config.depth = depth);
        let max = IoMax::default().set("rbps=65536").expect("a limit");
        let options = GroupOptions { max, ..GroupOptions::default() };
        let slow = service.add_group("slow", &options).expect("the name is free");
        Self { service, slow, answered: Arc::default() }
    }

    fn io(&self, n: u64) -> Io<u64> {
        read(n).group(self.slow.id())
    }

    fn answered(&self) -> u64 {
        self.answered.load(Ordering::SeqCst)
    }
}

/// Regression test: I/Os that waited for a ceiling used up the credit of a reactor and then its inbox, and I/Os of
/// other groups stood in line behind them for seconds.
#[test]
fn a_group_at_its_ceiling_leaves_a_reactor_to_the_others() {
    const SLOW: u64 = 3000;
    for depth in [4, 256] {
        let t = Throttled::new(depth);
        let reactor = t.service.reactor().expect("there is a submitter");
        let handle = reactor.handle();
        let slow: Vec<_> = (0..SLOW).map(|n| handle.submit(t.io(n))).collect();
        for n in 0..100 {
            let done = block_on(handle.submit(read(SLOW + n))).expect("the reactor is there");
            assert_eq!(done.result, Ok(()));
            let written = Io { op: Op::Write, ..t.io(n) };
            assert!(block_on(handle.submit(written)).is_ok(), "writes of the group go as well");
        }
        // There is no place for another I/O of this kind, but there is one for other groups.
        let refused = handle.try_submit(t.io(0)).expect_err("its own line");
        assert_eq!(refused.why, Unavailable::Full { most: 2 * depth });
        assert!(handle.call(t.io(0), |_| ()).is_err());
        let taken = handle.try_submit(read(0)).expect("the inbox is free");
        assert!(block_on(taken).is_ok());
        // In the reactor, if its inbox is large, and in line.
        for n in [400, 1000, 2999] {
            slow[n].cancel();
        }
        let mut slow = slow.into_iter().map(Some).collect::<Vec<_>>();
        for n in [400, 1000, 2999] {
            let done = block_on(slow[n].take().expect("once")).expect("the reactor is there");
            assert_eq!((done.cookie, done.result), (n as u64, Err(IoError::CANCELLED)));
        }
        drop(slow.split_off(2000));
        t.slow.set_max(IoMax::default()).expect("it is there");
        for (n, io) in (0..).zip(slow).filter_map(|(n, io)| Some((n, io?))) {
            let done = block_on(io).expect("the reactor is there");
            assert_eq!((done.cookie, done.payload, done.result), (n, n, Ok(())));
        }
        drop(reactor);
        let stats = t.service.stats();
        assert_eq!(stats.submitted, stats.completed);
    }
}

/// Callers that do not take their answers are stopped by the bound of their own group, whichever call they use.
#[test]
fn what_waits_for_a_ceiling_in_a_reactor_is_bounded() {
    const DEPTH: u32 = 4;
    let t = Throttled::new(DEPTH);
    let reactor = t.service.reactor().expect("there is a submitter");
    let handle = reactor.handle();
    let mut calls = 0;
    let call = |n| {
        let answered = Arc::clone(&t.answered);
        handle.call(t.io(n), move |_| {
            answered.fetch_add(1, Ordering::SeqCst);
        })
    };
    // More than the inbox holds, so the reactor has been at work. In the meantime it takes I/Os at the rate of the
    // ceiling.
    for n in 0..2000 {
        match call(n) {
            Ok(()) => calls += 1,
            Err(full) => {
                assert_eq!(full.why, Unavailable::Full { most: 2 * DEPTH });
                block_on(handle.submit(read(n))).expect("others have places").result.expect("done");
            }
        }
    }
    // One credit, the inbox, and twice as many behind a ceiling.
    let waiting = calls - t.answered();
    assert!(waiting <= u64::from(DEPTH + 6 * DEPTH), "{waiting}");
    t.slow.set_max(IoMax::default()).expect("it is there");
    drop(reactor);
    assert_eq!(t.answered(), calls, "all are answered at the end");
}

/// The queue refuses an invalid I/O even after it has waited for a ceiling.
#[test]
fn what_is_wrong_is_refused_after_its_wait() {
    let t = Throttled::new(8);
    let reactor = t.service.reactor().expect("there is a submitter");
    let handle = reactor.handle();
    let held: Vec<_> = (0..4).map(|n| handle.submit(t.io(n))).collect();
    let wrong = handle.submit(Io { sector: u64::MAX, ..t.io(7) });
    let error = block_on(wrong).expect_err("beyond the end");
    let SubmitError::Refused(refused) = error else { panic!("{error}") };
    assert_eq!(refused.into_io().cookie, 7);
    held.into_iter().for_each(|io| assert!(block_on(io).is_ok()));
}
