//! [`Long`]: a read or write longer than a portion, performed in portions.
//!
//! Each portion is an I/O with its own buffer, and may complete before earlier ones. The worker decides when the next
//! one begins: a portion takes a part of a turn, whereas the whole would take many. No clock, no socket.

use blkmq::{AlignedBuf, Bytes, Io, IoResult};

/// A long request and its portions.
#[derive(Debug)]
pub(crate) struct Long {
    op: Transfer,
    /// The first byte on the disk, and the length in bytes.
    start: u64,
    length: u32,
    /// The length of a portion in bytes; the last one may be shorter.
    portion: u32,
    /// Payloads in the order of the disk: for a write those that have not begun, for a read those that have completed.
    payloads: Vec<AlignedBuf>,
    begun: u32,
    under_way: u32,
    /// The first failure. No portion begins after it.
    result: IoResult,
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

    /// The first byte on the disk.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// The total length in bytes.
    pub(crate) fn length(&self) -> u32 {
        self.length
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

    /// The first failure so far.
    pub(crate) fn result(&self) -> IoResult {
        self.result
    }

    /// The bytes of a read, in order.
    pub(crate) fn into_payloads(self) -> Vec<AlignedBuf> {
        self.payloads
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
        assert!(long.is_over() && long.result().is_ok());
        let firsts = long.into_payloads().into_iter().map(|mut it| it.as_mut_slice()[0]);
        assert!(firsts.eq([0, 1, 2]));
    }

    #[test]
    fn nothing_begins_behind_a_failure_and_the_first_one_counts() {
        let payloads = (0..4).map(|n| AlignedBuf::copy_of(&[n; 512])).collect();
        let mut long = Long::write(0, payloads, true);
        assert_eq!(long.length(), 2048);
        assert_eq!((next(&mut long), next(&mut long)), ((0, 0, 512), (1, 512, 512)));
        long.end(1, Err(IoError::IO), AlignedBuf::empty());
        assert!(!long.has_more() && !long.is_over(), "one is still under way");
        long.stop(Err(IoError::CANCELLED));
        long.end(0, Ok(()), AlignedBuf::empty());
        assert!(long.is_over());
        assert_eq!(long.result(), Err(IoError::IO));
    }
}
