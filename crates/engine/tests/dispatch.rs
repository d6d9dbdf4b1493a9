//! Back-pressure, requeues, budgets and order, seen from the device (`spec/framework.md` sections 8 to 10).
//!
//! I/Os of several owners in one request: they merge where the elevator allows it, and are repeated by owner when the
//! request fails.

use crate::common;
use crate::common::{Moods, accesses, assert_at_rest, config, drain, shape, submit_each, write};
use blkmq_core::{HwQueue, Instant, IoError, IoResult, Nanos, Op, Owner, Rng};
use blkmq_engine::{
    Access, BioTable, Busy, Config, DeviceDepth, DeviceQueue, DeviceShape, Enqueued, Finished,
    Inflight, Io, Queue, Submitter, Verdict, WriteCache,
};
use blkmq_sched::{
    Cx, Done, Factory, Observed, Observer, Options, Pick, Scheduler, Scope, registry,
};
use std::cell::RefCell;
use std::sync::{Arc, Mutex};

const T0: Instant = Instant::ZERO;

const MS: u64 = 1_000_000;

fn deadline(config: Config<u32>) -> Config<u32> {
    config.scheduler(registry::find("mq-deadline").expect("registered"))
}

fn push_all(sub: &mut Submitter<u32>, ios: impl IntoIterator<Item = Io<u32>>) {
    for io in ios {
        sub.push(T0, io).expect("there is credit");
    }
    sub.flush(T0);
}

#[test]
fn s16_01_and_02_tags_are_conserved_and_never_more_than_the_device_has() {
    for access in accesses() {
        let (config, device) = config(shape(1, 4));
        let config = Config { access, ..deadline(config) };
        let queue = Queue::new(config).expect("valid");
        let mut sub = queue.submitter().expect("one is free");
        push_all(&mut sub, (0..20).map(|i| write(i * 100, 8)));
        assert_eq!(queue.tags_in_use(HwQueue(0)), 4, "{access:?}");
        assert_eq!(device.with(|c| c.inside), 4);
        for left in (0..20).rev() {
            device.finish(1);
            sub.poll(T0);
            assert_eq!(queue.tags_in_use(HwQueue(0)), left.min(4));
        }
        drain(&mut sub, &mut { T0 }, 1);
        assert_eq!(device.with(|c| c.most_inside), 4);
        assert_at_rest(&queue, 1);
    }
}

/// A device that takes eight requests is given three; with another bound, set while it is busy, it is given that many.
#[test]
fn a_device_holds_no_more_than_its_depth() {
    for access in accesses() {
        let (config, device) = config(shape(2, 4));
        let device_depth = DeviceDepth::AtMost(3);
        let config = Config { access, device_depth, submitters: 2, ..deadline(config) };
        let queue = Queue::new(config).expect("valid");
        assert_eq!(queue.budgets(), Some(3));
        let mut subs = [(); 2].map(|()| queue.submitter().expect("two were asked for"));
        for sub in &mut subs {
            push_all(sub, (0..8).map(|i| write(i * 100, 8)));
        }
        assert_eq!((device.with(|c| c.inside), queue.budgets_in_use()), (3, 3), "{access:?}");
        let mut change = queue.set_attribute("blkmq/device_depth", "1").expect("possible");
        let mut now = T0;
        while !change.step(now) {
            now += Nanos(1);
            device.finish(1);
            subs.iter_mut().for_each(|sub| sub.poll(now));
        }
        assert_eq!((device.with(|c| c.most_inside), queue.budgets()), (3, Some(1)));
        device.with(|c| c.service = Some(Nanos(1)));
        push_all(&mut subs[0], (0..8).map(|i| write(5000 + i * 100, 8)));
        assert_eq!(device.with(|c| c.inside), 1, "{access:?}");
        subs.iter_mut().for_each(|sub| drop(drain(sub, &mut now, 100)));
        assert_at_rest(&queue, 2);
    }
}

/// The other tag space. After any history a queue admits as many requests as when it was new: no scheduler tag was lost
/// or returned twice.
#[test]
fn s16_01_scheduler_tags_driver_tags_and_budgets_all_come_back() {
    let budgets = DeviceShape { budget: Some(3), ..shape(1, 8) };
    let shared = DeviceShape { shared_tags: true, ..shape(2, 4) };
    for access in accesses() {
        for (seed, shape) in (0..).zip([shape(1, 4), budgets, shared]) {
            let hw_queues = shape.hw_queues;
            let (config, device) = config(shape);
            let config =
                Config { access, nr_requests: Some(16), submitters: 2, ..deadline(config) };
            let queue = Queue::new(config).expect("valid");
            let mut subs = [(); 2].map(|()| queue.submitter().expect("two were asked for"));
            let mut now = T0;
            let rng = || Rng::new(seed);
            let moods = Moods { rng: rng(), resource: 10, dev_resource: 20, requeue: 10 };
            device.with(|c| (c.service, c.moods) = (Some(Nanos::from_micros(50)), Some(moods)));
            let mut sectors = rng();
            for _ in 0..100 {
                for sub in &mut subs {
                    // Dense enough for many to merge, in the plug, in the elevator and request with request.
                    (0..8).for_each(|_| {
                        sub.push(now, write(sectors.below(32) * 8, 8)).expect("there is credit");
                    });
                    sub.flush(now);
                }
                subs.iter_mut().for_each(|sub| drop(drain(sub, &mut now, 2000)));
            }
            let stats = queue.stats();
            let merges = stats.merges;
            assert!(stats.busy > 50 && stats.requeues > 10, "{stats:?}");
            assert!(merges.request > 10 && merges.back > 10 && merges.front > 10, "{merges:?}");
            assert_at_rest(&queue, hw_queues);

            device.with(|c| (c.service, c.moods) = (None, None));
            let before = queue.stats().inserted;
            for sub in &mut subs {
                submit_each(sub, now, (0..60).map(|i| write((1 << 20) + i * 100, 8)));
            }
            let nr_requests = 16 * u64::from(hw_queues);
            assert_eq!(queue.stats().inserted - before, nr_requests, "{access:?} {shape:?}");
            device.with(|c| c.inline = true);
            device.finish(1000);
            subs.iter_mut().for_each(|sub| sub.poll(now));
            subs.iter_mut().for_each(|sub| drop(drain(sub, &mut now, 1000)));
            assert_at_rest(&queue, hw_queues);
        }
    }
}

#[test]
fn s16_06_resource_is_retried_after_3_ms() {
    for access in accesses() {
        let (config, device) = config(shape(1, 4));
        let queue = Queue::new(Config { access, ..config }).expect("valid");
        let mut sub = queue.submitter().expect("one is free");
        device.with(|c| c.script.push_back(Some(Busy::Resource)));
        submit_each(&mut sub, T0, [write(0, 8)]);
        assert_eq!(device.sectors(), []);
        assert_eq!(sub.next_deadline(), Some(Instant::from_nanos(3 * MS)), "{access:?}");
        sub.poll(Instant::from_nanos(3 * MS - 1));
        assert_eq!(device.sectors(), []);
        sub.poll(Instant::from_nanos(3 * MS));
        assert_eq!(device.sectors(), [0]);
        device.finish(1);
        drain(&mut sub, &mut { T0 }, 2);
        assert_at_rest(&queue, 1);
    }
}

#[test]
fn s16_06_dev_resource_waits_for_a_completion_and_for_no_timer() {
    for access in accesses() {
        let (config, device) = config(shape(1, 4));
        let queue = Queue::new(Config { access, ..config }).expect("valid");
        let mut sub = queue.submitter().expect("one is free");
        device.with(|c| c.script.extend([None, Some(Busy::DevResource)]));
        push_all(&mut sub, [write(0, 8), write(100, 8)]);
        assert_eq!(device.sectors(), [0]);
        // The test device cannot name its next event, so the only deadline is an immediate poll.
        assert_eq!(sub.next_deadline(), Some(T0), "{access:?}");
        device.finish(1);
        sub.poll(T0);
        assert_eq!(device.sectors(), [0, 100], "the completion brought the retry");
        device.finish(1);
        drain(&mut sub, &mut { T0 }, 2);
        assert_at_rest(&queue, 1);
    }
}

/// A device that promises an interrupt when it has completions, and never sends one.
#[test]
fn s16_06_dev_resource_without_a_completion_is_never_retried() {
    for access in accesses() {
        let (config, device) = config(shape(1, 4));
        let queue = Queue::new(Config { access, ..config }).expect("valid");
        let mut sub = queue.submitter().expect("one is free");
        device.with(|c| c.interrupts = true);
        device.with(|c| c.script.extend([None, Some(Busy::DevResource)]));
        push_all(&mut sub, [write(0, 8), write(100, 8)]);
        assert_eq!(queue.stats().busy, 1);
        assert_eq!(sub.next_deadline(), None, "{access:?}: no timer");
        for hour in 1..4 {
            let now = Instant::from_nanos(hour * 3600 * 1000 * MS);
            sub.poll(now);
            assert!(sub.prepare_park(now).is_some(), "nothing is due");
            sub.unpark();
        }
        assert_eq!((queue.stats().busy, device.sectors().len()), (1, 1), "it was not asked again");
        device.finish(1);
        let _ = queue.pump(HwQueue(0), Instant::from_nanos(5 * 3600 * 1000 * MS));
        assert_eq!(device.sectors(), [0, 100]);
        device.finish(1);
        let _ = queue.pump(HwQueue(0), Instant::from_nanos(5 * 3600 * 1000 * MS));
        drain(&mut sub, &mut { T0 }, 1);
        assert_at_rest(&queue, 1);
    }
}

#[test]
fn s16_07_leftovers_keep_their_order_ahead_of_the_scheduler() {
    for access in accesses() {
        let (config, device) = config(shape(1, 8));
        let queue = Queue::new(Config { access, ..deadline(config) }).expect("valid");
        let mut sub = queue.submitter().expect("one is free");
        device.with(|c| c.script.extend([None, Some(Busy::Resource)]));
        push_all(&mut sub, [write(500, 8), write(600, 8), write(700, 8)]);
        assert_eq!(device.sectors(), [500]);
        // These have lower sectors, but must not overtake.
        submit_each(&mut sub, T0, [write(0, 8), write(8, 8)]);
        assert_eq!(device.sectors(), [500]);
        assert_eq!(queue.stats().dispatched, 3, "the scheduler is not asked while 600 is stuck");
        assert_eq!(queue.stats().merges.back, 1, "and what stayed there merged");
        sub.poll(Instant::from_nanos(3 * MS));
        assert_eq!(device.sectors()[..3], [500, 600, 700]);
        device.finish(100);
        drain(&mut sub, &mut Instant::from_nanos(4 * MS), 20);
        assert_eq!(device.sectors(), [500, 600, 700, 0], "{access:?}");
        assert_at_rest(&queue, 1);
    }
}

#[test]
fn s16_11_a_flush_passes_a_full_scheduler() {
    for access in accesses() {
        let cache = WriteCache::Back { fua: false };
        let (config, device) = config(DeviceShape { cache, ..shape(1, 1) });
        let mut config = Config { access, ..deadline(config) };
        config.nr_requests = Some(4);
        let queue = Queue::new(config).expect("valid");
        let mut sub = queue.submitter().expect("one is free");
        push_all(&mut sub, (0..4).map(|i| write(i * 100, 8)));
        submit_each(&mut sub, T0, [Io { op: Op::Flush, sectors: 0, ..write(0, 8) }]);
        device.finish(1);
        sub.poll(T0);
        let second = device.with(|c| c.arrivals[1].op);
        assert_eq!(second, Op::Flush, "{access:?}");
        for _ in 0..4 {
            device.finish(1);
            sub.poll(T0);
        }
        drain(&mut sub, &mut { T0 }, 1);
        assert_at_rest(&queue, 1);
    }
}

/// Only requests that had left the scheduler before, and that the device had refused, precede it.
#[test]
fn s16_11_a_flush_passes_a_full_scheduler_on_a_busy_device() {
    for access in accesses() {
        for why in [Busy::Resource, Busy::DevResource] {
            let cache = WriteCache::Back { fua: false };
            let (config, device) = config(DeviceShape { cache, ..shape(1, 8) });
            let config = Config { access, nr_requests: Some(4), ..deadline(config) };
            let queue = Queue::new(config).expect("valid");
            let mut sub = queue.submitter().expect("one is free");
            device.with(|c| c.script.extend([None, Some(why)]));
            submit_each(&mut sub, T0, [write(0, 8), write(100, 8)]);
            push_all(&mut sub, [200, 300].map(|sector| write(sector, 8)));
            submit_each(&mut sub, T0, [Io { op: Op::Flush, sectors: 0, ..write(0, 8) }]);
            assert_eq!((device.sectors(), queue.stats().inserted), (vec![0], 5), "{access:?}");
            device.finish(1);
            sub.poll(Instant::from_nanos(3 * MS));
            for _ in 0..4 {
                device.finish(1);
                sub.poll(Instant::from_nanos(3 * MS));
            }
            assert_eq!(device.sectors(), [0, 100, 0, 200, 300], "{access:?} {why:?}");
            assert_eq!(device.with(|c| c.arrivals[2].op), Op::Flush);
            drain(&mut sub, &mut { T0 }, 1);
            assert_at_rest(&queue, 1);
        }
    }
}

#[test]
fn s16_22_a_busy_device_is_given_one_request_at_a_time() {
    let (config, device) = config(shape(1, 16));
    let queue = Queue::new(deadline(config)).expect("valid");
    let mut sub = queue.submitter().expect("one is free");
    device.with(|c| c.script.push_back(Some(Busy::Resource)));
    push_all(&mut sub, [write(0, 8)]);
    assert!(queue.dispatch_busy(HwQueue(0)) > 0);
    // Keeps the device busy, to see how many requests leave the elevator in each batch.
    device.with(|c| c.script.extend((0..40).map(|i| (i % 2 == 0).then_some(Busy::Resource))));
    let before = queue.stats();
    push_all(&mut sub, (1..20).map(|i| write(i * 100, 8)));
    let mut now = T0;
    for _ in 0..30 {
        let last = queue.stats();
        now = Instant::from_nanos(now.as_nanos() + 3 * MS);
        device.finish(1);
        sub.poll(now);
        let stats = queue.stats();
        if queue.dispatch_busy(HwQueue(0)) > 0 {
            let (requests, batches) =
                (stats.dispatched - last.dispatched, stats.batches - last.batches);
            assert_eq!(requests, batches, "batches of one");
        }
    }
    assert!(queue.stats().dispatched > before.dispatched);
    device.with(|c| c.script.clear());
    device.finish(100);
    drain(&mut sub, &mut now, 100);
    assert_at_rest(&queue, 1);
}

#[test]
fn a_requeued_request_comes_first_and_counts_once() {
    for access in accesses() {
        let (config, device) = config(shape(1, 1));
        let queue = Queue::new(Config { access, ..deadline(config) }).expect("valid");
        let mut sub = queue.submitter().expect("one is free");
        push_all(&mut sub, [write(500, 8), write(600, 8), write(700, 8)]);
        device.with(|c| c.requeue = 1);
        sub.poll(T0);
        assert_eq!(device.sectors(), [500, 500], "{access:?}");
        assert_eq!(queue.tags_in_use(HwQueue(0)), 1);
        for _ in 0..3 {
            device.finish(1);
            sub.poll(T0);
        }
        drain(&mut sub, &mut { T0 }, 1);
        assert_eq!(device.sectors(), [500, 500, 600, 700]);
        assert_eq!(queue.stats().requeues, 1);
        assert_at_rest(&queue, 1);
    }
}

#[test]
fn errors_reach_every_bio_of_the_request() {
    let (config, device) = config(shape(1, 4));
    let queue = Queue::new(config).expect("valid");
    let mut sub = queue.submitter().expect("one is free");
    device.with(|c| (c.inline, c.result) = (true, Some(Err(IoError::IO))));
    push_all(&mut sub, (0..3).map(|i| write(i * 8, 8)));
    let mut failed = Vec::new();
    sub.reap(9, |c| failed.push((c.cookie, c.result)));
    assert_eq!(failed, [(0, Err(IoError::IO)), (8, Err(IoError::IO)), (16, Err(IoError::IO))]);
    assert_eq!(device.sectors(), [0], "one request");
}

#[test]
fn s16_21_budgets_bound_what_leaves_the_scheduler_and_unused_ones_return() {
    for access in accesses() {
        let (config, device) = config(DeviceShape { budget: Some(3), ..shape(1, 16) });
        let queue = Queue::new(Config { access, ..deadline(config) }).expect("valid");
        let mut sub = queue.submitter().expect("one is free");
        push_all(&mut sub, (0..10).map(|i| write(i * 100, 8)));
        assert_eq!(device.with(|c| c.inside), 3, "{access:?}");
        assert_eq!(queue.budgets_in_use(), 3);
        for _ in 0..10 {
            device.finish(1);
            sub.poll(T0);
            assert!(queue.budgets_in_use() <= 3);
        }
        drain(&mut sub, &mut { T0 }, 1);
        assert_at_rest(&queue, 1);
    }
}

thread_local! {
    /// The queue under test, and the highest number of budgets taken in advance.
    static BUDGETED: RefCell<(Option<Queue<u32>>, u64)> = const { RefCell::new((None, 0)) };
}

/// Notes at each pick how many budgets no request has. Requests leave one by one; each that has left and not completed
/// has one budget.
struct Budgeted {
    issued: u64,
    completed: u64,
}

const BUDGETED_FACTORY: Factory = Factory {
    name: "budgeted",
    summary: "mq-deadline, counting budgets",
    scope: Scope::Queue,
    attributes: &[],
    common: None,
    build: |shape, _| {
        let factory = registry::find("mq-deadline").expect("registered");
        let policy = (factory.build)(shape, &Options::defaults(factory.attributes));
        Box::new(Observed::new(policy, Budgeted { issued: 0, completed: 0 }))
    },
};

impl Observer for Budgeted {
    fn pick(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, hw: HwQueue) -> Pick {
        BUDGETED.with_borrow_mut(|(queue, most)| {
            let queue = queue.as_ref().expect("set before anything is submitted");
            let taken = u64::from(queue.budgets_in_use());
            *most = (*most).max(taken - (self.issued - self.completed));
        });
        let pick = policy.pick(cx, hw);
        self.issued += u64::from(matches!(pick, Pick::Issue(_)));
        pick
    }

    fn completed(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, done: &Done) {
        self.completed += 1;
        policy.completed(cx, done);
    }
}

#[test]
fn s16_21_at_most_8_budgets_are_taken_ahead_of_requests_and_one_by_a_lock() {
    for access in accesses() {
        let (config, device) = config(DeviceShape { budget: Some(60), ..shape(1, 64) });
        let config = config.scheduler(&BUDGETED_FACTORY);
        let queue = Queue::new(Config { access, nr_requests: Some(128), ..config }).expect("valid");
        BUDGETED.set((Some(queue.clone()), 0));
        let mut sub = queue.submitter().expect("one is free");
        for round in 1..5 {
            for i in 0..30 {
                sub.push(T0, write((round * 30 + i) * 100, 8)).expect("there is credit");
            }
            sub.flush(T0);
            let inside = device.with(|c| c.inside);
            assert_eq!(inside as u64, (round * 30).min(60));
            assert_eq!(queue.budgets_in_use() as usize, inside, "those not needed are back");
        }
        device.with(|c| c.inline = true);
        device.finish(1000);
        drain(&mut sub, &mut { T0 }, 100);
        assert_at_rest(&queue, 1);
        let (_, most) = BUDGETED.replace((None, 0));
        assert_eq!(most, if access == Access::Combining { 8 } else { 1 }, "{access:?}");
    }
}

/// Two hardware queues with separate elevators share tags or budgets; when one returns a tag or a budget, the other
/// gets it.
#[test]
fn shared_tags_and_budgets_wake_the_other_elevator() {
    let tags = DeviceShape { shared_tags: true, ..shape(2, 1) };
    let budgets = DeviceShape { budget: Some(1), ..shape(2, 8) };
    for access in accesses() {
        for shape in [tags, budgets] {
            let (config, device) = config(shape);
            let queue = Queue::new(Config { access, submitters: 2, ..config }).expect("valid");
            let mut a = queue.submitter().expect("two were asked for");
            let mut b = queue.submitter().expect("two were asked for");
            submit_each(&mut a, T0, [write(0, 8)]);
            submit_each(&mut b, T0, [write(1000, 8)]);
            assert_eq!(device.sectors(), [0], "{access:?} {shape:?}");
            device.finish(1);
            a.poll(T0);
            b.poll(T0);
            assert_eq!(device.sectors(), [0, 1000]);
            device.finish(1);
            drain(&mut b, &mut { T0 }, 2);
            drain(&mut a, &mut { T0 }, 2);
            assert_at_rest(&queue, 2);
        }
    }
}

#[test]
fn s16_02_shared_tags_bound_all_hardware_queues_together() {
    for access in accesses() {
        for scope in [Scope::Queue, Scope::HwQueue] {
            let (config, device) = config(DeviceShape { shared_tags: true, ..shape(3, 5) });
            let config = Config { access, scope: Some(scope), submitters: 3, ..deadline(config) };
            let queue = Queue::new(config).expect("valid");
            let mut subs = [(); 3].map(|()| queue.submitter().expect("three were asked for"));
            for i in 0..20 {
                for (who, sub) in (0..).zip(&mut subs) {
                    submit_each(sub, T0, [write(who * 100_000 + i * 100, 8)]);
                }
            }
            assert_eq!(queue.tags_in_use(HwQueue(0)), 5, "{access:?} {scope:?}");
            for _ in 0..60 {
                device.finish(1);
                subs.iter_mut().for_each(|sub| sub.poll(T0));
                assert!(device.with(|c| c.inside) <= 5);
            }
            for sub in &mut subs {
                device.finish(60);
                drain(sub, &mut { T0 }, 200);
            }
            assert_eq!(device.with(|c| c.most_inside), 5);
            assert_at_rest(&queue, 3);
        }
    }
}

/// One elevator sees all I/Os, and merges and sorts them; each of two elevators sees only its own.
#[test]
fn one_elevator_for_all_hardware_queues_or_one_each() {
    for access in accesses() {
        let run = |scope| {
            let (config, device) = config(shape(2, 1));
            let nr_requests = Some(4);
            let config = Config { access, scope, nr_requests, submitters: 2, ..deadline(config) };
            let queue = Queue::new(config).expect("valid");
            let mut subs = [(); 2].map(|()| queue.submitter().expect("two were asked for"));
            // One request fills each hardware queue, then the second submitter's write continues the first one's.
            for (first, sub) in [1 << 20, 2 << 20].into_iter().zip(&mut subs) {
                submit_each(sub, T0, [write(first, 8)]);
            }
            submit_each(&mut subs[0], T0, [write(0, 8)]);
            submit_each(&mut subs[1], T0, [write(8, 8)]);
            // A submitter that has seen another one run the elevator leaves work to it for a while.
            (0..10).for_each(|_| subs.iter_mut().for_each(|sub| sub.poll(T0)));
            let merges = queue.stats().merges.back;
            // nr_requests is per hardware queue either way.
            submit_each(&mut subs[0], T0, (0..9).map(|i| write(5000 + i * 100, 8)));
            let inserted = queue.stats().inserted;
            device.with(|c| c.inline = true);
            device.finish(1000);
            subs.iter_mut().for_each(|sub| sub.poll(T0));
            subs.iter_mut().for_each(|sub| drop(drain(sub, &mut { T0 }, 200)));
            assert_at_rest(&queue, 2);
            (merges, inserted)
        };
        assert_eq!(run(None), (1, 5), "{access:?}: mq-deadline prefers one");
        assert_eq!(run(Some(Scope::Queue)), (1, 5));
        assert_eq!(run(Some(Scope::HwQueue)), (0, 6));
    }
}

/// Dropping a queue drops the device with the requests that it holds, without a panic.
#[test]
fn dropping_a_queue_with_requests_in_flight_is_no_bug() {
    let (config, _device) = config(shape(1, 2));
    let queue = Queue::new(deadline(config)).expect("valid");
    let mut sub = queue.submitter().expect("one is free");
    push_all(&mut sub, (0..6).map(|i| write(i * 100, 8)));
    drop(sub);
    drop(queue);
}

/// A request as the device saw it: first sector, sectors, bios and segments.
type Shape = (u64, u32, u32, u16);

/// The requests that a device has seen.
type Seen = Arc<Mutex<Vec<Shape>>>;

/// Fails every request that covers the sector `bad`; ends requests inline, or at the next reap.
struct BadSector {
    bad: u64,
    error: IoError,
    inline: bool,
    held: Vec<Inflight>,
    seen: Seen,
    /// Requeues the second request that it is offered.
    wants_back: bool,
}

impl BadSector {
    fn result(&self, rq: &Inflight) -> IoResult {
        let covers = (rq.sector()..rq.sector() + u64::from(rq.sectors())).contains(&self.bad);
        if covers { Err(self.error) } else { Ok(()) }
    }
}

impl<P> DeviceQueue<P> for BadSector {
    fn enqueue(&mut self, _: Instant, bios: &BioTable<P>, rq: Inflight) -> Enqueued {
        let sum: u32 = rq.bios(bios).map(|bio| bio.sectors).sum();
        assert_eq!((rq.bios(bios).count() as u32, sum), (rq.bio_count(), rq.sectors()));
        let seen = (rq.sector(), rq.sectors(), rq.bio_count(), rq.segments());
        self.seen.lock().expect("no panic").push(seen);
        if self.inline {
            let result = self.result(&rq);
            return Enqueued::Done(rq, result);
        }
        self.held.push(rq);
        Enqueued::Accepted
    }

    fn reap(&mut self, _: Instant, _: &BioTable<P>, out: &mut Vec<Finished>) {
        for rq in std::mem::take(&mut self.held) {
            let offered = self.seen.lock().expect("no panic").len();
            let verdict = match self.wants_back && offered == 2 {
                true => Verdict::Requeue,
                false => Verdict::Done(self.result(&rq)),
            };
            out.push(Finished { rq, verdict });
        }
    }

    fn next_event(&self) -> Option<Instant> {
        Some(if self.held.is_empty() { Instant::MAX } else { T0 })
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        out.append(&mut self.held);
    }
}

/// Marks the case in which the device requeues the first run.
const WANTED_BACK: IoError = IoError::NO_SPACE;

/// The results, by sector, of writes of 8 sectors from 0 on, one for each of `owners`; and the requests that the device
/// saw.
fn run(
    owners: &[u32],
    (bad, error): (u64, IoError),
    change: impl FnOnce(&mut Config<u32>),
    inline: bool,
) -> (Vec<IoResult>, Vec<Shape>, Queue<u32>) {
    let seen = Seen::default();
    let (held, wants_back) = (Vec::new(), error == WANTED_BACK);
    let device = BadSector { bad, error, inline, held, seen: Arc::clone(&seen), wants_back };
    let mut config =
        Config::new(shape(1, 1), vec![Box::new(device) as _]).scheduler(common::deadline());
    change(&mut config);
    let queue = Queue::new(config).expect("valid");
    let mut sub = queue.submitter().expect("one is free");
    // Frozen until all I/Os are submitted, so that they meet in the elevator.
    let freeze = queue.freeze();
    for (n, owner) in (0..).zip(owners) {
        sub.push(T0, Io { owner: Owner(*owner), ..write(n * 8, 8) }).expect("there is credit");
    }
    sub.flush(T0);
    drop(freeze);
    let mut back = vec![None; owners.len()];
    for step in 0..50 {
        sub.poll(T0 + Nanos::from_millis(step));
        sub.reap(u32::MAX, |done| back[done.cookie as usize / 8] = Some(done.result));
    }
    let back = back.into_iter().map(|result| result.expect("all come back")).collect();
    let seen = seen.lock().expect("no panic").clone();
    assert_eq!((sub.outstanding(), queue.stats().completed), (0, owners.len() as u64));
    (back, seen, queue)
}

const FAILS: IoResult = Err(IoError::IO);

#[test]
fn owners_merge_in_the_elevator_and_a_bad_sector_fails_the_owner_whose_it_is() {
    for access in accesses() {
        for inline in [false, true] {
            let bad = (16, IoError::IO);
            let (back, seen, queue) = run(&[1, 1, 2, 3, 3], bad, |c| c.access = access, inline);
            assert_eq!(back, [Ok(()), Ok(()), FAILS, Ok(()), Ok(())], "{access:?} {inline}");
            let apart = [(0, 40, 5, 5), (0, 16, 2, 2), (16, 8, 1, 1), (24, 16, 2, 2)];
            assert_eq!(seen, apart, "{access:?} {inline}");
            let stats = queue.stats();
            assert_eq!((stats.taken_apart, stats.runs, stats.retries), (1, 3, 0));
            assert_eq!((stats.dispatched, stats.completed_requests), (1, 1));
        }
    }
}

#[test]
fn an_owner_whose_ios_lie_apart_is_repeated_in_runs() {
    let (back, seen, _) = run(&[1, 2, 1], (8, IoError::INVALID), |_| {}, false);
    assert_eq!(back, [Ok(()), Err(IoError::INVALID), Ok(())]);
    assert_eq!(seen, [(0, 24, 3, 3), (0, 8, 1, 1), (8, 8, 1, 1), (16, 8, 1, 1)]);
}

#[test]
fn one_owner_alone_is_not_repeated_and_neither_is_what_timed_out() {
    let (back, seen, _) = run(&[1, 1, 1], (8, IoError::IO), |_| {}, false);
    assert_eq!((back, seen.len()), (vec![FAILS; 3], 1));
    let late = IoError::TIMED_OUT;
    let (back, seen, _) = run(&[1, 2], (8, late), |_| {}, false);
    assert_eq!((back, seen.len()), (vec![Err(late); 2], 1));
}

#[test]
fn the_whole_is_tried_again_first() {
    let (back, seen, queue) = run(&[1, 2], (8, IoError::IO), |c| c.retries = 2, false);
    assert_eq!(back, [Ok(()), FAILS]);
    let whole = (0, 16, 2, 2);
    assert_eq!(seen, [whole, whole, whole, (0, 8, 1, 1), (8, 8, 1, 1)]);
    assert_eq!((queue.stats().retries, queue.stats().taken_apart), (2, 1));
}

/// Regression test: a run that the device requeued went to the elevator, which knows only the whole request, and the
/// runs behind it were lost. It must stay with its hardware queue.
#[test]
fn a_run_that_the_device_wants_back_later_comes_again_as_it_is() {
    let (back, seen, _) = run(&[1, 2], (8, WANTED_BACK), |_| {}, false);
    assert_eq!(back, [Ok(()), Err(WANTED_BACK)]);
    assert_eq!(seen, [(0, 16, 2, 2), (0, 8, 1, 1), (0, 8, 1, 1), (8, 8, 1, 1)]);
}

/// A queue may be dropped while runs wait.
#[test]
fn a_request_in_runs_ends_with_its_queue() {
    let seen = Seen::default();
    let (held, inline, wants_back) = (Vec::new(), false, false);
    let device = BadSector { bad: 0, error: IoError::IO, inline, held, seen, wants_back };
    let config =
        Config::new(shape(1, 1), vec![Box::new(device) as _]).scheduler(common::deadline());
    let queue = Queue::new(config).expect("valid");
    let mut sub = queue.submitter().expect("one is free");
    let freeze = queue.freeze();
    for owner in 0..4 {
        sub.push(T0, Io { owner: Owner(owner), ..write(u64::from(owner) * 8, 8) }).expect("credit");
    }
    sub.flush(T0);
    drop(freeze);
    sub.poll(T0);
    drop((sub, queue));
    assert_eq!(blkmq_engine::leaked_bios(), 0);
}
