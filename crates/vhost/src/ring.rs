//! A split ring: takes requests from the driver, gives answers, and suppresses notifications that neither side needs.
//!
//! A descriptor has 16 bytes: address, length, flags, next. The driver's ring has flags, an index and heads of chains.
//! The back end's ring has flags, an index and pairs of head and length. Each ring is followed by the index at which
//! its owner wants to be notified.
//!
//! # Orderings
//!
//! | word | here | partner |
//! |---|---|---|
//! | the driver's index | loaded with acquire, before heads and descriptors | stored with release by the driver, behind them |
//! | the index of answers | stored with release, behind the answers | loaded with acquire by the driver |
//! | the index for notifications | a full fence between the store of one's own word and the load of the other's, on both sides | the same in the driver: one of the two sees the other's store |

use crate::inflight::{Record, RecordError};
use crate::memory::{Memory, Span};
use crate::message::RingAddress;
use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};

/// The most descriptors of a ring.
pub const MOST_SIZE: u32 = 32_768;
/// The maximum number of descriptors of a request, including those in an indirect table.
const MOST_DESCRIPTORS: usize = 1026;
/// The length of a descriptor in bytes.
const DESCRIPTOR: usize = 16;
/// Descriptor flags: the chain continues, the device writes, the descriptor points to a table.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// The flag in either ring: its owner needs no notification.
const QUIET: u16 = 1;

/// The rule that a driver has broken, after which its ring is unusable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RingError {
    /// The number of descriptors is invalid.
    #[error("a ring of {0} descriptors; accepted: powers of two up to {MOST_SIZE}")]
    Size(u32),
    /// A part of the ring is not in a region of memory, or is misaligned.
    #[error("a part of the ring is not mapped, or not aligned")]
    Place,
    /// The driver's index is ahead by more than the length of the ring.
    #[error("the ring has more requests than descriptors")]
    Index,
    /// A head or the next descriptor is beyond the table.
    #[error("a descriptor behind the table")]
    Descriptor,
    /// A chain is longer than any request may be.
    #[error("a chain of descriptors without end")]
    Endless,
    /// An indirect table has an invalid length or address, or is nested.
    #[error("an impossible table of descriptors")]
    Table,
    /// A descriptor that the device reads follows one that it writes.
    #[error("a descriptor to read behind one to write")]
    Order,
    /// The header of a request is incomplete, or the byte for the status is missing.
    #[error("a request without header or status")]
    Request,
    /// The record of requests in flight does not match the ring.
    #[error("{0}")]
    Record(#[from] RecordError),
}

/// A range of guest memory from a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Piece {
    addr: u64,
    len: u32,
}

/// A request as described by its descriptors: bytes to read, followed by bytes to write.
#[derive(Clone, Debug, Default)]
pub struct Chain {
    head: u16,
    readable: Vec<Piece>,
    writable: Vec<Piece>,
}

impl Chain {
    /// The index of the first descriptor, which identifies the answer.
    #[must_use]
    pub fn head(&self) -> u16 {
        self.head
    }

    /// The number of bytes that the device may read.
    #[must_use]
    pub fn readable(&self) -> u64 {
        self.readable.iter().map(|piece| u64::from(piece.len)).sum()
    }

    /// The number of bytes that the device may write.
    #[must_use]
    pub fn writable(&self) -> u64 {
        self.writable.iter().map(|piece| u64::from(piece.len)).sum()
    }

    /// Copies readable bytes, from offset `from` on, to `bytes`. Returns false if there are too few, or some are not
    /// mapped.
    #[must_use]
    pub fn read(&self, memory: &Memory, from: u64, bytes: &mut [u8]) -> bool {
        each(&self.readable, from, bytes.len(), |addr, range| memory.read(addr, &mut bytes[range]))
    }

    /// Copies `bytes` to the writable bytes, from offset `from` on. Returns false if there are too few, or some are not
    /// mapped.
    #[must_use]
    pub fn write(&self, memory: &Memory, from: u64, bytes: &[u8]) -> bool {
        each(&self.writable, from, bytes.len(), |addr, range| memory.write(addr, &bytes[range]))
    }

    fn clear(&mut self, head: u16) {
        self.head = head;
        self.readable.clear();
        self.writable.clear();
    }

    fn add(&mut self, piece: Piece, is_writable: bool) -> Result<(), RingError> {
        if self.readable.len() + self.writable.len() == MOST_DESCRIPTORS {
            return Err(RingError::Endless);
        }
        if is_writable {
            self.writable.push(piece);
        } else if self.writable.is_empty() {
            self.readable.push(piece);
        } else {
            return Err(RingError::Order);
        }
        Ok(())
    }
}

/// Calls `with` for each part of the bytes `from..from + len` of `pieces`, with the guest address of the part and its
/// range within the `len` bytes. Returns false if the pieces are too short, or as soon as `with` does.
fn each(
    pieces: &[Piece],
    from: u64,
    len: usize,
    mut with: impl FnMut(u64, std::ops::Range<usize>) -> bool,
) -> bool {
    let (mut skip, mut done) = (from, 0);
    for piece in pieces {
        if done == len {
            break;
        }
        let all = u64::from(piece.len);
        if skip >= all {
            skip -= all;
            continue;
        }
        let part = usize::try_from(all - skip).map_or(len - done, |left| left.min(len - done));
        let Some(addr) = piece.addr.checked_add(skip) else { return false };
        if !with(addr, done..done + part) {
            return false;
        }
        (skip, done) = (0, done + part);
    }
    done == len
}

/// The device's side of a ring.
#[derive(Debug)]
pub struct Ring {
    descriptors: Span,
    available: Span,
    used: Span,
    size: u16,
    /// The index of the next request to take.
    next: u16,
    /// The index of the next answer.
    answers: u16,
    /// The index of answers up to which the driver can see them.
    published: u16,
    has_event_idx: bool,
    record: Option<Record>,
    /// Heads that were in flight when the previous back end ended, oldest first.
    again: VecDeque<u16>,
}

impl Ring {
    /// Creates a ring of `size` descriptors at `address`, which begins at the request with the index `base`. With a
    /// record of requests in flight, the ring begins where the record says.
    ///
    /// # Errors
    /// If the size is invalid, a part of the ring is not mapped, or the record belongs to another ring.
    pub fn new(
        memory: &Memory,
        address: RingAddress,
        size: u32,
        base: u16,
        has_event_idx: bool,
        record: Option<Span>,
    ) -> Result<Self, RingError> {
        if !size.is_power_of_two() || size > MOST_SIZE {
            return Err(RingError::Size(size));
        }
        let size = size as u16;
        let (descriptors, available, used) = place(memory, address, size)?;
        let answers = used.load(2, Ordering::Acquire);
        let (mut next, mut again, mut opened) = (base, VecDeque::new(), None);
        if let Some(span) = record {
            let (record, heads) = Record::open(span, size, answers)?;
            next = answers.wrapping_add(heads.len() as u16);
            again = heads.into();
            opened = Some(record);
        }
        Ok(Self {
            descriptors,
            available,
            used,
            size,
            next,
            answers,
            published: answers,
            has_event_idx,
            record: opened,
            again,
        })
    }

    /// Maps the ring again after regions of memory were added or removed.
    ///
    /// # Errors
    /// If a part of the ring is no longer mapped.
    pub fn find_again(&mut self, memory: &Memory, address: RingAddress) -> Result<(), RingError> {
        (self.descriptors, self.available, self.used) = place(memory, address, self.size)?;
        Ok(())
    }

    /// The index of the next request, at which the next back end must begin.
    #[must_use]
    pub fn base(&self) -> u16 {
        self.next
    }

    /// Returns whether requests that the previous back end had in flight are still to be taken.
    #[must_use]
    pub fn owes(&self) -> bool {
        !self.again.is_empty()
    }

    /// Takes the oldest request into `chain`. Returns false if there is no request.
    ///
    /// # Errors
    /// If the driver has broken a rule.
    pub fn take(&mut self, memory: &Memory, chain: &mut Chain) -> Result<bool, RingError> {
        if let Some(head) = self.again.pop_front() {
            return self.follow(memory, head, chain).map(|()| true);
        }
        let ahead = self.available.load(2, Ordering::Acquire).wrapping_sub(self.next);
        if ahead == 0 {
            return Ok(false);
        }
        if ahead > self.size {
            return Err(RingError::Index);
        }
        let at = usize::from(self.next & (self.size - 1));
        let head = self.available.load(4 + 2 * at, Ordering::Relaxed);
        if head >= self.size {
            return Err(RingError::Descriptor);
        }
        self.next = self.next.wrapping_add(1);
        if let Some(record) = &mut self.record {
            record.begin(head);
        }
        self.follow(memory, head, chain).map(|()| true)
    }

    /// Reads each descriptor of a chain once.
    fn follow(&self, memory: &Memory, head: u16, chain: &mut Chain) -> Result<(), RingError> {
        chain.clear(head);
        let mut at = head;
        // Direct descriptors count, too, so that a cycle of pointers to tables ends.
        for _ in 0..self.size {
            let mut bytes = [0; DESCRIPTOR];
            self.descriptors.read(usize::from(at) * DESCRIPTOR, &mut bytes);
            let Descriptor { piece, flags, next } = Descriptor::parse(&bytes);
            if flags & INDIRECT != 0 {
                return match flags & NEXT {
                    0 => follow_table(memory, piece, chain),
                    _ => Err(RingError::Table),
                };
            }
            chain.add(piece, flags & WRITE != 0)?;
            if flags & NEXT == 0 {
                return Ok(());
            }
            if next >= self.size {
                return Err(RingError::Descriptor);
            }
            at = next;
        }
        Err(RingError::Endless)
    }

    /// Answers the request whose chain begins with `head` and which wrote `written` bytes. The driver sees the answer
    /// after the next [`publish`](Self::publish).
    pub fn give(&mut self, head: u16, written: u32) {
        let at = usize::from(self.answers & (self.size - 1));
        let pair = [u32::from(head), written].map(u32::to_le_bytes);
        self.used.write(4 + 8 * at, pair.as_flattened());
        self.answers = self.answers.wrapping_add(1);
        if let Some(record) = &mut self.record {
            record.end(head);
        }
    }

    /// Makes all answers visible to the driver. Returns whether the driver wants to be notified.
    #[must_use]
    pub fn publish(&mut self) -> bool {
        let (old, new) = (self.published, self.answers);
        if old == new {
            return false;
        }
        self.used.store(2, new, Ordering::Release);
        if let Some(record) = &mut self.record {
            record.published(new);
        }
        self.published = new;
        fence(Ordering::SeqCst);
        if self.has_event_idx {
            let event = self.available.load(4 + 2 * usize::from(self.size), Ordering::Relaxed);
            // The driver waits for the answer with this index, and it is among the new ones.
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            self.available.load(0, Ordering::Relaxed) & QUIET == 0
        }
    }

    /// Returns whether a request is ready to take.
    #[must_use]
    pub fn has_request(&self) -> bool {
        self.owes() || self.available.load(2, Ordering::Relaxed) != self.next
    }

    /// Requests a notification for the next request. Returns whether a request has arrived in the meantime, for which
    /// no notification may come.
    #[must_use]
    pub fn arm(&mut self) -> bool {
        if self.has_event_idx {
            self.used.store(4 + 8 * usize::from(self.size), self.next, Ordering::Relaxed);
        } else {
            self.used.store(0, 0, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        self.has_request()
    }

    /// Suppresses notifications. With notification indexes there is nothing to do: the index requested by the last
    /// [`arm`](Self::arm) has been passed.
    pub fn disarm(&mut self) {
        if !self.has_event_idx {
            self.used.store(0, QUIET, Ordering::Relaxed);
        }
    }
}

/// Finds the parts of a ring: descriptor table, driver's ring, back end's ring.
fn place(
    memory: &Memory,
    address: RingAddress,
    size: u16,
) -> Result<(Span, Span, Span), RingError> {
    let size = usize::from(size);
    let find = |addr, len, align| {
        memory.user_span(addr, len).filter(|span: &Span| span.is_aligned_to(align))
    };
    let descriptors = find(address.desc, DESCRIPTOR * size, 16).ok_or(RingError::Place)?;
    let available = find(address.avail, 6 + 2 * size, 2).ok_or(RingError::Place)?;
    let used = find(address.used, 6 + 8 * size, 4).ok_or(RingError::Place)?;
    Ok((descriptors, available, used))
}

/// A descriptor, copied from the guest.
struct Descriptor {
    piece: Piece,
    flags: u16,
    next: u16,
}

impl Descriptor {
    fn parse(bytes: &[u8; DESCRIPTOR]) -> Self {
        let [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, f0, f1, n0, n1] = *bytes;
        Self {
            piece: Piece {
                addr: u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
                len: u32::from_le_bytes([l0, l1, l2, l3]),
            },
            flags: u16::from_le_bytes([f0, f1]),
            next: u16::from_le_bytes([n0, n1]),
        }
    }
}

/// Reads the descriptors of a chain in an indirect table.
fn follow_table(memory: &Memory, table: Piece, chain: &mut Chain) -> Result<(), RingError> {
    let len = table.len as usize;
    let count = len / DESCRIPTOR;
    if len == 0 || !len.is_multiple_of(DESCRIPTOR) || count > MOST_DESCRIPTORS {
        return Err(RingError::Table);
    }
    let span = memory.span(table.addr, len).ok_or(RingError::Table)?;
    let mut at = 0;
    for _ in 0..count {
        let mut bytes = [0; DESCRIPTOR];
        span.read(at * DESCRIPTOR, &mut bytes);
        let Descriptor { piece, flags, next } = Descriptor::parse(&bytes);
        if flags & INDIRECT != 0 {
            return Err(RingError::Table);
        }
        chain.add(piece, flags & WRITE != 0)?;
        if flags & NEXT == 0 {
            return Ok(());
        }
        at = usize::from(next);
        if at >= count {
            return Err(RingError::Descriptor);
        }
    }
    Err(RingError::Endless)
}

#[cfg(test)]
mod tests;
