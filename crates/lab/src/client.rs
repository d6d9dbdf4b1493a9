//! The programs of virtual CPUs: [`Client`], the port for workloads; and [`Stamp`], the payload of I/Os in the
//! laboratory, and the mark by which reads recognize it on a device that stores data.
//!
//! A buffer would be mostly ballast. A stamp generates the bytes of a write when a device reads them: each sector
//! begins and ends with the write's key and the sector's number, and the bytes in between are not written. For a read
//! it keeps one word for each sector: the write that the sector belongs to. So real bytes are on the medium, of the
//! right write and at the right sector, and a run of many I/Os stays cheap. The tests of the devices show that the
//! middle of a sector is not damaged.

use blkmq_core::{Instant, IoError, IoResult, Op, SECTOR_SIZE};
use blkmq_engine::{Completion, Io};
use std::cell::Cell;
use std::fmt;
use std::ops::Range;
use std::ptr::{slice_from_raw_parts_mut, without_provenance_mut};

/// The payload of an I/O, for clients and oracles: the key of the [`Stamp`] that passes through the
/// engine with the I/O and must come back with it. Derived from the cookie.
pub type Payload = u64;

/// The next step of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// This I/O. The world chooses its cookie and payload.
    Io(Io<Payload>),
    /// No I/O until one of its own has completed.
    Completion,
    /// Nothing before this time.
    At(Instant),
    /// No further I/O.
    Nothing,
}

/// A program on a virtual CPU.
pub trait Client {
    /// Called repeatedly, until the client wants no I/O or its CPU's batch is full. `in_flight` is the number of its
    /// I/Os that have not ended.
    fn next(&mut self, now: Instant, in_flight: u32) -> Want;

    /// The engine took an I/O of this client, possibly some time after the client returned it: the batch may have been
    /// full, or credit missing.
    fn submitted(&mut self, _now: Instant, _io: &Io<Payload>) {}

    /// One of its I/Os has ended.
    fn ended(&mut self, _now: Instant, _completion: &Completion<Payload>) {}
}

/// Bytes in a sector.
const SECTOR: usize = SECTOR_SIZE as usize;
/// Bytes of a mark: key and sector.
const MARK: usize = 16;

/// The payload of an I/O in the engine: its key, and for reads and writes of a device that stores, bytes.
pub struct Stamp {
    /// The key, as in the [`Io`] of the client.
    pub(crate) key: Payload,
    /// The first sector on the device, and the number of bytes carried; 0 for none.
    sector: u64,
    bytes: usize,
    /// Bytes in each range of its memory; 0 if it is in one.
    range: usize,
    /// The byte range of its memory, counted from the first range of the whole I/O. The memory does not exist: the
    /// engine counts ranges and follows no address.
    memory: Range<usize>,
    /// The result of a read, by sector.
    found: Cell<Vec<Found>>,
}

/// The memory of the I/Os of a run.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    /// Reads and writes carry bytes, because the device stores them.
    pub(crate) stores: bool,
    /// Sectors in each range of a payload; 0 if it is in one.
    pub(crate) range: u32,
}

/// The contents of a sector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// Nothing was ever written there, or zeroes were.
    Zeroes,
    /// The write with this key.
    Of(Payload),
    /// Parts of two writes, a write to another sector, or bytes that no stamp wrote.
    Damaged,
}

impl fmt::Debug for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stamp").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Stamp {
    /// The payload of `io`, which carries bytes if the device stores data and `io` moves any.
    pub(crate) fn of(io: &Io<Payload>, memory: Memory) -> Self {
        let len = io.sectors as usize * SECTOR;
        let carries = memory.stores && matches!(io.op, Op::Read | Op::Write);
        Self {
            key: io.payload,
            sector: io.sector,
            bytes: if carries { len } else { 0 },
            range: memory.range as usize * SECTOR,
            memory: 0..len,
            found: Cell::default(),
        }
    }

    /// Converts `io` for the engine.
    pub(crate) fn on(io: Io<Payload>, memory: Memory) -> Io<Self> {
        let stamp = Self::of(&io, memory);
        io.map(|_| stamp)
    }

    /// Converts `io` back for its client.
    pub(crate) fn off(io: Io<Self>) -> Io<Payload> {
        io.map(|stamp| stamp.key)
    }

    /// The result of a read, a word for each sector; empty unless data was read into it.
    pub(crate) fn into_found(self) -> Vec<Found> {
        self.found.into_inner()
    }

    /// The mark at the beginning and the end of sector number `sector`.
    fn mark(&self, sector: u64) -> [u8; MARK] {
        let mut mark = [0; MARK];
        mark[..8].copy_from_slice(&self.key.to_le_bytes());
        mark[8..].copy_from_slice(&(sector + 1).to_le_bytes());
        mark
    }

    /// The numbers of the sectors in `len` bytes from byte `at` on; an error if these are no whole sectors.
    fn sectors(&self, at: usize, len: usize) -> Result<impl Iterator<Item = u64> + use<>, IoError> {
        let whole = at.is_multiple_of(SECTOR) && len.is_multiple_of(SECTOR);
        let first = self.sector + (at / SECTOR) as u64;
        if whole && at + len <= self.bytes { Ok(first..) } else { Err(IoError::INVALID) }
    }
}

/// The contents of sector number `sector`, given its bytes.
pub(crate) fn read(sector: u64, bytes: &[u8]) -> Found {
    let (mark, last) = (&bytes[..MARK], &bytes[SECTOR - MARK..]);
    let word = |at: usize| u64::from_le_bytes(mark[at..at + 8].try_into().expect("8 bytes"));
    match (word(0), word(8)) {
        _ if mark != last => Found::Damaged,
        (0, 0) => Found::Zeroes,
        (key, number) if number == sector + 1 => Found::Of(key),
        _ => Found::Damaged,
    }
}

impl blkmq_core::Payload for Stamp {
    fn data_len(&self) -> Option<usize> {
        (self.bytes > 0).then_some(self.bytes)
    }

    /// Each range begins at a multiple of 4 GiB, and no two of them touch.
    fn ranges(&self) -> impl Iterator<Item = *mut [u8]> + Clone {
        let Range { start, end } = self.memory;
        let range = self.range;
        let first = start.checked_div(range).unwrap_or(0);
        let ranges = (first..).map(move |n| n * range..(n + 1) * range);
        let ranges = ranges.take_while(move |place| range > 0 && place.start < end);
        ranges.enumerate().map(move |(n, place)| {
            let (from, to) = (place.start.max(start), place.end.min(end));
            let at = (first + n + 1) << 32 | (from - place.start);
            slice_from_raw_parts_mut(without_provenance_mut(at), to - from)
        })
    }

    fn write_to(&self, at: usize, memory: &mut [u8]) -> IoResult {
        let sectors = self.sectors(at, memory.len())?;
        for (sector, bytes) in sectors.zip(memory.chunks_exact_mut(SECTOR)) {
            let mark = self.mark(sector);
            bytes[..MARK].copy_from_slice(&mark);
            bytes[SECTOR - MARK..].copy_from_slice(&mark);
        }
        Ok(())
    }

    fn read_from(&self, at: usize, memory: &[u8]) -> IoResult {
        let sectors = self.sectors(at, memory.len())?;
        let mut found = self.found.take();
        // Damaged until it is read.
        found.resize(self.bytes / SECTOR, Found::Damaged);
        let places = found[at / SECTOR..].iter_mut();
        for (place, (sector, bytes)) in places.zip(sectors.zip(memory.chunks_exact(SECTOR))) {
            *place = read(sector, bytes);
        }
        self.found.set(found);
        Ok(())
    }

    fn split_off(&mut self, at: usize) -> Option<Self> {
        let rest = self.bytes.saturating_sub(at);
        self.bytes -= rest;
        let sector = self.sector + (at / SECTOR) as u64;
        let cut = self.memory.start + at.min(self.memory.len());
        let memory = cut..self.memory.end;
        self.memory.end = cut;
        Some(Self { sector, bytes: rest, memory, found: Cell::default(), ..*self })
    }

    fn join(&mut self, rest: Self) {
        self.memory.end = rest.memory.end;
        if self.bytes == 0 {
            return;
        }
        let found = self.found.get_mut();
        // A part that failed may have been read in part, or not at all.
        found.resize(self.bytes / SECTOR, Found::Damaged);
        self.bytes += rest.bytes;
        found.extend(rest.into_found());
        found.resize(self.bytes / SECTOR, Found::Damaged);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::Payload as _;

    fn stamp(op: Op, sector: u64, sectors: u32, key: Payload) -> Stamp {
        let memory = Memory { stores: true, range: 0 };
        Stamp::of(&Io::new(op, sector, sectors, 0, key), memory)
    }

    #[test]
    fn what_is_written_is_found_in_its_place_only() {
        let mut memory = vec![0xff; 3 * SECTOR];
        memory[2 * SECTOR..].fill(0);
        stamp(Op::Write, 8, 2, 77).write_to(0, &mut memory[..2 * SECTOR]).expect("it has bytes");
        let right = stamp(Op::Read, 8, 3, 1);
        right.read_from(0, &memory).expect("it takes bytes");
        assert_eq!(right.into_found(), [Found::Of(77), Found::Of(77), Found::Zeroes]);
        let shifted = stamp(Op::Read, 7, 3, 1);
        shifted.read_from(0, &memory).expect("it takes bytes");
        assert_eq!(shifted.into_found()[..2], [Found::Damaged; 2]);
        memory[SECTOR - 1] ^= 1;
        assert_eq!(read(8, &memory[..SECTOR]), Found::Damaged, "its halves differ");
    }

    #[test]
    fn parts_are_read_and_written_as_the_whole_would_be() {
        let mut memory = vec![0; 4 * SECTOR];
        let mut write = stamp(Op::Write, 8, 4, 5);
        let rest = write.split_off(SECTOR).expect("it can be divided");
        assert_eq!((write.data_len(), rest.data_len()), (Some(SECTOR), Some(3 * SECTOR)));
        write.write_to(0, &mut memory[..SECTOR]).expect("it has bytes");
        rest.write_to(SECTOR, &mut memory[2 * SECTOR..]).expect("it has bytes");
        let mut read = stamp(Op::Read, 8, 4, 6);
        let rest = read.split_off(2 * SECTOR).expect("it can be divided");
        read.read_from(0, &memory[..2 * SECTOR]).expect("it takes bytes");
        rest.read_from(0, &memory[2 * SECTOR..]).expect("it takes bytes");
        read.join(rest);
        let of = Found::Of(5);
        assert_eq!(read.into_found(), [of, Found::Zeroes, of, of]);
    }

    #[test]
    fn a_part_has_the_ranges_of_its_place() {
        let io = Io::new(Op::Write, 8, 8, 0, 5);
        let mut whole = Stamp::of(&io, Memory { stores: true, range: 3 });
        let lens = |stamp: &Stamp| Vec::from_iter(stamp.ranges().map(|range| range.len() / SECTOR));
        assert_eq!(lens(&whole), [3, 3, 2]);
        let rest = whole.split_off(4 * SECTOR).expect("it can be divided");
        assert_eq!((lens(&whole), lens(&rest)), (vec![3, 1], vec![2, 2]));
        whole.join(rest);
        assert_eq!(lens(&whole), [3, 3, 2]);
        assert_eq!(lens(&stamp(Op::Write, 8, 8, 5)), [], "one range is no list");
    }

    #[test]
    fn what_carries_nothing_moves_nothing() {
        for io in [Io::new(Op::Discard, 0, 8, 0, 1), Io::new(Op::Write, 0, 8, 0, 1)] {
            let memory = Memory { stores: io.op == Op::Discard, range: 0 };
            let mut none = Stamp::of(&io, memory);
            assert_eq!(
                (none.data_len(), none.write_to(0, &mut [0; SECTOR])),
                (None, Err(IoError::INVALID))
            );
            let rest = none.split_off(SECTOR).expect("it can be divided");
            none.join(rest);
            assert_eq!(none.into_found(), []);
        }
    }
}
