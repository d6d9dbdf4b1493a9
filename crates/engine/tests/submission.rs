//! Plugs, merging and depths, seen from a submitter and a device (`spec/framework.md` sections 3, 5, 13).

mod common;

use blkmq_core::{Class, HwQueue, Instant, IoFlags, IoPrio, Limits, Op, Owner};
use blkmq_engine::{Config, ConfigError, Io, NoMerges, Queue, Refusal};
use blkmq_sched::registry;
use common::{assert_at_rest, config, drain, read, shape, submit_each, write};

const T0: Instant = Instant::ZERO;

fn deadline() -> &'static blkmq_sched::Factory {
    registry::find("mq-deadline").expect("registered")
}

#[test]
fn one_io_goes_there_and_back() {
    let (config, device) = config(shape(1, 4));
    let queue = Queue::new(config).expect("valid");
    let mut sub = queue.submitter().expect("one is free");
    sub.push(T0, write(8, 8)).expect("there is credit");
    assert_eq!(device.sectors(), [], "plugged, not submitted");
    sub.flush(T0);
    assert_eq!(device.sectors(), [8]);
    device.finish(1);
    assert_eq!(drain(&mut sub, &mut { T0 }, 3), [8]);
    assert_at_rest(&queue, 1);
}

#[test]
fn s16_03_nr_requests_defaults() {
    let nr = |depth, factory: &'static blkmq_sched::Factory| {
        config(shape(1, depth)).0.scheduler(factory).effective_nr_requests()
    };
    let none = registry::find("none").expect("registered");
    assert_eq!(nr(64, deadline()), 128);
    assert_eq!(nr(1024, deadline()), 256);
    assert_eq!(nr(32, deadline()), 64);
    assert_eq!(nr(1024, none), 1024);
    let with = |n| Config { nr_requests: Some(n), ..config(shape(1, 64)).0 };
    assert_eq!(with(1).effective_nr_requests(), 4, "below 4 is raised to 4");
    assert_eq!(Queue::new(with(2049)).expect_err("too deep"), ConfigError::NrRequests(2049));
}

#[test]
fn s16_12_the_33rd_append_flushes_the_plug() {
    let (config, device) = config(shape(1, 64));
    let queue = Queue::new(config).expect("valid");
    let mut sub = queue.submitter().expect("one is free");
    for i in 0..32 {
        sub.push(T0, write(i * 100, 8)).expect("there is credit");
    }
    assert_eq!(device.sectors().len(), 0);
    sub.push(T0, write(3200, 8)).expect("there is credit");
    let expected: Vec<u64> = (0..32).map(|i| i * 100).collect();
    assert_eq!(device.sectors(), expected, "all but the 33rd, in order");
}

#[test]
fn s16_12_a_128_kib_tail_flushes_at_the_next_append() {
    let (config, device) = config(shape(1, 64));
    let queue = Queue::new(config).expect("valid");
    let mut sub = queue.submitter().expect("one is free");
    sub.push(T0, write(0, 256)).expect("there is credit");
    assert_eq!(device.sectors(), []);
    sub.push(T0, write(1000, 8)).expect("there is credit");
    assert_eq!(device.sectors(), [0]);

    let (mut config, device) = common::config(shape(1, 64));
    config.nomerges = NoMerges::None;
    let queue = Queue::new(config).expect("valid");
    let mut sub = queue.submitter().expect("one is free");
    sub.push(T0, write(0, 256)).expect("there is credit");
    sub.push(T0, write(1000, 8)).expect("there is credit");
    assert_eq!(device.sectors(), [], "without merging a long tail is no reason");
}

/// The device is full, so that everything else waits in the elevator. Returns the queue's handle too.
fn behind_a_full_device(
    adjust: impl FnOnce(&mut Config<u32>),
) -> (Queue<u32>, common::Handle, blkmq_engine::Submitter<u32>) {
    let (config, device) = config(shape(1, 1));
    let mut config = config.scheduler(deadline());
    config.nr_requests = Some(64);
    adjust(&mut config);
    let queue = Queue::new(config).expect("valid");
    let mut sub = queue.submitter().expect("one is free");
    submit_each(&mut sub, T0, [write(1 << 30, 8)]);
    assert_eq!(device.sectors().len(), 1);
    (queue, device, sub)
}

/// Lets everything finish; the requests after the first as (sector, sectors, bios).
fn finish(
    queue: &Queue<u32>,
    device: &common::Handle,
    sub: &mut blkmq_engine::Submitter<u32>,
) -> Vec<(u64, u32, u32)> {
    device.with(|c| c.inline = true);
    device.finish(1000);
    drain(sub, &mut { T0 }, 1000);
    assert_at_rest(queue, 1);
    device.with(|c| c.arrivals[1..].iter().map(|a| (a.sector, a.sectors, a.bios)).collect())
}

#[test]
fn s16_13_a_plug_looks_at_one_candidate_and_the_hash_at_all() {
    let (queue, device, mut sub) = behind_a_full_device(|_| {});
    for io in [write(0, 8), write(100, 8), write(8, 8)] {
        sub.push(T0, io).expect("there is credit");
    }
    assert_eq!(queue.stats().merges.plug, 0, "the tail of the plug was 100");
    sub.flush(T0);
    assert_eq!(queue.stats().merges.back, 1);
    assert_eq!(finish(&queue, &device, &mut sub), [(0, 16, 2), (100, 8, 1)]);
}

#[test]
fn neighbours_merge_in_the_plug_at_both_ends() {
    let (config, device) = config(shape(1, 4));
    let queue = Queue::new(config).expect("valid");
    let mut sub = queue.submitter().expect("one is free");
    for io in [write(16, 8), write(24, 8), write(8, 8)] {
        sub.push(T0, io).expect("there is credit");
    }
    sub.flush(T0);
    assert_eq!(queue.stats().merges.plug, 2);
    device.with(|c| assert_eq!((c.arrivals[0].sector, c.arrivals[0].sectors), (8, 24)));
    device.finish(1);
    assert_eq!(drain(&mut sub, &mut { T0 }, 3), [8, 16, 24], "in the order of the chain");
}

#[test]
fn back_and_front_merges_in_the_elevator() {
    let (queue, device, mut sub) = behind_a_full_device(|_| {});
    submit_each(&mut sub, T0, [write(100, 8), write(108, 8), write(92, 8)]);
    let merges = queue.stats().merges;
    assert_eq!((merges.back, merges.front, merges.request), (1, 1, 0));
    assert_eq!(finish(&queue, &device, &mut sub), [(92, 24, 3)]);
}

#[test]
fn s16_16_an_io_that_bridges_two_requests_leaves_one_with_the_earliest_deadline() {
    let (queue, device, mut sub) = behind_a_full_device(|_| {});
    let late = Instant::from_nanos(1_000_000_000);
    submit_each(&mut sub, T0, [write(108, 8)]);
    submit_each(&mut sub, late, [write(92, 8), write(50, 8), write(100, 8)]);
    let merges = queue.stats().merges;
    // The one-hit cache held 108, so the bridge went to its front; then both went to the end of 92.
    assert_eq!((merges.back, merges.front, merges.request), (0, 1, 1));
    // 5 s after T0 the bridge's oldest part has expired, and nothing else has: it goes first.
    device.with(|c| c.inline = true);
    device.finish(1000);
    drain(&mut sub, &mut Instant::from_nanos(5_000_000_000), 1000);
    let order =
        device.with(|c| c.arrivals[1..].iter().map(|a| (a.sector, a.bios)).collect::<Vec<_>>());
    assert_eq!(order, [(92, 3), (50, 1)]);
    assert_at_rest(&queue, 1);
}

#[test]
fn s16_14_a_request_full_of_segments_grows_no_more() {
    let (queue, device, mut sub) = behind_a_full_device(|config| {
        config.device.limits = Limits { max_segments: 2, ..Limits::default() };
    });
    submit_each(&mut sub, T0, (0..4).map(|i| write(i * 8, 8)));
    assert_eq!(finish(&queue, &device, &mut sub), [(0, 16, 2), (16, 16, 2)]);
}

#[test]
fn s16_15_unlike_ios_do_not_merge_though_contiguous() {
    let idle = IoPrio::new(Class::Idle, 0).expect("0 is a level");
    let unlike = [
        Io { ioprio: idle, ..write(8, 8) },
        Io { write_hint: 3, ..write(8, 8) },
        Io { owner: Owner(7), ..write(8, 8) },
        Io { flags: IoFlags::FUA, ..write(8, 8) },
        read(8, 8),
    ];
    for io in unlike {
        let (queue, device, mut sub) = behind_a_full_device(|_| {});
        submit_each(&mut sub, T0, [write(0, 8), io]);
        assert_eq!(queue.stats().merges.total(), 0, "{io:?}");
        assert_eq!(finish(&queue, &device, &mut sub).len(), 2);
    }
}

#[test]
fn discards_gather_wherever_they_lie() {
    let (queue, device, mut sub) = behind_a_full_device(|config| {
        config.device.limits =
            Limits { max_discard_sectors: 1 << 20, max_discard_segments: 8, ..Limits::default() };
    });
    let discard = |sector| Io { op: Op::Discard, ..write(sector, 8) };
    submit_each(&mut sub, T0, [discard(0), discard(5000), discard(900)]);
    assert_eq!(queue.stats().merges.discard, 2);
    assert_eq!(finish(&queue, &device, &mut sub), [(0, 24, 3)]);
}

#[test]
fn nomerges_1_keeps_the_one_hit_cache_and_2_nothing() {
    let streams = || [write(0, 8), write(500, 8), write(8, 8), write(508, 8), write(516, 8)];
    let run = |nomerges| {
        let (queue, device, mut sub) = behind_a_full_device(|config| config.nomerges = nomerges);
        submit_each(&mut sub, T0, streams());
        let merges = queue.stats().merges;
        finish(&queue, &device, &mut sub);
        (merges.plug, merges.total())
    };
    assert_eq!(run(NoMerges::All), (0, 3));
    assert_eq!(
        run(NoMerges::Simple),
        (0, 1),
        "0 is in the cache, so 8 joins it; the stream at 500 has no luck"
    );
    assert_eq!(run(NoMerges::None), (0, 0));
}

/// The lesson of the reverted kernel series: what waits for a scheduler tag can still merge.
#[test]
fn an_io_without_a_slot_still_merges() {
    let (queue, device, mut sub) = behind_a_full_device(|config| {
        config.nr_requests = Some(4);
        config.submitters = 2;
    });
    // One slot is at the device; three wait; the fourth finds none.
    submit_each(&mut sub, T0, [write(0, 8), write(1000, 8), write(2000, 8), write(3000, 8)]);
    let mut other = queue.submitter().expect("two were asked for");
    submit_each(&mut other, T0, [write(8, 8), write(1008, 8)]);
    assert_eq!(queue.stats().merges.back, 2);
    device.with(|c| c.inline = true);
    device.finish(1000);
    drain(&mut sub, &mut { T0 }, 1000);
    drain(&mut other, &mut { T0 }, 1000);
    assert_at_rest(&queue, 1);
}

#[test]
fn s8_09_async_depth_leaves_the_rest_to_sync_reads() {
    let (config, device) = config(shape(1, 1));
    let mut config = config.scheduler(deadline());
    config.nr_requests = Some(16);
    config.submitters = 2;
    config.options.set("async_depth", "8").expect("mq-deadline has it");
    let queue = Queue::new(config).expect("valid");
    let mut writer = queue.submitter().expect("two were asked for");
    let mut reader = queue.submitter().expect("two were asked for");
    submit_each(&mut writer, T0, (0..20).map(|i| write(i * 100, 8)));
    assert_eq!(queue.stats().inserted, 8);
    submit_each(&mut reader, T0, (0..20).map(|i| read(i * 100 + 50, 8)));
    assert_eq!(queue.stats().inserted, 16, "reads have the other eight");
    device.with(|c| c.inline = true);
    device.finish(1000);
    drain(&mut reader, &mut { T0 }, 1000);
    drain(&mut writer, &mut { T0 }, 1000);
    assert_at_rest(&queue, 1);
}

#[test]
fn refusals_hand_back_what_they_refuse() {
    let (mut config, _) = config(shape(1, 4));
    config.depth = 2;
    config.device.limits = Limits { logical_block_size: 4096, capacity: 80, ..Limits::default() };
    let queue = Queue::new(config).expect("valid");
    let mut sub = queue.submitter().expect("one is free");
    let why = |sub: &mut blkmq_engine::Submitter<u32>, io: Io<u32>| {
        let refused = sub.push(T0, io).expect_err("impossible");
        assert_eq!(refused.io, io);
        refused.why
    };
    assert_eq!(why(&mut sub, write(4, 8)), Refusal::Misaligned { block: 4096 });
    assert_eq!(why(&mut sub, write(0, 0)), Refusal::Misaligned { block: 4096 });
    assert_eq!(why(&mut sub, write(80, 8)), Refusal::OutOfRange { capacity: 80 });
    assert_eq!(why(&mut sub, write(u64::MAX - 7, 8)), Refusal::OutOfRange { capacity: 80 });
    assert_eq!(why(&mut sub, write(0, 1 << 20)), Refusal::TooLong { most: 8192 });
    let discard = Io { op: Op::Discard, ..write(0, 8) };
    assert_eq!(why(&mut sub, discard), Refusal::Unsupported(Op::Discard));
    sub.push(T0, write(0, 8)).expect("there is credit");
    sub.push(T0, write(16, 8)).expect("there is credit");
    assert_eq!(why(&mut sub, write(32, 8)), Refusal::NoCredit { depth: 2 });
}

#[test]
fn submitters_are_limited_and_their_numbers_return() {
    let (mut config, _) = config(shape(2, 4));
    config.submitters = 2;
    let queue = Queue::new(config).expect("valid");
    let first = queue.submitter().expect("two were asked for");
    let second = queue.submitter().expect("two were asked for");
    assert_eq!((first.hw(), second.hw()), (HwQueue(0), HwQueue(1)));
    assert!(queue.submitter().is_err());
    let id = first.id();
    drop(first);
    assert_eq!(queue.submitter().expect("one came back").id(), id);
}
