//! [`Arriving`]: the payload of a write, on its way from the socket into its buffers.
//!
//! Each portion has a buffer, which is taken when the bytes before it have arrived: a client that announces much and
//! sends little takes little memory.

use crate::long::Buffers;
use blkmq::AlignedBuf;

#[derive(Debug)]
pub(crate) struct Arriving {
    /// The portions that are complete.
    full: Vec<AlignedBuf>,
    buffer: AlignedBuf,
    /// Bytes of `buffer` that are there.
    filled: usize,
    /// Bytes behind `buffer` that are still to come.
    behind: usize,
    len: usize,
}

impl Arriving {
    /// A payload of `len` bytes, none of which is there.
    pub(crate) fn new(buffers: &Buffers, len: usize) -> Self {
        let first = len.min(buffers.portion());
        let buffer = buffers.take(first);
        Self { full: Vec::new(), buffer, filled: 0, behind: len - first, len }
    }

    /// Bytes of all of it.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The place of the next bytes, and how many of them fit.
    pub(crate) fn gap(&mut self) -> &mut [u8] {
        &mut self.buffer.as_mut_slice()[self.filled..]
    }

    /// `count` bytes are in the gap.
    pub(crate) fn arrived(&mut self, count: usize) {
        self.filled += count;
    }

    /// Copies as much of `bytes` as belongs to it; returns how much that is.
    pub(crate) fn fill(&mut self, buffers: &Buffers, bytes: &[u8]) -> usize {
        let mut used = 0;
        loop {
            let rest = &bytes[used..];
            let gap = self.gap();
            let count = gap.len().min(rest.len());
            gap[..count].copy_from_slice(&rest[..count]);
            self.filled += count;
            used += count;
            if self.filled < self.buffer.len() || self.behind == 0 {
                return used;
            }
            let next = self.behind.min(buffers.portion());
            self.full.push(std::mem::replace(&mut self.buffer, buffers.take(next)));
            (self.filled, self.behind) = (0, self.behind - next);
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.behind == 0 && self.filled == self.buffer.len()
    }

    /// The only buffer, or those of all portions in order.
    pub(crate) fn into_payloads(mut self) -> Result<AlignedBuf, Vec<AlignedBuf>> {
        if self.full.is_empty() {
            return Ok(self.buffer);
        }
        self.full.push(self.buffer);
        Err(self.full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A payload of 10,000 bytes whose portions have 4,096, in pieces of this length, every other one of them put
    /// into the gap.
    fn arrive(piece: usize) -> Vec<Vec<u8>> {
        let buffers = Buffers::new(4096);
        let data: Vec<u8> = (0..10_000_u32).map(|n| (n / 7) as u8).collect();
        let mut arriving = Arriving::new(&buffers, data.len());
        let (mut at, mut direct) = (0, true);
        while !arriving.is_complete() {
            let mut bytes = &data[at..data.len().min(at + piece)];
            direct = !direct;
            if direct {
                let gap = arriving.gap();
                let count = gap.len().min(bytes.len());
                gap[..count].copy_from_slice(&bytes[..count]);
                arriving.arrived(count);
                (at, bytes) = (at + count, &bytes[count..]);
            }
            at += arriving.fill(&buffers, bytes);
        }
        assert_eq!((at, arriving.len()), (data.len(), data.len()));
        let payloads = arriving.into_payloads().expect_err("several portions");
        assert!(payloads.iter().all(|it| it.len() <= 4096));
        let payloads: Vec<Vec<u8>> =
            payloads.into_iter().map(|mut it| it.as_mut_slice().to_vec()).collect();
        assert!(payloads.concat() == data, "pieces of {piece}");
        payloads
    }

    #[test]
    fn bytes_arrive_in_order_however_they_are_cut() {
        for piece in [1, 100, 4095, 4096, 4097, 9000, 10_000] {
            assert_eq!(arrive(piece).len(), 3);
        }
    }

    #[test]
    fn bytes_behind_a_payload_are_left() {
        let buffers = Buffers::new(4096);
        let mut arriving = Arriving::new(&buffers, 10);
        assert_eq!(arriving.fill(&buffers, &[7; 12]), 10);
        assert!(arriving.is_complete());
        assert_eq!(arriving.into_payloads().map(|it| it.len()).ok(), Some(10));
    }
}
