//! The buffers of a worker's I/Os, which are reused: returning memory to the system and allocating it again costs a
//! page fault for each page, more than the copy of its bytes.

use blkmq::{AlignedBuf, BufferPool};

/// Buffers of small I/Os.
const SMALL: usize = 16 << 10;
const SMALL_ONES: u32 = 1024;
/// The maximum length of a portion of a request, and so of a buffer.
const LONGEST: usize = 256 << 10;
const LONG_ONES: u32 = 128;
/// The unit of portions: the largest block size of any disk.
pub(crate) const BLOCK: usize = 4096;

/// The pools, at most 48 MiB in total; the system allocates their memory on first use.
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
