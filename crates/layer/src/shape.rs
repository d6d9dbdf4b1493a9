//! The shape of a device made of others: no leg receives a request that it cannot serve.

#![forbid(unsafe_code)]

use blkmq_core::{Limits, Nanos, SECTOR_SIZE};
use blkmq_engine::{DeviceShape, WriteCache};

/// The most requests of a layer in flight.
const MAX_DEPTH: u32 = 1024;

/// The shape of a device around legs of these shapes, except its capacity. Its requests have no timeout, because each
/// leg has one for its pieces.
///
/// # Panics
/// If there are no legs.
pub(crate) fn of(legs: &[DeviceShape]) -> DeviceShape {
    let limits = legs.iter().map(|leg| leg.limits).reduce(both).expect("a layer has legs");
    let depths = legs.iter().map(|leg| leg.hw_queue_depth);
    let is_through = legs.iter().all(|leg| leg.cache == WriteCache::Through);
    DeviceShape {
        hw_queues: 1,
        hw_queue_depth: depths.fold(0, u32::saturating_add).clamp(1, MAX_DEPTH),
        shared_tags: false,
        budget: None,
        limits: in_blocks(limits),
        // The queue of a leg without FUA adds a flush behind the write.
        cache: if is_through { WriteCache::Through } else { WriteCache::Back { fua: true } },
        timeout: Nanos(u64::MAX),
    }
}

/// Changes the limits of a leg to those of a layer with blocks of `plain` bytes, each of which takes `stored` bytes of
/// the leg. There are no discards: a discarded block would not hold the layer's encoding of zeroes.
pub(crate) fn as_blocks(limits: &mut Limits, plain: u32, stored: u32) {
    let [plain, stored] = [plain, stored].map(|bytes| bytes / SECTOR_SIZE);
    let whole = |sectors: u32| sectors / stored * plain;
    *limits = Limits {
        logical_block_size: limits.logical_block_size.max(plain * SECTOR_SIZE),
        physical_block_size: limits.physical_block_size.max(plain * SECTOR_SIZE),
        max_sectors: whole(limits.max_sectors).max(plain),
        max_discard_sectors: 0,
        discard_granularity: 0,
        max_write_zeroes_sectors: whole(limits.max_write_zeroes_sectors),
        // The layer's own memory for a request is one range.
        virt_boundary_mask: 0,
        range_alignment: 0,
        ..*limits
    };
    *limits = in_blocks(*limits);
}

fn both(one: Limits, other: Limits) -> Limits {
    Limits {
        logical_block_size: one.logical_block_size.max(other.logical_block_size),
        physical_block_size: one.physical_block_size.max(other.physical_block_size),
        max_sectors: one.max_sectors.min(other.max_sectors),
        max_discard_sectors: one.max_discard_sectors.min(other.max_discard_sectors),
        discard_granularity: one.discard_granularity.max(other.discard_granularity),
        max_write_zeroes_sectors: one.max_write_zeroes_sectors.min(other.max_write_zeroes_sectors),
        max_discard_segments: 1,
        max_segments: one.max_segments.min(other.max_segments),
        max_segment_size: one.max_segment_size.min(other.max_segment_size),
        chunk_sectors: 0,
        virt_boundary_mask: one.virt_boundary_mask | other.virt_boundary_mask,
        range_alignment: one.range_alignment.max(other.range_alignment),
        capacity: 0,
        rotational: one.rotational || other.rotational,
    }
}

/// Rounds lengths to blocks of the leg with the largest block.
fn in_blocks(limits: Limits) -> Limits {
    let block = limits.logical_block_size / SECTOR_SIZE;
    let whole = |sectors: u32| sectors / block * block;
    let unit = limits.discard_granularity;
    Limits {
        max_sectors: whole(limits.max_sectors).max(block),
        max_discard_sectors: whole(limits.max_discard_sectors),
        max_write_zeroes_sectors: whole(limits.max_write_zeroes_sectors),
        max_segment_size: limits.max_segment_size.max(limits.logical_block_size),
        discard_granularity: if unit.is_multiple_of(limits.logical_block_size) { unit } else { 0 },
        max_discard_segments: 1,
        chunk_sectors: 0,
        ..limits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_leg_is_asked_for_what_it_cannot_do() {
        let shape = |limits, hw_queue_depth, cache| DeviceShape {
            hw_queues: 4,
            hw_queue_depth,
            shared_tags: true,
            budget: Some(1),
            limits,
            cache,
            timeout: Nanos::from_secs(30),
        };
        let one = Limits { max_sectors: 1001, max_discard_sectors: 64, ..Limits::default() };
        let other = Limits {
            logical_block_size: 4096,
            physical_block_size: 4096,
            max_segments: 7,
            max_discard_sectors: 63,
            discard_granularity: 8192,
            range_alignment: 512,
            chunk_sectors: 64,
            ..Limits::default()
        };
        let cache = WriteCache::Back { fua: false };
        let joined = of(&[shape(one, 16, WriteCache::Through), shape(other, 2000, cache)]);
        assert_eq!((joined.hw_queues, joined.hw_queue_depth), (1, MAX_DEPTH));
        assert_eq!(joined.cache, WriteCache::Back { fua: true });
        let Limits { max_sectors, max_discard_sectors, max_segments, chunk_sectors, .. } =
            joined.limits;
        assert_eq!((max_sectors, max_discard_sectors), (1000, 56));
        assert_eq!((max_segments, chunk_sectors), (7, 0), "the leg's queue divides at chunks");
        assert!(Limits { capacity: 8, ..joined.limits }.validate().is_ok());
        let through = of(&[shape(one, 16, WriteCache::Through)]);
        assert_eq!((through.cache, through.hw_queue_depth), (WriteCache::Through, 16));
    }
}
