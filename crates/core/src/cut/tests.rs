//! Cuts against a model that walks from sector to sector, and the cases that the rules name.

use super::*;
use crate::Rng;
use alloc::vec;
use alloc::vec::Vec;

const SEEDS: u64 = 20_000;

/// Returns whether a part may begin at `sector` and have this many sectors. Checks each limit separately.
fn obeys(limits: &Limits, op: Op, sector: u64, sectors: u32) -> bool {
    let within = sectors <= limits.max_sectors_of(op);
    let moves_data = matches!(op, Op::Read | Op::Write);
    let chunk = if moves_data { u64::from(limits.chunk_sectors) } else { 0 };
    let crosses = (sector + 1..sector + u64::from(sectors)).any(|at| chunk > 0 && at % chunk == 0);
    let (mut segments, mut in_segment) = (1, 0);
    for _ in 0..sectors * SECTOR_SIZE {
        if in_segment == limits.max_segment_size {
            (segments, in_segment) = (segments + 1, 0);
        }
        in_segment += 1;
    }
    within && !crosses && (!moves_data || segments <= u32::from(limits.max_segments))
}

/// The length of the first part: grown block by block as far as possible, and if that is not the end, cut back to the
/// last preferred position.
fn naive_first_part(limits: &Limits, op: Op, sector: u64, sectors: u32) -> u32 {
    let block = limits.logical_block_size / SECTOR_SIZE;
    let wanted = match op {
        Op::Discard => limits.discard_granularity.max(limits.physical_block_size),
        _ => limits.physical_block_size,
    };
    let lengths = || (1..=sectors / block).map(|blocks| blocks * block);
    let longest = lengths().take_while(|n| obeys(limits, op, sector, *n)).last();
    let longest = longest.expect("a block is always taken");
    if longest == sectors {
        return sectors;
    }
    let aligned = |n: &u32| ((sector + u64::from(*n)) * 512).is_multiple_of(wanted.into());
    lengths().take_while(|n| *n <= longest).filter(aligned).last().unwrap_or(longest)
}

fn draw_limits(rng: &mut Rng) -> Limits {
    let block = 1 << rng.below(4);
    let any = |rng: &mut Rng, most: u64| (block + rng.below(most)) as u32;
    let limits = Limits {
        logical_block_size: block as u32 * SECTOR_SIZE,
        physical_block_size: SECTOR_SIZE << rng.below(6),
        max_sectors: any(rng, 40),
        max_discard_sectors: any(rng, 60),
        discard_granularity: (block * rng.below(10)) as u32 * SECTOR_SIZE,
        max_write_zeroes_sectors: any(rng, 20),
        max_segments: 1 + rng.below(6) as u16,
        // Any number of bytes will do.
        max_segment_size: any(rng, 20) * SECTOR_SIZE + rng.below(512) as u32,
        chunk_sectors: if rng.chance(1, 2) { (block * rng.below(20)) as u32 } else { 0 },
        ..Limits::default()
    };
    limits.validate().expect("drawn within bounds");
    limits
}

/// Parts tile the I/O, obey every limit, and lie where the model cuts; and there are no more than announced.
#[test]
fn s16_14_parts_are_those_of_the_model() {
    for seed in 0..SEEDS {
        let rng = &mut Rng::new(seed);
        let limits = draw_limits(rng);
        let block = limits.logical_block_size / SECTOR_SIZE;
        let op = [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes][rng.below(4) as usize];
        let (sector, sectors) =
            (rng.below(50) * u64::from(block), block * (1 + rng.below(20) as u32));
        let (mut at, mut left, mut count) = (sector, sectors, 0);
        for (part_at, part) in limits.parts(op, sector, sectors) {
            let what =
                || alloc::format!("seed {seed}: {op:?} {sector}+{sectors} at {at}: {limits:?}");
            assert_eq!(part_at, at, "{}", what());
            assert!(obeys(&limits, op, at, part), "{}", what());
            assert_eq!(part, naive_first_part(&limits, op, at, left), "{}", what());
            at += u64::from(part);
            left = left.checked_sub(part).expect("parts are no longer than the I/O");
            count += 1;
            assert!(count <= u64::from(sectors), "parts that have no end");
        }
        assert_eq!(left, 0);
        let most = limits.most_parts(op, sectors);
        assert!(count <= most, "seed {seed}: {count} parts and at most {most} of {limits:?}");
        assert_eq!(count > 1, !obeys(&limits, op, sector, sectors), "no cut without a reason");
    }
}

/// Stops at one more than there are sectors, so that an endless series of parts fails instead of hanging.
fn parts(limits: &Limits, op: Op, sector: u64, sectors: u32) -> Vec<(u64, u32)> {
    limits.parts(op, sector, sectors).take(sectors as usize + 1).collect()
}

#[test]
fn s16_14_each_limit_takes_its_limit_whole_and_one_more_in_two() {
    let base = Limits { max_sectors: 16, ..Limits::default() };
    let segments = Limits { max_sectors: 8192, max_segments: 2, max_segment_size: 4096, ..base };
    let chunks = Limits { max_sectors: 8192, chunk_sectors: 16, ..base };
    let discard = Limits { max_discard_sectors: 16, ..Limits::default() };
    let zeroes = Limits { max_write_zeroes_sectors: 16, ..Limits::default() };
    for (limits, op) in [
        (base, Op::Read),
        (base, Op::Write),
        (segments, Op::Write),
        (chunks, Op::Write),
        (discard, Op::Discard),
        (Limits { chunk_sectors: 8, ..discard }, Op::Discard),
        (zeroes, Op::WriteZeroes),
        (Limits { chunk_sectors: 8, ..zeroes }, Op::WriteZeroes),
    ] {
        assert_eq!(parts(&limits, op, 32, 16), [(32, 16)], "{op:?} {limits:?}");
        assert_eq!(parts(&limits, op, 32, 17), [(32, 16), (48, 1)], "{op:?} {limits:?}");
    }
}

#[test]
fn cuts_lie_at_physical_blocks_and_where_there_is_none_at_logical_ones() {
    let limits = Limits { physical_block_size: 4096, max_sectors: 20, ..Limits::default() };
    assert_eq!(parts(&limits, Op::Write, 3, 40), [(3, 13), (16, 16), (32, 11)]);
    let small = Limits { max_sectors: 3, ..limits };
    assert_eq!(parts(&small, Op::Write, 0, 10), [(0, 3), (3, 3), (6, 2), (8, 2)]);
    let chunks = Limits { chunk_sectors: 12, ..limits };
    assert_eq!(parts(&chunks, Op::Write, 0, 24), [(0, 8), (8, 4), (12, 12)]);
}

#[test]
fn discards_are_cut_at_their_own_granularity() {
    let limits = Limits {
        physical_block_size: 4096,
        discard_granularity: 8192,
        max_discard_sectors: 40,
        ..Limits::default()
    };
    assert_eq!(parts(&limits, Op::Discard, 8, 64), [(8, 40), (48, 24)]);
    assert_eq!(parts(&limits, Op::Discard, 10, 64), [(10, 38), (48, 26)]);
    let none = Limits { discard_granularity: 0, ..limits };
    assert_eq!(parts(&none, Op::Discard, 10, 64), [(10, 38), (48, 26)], "physical blocks, then");
    assert_eq!(parts(&none, Op::Discard, 4, 64), [(4, 36), (40, 28)]);
}

#[test]
fn an_unsupported_operation_has_no_parts_to_count() {
    let limits = Limits::default();
    assert_eq!((limits.most_parts(Op::Discard, 8), limits.most_parts(Op::WriteZeroes, 8)), (0, 0));
    assert_eq!(limits.most_parts(Op::Read, 8192), 1);
    assert_eq!(parts(&limits, Op::Read, 0, 8193), vec![(0, 8192), (8192, 1)]);
}

/// A submitter reserves this much credit, so the bound must be no looser than documented.
#[test]
fn the_most_parts_are_those_of_a_stretch_in_each_chunk() {
    let most = |limits: &Limits, sectors| limits.most_parts(Op::Write, sectors);
    let plain = Limits { max_sectors: 4, ..Limits::default() };
    assert_eq!([4, 5, 8, 9].map(|sectors| most(&plain, sectors)), [1, 3, 3, 4]);
    let aligned = Limits { max_sectors: 12, physical_block_size: 4096, ..plain };
    assert_eq!([12, 13, 16, 17].map(|sectors| most(&aligned, sectors)), [1, 3, 3, 4], "cuts of 8");
    let wide = Limits { max_sectors: 20, ..aligned };
    assert_eq!([20, 21, 32, 33].map(|sectors| most(&wide, sectors)), [1, 3, 3, 4], "cuts of 16");
    // A physical block takes three parts, and an I/O may touch one more block than it fills.
    let small = Limits { max_sectors: 3, physical_block_size: 4096, ..plain };
    assert_eq!([3, 4, 8, 9].map(|sectors| most(&small, sectors)), [1, 6, 6, 9]);
    // A stretch is no longer than the I/O and no longer than a chunk, and an I/O touches one chunk more than it
    // fills.
    let chunked = Limits { chunk_sectors: 16, ..plain };
    let expected = [2 * (1 + 1), 2 * (3 + 1), 2 * (5 + 1), 3 * (5 + 1), 5 * (5 + 1)];
    assert_eq!([4, 8, 16, 17, 64].map(|sectors| most(&chunked, sectors)), expected);
}
