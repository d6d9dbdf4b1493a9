//! The memory device against `spec/null_blk.md` section 6, lines 7 and 9, and its page: contents, bad blocks, cache.
//! `crash.rs` tests power cuts.

use crate::common::{Disk, device, stamp};
use blkmq_core::{Buffer, Instant, IoError, IoFlags, IoResult, Nanos, Op, Owner, Payload, Rng};
use blkmq_device::{Device, contract};
use blkmq_engine::{Access, Config, Io, Queue};

const SECTOR: usize = 512;

fn filled(byte: u8, sectors: usize) -> Vec<u8> {
    vec![byte; sectors * SECTOR]
}

fn disk(text: &str) -> (Disk, Device) {
    let device = device("memory", text);
    (Disk::plain(&device), device)
}

#[test]
fn s6_7_an_io_that_touches_a_bad_block_fails_and_is_not_done() {
    for irqmode in 0..3 {
        let (mut disk, device) = disk(&format!("irqmode={irqmode},badblocks=+8-9,discard=1"));
        for (op, sector, sectors) in
            [(Op::Read, 0, 9), (Op::Write, 9, 4), (Op::WriteZeroes, 4, 20), (Op::Discard, 8, 1)]
        {
            let done = disk.one(op, sector, filled(1, sectors));
            assert_eq!((done.result, done.bytes), (Err(IoError::IO), filled(1, sectors)), "{op:?}");
        }
        assert_eq!(disk.one(Op::Flush, 0, vec![]).result, Ok(()));
        assert_eq!(device.memory().expect("it stores").stored_bytes(), 0);
        assert_eq!(disk.one(Op::Write, 0, filled(2, 8)).result, Ok(()), "up to it");
        assert_eq!(disk.one(Op::Write, 10, filled(3, 8)).result, Ok(()), "behind it");
        assert_eq!(disk.one(Op::Read, 7, filled(1, 2)).result, Err(IoError::IO), "every time");
        assert_eq!(disk.read(0, 8), filled(2, 8));
    }
}

#[test]
fn s6_7_with_partial_io_what_lies_before_is_done() {
    for irqmode in 0..3 {
        let text = format!("irqmode={irqmode},badblocks=+21-22,badblocks_partial_io=1,bs=4096");
        let (mut disk, _) = disk(&text);
        let done = disk.one(Op::Write, 0, filled(7, 32));
        assert_eq!(done.result, Err(IoError::IO));
        assert_eq!(disk.read(0, 16), filled(7, 16), "sector 21 rounded down to its block");
        assert_eq!(disk.read(24, 8), filled(0, 8), "nothing behind");
        let done = disk.one(Op::Read, 0, filled(1, 24));
        assert_eq!(done.result, Err(IoError::IO));
        assert_eq!(done.bytes, [filled(7, 16), filled(1, 8)].concat());
    }
}

#[test]
fn s6_7_with_once_the_second_try_succeeds() {
    let (mut disk, device) = disk("badblocks=+8-15,badblocks=+40-41,badblocks_once=1");
    assert_eq!(disk.one(Op::Write, 10, filled(5, 1)).result, Err(IoError::IO));
    assert_eq!(disk.one(Op::Write, 0, filled(5, 32)).result, Ok(()), "the whole range is healed");
    assert_eq!(disk.read(8, 8), filled(5, 8));
    let store = device.memory().expect("it stores");
    assert_eq!(store.bad().ranges().collect::<Vec<_>>(), [(40, 41)]);
    store.badblocks("-40-40").expect("well formed");
    store.badblocks("+60-60").expect("well formed");
    assert!(store.badblocks("60").is_err());
    assert_eq!(disk.one(Op::Read, 40, filled(0, 21)).result, Err(IoError::IO));
    assert_eq!(disk.one(Op::Read, 40, filled(0, 21)).result, Err(IoError::IO), "two ranges");
    assert_eq!(disk.one(Op::Read, 40, filled(0, 21)).result, Ok(()));
}

#[test]
fn s6_7_a_bad_block_fails_the_whole_merged_request() {
    let device = device("memory", "badblocks=+8-8,badblocks_partial_io=1");
    let mut disk = Disk::new(device.config());
    let cookies: Vec<_> =
        (0..3).map(|io| disk.push(0, Op::Write, io * 8, filled(4, 8), IoFlags::NONE)).collect();
    disk.finish();
    assert_eq!(disk.queue.stats().merges.plug, 2);
    assert!(cookies.iter().all(|cookie| disk.done[cookie].result == Err(IoError::IO)));
    assert_eq!(disk.read(0, 8), filled(4, 8));
}

/// An I/O in flight: its blocks, and whether it is a read, so that its data must be checked.
struct Pending {
    first: usize,
    blocks: usize,
    read: bool,
}

/// Does random stamped writes, zeroes, discards and reads from several submitters that share a small device, so that
/// neighbours merge, and compares every byte read. Returns the number of requests with merged I/Os.
fn integrity(
    text: &str,
    scheduler: &'static blkmq_sched::Factory,
    access: Access,
    seed: u64,
) -> u64 {
    const SUBMITTERS: usize = 4;
    const BLOCKS: usize = 256;
    let device = device("memory", text);
    let config = device.config().scheduler(scheduler);
    let mut disk = Disk::new(Config { submitters: SUBMITTERS as u16, depth: 64, access, ..config });
    let block = device.shape.limits.logical_block_size as usize;
    let image = |versions: &[u64], first: usize| {
        let mut bytes = vec![0; versions.len() * block];
        for (at, out) in bytes.chunks_mut(block).enumerate() {
            stamp((first + at) as u64, versions[at], out);
        }
        bytes
    };
    let mut rng = Rng::new(seed);
    let (mut versions, mut busy) = ([0_u64; BLOCKS], [false; BLOCKS]);
    let mut pending: Vec<(u64, Pending)> = Vec::new();
    let mut runs = [(0, Op::Write); SUBMITTERS];
    for version in 1..=400 {
        for (who, run) in runs.iter_mut().enumerate() {
            let blocks = 1 + rng.below(8) as usize;
            // Most I/Os continue the last I/O of the same submitter with the same operation, so that they merge.
            let (end, last) = *run;
            let goes_on = end + blocks <= BLOCKS && rng.chance(2, 3);
            let anywhere = rng.below((BLOCKS - blocks) as u64) as usize;
            let first = if goes_on { end } else { anywhere };
            let range = first..first + blocks;
            // Overlapping I/Os in flight have no order, so applications and this test avoid them.
            if busy[range.clone()].contains(&true) {
                continue;
            }
            let op = match rng.below(10) {
                _ if goes_on => last,
                0 => Op::WriteZeroes,
                1 if device.shape.limits.max_discard_sectors > 0 => Op::Discard,
                2..6 => Op::Read,
                _ => Op::Write,
            };
            if op != Op::Read {
                versions[range.clone()].fill(if op == Op::Write { version } else { 0 });
            }
            let bytes = if op == Op::Write {
                image(&versions[range.clone()], first)
            } else {
                vec![0xaa; blocks * block]
            };
            busy[range].fill(true);
            *run = (first + blocks, op);
            let sector = (first * block / SECTOR) as u64;
            let cookie = disk.push(who, op, sector, bytes, IoFlags::NONE);
            pending.push((cookie, Pending { first, blocks, read: op == Op::Read }));
        }
        if rng.chance(1, 20) {
            disk.push(0, Op::Flush, 0, vec![], IoFlags::NONE);
        }
        match rng.below(4) {
            0 => disk.settle(),
            1 => disk.run_for(Nanos(rng.below(30_000))),
            _ if pending.len() > 60 => disk.finish(),
            _ => {}
        }
        pending.retain(|(cookie, io)| {
            let Some(done) = disk.done.remove(cookie) else { return true };
            let range = io.first..io.first + io.blocks;
            assert_eq!(done.result, Ok(()), "{text}, seed {seed}");
            if io.read {
                let expected = image(&versions[range.clone()], io.first);
                assert!(done.bytes == expected, "{text}, seed {seed}: wrong bytes at {range:?}");
            }
            busy[range].fill(false);
            false
        });
    }
    disk.finish();
    let mut all = vec![0; BLOCKS * block];
    device.memory().expect("it stores").read_at(0, &mut all);
    assert!(all == image(&versions, 0), "{text}, seed {seed}: wrong bytes at the end");
    // Making new hardware queues writes the whole cache back.
    drop(disk);
    drop(device.queues::<()>());
    device.memory().expect("it stores").durable_image().read_at(0, &mut all);
    assert!(all == image(&versions, 0), "{text}, seed {seed}: wrong bytes after power-off");
    disk_merges(&device)
}

/// The number of requests with more than one I/O, from the arrival log.
fn disk_merges(device: &Device) -> u64 {
    let log = device.log.as_ref().expect("log=1");
    log.taken().iter().filter(|arrival| arrival.bios > 1).count() as u64
}

#[test]
fn s6_9_what_is_read_is_what_was_written_under_every_scheduler() {
    let mut seed = 0;
    for scheduler in blkmq_sched::registry::ALL {
        for (_, access) in Access::ALL {
            let mut merged = 0;
            for text in [
                "irqmode=0,discard=1",
                "irqmode=1,bs=4096,cache_size=1",
                "irqmode=2,hw_queue_depth=2,discard=1",
                "irqmode=2,hw_queue_depth=4,submit_queues=3,cache_size=1,bs=1024",
            ] {
                seed += 1;
                let text = format!("{text},size=1,log=1");
                merged += integrity(&text, scheduler, access, seed);
            }
            assert!(merged > 100, "{} merged {merged} requests", scheduler.name);
        }
    }
}

#[test]
fn s6_9_threads_that_share_a_device_read_what_they_wrote() {
    const THREADS: u64 = 3;
    let device = device("memory", "submit_queues=2,size=1,bs=4096,cache_size=1");
    for scheduler in blkmq_sched::registry::ALL {
        let config = device.config::<Buffer>().scheduler(scheduler);
        let queue = Queue::new(Config { submitters: THREADS as u16, ..config }).expect("a queue");
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let submitter = queue.submitter().expect("one per thread");
                scope.spawn(move || write_and_read(submitter, thread, THREADS));
            }
        });
    }
}

/// Writes and reads back every `step`-th block from `thread` on, so that neighbouring blocks belong to different
/// threads.
fn write_and_read(mut submitter: blkmq_engine::Submitter<Buffer>, thread: u64, step: u64) {
    // The clock stands still, so no policy may keep the device idle for one thread: all threads are one tenant.
    let (now, tenant) = (Instant::ZERO, Owner(1));
    let blocks: Vec<u64> = (thread..256).step_by(step as usize).collect();
    for version in 1..=20 {
        for op in [Op::Write, Op::Read] {
            let mut ended = 0;
            for batch in blocks.chunks(16) {
                for block in batch {
                    let mut bytes = vec![0; 4096];
                    if op == Op::Write {
                        stamp(*block, version, &mut bytes);
                    }
                    let buffer = Buffer::new(bytes);
                    let io = Io::new(op, block * 8, 8, *block, buffer).owner(tenant);
                    submitter.push(now, io).expect("there is credit for all");
                }
                submitter.flush(now);
            }
            while ended < blocks.len() as u32 {
                submitter.poll(now);
                ended += submitter.reap(u32::MAX, |done| {
                    let mut expected = vec![0; 4096];
                    stamp(done.cookie, version, &mut expected);
                    assert_eq!(done.result, Ok(()));
                    assert!(done.payload.into_inner() == expected, "block {}", done.cookie);
                });
                std::thread::yield_now();
            }
        }
    }
}

/// Does I/Os of one sector at sector 5 with these payloads, and returns their results.
fn results<P: Payload + std::fmt::Debug>(
    device: &Device,
    ios: impl IntoIterator<Item = (Op, P)>,
) -> Vec<IoResult> {
    let queue = Queue::new(device.config()).expect("a queue");
    let mut submitter = queue.submitter().expect("one");
    let mut results = Vec::new();
    for (op, payload) in ios {
        submitter.push(Instant::ZERO, Io::new(op, 5, 1, 0, payload)).expect("there is credit");
        submitter.flush(Instant::ZERO);
        submitter.reap(1, |done| results.push(done.result));
    }
    results
}

#[test]
fn payloads_of_another_length_are_refused() {
    let device = device("memory", "irqmode=0,cache_size=1");
    let lengths = [(Op::Write, 512), (Op::Write, 511), (Op::Read, 513), (Op::Write, 513)];
    let invalid = Err(IoError::INVALID);
    let results = results(&device, lengths.map(|(op, len)| (op, Buffer::new(vec![9; len]))));
    assert_eq!(results, [Ok(()), invalid, invalid, invalid]);
    assert_eq!(
        Disk::plain(&device).read(4, 3),
        [filled(0, 1), filled(9, 1), filled(0, 1)].concat()
    );
}

#[test]
fn payloads_without_data_move_none() {
    let device = device("memory", "irqmode=0,badblocks=+9-9");
    Disk::plain(&device).one(Op::Write, 5, filled(3, 1));
    assert_eq!(results(&device, [(Op::Write, 7_u64), (Op::Read, 8)]), [Ok(()); 2]);
    assert_eq!(Disk::plain(&device).read(5, 1), filled(3, 1));
    assert_eq!(results(&device, [(Op::WriteZeroes, ())]), [Ok(())]);
    assert_eq!(Disk::plain(&device).read(5, 1), filled(0, 1));
}

#[test]
fn a_cache_is_flushed_by_flush_fua_and_preflush() {
    for irqmode in 0..3 {
        for fua in [false, true] {
            let text = format!("irqmode={irqmode},cache_size=1,fua={}", u8::from(fua));
            let (mut disk, device) = disk(&text);
            let store = device.memory().expect("it stores");
            disk.one(Op::Write, 0, filled(1, 8));
            assert_eq!((store.dirty_bytes(), store.stored_bytes()), (4096, 0));
            disk.one_with(Op::Write, 8, filled(2, 8), IoFlags::FUA);
            assert_eq!(store.dirty_bytes(), if fua { 4096 } else { 0 }, "or a flush behind it");
            disk.one_with(Op::Write, 16, filled(3, 8), IoFlags::PREFLUSH);
            assert_eq!((store.dirty_bytes(), store.stored_bytes()), (4096, 8192));
            disk.one(Op::Flush, 0, vec![]);
            assert_eq!((store.dirty_bytes(), store.stored_bytes()), (0, 3 * 4096));
            disk.one(Op::Write, 0, filled(4, 1));
            assert_eq!(disk.read(0, 2), [filled(4, 1), filled(1, 1)].concat(), "two layers");
        }
    }
}

#[test]
fn every_feature_and_fault_conforms() {
    for (seed, text) in (0..).zip([
        "irqmode=0",
        "irqmode=2,completion_nsec=3000,hw_queue_depth=3",
        "submit_queues=4,log=1",
        "bs=4096,max_sectors=64",
        "discard=1,cache_size=1",
        "irqmode=2,cache_size=1,fua=0,discard=1",
        "use_per_node_hctx=1,irqmode=0,discard=1",
        "badblocks=+5-80",
        "badblocks=+5-80,badblocks_partial_io=1,discard=1",
        "badblocks=+5-80,badblocks=+300-302,badblocks_once=1,irqmode=2",
        "badblocks=+5-5,badblocks_once=1,badblocks_partial_io=1,irqmode=0",
    ]) {
        for round in 0..8 {
            let device = device("memory", text);
            let outcome = contract::conformance(device.shape, device.queues(), seed * 8 + round);
            assert_eq!(outcome.failed > 0, text.contains("badblocks"), "{text}");
            contract::abandonment(device.shape, device.queues(), seed);
        }
    }
}
