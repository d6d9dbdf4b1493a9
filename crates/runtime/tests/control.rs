//! One thread reads and changes a queue while others do I/O with it. The duration of changes is not tested here.

use blkmq_core::{Instant, Limits, Op};
use blkmq_engine::attributes::{Permission, SetAttributeError};
use blkmq_engine::{
    BioTable, ChangeError, Config, DEFAULT_TIMEOUT, DeviceQueue, DeviceShape, EditError, Enqueued,
    Finished, Inflight, Io, NoMerges, Plan, PumpMode, Verdict, WriteCache,
};
use blkmq_runtime::Service;
use std::collections::VecDeque;
use std::convert::Infallible;

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
        ("blkmq/access", "mutex"),
        ("queue/max_sectors_kb", "64"),
        ("queue/write_cache", "write through"),
        ("queue/nr_requests", "32"),
        ("blkmq/access", "combining"),
        ("queue/write_cache", "write back"),
        ("queue/scheduler", "none"),
    ] {
        // Only a build with comparison modes has locks to choose.
        if path == "blkmq/access" && service.attribute(path).is_err() {
            continue;
        }
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
