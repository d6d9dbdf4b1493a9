//! Cuts inside of lists against a model that walks from byte to byte.

use super::*;
use crate::Rng;
use alloc::vec::Vec;
use core::ptr::{slice_from_raw_parts_mut, without_provenance_mut};

const SEEDS: u64 = 3_000;

/// A payload in these ranges, of an address and a length each.
struct List(Vec<(usize, usize)>);

fn range((at, len): (usize, usize)) -> *mut [u8] {
    slice_from_raw_parts_mut(without_provenance_mut(at), len)
}

impl Payload for List {
    fn ranges(&self) -> impl Iterator<Item = *mut [u8]> + Clone {
        self.0.iter().copied().map(range)
    }
}

/// The parts; `None` if a block fits in no request.
fn parts(limits: &Limits, sector: u64, sectors: u32, list: &List) -> Option<Vec<(u64, u32)>> {
    limits.parts_of_list(Op::Write, sector, sectors, list.ranges()).map(Result::ok).collect()
}

/// The addresses of all bytes; `None` in front of each but the first range.
fn walk(list: &List) -> Vec<Option<usize>> {
    let mut all = Vec::new();
    for (n, (at, len)) in list.0.iter().filter(|(_, len)| *len > 0).enumerate() {
        all.extend((n > 0).then_some(None));
        all.extend((0..*len).map(|n| Some(at + n)));
    }
    all
}

/// Returns whether one request may have these bytes. `walk` does not begin with a joint.
fn obeys(limits: &Limits, walk: &[Option<usize>]) -> bool {
    let (mut segments, mut in_segment) = (1, 0);
    for (n, step) in walk.iter().enumerate() {
        match step {
            None => {
                let (Some(before), Some(behind)) = (walk[n - 1], walk[n + 1]) else { return false };
                let joint = (before + 1) as u64 | behind as u64;
                if joint & limits.virt_boundary_mask != 0 {
                    return false;
                }
                (segments, in_segment) = (segments + 1, 0);
            }
            Some(_) if in_segment == limits.max_segment_size => {
                (segments, in_segment) = (segments + 1, 1);
            }
            Some(_) => in_segment += 1,
        }
    }
    segments <= u32::from(limits.max_segments)
}

/// The steps of `walk` that are `bytes` bytes.
fn steps(walk: &[Option<usize>], bytes: usize) -> usize {
    let mut left = bytes;
    walk.iter()
        .take_while(|step| {
            left > 0
                && (step.is_none() || {
                    left -= 1;
                    true
                })
        })
        .count()
}

/// Grows the first part block by block as long as it obeys, and cuts it back to the preferred alignment.
fn naive_parts(limits: &Limits, sector: u64, sectors: u32, list: &List) -> Option<Vec<(u64, u32)>> {
    let block = limits.logical_block_size / SECTOR_SIZE;
    let all = walk(list);
    let (mut walk, mut at, end) = (&all[..], sector, sector + u64::from(sectors));
    let mut parts = Vec::new();
    while at < end {
        walk = if walk.first() == Some(&None) { &walk[1..] } else { walk };
        let fits = |n: &u32| {
            let longest = limits.first_part(Op::Write, at, *n) == *n;
            longest && obeys(limits, &walk[..steps(walk, (*n * SECTOR_SIZE) as usize)])
        };
        let lengths = || (1..=((end - at) as u32) / block).map(|blocks| blocks * block);
        let longest = lengths().take_while(fits).last()?;
        let is_aligned = |n: &u32| {
            let preferred = limits.physical_block_size.max(limits.logical_block_size);
            ((at + u64::from(*n)) * 512).is_multiple_of(preferred.into())
        };
        let to_end = at + u64::from(longest) == end;
        let aligned = lengths().take_while(|n| *n <= longest).filter(is_aligned).last();
        let part = if to_end { longest } else { aligned.unwrap_or(longest) };
        parts.push((at, part));
        walk = &walk[steps(walk, (part * SECTOR_SIZE) as usize)..];
        at += u64::from(part);
    }
    Some(parts)
}

fn draw(rng: &mut Rng) -> (Limits, u64, u32, List) {
    let block = 1 << rng.below(3);
    let limits = Limits {
        logical_block_size: block as u32 * SECTOR_SIZE,
        physical_block_size: SECTOR_SIZE << rng.below(5),
        max_sectors: (block + rng.below(24)) as u32,
        max_segments: 1 + rng.below(6) as u16,
        max_segment_size: (block as u32 + rng.below(8) as u32) * SECTOR_SIZE + rng.below(99) as u32,
        chunk_sectors: if rng.chance(1, 3) { (block * (1 + rng.below(12))) as u32 } else { 0 },
        virt_boundary_mask: if rng.chance(1, 3) { 511 } else { 0 },
        ..Limits::default()
    };
    limits.validate().expect("drawn within bounds");
    let sectors = (block * (1 + rng.below(24))) as u32;
    let mut left = (sectors * SECTOR_SIZE) as usize;
    let unit = [1, 256, 512][rng.below(3) as usize];
    let mut ranges = Vec::new();
    while left > 0 {
        let len = (unit * (rng.below(2600) as usize / unit)).min(left);
        ranges.push(((ranges.len() + 1) << 20 | (rng.below(3) as usize * unit), len));
        left -= len;
    }
    (limits, block * rng.below(40), sectors, List(ranges))
}

#[test]
fn lists_are_cut_as_by_a_model_that_walks_from_byte_to_byte() {
    let (mut divided, mut scattered) = (0, 0);
    for seed in 0..SEEDS {
        let (limits, sector, sectors, list) = draw(&mut Rng::new(seed));
        let found = parts(&limits, sector, sectors, &list);
        let expected = naive_parts(&limits, sector, sectors, &list);
        assert_eq!(found, expected, "seed {seed}: {sectors} at {sector}, {limits:?}, {:?}", list.0);
        divided += u32::from(found.as_ref().is_some_and(|parts| parts.len() > 1));
        scattered += u32::from(found.is_none());
    }
    let few = SEEDS as u32 / 10;
    assert!(divided > few && scattered > few, "{divided} divided, {scattered} not to be");
}

#[test]
fn one_range_is_no_list_and_is_divided_by_its_length() {
    let mut rng = Rng::new(1);
    for _ in 0..SEEDS {
        let (limits, sector, sectors, _) = draw(&mut rng);
        let limits = Limits { virt_boundary_mask: 0, ..limits };
        let one = List([(4096, (sectors * SECTOR_SIZE) as usize)].into());
        let by_length = Vec::from_iter(limits.parts(Op::Write, sector, sectors));
        assert!(!is_list(&one) && !is_list(&7_u64));
        assert_eq!(parts(&limits, sector, sectors, &one), Some(by_length));
        let segments = limits.segments_of(Op::Write, sectors, &one);
        assert_eq!(segments, limits.segments(Op::Write, sectors));
    }
}

#[test]
fn each_range_is_a_segment_at_least() {
    let limits = Limits { max_segment_size: 4096, ..Limits::default() };
    let list = List([(1 << 20, 100), (2 << 20, 0), (3 << 20, 5000), (4 << 20, 20)].into());
    assert_eq!(limits.segments_of(Op::Read, 10, &list), 1 + 2 + 1);
    assert_eq!(limits.segments_of(Op::Discard, 10, &list), 1, "it uses no payload");
}

#[test]
fn ranges_are_aligned_where_the_device_asks_for_it() {
    let takes = |range_alignment, ranges: &[(usize, usize)]| {
        let limits = Limits { range_alignment, ..Limits::default() };
        limits.takes_ranges(List(ranges.into()).ranges())
    };
    assert!(takes(0, &[(1, 1), (9, 511)]), "no rule");
    assert!(takes(1, &[(1, 512)]) && !takes(1, &[(1, 511), (4096, 1)]), "whole blocks");
    assert!(takes(64, &[(64, 512), (0, 0)]) && !takes(64, &[(32, 512)]));
}

/// The device says that the payload is too short; the queue must not be confused by it.
#[test]
fn a_payload_that_is_too_short_is_cut_all_the_same() {
    let limits = Limits { max_sectors: 8, ..Limits::default() };
    let short = List([(4096, 100), (8192, 100)].into());
    assert_eq!(parts(&limits, 0, 16, &short), Some([(0, 8), (8, 8)].into()));
    assert_eq!(parts(&limits, 0, 16, &List(Vec::new())), Some([(0, 8), (8, 8)].into()));
}
