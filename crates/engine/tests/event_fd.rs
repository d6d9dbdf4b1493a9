//! Devices that have a descriptor to watch: no thread has to stay awake for them, and a thread that is awake still
//! reaps.

#![cfg(target_os = "linux")]

use crate::common;

use blkmq_core::{HwQueue, Instant, Nanos};
use blkmq_engine::{
    Access, BioTable, Busy, Config, DeviceQueue, Enqueued, Finished, Inflight, PumpMode, Queue,
};
use common::{
    Calls, Handle, accesses, assert_at_rest, config, deadline, drain, replan, shape, submit_each,
    watched_config, write,
};

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const T0: Instant = Instant::ZERO;
const HW: HwQueue = HwQueue(0);

fn queue(
    (config, device): (Config<u32>, Handle),
    access: Access,
    pump: PumpMode,
) -> (Queue<u32>, Handle, Calls) {
    let calls = Calls::default();
    let host = Box::new(calls.clone());
    let config = Config { access, pump, host, submitters: 2, ..config.scheduler(deadline()) };
    (Queue::new(config).expect("valid"), device, calls)
}

#[test]
fn a_waiter_sleeps_while_the_device_works_and_finds_what_it_has_done() {
    for access in accesses() {
        let (queue, device, _) = queue(watched_config(shape(1, 8)), access, PumpMode::Inline);
        let mut sub = queue.submitter().expect("two were asked for");
        submit_each(&mut sub, T0, [write(0, 8), write(100, 8)]);
        assert_eq!(device.sectors(), [0, 100], "{access:?}");
        assert!(sub.prepare_park(T0).is_some(), "{access:?}: the descriptor will tell");
        assert_eq!(sub.next_deadline(), None, "{access:?}");
        sub.unpark();
        device.finish(2);
        assert_eq!(drain(&mut sub, &mut { T0 }, 1).len(), 2, "{access:?}");
        assert_at_rest(&queue, 1);
    }
}

/// Without a descriptor: the outcome of the test above if the engine ignored descriptors.
#[test]
fn without_a_descriptor_a_device_that_cannot_tell_is_polled() {
    let (queue, device, _) = queue(config(shape(1, 8)), Access::default(), PumpMode::Inline);
    let mut sub = queue.submitter().expect("two were asked for");
    submit_each(&mut sub, T0, [write(0, 8)]);
    assert!(sub.prepare_park(T0).is_none(), "nobody else would look");
    assert_eq!(sub.next_deadline(), Some(T0));
    device.finish(1);
    drain(&mut sub, &mut { T0 }, 1);
}

#[test]
fn a_pump_thread_is_told_to_sleep() {
    for access in accesses() {
        let (queue, device, _) = queue(watched_config(shape(1, 8)), access, PumpMode::Thread);
        let mut sub = queue.submitter().expect("two were asked for");
        submit_each(&mut sub, T0, [write(0, 8)]);
        assert_eq!(queue.pump(HW, T0), None, "{access:?}");
        device.finish(1);
        assert_eq!(queue.pump(HW, T0), None, "{access:?}");
        assert_eq!(drain(&mut sub, &mut { T0 }, 1).len(), 1, "{access:?}");
        assert_at_rest(&queue, 1);
    }
}

/// A thread that leaves wakes no other one for the device: the others watch it themselves.
#[test]
fn who_has_everything_back_leaves_the_device_to_those_who_watch_it() {
    let (queue, device, calls) =
        queue(watched_config(shape(1, 8)), Access::default(), PumpMode::Inline);
    let mut leaver = queue.submitter().expect("two were asked for");
    let mut sleeper = queue.submitter().expect("two were asked for");
    submit_each(&mut leaver, T0, [write(0, 8)]);
    submit_each(&mut sleeper, T0, [write(100, 8)]);
    while !device.sectors().contains(&100) {
        sleeper.poll(T0);
    }
    assert!(sleeper.prepare_park(T0).is_some());
    calls.take();
    device.finish(1);
    assert_eq!(drain(&mut leaver, &mut { T0 }, 1), [0]);
    assert_eq!(calls.take(), [], "one is still at the device, and there is nothing else to do");
    sleeper.unpark();
    device.finish(1);
    assert_eq!(drain(&mut sleeper, &mut { T0 }, 1), [100]);
    assert_at_rest(&queue, 1);
}

/// Times that the device names, or that the engine sets itself, are kept as without a descriptor.
#[test]
fn times_count_as_before() {
    let (queue, device, _) =
        queue(watched_config(shape(1, 8)), Access::default(), PumpMode::Inline);
    let mut sub = queue.submitter().expect("two were asked for");
    device.with(|c| c.script.push_back(Some(Busy::Resource)));
    submit_each(&mut sub, T0, [write(0, 8)]);
    let retry = T0 + Nanos::from_millis(3);
    assert_eq!(sub.next_deadline(), Some(retry));
    device.with(|c| c.service = Some(Nanos(5)));
    sub.poll(retry);
    assert_eq!(sub.next_deadline(), Some(retry + Nanos(5)), "the device knows when");
    assert!(sub.prepare_park(retry + Nanos(5)).is_none());
    drain(&mut sub, &mut { retry + Nanos(5) }, 1);
    assert_at_rest(&queue, 1);
}

/// When the scheduler changes, the device moves to another queue, and its descriptor with it.
#[test]
fn a_changed_queue_knows_the_descriptor_of_the_device_that_it_took_over() {
    let (queue, device, _) =
        queue(watched_config(shape(1, 8)), Access::default(), PumpMode::Inline);
    let mut sub = queue.submitter().expect("two were asked for");
    let none = blkmq_sched::registry::find("none").expect("registered");
    let mut change = replan(&queue, queue.plan().scheduler(none)).expect("possible");
    assert!((0..100).any(|_| change.step(T0)), "nothing is in its way");
    submit_each(&mut sub, T0, [write(0, 8)]);
    assert_eq!(device.sectors(), [0]);
    assert!(sub.prepare_park(T0).is_some(), "the descriptor will tell");
    sub.unpark();
    device.finish(1);
    drain(&mut sub, &mut { T0 }, 1);
    assert_at_rest(&queue, 1);
}

/// A device with work while no request is there, such as a copy.
struct Copier {
    has_own_work: bool,
    fd: File,
    reaps: Arc<AtomicU32>,
}

/// The time of its next event.
const NEXT: Instant = Instant::from_nanos(7);

impl DeviceQueue<u32> for Copier {
    fn enqueue(&mut self, _: Instant, _: &BioTable<u32>, rq: Inflight) -> Enqueued {
        Enqueued::Done(rq, Ok(()))
    }

    fn reap(&mut self, _: Instant, _: &BioTable<u32>, _: &mut Vec<Finished>) {
        self.reaps.fetch_add(1, Ordering::Relaxed);
    }

    fn next_event(&self) -> Option<Instant> {
        Some(NEXT)
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    fn has_own_work(&self) -> bool {
        self.has_own_work
    }

    fn abandon(&mut self, _: &mut Vec<Inflight>) {}
}

/// If nothing polled the device, a thread that watches the descriptor would wake for it again and again.
#[test]
fn a_device_with_work_of_its_own_gets_turns_without_requests() {
    for has_own_work in [false, true] {
        let reaps = Arc::new(AtomicU32::new(0));
        let fd = File::open("/dev/null").expect("it is there");
        let copier = Copier { has_own_work, fd, reaps: Arc::clone(&reaps) };
        let (config, _) = config(shape(1, 8));
        let config = Config { queues: vec![Box::new(copier)], submitters: 1, ..config };
        let queue = Queue::new(config.scheduler(deadline())).expect("valid");
        let mut sub = queue.submitter().expect("one was asked for");
        // The queue that was built first, then the one that takes its place.
        for _ in 0..2 {
            reaps.store(0, Ordering::Relaxed);
            for _ in 0..3 {
                sub.poll(T0);
            }
            assert_eq!(reaps.load(Ordering::Relaxed), if has_own_work { 3 } else { 0 });
            assert_eq!(sub.next_deadline(), has_own_work.then_some(NEXT));
            assert!(sub.prepare_park(T0).is_some(), "it may sleep until then");
            sub.unpark();
            let none = blkmq_sched::registry::find("none").expect("registered");
            let mut change = replan(&queue, queue.plan().scheduler(none)).expect("possible");
            assert!((0..100).any(|_| change.step(T0)), "nothing is in its way");
        }
    }
}
