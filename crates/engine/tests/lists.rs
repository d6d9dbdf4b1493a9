//! Payloads in several ranges of memory: counted, divided inside of a range, refused, merged and repeated by owner.

use crate::common;

use blkmq_buf::{AlignedBuf, BufList};
use blkmq_core::{Instant, IoError, IoFlags, Limits, Nanos, Op, Owner, Payload, Rng};
use blkmq_engine::{Config, DeviceShape, Io, Queue, Refusal, Submitter};
use common::store::{DiskHandle, storing};
use common::{deadline, shape};

const T0: Instant = Instant::ZERO;
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

fn write(sector: u64, list: BufList) -> Io<BufList> {
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
    let mut done = run(&mut sub, vec![write(8, payload)]);
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
    let mut done = run(&mut sub, vec![write(0, payload)]);
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
    let refused = sub.push(T0, write(4, list(&[512, 100, 100, 312], 1))).expect_err("3 in a block");
    assert_eq!(refused.why, Refusal::Scattered { segments: 2, boundary: 1 });
    assert_eq!(refused.into_io().payload.into_bufs().expect("whole").len(), 4);
    assert_eq!((queue.stats().submitted, sub.in_flight()), (0, 0));
    // A list of one range is treated like a buffer, and a flush or a discard uses none of the ranges.
    assert!(sub.push(T0, write(4, list(&[1024], 1))).is_ok());
    let many = list(&[128; 4], 1);
    let refused = sub.push(T0, Io::new(Op::Discard, 0, 1, 0, many)).expect_err("no discards");
    assert_eq!(refused.why, Refusal::Unsupported(Op::Discard));

    let (_, _, mut sub) = disk(Limits { range_alignment: 4, ..Limits::default() });
    let refused = sub.push(T0, write(4, list(&[512, 100, 412], 1))).expect_err("no whole blocks");
    assert_eq!(refused.why, Refusal::RangeMisaligned { start: 4, len: 512 });
    assert!(sub.push(T0, write(4, list(&[512, 1024], 1))).is_ok());
    let io = Io { flags: IoFlags::NOWAIT, ..write(4, list(&[512; 129], 1)) };
    let refused = sub.push(T0, io).expect_err("two parts");
    assert_eq!(refused.why, Refusal::NoWait { most: 128 });
}

/// Ranges join at multiples of a boundary or are in two requests, and no later I/O merges with such a list.
#[test]
fn ranges_meet_where_the_segments_of_the_device_may() {
    let (_, disk, mut sub) = disk(Limits { virt_boundary_mask: 4095, ..Limits::default() });
    // Buffers begin at pages, so a range that is not whole pages ends off the boundary.
    let off = write(0, list(&[4096, 512, 4096], 1));
    let on = write(64, list(&[4096, 8192, 512], 1));
    let next = write(64 + 25, list(&[4096], 1));
    run(&mut sub, vec![off, on, next]);
    let mut seen = requests(&disk);
    seen.sort_unstable();
    assert_eq!(seen, [(0, 9, 2), (9, 8, 1), (64, 25, 3), (89, 8, 1)]);
    let scattered = write(0, list(&[256, 256], 1));
    let refused = sub.push(T0, scattered).expect_err("within a block");
    assert_eq!(refused.why, Refusal::Scattered { segments: 128, boundary: 4096 });
}

#[test]
fn neighbours_merge_as_long_as_their_ranges_fit_together() {
    let (queue, disk, mut sub) = disk(Limits { max_segments: 6, ..Limits::default() });
    let ios = (0..3).map(|n| write(n * 2, list(&[500, 24, 500], n))).collect();
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
        let io = write(sector, list(lens, sector)).owner(Owner(1 + sector as u32 / 2));
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
