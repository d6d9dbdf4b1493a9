//! Cancels I/Os that still wait, in every place, and leaves alone those that do not.
//!
//! Submitters that are dropped with I/Os in flight: their places become free when the I/Os are done.

use crate::common::{
    Handle, accesses, assert_at_rest, config, deadline, drain, read, replan, shape, submit_each,
    write,
};
use blkmq_core::{HwQueue, Instant, IoError, IoFlags, IoResult, Nanos, Op};
use blkmq_engine::{
    Access, Busy, CancelStats, Config, DeviceShape, Io, NoMerges, NoSubmitterLeft, Queue,
    Submitter, WriteCache,
};
use blkmq_sched::{Factory, Scope, registry};

const T0: Instant = Instant::ZERO;

const HW: HwQueue = HwQueue(0);

const GONE: IoResult = Err(IoError::CANCELLED);

fn none() -> &'static Factory {
    registry::find("none").expect("registered")
}

/// A queue around one hardware queue of this depth, with one submitter.
fn queue_of(depth: u32, config_of: impl FnOnce(Config<u32>) -> Config<u32>) -> Bench {
    let (config, device) = config(shape(1, depth));
    let queue = Queue::new(config_of(config)).expect("valid");
    let sub = queue.submitter().expect("one is free");
    Bench { queue, sub, device }
}

struct Bench {
    queue: Queue<u32>,
    sub: Submitter<u32>,
    device: Handle,
}

/// Runs `test` for each way into an elevator and each policy.
fn each(depth: u32, test: impl Fn(&mut Bench)) {
    for access in accesses() {
        for scheduler in registry::ALL {
            let nr_requests = Some(4);
            let mut bench = queue_of(depth, |config| {
                Config { access, nr_requests, ..config }.scheduler(scheduler)
            });
            test(&mut bench);
            bench.device.finish(100);
            drain(&mut bench.sub, &mut { T0 }, 100);
            assert_at_rest(&bench.queue, 1);
        }
    }
}

impl Bench {
    fn submit(&mut self, ios: impl IntoIterator<Item = Io<u32>>) {
        submit_each(&mut self.sub, T0, ios);
    }

    fn cancel(&mut self, cookie: u64) {
        self.sub.cancel(T0, cookie);
    }

    /// Cookies and results of the I/Os that have ended since the last call.
    fn ended(&mut self) -> Vec<(u64, IoResult)> {
        ended(&mut self.sub)
    }

    fn counted(&self) -> CancelStats {
        self.queue.stats().cancelled
    }
}

fn ended(sub: &mut Submitter<u32>) -> Vec<(u64, IoResult)> {
    let mut all = Vec::new();
    sub.reap(u32::MAX, |done| {
        all.push((done.cookie, done.result));
    });
    all
}

/// Reads that are too far apart to merge. Reads, because some policies have fewer slots for other I/Os.
fn far(n: u64) -> Io<u32> {
    read(n * 1000, 8)
}

const fn cookie(n: u64) -> u64 {
    n * 1000
}

#[test]
fn in_the_plug_an_io_is_given_up_at_once() {
    each(8, |bench| {
        for n in 0..3 {
            bench.sub.push(T0, far(n)).expect("there is credit");
        }
        bench.cancel(cookie(1));
        assert_eq!(bench.ended(), [(cookie(1), GONE)]);
        bench.cancel(cookie(1));
        assert_eq!(bench.ended(), [], "it is gone");
        bench.sub.flush(T0);
        assert_eq!(bench.device.sectors(), [0, 2000]);
        assert_eq!(bench.counted(), CancelStats { plugged: 1, staged: 0, held: 0 });
    });
}

#[test]
fn what_was_given_up_in_the_plug_is_no_candidate_for_merging() {
    each(8, |bench| {
        for sector in [0, 1000] {
            bench.sub.push(T0, write(sector, 8)).expect("there is credit");
        }
        bench.cancel(1000);
        bench.sub.push(T0, write(1008, 8)).expect("there is credit");
        bench.sub.push(T0, write(1016, 8)).expect("there is credit");
        bench.cancel(1008);
        bench.sub.flush(T0);
        assert_eq!(bench.ended(), [(1000, GONE)], "the other one is merged");
        assert_eq!(bench.device.with(|c| c.arrivals[1].sectors), 16);
    });
}

#[test]
fn staged_ios_are_given_up_from_between_those_of_other_submitters() {
    for scheduler in registry::ALL {
        let mut bench = queue_of(8, |config| config.scheduler(scheduler));
        let mut run = bench.queue.begin_run(HW).expect("it is free");
        bench.submit((0..6).map(far));
        bench.cancel(cookie(4));
        bench.cancel(cookie(1));
        assert_eq!(bench.ended(), [], "the runner has not looked yet");
        bench.submit([far(6)]);
        run.step(T0);
        assert_eq!(bench.ended(), [(cookie(4), GONE), (cookie(1), GONE)]);
        run.finish(T0);
        assert_eq!(bench.device.sectors(), [0, 2, 3, 5, 6].map(cookie), "in their order");
        assert_eq!(bench.counted(), CancelStats { plugged: 0, staged: 2, held: 0 });
        bench.device.finish(5);
        assert_eq!(drain(&mut bench.sub, &mut { T0 }, 3).len(), 5);
        assert_at_rest(&bench.queue, 1);
    }
}

/// 7 I/Os, of which the device has one and the elevator three; the others have no slots.
#[test]
fn staged_for_want_of_a_slot_an_io_is_given_up() {
    each(1, |bench| {
        bench.submit((0..7).map(far));
        assert_eq!((bench.device.sectors().len(), bench.queue.stats().inserted), (1, 4));
        bench.cancel(cookie(5));
        assert_eq!(bench.ended(), [(cookie(5), GONE)]);
        assert_eq!(bench.counted(), CancelStats { plugged: 0, staged: 1, held: 0 });
        assert_eq!(bench.queue.stats().inserted, 4);
        for _ in 0..5 {
            bench.device.finish(1);
            bench.sub.poll(T0);
        }
        let mut arrived = bench.device.sectors();
        arrived.sort_unstable();
        assert_eq!(arrived, [0, 1, 2, 3, 4, 6].map(cookie));
    });
}

#[test]
fn a_held_io_is_given_up_and_its_slot_is_free_for_others() {
    each(1, |bench| {
        bench.submit((0..5).map(far));
        assert_eq!((bench.device.sectors(), bench.queue.stats().inserted), (vec![0], 4));
        bench.cancel(cookie(2));
        assert_eq!(bench.ended(), [(cookie(2), GONE)]);
        assert_eq!(bench.queue.stats().inserted, 5, "the one that waited for a slot is in");
        bench.cancel(cookie(1));
        bench.cancel(cookie(3));
        bench.cancel(cookie(4));
        assert_eq!(bench.ended(), [1, 3, 4].map(|n| (cookie(n), GONE)));
        assert_eq!(bench.counted(), CancelStats { plugged: 0, staged: 0, held: 4 });
        bench.submit([far(9)]);
        bench.device.finish(2);
        assert_eq!(drain(&mut bench.sub, &mut { T0 }, 10), [0, 9].map(cookie));
        assert_eq!(bench.device.sectors(), [0, 9].map(cookie));
    });
}

/// mq-deadline continues in its order without the cancelled I/Os.
#[test]
fn the_order_of_the_rest_is_the_policys() {
    for access in accesses() {
        let mut bench = queue_of(1, |config| Config { access, ..config }.scheduler(deadline()));
        bench.submit([0, 50, 20, 40, 10, 30].map(far));
        bench.cancel(cookie(40));
        bench.cancel(cookie(10));
        for _ in 0..4 {
            bench.device.finish(1);
            bench.sub.poll(T0);
        }
        assert_eq!(bench.device.sectors(), [0, 20, 30, 50].map(cookie), "{access:?}");
        assert_eq!(bench.sub.in_flight(), 6, "and nothing else is in flight");
        assert_eq!(bench.ended().len(), 6);
        assert_at_rest(&bench.queue, 1);
    }
}

/// A cancelled I/O must not be found when the next one looks for a neighbour.
#[test]
fn nothing_merges_with_what_is_gone() {
    each(1, |bench| {
        bench.submit([write(0, 8), write(1000, 8)]);
        bench.cancel(1000);
        bench.submit([write(1008, 8), write(992, 8)]);
        assert_eq!(bench.queue.stats().merges.total(), 0);
        assert_eq!(bench.ended(), [(1000, GONE)]);
    });
}

#[test]
fn merged_it_is_too_late() {
    each(1, |bench| {
        bench.submit([write(0, 8), write(1000, 8), write(1008, 8)]);
        assert_eq!(bench.queue.stats().merges.back, 1);
        bench.cancel(1000);
        bench.cancel(1008);
        bench.device.finish(2);
        bench.sub.poll(T0);
        assert_eq!(bench.ended(), [0, 1000, 1008].map(|cookie| (cookie, Ok(()))));
        assert_eq!(bench.counted(), CancelStats::default());
    });
}

#[test]
fn issued_it_is_too_late() {
    each(1, |bench| {
        bench.submit([far(1), far(2)]);
        bench.cancel(cookie(1));
        assert_eq!(bench.ended(), []);
        bench.device.with(|c| c.result = Some(Err(IoError::IO)));
        bench.device.finish(1);
        bench.sub.poll(T0);
        assert_eq!(bench.ended(), [(cookie(1), Err(IoError::IO))], "it ends as it ends");
        bench.device.with(|c| c.result = None);
    });
}

/// A request that the device refused counts as issued: it waits ahead of everything, with its tag.
#[test]
fn refused_by_the_device_it_is_too_late() {
    each(4, |bench| {
        bench.device.with(|c| c.room = 1);
        bench.submit([far(1), far(2)]);
        bench.cancel(cookie(2));
        assert_eq!(bench.ended(), []);
    });
}

#[test]
fn what_the_device_wants_back_later_is_given_up_while_it_waits_again() {
    each(4, |bench| {
        let refused = std::iter::repeat_n(Some(Busy::Resource), 100);
        bench.device.with(|c| c.script = std::iter::once(None).chain(refused).collect());
        bench.submit([far(0), far(1)]);
        assert_eq!(bench.device.sectors(), [0]);
        bench.device.with(|c| c.requeue = 1);
        bench.sub.poll(T0);
        assert_eq!(bench.queue.stats().requeues, 1);
        // It waits in the elevator, behind the request that the device refuses.
        bench.cancel(cookie(1));
        bench.cancel(cookie(0));
        assert_eq!(bench.ended(), [(cookie(0), GONE)]);
        assert_eq!(bench.counted(), CancelStats { plugged: 0, staged: 0, held: 1 });
        bench.device.with(|c| c.script.clear());
        bench.device.finish(1);
        assert_eq!(drain(&mut bench.sub, &mut { T0 }, 10), [cookie(1)]);
        assert_eq!(bench.device.sectors(), [0, 1].map(cookie));
    });
}

#[test]
fn an_unknown_cookie_cancels_nothing() {
    each(1, |bench| {
        bench.cancel(7);
        bench.submit([far(1), far(2), far(3)]);
        bench.cancel(7);
        assert_eq!(bench.ended(), []);
        assert_eq!(bench.counted(), CancelStats::default());
    });
}

#[test]
fn an_io_of_another_submitter_with_the_same_cookie_continues() {
    for access in accesses() {
        let (config, device) = config(shape(1, 1));
        let queue = Queue::new(Config { access, submitters: 2, ..config }).expect("valid");
        let mut subs = [(); 2].map(|()| queue.submitter().expect("one is free"));
        submit_each(&mut subs[0], T0, [far(0)]);
        for (sub, sector) in subs.iter_mut().zip([1000, 2000]) {
            submit_each(sub, T0, [Io { cookie: 5, payload: 5, ..write(sector, 8) }]);
        }
        subs[1].cancel(T0, 5);
        assert_eq!((ended(&mut subs[0]), ended(&mut subs[1])), (vec![], vec![(5, GONE)]));
        device.finish(2);
        subs[0].poll(T0);
        assert_eq!(ended(&mut subs[0]), [(0, Ok(())), (5, Ok(()))]);
        assert_at_rest(&queue, 1);
    }
}

#[test]
fn of_several_with_one_cookie_the_oldest_that_waits_is_given_up() {
    each(1, |bench| {
        let mut now = T0;
        for n in [0, 3, 1, 2, 5, 6, 4] {
            now += Nanos(1);
            let io = Io { cookie: 7, payload: 7, ..far(n) };
            submit_each(&mut bench.sub, now, [io]);
        }
        // 0 is issued; 3, 1 and 2 have slots; the others have none.
        for _ in 0..4 {
            bench.sub.cancel(now, 7);
            assert_eq!(bench.ended(), [(7, GONE)]);
        }
        bench.device.finish(3);
        drain(&mut bench.sub, &mut now, 10);
        let mut arrived = bench.device.sectors();
        arrived.sort_unstable();
        assert_eq!(arrived, [0, 4, 6].map(cookie));
    });
}

/// A cookie is returned and reused while an ask for its earlier I/O is still pending.
#[test]
fn an_ask_is_for_what_was_pushed_before_it() {
    for scheduler in registry::ALL {
        let mut bench = queue_of(4, |config| config.scheduler(scheduler));
        bench.submit([far(1)]);
        let mut run = bench.queue.begin_run(HW).expect("it is free");
        bench.cancel(cookie(1));
        bench.device.finish(1);
        bench.sub.poll(T0);
        assert_eq!(bench.ended(), [(cookie(1), Ok(()))], "it was at the device");
        bench.submit([Io { sector: 64, ..far(1) }]);
        run.step(T0);
        assert_eq!(bench.ended(), []);
        run.finish(T0);
        bench.device.finish(1);
        bench.sub.poll(T0);
        assert_eq!(bench.ended(), [(cookie(1), Ok(()))]);
        assert_at_rest(&bench.queue, 1);
    }
}

/// A hundred asks take more than one pass, and their I/Os are not admitted in between.
#[test]
fn a_hundred_at_once_are_given_up() {
    for scheduler in registry::ALL {
        let nomerges = NoMerges::None;
        let mut bench = queue_of(64, |config| Config { nomerges, ..config }.scheduler(scheduler));
        let run = bench.queue.begin_run(HW).expect("it is free");
        bench.submit((0..110).map(far));
        (0..100).rev().for_each(|n| bench.cancel(cookie(n)));
        bench.device.with(|c| c.inline = true);
        run.finish(T0);
        assert_eq!(drain(&mut bench.sub, &mut { T0 }, 20).len(), 110);
        assert_eq!(bench.counted(), CancelStats { plugged: 0, staged: 100, held: 0 });
        assert_eq!(bench.device.with(|c| c.arrivals[0].sector), cookie(100));
        assert_at_rest(&bench.queue, 1);
    }
}

fn cached(depth: u32) -> DeviceShape {
    DeviceShape { cache: WriteCache::Back { fua: false }, ..shape(1, depth) }
}

#[test]
fn a_flush_sequence_goes_on_once_it_has_begun() {
    for access in accesses() {
        // Of four slots, bfq leaves writes too few for all of these.
        for scheduler in registry::ALL.iter().filter(|factory| factory.name != "bfq") {
            let (config, device) = config(cached(1));
            let config = Config { access, nr_requests: Some(4), ..config }.scheduler(scheduler);
            let queue = Queue::new(config).expect("valid");
            let sub = queue.submitter().expect("one is free");
            let mut bench = Bench { queue, sub, device };
            let with = |n: u64, flags| Io { flags: flags | IoFlags::SYNC, ..write(n * 1000, 8) };
            let bare = |name| Io { op: Op::Flush, sector: 0, sectors: 0, ..write(name, 8) };
            bench.submit([far(0), with(1, IoFlags::FUA), with(2, IoFlags::PREFLUSH)]);
            bench.submit([bare(3), far(4), with(5, IoFlags::FUA), bare(6)]);
            // The last writes have no slot; bare flushes do not overtake I/Os that wait ahead of them.
            for cookie in [1000, 2000, 3] {
                bench.cancel(cookie);
            }
            assert_eq!(bench.ended(), [], "{access:?}: slots taken, sequences begun");
            bench.cancel(6);
            bench.cancel(5000);
            assert_eq!(bench.ended(), [(6, GONE), (5000, GONE)], "these had neither");
            bench.sub.push(T0, bare(7)).expect("there is credit");
            bench.cancel(7);
            assert_eq!(bench.ended(), [(7, GONE)], "in the plug");
            bench.device.with(|c| c.inline = true);
            bench.device.finish(1);
            assert_eq!(drain(&mut bench.sub, &mut { T0 }, 50).len(), 5);
            assert_eq!(bench.counted(), CancelStats { plugged: 1, staged: 2, held: 0 });
            assert_at_rest(&bench.queue, 1);
        }
    }
}

#[test]
fn on_a_frozen_queue_ios_are_given_up_where_they_wait() {
    each(1, |bench| {
        bench.submit([far(0), far(1)]);
        let mut freeze = bench.queue.freeze();
        bench.submit([far(2), far(3), far(4)]);
        bench.cancel(cookie(3));
        bench.cancel(cookie(1));
        assert_eq!(bench.ended(), [(cookie(3), GONE), (cookie(1), GONE)]);
        bench.device.finish(1);
        bench.sub.poll(T0);
        assert!((0..3).any(|_| freeze.step(T0)), "nothing that was admitted is left");
        bench.cancel(cookie(2));
        assert_eq!(bench.ended(), [(cookie(0), Ok(())), (cookie(2), GONE)]);
        drop(freeze);
        bench.device.finish(1);
        drain(&mut bench.sub, &mut { T0 }, 5);
        assert_eq!(bench.device.sectors(), [0, 4].map(cookie));
        assert_eq!(bench.counted(), CancelStats { plugged: 0, staged: 2, held: 1 });
    });
}

#[test]
fn a_queue_that_is_being_rebuilt_gives_up_before_and_after() {
    for access in accesses() {
        let mut bench = queue_of(1, |config| Config { access, ..config }.scheduler(deadline()));
        bench.submit([far(0), far(1)]);
        let plan = bench.queue.plan().scheduler(none());
        let mut change = replan(&bench.queue, plan).expect("possible");
        bench.submit([far(2), far(3), far(4)]);
        bench.cancel(cookie(2));
        bench.cancel(cookie(1));
        assert_eq!(bench.ended(), [(cookie(2), GONE), (cookie(1), GONE)]);
        bench.device.finish(1);
        assert!((0..5).any(|_| change.step(T0)), "{access:?}");
        // By this ask the submitter first learns about the new queue.
        bench.cancel(cookie(4));
        assert_eq!(bench.ended(), [(cookie(0), Ok(())), (cookie(4), GONE)]);
        bench.device.finish(1);
        assert_eq!(drain(&mut bench.sub, &mut { T0 }, 5), [cookie(3)]);
        assert_eq!(bench.device.sectors(), [0, 3].map(cookie));
        assert_eq!(bench.counted().total(), 3, "counted on");
        assert_at_rest(&bench.queue, 1);
    }
}

#[test]
fn with_an_elevator_for_each_hardware_queue_ones_own_is_asked() {
    for access in accesses() {
        let (config, device) = config(shape(2, 1));
        let scope = Some(Scope::HwQueue);
        let config = Config { access, scope, submitters: 2, ..config };
        let queue = Queue::new(config).expect("valid");
        let mut subs = [(); 2].map(|()| queue.submitter().expect("one is free"));
        for (at, sub) in (0..).zip(&mut subs) {
            submit_each(sub, T0, [far(10 * at), far(10 * at + 1)]);
        }
        for (at, sub) in (0..).zip(&mut subs) {
            sub.cancel(T0, cookie(10 * at + 1));
            assert_eq!(ended(sub), [(cookie(10 * at + 1), GONE)], "{access:?}");
        }
        device.with(|c| c.inline = true);
        for sub in &mut subs {
            device.finish(1);
            drain(sub, &mut { T0 }, 3);
        }
        assert_at_rest(&queue, 2);
    }
}

/// Even with a pump thread, cancelled I/Os complete without a pump.
#[test]
fn nothing_is_issued_for_it() {
    let mut bench = queue_of(1, |config| Config {
        access: Access::Combining,
        pump: blkmq_engine::PumpMode::Thread,
        ..config
    });
    bench.submit([far(0), far(1), far(2)]);
    bench.cancel(cookie(1));
    assert_eq!(bench.ended(), [(cookie(1), GONE)]);
    bench.device.with(|c| c.inline = true);
    for _ in 0..4 {
        let _ = bench.queue.pump(HW, T0);
    }
    assert_eq!(bench.ended(), [0, 2].map(|n| (cookie(n), Ok(()))));
    assert_eq!(bench.device.sectors(), [0, 2].map(cookie));
    assert_at_rest(&bench.queue, 1);
}

#[test]
fn the_place_of_a_submitter_that_left_comes_back_when_its_ios_are_done() {
    for access in accesses() {
        let (config, device) = config(shape(1, 4));
        let queue = Queue::new(Config { access, submitters: 1, ..config }).expect("valid");
        for round in 0..3 {
            let mut sub = queue.submitter().expect("the place is free");
            for sector in [0, 100] {
                sub.push(T0, read(sector, 8)).expect("there is credit");
            }
            sub.flush(T0);
            drop(sub);
            let none = queue.submitter().map(|_| ()).expect_err("two are in flight");
            assert_eq!(none, NoSubmitterLeft { submitters: 1 });
            assert!(queue.has_departed());
            device.finish(1);
            queue.poll(T0);
            assert!(queue.submitter().is_err(), "one is in flight still");
            device.finish(1);
            queue.poll(T0);
            let sub = queue.submitter().expect("nothing is in flight");
            assert_eq!((sub.in_flight(), queue.has_departed()), (0, false), "round {round}");
        }
    }
}

/// Regression test: I/Os that a dropped submitter had not reaped were in no counter, so the sums of such a queue never
/// agreed again.
#[test]
fn the_counters_add_up_without_a_submitter() {
    for access in accesses() {
        let (config, device) = config(shape(1, 4));
        let queue = Queue::new(Config { access, submitters: 2, ..config }).expect("valid");
        let mut sub = queue.submitter().expect("the place is free");
        for sector in [0, 100, 200] {
            sub.push(T0, read(sector, 8)).expect("there is credit");
        }
        sub.flush(T0);
        device.finish(1);
        sub.poll(T0);
        // One is done, two are in flight, and two that have merged are in the plug.
        for sector in [300, 308] {
            sub.push(T0, read(sector, 8)).expect("there is credit");
        }
        drop(sub);
        device.finish(2);
        queue.poll(T0);
        let mut other = queue.submitter().expect("the place is free");
        other.push(T0, read(0, 8)).expect("there is credit");
        other.flush(T0);
        device.finish(1);
        other.poll(T0);
        assert_eq!(other.reap(1, |_| {}), 1);
        let stats = queue.stats();
        assert_eq!((stats.submitted, stats.completed, stats.dropped), (6, 1, 5), "{access:?}");
        let gone = stats.merges.total() + stats.cancelled.total();
        assert_eq!((gone, stats.completed_requests), (2, 6 - gone), "{access:?}: {stats:?}");
    }
}

#[test]
#[should_panic(expected = "the submitter has a lane")]
fn a_lane_is_not_put_in_the_place_of_another() {
    let [(one, _), (mut other, _)] = [config(shape(1, 4)), config(shape(1, 4))];
    let queue = Queue::new(one).expect("valid");
    let mut sub = queue.submitter().expect("the place is free");
    sub.install_lane(other.queues.pop().expect("one"));
}

#[test]
fn what_was_not_flushed_is_not_done() {
    let (config, device) = config(shape(1, 4));
    let queue = Queue::new(Config { submitters: 1, ..config }).expect("valid");
    let mut sub = queue.submitter().expect("the place is free");
    sub.push(T0, read(0, 8)).expect("there is credit");
    drop(sub);
    let sub = queue.submitter().expect("the place is free at once");
    assert_eq!((sub.in_flight(), device.sectors()), (0, vec![]));
}

#[test]
fn what_the_limit_of_a_group_holds_back_is_given_up_with_its_submitter() {
    let (mut config, device) = config(shape(1, 4));
    config.groups.add("slow", "/").expect("a new name");
    let slow = config.groups.find("slow").expect("there");
    let limit = blkmq_engine::IoMax::default().set("riops=1").expect("a limit");
    config.groups.set_max("slow", limit).expect("there");
    let queue = Queue::new(Config { submitters: 1, ..config }).expect("valid");
    let mut sub = queue.submitter().expect("the place is free");
    for n in 0..4 {
        let io = Io { group: slow, ..read(n * 100, 8) };
        sub.push(T0, io).expect("there is credit");
    }
    sub.flush(T0);
    drop(sub);
    device.finish(4);
    queue.poll(T0);
    assert!(device.sectors().len() < 4, "some were held back");
    assert!(queue.submitter().is_ok(), "none of them is in flight");
}
