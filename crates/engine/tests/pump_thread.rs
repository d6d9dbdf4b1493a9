//! Pump threads, seen from the host that runs them: when they are woken, the effect of a wake-up, and when a pump asks
//! to be called again (`PumpMode::Thread`). The test plays the threads.

use crate::common;

use blkmq_core::{HwQueue, Instant, Nanos};
use blkmq_engine::{Access, Busy, Config, DeviceShape, PumpMode, Queue, Submitter};
use blkmq_sched::Scope;
use common::{
    Call, Calls, Handle, accesses, assert_at_rest, config, deadline, drain, shape, submit_each,
    write,
};

const T0: Instant = Instant::ZERO;
const HW: HwQueue = HwQueue(0);

fn ms(ms: u64) -> Instant {
    T0 + Nanos::from_millis(ms)
}

/// A queue with pump threads around a device with interrupts.
fn queue_with(
    shape: DeviceShape,
    adjust: impl FnOnce(&mut Config<u32>),
) -> (Queue<u32>, Handle, Calls) {
    let (config, device) = config(shape);
    let calls = Calls::default();
    let host = Box::new(calls.clone());
    let mut config =
        Config { pump: PumpMode::Thread, host, submitters: 2, ..config.scheduler(deadline()) };
    adjust(&mut config);
    device.with(|c| c.interrupts = true);
    (Queue::new(config).expect("valid"), device, calls)
}

fn submitter(queue: &Queue<u32>) -> Submitter<u32> {
    queue.submitter().expect("two were asked for")
}

#[test]
fn a_submission_calls_the_pump_once_and_leaves_the_device_to_it() {
    let (queue, device, calls) = queue_with(shape(1, 8), |_| {});
    let mut sub = submitter(&queue);
    submit_each(&mut sub, T0, [write(0, 8)]);
    assert_eq!(calls.take(), [Call::Pump(HW)]);
    submit_each(&mut sub, T0, [write(100, 8), write(200, 8)]);
    assert_eq!(calls.take(), [], "it has not come yet, so it need not be called again");
    sub.poll(T0);
    assert_eq!(device.sectors(), [], "nobody but the pump issues");
    assert!(sub.prepare_park(T0).is_some(), "and nobody else has anything to do");
    assert_eq!(queue.pump(HW, T0), None, "the device will interrupt");
    assert_eq!(device.sectors(), [0, 100, 200]);
    assert_eq!(calls.take(), []);

    device.finish(3);
    assert_eq!(queue.pump(HW, T0), None);
    assert_eq!(calls.take(), [Call::Submitter(sub.id())], "it was parked");
    sub.unpark();
    let mut ended = 0;
    sub.reap(9, |_| ended += 1);
    assert_eq!(ended, 3);
    assert_at_rest(&queue, 1);
}

#[test]
fn a_submitter_that_is_awake_is_not_woken() {
    for access in accesses() {
        let (queue, device, calls) = queue_with(shape(1, 8), |config| config.access = access);
        let mut sub = submitter(&queue);
        submit_each(&mut sub, T0, [write(0, 8)]);
        let _ = queue.pump(HW, T0);
        device.finish(1);
        calls.take();
        let _ = queue.pump(HW, T0);
        assert_eq!(calls.take(), [], "{access:?}");
        assert!(sub.prepare_park(T0).is_none(), "there is something to reap");
        drain(&mut sub, &mut { T0 }, 1);
        assert_at_rest(&queue, 1);
    }
}

/// Twenty requests for a device of depth 1, and a submitter that sleeps throughout.
#[test]
fn the_pump_thread_keeps_the_elevator_going_by_itself() {
    for access in accesses() {
        let (queue, device, calls) = queue_with(shape(1, 1), |config| config.access = access);
        let mut sub = submitter(&queue);
        for i in 0..20 {
            sub.push(T0, write(i * 100, 8)).expect("there is credit");
        }
        sub.flush(T0);
        let _ = queue.pump(HW, T0);
        assert!(sub.prepare_park(T0).is_some(), "{access:?}");
        for done in 1..=20 {
            device.finish(1);
            let mut again = queue.pump(HW, T0);
            while again.is_some_and(|at| at <= T0) {
                again = queue.pump(HW, T0);
            }
            assert_eq!(device.sectors().len(), (done + 1).min(20), "{access:?}");
        }
        assert!(calls.take().contains(&Call::Submitter(sub.id())));
        sub.unpark();
        assert_eq!(drain(&mut sub, &mut { T0 }, 1).len(), 20);
        assert_at_rest(&queue, 1);
    }
}

/// The pump thread is also responsible for requests that wait for a scheduler tag.
#[test]
fn what_is_staged_for_want_of_a_slot_gets_in_without_its_submitter() {
    for access in accesses() {
        let (queue, device, _) = queue_with(shape(1, 1), |config| {
            config.access = access;
            config.nr_requests = Some(4);
        });
        let mut sub = submitter(&queue);
        submit_each(&mut sub, T0, (0..12).map(|i| write(i * 100, 8)));
        assert_eq!(queue.stats().inserted, 4);
        for _ in 0..40 {
            device.finish(1);
            let _ = queue.pump(HW, T0);
        }
        assert_eq!(device.sectors().len(), 12, "{access:?}");
        drain(&mut sub, &mut { T0 }, 1);
        assert_at_rest(&queue, 1);
    }
}

#[test]
fn s16_06_resource_makes_the_pump_say_when_to_come_back() {
    for access in accesses() {
        let (queue, device, calls) = queue_with(shape(1, 8), |config| config.access = access);
        let mut sub = submitter(&queue);
        device.with(|c| c.script.push_back(Some(Busy::Resource)));
        submit_each(&mut sub, T0, [write(0, 8)]);
        // In the locked modes the submitter itself issues, and the pump thread is woken for the refused request.
        assert_eq!(calls.take(), [Call::Pump(HW)], "{access:?}");
        let locked = access != Access::Combining;
        assert_eq!(queue.stats().busy, u64::from(locked));
        if !locked {
            assert_eq!(queue.pump(HW, T0), Some(ms(3)));
        }
        assert_eq!(device.sectors(), []);
        assert!(sub.prepare_park(ms(2)).is_some(), "{access:?}: it is the pump's business");
        sub.unpark();
        assert_eq!(queue.pump(HW, ms(3)), None);
        assert_eq!(device.sectors(), [0]);
        device.finish(1);
        let _ = queue.pump(HW, ms(3));
        drain(&mut sub, &mut ms(3), 1);
        assert_at_rest(&queue, 1);
    }
}

/// R2 of section 9.1, where the kernel fails: a retry is due, then a pass is requested immediately, then a later one;
/// nothing delays the pass that is due.
#[test]
fn s16_09_a_retry_that_is_armed_neither_delays_a_call_nor_is_lost_by_it() {
    let (queue, device, calls) = queue_with(shape(2, 8), |config| {
        config.scope = Some(Scope::HwQueue);
    });
    let (mut sub, mut other) = (submitter(&queue), submitter(&queue));
    device.with(|c| c.script.extend([None, Some(Busy::Resource)]));
    submit_each(&mut sub, T0, [write(0, 8), write(100, 8)]);
    assert_eq!(queue.pump(HW, T0), Some(ms(3)), "100 is to be offered again then");
    assert_eq!(device.sectors(), [0]);
    // The other hardware queue is not affected.
    submit_each(&mut other, ms(1), [write(5000, 8)]);
    assert_eq!(calls.take(), [Call::Pump(HW), Call::Pump(HwQueue(1))]);
    assert_eq!(queue.pump(HwQueue(1), ms(1)), None);
    assert_eq!(device.sectors(), [0, 5000]);
    // The first request completes: that requests a turn immediately, and brings the retry forward.
    device.finish(1);
    let _ = queue.pump(HW, ms(2));
    assert_eq!(device.sectors(), [0, 5000, 100]);
    device.finish(9);
    let _ = (queue.pump(HW, ms(2)), queue.pump(HwQueue(1), ms(2)));
    drain(&mut sub, &mut ms(2), 1);
    drain(&mut other, &mut ms(2), 1);
    assert_at_rest(&queue, 2);
}

/// One elevator feeds two hardware queues: both their threads are woken, each for its own requests.
#[test]
fn each_hardware_queue_has_a_pump_of_its_own() {
    let (queue, device, calls) = queue_with(shape(2, 2), |_| {});
    let mut sub = submitter(&queue);
    for i in 0..4 {
        sub.push(T0, write(i * 100, 8)).expect("there is credit");
    }
    sub.flush(T0);
    assert_eq!(calls.take(), [Call::Pump(HW), Call::Pump(HwQueue(1))]);
    let _ = queue.pump(HwQueue(1), T0);
    assert_eq!(device.sectors(), [200, 300]);
    let _ = queue.pump(HW, T0);
    assert_eq!(device.with(|c| c.arrivals.iter().map(|a| a.hw).collect::<Vec<_>>()), [1, 1, 0, 0]);
    device.finish(4);
    let _ = (queue.pump(HW, T0), queue.pump(HwQueue(1), T0));
    drain(&mut sub, &mut { T0 }, 1);
    assert_at_rest(&queue, 2);
}

/// One pump returns a tag or a budget that an elevator behind another pump waits for. That elevator's submitter
/// sleeps, and is woken.
#[test]
fn shared_tags_and_budgets_wake_the_submitter_of_the_other_elevator() {
    let tags = DeviceShape { shared_tags: true, ..shape(2, 1) };
    let budgets = DeviceShape { budget: Some(1), ..shape(2, 8) };
    for access in accesses() {
        for shape in [tags, budgets] {
            let (queue, device, calls) = queue_with(shape, |config| {
                config.scope = Some(Scope::HwQueue);
                config.access = access;
            });
            let (mut a, mut b) = (submitter(&queue), submitter(&queue));
            submit_each(&mut a, T0, [write(0, 8)]);
            let _ = queue.pump(HW, T0);
            submit_each(&mut b, T0, [write(1000, 8)]);
            assert!(b.prepare_park(T0).is_some(), "{access:?} {shape:?}: nothing to do for it");
            calls.take();
            device.finish(1);
            let _ = queue.pump(HW, T0);
            assert_eq!(calls.take(), [Call::Submitter(b.id())], "{access:?} {shape:?}");
            b.unpark();
            b.poll(T0);
            let _ = queue.pump(HwQueue(1), T0);
            assert_eq!(device.sectors(), [0, 1000], "{access:?} {shape:?}");
            device.finish(1);
            let _ = queue.pump(HwQueue(1), T0);
            drain(&mut a, &mut { T0 }, 1);
            drain(&mut b, &mut { T0 }, 1);
            assert_at_rest(&queue, 2);
        }
    }
}
