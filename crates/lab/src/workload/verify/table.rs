//! What is known about each block of a thread's regions: its position, its latest write, and whether an I/O is in
//! flight to it. This can be saved as bytes, for a later run that only checks. The contents of blocks and their layout
//! are not here, and neither are files.
//!
//! Blocks are numbered consecutively in each region. Between two regions one number is skipped, which is never written,
//! so that no verifying read crosses from one file into the next.
//!
//! The format is blkmq's own, little-endian, and identifies the job and the region:
//!
//! | bytes | what |
//! | --- | --- |
//! | 0-3 | magic |
//! | 4-7 | sectors in a block |
//! | 8-15 | first sector of the region |
//! | 16-23 | `randseed` |
//! | 24-31 | number of blocks |
//! | then 4 for each block | the generation that the block holds, or 0 where that is not known |
//! | the last 4 | CRC-32C of all of the above |

use crate::workload::Region;
use blkmq_core::SECTOR_SIZE;
use std::ops::Range;

/// An I/O in flight touches the block.
const BUSY: u32 = 1 << 31;
/// The block holds its latest generation. Not set if it was never written, was trimmed, or a write of it failed.
const KNOWN: u32 = 1 << 30;
/// The block was written and not read back since.
const DUE: u32 = 1 << 29;
/// The rest is the generation: the number of writes, from 1. A trim does not reset it, so that data from before the
/// trim is never taken for the next write.
const GENERATION: u32 = DUE - 1;

/// Blocks by number. Four bytes each, which the operating system hands out when they are first touched.
#[derive(Clone, Debug)]
pub(super) struct Table(Box<[u32]>);

impl Table {
    /// `blocks` blocks with unknown contents.
    pub(super) fn new(blocks: usize) -> Self {
        Self(vec![0; blocks].into_boxed_slice())
    }

    /// The number of blocks.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether no I/O touches any of `blocks`. O(blocks), like the other methods.
    pub(super) fn is_idle(&self, blocks: Range<usize>) -> bool {
        self.0[blocks].iter().all(|entry| entry & BUSY == 0)
    }

    /// From now on, an I/O that does not write touches `blocks`. No other I/O may touch them.
    pub(super) fn claim(&mut self, blocks: Range<usize>) {
        for entry in &mut self.0[blocks] {
            debug_assert!(*entry & BUSY == 0, "two I/Os on one block");
            *entry |= BUSY;
        }
    }

    /// As [`claim`](Self::claim), for a write: the next generation of each of `blocks` is in flight.
    pub(super) fn claim_write(&mut self, blocks: Range<usize>) {
        self.claim(blocks.clone());
        for entry in &mut self.0[blocks] {
            // A generation is never 0; it wraps after half a billion writes of one block.
            let next = (*entry & GENERATION) % GENERATION + 1;
            *entry = *entry & !GENERATION | next;
        }
    }

    /// The I/O has ended; the knowledge about the blocks is unchanged.
    pub(super) fn release(&mut self, blocks: Range<usize>) {
        self.0[blocks].iter_mut().for_each(|entry| *entry &= !BUSY);
    }

    /// The write has ended; `blocks` hold their latest generation.
    pub(super) fn written(&mut self, blocks: Range<usize>) {
        self.0[blocks].iter_mut().for_each(|entry| *entry = *entry & !BUSY | KNOWN | DUE);
    }

    /// The I/O has ended; the contents of `blocks` are unknown.
    pub(super) fn forget(&mut self, blocks: Range<usize>) {
        self.0[blocks].iter_mut().for_each(|entry| *entry &= GENERATION);
    }

    /// The number of writes of block `block`, the write in flight included.
    pub(super) fn generation(&self, block: usize) -> u32 {
        self.0[block] & GENERATION
    }

    /// The generation that block `block` holds, if it is known.
    pub(super) fn known(&self, block: usize) -> Option<u32> {
        (self.0[block] & KNOWN != 0).then(|| self.generation(block))
    }

    /// The generation that each block holds; 0 where it is not known, or an I/O in flight may change it.
    pub(super) fn generations(&self) -> impl Iterator<Item = u32> {
        let held = |entry: &u32| entry & (BUSY | KNOWN) == KNOWN;
        self.0.iter().map(move |entry| if held(entry) { entry & GENERATION } else { 0 })
    }

    /// Blocks that hold these generations; 0 is not known.
    pub(super) fn of(generations: impl Iterator<Item = u32>) -> Self {
        let entry = |generation: u32| match generation & GENERATION {
            0 => 0,
            generation => generation | KNOWN | DUE,
        };
        Self(generations.map(entry).collect())
    }

    /// The next contiguous blocks from `from` on that are known and due to be read back, at most `most` of them. They
    /// are no longer due.
    pub(super) fn take_due(&mut self, from: usize, most: usize) -> Option<Range<usize>> {
        let is_due = |entry: &u32| entry & (KNOWN | DUE) == KNOWN | DUE;
        let start = from + self.0.get(from..)?.iter().position(is_due)?;
        let len = self.0[start..].iter().take(most).take_while(|entry| is_due(entry)).count();
        self.0[start..start + len].iter_mut().for_each(|entry| *entry &= !DUE);
        Some(start..start + len)
    }
}

/// The blocks of a region.
#[derive(Clone, Copy, Debug)]
struct Span {
    /// First sector of the file, on the device.
    file: u64,
    /// First sector of the region, on the device.
    start: u64,
    /// The number of its first block.
    first: usize,
}

/// The blocks of all regions of a thread; at least one region.
#[derive(Clone, Debug)]
pub(super) struct Spans {
    /// Sorted by the number of the first block.
    spans: Box<[Span]>,
    /// Indices into `spans`, by position on the device.
    by_place: Box<[usize]>,
    /// Sectors in a block.
    block: u64,
    blocks: usize,
}

impl Spans {
    /// The blocks of `interval` bytes of `regions`.
    pub(super) fn new(regions: &[Region], interval: u32) -> Self {
        let sectors = |bytes: u64| bytes / u64::from(SECTOR_SIZE);
        let (mut spans, mut blocks) = (Vec::with_capacity(regions.len()), 0usize);
        for region in regions {
            let first = if spans.is_empty() { 0 } else { blocks.saturating_add(1) };
            spans.push(Span { file: sectors(region.file), start: sectors(region.start), first });
            let count = usize::try_from(region.size / u64::from(interval)).unwrap_or(usize::MAX);
            blocks = first.saturating_add(count);
        }
        let mut by_place = Vec::from_iter(0..spans.len());
        by_place.sort_by_key(|at| spans[*at].start);
        let block = sectors(interval.into());
        Self { spans: spans.into(), by_place: by_place.into(), block, blocks }
    }

    /// The number of block numbers, including skipped ones.
    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// First sector of the first region.
    pub(super) fn start(&self) -> u64 {
        self.spans[0].start
    }

    /// The block that begins at `sector`, which lies in one of the regions. O(log regions).
    pub(super) fn block(&self, sector: u64) -> usize {
        let span = match &*self.spans {
            [span] => span,
            spans => {
                let behind = self.by_place.partition_point(|at| spans[*at].start <= sector);
                &spans[self.by_place[behind - 1]]
            }
        };
        let at = sector - span.start;
        debug_assert!(at.is_multiple_of(self.block), "the interval divides every I/O");
        span.first + (at / self.block) as usize
    }

    /// The first sector of block `block`, on the device. O(log regions).
    pub(super) fn sector(&self, block: usize) -> u64 {
        let span = self.of_block(block);
        span.start + (block - span.first) as u64 * self.block
    }

    /// Like [`sector`](Self::sector), but counted from the start of the block's file.
    pub(super) fn sector_of_file(&self, block: usize) -> u64 {
        self.sector(block) - self.of_block(block).file
    }

    fn of_block(&self, block: usize) -> &Span {
        match &*self.spans {
            [span] => span,
            spans => &spans[spans.partition_point(|span| span.first <= block) - 1],
        }
    }
}

const MAGIC: u32 = u32::from_le_bytes(*b"bqS1");
/// Bytes in front of the blocks.
const HEADER: usize = 32;
/// Bytes of a block and of the checksum.
const WORD: usize = 4;

/// The job and region of a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    /// Sectors in a block.
    pub(super) block: u32,
    /// First sector of the region.
    pub(super) start: u64,
    pub(super) randseed: u64,
    pub(super) blocks: u64,
}

/// Bytes that are not the state of a job's verification.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StateError {
    /// The bytes are no state.
    #[error("no state of a verification by blkmq; fio's own form is not read")]
    NoState,
    /// They are damaged or cut.
    #[error("a state of a verification that is damaged or cut")]
    Damaged,
    /// The bytes belong to another region, block length or `randseed`.
    #[error(
        "the state of another job; accepted: one with the same offset, size, block sizes, verify_interval and \
         randseed"
    )]
    OtherJob,
}

impl Place {
    fn bytes(self) -> Vec<u8> {
        let mut bytes = MAGIC.to_le_bytes().to_vec();
        bytes.extend(self.block.to_le_bytes());
        for word in [self.start, self.randseed, self.blocks] {
            bytes.extend(word.to_le_bytes());
        }
        bytes
    }

    /// The state with these generations, one for each block.
    pub(super) fn encode(self, generations: impl Iterator<Item = u32>) -> Vec<u8> {
        let mut bytes = self.bytes();
        generations.for_each(|generation| bytes.extend(generation.to_le_bytes()));
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    /// The generations of the state in `bytes`.
    ///
    /// # Errors
    /// If they are no state, or that of another job.
    pub(super) fn decode(self, bytes: &[u8]) -> Result<impl Iterator<Item = u32>, StateError> {
        if !bytes.starts_with(&MAGIC.to_le_bytes()) {
            return Err(StateError::NoState);
        }
        let (body, checksum) = bytes.split_last_chunk::<WORD>().ok_or(StateError::Damaged)?;
        if crc32c::crc32c(body).to_le_bytes() != *checksum || body.len() < HEADER {
            return Err(StateError::Damaged);
        }
        let (header, blocks) = body.split_at(HEADER);
        let (blocks, rest) = blocks.as_chunks::<WORD>();
        if header != self.bytes() {
            return Err(StateError::OtherJob);
        }
        if blocks.len() as u64 != self.blocks || !rest.is_empty() {
            return Err(StateError::Damaged);
        }
        Ok(blocks.iter().map(|block| u32::from_le_bytes(*block)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_known_from_the_end_of_a_write_to_the_next_trim() {
        let mut table = Table::new(4);
        assert_eq!((table.known(1), table.generation(1)), (None, 0));
        table.claim_write(1..3);
        assert_eq!((table.known(1), table.generation(1)), (None, 1), "not before it is over");
        table.written(1..3);
        assert_eq!((table.known(0), table.known(1), table.known(2)), (None, Some(1), Some(1)));
        table.claim(2..4);
        table.forget(2..4);
        assert_eq!((table.known(1), table.known(2), table.known(3)), (Some(1), None, None));
        table.claim_write(2..3);
        table.written(2..3);
        assert_eq!(table.known(2), Some(2), "what was trimmed is not written again");
    }

    #[test]
    fn a_read_changes_nothing_and_keeps_others_away() {
        let mut table = Table::new(8);
        table.claim_write(0..4);
        table.written(0..4);
        table.claim(2..6);
        assert!(table.is_idle(0..2) && table.is_idle(6..8));
        assert!(!table.is_idle(0..3) && !table.is_idle(5..8) && !table.is_idle(0..8));
        table.release(2..6);
        assert!(table.is_idle(0..8));
        assert_eq!((table.known(3), table.known(4)), (Some(1), None));
    }

    #[test]
    fn a_failed_overwrite_leaves_nothing_known_and_no_generation_twice() {
        let mut table = Table::new(1);
        table.claim_write(0..1);
        table.written(0..1);
        table.claim_write(0..1);
        table.forget(0..1);
        assert_eq!(table.known(0), None);
        table.claim_write(0..1);
        table.written(0..1);
        assert_eq!(table.known(0), Some(3));
    }

    #[test]
    fn generations_survive_and_what_is_in_flight_is_not_known() {
        let mut table = Table::new(4);
        table.claim_write(0..3);
        table.written(0..3);
        table.claim_write(1..2);
        table.written(1..2);
        table.claim_write(2..3);
        assert_eq!(table.generations().collect::<Vec<_>>(), [1, 2, 0, 0]);
        let again = Table::of(table.generations());
        let known = [0, 1, 2, 3].map(|block| again.known(block));
        assert_eq!(known, [Some(1), Some(2), None, None]);
    }

    #[test]
    fn a_generation_comes_round_to_one() {
        let mut table = Table(vec![GENERATION | KNOWN].into());
        table.claim_write(0..1);
        table.written(0..1);
        assert_eq!(table.known(0), Some(1));
    }

    #[test]
    fn blocks_are_due_once_after_each_write_in_portions_without_gaps() {
        let mut table = Table::new(12);
        for blocks in [1..4, 6..7, 7..12] {
            table.claim_write(blocks.clone());
            table.written(blocks);
        }
        let (mut at, mut found) = (0, Vec::new());
        while let Some(next) = table.take_due(at, 4) {
            at = next.end;
            found.push(next);
        }
        assert_eq!(found, [1..4, 6..10, 10..12]);
        assert_eq!((table.take_due(99, 4), table.take_due(0, 4)), (None, None));
        table.claim_write(3..4);
        table.written(3..4);
        table.claim_write(6..7);
        table.forget(6..7);
        assert_eq!((table.take_due(0, 4), table.take_due(0, 4)), (Some(3..4), None));
    }

    #[test]
    fn every_block_has_a_place_and_a_number_in_every_region() {
        let region =
            |file: u64, start: u64| Region { file, start, size: 16384, room: 16384, asked: 16384 };
        // The second file lies in front of the first.
        let regions =
            [region(1 << 20, (1 << 20) + 8192), region(0, 4096), region(2 << 20, 2 << 20)];
        let spans = Spans::new(&regions, 4096);
        assert_eq!((spans.blocks(), spans.start()), (14, 2064));
        for number in [0, 3, 5, 8, 10, 13] {
            assert_eq!(spans.block(spans.sector(number)), number);
        }
        assert_eq!((spans.sector(5), spans.sector_of_file(5)), (8, 8));
        assert_eq!((spans.sector(0), spans.sector_of_file(0)), (2064, 16));
        assert_eq!(spans.sector_of_file(10), 0);
        let one = Spans::new(&regions[1..2], 4096);
        assert_eq!((one.blocks(), one.block(16), one.sector(1)), (4, 1, 16));
    }

    const PLACE: Place = Place { block: 8, start: 64, randseed: 0x89, blocks: 3 };

    #[test]
    fn a_state_is_read_back() {
        let bytes = PLACE.encode([1, 0, 7].into_iter());
        assert_eq!(PLACE.decode(&bytes).expect("a state").collect::<Vec<_>>(), [1, 0, 7]);
    }

    #[test]
    fn any_other_bytes_are_refused() {
        let bytes = PLACE.encode([1, 0, 7].into_iter());
        let refused = |place: Place, bytes: &[u8]| place.decode(bytes).err();
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(refused(PLACE, &damaged).is_some(), "bit {bit}");
        }
        for length in 0..bytes.len() {
            assert!(refused(PLACE, &bytes[..length]).is_some(), "{length} bytes");
        }
        for other in [
            Place { block: 1, ..PLACE },
            Place { start: 0, ..PLACE },
            Place { randseed: 1, ..PLACE },
            Place { blocks: 2, ..PLACE },
        ] {
            assert_eq!(refused(other, &bytes), Some(StateError::OtherJob));
        }
        assert_eq!(refused(PLACE, b"FIO"), Some(StateError::NoState));
    }
}
