//! Plugs, merging and depths, seen from a submitter and a device (`spec/framework.md` sections 3, 5, 13). Payloads may
//! be in several ranges of memory: counted, divided inside of a range, refused, merged and repeated by owner.

use crate::common;
use crate::common::{
    DiskHandle, Handle, accesses, assert_at_rest, config, deadline, drain, read, shape, storing,
    submit_each, write,
};
use blkmq_buf::{AlignedBuf, BufList};
use blkmq_core::{
    Class, HwQueue, Instant, IoError, IoFlags, IoPrio, Limits, Nanos, Op, Owner, Payload, Rng,
};
use blkmq_engine::{
    Access, Config, ConfigError, DeviceShape, Io, NoMerges, Queue, Refusal, Submitter, WriteCache,
};
use blkmq_sched::{Factory, registry};

const T0: Instant = Instant::ZERO;

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
    let nr = |depth, factory: &'static Factory| {
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

/// The effect of the depths: that many requests are admitted, and the next one waits outside.
#[test]
fn s16_03_a_queue_takes_in_nr_requests_and_no_more() {
    for access in accesses() {
        for (scheduler, depth, nr_requests) in
            [("mq-deadline", 16, 32), ("mq-deadline", 130, 256), ("none", 16, 16)]
        {
            let (config, device) = config(shape(1, depth));
            let config = config.scheduler(registry::find(scheduler).expect("registered"));
            let queue = Queue::new(Config { access, depth: 512, ..config }).expect("valid");
            let mut sub = queue.submitter().expect("one is free");
            submit_each(&mut sub, T0, (0..300).map(|i| write(i * 100, 8)));
            assert_eq!(queue.stats().inserted, nr_requests, "{scheduler} {access:?}");
            device.finish(1);
            sub.poll(T0);
            assert_eq!(queue.stats().inserted, nr_requests + 1, "one for one");
            device.with(|c| c.inline = true);
            device.finish(1000);
            drain(&mut sub, &mut { T0 }, 1000);
            assert_at_rest(&queue, 1);
        }
    }
}

#[test]
fn s16_12_the_33rd_append_flushes_the_plug() {
    for access in accesses() {
        let (config, device) = config(shape(1, 64));
        let queue = Queue::new(Config { access, ..config }).expect("valid");
        let mut sub = queue.submitter().expect("one is free");
        for i in 0..32 {
            sub.push(T0, write(i * 100, 8)).expect("there is credit");
        }
        assert_eq!(device.sectors().len(), 0);
        sub.push(T0, write(3200, 8)).expect("there is credit");
        let expected: Vec<u64> = (0..32).map(|i| i * 100).collect();
        assert_eq!(device.sectors(), expected, "{access:?}: all but the 33rd, in order");
    }
}

#[test]
fn s16_12_a_128_kib_tail_flushes_at_the_next_append() {
    let flushed = |access, nomerges, first| {
        let (config, device) = config(shape(1, 64));
        let queue = Queue::new(Config { access, nomerges, ..config }).expect("valid");
        let mut sub = queue.submitter().expect("one is free");
        sub.push(T0, write(0, first)).expect("there is credit");
        assert_eq!(device.sectors(), [], "not before");
        sub.push(T0, write(1000, 8)).expect("there is credit");
        device.sectors()
    };
    for access in accesses() {
        assert_eq!(flushed(access, NoMerges::All, 256), [0], "{access:?}");
        assert_eq!(flushed(access, NoMerges::All, 255), [], "one sector less");
        assert_eq!(flushed(access, NoMerges::None, 256), [], "without merging it is no reason");
    }
}

/// The last request may also reach that length by merging.
#[test]
fn s16_12_a_tail_that_has_grown_to_128_kib_flushes() {
    let (config, device) = config(shape(1, 64));
    let queue = Queue::new(config).expect("valid");
    let mut sub = queue.submitter().expect("one is free");
    for i in 0..32 {
        sub.push(T0, write(i * 8, 8)).expect("there is credit");
    }
    sub.push(T0, write(256, 8)).expect("it still merges");
    assert_eq!(device.sectors(), []);
    sub.push(T0, write(1000, 8)).expect("there is credit");
    device.with(|c| assert_eq!((c.arrivals.len(), c.arrivals[0].sectors), (1, 264)));
}

#[test]
fn s16_12_each_submitters_order_out_is_its_order_in() {
    for access in accesses() {
        let (config, device) = config(shape(2, 3));
        let config = Config { access, submitters: 4, nr_requests: Some(8), ..config };
        let queue = Queue::new(config).expect("valid");
        let mut subs: Vec<_> = (0..4).map(|_| queue.submitter().expect("free")).collect();
        // Descending, so that only the order of arrival explains the outcome.
        for i in (0..40).rev() {
            for (who, sub) in (0..).zip(&mut subs) {
                sub.push(T0, write(who * 10_000 + i * 100, 8)).expect("there is credit");
                if (i + who) % 5 == 0 {
                    sub.flush(T0);
                }
            }
            device.finish(1);
        }
        subs.iter_mut().for_each(|sub| sub.flush(T0));
        device.with(|c| c.inline = true);
        device.finish(1000);
        for _ in 0..10 {
            subs.iter_mut().for_each(|sub| sub.poll(T0));
        }
        subs.iter_mut().for_each(|sub| drop(drain(sub, &mut { T0 }, 100)));
        assert_at_rest(&queue, 2);
        for who in 0..4 {
            let mine = |sector: &u64| sector / 10_000 == who;
            let order: Vec<u64> = device.sectors().into_iter().filter(mine).collect();
            let expected: Vec<u64> = (0..40).rev().map(|i| who * 10_000 + i * 100).collect();
            assert_eq!(order, expected, "{access:?}, submitter {who}");
        }
    }
}

/// A full device, so that all further I/Os wait in the elevator. Also returns the queue's handle.
fn behind_a_full_device(
    adjust: impl FnOnce(&mut Config<u32>),
) -> (Queue<u32>, Handle, Submitter<u32>) {
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

/// Finishes all requests. Returns those after the first as (sector, sectors, bios).
fn finish(queue: &Queue<u32>, device: &Handle, sub: &mut Submitter<u32>) -> Vec<(u64, u32, u32)> {
    device.with(|c| c.inline = true);
    device.finish(1000);
    drain(sub, &mut { T0 }, 1000);
    assert_at_rest(queue, 1);
    device.with(|c| c.arrivals[1..].iter().map(|a| (a.sector, a.sectors, a.bios)).collect())
}

#[test]
fn s16_13_a_plug_looks_at_one_candidate_and_the_hash_at_all() {
    for access in accesses() {
        let (queue, device, mut sub) = behind_a_full_device(|config| config.access = access);
        for io in [write(0, 8), write(100, 8), write(8, 8)] {
            sub.push(T0, io).expect("there is credit");
        }
        assert_eq!(queue.stats().merges.plug, 0, "the tail of the plug was 100");
        sub.flush(T0);
        assert_eq!(queue.stats().merges.back, 1, "{access:?}");
        assert_eq!(finish(&queue, &device, &mut sub), [(0, 16, 2), (100, 8, 1)]);
    }
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
    for access in accesses() {
        let (queue, device, mut sub) = behind_a_full_device(|config| config.access = access);
        submit_each(&mut sub, T0, [write(100, 8), write(108, 8), write(92, 8)]);
        let merges = queue.stats().merges;
        assert_eq!((merges.back, merges.front, merges.request), (1, 1, 0), "{access:?}");
        assert_eq!(finish(&queue, &device, &mut sub), [(92, 24, 3)]);
    }
}

/// Three queued writes, the first a second older than the others; then a write that bridges two of them. Returns the
/// requests that reach the device 5 s after the first was queued, as (sector, bios).
fn bridged(
    adjust: impl FnOnce(&mut Config<u32>),
    queued: [u64; 3],
    bridge: u64,
) -> (blkmq_engine::MergeStats, Vec<(u64, u32)>) {
    let (config, device) = config(shape(1, 1));
    let mut config = config.scheduler(deadline());
    config.nr_requests = Some(64);
    // Every request begins a batch, so the policy checks for each whether the oldest has expired.
    config.options.set("fifo_batch", "1").expect("mq-deadline has it");
    adjust(&mut config);
    let queue = Queue::new(config).expect("valid");
    let mut sub = queue.submitter().expect("one is free");
    let late = Instant::from_nanos(1_000_000_000);
    submit_each(&mut sub, T0, [write(0, 8), write(queued[0], 8)]);
    let later = [queued[1], queued[2], bridge].map(|sector| write(sector, 8));
    submit_each(&mut sub, late, later);
    let merges = queue.stats().merges;
    device.with(|c| c.inline = true);
    device.finish(1000);
    drain(&mut sub, &mut Instant::from_nanos(5_000_000_000), 1000);
    assert_at_rest(&queue, 1);
    (merges, device.with(|c| c.arrivals[1..].iter().map(|a| (a.sector, a.bios)).collect()))
}

/// 50 comes first by sector and by age in the FIFO; only an expired deadline puts 92 before it.
#[test]
fn s16_16_an_io_that_bridges_two_requests_leaves_one_with_the_earliest_deadline() {
    for access in accesses() {
        let (merges, order) = bridged(|config| config.access = access, [108, 50, 92], 100);
        // The one-hit cache held 108, so the bridge merged with its front; then both merged with the end of 92.
        assert_eq!((merges.back, merges.front, merges.request), (0, 1, 1), "{access:?}");
        assert_eq!(order, [(92, 3), (50, 1)]);
        // The other way round: the bridge merges with the end of the older request, which then absorbs the one behind.
        let (merges, order) = bridged(|config| config.access = access, [92, 50, 108], 100);
        assert_eq!((merges.back, merges.front, merges.request), (1, 0, 1));
        assert_eq!(order, [(92, 3), (50, 1)]);
        // Without a bridge 92 and 108 keep their own deadlines, and only 108 has expired.
        let (merges, order) = bridged(|config| config.access = access, [108, 50, 92], 70);
        assert_eq!(merges.total(), 0);
        assert_eq!(order[0], (108, 1));
    }
}

/// Pairs of contiguous writes, or discards, and whether they may become one request under these limits.
#[test]
fn s16_14_each_limit_holds_in_the_plug_and_in_the_elevator() {
    let discard = |sector, sectors| Io { op: Op::Discard, ..write(sector, sectors) };
    let base = Limits { max_discard_sectors: 64, ..Limits::default() };
    let gather = Limits { max_discard_segments: 2, ..base };
    let cases = [
        (Limits { max_sectors: 16, ..base }, write(0, 8), write(8, 8), true),
        (Limits { max_sectors: 16, ..base }, write(0, 8), write(8, 9), false),
        (Limits { max_sectors: 16, ..base }, write(8, 9), write(0, 8), false),
        (Limits { max_segments: 2, ..base }, write(0, 8), write(8, 8), true),
        (Limits { max_segments: 1, ..base }, write(0, 8), write(8, 8), false),
        (Limits { chunk_sectors: 16, ..base }, write(0, 8), write(8, 8), true),
        (Limits { chunk_sectors: 16, ..base }, write(8, 8), write(16, 8), false),
        (Limits { chunk_sectors: 16, ..base }, write(16, 8), write(8, 8), false),
        (Limits { virt_boundary_mask: 4095, ..base }, write(0, 8), write(8, 1), true),
        (Limits { virt_boundary_mask: 4095, ..base }, write(0, 7), write(7, 8), false),
        (base, discard(0, 32), discard(32, 32), true),
        (base, discard(0, 32), discard(32, 33), false),
        (base, discard(0, 8), discard(16, 8), false),
        (gather, discard(0, 32), discard(400, 32), true),
        (gather, discard(0, 32), discard(400, 33), false),
    ];
    for (limits, first, second, merges) in cases {
        let adjust = |config: &mut Config<u32>| config.device.limits = limits;
        let (queue, device, mut sub) = behind_a_full_device(adjust);
        submit_each(&mut sub, T0, [first, second]);
        assert_eq!(queue.stats().merges.total(), merges.into(), "{limits:?} {first:?} {second:?}");
        assert_eq!(finish(&queue, &device, &mut sub).len(), 2 - usize::from(merges));

        let (queue, device, mut sub) = behind_a_full_device(adjust);
        sub.push(T0, first).expect("there is credit");
        sub.push(T0, second).expect("there is credit");
        assert_eq!(queue.stats().merges.plug, merges.into(), "{limits:?} {first:?} {second:?}");
        sub.flush(T0);
        assert_eq!(finish(&queue, &device, &mut sub).len(), 2 - usize::from(merges));
    }
}

#[test]
fn s16_14_a_request_full_of_segments_grows_no_more() {
    for access in accesses() {
        let (queue, device, mut sub) = behind_a_full_device(|config| {
            config.device.limits = Limits { max_segments: 2, ..Limits::default() };
            config.access = access;
        });
        submit_each(&mut sub, T0, (0..4).map(|i| write(i * 8, 8)));
        assert_eq!(finish(&queue, &device, &mut sub), [(0, 16, 2), (16, 16, 2)], "{access:?}");
    }
}

/// A request that has no room for two more segments is offered two, and then one, for which it has room.
#[test]
fn s16_14_a_segment_failure_is_for_good() {
    let merged = |offer_two: bool| {
        let (queue, device, mut sub) = behind_a_full_device(|config| {
            config.device.limits = Limits { max_segments: 3, ..Limits::default() };
        });
        let pair = |sub: &mut Submitter<u32>, sector| {
            sub.push(T0, write(sector, 8)).expect("there is credit");
            sub.push(T0, write(sector + 8, 8)).expect("there is credit");
            sub.flush(T0);
        };
        pair(&mut sub, 100);
        // These take the one-hit cache, so that the first request is found by look-up only.
        submit_each(&mut sub, T0, [write(5000, 8), write(5008, 8)]);
        if offer_two {
            pair(&mut sub, 116);
        }
        let before = queue.stats().merges.total();
        submit_each(&mut sub, T0, [write(92, 8)]);
        let merges = queue.stats().merges.total() - before;
        finish(&queue, &device, &mut sub);
        merges
    };
    assert_eq!(merged(false), 1);
    assert_eq!(merged(true), 0);
}

#[test]
fn s16_15_unlike_ios_do_not_merge_though_contiguous() {
    let idle = IoPrio::new(Class::Idle, 0).expect("0 is a level");
    let unlike = [
        Io { ioprio: idle, ..write(8, 8) },
        Io { write_hint: 3, ..write(8, 8) },
        Io { group: common::group(1), ..write(8, 8) },
        Io { flags: IoFlags::FUA, ..write(8, 8) },
        read(8, 8),
    ];
    for access in accesses() {
        for io in unlike {
            let (queue, device, mut sub) = behind_a_full_device(|config| {
                config.access = access;
                config.groups = common::two_groups().clone();
                // Without such a cache FUA would have no effect, and would not prevent merging.
                config.device.cache = WriteCache::Back { fua: true };
            });
            submit_each(&mut sub, T0, [write(0, 8), io]);
            assert_eq!(queue.stats().merges.total(), 0, "{access:?} {io:?}");
            // Nor do they merge in the plug.
            sub.push(T0, write(1000, 8)).expect("there is credit");
            sub.push(T0, Io { sector: 1008, cookie: 1008, payload: 1008, ..io })
                .expect("there is credit");
            assert_eq!(queue.stats().merges.plug, 0, "{io:?}");
            sub.flush(T0);
            assert_eq!(finish(&queue, &device, &mut sub).len(), 4);
        }
        let (queue, _, mut sub) = behind_a_full_device(|config| config.access = access);
        submit_each(&mut sub, T0, [write(0, 8), write(8, 8)]);
        assert_eq!(queue.stats().merges.total(), 1, "alike ones do");
        drop(sub);
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

/// An I/O that ends where a request starts: it is looked up in the sector order only if `front_merges` is set, but
/// always merges if the request is in the one-hit cache.
#[test]
fn s8_08_front_merges_0_turns_off_the_look_up_and_not_the_one_hit_cache() {
    for access in accesses() {
        let run = |front_merges, other: Option<u64>| {
            let (queue, device, mut sub) = behind_a_full_device(|config| {
                config.options.set("front_merges", front_merges).expect("mq-deadline has it");
                config.access = access;
            });
            // The first request stays in the cache until another one merges.
            submit_each(&mut sub, T0, [write(100, 8)]);
            submit_each(
                &mut sub,
                T0,
                other.into_iter().flat_map(|s| [write(s, 8), write(s + 8, 8)]),
            );
            submit_each(&mut sub, T0, [write(92, 8)]);
            let merges = queue.stats().merges;
            finish(&queue, &device, &mut sub);
            (merges.back, merges.front)
        };
        assert_eq!(run("1", Some(5000)), (1, 1), "{access:?}: by look-up");
        assert_eq!(run("0", Some(5000)), (1, 0));
        assert_eq!(run("0", None), (0, 1), "by the cache");
    }
}

/// An I/O that waits for a scheduler tag can still merge: the reverted kernel series lacked that.
#[test]
fn an_io_without_a_slot_still_merges() {
    for access in accesses() {
        let (queue, device, mut sub) = behind_a_full_device(|config| {
            config.nr_requests = Some(4);
            config.submitters = 2;
            config.access = access;
        });
        // One request with a slot is at the device; three wait; the fourth I/O finds no slot.
        submit_each(&mut sub, T0, [write(0, 8), write(1000, 8), write(2000, 8), write(3000, 8)]);
        let mut other = queue.submitter().expect("two were asked for");
        submit_each(&mut other, T0, [write(8, 8), write(1008, 8)]);
        assert_eq!(queue.stats().merges.back, 2, "{access:?}");
        device.with(|c| c.inline = true);
        device.finish(1000);
        drain(&mut sub, &mut { T0 }, 1000);
        drain(&mut other, &mut { T0 }, 1000);
        assert_at_rest(&queue, 1);
    }
}

/// `async_depth` of 8 and two submitters: `limited` I/Os take their share, then sync reads take the rest.
fn async_depth_is_shared_by(access: Access, limited: impl Fn(u64) -> Io<u32>) {
    let (config, device) = config(shape(1, 1));
    let mut config = config.scheduler(deadline());
    config.nr_requests = Some(16);
    config.submitters = 2;
    config.access = access;
    config.options.set("async_depth", "8").expect("mq-deadline has it");
    let queue = Queue::new(config).expect("valid");
    let mut other = queue.submitter().expect("two were asked for");
    let mut reader = queue.submitter().expect("two were asked for");
    submit_each(&mut other, T0, (0..20).map(limited));
    assert_eq!(queue.stats().inserted, 8, "{access:?}");
    submit_each(&mut reader, T0, (0..20).map(|i| read(i * 100 + 50, 8)));
    assert_eq!(queue.stats().inserted, 16, "sync reads have the other eight");
    device.with(|c| c.inline = true);
    device.finish(1000);
    drain(&mut reader, &mut { T0 }, 1000);
    drain(&mut other, &mut { T0 }, 1000);
    assert_at_rest(&queue, 1);
}

#[test]
fn s8_09_async_depth_leaves_the_rest_to_sync_reads() {
    let async_read = |i| Io { flags: IoFlags::NONE, ..read(i * 100, 8) };
    let write = |i| write(i * 100, 8);
    for access in accesses() {
        async_depth_is_shared_by(access, write);
        async_depth_is_shared_by(access, async_read);
        // The ninth I/O is of either kind.
        async_depth_is_shared_by(access, |i| if i % 2 == 0 { write(i) } else { async_read(i) });
        async_depth_is_shared_by(access, |i| if i % 2 == 1 { write(i) } else { async_read(i) });
    }
}

#[test]
fn refusals_hand_back_what_they_refuse() {
    let (mut config, _) = config(shape(1, 4));
    config.depth = 2;
    config.device.limits = Limits { logical_block_size: 4096, capacity: 80, ..Limits::default() };
    let queue = Queue::new(config).expect("valid");
    let mut sub = queue.submitter().expect("one is free");
    let why = |sub: &mut Submitter<u32>, io: Io<u32>| {
        let refused = sub.push(T0, io).expect_err("impossible");
        let why = refused.why;
        assert_eq!(refused.into_io(), io);
        why
    };
    assert_eq!(why(&mut sub, write(4, 8)), Refusal::Misaligned { block: 4096 });
    assert_eq!(why(&mut sub, write(0, 0)), Refusal::Misaligned { block: 4096 });
    assert_eq!(why(&mut sub, write(80, 8)), Refusal::OutOfRange { capacity: 80 });
    assert_eq!(why(&mut sub, write(u64::MAX - 7, 8)), Refusal::OutOfRange { capacity: 80 });
    assert_eq!(why(&mut sub, write(0, 1 << 20)), Refusal::OutOfRange { capacity: 80 });
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

/// Regression test: a submitter that always had more staged than there were slots kept its place at the head of the
/// line for slots. With four slots and two threads of sixteen I/Os each, one did 300 I/Os while the other did 17,600.
#[test]
fn slots_go_round_among_those_who_always_want_more() {
    for access in accesses() {
        let (config, device) = config(shape(1, 4));
        let config = Config { submitters: 3, depth: 16, nr_requests: Some(4), access, ..config };
        let queue = Queue::new(config.scheduler(deadline())).expect("valid");
        let mut submitters = [(); 3].map(|()| queue.submitter().expect("there are three"));
        let mut ended = [0_u32; 3];
        for round in 0..1000_u64 {
            let now = Instant::ZERO + Nanos::from_micros(10 * round);
            for (n, submitter) in (0..).zip(&mut submitters) {
                while submitter.in_flight() < 16 {
                    let sector = 64 * (1000 * n + u64::from(ended[n as usize] % 100));
                    submitter.push(now, read(sector, 8)).expect("there is credit");
                }
                submitter.flush(now);
            }
            device.finish(1);
            // The first submitter is always the first to poll.
            for (n, submitter) in submitters.iter_mut().enumerate() {
                submitter.poll(now);
                ended[n] += submitter.reap(u32::MAX, |_| {});
            }
        }
        let (least, most) = (ended.iter().min(), ended.iter().max());
        assert!(
            least.zip(most).is_some_and(|(least, most)| least * 4 > most * 3),
            "{access:?}: {ended:?}"
        );
    }
}

const SECTORS: u64 = 1024;

fn disk(limits: Limits) -> (Queue<BufList>, DiskHandle, Submitter<BufList>) {
    let (config, disk) = storing(DeviceShape { limits, ..shape(1, 64) }, SECTORS);
    let queue = Queue::new(Config { depth: 256, ..config }).expect("valid");
    let submitter = queue.submitter().expect("one is free");
    (queue, disk, submitter)
}

/// A list of buffers of these lengths, full of drawn bytes.
fn list(lens: &[usize], seed: u64) -> BufList {
    let mut rng = Rng::new(seed);
    let mut buf = |len: &usize| {
        let bytes = Vec::from_iter((0..*len).map(|_| rng.next_u64() as u8));
        AlignedBuf::copy_of(&bytes)
    };
    BufList::new(lens.iter().map(&mut buf).collect()).expect("few enough")
}

fn bytes(list: &mut BufList) -> Vec<u8> {
    list.slices_mut().flat_map(|slice| slice.to_vec()).collect()
}

fn write_list(sector: u64, list: BufList) -> Io<BufList> {
    Io::new(Op::Write, sector, (list.len() / 512) as u32, sector, list)
}

/// Pushes the I/Os in one plug, and returns their payloads in the order of completion.
fn run(sub: &mut Submitter<BufList>, ios: Vec<Io<BufList>>) -> Vec<(u64, BufList)> {
    let count = ios.len();
    ios.into_iter().for_each(|io| sub.push(T0, io).expect("it is taken"));
    sub.flush(T0);
    sub.poll(T0);
    let mut done = Vec::new();
    sub.reap(u32::MAX, |c| done.push((c.cookie, c.payload)));
    assert_eq!(done.len(), count);
    done
}

/// The sectors and segments of the requests since the last call.
fn requests(disk: &DiskHandle) -> Vec<(u64, u32, u16)> {
    let taken = std::mem::take(&mut disk.lock().taken);
    taken.iter().map(|taken| (taken.sector, taken.sectors, taken.segments)).collect()
}

#[test]
fn a_list_within_the_limits_is_one_request_of_a_segment_for_each_range() {
    let (_, disk, mut sub) = disk(Limits::default());
    let mut payload = list(&[16, 4096, 496], 1);
    let expected = bytes(&mut payload);
    let mut done = run(&mut sub, vec![write_list(8, payload)]);
    assert_eq!(requests(&disk), [(8, 9, 3)]);
    assert_eq!(disk.lock().memory[8 * 512..][..expected.len()], expected);
    let (_, payload) = done.pop().expect("one");
    assert_eq!(payload.into_bufs().expect("it is whole").len(), 3);

    let into = list(&[1, 511, 4000, 96], 2);
    let io = Io::new(Op::Read, 8, 9, 0, into);
    let (_, mut read) = run(&mut sub, vec![io]).pop().expect("one");
    assert!(bytes(&mut read) == expected);
}

/// The cuts lie at whole blocks, wherever the ranges end; the device never sees more segments than it takes.
#[test]
fn more_ranges_than_a_request_takes_are_divided_inside_of_a_range() {
    let limits = Limits { max_segments: 3, ..Limits::default() };
    let (queue, disk, mut sub) = disk(limits);
    // Three ranges end at 1000 bytes, in the second sector.
    let mut payload = list(&[300, 300, 400, 1048, 1536], 3);
    let expected = bytes(&mut payload);
    let mut done = run(&mut sub, vec![write_list(0, payload)]);
    assert_eq!(requests(&disk), [(0, 1, 2), (1, 3, 3), (4, 3, 1)]);
    assert_eq!(disk.lock().memory[..expected.len()], expected);
    assert_eq!(queue.stats().splits, 2);
    let (_, mut payload) = done.pop().expect("one completion");
    assert!(bytes(&mut payload) == expected, "it is whole again");
    assert_eq!(payload.into_bufs().expect("and the only part").len(), 5);
}

#[test]
fn a_list_that_no_cut_helps_is_refused_with_the_numbers_that_are_accepted() {
    let (queue, _, mut sub) = disk(Limits { max_segments: 2, ..Limits::default() });
    let refused =
        sub.push(T0, write_list(4, list(&[512, 100, 100, 312], 1))).expect_err("3 in a block");
    assert_eq!(refused.why, Refusal::Scattered { segments: 2, boundary: 1 });
    assert_eq!(refused.into_io().payload.into_bufs().expect("whole").len(), 4);
    assert_eq!((queue.stats().submitted, sub.in_flight()), (0, 0));
    // A list of one range is treated like a buffer, and a flush or a discard uses none of the ranges.
    assert!(sub.push(T0, write_list(4, list(&[1024], 1))).is_ok());
    let many = list(&[128; 4], 1);
    let refused = sub.push(T0, Io::new(Op::Discard, 0, 1, 0, many)).expect_err("no discards");
    assert_eq!(refused.why, Refusal::Unsupported(Op::Discard));

    let (_, _, mut sub) = disk(Limits { range_alignment: 4, ..Limits::default() });
    let refused =
        sub.push(T0, write_list(4, list(&[512, 100, 412], 1))).expect_err("no whole blocks");
    assert_eq!(refused.why, Refusal::RangeMisaligned { start: 4, len: 512 });
    assert!(sub.push(T0, write_list(4, list(&[512, 1024], 1))).is_ok());
    let io = Io { flags: IoFlags::NOWAIT, ..write_list(4, list(&[512; 129], 1)) };
    let refused = sub.push(T0, io).expect_err("two parts");
    assert_eq!(refused.why, Refusal::NoWait { most: 128 });
}

/// Ranges join at multiples of a boundary or are in two requests, and no later I/O merges with such a list.
#[test]
fn ranges_meet_where_the_segments_of_the_device_may() {
    let (_, disk, mut sub) = disk(Limits { virt_boundary_mask: 4095, ..Limits::default() });
    // Buffers begin at pages, so a range that is not whole pages ends off the boundary.
    let off = write_list(0, list(&[4096, 512, 4096], 1));
    let on = write_list(64, list(&[4096, 8192, 512], 1));
    let next = write_list(64 + 25, list(&[4096], 1));
    run(&mut sub, vec![off, on, next]);
    let mut seen = requests(&disk);
    seen.sort_unstable();
    assert_eq!(seen, [(0, 9, 2), (9, 8, 1), (64, 25, 3), (89, 8, 1)]);
    let scattered = write_list(0, list(&[256, 256], 1));
    let refused = sub.push(T0, scattered).expect_err("within a block");
    assert_eq!(refused.why, Refusal::Scattered { segments: 128, boundary: 4096 });
}

#[test]
fn neighbours_merge_as_long_as_their_ranges_fit_together() {
    let (queue, disk, mut sub) = disk(Limits { max_segments: 6, ..Limits::default() });
    let ios = (0..3).map(|n| write_list(n * 2, list(&[500, 24, 500], n))).collect();
    run(&mut sub, ios);
    assert_eq!(requests(&disk), [(0, 4, 6), (4, 2, 3)]);
    assert_eq!(queue.stats().merges.total(), 1);
}

/// A request of two owners fails in part, and is repeated by owner: each run has the segments of its own bios.
#[test]
fn a_request_of_lists_that_is_taken_apart_counts_the_ranges_of_each_run() {
    let (config, disk) = storing(shape(1, 1), SECTORS);
    let queue = Queue::new(config.scheduler(deadline())).expect("valid");
    let mut sub = queue.submitter().expect("one is free");
    disk.lock().bad = vec![(0, IoError::NO_SPACE)];
    // Frozen until all I/Os are submitted, so that they meet in the elevator.
    let freeze = queue.freeze();
    for (sector, lens) in [(0, &[256, 256][..]), (1, &[512]), (2, &[100, 100, 312])] {
        let io = write_list(sector, list(lens, sector)).owner(Owner(1 + sector as u32 / 2));
        sub.push(T0, io).expect("there is credit");
    }
    sub.flush(T0);
    drop(freeze);
    let mut done = 0;
    for step in 0..50 {
        sub.poll(T0 + Nanos::from_millis(step));
        done += sub.reap(u32::MAX, |c| assert_eq!(c.result.is_ok(), c.cookie == 2));
    }
    assert_eq!(done, 3);
    assert_eq!(requests(&disk), [(0, 3, 6), (0, 2, 3), (2, 1, 3)]);
}

/// A payload reports the lengths of its ranges. The device detects a wrong answer, which must not harm the queue.
#[test]
fn a_payload_that_lies_about_its_ranges_is_cut_all_the_same() {
    struct Liar;
    impl Payload for Liar {
        fn ranges(&self) -> impl Iterator<Item = *mut [u8]> + Clone {
            let range =
                |at| std::ptr::slice_from_raw_parts_mut(std::ptr::without_provenance_mut(at), 7);
            [0, 64, usize::MAX - 3].into_iter().map(range)
        }

        fn split_off(&mut self, _: usize) -> Option<Self> {
            Some(Self)
        }
    }
    let limits = Limits { max_sectors: 8, ..Limits::default() };
    let (config, disk) = storing(DeviceShape { limits, ..shape(1, 64) }, SECTORS);
    let queue = Queue::<Liar>::new(config).expect("valid");
    let mut sub = queue.submitter().expect("one is free");
    sub.push(T0, Io::new(Op::Write, 0, 20, 0, Liar)).expect("it is taken");
    sub.flush(T0);
    sub.poll(T0);
    assert_eq!(sub.reap(u32::MAX, |c| assert_eq!(c.result, Err(IoError::INVALID))), 1);
    assert_eq!(disk.requests().len(), 3);
}
