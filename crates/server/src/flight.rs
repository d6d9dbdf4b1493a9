//! The requests in flight of a worker, the I/Os of a request that is longer than a portion, and the buffers of
//! portions.
//!
//! The cookie of an I/O consists of the place of its request and the number of its portion. The client's own cookie is
//! only repeated in the reply: two requests may have the same. [`Long`] performs a read or write in portions, and
//! [`Steps`] trims or zeroes a range by consecutive I/Os.

use blkmq::{AlignedBuf, BufferPool, Bytes, Io, IoFlags, IoResult};
use blkmq_nbd::ReplyTo;
use std::ops::Range;

/// A connection of a worker: its place, and the generation of that place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Key {
    pub(crate) place: u32,
    pub(crate) generation: u32,
}

/// The cookie of an I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cookie {
    /// The place of the request.
    pub(crate) place: u32,
    /// The number of the portion of a long request.
    pub(crate) portion: u32,
}

impl From<Cookie> for u64 {
    fn from(cookie: Cookie) -> Self {
        Self::from(cookie.portion) << 32 | Self::from(cookie.place)
    }
}

impl From<u64> for Cookie {
    fn from(cookie: u64) -> Self {
        Self { place: cookie as u32, portion: (cookie >> 32) as u32 }
    }
}

#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) connection: Key,
    pub(crate) to: ReplyTo,
    pub(crate) work: Work,
    /// The offset on the disk, in bytes, of the last I/O that began; for a long request, its beginning.
    pub(crate) at: u64,
    /// Bytes charged for the request.
    pub(crate) bytes: usize,
}

#[derive(Debug)]
pub(crate) enum Work {
    /// A read; the reply has this many bytes.
    Read(u32),
    /// A write of this many bytes.
    Write(u32),
    /// A single I/O whose reply has no content.
    Plain,
    /// Consecutive I/Os that cover a range.
    Steps(Steps),
    /// A read or write in portions.
    Long(Long),
}

impl Work {
    /// The name for the log.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Read(_) => "read",
            Self::Write(_) => "write",
            Self::Plain => "flush",
            Self::Steps(steps) => steps.name,
            Self::Long(long) if long.is_read() => "read",
            Self::Long(_) => "write",
        }
    }
}

/// The places of requests in flight.
#[derive(Debug)]
pub(crate) struct Flights<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Flights<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Flights<T> {
    /// Adds a request, and returns its place.
    pub(crate) fn insert(&mut self, flight: T) -> u32 {
        match self.free.pop() {
            Some(place) => {
                self.places[place as usize] = Some(flight);
                place
            }
            None => {
                self.places.push(Some(flight));
                self.places.len() as u32 - 1
            }
        }
    }

    /// The request at `place`.
    ///
    /// # Panics
    /// If there is none: an I/O completes once.
    pub(crate) fn get_mut(&mut self, place: u32) -> &mut T {
        self.places[place as usize].as_mut().expect("the request is in flight")
    }

    /// Takes the request at `place` out.
    ///
    /// # Panics
    /// See [`get_mut`](Self::get_mut).
    pub(crate) fn remove(&mut self, place: u32) -> T {
        let flight = self.places[place as usize].take().expect("the request is in flight");
        self.free.push(place);
        flight
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

/// A long request and its portions.
///
/// Each portion is an I/O with its own buffer, and may complete before earlier ones. The worker decides when the next
/// one begins: a portion takes a part of a turn, whereas the whole would take many. No clock, no socket.
#[derive(Debug)]
pub(crate) struct Long {
    op: Transfer,
    /// The first byte on the disk, and the length in bytes.
    pub(crate) start: u64,
    pub(crate) length: u32,
    /// The length of a portion in bytes; the last one may be shorter.
    portion: u32,
    /// Payloads in the order of the disk: for a write those that have not begun, for a read those that have completed.
    pub(crate) payloads: Vec<AlignedBuf>,
    begun: u32,
    under_way: u32,
    /// The first failure. No portion begins after it.
    pub(crate) result: IoResult,
}

/// The direction of a long request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Transfer {
    Read,
    Write { fua: bool },
}

impl Long {
    /// Creates a read of `length` bytes from `start` on, in portions of `portion` bytes.
    pub(crate) fn read(start: u64, length: u32, portion: u32) -> Self {
        let payloads = (0..length.div_ceil(portion)).map(|_| AlignedBuf::empty()).collect();
        Self::new(Transfer::Read, start, length, portion, payloads)
    }

    /// Creates a write of `payloads`, which are a portion long, except for the last one.
    pub(crate) fn write(start: u64, payloads: Vec<AlignedBuf>, fua: bool) -> Self {
        // At most 32 MiB.
        let length = payloads.iter().map(AlignedBuf::len).sum::<usize>() as u32;
        let portion = payloads.first().map_or(1, AlignedBuf::len) as u32;
        Self::new(Transfer::Write { fua }, start, length, portion, payloads)
    }

    fn new(op: Transfer, start: u64, length: u32, portion: u32, payloads: Vec<AlignedBuf>) -> Self {
        Self { op, start, length, portion, payloads, begun: 0, under_way: 0, result: Ok(()) }
    }

    pub(crate) fn is_read(&self) -> bool {
        self.op == Transfer::Read
    }

    /// The offset of a portion within the request.
    pub(crate) fn skips(&self, portion: u32) -> u64 {
        u64::from(portion) * u64::from(self.portion)
    }

    /// Returns whether a portion remains to begin.
    pub(crate) fn has_more(&self) -> bool {
        self.result.is_ok() && (self.begun as usize) < self.payloads.len()
    }

    /// Begins the next portion. Returns its number and its I/O. For a read, `buffer` returns a buffer of the given
    /// length.
    ///
    /// # Panics
    /// If none is left.
    pub(crate) fn begin(
        &mut self,
        buffer: impl FnOnce(usize) -> AlignedBuf,
    ) -> (u32, Io<AlignedBuf>) {
        assert!(self.has_more(), "a portion is left");
        let number = self.begun;
        self.begun += 1;
        self.under_way += 1;
        let skip = number * self.portion;
        let at = Bytes(self.start + u64::from(skip));
        let io = match self.op {
            Transfer::Read => {
                let len = self.portion.min(self.length - skip) as usize;
                Io::read(at, buffer(len))
            }
            Transfer::Write { fua } => {
                let io = Io::write(at, std::mem::take(&mut self.payloads[number as usize]));
                if fua { io.fua() } else { io }
            }
        };
        (number, io)
    }

    /// Handles the completion of portion `number`.
    pub(crate) fn end(&mut self, number: u32, result: IoResult, payload: AlignedBuf) {
        self.under_way -= 1;
        self.result = self.result.and(result);
        if self.is_read() {
            self.payloads[number as usize] = payload;
        }
    }

    /// Begins no further portion, because the client has gone.
    pub(crate) fn stop(&mut self, why: IoResult) {
        self.result = self.result.and(why);
    }

    /// Returns whether no portion is in progress or left to begin.
    pub(crate) fn is_over(&self) -> bool {
        self.under_way == 0 && !self.has_more()
    }
}

/// The length of the first steps in bytes: memory is zeroed in about the time in which a portion of a read is copied to
/// its client.
const FIRST: u64 = 1 << 20;

/// The number of bytes that cost as much to trim or zero as one byte of a read or write, which is copied twice and
/// passes a socket.
const CHEAP: u64 = 8;

/// The bytes charged to a turn for the first step over `length` bytes.
pub(crate) fn step_cost(length: u64) -> u64 {
    length.min(FIRST) / CHEAP
}

/// A range and the I/Os that cover it.
///
/// Devices accept shorter ranges than clients request. A device that performs its I/Os immediately, like memory, takes
/// the worker's time for them, so the first steps are short; they grow up to the device's limit if the device works in
/// parallel. The worker decides when a step begins. No clock, no socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steps {
    op: Op,
    /// The first byte on the disk that is not covered yet, and the end.
    next: u64,
    end: u64,
    /// The present and the maximum length of a step in bytes.
    step: u64,
    most: u64,
    /// The worker's turn in which the last step began.
    turn: u32,
    fua: bool,
    /// For [`Op::WriteZeroes`]: the mode, and the first byte of the last step.
    zeroes: Zeroes,
    begun: u64,
    /// For the log, which may be written when no step is left.
    pub(crate) name: &'static str,
}

/// How a range is zeroed by the device's own operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Zeroes {
    /// Whether the range must stay allocated.
    pub(crate) no_hole: bool,
    /// If the device turns out not to support the operation, buffers of half this many bytes are written instead.
    pub(crate) otherwise: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    /// With FUA, the last step is a flush, since discards have no FUA.
    Discard,
    WriteZeroes,
    /// Writes of zeroed buffers.
    Fill,
    Flush,
    Over,
}

impl Steps {
    /// Discards `range`, at most `most` bytes at a time.
    pub(crate) fn trim(range: Range<u64>, most: u64, fua: bool) -> Self {
        Self { name: "trim", ..Self::new(Op::Discard, range, most, fua) }
    }

    /// Zeroes `range` by the device's own operation, at most `most` bytes at a time.
    pub(crate) fn zero(range: Range<u64>, most: u64, fua: bool, zeroes: Zeroes) -> Self {
        Self { zeroes, ..Self::new(Op::WriteZeroes, range, most, fua) }
    }

    /// Writes zeroes to `range`, half a `portion` at a time.
    pub(crate) fn fill(range: Range<u64>, portion: usize, fua: bool) -> Self {
        Self::new(Op::Fill, range, (portion / 2).max(BLOCK) as u64, fua)
    }

    fn new(op: Op, Range { start, end }: Range<u64>, most: u64, fua: bool) -> Self {
        let (zeroes, name) = (Zeroes::default(), "write zeroes");
        let step = most.min(FIRST);
        Self { op, next: start, end, step, most, turn: 0, fua, zeroes, begun: start, name }
    }

    /// Handles the lack of the operation on the device. Returns whether the rest is now zeroed by writes.
    pub(crate) fn falls_back(&mut self) -> bool {
        let Some(portion) = self.zeroes.otherwise else { return false };
        *self = Self::fill(self.begun..self.end, portion, self.fua);
        true
    }

    /// Returns whether no step remains to begin.
    pub(crate) fn is_over(&self) -> bool {
        self.op == Op::Over
    }

    /// The I/O of the next step, which begins in this turn of the worker. `buffer` returns a buffer of the given
    /// length.
    ///
    /// # Panics
    /// If none is left.
    pub(crate) fn begin(
        &mut self,
        turn: u32,
        buffer: impl FnOnce(usize) -> AlignedBuf,
    ) -> Io<AlignedBuf> {
        self.turn = turn;
        let range = self.next..self.step_end();
        self.begun = range.start;
        let (op, len) = (self.op, range.end - range.start);
        self.next = range.end;
        if self.next == self.end {
            self.op = if op == Op::Discard && self.fua { Op::Flush } else { Op::Over };
        }
        let bytes = Bytes(range.start)..Bytes(range.end);
        let io = match op {
            Op::Discard => return Io::discard(bytes),
            Op::Flush => return Io::flush(),
            Op::WriteZeroes if self.zeroes.no_hole => {
                Io::write_zeroes(bytes).with(IoFlags::NOUNMAP)
            }
            Op::WriteZeroes => Io::write_zeroes(bytes),
            Op::Fill => {
                let mut zeroes = buffer(len as usize);
                zeroes.as_mut_slice().fill(0);
                Io::write(bytes.start, zeroes)
            }
            Op::Over => panic!("a step is left"),
        };
        if self.fua { io.fua() } else { io }
    }

    /// Handles the completion of the last step, in this turn of the worker.
    pub(crate) fn end(&mut self, turn: u32) {
        if turn != self.turn {
            self.step = self.step.saturating_mul(2).min(self.most);
        }
    }

    /// The end of the next step: the end of the range, or else aligned to a block, so that no block is covered in part.
    fn step_end(&self) -> u64 {
        let end = self.next + self.step;
        if end >= self.end {
            return self.end;
        }
        let whole = end - end % BLOCK as u64;
        if whole > self.next { whole } else { end }
    }
}

/// Buffers of small I/Os.
const SMALL: usize = 16 << 10;
const SMALL_ONES: u32 = 1024;
/// The maximum length of a portion of a request, and so of a buffer.
const LONGEST: usize = 256 << 10;
const LONG_ONES: u32 = 128;
/// The unit of portions: the largest block size of any disk.
const BLOCK: usize = 4096;

/// The buffers of a worker's I/Os, in pools of at most 48 MiB in total, whose memory the system allocates on first use.
///
/// Buffers are reused: returning memory to the system and allocating it again costs a page fault for each page, more
/// than the copy of its bytes.
#[derive(Debug)]
pub(crate) struct Buffers {
    small: BufferPool,
    long: BufferPool,
}

impl Buffers {
    /// Creates buffers for portions of requests that fit in a turn of `bytes_per_turn`.
    pub(crate) fn new(bytes_per_turn: usize) -> Self {
        let portion = (bytes_per_turn / BLOCK * BLOCK).clamp(BLOCK, LONGEST);
        let (small, long) =
            (BufferPool::new(SMALL_ONES, SMALL), BufferPool::new(LONG_ONES, portion));
        Self { small, long }
    }

    /// The maximum length of a read or write that is a single I/O.
    pub(crate) fn portion(&self) -> usize {
        self.long.buffer_len()
    }

    /// A buffer of `len` bytes with arbitrary contents.
    pub(crate) fn take(&self, len: usize) -> AlignedBuf {
        if len <= SMALL { self.small.take_or_new(len) } else { self.long.take_or_new(len) }
    }

    /// A buffer of `len` bytes for a read. With `clears`, for disks that do not fill it, it is zeroed and so contains
    /// no data of another client.
    pub(crate) fn cleared(&self, len: usize, clears: bool) -> AlignedBuf {
        let mut buffer = self.take(len);
        if clears {
            buffer.as_mut_slice().fill(0);
        }
        buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq::{IoError, SECTOR_SIZE};

    /// The number of the next portion, its first byte and its length.
    fn next(long: &mut Long) -> (u32, u64, usize) {
        let (number, io) = long.begin(AlignedBuf::new);
        (number, io.sector * u64::from(SECTOR_SIZE), io.payload.len())
    }

    #[test]
    fn a_read_comes_together_in_any_order() {
        let mut long = Long::read(4096, 10 * 1024, 4096);
        let portions: Vec<_> = (0..3).map(|_| next(&mut long)).collect();
        assert_eq!(portions, [(0, 4096, 4096), (1, 8192, 4096), (2, 12_288, 2048)]);
        assert!(!long.has_more() && !long.is_over());
        for number in [2, 0, 1] {
            assert!(!long.is_over());
            let len = if number == 2 { 2048 } else { 4096 };
            long.end(number, Ok(()), AlignedBuf::copy_of(&vec![number as u8; len]));
        }
        assert!(long.is_over() && long.result.is_ok());
        let firsts = long.payloads.into_iter().map(|mut it| it.as_mut_slice()[0]);
        assert!(firsts.eq([0, 1, 2]));
    }

    #[test]
    fn nothing_begins_behind_a_failure_and_the_first_one_counts() {
        let payloads = (0..4).map(|n| AlignedBuf::copy_of(&[n; 512])).collect();
        let mut long = Long::write(0, payloads, true);
        assert_eq!(long.length, 2048);
        assert_eq!((next(&mut long), next(&mut long)), ((0, 0, 512), (1, 512, 512)));
        long.end(1, Err(IoError::IO), AlignedBuf::empty());
        assert!(!long.has_more() && !long.is_over(), "one is still under way");
        long.stop(Err(IoError::CANCELLED));
        long.end(0, Ok(()), AlignedBuf::empty());
        assert!(long.is_over());
        assert_eq!(long.result, Err(IoError::IO));
    }

    const MIB: u64 = 1 << 20;

    /// Returns the starts and lengths of all steps, each of which takes `turns` turns of the worker.
    fn all(mut steps: Steps, turns: u32) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        for turn in (0..).step_by(10) {
            if steps.is_over() {
                break;
            }
            let io = steps.begin(turn, AlignedBuf::new);
            let bytes = |sectors| sectors * u64::from(SECTOR_SIZE);
            all.push((bytes(io.sector), bytes(io.sectors.into())));
            steps.end(turn + turns);
        }
        all
    }

    #[test]
    fn steps_are_short_while_the_device_works_in_the_turn_of_the_worker() {
        let steps = Steps::trim(0..5 * MIB / 2, 1 << 32, false);
        assert_eq!(all(steps, 0), [(0, MIB), (MIB, MIB), (2 * MIB, MIB / 2)]);
        let steps = Steps::zero(0..2560, 1024, false, Zeroes::default());
        assert_eq!(all(steps, 0), [(0, 1024), (1024, 1024), (2048, 512)]);
    }

    #[test]
    fn steps_grow_up_to_the_limit_of_a_device_that_works_beside_it() {
        let steps = Steps::trim(0..16 * MIB, 4 * MIB, false);
        let lens = all(steps, 1).into_iter().map(|(_, len)| len / MIB);
        assert_eq!(Vec::from_iter(lens), [1, 2, 4, 4, 4, 1]);
    }

    #[test]
    fn a_step_ends_at_a_whole_block() {
        let steps = Steps::fill(512..40 << 10, 32 << 10, true);
        let expected = [(512, 15 * 1024 + 512), (16 << 10, 16 << 10), (32 << 10, 8 << 10)];
        assert_eq!(all(steps, 0), expected);
    }

    #[test]
    fn zeroes_that_the_device_turns_out_not_to_have_are_written_from_the_step_that_was_refused() {
        let zeroes = Zeroes { no_hole: true, otherwise: Some(64 << 10) };
        let mut steps = Steps::zero(0..3 * MIB, MIB, false, zeroes);
        assert_eq!(steps.begin(0, AlignedBuf::new).flags, IoFlags::NOUNMAP);
        steps.begin(0, AlignedBuf::new);
        assert!(steps.falls_back());
        let written = all(steps, 0);
        assert_eq!((written[0], written.len()), ((MIB, 32 << 10), 64));
        assert!(!Steps::zero(0..MIB, MIB, false, Zeroes::default()).falls_back(), "fast or not");
    }

    #[test]
    fn a_trim_that_must_be_durable_ends_in_a_flush() {
        let mut steps = Steps::trim(0..2 * MIB, MIB, true);
        let mut ops = Vec::new();
        while !steps.is_over() {
            ops.push(steps.begin(0, AlignedBuf::new).op);
        }
        assert_eq!(ops, [blkmq::Op::Discard, blkmq::Op::Discard, blkmq::Op::Flush]);
    }

    #[test]
    fn a_portion_fits_into_a_turn_and_has_whole_blocks() {
        let portion = |bytes| Buffers::new(bytes).portion();
        assert_eq!([1, 4096, 10_000, 1 << 40].map(portion), [4096, 4096, 8192, 256 << 10]);
    }

    #[test]
    fn buffers_of_any_length_come_from_somewhere() {
        let buffers = Buffers::new(64 << 10);
        let lens = [0, 1, SMALL, SMALL + 1, 64 << 10, 1 << 20];
        assert_eq!(lens.map(|len| buffers.take(len).len()), lens);
    }
}
