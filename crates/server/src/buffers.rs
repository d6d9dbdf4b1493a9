//! The buffers of a worker's I/Os, which are kept: memory that is given back and taken anew costs a fault for each page,
//! more than the copy of its bytes.

use blkmq::{AlignedBuf, BufferPool};

/// Buffers of small I/Os.
const SMALL: usize = 16 << 10;
const SMALL_ONES: u32 = 1024;
/// The longest portion of a request, and so of a buffer.
const LONGEST: usize = 256 << 10;
const LONG_ONES: u32 = 128;
/// A portion consists of whole blocks of this many bytes, the largest of any disk.
pub(crate) const BLOCK: usize = 4096;

/// The pools, 48 MiB in all at most; the system gives their memory when it is first used.
#[derive(Debug)]
pub(crate) struct Buffers {
    small: BufferPool,
    long: BufferPool,
}

impl Buffers {
    /// Buffers for portions of requests that fit into a turn of `bytes_per_turn`.
    pub(crate) fn new(bytes_per_turn: usize) -> Self {
        let portion = (bytes_per_turn / BLOCK * BLOCK).clamp(BLOCK, LONGEST);
        let (small, long) =
            (BufferPool::new(SMALL_ONES, SMALL), BufferPool::new(LONG_ONES, portion));
        Self { small, long }
    }

    /// The most bytes of a read or write that are one I/O.
    pub(crate) fn portion(&self) -> usize {
        self.long.buffer_len()
    }

    /// A buffer of `len` bytes, with any contents.
    pub(crate) fn take(&self, len: usize) -> AlignedBuf {
        if len <= SMALL { self.small.take_or_new(len) } else { self.long.take_or_new(len) }
    }

    /// A buffer of `len` bytes for a read. With `clears`, since the disk does not fill it, it holds zeroes, and not the data
    /// of another client.
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
