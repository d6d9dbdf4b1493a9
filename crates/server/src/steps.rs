//! [`Steps`]: trims or zeroes a range by consecutive I/Os.
//!
//! Devices accept shorter ranges than clients request. A device that performs its I/Os immediately, like memory, takes
//! the worker's time for them, so the first steps are short; they grow up to the device's limit if the device works in
//! parallel. The worker decides when a step begins. No clock, no socket.

use crate::buffers::BLOCK;
use blkmq::{AlignedBuf, Bytes, Io, IoFlags};
use std::ops::Range;

/// The length of the first steps in bytes: memory is zeroed in about the time in which a portion of a read is copied to
/// its client.
const FIRST: u64 = 1 << 20;

/// The number of bytes that cost as much to trim or zero as one byte of a read or write, which is copied twice and
/// passes a socket.
const CHEAP: u64 = 8;

/// The bytes charged to a turn for the first step over `length` bytes.
pub(crate) fn cost(length: u64) -> u64 {
    length.min(FIRST) / CHEAP
}

/// A range and the I/Os that cover it.
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
    name: &'static str,
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

    /// The name for the log.
    pub(crate) fn name(&self) -> &'static str {
        self.name
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

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq::SECTOR_SIZE;

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
}
