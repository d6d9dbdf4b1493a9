//! [`Payload`]: the operations on the bytes of an I/O.
//!
//! Policies never see payloads, and the engine only moves, divides and rejoins them. A device sees them by shared
//! reference while it has the request, so a payload that is read into needs a cell; [`Buffer`] is the simplest. This
//! module knows nothing about devices.

use crate::{IoError, IoResult};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::RefCell;

/// The bytes of an I/O, owned by it until it is done.
///
/// A payload carries either as many bytes as its I/O has, or none at all. Reads and writes with a payload that
/// carries none take their time, meet bad blocks and faults like any other, and move no data: neither the buffer nor
/// the stored data changes. Discards, zeroes and flushes never use a payload.
///
/// Every method has a default, so that `impl Payload for MyTicket {}` is enough for a payload that has a meaning only
/// to a program's own device. An I/O that exceeds the limits of its device is divided only if its payload can be.
pub trait Payload: Send + Sized + 'static {
    /// The payload can be written from but not read into: a queue refuses a read with it. False for payloads that
    /// carry no data, because their reads move nothing.
    const WRITE_ONLY: bool = false;

    /// The number of bytes that it carries; `None` if it carries no data. For a read or write it must match the
    /// length of the I/O: otherwise a device that stores data ends the I/O with [`IoError::INVALID`].
    fn data_len(&self) -> Option<usize> {
        None
    }

    /// The ranges of memory that hold its bytes, in order. Empty, the default, if no device may reach them by address.
    /// A queue counts the ranges, and divides an I/O that has more of them than one request of its device may have. It
    /// never follows an address; `IoBuf` of the crate `blkmq-buf` is the promise that a device may.
    ///
    /// The ranges stay the same however often this is called, until the payload is divided or joined.
    fn ranges(&self) -> impl Iterator<Item = *mut [u8]> + Clone {
        core::iter::empty()
    }

    /// Copies its bytes from `at` on into `memory`, for a write. Called only within its length.
    ///
    /// # Errors
    /// [`IoError::INVALID`] if it carries no bytes.
    fn write_to(&self, at: usize, memory: &mut [u8]) -> IoResult {
        _ = (at, memory);
        Err(IoError::INVALID)
    }

    /// Copies `memory` over its bytes from `at` on, for a read. Called only within its length.
    ///
    /// # Errors
    /// [`IoError::INVALID`] if it cannot be read into.
    fn read_from(&self, at: usize, memory: &[u8]) -> IoResult {
        _ = (at, memory);
        Err(IoError::INVALID)
    }

    /// Keeps the first `at` bytes of the I/O and gives away the rest, to divide the I/O. Returns `None`, and changes
    /// nothing, if the payload cannot be divided. `at` is within the I/O's length, and neither part is empty; discards
    /// and zeroes are divided as well. An I/O of several parts is divided from its end, so that each byte is given away
    /// once.
    fn split_off(&mut self, at: usize) -> Option<Self> {
        _ = at;
        None
    }

    /// Puts the part that [`split_off`](Self::split_off) gave away last back behind its own bytes. Called once for
    /// each part, in reverse order, before the payload goes back to its submitter.
    fn join(&mut self, rest: Self) {
        drop(rest);
    }
}

/// Bytes that can be written from and read into.
pub type Buffer = RefCell<Vec<u8>>;

/// No data: for programs that only measure or count. Each part of a divided payload is like the whole.
macro_rules! no_data {
    ($($payload:ty),*) => {
        $(impl Payload for $payload {
            fn split_off(&mut self, _: usize) -> Option<Self> {
                Some(*self)
            }
        })*
    };
}

no_data!((), u8, u16, u32, u64, usize);

/// Can only be written from, because a device has no exclusive access to it. Queues refuse a read with it.
impl Payload for Vec<u8> {
    const WRITE_ONLY: bool = true;

    fn data_len(&self) -> Option<usize> {
        Some(self.len())
    }

    fn write_to(&self, at: usize, memory: &mut [u8]) -> IoResult {
        memory.copy_from_slice(&self[at..][..memory.len()]);
        Ok(())
    }

    fn split_off(&mut self, at: usize) -> Option<Self> {
        Some(Self::split_off(self, at.min(self.len())))
    }

    fn join(&mut self, mut rest: Self) {
        self.append(&mut rest);
    }
}

/// Can only be written from, like a vector, and cannot be divided.
impl Payload for Box<[u8]> {
    const WRITE_ONLY: bool = true;

    fn data_len(&self) -> Option<usize> {
        Some(self.len())
    }

    fn write_to(&self, at: usize, memory: &mut [u8]) -> IoResult {
        memory.copy_from_slice(&self[at..][..memory.len()]);
        Ok(())
    }
}

/// The request owns the cell until its completion is reaped, so there is no other borrow of it.
impl Payload for Buffer {
    fn data_len(&self) -> Option<usize> {
        Some(self.borrow().len())
    }

    fn write_to(&self, at: usize, memory: &mut [u8]) -> IoResult {
        memory.copy_from_slice(&self.borrow()[at..][..memory.len()]);
        Ok(())
    }

    fn read_from(&self, at: usize, memory: &[u8]) -> IoResult {
        self.borrow_mut()[at..][..memory.len()].copy_from_slice(memory);
        Ok(())
    }

    fn split_off(&mut self, at: usize) -> Option<Self> {
        let own = self.get_mut();
        let at = at.min(own.len());
        Some(Self::new(own.split_off(at)))
    }

    fn join(&mut self, mut rest: Self) {
        self.get_mut().append(rest.get_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn a_buffer_goes_both_ways_a_vector_one_way_and_a_number_none() {
        let mut memory = [0; 2];
        let buffer = Buffer::new(vec![1, 2, 3, 4]);
        assert_eq!((buffer.data_len(), buffer.write_to(1, &mut memory)), (Some(4), Ok(())));
        assert_eq!(memory, [2, 3]);
        assert_eq!(buffer.read_from(2, &[8, 9]), Ok(()));
        assert_eq!(buffer.into_inner(), [1, 2, 8, 9]);

        let slice: Box<[u8]> = vec![5, 6].into();
        assert_eq!((slice.data_len(), slice.write_to(0, &mut memory)), (Some(2), Ok(())));
        assert_eq!(memory, [5, 6]);
        assert_eq!(slice.read_from(0, &memory), Err(IoError::INVALID));
        assert_eq!((7_u64.data_len(), 7_u64.read_from(0, &memory)), (None, Err(IoError::INVALID)));
    }

    #[test]
    fn what_was_divided_comes_together_again() {
        let mut vector = vec![1, 2, 3, 4, 5];
        let mut tail = Payload::split_off(&mut vector, 2).expect("a vector can be divided");
        let last = Payload::split_off(&mut tail, 2).expect("again");
        assert_eq!((&vector[..], &tail[..], &last[..]), (&[1, 2][..], &[3, 4][..], &[5][..]));
        tail.join(last);
        vector.join(tail);
        assert_eq!(vector, [1, 2, 3, 4, 5]);

        let mut buffer = Buffer::new(vec![1, 2]);
        let rest = Payload::split_off(&mut buffer, 1).expect("a buffer can be divided");
        assert_eq!(rest.read_from(0, &[9]), Ok(()));
        buffer.join(rest);
        assert_eq!(buffer.into_inner(), [1, 9]);

        let mut slice: Box<[u8]> = vec![1, 2].into();
        assert!(slice.split_off(1).is_none() && *slice == [1, 2]);
        assert_eq!(7_u64.split_off(512), Some(7));
    }
}
