//! [`Record`]: the state of a mirror, stored in the last blocks of each leg.
//!
//! A leg has two copies, which are written alternately, so that one is whole if the other is torn.

#![forbid(unsafe_code)]

use blkmq_core::{Limits, SECTOR_SIZE};

/// The most legs, each a bit of a byte.
pub(crate) const MAX_LEGS: usize = 8;
/// The bytes of a record, at the start of its block.
pub(crate) const BYTES: usize = 512;
const MAGIC: [u8; 8] = *b"blkmqmir";
const VERSION: u32 = 1;
/// The bytes before the checksum.
const CHECKED: usize = BYTES - 4;

/// The state of a mirror, by one of its legs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    /// Identifies the mirror: drawn when it was made.
    pub(crate) id: u128,
    /// Identifies each leg: drawn when it joined. 0 beyond the last leg.
    pub(crate) legs: [u64; MAX_LEGS],
    /// The number of legs, missing ones included.
    pub(crate) count: u8,
    /// The number of the leg that holds the record.
    pub(crate) leg: u8,
    /// The legs with the contents of the mirror, a bit each.
    pub(crate) in_step: u8,
    /// All legs in step have the same bytes.
    pub(crate) is_clean: bool,
    /// Increases with every state.
    pub(crate) counter: u64,
    /// The capacity of the mirror in sectors.
    pub(crate) sectors: u64,
}

/// The contents of the place of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    Nothing,
    Record(Record),
    /// A record of a later, unknown version.
    Later(u32),
}

impl Record {
    pub(crate) fn write_to(&self, block: &mut [u8]) {
        block.fill(0);
        block[..8].copy_from_slice(&MAGIC);
        block[8..12].copy_from_slice(&VERSION.to_le_bytes());
        block[12..16].copy_from_slice(&[self.count, self.leg, self.in_step, self.is_clean.into()]);
        block[16..32].copy_from_slice(&self.id.to_le_bytes());
        block[32..40].copy_from_slice(&self.counter.to_le_bytes());
        block[40..48].copy_from_slice(&self.sectors.to_le_bytes());
        for (place, leg) in block[48..].chunks_exact_mut(8).zip(self.legs) {
            place.copy_from_slice(&leg.to_le_bytes());
        }
        let sum = crc32c::crc32c(&block[..CHECKED]);
        block[CHECKED..BYTES].copy_from_slice(&sum.to_le_bytes());
    }

    /// Reads the record at the start of `block`, which may hold any bytes. A record that contradicts itself counts as
    /// none.
    pub(crate) fn read(block: &[u8]) -> Found {
        let Some(block) = block.first_chunk::<BYTES>() else { return Found::Nothing };
        let sum = crc32c::crc32c(&block[..CHECKED]).to_le_bytes();
        if block[..8] != MAGIC || block[CHECKED..] != sum {
            return Found::Nothing;
        }
        let word = |at: usize| {
            let bytes = block[at..].first_chunk().expect("the record is longer");
            u64::from_le_bytes(*bytes)
        };
        let version = (word(8) & u64::from(u32::MAX)) as u32;
        if version != VERSION {
            return Found::Later(version);
        }
        let [count, leg, in_step, is_clean] = [block[12], block[13], block[14], block[15]];
        let record = Self {
            id: u128::from(word(24)) << 64 | u128::from(word(16)),
            legs: std::array::from_fn(|leg| word(48 + 8 * leg)),
            count,
            leg,
            in_step,
            is_clean: is_clean == 1,
            counter: word(32),
            sectors: word(40),
        };
        let all = u8::MAX.checked_shr(8_u32.saturating_sub(count.into())).unwrap_or(0);
        let suits = (1..=MAX_LEGS).contains(&count.into())
            && leg < count
            && in_step != 0
            && in_step & !all == 0
            && is_clean <= 1
            && (1..=Limits::MAX_CAPACITY).contains(&record.sectors);
        if suits { Found::Record(record) } else { Found::Nothing }
    }
}

/// Where the records of a leg are: behind all of its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Places {
    /// The first sector of each copy. Data ends before the lower one.
    pub(crate) at: [u64; 2],
    /// The sectors written for a record: a page, or a block of the device.
    pub(crate) sectors: u64,
}

impl Places {
    /// The places on a leg with these limits; `None` if it has no room for them beside data.
    pub(crate) fn of(limits: &Limits) -> Option<Self> {
        let sectors = u64::from((limits.logical_block_size / SECTOR_SIZE).max(8));
        let blocks = limits.capacity / sectors;
        let at = [blocks.checked_sub(2)? * sectors, (blocks - 1) * sectors];
        (at[0] > 0).then_some(Self { at, sectors })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record() -> Record {
        Record {
            id: 0x1122_3344_5566_7788_99AA_BBCC_DDEE_FF00,
            legs: [7, 8, 9, 0, 0, 0, 0, 0],
            count: 3,
            leg: 2,
            in_step: 0b101,
            is_clean: true,
            counter: 77,
            sectors: 2048,
        }
    }

    fn bytes(record: &Record) -> [u8; BYTES] {
        let mut block = [1; BYTES];
        record.write_to(&mut block);
        block
    }

    #[test]
    fn a_record_is_read_as_it_was_written_or_not_at_all() {
        let mut block = bytes(&record());
        assert_eq!(Record::read(&block), Found::Record(record()));
        for at in 0..BYTES {
            block[at] ^= 0x10;
            assert_eq!(Record::read(&block), Found::Nothing, "byte {at}");
            block[at] ^= 0x10;
        }
        assert_eq!(Record::read(&block[..BYTES - 1]), Found::Nothing);
    }

    #[test]
    fn a_record_that_contradicts_itself_is_none() {
        let wrong = [
            Record { count: 0, ..record() },
            Record { count: 9, ..record() },
            Record { leg: 3, ..record() },
            Record { in_step: 0, ..record() },
            Record { in_step: 0b1001, ..record() },
            Record { sectors: 0, ..record() },
            Record { sectors: u64::MAX, ..record() },
        ];
        for record in wrong {
            assert_eq!(Record::read(&bytes(&record)), Found::Nothing, "{record:?}");
        }
        let eight = Record { count: 8, leg: 7, in_step: 0xFF, ..record() };
        assert_eq!(Record::read(&bytes(&eight)), Found::Record(eight));
    }

    #[test]
    fn a_later_version_is_known_as_such() {
        let mut block = bytes(&record());
        block[8] = 2;
        let sum = crc32c::crc32c(&block[..CHECKED]).to_le_bytes();
        block[CHECKED..].copy_from_slice(&sum);
        assert_eq!(Record::read(&block), Found::Later(2));
    }

    proptest! {
        /// The checksum is right, so that the other fields are read.
        #[test]
        fn any_bytes_are_a_record_or_none(
            mut block in proptest::collection::vec(any::<u8>(), BYTES),
            counts in 0_u8..12,
        ) {
            block[..8].copy_from_slice(&MAGIC);
            block[8..12].copy_from_slice(&VERSION.to_le_bytes());
            block[12] = counts;
            let sum = crc32c::crc32c(&block[..CHECKED]).to_le_bytes();
            block[CHECKED..].copy_from_slice(&sum);
            if let Found::Record(record) = Record::read(&block) {
                prop_assert!(record.leg < record.count && usize::from(record.count) <= MAX_LEGS);
                prop_assert_eq!(record.in_step >> (record.count - 1) >> 1, 0);
            }
        }
    }

    #[test]
    fn records_are_in_the_last_blocks() {
        let limits = |capacity, logical_block_size| Limits {
            capacity,
            logical_block_size,
            ..Limits::default()
        };
        let at = |limits| Places::of(&limits).map(|places| (places.at, places.sectors));
        assert_eq!(at(limits(2048, 512)), Some(([2032, 2040], 8)));
        assert_eq!(at(limits(2047, 512)), Some(([2024, 2032], 8)));
        assert_eq!(at(limits(2048, 8192)), Some(([2016, 2032], 16)));
        assert_eq!(at(limits(23, 512)), None);
        assert_eq!(at(limits(7, 512)), None);
    }
}
