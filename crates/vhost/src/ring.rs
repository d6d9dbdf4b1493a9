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

    fn follow(&self, memory: &Memory, head: u16, chain: &mut Chain) -> Result<(), RingError> {
        chain.clear(head);
        follow(&self.descriptors, self.size.into(), head.into(), Some(memory), chain)
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

/// Reads each descriptor of a chain once, from number `at` of a table with `count` of them. An indirect table is in
/// `memory`; it has no further one.
fn follow(
    table: &Span,
    count: usize,
    mut at: usize,
    memory: Option<&Memory>,
    chain: &mut Chain,
) -> Result<(), RingError> {
    for _ in 0..count {
        let mut bytes = [0; DESCRIPTOR];
        table.read(at * DESCRIPTOR, &mut bytes);
        let Descriptor { piece, flags, next } = Descriptor::parse(&bytes);
        if flags & INDIRECT != 0 {
            let (Some(memory), 0) = (memory, flags & NEXT) else { return Err(RingError::Table) };
            return follow_table(memory, piece, chain);
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

/// Reads the descriptors of a chain in an indirect table.
fn follow_table(memory: &Memory, table: Piece, chain: &mut Chain) -> Result<(), RingError> {
    let len = table.len as usize;
    let count = len / DESCRIPTOR;
    if len == 0 || !len.is_multiple_of(DESCRIPTOR) || count > MOST_DESCRIPTORS {
        return Err(RingError::Table);
    }
    let span = memory.span(table.addr, len).ok_or(RingError::Table)?;
    follow(&span, count, 0, None, chain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::RegionInfo;
    use crate::request::{self, Request, Status};
    use proptest::prelude::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    const SIZE: u16 = 8;
    const BYTES: u64 = 0x1_0000;
    /// The offset of the guest's memory in the front end's address space.
    const USER: u64 = 0x7000_0000;
    const DESC: u64 = 0x1000;
    const AVAIL: u64 = 0x2000;
    const USED: u64 = 0x3000;
    const DATA: u64 = 0x4000;

    fn memory() -> Memory {
        let file = memfd_create(c"guest", MemfdFlags::CLOEXEC).expect("a file in memory");
        ftruncate(&file, BYTES).expect("it can grow");
        let mut memory = Memory::default();
        let region = RegionInfo { guest: 0, size: BYTES, user: USER, offset: 0 };
        memory.add(region, &file).expect("a region");
        memory
    }

    const PLACE: RingAddress =
        RingAddress { desc: USER + DESC, avail: USER + AVAIL, used: USER + USED };

    /// The guest's side.
    struct Driver {
        memory: Memory,
        /// The index of the driver's ring.
        index: u16,
        /// The number of answers seen.
        seen: u16,
    }

    impl Driver {
        fn new() -> (Self, Ring) {
            Self::with(false, None)
        }

        fn with(has_event_idx: bool, record: Option<Span>) -> (Self, Ring) {
            let memory = memory();
            let ring = Ring::new(&memory, PLACE, SIZE.into(), 0, has_event_idx, record);
            (Self { memory, index: 0, seen: 0 }, ring.expect("a ring"))
        }

        fn put(&self, at: u64, bytes: &[u8]) {
            assert!(self.memory.write(at, bytes));
        }

        fn number(&self, at: u64) -> u16 {
            let mut bytes = [0; 2];
            assert!(self.memory.read(at, &mut bytes));
            u16::from_le_bytes(bytes)
        }

        /// Writes descriptor `at` of the table at `table`.
        fn describe(&self, table: u64, at: u16, (addr, len, flags, next): (u64, u32, u16, u16)) {
            let mut bytes = addr.to_le_bytes().to_vec();
            bytes.extend(len.to_le_bytes());
            bytes.extend(flags.to_le_bytes());
            bytes.extend(next.to_le_bytes());
            self.put(table + u64::from(at) * 16, &bytes);
        }

        /// Makes the chain that begins with `head` available.
        fn offer(&mut self, head: u16) {
            let at = u64::from(self.index % SIZE);
            self.put(AVAIL + 4 + 2 * at, &head.to_le_bytes());
            self.index = self.index.wrapping_add(1);
            self.put(AVAIL + 2, &self.index.to_le_bytes());
        }

        /// The answers since the last call: heads and lengths.
        fn answers(&mut self) -> Vec<(u32, u32)> {
            let mut all = Vec::new();
            while self.seen != self.number(USED + 2) {
                let mut pair = [0; 8];
                assert!(self.memory.read(USED + 4 + 8 * u64::from(self.seen % SIZE), &mut pair));
                let half =
                    |at: usize| u32::from_le_bytes(pair[at..at + 4].try_into().expect("four"));
                all.push((half(0), half(4)));
                self.seen = self.seen.wrapping_add(1);
            }
            all
        }

        /// Offers a read of 512 bytes whose descriptors begin at `head`.
        fn read(&mut self, head: u16) {
            self.put(DATA, &[0; 16]);
            self.describe(DESC, head, (DATA, 16, NEXT, head + 1));
            self.describe(DESC, head + 1, (DATA + 0x100, 512, NEXT | WRITE, head + 2));
            self.describe(DESC, head + 2, (DATA + 0x400, 1, WRITE, 0));
            self.offer(head);
        }
    }

    fn take(driver: &Driver, ring: &mut Ring) -> Result<Option<Chain>, RingError> {
        let mut chain = Chain::default();
        ring.take(&driver.memory, &mut chain).map(|taken| taken.then_some(chain))
    }

    #[test]
    fn requests_pass_through_the_ring_many_times_around() {
        for has_event_idx in [false, true] {
            let (mut driver, mut ring) = Driver::with(has_event_idx, None);
            for turn in 0..70_000_u32 {
                driver.read(0);
                driver.read(3);
                for head in [0, 3] {
                    let chain = take(&driver, &mut ring).expect("a good ring").expect("a request");
                    assert_eq!((chain.head(), chain.readable(), chain.writable()), (head, 16, 513));
                    let asked = request::parse(&chain, &driver.memory).expect("a request");
                    assert_eq!(asked.request, Ok(Request::Read { at: 0, len: 512 }));
                    assert!(chain.write(&driver.memory, 0, &turn.to_le_bytes()));
                    ring.give(head, request::answer(&chain, &driver.memory, Status::Ok, 512));
                }
                assert_eq!(
                    take(&driver, &mut ring).expect("a good ring").map(|it| it.head()),
                    None
                );
                assert_eq!(driver.answers(), [], "nothing is seen before it is published");
                let _ = ring.publish();
                assert_eq!(driver.answers(), [(0, 513), (3, 513)]);
            }
        }
    }

    /// The driver announces the index of the answer that it waits for.
    #[test]
    fn a_notification_is_left_out_that_nobody_waits_for() {
        let (mut driver, mut ring) = Driver::with(true, None);
        let mut answer = |driver: &mut Driver, event: u16| {
            driver.read(0);
            let _ = take(driver, &mut ring).expect("a good ring").expect("a request");
            driver.put(AVAIL + 4 + 2 * u64::from(SIZE), &event.to_le_bytes());
            ring.give(0, 1);
            ring.publish()
        };
        assert!(answer(&mut driver, 0), "the first answer is waited for");
        assert!(!answer(&mut driver, 5));
        assert!(answer(&mut driver, 2));
        assert!(!ring.publish(), "there is no new answer");
        let (mut driver, mut ring) = Driver::new();
        for (flags, expected) in [(0_u16, true), (QUIET, false)] {
            driver.put(AVAIL, &flags.to_le_bytes());
            driver.read(0);
            let _ = take(&driver, &mut ring).expect("a good ring").expect("a request");
            ring.give(0, 1);
            assert_eq!(ring.publish(), expected);
        }
    }

    #[test]
    fn a_ring_that_is_armed_says_what_came_before() {
        for has_event_idx in [false, true] {
            let (mut driver, mut ring) = Driver::with(has_event_idx, None);
            assert!(!ring.arm());
            ring.disarm();
            assert_eq!(driver.number(USED), if has_event_idx { 0 } else { QUIET });
            driver.read(0);
            assert!(ring.arm(), "no kick will come for it");
            assert_eq!(driver.number(USED), 0);
            let _ = take(&driver, &mut ring).expect("a good ring").expect("a request");
            assert!(!ring.arm());
            let event = driver.number(USED + 4 + 8 * u64::from(SIZE));
            assert_eq!(event, u16::from(has_event_idx));
        }
    }

    #[test]
    fn a_table_of_descriptors_is_followed() {
        let (mut driver, mut ring) = Driver::new();
        let table = 0x8000;
        for at in 0..40 {
            let flags = if at < 20 { NEXT } else { NEXT | WRITE };
            let flags = if at == 39 { WRITE } else { flags };
            driver.describe(table, at, (DATA + u64::from(at), 1, flags, at + 1));
        }
        driver.describe(DESC, 5, (table, 40 * 16, INDIRECT, 0));
        driver.offer(5);
        let chain = take(&driver, &mut ring).expect("a good ring").expect("a request");
        assert_eq!((chain.head(), chain.readable(), chain.writable()), (5, 20, 20));
        let mut header = [0; 16];
        driver.put(DATA, b"0123456789abcdefghij");
        assert!(chain.read(&driver.memory, 2, &mut header));
        assert_eq!(&header, b"23456789abcdefgh");
        assert!(!chain.read(&driver.memory, 5, &mut header), "there are too few");
    }

    #[test]
    fn a_driver_that_breaks_a_rule_is_told_of() {
        let broken = |break_it: &dyn Fn(&mut Driver)| {
            let (mut driver, mut ring) = Driver::new();
            break_it(&mut driver);
            let mut chain = Chain::default();
            let taken = ring.take(&driver.memory, &mut chain);
            taken
                .and_then(|_| request::parse(&chain, &driver.memory))
                .expect_err("a rule is broken")
        };
        let first = |descriptor| {
            broken(&|driver| {
                driver.describe(DESC, 0, descriptor);
                driver.offer(0);
            })
        };
        assert_eq!(broken(&|driver| driver.put(AVAIL + 2, &[9, 0])), RingError::Index);
        assert_eq!(broken(&|driver| driver.offer(SIZE)), RingError::Descriptor);
        assert_eq!(first((DATA, 16, NEXT, SIZE)), RingError::Descriptor);
        assert_eq!(first((DATA, 16, NEXT, 0)), RingError::Endless);
        assert_eq!(first((DATA, 17, INDIRECT, 0)), RingError::Table);
        assert_eq!(first((DATA, 0, INDIRECT, 0)), RingError::Table);
        assert_eq!(first((DATA, 16, INDIRECT | NEXT, 0)), RingError::Table);
        assert_eq!(first((BYTES - 8, 16, INDIRECT, 0)), RingError::Table);
        assert_eq!(first((DATA, 16 * 4096, INDIRECT, 0)), RingError::Table);
        assert_eq!(first((DATA, 16, 0, 0)), RingError::Request, "no status");
        assert_eq!(first((DATA, 16, WRITE, 0)), RingError::Request, "no header");
        assert_eq!(first((u64::MAX, 16, WRITE, 0)), RingError::Request);
        let order = broken(&|driver| {
            driver.describe(DESC, 0, (DATA, 16, NEXT | WRITE, 1));
            driver.describe(DESC, 1, (DATA, 16, 0, 0));
            driver.offer(0);
        });
        assert_eq!(order, RingError::Order);
        let nested = broken(&|driver| {
            driver.describe(DESC, 0, (DATA, 16, INDIRECT, 0));
            driver.describe(DATA, 0, (DATA, 16, INDIRECT, 0));
            driver.offer(0);
        });
        assert_eq!(nested, RingError::Table);
    }

    #[test]
    fn a_ring_that_is_nowhere_is_refused() {
        let memory = memory();
        let ring = |address, size| Ring::new(&memory, address, size, 0, false, None).map(|_| ());
        assert_eq!(ring(PLACE, 8), Ok(()));
        for size in [0, 3, 65_536] {
            assert_eq!(ring(PLACE, size), Err(RingError::Size(size)));
        }
        for address in [
            RingAddress { desc: USER + BYTES - 8, ..PLACE },
            RingAddress { avail: USER - 2, ..PLACE },
            RingAddress { used: u64::MAX, ..PLACE },
            RingAddress { desc: USER + 8, ..PLACE },
            RingAddress { avail: USER + AVAIL + 1, ..PLACE },
            RingAddress { used: USER + USED + 2, ..PLACE },
        ] {
            assert_eq!(ring(address, 8), Err(RingError::Place), "{address:?}");
        }
    }

    /// Requests in flight are taken again before new ones, oldest first.
    #[test]
    fn a_back_end_that_follows_takes_up_requests_in_flight() {
        let (records, _) = crate::inflight::Records::create(1, SIZE).expect("memory");
        let (mut driver, mut first) = Driver::with(false, records.of(0));
        for head in [0, 3] {
            driver.read(head);
            let _ = take(&driver, &mut first).expect("a good ring").expect("a request");
        }
        first.give(3, 1);
        let _ = first.publish();
        driver.read(3);
        drop(first);
        let mut second = Ring::new(&driver.memory, PLACE, SIZE.into(), 77, false, records.of(0))
            .expect("a ring");
        assert!(second.owes() && second.arm());
        for head in [0, 3] {
            let chain = take(&driver, &mut second).expect("a good ring").expect("a request");
            assert_eq!(chain.head(), head);
            second.give(head, 1);
        }
        assert!(!second.owes());
        let _ = second.publish();
        assert_eq!(driver.answers(), [(3, 1), (0, 1), (3, 1)]);
        assert_eq!(second.base(), driver.index);
    }

    proptest! {
        /// If a guest writes anything anywhere, the result is an answer or an error, but not a panic.
        #[test]
        fn a_hostile_ring_is_an_error(
            writes in prop::collection::vec((0x1000_u64..0x5000, any::<u64>()), 0..60),
            heads in prop::collection::vec(0_u16..10, 1..8),
        ) {
            let (mut driver, mut ring) = Driver::new();
            driver.read(0);
            for (at, value) in writes {
                driver.put(at, &value.to_le_bytes());
            }
            heads.into_iter().for_each(|head| driver.offer(head));
            let mut chain = Chain::default();
            for _ in 0..10 {
                match ring.take(&driver.memory, &mut chain) {
                    Ok(true) => {
                        if request::parse(&chain, &driver.memory).is_ok() {
                            let written = request::answer(&chain, &driver.memory, Status::Ok, 0);
                            ring.give(chain.head(), written);
                            let _ = ring.publish();
                        }
                    }
                    Ok(false) | Err(_) => break,
                }
            }
        }

        /// A header may be divided into any number of descriptors.
        #[test]
        fn a_request_is_gathered_from_any_division(cuts in prop::collection::vec(1_u32..40, 1..20), kind in 0_u32..2) {
            let (mut driver, mut ring) = Driver::new();
            let mut bytes = kind.to_le_bytes().to_vec();
            bytes.extend((3_u32 << 13 | 5).to_le_bytes());
            bytes.extend(2_u64.to_le_bytes());
            bytes.resize(if kind == 1 { 16 + 512 } else { 16 }, 7);
            let (mut at, mut pieces) = (0, Vec::new());
            for cut in cuts.into_iter().chain([u32::MAX]) {
                let len = (bytes.len() as u64 - at).min(cut.into());
                if len > 0 {
                    pieces.push((DATA + at, len as u32, 0));
                }
                at += len;
            }
            driver.put(DATA, &bytes);
            let data = if kind == 0 { 512 } else { 0 };
            pieces.push((DATA + 0x1000, data + 1, WRITE));
            let last = pieces.len() as u16 - 1;
            for (at, (addr, len, flags)) in (0..).zip(pieces) {
                let flags = if at == last { flags } else { flags | NEXT };
                driver.describe(0x8000, at, (addr, len, flags, at + 1));
            }
            driver.describe(DESC, 0, (0x8000, (u32::from(last) + 1) * 16, INDIRECT, 0));
            driver.offer(0);
            let chain = take(&driver, &mut ring).expect("a good ring").expect("a request");
            let asked = request::parse(&chain, &driver.memory).expect("a request");
            let expected = match kind {
                0 => Request::Read { at: 1024, len: 512 },
                _ => Request::Write { at: 1024, len: 512 },
            };
            prop_assert_eq!(asked.request, Ok(expected));
            prop_assert_eq!(asked.ioprio, 3 << 13 | 5);
        }
    }

    /// Each kind of request, and the status of those that are impossible.
    #[test]
    fn requests_are_read_as_the_specification_has_them() {
        let ask = |kind: u32, sector: u64, data: &[u8], room: u32| {
            let (mut driver, mut ring) = Driver::new();
            let mut bytes = kind.to_le_bytes().to_vec();
            bytes.extend([0; 4]);
            bytes.extend(sector.to_le_bytes());
            bytes.extend(data);
            driver.put(DATA, &bytes);
            driver.describe(DESC, 0, (DATA, bytes.len() as u32, NEXT, 1));
            driver.describe(DESC, 1, (DATA + 0x1000, room + 1, WRITE, 0));
            driver.offer(0);
            let chain = take(&driver, &mut ring).expect("a good ring").expect("a request");
            request::parse(&chain, &driver.memory).expect("a request").request
        };
        let range = |sector: u64, sectors: u32, flags: u32| {
            let mut bytes = sector.to_le_bytes().to_vec();
            bytes.extend(sectors.to_le_bytes());
            bytes.extend(flags.to_le_bytes());
            bytes
        };
        assert_eq!(ask(0, 3, &[], 1024), Ok(Request::Read { at: 1536, len: 1024 }));
        assert_eq!(ask(1, 3, &[0; 512], 0), Ok(Request::Write { at: 1536, len: 512 }));
        assert_eq!(ask(4, 0, &[], 0), Ok(Request::Flush));
        assert_eq!(ask(8, 0, &[], 20), Ok(Request::GetId));
        assert_eq!(ask(11, 0, &range(1, 2, 0), 0), Ok(Request::Discard { at: 512, len: 1024 }));
        let zeroes = |no_hole| Ok(Request::WriteZeroes { at: 512, len: 1024, no_hole });
        assert_eq!(ask(13, 0, &range(1, 2, 0), 0), zeroes(true));
        assert_eq!(ask(13, 0, &range(1, 2, 1), 0), zeroes(false));
        assert_eq!(ask(0, u64::MAX, &[], 512), Err(Status::IoError));
        assert_eq!(ask(0, 0, &[], 511), Err(Status::IoError));
        assert_eq!(ask(1, 0, &[], 0), Err(Status::IoError));
        assert_eq!(ask(8, 0, &[], 19), Err(Status::IoError));
        assert_eq!(ask(11, 0, &range(1, 2, 1), 0), Err(Status::Unsupported));
        assert_eq!(ask(13, 0, &range(1, 2, 2), 0), Err(Status::Unsupported));
        assert_eq!(ask(11, 0, &[0; 15], 0), Err(Status::IoError));
        assert_eq!(ask(11, 0, &range(u64::MAX, 1, 0), 0), Err(Status::IoError));
        assert_eq!(ask(14, 0, &[], 0), Err(Status::Unsupported));
    }
}
