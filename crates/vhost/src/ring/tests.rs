//! Rings with a driver that writes them as the specification says.

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
            let half = |at: usize| u32::from_le_bytes(pair[at..at + 4].try_into().expect("four"));
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
            assert_eq!(take(&driver, &mut ring).expect("a good ring").map(|it| it.head()), None);
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
        taken.and_then(|_| request::parse(&chain, &driver.memory)).expect_err("a rule is broken")
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
    let mut second =
        Ring::new(&driver.memory, PLACE, SIZE.into(), 77, false, records.of(0)).expect("a ring");
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
