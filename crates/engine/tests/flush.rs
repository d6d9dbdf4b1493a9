//! Flush sequences, seen from the device and from the submitters (`spec/framework.md` section 12 and
//! section 16, point 20).

use crate::common;

use blkmq_core::{HwQueue, Instant, IoError, IoFlags, IoResult, Nanos, Op, Rng};
use blkmq_engine::{
    Access, Config, DeviceShape, Io, PumpMode, Queue, QueueStats, Submitter, WriteCache,
};
use blkmq_sched::{Scope, registry};
use common::{
    Call, Calls, Handle, Moods, accesses, assert_at_rest, config, drain, shape, submit_each, write,
};

const T0: Instant = Instant::ZERO;
const BACK: WriteCache = WriteCache::Back { fua: false };
const BACK_FUA: WriteCache = WriteCache::Back { fua: true };
const FUA: IoFlags = IoFlags::FUA;
const PREFLUSH: IoFlags = IoFlags::PREFLUSH;

fn cached(cache: WriteCache, hw_queues: u16, depth: u32) -> DeviceShape {
    DeviceShape { cache, ..shape(hw_queues, depth) }
}

fn with(sector: u64, flags: IoFlags) -> Io<u32> {
    Io { flags, ..write(sector, 8) }
}

/// A bare flush; its cookie is `name`.
fn flush(name: u64) -> Io<u32> {
    Io { op: Op::Flush, sector: 0, sectors: 0, ..write(name, 8) }
}

/// Runs `test` on a queue with one submitter, for each access and each policy.
fn each(shape: DeviceShape, mut test: impl FnMut(&Queue<u32>, &mut Submitter<u32>, &Handle)) {
    for access in accesses() {
        for scheduler in registry::ALL {
            let (config, device) = config(shape);
            let config = Config { access, nr_requests: Some(16), ..config };
            let queue = Queue::new(config.scheduler(scheduler)).expect("valid");
            let mut sub = queue.submitter().expect("one is free");
            test(&queue, &mut sub, &device);
            assert_eq!(sub.in_flight(), 0);
            assert_at_rest(&queue, shape.hw_queues);
        }
    }
}

/// Finishes the oldest request at the device.
fn step(sub: &mut Submitter<u32>, device: &Handle) {
    device.finish(1);
    sub.poll(T0);
}

fn ops(device: &Handle) -> Vec<Op> {
    device.with(|c| c.arrivals.iter().map(|a| a.op).collect())
}

/// Cookies and results of the I/Os that have ended.
fn ended(sub: &mut Submitter<u32>) -> Vec<(u64, IoResult)> {
    let mut ended = Vec::new();
    sub.reap(u32::MAX, |c| ended.push((c.cookie, c.result)));
    ended
}

#[test]
fn s16_20_flush_data_flush_in_this_order() {
    each(cached(BACK, 1, 4), |queue, sub, device| {
        submit_each(sub, T0, [with(64, PREFLUSH | FUA)]);
        let all = [Op::Flush, Op::Write, Op::Flush];
        for done in 0..3 {
            assert_eq!(ops(device), all[..=done]);
            assert_eq!(queue.tags_in_use(HwQueue(0)), 1, "a tag for each step");
            assert_eq!(ended(sub), []);
            step(sub, device);
        }
        assert_eq!((ended(sub), ops(device).len()), (vec![(64, Ok(()))], 3));
        let (flush, data) = device.with(|c| (c.arrivals[0], c.arrivals[1]));
        assert_eq!((flush.sectors, flush.bios, flush.flags), (0, 0, IoFlags::NONE));
        assert_eq!((data.sector, data.sectors, data.bios), (64, 8, 1));
        assert_eq!(data.flags, IoFlags::SYNC, "neither flag is for the device");
    });
}

#[test]
fn s16_20_only_the_steps_that_it_takes() {
    for (cache, flags, expected) in [
        (BACK, FUA, &[Op::Write, Op::Flush][..]),
        (BACK, PREFLUSH, &[Op::Flush, Op::Write]),
        (BACK, IoFlags::SYNC, &[Op::Write]),
        (BACK_FUA, FUA, &[Op::Write]),
        (BACK_FUA, PREFLUSH | FUA, &[Op::Flush, Op::Write]),
        (WriteCache::Through, PREFLUSH | FUA, &[Op::Write]),
    ] {
        each(cached(cache, 1, 4), |_, sub, device| {
            submit_each(sub, T0, [with(64, flags)]);
            expected.iter().for_each(|_| step(sub, device));
            assert_eq!(ended(sub), [(64, Ok(()))], "{cache:?} {flags:?}");
            assert_eq!(ops(device), expected, "{cache:?} {flags:?}");
            let data =
                device.with(|c| *c.arrivals.iter().find(|a| a.op == Op::Write).expect("one"));
            let fua = cache == BACK_FUA && flags.contains(FUA);
            assert_eq!(data.flags.contains(FUA), fua, "{cache:?} {flags:?}");
            assert!(!data.flags.contains(PREFLUSH));
        });
    }
}

#[test]
fn s16_20_without_a_volatile_cache_a_flush_is_nothing() {
    each(shape(1, 4), |queue, sub, device| {
        sub.push(T0, flush(1)).expect("there is credit");
        assert_eq!(ended(sub), [(1, Ok(()))], "not even a pass");
        // Flags without effect do not keep adjacent I/Os apart.
        submit_each(sub, T0, []);
        sub.push(T0, with(0, FUA)).expect("there is credit");
        sub.push(T0, with(8, PREFLUSH)).expect("there is credit");
        sub.flush(T0);
        step(sub, device);
        assert_eq!(ended(sub).len(), 2);
        let stats = queue.stats();
        assert_eq!((stats.flushes.needless, stats.flushes.issued, stats.issued), (1, 0, 1));
    });
    each(cached(BACK, 1, 4), |_, sub, device| {
        sub.push(T0, flush(1)).expect("there is credit");
        sub.flush(T0);
        assert_eq!(ended(sub), [], "with one it is a request");
        step(sub, device);
        assert_eq!((ended(sub), ops(device)), (vec![(1, Ok(()))], vec![Op::Flush]));
    });
}

#[test]
fn s16_20_one_flush_serves_all_that_wait() {
    for access in accesses() {
        let (config, device) = config(cached(BACK, 1, 64));
        let config = Config { access, submitters: 16, ..config };
        let queue = Queue::new(config.scheduler(common::deadline())).expect("valid");
        device.with(|c| c.service = Some(Nanos::from_micros(50)));
        let mut subs: Vec<_> = (0..16).map(|_| queue.submitter().expect("16")).collect();
        let mut now = T0;
        let mut left = [20_u64; 16];
        let mut done = 0;
        while done < 16 * 20 {
            for (at, sub) in subs.iter_mut().enumerate() {
                if sub.in_flight() == 0 && left[at] > 0 {
                    left[at] -= 1;
                    submit_each(sub, now, [with((at as u64 * 100 + left[at]) * 64, FUA)]);
                }
                sub.poll(now);
                sub.reap(u32::MAX, |c| {
                    assert_eq!(c.result, Ok(()));
                    done += 1;
                });
            }
            now += Nanos::from_micros(10);
        }
        assert_at_rest(&queue, 1);
        let flushes = queue.stats().flushes;
        assert_eq!(flushes.asked, 16 * 20);
        assert!(flushes.issued * 10 <= flushes.asked, "{access:?}: {flushes:?}");
        let seen = ops(&device).iter().filter(|op| **op == Op::Flush).count();
        assert_eq!(seen as u64, flushes.issued, "and so many are there");
    }
}

#[test]
fn s16_20_a_flush_that_began_before_the_data_was_done_does_not_count() {
    each(cached(BACK, 1, 4), |_, sub, device| {
        submit_each(sub, T0, [flush(1), with(64, FUA)]);
        assert_eq!(ops(device), [Op::Flush, Op::Write]);
        device.with(|c| c.newest_first = true);
        step(sub, device);
        assert_eq!(ops(device).len(), 2, "C1: one flush at a time");
        step(sub, device);
        assert_eq!(ended(sub), [(1, Ok(()))]);
        assert_eq!(ops(device)[2..], [Op::Flush], "one of its own");
        step(sub, device);
        assert_eq!(ended(sub), [(64, Ok(()))]);
    });
}

#[test]
fn s16_20_a_flush_waits_for_data_but_not_longer_than_5_s() {
    let due = T0 + Nanos::from_secs(5);
    each(cached(BACK, 1, 4), |queue, sub, device| {
        device.with(|c| c.interrupts = true);
        submit_each(sub, T0, [with(64, FUA), flush(1)]);
        assert_eq!(ops(device), [Op::Write], "C2: its flush could be shared");
        assert_eq!(sub.next_deadline(), Some(due));
        sub.poll(Instant::from_nanos(due.as_nanos() - 1));
        assert_eq!(sub.next_deadline(), Some(due));
        assert!(sub.prepare_park(T0).is_some(), "there is nothing to do but wait");
        sub.unpark();
        sub.poll(due);
        assert_eq!(ops(device), [Op::Write, Op::Flush], "C3");
        device.with(|c| (c.newest_first, c.finish) = (true, 1));
        let _ = queue.pump(HwQueue(0), due);
        assert_eq!(ended(sub), [(1, Ok(()))]);
        for _ in 0..2 {
            assert_eq!(sub.in_flight(), 1);
            device.finish(1);
            let _ = queue.pump(HwQueue(0), due);
        }
        assert_eq!(ended(sub), [(64, Ok(()))]);
        assert_eq!(ops(device), [Op::Write, Op::Flush, Op::Flush]);
    });
}

#[test]
fn s16_20_an_error_in_any_step_is_the_end() {
    for (at, arrivals) in [(0, 1), (1, 2), (2, 3)] {
        each(cached(BACK, 1, 4), |_, sub, device| {
            submit_each(sub, T0, [with(64, PREFLUSH | FUA)]);
            (0..at).for_each(|_| step(sub, device));
            device.with(|c| c.result = Some(Err(IoError::IO)));
            step(sub, device);
            assert_eq!(ended(sub), [(64, Err(IoError::IO))], "step {at}");
            device.with(|c| c.result = None);
            sub.poll(T0);
            assert_eq!(ops(device).len(), arrivals, "nothing follows");
        });
    }
    each(cached(BACK, 1, 4), |queue, sub, device| {
        device.with(|c| c.result = Some(Err(IoError::IO)));
        submit_each(sub, T0, [with(0, FUA), flush(1), with(64, PREFLUSH)]);
        step(sub, device);
        assert_eq!(ended(sub), [(0, Err(IoError::IO))]);
        step(sub, device);
        let both = [(1, Err(IoError::IO)), (64, Err(IoError::IO))];
        assert_eq!(ended(sub), both, "all that the flush was to serve");
        assert_eq!(queue.stats().flushes.dataless, 2);
    });
}

#[test]
fn s16_20_a_step_that_the_device_wants_again_comes_again() {
    each(cached(BACK, 1, 4), |_, sub, device| {
        submit_each(sub, T0, [with(64, PREFLUSH | FUA)]);
        for _ in 0..3 {
            device.with(|c| c.requeue = 1);
            sub.poll(T0);
            step(sub, device);
        }
        assert_eq!(ended(sub), [(64, Ok(()))]);
        let (flush, write) = (Op::Flush, Op::Write);
        assert_eq!(ops(device), [flush, flush, write, write, flush, flush]);
        assert!(device.with(|c| c.arrivals.iter().all(|a| (a.bios == 0) == (a.op == flush))));
    });
}

#[test]
fn s16_20_data_behind_a_flush_keeps_its_order() {
    each(cached(BACK, 1, 1), |_, sub, device| {
        submit_each(sub, T0, [write(0, 8), flush(1)]);
        // By sectors or deadlines they would not leave in this order.
        submit_each(sub, T0, [300, 100, 200].map(|sector| with(sector, PREFLUSH)));
        submit_each(sub, T0, [write(16, 8)]);
        (0..7).for_each(|_| step(sub, device));
        assert_eq!(device.sectors()[3..], [300, 100, 200, 16], "and ahead of what came later");
        assert_eq!(ops(device)[..3], [Op::Write, Op::Flush, Op::Flush]);
        assert_eq!(ended(sub).len(), 6);
    });
}

#[test]
fn s16_20_steps_pass_what_the_policy_holds_and_never_merge() {
    each(cached(BACK, 1, 1), |_, sub, device| {
        submit_each(sub, T0, [with(64, PREFLUSH), write(0, 8), write(56, 8), write(72, 8)]);
        step(sub, device);
        step(sub, device);
        assert_eq!(device.sectors()[1], 64, "the data as soon as the flush was done");
        (0..3).for_each(|_| step(sub, device));
        assert!(device.with(|c| c.arrivals.iter().all(|a| a.bios < 2)));
        assert_eq!(ended(sub).len(), 4);
    });
}

/// One submitter fills the scheduler, then each of the others submits a bare flush. Flushes that find a slot go first,
/// the others wait for one. None is refused, lost, or delays later I/Os.
#[test]
fn s16_20_more_bare_flushes_than_slots_wait() {
    const FLUSHERS: u64 = 20;
    for access in accesses() {
        for writes in [4, 2, 0] {
            let (config, device) = config(cached(BACK, 1, 1));
            let submitters = FLUSHERS as u16 + 1;
            let config = Config { access, submitters, nr_requests: Some(4), ..config };
            let queue = Queue::new(config).expect("valid");
            let mut subs: Vec<_> =
                (0..submitters).map(|_| queue.submitter().expect("enough")).collect();
            let (writer, flushers) = subs.split_last_mut().expect("there are some");
            submit_each(writer, T0, (0..writes).map(|i| write(i * 64, 8)));
            for (sub, name) in flushers.iter_mut().zip(0..) {
                submit_each(sub, T0, [flush(name)]);
            }
            // More polls than a follower leaves to its leader.
            (0..20).for_each(|_| writer.poll(T0));
            // `nr_requests` slots, and 4 that only flushes may take.
            assert_eq!(queue.stats().inserted, 8, "{access:?}, {writes} writes");
            submit_each(writer, T0, [write(1 << 20, 8)]);
            device.with(|c| c.service = Some(Nanos::from_micros(50)));
            let (mut now, mut done) = (T0, 0);
            device.finish(1);
            while done < FLUSHERS + writes + 1 {
                for sub in &mut *flushers {
                    sub.poll(now);
                    sub.reap(u32::MAX, |c| done += u64::from(c.result.is_ok()));
                }
                writer.poll(now);
                writer.reap(u32::MAX, |c| done += u64::from(c.result.is_ok()));
                now += Nanos::from_micros(50);
                assert!(now < T0 + Nanos::from_millis(10), "{access:?}: {done} are done");
            }
            assert_at_rest(&queue, 1);
            let flushes = queue.stats().flushes;
            assert_eq!((flushes.asked, flushes.dataless), (FLUSHERS, FLUSHERS));
            // At best eight at a time, and the first began alone.
            assert!(flushes.issued < FLUSHERS / 2, "{access:?}: {flushes:?}");
        }
    }
}

/// The thread that runs the elevator ends other submitters' I/Os, and those submitters may be asleep.
#[test]
fn s16_20_a_sleeping_submitter_is_woken_when_its_flush_is_done() {
    for access in accesses() {
        let (config, device) = config(cached(BACK, 1, 4));
        let calls = Calls::default();
        let host = Box::new(calls.clone());
        let queue = Queue::new(Config { access, submitters: 2, host, ..config }).expect("valid");
        let mut subs = [(); 2].map(|()| queue.submitter().expect("two were asked for"));
        device.with(|c| c.service = Some(Nanos::from_micros(50)));
        let [awake, sleeper] = &mut subs;
        submit_each(sleeper, T0, [with(64, FUA)]);
        assert!(sleeper.prepare_park(T0).is_some());
        let _ = calls.take();
        for us in [50, 100] {
            // More polls than a follower leaves to its leader.
            (0..20).for_each(|_| awake.poll(T0 + Nanos::from_micros(us)));
        }
        assert_eq!(calls.take(), [Call::Submitter(sleeper.id())], "{access:?}");
        sleeper.unpark();
        assert_eq!(ended(sleeper), [(64, Ok(()))]);
        assert_at_rest(&queue, 1);
    }
}

/// Only a pump thread does any work.
#[test]
fn s16_20_a_pump_thread_carries_a_sequence_to_its_end() {
    for access in accesses() {
        let (config, device) = config(cached(BACK, 1, 4));
        let config = Config { access, pump: PumpMode::Thread, ..config };
        let queue = Queue::new(config).expect("valid");
        let mut sub = queue.submitter().expect("one is free");
        device.with(|c| c.interrupts = true);
        submit_each(&mut sub, T0, [with(64, PREFLUSH | FUA)]);
        for _ in 0..4 {
            device.finish(1);
            let _ = queue.pump(HwQueue(0), T0);
        }
        assert_eq!(ended(&mut sub), [(64, Ok(()))], "{access:?}");
        assert_at_rest(&queue, 1);
    }
}

/// A queue may be dropped in any step of a sequence, wherever the request is: every I/O is answered.
#[test]
fn s16_20_a_queue_may_go_in_the_middle_of_a_sequence() {
    for access in accesses() {
        for steps in 0..3 {
            let (config, device) = config(cached(BACK, 1, 1));
            let queue = Queue::new(Config { access, ..config }).expect("valid");
            let mut sub = queue.submitter().expect("one is free");
            submit_each(&mut sub, T0, [with(64, PREFLUSH | FUA), flush(1), with(0, FUA)]);
            (0..steps).for_each(|_| step(&mut sub, &device));
            drop((sub, queue));
        }
    }
    // A request that a pump has handed back and that no runner has taken.
    let (config, device) = config(cached(BACK, 1, 1));
    let queue = Queue::new(config).expect("valid");
    let mut sub = queue.submitter().expect("one is free");
    submit_each(&mut sub, T0, [flush(1)]);
    let run = queue.begin_run(HwQueue(0)).expect("it is free");
    device.finish(1);
    sub.poll(T0);
    assert_eq!(ended(&mut sub), []);
    std::mem::forget(run);
    drop((sub, queue));
}

/// All kinds of I/O together: no flush is lost or doubled, and every requested flush is done.
fn mixture(seed: u64, access: Access, scope: Scope, cache: WriteCache) -> QueueStats {
    let mut rng = Rng::new(seed);
    let (config, device) = config(cached(cache, 2, 3));
    let config = Config { access, submitters: 3, depth: 16, ..config };
    let mut config = config.scheduler(registry::ALL[(seed % 2) as usize]);
    (config.scope, config.nr_requests) = (Some(scope), Some(4));
    let queue = Queue::new(config).expect("valid");
    let mut subs = [(); 3].map(|()| queue.submitter().expect("three were asked for"));
    let moods = Moods { rng: Rng::new(!seed), resource: 5, dev_resource: 10, requeue: 10 };
    device.with(|c| (c.service, c.moods) = (Some(Nanos::from_micros(30)), Some(moods)));
    let mut now = T0;
    for _ in 0..60 {
        for sub in &mut subs {
            for _ in 0..rng.below(6) {
                let name = rng.below(1 << 20) * 8;
                let io = match rng.below(5) {
                    0 => flush(name),
                    1 => with(name, FUA),
                    2 => with(name, PREFLUSH | FUA),
                    3 => with(name, PREFLUSH),
                    _ => write(name, 8),
                };
                if sub.push(now, io).is_err() {
                    break;
                }
            }
            sub.flush(now);
            sub.poll(now);
            sub.reap(u32::MAX, |c| assert_eq!(c.result, Ok(())));
            now += Nanos(rng.below(2_000_000));
        }
    }
    // The I/Os end in any order, each with the help of all submitters.
    for _ in 0..1000 {
        subs.iter_mut().for_each(|sub| {
            sub.poll(now);
            sub.reap(u32::MAX, |c| assert_eq!(c.result, Ok(())));
        });
        now += Nanos::from_micros(100);
    }
    subs.iter_mut().for_each(|sub| drop(drain(sub, &mut now, 1)));
    assert_at_rest(&queue, 2);
    queue.stats()
}

#[test]
fn s16_20_no_flush_is_lost_or_doubled() {
    for access in accesses() {
        for scope in [Scope::Queue, Scope::HwQueue] {
            for cache in [BACK, BACK_FUA] {
                for seed in 0..8 {
                    let stats = mixture(seed, access, scope, cache);
                    let flushes = stats.flushes;
                    assert!(flushes.issued > 10 && flushes.issued < flushes.asked, "{stats:?}");
                    assert!(stats.requeues > 10 && flushes.dataless > 10, "{stats:?}");
                }
            }
        }
    }
}
