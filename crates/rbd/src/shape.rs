//! The properties of an image that the engine must know.

use crate::OpenError;
use crate::options::Options;
use crate::sys::Facts;
use blkmq_core::{Limits, SECTOR_SIZE};
use blkmq_engine::{DEFAULT_TIMEOUT, DeviceShape, WriteCache};

/// The longest read or write in bytes, where objects are longer: merging beyond gains nothing and costs latency.
const LONGEST: u64 = 4 << 20;
/// The longest discard or range of zeroes in bytes, where the objects of a stripe are longer.
const LONGEST_RANGE: u64 = 1 << 30;
/// Pieces of memory in a request: no list of more is taken anywhere (`IOV_MAX`).
const SEGMENTS: u16 = 1024;

/// The shape of the device, and notes for its user.
///
/// # Errors
/// If the image has no whole sector.
pub(crate) fn of(
    facts: &Facts,
    options: &Options,
) -> Result<(DeviceShape, Vec<String>), OpenError> {
    let sector = u64::from(SECTOR_SIZE);
    let mut notes = Vec::new();
    let rest = facts.size % sector;
    if facts.size == rest {
        return Err(OpenError::Unfit(format!(
            "the image has {} bytes; accepted: at least a sector of {sector}",
            facts.size
        )));
    }
    if rest > 0 {
        notes.push(format!("the last {rest} bytes are no whole sector and are left alone"));
    }
    // A request goes to one OSD, unless it crosses from one object to the next, or from one stripe to the next.
    let stripe = if facts.stripe_count > 1 { facts.stripe_unit } else { facts.object_size };
    let stripe = if stripe.is_power_of_two() && stripe >= 4096 { stripe } else { 0 };
    // Linux's rbd takes as much in one request.
    let set = facts.object_size.saturating_mul(facts.stripe_count.max(1)).max(sector);
    let sectors = |bytes: u64| (bytes / sector) as u32;
    let granularity = facts.discard_granularity.min(facts.object_size);
    let limits = Limits {
        // The unit that an OSD writes without reading first, on drives in use.
        physical_block_size: 4096,
        max_sectors: sectors(set.min(LONGEST)),
        max_discard_sectors: sectors(set.min(LONGEST_RANGE)),
        discard_granularity: (granularity / sector * sector).max(sector) as u32,
        max_write_zeroes_sectors: sectors(set.min(LONGEST_RANGE)),
        max_segments: SEGMENTS,
        max_segment_size: LONGEST as u32,
        chunk_sectors: u32::try_from(stripe / sector).unwrap_or(0),
        capacity: facts.size / sector,
        ..Limits::default()
    };
    let shape = DeviceShape {
        hw_queues: options.hw_queues,
        hw_queue_depth: options.hw_queue_depth,
        shared_tags: false,
        budget: None,
        limits,
        // Whatever `cache` says: the configuration of an image or a pool may turn the cache on, and without one a flush
        // costs librbd nothing. It has no FUA.
        cache: WriteCache::Back { fua: false },
        timeout: DEFAULT_TIMEOUT,
    };
    Ok((shape, notes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: Facts = Facts {
        size: 1 << 30,
        object_size: 4 << 20,
        stripe_unit: 4 << 20,
        stripe_count: 1,
        discard_granularity: 65536,
    };

    fn limits(facts: Facts) -> Limits {
        of(&facts, &Options::default()).expect("an image").0.limits
    }

    #[test]
    fn limits_come_from_objects() {
        let plain = limits(FACTS);
        assert_eq!(
            (plain.chunk_sectors, plain.max_sectors, plain.max_discard_sectors),
            (8192, 8192, 8192)
        );
        assert_eq!((plain.discard_granularity, plain.capacity), (65536, 1 << 21));
        let small = limits(Facts { object_size: 8192, stripe_unit: 8192, ..FACTS });
        assert_eq!(
            (small.chunk_sectors, small.max_sectors, small.discard_granularity),
            (16, 16, 8192)
        );
        let striped = limits(Facts { stripe_unit: 65536, stripe_count: 16, ..FACTS });
        assert_eq!((striped.chunk_sectors, striped.max_discard_sectors), (128, 16 * 8192));
        for limits in [plain, small, striped] {
            assert_eq!(limits.validate(), Ok(()));
        }
    }

    #[test]
    fn a_part_of_a_sector_is_left_alone() {
        let facts = Facts { size: 1000, ..FACTS };
        let (shape, notes) = of(&facts, &Options::default()).expect("a sector");
        assert_eq!((shape.limits.capacity, notes.len()), (1, 1));
        assert!(of(&Facts { size: 500, ..FACTS }, &Options::default()).is_err());
    }
}
