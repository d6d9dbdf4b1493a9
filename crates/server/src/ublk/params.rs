//! The limits of a disk and of an export, as parameters of the kernel.

use crate::export::{Cache, Served};
use blkmq::core::Limits;
use blkmq::{SECTOR_SIZE, WriteCache};
use blkmq_ublk::wire::{FUA, Params, READ_ONLY, ROTATIONAL, VOLATILE_CACHE};

/// The maximum length in bytes of a discard or of zeroes that is announced. The disk gets it in steps.
const LONGEST_RANGE: u64 = 1 << 30;

/// The facts from which parameters are derived.
pub(super) struct Facts {
    pub(super) start: u64,
    pub(super) bytes: u64,
    pub(super) is_read_only: bool,
    pub(super) discards: bool,
    pub(super) cache: Cache,
    /// The maximum length of a read or write in bytes.
    pub(super) portion: usize,
}

impl Facts {
    pub(super) fn of(export: &Served, portion: usize) -> Self {
        Self {
            start: export.start,
            bytes: export.bytes(),
            is_read_only: export.is_read_only(),
            discards: export.discard > 0,
            cache: export.cache,
            portion,
        }
    }

    /// The parameters of the block device, on a disk with these limits.
    pub(super) fn params(&self, limits: &Limits, cache: WriteCache) -> Params {
        let sector = u64::from(SECTOR_SIZE);
        let logical = limits.logical_block_size;
        let physical = limits.physical_block_size.max(logical);
        // Without a cache, or if each write goes through it, a flush has no effect.
        let is_cached = cache != WriteCache::Through && self.cache == Cache::Writeback;
        let chosen = [
            (self.is_read_only, READ_ONLY),
            (limits.rotational, ROTATIONAL),
            (is_cached, VOLATILE_CACHE | FUA),
        ];
        let range = |is: bool| if is { (LONGEST_RANGE / sector) as u32 } else { 0 };
        // A chunk boundary of the disk does not apply to an export that is not aligned to it.
        let chunk = u64::from(limits.chunk_sectors) * sector;
        let has_chunks = chunk > 0 && self.start.is_multiple_of(chunk);
        Params {
            attributes: chosen.iter().filter(|(is, _)| *is).fold(0, |all, (_, bit)| all | bit),
            logical: logical.ilog2() as u8,
            physical: physical.ilog2() as u8,
            io_opt: self.portion.ilog2() as u8,
            io_min: physical.ilog2() as u8,
            max_sectors: self.portion as u32 / SECTOR_SIZE,
            chunk_sectors: if has_chunks { limits.chunk_sectors } else { 0 },
            sectors: self.bytes / sector,
            discard_granularity: if self.is_read_only {
                0
            } else {
                limits.discard_granularity.max(physical)
            },
            max_discard_sectors: range(self.discards && !self.is_read_only),
            // If the disk lacks the operation, zeroed buffers are written.
            max_zeroes_sectors: range(!self.is_read_only),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            start: 0,
            bytes: 64 << 20,
            is_read_only: false,
            discards: true,
            cache: Cache::Writeback,
            portion: 256 << 10,
        }
    }

    const BACK: WriteCache = WriteCache::Back { fua: false };

    #[test]
    fn blocks_and_sizes_are_those_of_the_disk() {
        let limits = Limits {
            logical_block_size: 4096,
            discard_granularity: 8192,
            chunk_sectors: 256,
            rotational: true,
            ..Limits::default()
        };
        let params = facts().params(&limits, BACK);
        assert_eq!(
            (params.logical, params.physical, params.io_min, params.io_opt),
            (12, 12, 12, 18)
        );
        assert_eq!((params.sectors, params.max_sectors, params.chunk_sectors), (131_072, 512, 256));
        assert_eq!((params.discard_granularity, params.max_discard_sectors), (8192, 2_097_152));
        assert_eq!(params.attributes, ROTATIONAL | VOLATILE_CACHE | FUA);
        let moved = Facts { start: 4096, ..facts() };
        assert_eq!(moved.params(&limits, BACK).chunk_sectors, 0);
    }

    #[test]
    fn a_flush_is_announced_where_it_has_something_to_do() {
        let attributes = |facts: Facts, cache| facts.params(&Limits::default(), cache).attributes;
        assert_eq!(attributes(facts(), BACK), VOLATILE_CACHE | FUA);
        assert_eq!(attributes(facts(), WriteCache::Through), 0);
        assert_eq!(attributes(Facts { cache: Cache::Writethrough, ..facts() }, BACK), 0);
    }

    #[test]
    fn nothing_changes_a_device_that_is_read_only() {
        let facts = Facts { is_read_only: true, ..facts() };
        let params = facts.params(&Limits::default(), WriteCache::Through);
        assert_eq!(params.attributes, READ_ONLY);
        assert_eq!((params.max_discard_sectors, params.max_zeroes_sectors), (0, 0));
        let facts = Facts { is_read_only: false, discards: false, ..facts };
        let params = facts.params(&Limits::default(), WriteCache::Through);
        assert_eq!((params.max_discard_sectors, params.max_zeroes_sectors), (0, 2_097_152));
    }
}
