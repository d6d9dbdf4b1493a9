//! [`Records`]: the records of the legs while a mirror is in use; and [`Record`]: the state of a mirror, stored in the
//! last blocks of each leg.
//!
//! Records are written to all legs that are not out, one state at a time. A state is in force once each leg in step has
//! it. A leg has two copies, which are written alternately, so that one is whole if the other is torn.

#![forbid(unsafe_code)]

use super::{Mask, Mirror, Party, Planted, Role, bits, is_planted};
use crate::{OwnIo, Plan};
use blkmq_buf::AlignedBuf;
use blkmq_core::{Instant, IoFlags, IoResult, Limits, Nanos, Op, SECTOR_SIZE};

/// After this long without changes, records say that the legs have the same bytes.
const QUIET: Nanos = Nanos::from_secs(1);

/// The cookies of the I/Os of records. Other I/Os of the mirror have cookies from [`Cookie::COUNT`] on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cookie {
    Record,
    /// The flush before a record that says that the legs have the same bytes.
    Flush,
}

impl Cookie {
    pub(super) const COUNT: u64 = 2;

    pub(super) fn of(cookie: u64) -> Option<Self> {
        [Self::Record, Self::Flush].get(usize::try_from(cookie).ok()?).copied()
    }
}

/// I/Os to several legs, until all are answered.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Round {
    pub(super) pending: u32,
    pub(super) failed: Mask,
}

impl Round {
    /// Notes an answer. Returns whether it is the last one.
    pub(super) fn answered(&mut self, leg: usize, result: IoResult) -> bool {
        self.pending -= 1;
        self.failed |= u8::from(result.is_err()) << leg;
        self.pending == 0
    }
}

/// A flush of a leg.
pub(super) fn flush_io(leg: usize, cookie: u64) -> OwnIo {
    let (op, flags, bytes) = (Op::Flush, IoFlags::NONE, AlignedBuf::empty());
    OwnIo { leg, op, flags, sector: 0, bytes, cookie }
}

#[derive(Debug)]
pub(super) struct Records {
    /// The last state that was written. While the next one is being written, and after its write has failed, a leg may
    /// have either.
    record: Record,
    /// The state that is being written, and the answers of the legs so far.
    writing: Option<(Record, Round)>,
    flushing: Option<Round>,
    /// The legs have the same bytes: they were flushed, and no change has begun since.
    are_flushed: bool,
    /// A change has begun since the last flush.
    is_disturbed: bool,
    /// The flush before the end was sent.
    is_over: bool,
    /// When the quiet time ends.
    quiet: Option<Instant>,
    /// A leg has been taken out or has joined.
    pub(super) is_urgent: bool,
}

impl Records {
    pub(super) fn new(record: Record) -> Self {
        Self {
            record,
            writing: None,
            flushing: None,
            are_flushed: false,
            is_disturbed: false,
            is_over: false,
            quiet: None,
            is_urgent: false,
        }
    }

    /// Returns whether the records of all legs in step say that the legs may differ.
    pub(super) fn are_dirty(&self) -> bool {
        !self.record.is_clean && self.writing.is_none_or(|(record, _)| !record.is_clean)
    }

    /// Returns whether no record names a leg in step outside of `in_step`.
    pub(super) fn name_only(&self, in_step: u8) -> bool {
        let written = self.writing.map_or(0, |(record, _)| record.in_step);
        (self.record.in_step | written) & !in_step == 0
    }

    /// Notes that a change has begun.
    pub(super) fn disturb(&mut self) {
        (self.is_disturbed, self.are_flushed, self.quiet) = (true, false, None);
    }
}

impl Mirror {
    /// Begins to write the state, if it differs from the records.
    pub(super) fn write_records(&mut self, plan: &mut Plan) {
        if self.is_closing && !self.records.is_over && !self.is_clean() && self.is_quiet() {
            self.records.is_over = true;
            self.flush_all(plan);
        }
        // A repair may have begun after the flush.
        self.records.are_flushed &= !self.copies.has_repairs();
        let records = &self.records;
        if records.writing.is_some() {
            return;
        }
        let in_step = self.in_step();
        let is_waited_for = !self.done.is_empty() || records.is_urgent;
        let needs_dirt = records.record.is_clean
            && self.ranges.waits(|party| party != Party::Copy || self.copies.is_repair());
        let is_stale = records.record.in_step != in_step && is_waited_for;
        if !(needs_dirt || is_stale || records.are_flushed) {
            return;
        }
        let record = Record {
            in_step,
            is_clean: !needs_dirt && (records.record.is_clean || records.are_flushed),
            counter: records.record.counter + 1,
            ..records.record
        };
        let legs = self.with(Role::InStep) | self.with(Role::Behind);
        for leg in bits(legs) {
            let member = &self.legs[leg].member;
            plan.own(record_io(leg, member, &record, Cookie::Record as u64));
        }
        let round = Round { pending: legs.count_ones(), failed: 0 };
        self.records.writing = Some((record, round));
        (self.records.are_flushed, self.records.is_urgent) = (false, false);
    }

    pub(super) fn record_answered(
        &mut self,
        cookie: Cookie,
        leg: usize,
        result: IoResult,
        plan: &mut Plan,
    ) {
        if cookie == Cookie::Flush {
            let Some(round) = &mut self.records.flushing else { return };
            if round.answered(leg, result) {
                let failed = round.failed;
                self.flushed(failed);
            }
            return;
        }
        if result.is_ok() {
            let member = &mut self.legs[leg].member;
            member.next = 1 - member.next;
        }
        let Some((record, round)) = &mut self.records.writing else { return };
        if round.answered(leg, result) {
            let (record, failed) = (*record, round.failed);
            self.records.writing = None;
            self.written(record, failed, plan);
        }
    }

    /// Notes the flush of the legs in step.
    fn flushed(&mut self, failed: Mask) {
        self.records.flushing = None;
        self.put_out(failed, "a flush failed");
        self.records.are_flushed = failed == 0 && !self.records.is_disturbed;
    }

    /// Notes that the records of a state were answered by all legs.
    fn written(&mut self, record: Record, failed: Mask, plan: &mut Plan) {
        let in_step = self.with(Role::InStep);
        if failed & in_step == 0 {
            self.records.record = record;
        } else {
            // A leg may have the new state.
            let old = &mut self.records.record;
            old.counter = record.counter;
            old.in_step |= record.in_step;
            old.is_clean |= record.is_clean;
        }
        self.put_out(failed, "its record cannot be written");
        if in_step != 0 && in_step & !failed == 0 {
            self.findings.fault("the records of the mirror cannot be written".into());
            self.give_up(plan);
            self.records.is_urgent = false;
        }
    }

    /// Returns whether a flush would leave the legs with the same bytes.
    fn is_quiet(&self) -> bool {
        let Records { writing, flushing, are_flushed, .. } = &self.records;
        let is_busy = writing.is_some() || flushing.is_some() || *are_flushed;
        let copies = &self.copies;
        !is_busy && self.unanswered == 0 && !copies.has_repairs() && !copies.are_joining()
    }

    /// Returns whether the records say that the legs have the same bytes.
    fn is_clean(&self) -> bool {
        self.records.record.is_clean
    }

    fn flush_all(&mut self, plan: &mut Plan) {
        self.records.is_disturbed = false;
        if is_planted(Planted::CleansUnflushed) {
            return self.flushed(0);
        }
        let legs = self.with(Role::InStep);
        for leg in bits(legs) {
            plan.own(flush_io(leg, Cookie::Flush as u64));
        }
        self.records.flushing = Some(Round { pending: legs.count_ones(), failed: 0 });
    }

    /// Handles the passage of time.
    pub(super) fn rest(&mut self, now: Instant, plan: &mut Plan) {
        if self.is_clean() || !self.is_quiet() {
            self.records.quiet = None;
        } else if now >= *self.records.quiet.get_or_insert(now + QUIET) {
            self.records.quiet = None;
            self.flush_all(plan);
        }
    }
}

/// A leg that is present.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Member {
    /// Its number in the mirror.
    pub(crate) number: usize,
    pub(crate) places: Places,
    /// The place of the next record, which does not hold the best one.
    pub(crate) next: usize,
    pub(crate) found: Found,
}

/// The I/O that writes `record` to a leg.
pub(super) fn record_io(leg: usize, member: &Member, record: &Record, cookie: u64) -> OwnIo {
    let mut bytes = AlignedBuf::new((member.places.sectors * u64::from(SECTOR_SIZE)) as usize);
    Record { leg: member.number as u8, ..*record }.write_to(bytes.as_mut_slice());
    let (op, flags) = (Op::Write, IoFlags::FUA.union(IoFlags::SYNC));
    OwnIo { leg, op, flags, sector: member.places.at[member.next], bytes, cookie }
}

/// The most legs, each a bit of a byte.
pub(crate) const MAX_LEGS: usize = 8;
/// The bytes of a record, at the start of its block.
const BYTES: usize = 512;
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
