//! Back-pressure, requeues, budgets and order, seen from the device (`spec/framework.md` sections 8 to 10).

mod common;

use blkmq_core::{HwQueue, Instant, IoError, Op};
use blkmq_engine::{Access, Busy, Config, Io, Queue, Submitter};
use blkmq_sched::registry;
use common::{assert_at_rest, config, drain, shape, submit_each, write};

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

fn accesses() -> [Access; 3] {
    Access::ALL.map(|(_, access)| access)
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
        // The test device cannot tell its next event, so the only deadline is "poll it".
        assert_eq!(sub.next_deadline(), Some(T0), "{access:?}");
        device.finish(1);
        sub.poll(T0);
        assert_eq!(device.sectors(), [0, 100], "the completion brought the retry");
        device.finish(1);
        drain(&mut sub, &mut { T0 }, 2);
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
        // What comes now would sort first, but must not overtake.
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
        let (config, device) = config(shape(1, 1));
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

#[test]
fn s16_22_a_busy_device_is_given_one_request_at_a_time() {
    let (config, device) = config(shape(1, 16));
    let queue = Queue::new(deadline(config)).expect("valid");
    let mut sub = queue.submitter().expect("one is free");
    device.with(|c| c.script.push_back(Some(Busy::Resource)));
    push_all(&mut sub, [write(0, 8)]);
    assert!(queue.dispatch_busy(HwQueue(0)) > 0);
    // Keep it busy, and see how many leave the elevator in each batch.
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
        let (config, device) =
            config(blkmq_engine::DeviceShape { budget: Some(3), ..shape(1, 16) });
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

/// Two hardware queues with an elevator each share tags or budgets; what one gives back the other gets.
#[test]
fn shared_tags_and_budgets_wake_the_other_elevator() {
    let tags = blkmq_engine::DeviceShape { shared_tags: true, ..shape(2, 1) };
    let budgets = blkmq_engine::DeviceShape { budget: Some(1), ..shape(2, 8) };
    for shape in [tags, budgets] {
        let (mut config, device) = config(shape);
        config.submitters = 2;
        let queue = Queue::new(config).expect("valid");
        let (mut a, mut b) = (queue.submitter().expect("free"), queue.submitter().expect("free"));
        submit_each(&mut a, T0, [write(0, 8)]);
        submit_each(&mut b, T0, [write(1000, 8)]);
        assert_eq!(device.sectors(), [0], "{shape:?}");
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

/// A queue that goes away takes what the device holds with it, without complaint.
#[test]
fn dropping_a_queue_with_requests_in_flight_is_no_bug() {
    let (config, _device) = config(shape(1, 2));
    let queue = Queue::new(deadline(config)).expect("valid");
    let mut sub = queue.submitter().expect("one is free");
    push_all(&mut sub, (0..6).map(|i| write(i * 100, 8)));
    drop(sub);
    drop(queue);
}
