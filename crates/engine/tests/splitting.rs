//! I/Os that exceed the device's limits (`spec/framework.md` section 13, Split): divided, tracked and joined again. The
//! arithmetic of cuts has its own tests in core.

use crate::common;

use blkmq_core::{Buffer, HwQueue, Instant, IoError, IoFlags, IoResult, Limits, Op, Payload, Rng};
use blkmq_engine::{
    Access, Config, DeviceShape, Io, PLUG_REQUESTS, Queue, QueueStats, Refusal, Submitter,
    WriteCache,
};
use common::{DiskHandle, accesses, assert_at_rest, config, drain, replan, shape, storing, write};

const T0: Instant = Instant::ZERO;
/// The capacity of the storing device.
const SECTORS: u64 = 1024;

fn shape_of(limits: Limits) -> DeviceShape {
    DeviceShape { limits, ..shape(1, 64) }
}

/// A queue around a device that stores, and its only submitter.
fn disk<P: Payload>(
    limits: Limits,
    adjust: impl FnOnce(&mut Config<P>),
) -> (Queue<P>, DiskHandle, Submitter<P>) {
    let (mut config, disk) = storing(shape_of(limits), SECTORS);
    adjust(&mut config);
    let queue = Queue::new(config).expect("valid");
    let submitter = queue.submitter().expect("one is free");
    (queue, disk, submitter)
}

/// At most 8 sectors at once, cut at multiples of 8.
fn pages() -> Limits {
    Limits {
        physical_block_size: 4096,
        max_sectors: 8,
        max_discard_sectors: 24,
        discard_granularity: 8192,
        max_write_zeroes_sectors: 16,
        ..Limits::default()
    }
}

fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..len).map(|_| rng.next_u64() as u8).collect()
}

/// Pushes `io`, flushes, polls once, and returns the completions.
fn run<P: Payload>(sub: &mut Submitter<P>, io: Io<P>) -> Vec<(u64, IoResult, P)> {
    assert!(sub.push(T0, io).is_ok(), "it is taken");
    sub.flush(T0);
    sub.poll(T0);
    let mut done = Vec::new();
    let reaped = sub.reap(u32::MAX, |c| done.push((c.cookie, c.result, c.payload)));
    assert_eq!(reaped as usize, done.len());
    done
}

fn balanced(stats: &QueueStats, ios: u64, bios: u64) {
    assert_eq!((stats.submitted, stats.completed), (bios, bios), "{stats:?}");
    assert_eq!(stats.submitted - stats.splits, ios, "{stats:?}");
    assert_eq!(stats.completed_requests, stats.submitted - stats.merges.total(), "{stats:?}");
}

#[test]
fn the_bytes_of_a_divided_io_go_where_they_belong_and_it_completes_once() {
    for access in accesses() {
        let (queue, disk, mut sub) = disk::<Buffer>(pages(), |config| config.access = access);
        let bytes = random(30 * 512, 7);
        let io = Io::new(Op::Write, 3, 30, 42, Buffer::new(bytes.clone()));
        let done = run(&mut sub, io);
        assert_eq!(disk.requests(), [(3, 5), (8, 8), (16, 8), (24, 8), (32, 1)], "{access:?}");
        let [(42, Ok(()), payload)] = &done[..] else { panic!("one completion: {done:?}") };
        assert_eq!(*payload.borrow(), bytes, "whole again");
        assert_eq!(disk.lock().memory[3 * 512..][..bytes.len()], bytes);
        balanced(&queue.stats(), 1, 5);

        // The parts complete in another order.
        disk.lock().backwards = true;
        let done = run(&mut sub, Io::new(Op::Read, 3, 30, 43, Buffer::new(vec![0; bytes.len()])));
        let [(43, Ok(()), payload)] = &done[..] else { panic!("one completion: {done:?}") };
        assert_eq!(*payload.borrow(), bytes);
        balanced(&queue.stats(), 2, 10);
        assert_eq!((sub.in_flight(), sub.outstanding()), (0, 0));
    }
}

/// The error of the lowest part counts, whatever the order of completion; the other parts are still done.
#[test]
fn the_first_error_in_ascending_order_is_that_of_the_io() {
    for (access, backwards) in accesses().into_iter().flat_map(|a| [(a, false), (a, true)]) {
        let (_, disk, mut sub) = disk::<Buffer>(pages(), |config| config.access = access);
        disk.lock().backwards = backwards;
        disk.lock().bad = vec![(25, IoError::NO_SPACE), (12, IoError::TIMED_OUT)];
        let done = run(&mut sub, Io::new(Op::Write, 0, 32, 1, Buffer::new(vec![5; 32 * 512])));
        let [(1, Err(IoError::TIMED_OUT), payload)] = &done[..] else { panic!("{done:?}") };
        assert_eq!(payload.borrow().len(), 32 * 512);
        let sectors: Vec<u8> = disk.lock().memory.chunks(512).take(33).map(|s| s[0]).collect();
        let parts: Vec<u8> = sectors.chunks(8).map(|part| part[0]).collect();
        assert_eq!(parts, [5, 0, 5, 0, 0], "{access:?}");
        // The next I/O through the same split is not affected.
        disk.lock().bad.clear();
        let done = run(&mut sub, Io::new(Op::Write, 0, 32, 2, Buffer::new(vec![6; 32 * 512])));
        assert!(matches!(done[..], [(2, Ok(()), _)]), "{done:?}");
    }
}

/// The parts have the I/O's cookie, and wait in the plug, in the policy and at the device. None is cancelled.
#[test]
fn a_divided_io_is_not_cancelled() {
    for access in accesses() {
        let (mut config, device) = config(shape_of(pages()));
        config.access = access;
        config.nr_requests = Some(4);
        let queue = Queue::new(config).expect("valid");
        let mut sub = queue.submitter().expect("one is free");
        device.with(|c| c.room = 1);
        // Enough parts for the elevator to leave the last ones in staging.
        assert!(sub.push(T0, Io::new(Op::Write, 0, 64, 7, 0)).is_ok());
        assert!(sub.push(T0, write(1000, 8)).is_ok());
        sub.cancel(T0, 7);
        sub.flush(T0);
        sub.cancel(T0, 7);
        sub.poll(T0);
        assert_eq!((sub.in_flight(), sub.outstanding()), (9, 2), "{access:?}");
        // An undivided I/O behind it is cancelled: the asks are served.
        sub.cancel(T0, 1000);
        let mut ended = Vec::new();
        for _ in 0..8 {
            device.finish(1);
            sub.poll(T0);
            sub.cancel(T0, 7);
            sub.reap(u32::MAX, |c| ended.push((c.cookie, c.result)));
        }
        assert_eq!(ended, [(1000, Err(IoError::CANCELLED)), (7, Ok(()))], "{access:?}");
        let stats = queue.stats();
        assert_eq!((stats.cancelled.total(), stats.splits), (1, 7), "{stats:?}");
        assert_eq!(device.sectors(), (0..8).map(|part| part * 8).collect::<Vec<_>>());
        assert_eq!((sub.in_flight(), sub.outstanding()), (0, 0));
    }
}

/// The counts of a submitter with divided I/Os, at each step of the completion of their parts.
#[test]
fn a_part_is_no_completion() {
    for access in accesses() {
        let (mut config, device) = config(shape_of(pages()));
        config.access = access;
        config.depth = 16;
        let queue = Queue::new(config).expect("valid");
        let mut sub = queue.submitter().expect("one is free");
        device.with(|c| c.interrupts = true);
        let finish = |parts| {
            device.finish(parts);
            queue.pump(HwQueue(0), T0);
        };
        let state = |sub: &mut Submitter<u32>| {
            let announced = sub.has_completions(1);
            (sub.in_flight(), sub.outstanding(), announced)
        };
        sub.push(T0, write(0, 24)).expect("there is credit");
        sub.push(T0, write(100, 4)).expect("there is credit");
        sub.push(T0, write(200, 16)).expect("there is credit");
        sub.flush(T0);
        assert_eq!(state(&mut sub), (6, 3, false), "{access:?}");
        // Two parts of the first I/O: they are taken in, and no completion is reported.
        finish(2);
        assert!(sub.prepare_park(T0).is_none(), "there is something to take in");
        assert_eq!(state(&mut sub), (4, 3, false));
        assert_eq!(sub.reap(u32::MAX, |done| panic!("{done:?}")), 0);
        assert!(sub.prepare_park(T0).is_some(), "and now there is not");
        sub.unpark();
        // The last part of the first I/O, the whole second one, and a part of the third.
        finish(3);
        assert_eq!(
            state(&mut sub),
            (4, 3, true),
            "completions keep their credit until they are reaped"
        );
        let mut done = Vec::new();
        assert_eq!(sub.reap(1, |c| done.push(c.cookie)), 1);
        assert_eq!(state(&mut sub), (3, 2, true));
        assert_eq!(sub.reap(u32::MAX, |c| done.push(c.cookie)), 1);
        assert_eq!((&done[..], state(&mut sub)), (&[0, 100][..], (1, 1, false)));
        finish(1);
        assert_eq!(state(&mut sub), (1, 1, true));
        assert_eq!(sub.reap(u32::MAX, |c| assert_eq!((c.cookie, c.payload), (200, 200))), 1);
        assert_eq!(state(&mut sub), (0, 0, false));
        assert_at_rest(&queue, 1);
        assert_eq!(queue.stats().splits, 3);
    }
}

#[test]
fn without_credit_for_all_parts_nothing_is_submitted() {
    let (queue, disk, mut sub) = disk::<Vec<u8>>(pages(), |config| config.depth = 4);
    disk.lock().holds = true;
    let io = |sectors: u32, cookie| {
        let bytes = random(sectors as usize * 512, cookie);
        Io::new(Op::Write, 0, sectors, cookie, bytes)
    };
    sub.push(T0, io(16, 0)).expect("two parts of four");
    let refused = sub.push(T0, io(24, 1)).expect_err("three more");
    assert_eq!((refused.why, refused.into_io()), (Refusal::NoCredit { depth: 4 }, io(24, 1)));
    assert_eq!((queue.stats().submitted, sub.in_flight(), sub.outstanding()), (2, 2, 1));
    // An I/O at the limit is accepted; waiting would not help a longer one.
    sub.push(T0, io(16, 2)).expect("two more");
    let refused = sub.push(T0, io(33, 3)).expect_err("five parts of four");
    assert_eq!((refused.why, refused.into_io()), (Refusal::TooLong { most: 32 }, io(33, 3)));
    sub.flush(T0);
    disk.lock().holds = false;
    sub.poll(T0);
    assert_eq!(sub.reap(u32::MAX, |c| assert!(c.payload == io(16, c.cookie).payload)), 2);
    let done = run(&mut sub, io(32, 4));
    assert!(matches!(done[..], [(4, Ok(()), _)]));
    balanced(&queue.stats(), 3, 8);
}

/// A payload that can be divided `cuts` times; each join restores one cut.
#[derive(PartialEq, Eq, Clone, Debug)]
struct Fussy {
    bytes: Vec<u8>,
    cuts: u32,
}

impl Payload for Fussy {
    fn split_off(&mut self, at: usize) -> Option<Self> {
        self.cuts = self.cuts.checked_sub(1)?;
        Some(Self { bytes: self.bytes.split_off(at), cuts: 0 })
    }

    fn join(&mut self, mut rest: Self) {
        self.cuts += 1;
        self.bytes.append(&mut rest.bytes);
    }
}

#[test]
fn a_payload_that_cannot_be_divided_comes_back_whole() {
    let (queue, _, mut sub) = disk::<Fussy>(pages(), |_| ());
    for cuts in 0..4 {
        let io = Io::new(Op::Write, 4, 32, 9, Fussy { bytes: random(32 * 512, 3), cuts });
        let refused = sub.push(T0, io.clone()).expect_err("four cuts are needed");
        assert_eq!((refused.why, refused.into_io()), (Refusal::TooLong { most: 8 }, io));
    }
    assert_eq!((queue.stats().submitted, sub.in_flight()), (0, 0));
    let io = Io::new(Op::Discard, 4, 72, 9, Fussy { bytes: random(72 * 512, 3), cuts: 4 });
    let payload = io.payload.clone();
    let done = run(&mut sub, io);
    let [(9, Ok(()), whole)] = &done[..] else { panic!("{done:?}") };
    assert_eq!(*whole, payload);
}

#[test]
fn nowait_is_not_divided() {
    let (queue, disk, mut sub) = disk::<()>(pages(), |_| ());
    let io = |sectors| Io { flags: IoFlags::NOWAIT, ..Io::new(Op::Discard, 20, sectors, 0, ()) };
    let refused = sub.push(T0, io(25)).expect_err("two parts");
    assert_eq!((refused.why, refused.into_io()), (Refusal::NoWait { most: 24 }, io(25)));
    assert_eq!(queue.stats().submitted, 0);
    assert_eq!(run(&mut sub, io(24)).len(), 1);
    assert_eq!(disk.requests(), [(20, 24)]);
}

/// For each limit, an I/O at the limit and one that is a block longer.
#[test]
fn s16_14_an_io_at_a_limit_goes_whole_and_beyond_it_in_two() {
    let base = Limits { max_sectors: 64, ..Limits::default() };
    let segments = Limits { max_segments: 2, max_segment_size: 16384, ..Limits::default() };
    let chunks = Limits { chunk_sectors: 64, ..Limits::default() };
    let discard = Limits { max_discard_sectors: 64, ..Limits::default() };
    let zeroes = Limits { max_write_zeroes_sectors: 64, ..Limits::default() };
    for (limits, op, most_segments) in [
        (base, Op::Read, 1),
        (base, Op::Write, 1),
        (segments, Op::Read, 2),
        (segments, Op::Write, 2),
        (chunks, Op::Write, 1),
        (discard, Op::Discard, 1),
        (Limits { chunk_sectors: 8, ..discard }, Op::Discard, 1),
        (zeroes, Op::WriteZeroes, 1),
    ] {
        for access in accesses() {
            let (queue, disk, mut sub) = disk::<Buffer>(limits, |config| config.access = access);
            let io = |sectors: u32| {
                Io::new(op, 128, sectors, 0, Buffer::new(vec![1; sectors as usize * 512]))
            };
            assert!(matches!(run(&mut sub, io(64))[..], [(0, Ok(()), _)]));
            assert_eq!(disk.lock().taken[0].segments, most_segments, "{op:?} {limits:?}");
            assert_eq!(disk.requests(), [(128, 64)], "{access:?} {op:?} {limits:?}");
            assert!(matches!(run(&mut sub, io(65))[..], [(0, Ok(()), _)]));
            assert_eq!(disk.requests(), [(128, 64), (192, 1)], "{access:?} {op:?} {limits:?}");
            balanced(&queue.stats(), 2, 3);
        }
    }
    let (_, _, mut sub) = disk::<()>(Limits::default(), |_| ());
    for op in [Op::Discard, Op::WriteZeroes] {
        let refused = sub.push(T0, Io::new(op, 0, 8, 0, ())).expect_err("its limit is zero");
        assert_eq!(refused.why, Refusal::Unsupported(op));
    }
}

/// A bio of two segments counts as two when it merges, whether it was divided or not.
#[test]
fn s16_14_merging_counts_the_segments_of_each_bio() {
    for (max_segments, together) in [(4, true), (3, false)] {
        let limits = Limits { max_segments, max_segment_size: 4096, ..Limits::default() };
        let (_, disk, mut sub) = disk::<Vec<u8>>(limits, |_| ());
        let io = |sector| Io::new(Op::Write, sector, 9, sector, vec![0; 9 * 512]);
        sub.push(T0, io(0)).expect("there is credit");
        assert_eq!(run(&mut sub, io(9)).len(), 2);
        let taken = disk.lock().taken[0];
        let expected = if together { (18, 2, 4) } else { (9, 1, 2) };
        assert_eq!((taken.sectors, taken.bios, taken.segments), expected);
    }
}

#[test]
fn discards_and_zeroes_are_cut_by_their_own_limits() {
    for access in accesses() {
        let (queue, disk, mut sub) = disk::<()>(pages(), |config| config.access = access);
        disk.lock().memory.fill(1);
        assert_eq!(run(&mut sub, Io::new(Op::Discard, 8, 60, 0, ())).len(), 1);
        // Cut at multiples of 16.
        assert_eq!(disk.requests(), [(8, 24), (32, 16), (48, 20)], "{access:?}");
        assert_eq!(run(&mut sub, Io::new(Op::WriteZeroes, 100, 40, 0, ())).len(), 1);
        assert_eq!(disk.requests(), [(100, 12), (112, 16), (128, 12)]);
        let is_zero = |sector: usize| disk.lock().memory[sector * 512..][..512] == [0; 512];
        let zeroes: Vec<usize> = (0..SECTORS as usize).filter(|sector| is_zero(*sector)).collect();
        assert_eq!(zeroes, (8..68).chain(100..140).collect::<Vec<_>>());
        balanced(&queue.stats(), 2, 6);
    }
}

#[test]
fn no_write_crosses_a_chunk() {
    let limits = Limits { chunk_sectors: 12, ..pages() };
    let (_, disk, mut sub) = disk::<()>(limits, |config| config.depth = 1024);
    for start in 0..24 {
        for sectors in 1..60 {
            assert_eq!(run(&mut sub, Io::new(Op::Write, start, sectors, 0, ())).len(), 1);
            for (sector, sectors) in disk.requests() {
                let last = sector + u64::from(sectors) - 1;
                assert_eq!(sector / 12, last / 12, "{sectors} sectors at {sector}");
            }
        }
    }
}

/// The requests that result from a write of two parts between two adjacent I/Os, all in one plug.
fn between_neighbours(limits: Limits, flags: IoFlags, sectors: u32) -> Vec<(u64, u32, bool)> {
    between_neighbours_on(WriteCache::Through, limits, flags, sectors)
}

fn between_neighbours_on(
    cache: WriteCache,
    limits: Limits,
    flags: IoFlags,
    sectors: u32,
) -> Vec<(u64, u32, bool)> {
    let (_, disk, mut sub) = disk::<()>(limits, |config| config.device.cache = cache);
    let end = 100 + u64::from(sectors);
    sub.push(T0, Io::new(Op::Write, 96, 4, 0, ())).expect("there is credit");
    sub.push(T0, Io { flags, ..Io::new(Op::Write, 100, sectors, 1, ()) }).expect("there is credit");
    sub.push(T0, Io::new(Op::Write, end, 4, 2, ())).expect("there is credit");
    sub.flush(T0);
    sub.poll(T0);
    sub.reap(u32::MAX, |_| ());
    let taken = &disk.lock().taken;
    assert_eq!(taken.iter().map(|rq| rq.sectors).sum::<u32>(), sectors + 8);
    taken.iter().map(|rq| (rq.sector, rq.sectors, rq.flags.contains(flags))).collect()
}

#[test]
fn only_the_last_part_merges() {
    let limits = Limits { max_sectors: 16, ..Limits::default() };
    let plain = between_neighbours(limits, IoFlags::NONE, 24);
    assert_eq!(plain, [(96, 4, true), (100, 16, true), (116, 12, true)]);
    // The first adjacent I/O and the first part would fit into one request, but do not merge.
    let short = Limits { physical_block_size: 8192, ..limits };
    let plain = between_neighbours(short, IoFlags::NONE, 24);
    assert_eq!(plain, [(96, 4, true), (100, 12, true), (112, 16, true)]);
    // Undivided, the write would have merged with both adjacent I/Os.
    let wide = Limits { max_sectors: 32, ..limits };
    assert_eq!(between_neighbours(wide, IoFlags::NONE, 24), [(96, 32, true)]);
    // The memory of the last part begins at the cut, which may be at a boundary.
    let virt = |virt_boundary_mask| Limits { virt_boundary_mask, ..limits };
    assert_eq!(between_neighbours(virt(4095), IoFlags::NONE, 24).len(), 3);
    let cut_inside = Limits { max_sectors: 20, ..virt(4095) };
    assert_eq!(between_neighbours(cut_inside, IoFlags::NONE, 28).len(), 4);
}

/// Each part is written separately, so each must be durable.
#[test]
fn every_part_has_the_flags_of_the_io() {
    let limits = Limits { max_sectors: 16, ..Limits::default() };
    assert_eq!(
        between_neighbours_on(WriteCache::Back { fua: true }, limits, IoFlags::FUA, 24),
        [(96, 4, false), (100, 16, true), (116, 8, true), (124, 4, false)]
    );
    // Where the flag has no effect it does not prevent merging.
    assert_eq!(
        between_neighbours(limits, IoFlags::FUA, 24),
        [(96, 4, false), (100, 16, false), (116, 12, false)]
    );
}

/// Each part must follow a flush, and must itself be flushed.
#[test]
fn every_part_goes_through_the_flush_sequence_of_the_io() {
    let limits = Limits { max_sectors: 16, ..Limits::default() };
    let flags = IoFlags::FUA | IoFlags::PREFLUSH;
    for access in accesses() {
        let (queue, disk, mut sub) = disk::<Buffer>(limits, |config| {
            config.access = access;
            config.device.cache = WriteCache::Back { fua: false };
        });
        disk.lock().bad.push((300, IoError::NO_SPACE));
        for (start, result) in [(100, Ok(())), (270, Err(IoError::NO_SPACE))] {
            let bytes = random(40 * 512, start);
            let io = Io::new(Op::Write, start, 40, start, Buffer::new(bytes.clone()));
            let mut done = run(&mut sub, Io { flags, ..io });
            for _ in 0..10 {
                assert!(done.is_empty() || sub.in_flight() == 0, "not before its last flush");
                sub.poll(T0);
                sub.reap(u32::MAX, |c| done.push((c.cookie, c.result, c.payload)));
            }
            let [(cookie, ended, payload)] = &done[..] else { panic!("one completion: {done:?}") };
            assert_eq!((*cookie, *ended), (start, result), "{access:?}");
            assert_eq!(*payload.borrow(), bytes, "whole again");
            let taken = std::mem::take(&mut disk.lock().taken);
            let writes: Vec<usize> =
                (0..taken.len()).filter(|n| taken[*n].op == Op::Write).collect();
            assert_eq!(writes.len(), 3, "{taken:?}");
            assert!(writes.iter().all(|n| !taken[*n].flags.intersects(flags)), "they are ours");
            assert!(taken[..writes[0]].iter().any(|rq| rq.op == Op::Flush), "{taken:?}");
            assert!(taken[writes[2]..].iter().any(|rq| rq.op == Op::Flush), "{taken:?}");
        }
        let stats = queue.stats();
        assert_eq!((stats.submitted, stats.completed, stats.splits), (6, 6, 4));
        // A flush before each part, and one after each part except the failed one.
        assert_eq!((stats.flushes.asked, stats.flushes.dataless), (11, 0), "{access:?}");
        let requests = stats.submitted.checked_add_signed(stats.flushes.surplus());
        assert_eq!(Some(stats.completed_requests), requests, "{stats:?}");
        assert_at_rest(&queue, 1);
    }
}

/// Limits can change while I/O runs. I/Os cut by earlier limits continue unchanged; later I/Os are cut by the current
/// limits.
#[test]
fn cuts_follow_limits_that_change() {
    let limits = |max_sectors| Limits { max_sectors, capacity: 1 << 20, ..Limits::default() };
    for access in accesses() {
        let (config, device) = config(DeviceShape { limits: limits(16), ..shape(1, 128) });
        let queue = Queue::new(Config { access, ..config }).expect("valid");
        let mut sub = queue.submitter().expect("one is free");
        let lengths = |from: usize| -> Vec<u32> {
            device.with(|c| c.arrivals[from..].iter().map(|a| a.sectors).collect())
        };
        let begin = |max_sectors| {
            let mut plan = queue.plan();
            plan.device.limits = limits(max_sectors);
            replan(&queue, plan).expect("limits can be changed")
        };
        // The device's own limit is 16.
        let mut narrow = begin(8);
        assert!((0..5).any(|_| narrow.step(T0)));
        // One I/O in flight, which delays the change; and one staged behind it.
        sub.push(T0, write(0, 8)).expect("there is credit");
        sub.flush(T0);
        let mut wider = begin(16);
        assert!(!wider.step(T0));
        sub.push(T0, write(1000, 24)).expect("there is credit");
        sub.flush(T0);
        device.finish(1);
        assert!((0..5).any(|_| wider.step(T0)));
        sub.poll(T0);
        assert_eq!(lengths(1), [8, 8, 8], "{access:?}: in old parts");
        sub.push(T0, write(2000, 24)).expect("there is credit");
        sub.push(T0, write(3000, 12)).expect("there is credit");
        sub.flush(T0);
        assert_eq!(lengths(4), [16, 8, 12], "{access:?}");
        device.finish(6);
        assert_eq!(drain(&mut sub, &mut { T0 }, 3).len(), 4);

        // The submitter notices the change only when it flushes, in the middle of the next I/O.
        let mut narrower = begin(8);
        assert!((0..5).any(|_| narrower.step(T0)));
        let parts = PLUG_REQUESTS + 1;
        sub.push(T0, write(4000, 16 * parts as u32)).expect("there is credit");
        sub.push(T0, write(9000, 16)).expect("there is credit");
        sub.flush(T0);
        let mut expected = vec![16; parts];
        expected.extend([8, 8]);
        assert_eq!(lengths(7), expected, "{access:?}");
        device.finish(parts + 2);
        assert_eq!(drain(&mut sub, &mut { T0 }, 3).len(), 2);
        assert_at_rest(&queue, 1);
    }
}

#[test]
fn a_plug_is_flushed_between_parts_as_between_ios() {
    let (queue, device) = {
        let limits = Limits { max_sectors: 8, ..Limits::default() };
        let (config, device) = config(DeviceShape { limits, ..shape(1, 128) });
        (Queue::new(config).expect("valid"), device)
    };
    let mut sub = queue.submitter().expect("one is free");
    let parts = PLUG_REQUESTS as u32 + 1;
    sub.push(T0, write(0, 8 * (parts - 1))).expect("there is credit");
    assert_eq!(device.sectors().len(), 0, "the plug is just full");
    sub.push(T0, write(1000, 8 * parts)).expect("there is credit");
    assert_eq!(device.sectors().len(), 2 * PLUG_REQUESTS, "and one part is left in it");
    sub.flush(T0);
    assert_eq!(device.sectors().len() as u32, 2 * parts - 1);
    assert!(device.sectors().is_sorted(), "in ascending order");
}

/// Reads and writes of all lengths, one after the other, under all kinds of limits: reads return the contents of a
/// plain array with the same writes, and every I/O completes once.
#[test]
fn contents_are_those_of_an_array() {
    for (seed, access) in (0..300).flat_map(|seed| accesses().map(|access| (seed, access))) {
        random_contents(seed, access);
    }
}

fn random_contents(seed: u64, access: Access) {
    let rng = &mut Rng::new(seed);
    let limits = Limits {
        physical_block_size: 512 << rng.below(5),
        max_sectors: 1 + rng.below(12) as u32,
        max_segments: 1 + rng.below(8) as u16,
        max_segment_size: 512 * (1 + rng.below(4) as u32),
        max_write_zeroes_sectors: 1 + rng.below(20) as u32,
        chunk_sectors: rng.below(16) as u32,
        ..Limits::default()
    };
    let (queue, disk, mut sub) = disk::<Buffer>(limits, |config| {
        config.access = access;
        config.scheduler = common::deadline();
        config.options = blkmq_sched::Options::defaults(config.scheduler.attributes);
    });
    let mut model = vec![0; 100 * 512];
    let mut expected = Vec::new();
    for cookie in 0..30 {
        let (sector, sectors) = (rng.below(50), 1 + rng.below(50) as u32);
        let op = [Op::Read, Op::Write, Op::Write, Op::WriteZeroes][rng.below(4) as usize];
        let range = &mut model[sector as usize * 512..][..sectors as usize * 512];
        let bytes = random(range.len(), seed ^ cookie << 32);
        let io = Io::new(op, sector, sectors, cookie, Buffer::new(bytes.clone()));
        match op {
            Op::Write => range.copy_from_slice(&bytes),
            Op::WriteZeroes => range.fill(0),
            _ => {}
        }
        expected.push(if op == Op::Read { range.to_vec() } else { bytes });
        disk.lock().backwards = rng.chance(1, 2);
        let mut done = 0;
        sub.push(T0, io).expect("there is credit for all parts");
        sub.flush(T0);
        for _ in 0..1000 {
            sub.poll(T0);
            done += sub.reap(u32::MAX, |c| {
                assert_eq!((c.cookie, c.result), (cookie, Ok(())), "seed {seed} {limits:?}");
                assert!(*c.payload.borrow() == expected[cookie as usize], "seed {seed} {limits:?}");
            });
            if sub.in_flight() == 0 {
                break;
            }
        }
        assert_eq!(done, 1, "seed {seed} {limits:?}");
    }
    assert!(disk.lock().memory[..model.len()] == model, "seed {seed} {limits:?}");
    let stats = queue.stats();
    balanced(&stats, 30, stats.submitted);
}
