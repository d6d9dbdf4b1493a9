//! blktrace's records: versions 1 and 2 are read, version 1 is written. No I/O: bytes in, bytes out.
//!
//! A record is a header of fixed size and a payload of the length in the header. The magic number gives the byte order
//! of the machine that wrote the record; both orders are read, and that of this machine is written. For any bytes,
//! reading ends in a record or in an error that states the reason and the place.
//!
//! A [`Stream`] is a trace of a running queue as records, in the order of their times. An elevator reports an I/O when
//! it takes it in, which may be long after its arrival. So events wait for earlier ones, for a bounded time and up to a
//! bounded number. An event that comes later still is written out of order with its true time, which readers of traces
//! tolerate since several CPUs write them. The CPU of a record is the number of the elevator. Its process is the group,
//! named by the caller.

use blkmq_core::{GroupIndex, Instant, IoFlags, Nanos, Op, SECTOR_SIZE};
use blkmq_engine::{TraceEvent, TraceWhat};
use std::collections::{BTreeMap, BTreeSet};

/// The upper three bytes of the first word of every record.
const MAGIC: u32 = 0x6561_7400;
/// Bytes of a header of version 1.
pub const HEADER_1: usize = 48;
/// Bytes of a header of version 2.
pub const HEADER_2: usize = 64;
/// The longest payload that is accepted. The kernel's are up to some 150 bytes.
pub const MOST_PAYLOAD: usize = 4096;

/// A major number that Linux reserves for experiments, shifted as in [`Record::device`]; the minor number is below it.
pub const MAJOR: u32 = 240 << 20;
/// Bytes in the name of a process, including the terminating zero.
const NAME: usize = 16;

/// Encodes the payload of a record that names a process; a name that is too long is cut. Such a record has no act, and
/// only the category [`category::NOTIFY`].
#[must_use]
pub fn process_name(name: &str) -> [u8; NAME] {
    let mut payload = [0; NAME];
    let length = name.len().min(NAME - 1);
    payload[..length].copy_from_slice(&name.as_bytes()[..length]);
    payload
}

/// The kind of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// `Q`: an I/O was submitted.
    Queue = 1,
    /// `M`: an I/O joined a request at its end, or a request was fused into the one before it.
    BackMerge = 2,
    /// `F`: an I/O joined a request at its start.
    FrontMerge = 3,
    /// `G`: a request was allocated for an I/O.
    GetRequest = 4,
    /// `S`: an I/O waits for a request.
    Sleep = 5,
    /// `R`: a request was put back, to be issued later.
    Requeue = 6,
    /// `D`: a request was given to the device.
    Issue = 7,
    /// `C`: a request has ended.
    Complete = 8,
    /// `P`: a plug has its first request.
    Plug = 9,
    /// `U`: a plug is flushed; the payload is the number of requests in it.
    Unplug = 10,
    /// `T`: a plug is flushed because of a timer.
    UnplugTimer = 11,
    /// `I`: a request went into the scheduler.
    Insert = 12,
    /// `X`: an I/O was cut; the payload is the first sector of the rest.
    Split = 13,
    /// `B`: an I/O was copied to bounce pages.
    Bounce = 14,
    /// `A`: an I/O was redirected to another device.
    Remap = 15,
    /// A request was cancelled.
    Abort = 16,
    /// Data that only the driver understands.
    DriverData = 17,
}

impl Act {
    const ALL: [Self; 17] = [
        Self::Queue,
        Self::BackMerge,
        Self::FrontMerge,
        Self::GetRequest,
        Self::Sleep,
        Self::Requeue,
        Self::Issue,
        Self::Complete,
        Self::Plug,
        Self::Unplug,
        Self::UnplugTimer,
        Self::Insert,
        Self::Split,
        Self::Bounce,
        Self::Remap,
        Self::Abort,
        Self::DriverData,
    ];

    /// The category of every record of this kind.
    fn category(self) -> u32 {
        match self {
            Self::Requeue => category::REQUEUE,
            Self::Issue => category::ISSUE,
            Self::Complete => category::COMPLETE,
            Self::Split => 0,
            Self::DriverData => category::DRIVER_DATA,
            _ => category::QUEUE,
        }
    }
}

/// Bits that classify the event and its I/O; version 1 has 16 of them.
pub mod category {
    /// A read.
    pub const READ: u32 = 1;
    /// A write, or a discard.
    pub const WRITE: u32 = 1 << 1;
    /// A bare flush, or an I/O with a flush ahead of it.
    pub const FLUSH: u32 = 1 << 2;
    /// A thread waits for the I/O.
    pub const SYNC: u32 = 1 << 3;
    /// An event of queueing.
    pub const QUEUE: u32 = 1 << 4;
    /// An event of requeueing.
    pub const REQUEUE: u32 = 1 << 5;
    /// An event of issuing.
    pub const ISSUE: u32 = 1 << 6;
    /// An event of completion.
    pub const COMPLETE: u32 = 1 << 7;
    /// Not about an I/O: names of processes, messages.
    pub const NOTIFY: u32 = 1 << 10;
    /// Read-ahead.
    pub const AHEAD: u32 = 1 << 11;
    /// A discard.
    pub const DISCARD: u32 = 1 << 13;
    /// An event of a driver.
    pub const DRIVER_DATA: u32 = 1 << 14;
    /// Durable before it completes.
    pub const FUA: u32 = 1 << 15;
    /// Zeroes without data; version 2 only.
    pub const WRITE_ZEROES: u32 = 1 << 22;
}

/// The action word of version 1 for event `act` of such an I/O. Version 1 has no write of zeroes, which is encoded as a
/// write.
#[must_use]
pub fn action(act: Act, op: Op, flags: IoFlags) -> u32 {
    let way = match op {
        Op::Read => category::READ,
        Op::Write | Op::WriteZeroes => category::WRITE,
        Op::Discard => category::WRITE | category::DISCARD,
        Op::Flush => category::WRITE | category::FLUSH,
    };
    let bit = |flag, bit| if flags.contains(flag) { bit } else { 0 };
    let how = bit(IoFlags::PREFLUSH, category::FLUSH)
        | bit(IoFlags::FUA, category::FUA)
        | bit(IoFlags::SYNC, category::SYNC);
    (way | how | act.category()) << 16 | act as u32
}

/// The action word of a plug event, `act`.
#[must_use]
pub fn plug_action(act: Act) -> u32 {
    act.category() << 16 | act as u32
}

/// A record, of either version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Record<'a> {
    /// Counts the records of one CPU.
    pub sequence: u32,
    /// Nanoseconds since the trace began.
    pub time: u64,
    /// The first sector.
    pub sector: u64,
    /// The length in bytes.
    pub bytes: u32,
    /// The kind in the lower 16 bits, the categories above.
    pub action: u64,
    /// The pid of the process that caused the event.
    pub pid: u32,
    /// The major number from bit 20 on, the minor number below.
    pub device: u32,
    /// The CPU of the event.
    pub cpu: u32,
    /// An errno, or 0.
    pub error: u16,
    /// The payload; its meaning depends on the kind.
    pub payload: &'a [u8],
}

/// Why bytes are no trace. Offsets are in bytes from the beginning of the trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TraceError {
    /// A record does not begin with the magic number.
    #[error(
        "no blktrace record at byte {offset}: it begins with {found:#010x}; accepted is 0x65617407 \
         or 0x65617408, in either byte order"
    )]
    Magic {
        /// The place.
        offset: u64,
        /// The word found there.
        found: u32,
    },
    /// An unknown version.
    #[error(
        "the blktrace record at byte {offset} is of version {version}; accepted are 7 (v1) \
         and 8 (v2)"
    )]
    Version {
        /// The place.
        offset: u64,
        /// The version.
        version: u8,
    },
    /// The end comes before the end of a record.
    #[error(
        "the trace ends within the record at byte {offset}: {found} of its {wanted} bytes are there"
    )]
    Truncated {
        /// The beginning of the record.
        offset: u64,
        /// Its length in bytes.
        wanted: usize,
        /// The bytes that are left.
        found: usize,
    },
    /// More payload than any record has.
    #[error(
        "the record at byte {offset} claims {length} bytes of payload; accepted are up to \
         {MOST_PAYLOAD}"
    )]
    Payload {
        /// The beginning of the record.
        offset: u64,
        /// The payload length in its header.
        length: usize,
    },
}

/// Numbers in one of two byte orders, front to back.
struct Fields<'a> {
    bytes: &'a [u8],
    swapped: bool,
}

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (head, rest) = self.bytes.split_at(N);
        self.bytes = rest;
        let mut bytes: [u8; N] = head.try_into().expect("it was split there");
        if self.swapped {
            bytes.reverse();
        }
        bytes
    }

    fn u16(&mut self) -> u16 {
        u16::from_ne_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.take())
    }
}

impl<'a> Record<'a> {
    /// The kind of the event, or `None` if the record is not about an I/O or the kind is unknown.
    #[must_use]
    pub fn act(&self) -> Option<Act> {
        if self.has(category::NOTIFY) {
            return None;
        }
        // If bit 8 is set, a cgroup comes first in the payload.
        let act = self.action & 0xff;
        Act::ALL.into_iter().find(|known| *known as u64 == act)
    }

    /// Returns whether the record has all of these categories.
    #[must_use]
    pub fn has(&self, categories: u32) -> bool {
        self.action >> 16 & u64::from(categories) == u64::from(categories)
    }

    /// Appends the record, as version 1. Categories that this version does not have are left out.
    ///
    /// # Panics
    /// If the payload is longer than [`MOST_PAYLOAD`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        assert!(self.payload.len() <= MOST_PAYLOAD, "a payload of {} bytes", self.payload.len());
        out.extend_from_slice(&(MAGIC | 7).to_ne_bytes());
        out.extend_from_slice(&self.sequence.to_ne_bytes());
        out.extend_from_slice(&self.time.to_ne_bytes());
        out.extend_from_slice(&self.sector.to_ne_bytes());
        out.extend_from_slice(&self.bytes.to_ne_bytes());
        out.extend_from_slice(&(self.action as u32).to_ne_bytes());
        out.extend_from_slice(&self.pid.to_ne_bytes());
        out.extend_from_slice(&self.device.to_ne_bytes());
        out.extend_from_slice(&self.cpu.to_ne_bytes());
        out.extend_from_slice(&self.error.to_ne_bytes());
        out.extend_from_slice(&(self.payload.len() as u16).to_ne_bytes());
        out.extend_from_slice(self.payload);
    }

    /// Decodes the record at the beginning of `bytes`, which is at `offset` in a trace. Returns the record and its
    /// length in bytes, or `None` if `bytes` is empty.
    ///
    /// # Errors
    /// If the bytes are no record.
    pub fn decode(bytes: &'a [u8], offset: u64) -> Result<Option<(Self, usize)>, TraceError> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let found = bytes.len();
        let short = |wanted| TraceError::Truncated { offset, wanted, found };
        let first = bytes.first_chunk().ok_or_else(|| short(HEADER_1))?;
        let magic = u32::from_ne_bytes(*first);
        let swapped = match (magic, magic.swap_bytes()) {
            (native, _) if native & !0xff == MAGIC => false,
            (_, other) if other & !0xff == MAGIC => true,
            _ => return Err(TraceError::Magic { offset, found: magic }),
        };
        let version = if swapped { magic.swap_bytes() } else { magic } as u8;
        let header = match version {
            7 => HEADER_1,
            8 => HEADER_2,
            _ => return Err(TraceError::Version { offset, version }),
        };
        if found < header {
            return Err(short(header));
        }
        let mut fields = Fields { bytes: &bytes[4..header], swapped };
        let (sequence, time, sector) = (fields.u32(), fields.u64(), fields.u64());
        let length = fields.u32();
        let (action, pid) = if version == 7 {
            let action = fields.u32();
            (u64::from(action), fields.u32())
        } else {
            let pid = fields.u32();
            (fields.u64(), pid)
        };
        let (device, cpu, error) = (fields.u32(), fields.u32(), fields.u16());
        let payload = usize::from(fields.u16());
        if payload > MOST_PAYLOAD {
            return Err(TraceError::Payload { offset, length: payload });
        }
        let wanted = header + payload;
        let payload = bytes.get(header..wanted).ok_or_else(|| short(wanted))?;
        let bytes = length;
        let record =
            Self { sequence, time, sector, bytes, action, pid, device, cpu, error, payload };
        Ok(Some((record, wanted)))
    }
}

/// Decodes the records of a whole trace file, in order; an error ends the sequence.
pub fn records(bytes: &[u8]) -> impl Iterator<Item = Result<Record<'_>, TraceError>> {
    let (mut at, mut over) = (0, false);
    std::iter::from_fn(move || {
        if over {
            return None;
        }
        let next = Record::decode(&bytes[at..], at as u64);
        over = !matches!(next, Ok(Some(_)));
        let (record, length) = match next {
            Ok(next) => next?,
            Err(error) => return Some(Err(error)),
        };
        at += length;
        Some(Ok(record))
    })
}

/// The time that an event waits for earlier ones.
const HOLD: Nanos = Nanos::from_millis(100);
/// The most events that wait: some 4 MiB.
const MOST: usize = 1 << 16;

/// Converts events to records.
#[derive(Debug)]
pub struct Stream {
    device: u32,
    /// By time; events of the same time keep their order.
    waiting: BTreeMap<(Instant, u64), TraceEvent>,
    /// The number of events so far.
    pushed: u64,
    /// The number of records so far, by elevator.
    written: Vec<u32>,
    /// The groups whose names have been written.
    named: BTreeSet<GroupIndex>,
}

/// The waiting events that are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Those that have waited until this time, and those beyond the most that may wait.
    Until(Instant),
    /// All events: the trace has ended.
    End,
}

impl Stream {
    /// Creates a stream for the device with this minor number.
    #[must_use]
    pub fn new(minor: u16) -> Self {
        Self {
            device: MAJOR | u32::from(minor),
            waiting: BTreeMap::new(),
            pushed: 0,
            written: Vec::new(),
            named: BTreeSet::new(),
        }
    }

    /// Adds an event. O(log waiting).
    pub fn push(&mut self, event: TraceEvent) {
        self.waiting.insert((event.at, self.pushed), event);
        self.pushed += 1;
    }

    /// Appends the records of events that need not wait. Before the first record of a group comes its name, given by
    /// `name`.
    pub fn write(
        &mut self,
        order: Order,
        mut name: impl FnMut(GroupIndex) -> String,
        out: &mut Vec<u8>,
    ) {
        loop {
            let is_full = self.waiting.len() > MOST;
            let Some(first) = self.waiting.first_entry() else { break };
            let waits = match order {
                Order::Until(now) => now.since(first.get().at) < HOLD,
                Order::End => false,
            };
            if waits && !is_full {
                break;
            }
            let event = first.remove();
            if self.named.insert(event.group) {
                let payload = process_name(&name(event.group));
                let action = u64::from(category::NOTIFY) << 16;
                self.put(&event, Record { action, payload: &payload, ..self.plain(&event) }, out);
            }
            self.put(&event, self.about(&event), out);
        }
    }

    /// A record with the time and sector of `event`, without a payload.
    fn plain(&self, event: &TraceEvent) -> Record<'static> {
        Record {
            time: event.at.as_nanos(),
            pid: event.group.0.into(),
            device: self.device,
            cpu: event.elevator.into(),
            ..Record::default()
        }
    }

    fn about(&self, event: &TraceEvent) -> Record<'static> {
        let TraceEvent { what, op, flags, sector, sectors, .. } = *event;
        let act = match what {
            TraceWhat::Queued => Act::Queue,
            TraceWhat::Got => Act::GetRequest,
            TraceWhat::BackMerged => Act::BackMerge,
            TraceWhat::FrontMerged => Act::FrontMerge,
            TraceWhat::Inserted => Act::Insert,
            TraceWhat::Issued => Act::Issue,
            TraceWhat::Completed(_) => Act::Complete,
            TraceWhat::Requeued => Act::Requeue,
        };
        let error = match what {
            TraceWhat::Completed(Err(error)) => error.0,
            _ => 0,
        };
        let bytes = sectors.saturating_mul(SECTOR_SIZE);
        let action = action(act, op, flags).into();
        Record { sector, bytes, action, error, ..self.plain(event) }
    }

    /// Appends `record` with the next sequence number of its CPU.
    fn put(&mut self, event: &TraceEvent, record: Record<'_>, out: &mut Vec<u8>) {
        let cpu = usize::from(event.elevator);
        if self.written.len() <= cpu {
            self.written.resize(cpu + 1, 0);
        }
        self.written[cpu] = self.written[cpu].wrapping_add(1);
        Record { sequence: self.written[cpu], ..record }.encode(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::{IoError, IoFlags, Op};
    use proptest::prelude::*;

    fn record(payload: &[u8]) -> Record<'_> {
        Record {
            sequence: 7,
            time: 1_234_567,
            sector: 99,
            bytes: 4096,
            action: action(Act::Queue, Op::Read, IoFlags::SYNC).into(),
            pid: 12,
            device: 240 << 20,
            cpu: 3,
            error: 5,
            payload,
        }
    }

    fn encoded(record: &Record<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        bytes
    }

    /// Encodes the record in the given version, in the other byte order.
    fn swapped(record: &Record<'_>, version: u8) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut put = |number: &[u8]| bytes.extend(number.iter().rev());
        put(&(MAGIC | u32::from(version)).to_ne_bytes());
        put(&record.sequence.to_ne_bytes());
        put(&record.time.to_ne_bytes());
        put(&record.sector.to_ne_bytes());
        put(&record.bytes.to_ne_bytes());
        if version == 7 {
            put(&(record.action as u32).to_ne_bytes());
            put(&record.pid.to_ne_bytes());
        } else {
            put(&record.pid.to_ne_bytes());
            put(&record.action.to_ne_bytes());
        }
        put(&record.device.to_ne_bytes());
        put(&record.cpu.to_ne_bytes());
        put(&record.error.to_ne_bytes());
        put(&(record.payload.len() as u16).to_ne_bytes());
        if version == 8 {
            bytes.extend([0; 12]);
        }
        bytes.extend(record.payload);
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        for payload in [&b""[..], b"12345678"] {
            let record = record(payload);
            let bytes = encoded(&record);
            assert_eq!(bytes.len(), HEADER_1 + payload.len());
            assert_eq!(Record::decode(&bytes, 0), Ok(Some((record, bytes.len()))));
            for version in [7, 8] {
                let bytes = swapped(&record, version);
                assert_eq!(Record::decode(&bytes, 0), Ok(Some((record, bytes.len()))));
            }
        }
        assert_eq!(Record::decode(&[], 0), Ok(None));
    }

    #[test]
    fn what_happened_is_found_in_the_action() {
        for act in Act::ALL {
            let record =
                Record { action: action(act, Op::Write, IoFlags::FUA).into(), ..record(&[]) };
            assert_eq!(record.act(), Some(act));
            assert!(record.has(category::WRITE | category::FUA) && !record.has(category::READ));
        }
        let cgroup = record(&[]).action | 1 << 8;
        assert_eq!(Record { action: cgroup, ..record(&[]) }.act(), Some(Act::Queue));
        let notify = u64::from(category::NOTIFY) << 16;
        assert_eq!(Record { action: notify, ..record(&[]) }.act(), None);
        let unknown = Record { action: 40, ..record(&[]) };
        assert_eq!(unknown.act(), None);
    }

    #[test]
    fn every_beginning_of_a_record_is_truncated() {
        let bytes = encoded(&record(b"12345678"));
        for length in 1..bytes.len() {
            let error = Record::decode(&bytes[..length], 1000).expect_err("not all of it");
            let TraceError::Truncated { offset: 1000, found, wanted } = error else {
                panic!("{length} bytes: {error}")
            };
            assert!(found == length && wanted > found, "{error}");
        }
    }

    #[test]
    fn what_is_no_record_is_said_with_its_place() {
        let good = encoded(&record(b""));
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes.extend_from_slice(&good);
            bytes[HEADER_1 + at] = byte;
            let all: Vec<_> = records(&bytes).collect();
            assert_eq!(all.len(), 2, "the error is the last");
            assert_eq!(all[0], Ok(record(b"")));
            all[1].expect_err("the second one is broken").to_string()
        };
        let (version, last) = if cfg!(target_endian = "little") { (0, 3) } else { (3, 0) };
        let message = with(last, 0);
        assert!(message.starts_with("no blktrace record at byte 48: it begins with"), "{message}");
        assert!(with(version, 9).contains("at byte 48 is of version 9; accepted are 7 (v1) and 8"));
        // The most significant byte of the payload's length.
        let high = if cfg!(target_endian = "little") { 47 } else { 46 };
        assert!(
            with(high, 0xff).contains("claims 65280 bytes of payload; accepted are up to 4096")
        );
        assert!(with(high, 0x01).contains("48 of its 304 bytes are there"));
    }

    proptest! {
        /// For any bytes there is an answer, and records do not overlap or leave gaps.
        #[test]
        fn any_bytes_have_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..400), at in 0usize..300) {
            let mut mixed = encoded(&record(b"payload"));
            mixed.extend_from_slice(&bytes);
            let end = mixed.len();
            mixed[at.min(end - 1)] ^= 0x55;
            for bytes in [&bytes, &mixed] {
                let mut used = 0;
                for record in records(bytes) {
                    match record {
                        Ok(record) => used += HEADER_1 + record.payload.len(),
                        Err(TraceError::Truncated { offset, wanted, found }) => {
                            prop_assert!(wanted > found && offset as usize + found == bytes.len());
                        }
                        Err(_) => {}
                    }
                }
                prop_assert!(used <= bytes.len());
            }
        }
    }

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    fn event(us: u64, elevator: u16, what: TraceWhat) -> TraceEvent {
        let (group, flags) = (GroupIndex(7), IoFlags::SYNC);
        TraceEvent {
            at: at(us),
            what,
            elevator,
            group,
            op: Op::Read,
            flags,
            sector: us,
            sectors: 8,
        }
    }

    fn told(bytes: &[u8]) -> Vec<(u64, u32, u32, Option<Act>)> {
        let all = records(bytes).map(|it| it.expect("written here"));
        all.map(|it| (it.time / 1000, it.cpu, it.sequence, it.act())).collect()
    }

    #[test]
    fn events_of_several_elevators_go_out_in_the_order_of_their_times() {
        let mut stream = Stream::new(2);
        for (us, elevator, what) in [
            (10, 0, TraceWhat::Issued),
            (30, 0, TraceWhat::Completed(Err(IoError::IO))),
            (5, 1, TraceWhat::Queued),
            (10, 1, TraceWhat::Got),
        ] {
            stream.push(event(us, elevator, what));
        }
        let mut out = Vec::new();
        let name = |group: GroupIndex| format!("group {}", group.0);
        stream.write(Order::Until(at(100_009)), name, &mut out);
        assert_eq!(told(&out), [(5, 1, 1, None), (5, 1, 2, Some(Act::Queue))]);
        stream.write(Order::Until(at(100_010)), name, &mut out);
        stream.write(Order::End, name, &mut out);
        let rest = [
            (10, 0, 1, Some(Act::Issue)),
            (10, 1, 3, Some(Act::GetRequest)),
            (30, 0, 2, Some(Act::Complete)),
        ];
        assert_eq!(told(&out)[2..], rest);
        let all: Vec<_> = records(&out).map(|it| it.expect("written here")).collect();
        assert_eq!(&all[0].payload[..7], b"group 7");
        assert!(all.iter().all(|it| it.pid == 7 && it.device == MAJOR | 2));
        assert_eq!((all[4].error, all[4].bytes, all[4].sector), (IoError::IO.0, 4096, 30));
    }

    #[test]
    fn no_more_events_wait_than_there_is_room_for() {
        let mut stream = Stream::new(0);
        let (mut out, count) = (Vec::new(), MOST as u64 + 100);
        (0..count).for_each(|n| stream.push(event(n, 0, TraceWhat::Queued)));
        stream.write(Order::Until(at(0)), |_| String::new(), &mut out);
        // A name, and the oldest 100 records; the others have not waited long enough.
        assert_eq!(records(&out).count(), 101);
        assert_eq!(stream.waiting.len(), MOST);
        let last = told(&out).pop().expect("there are some");
        assert_eq!(last, (99, 0, 101, Some(Act::Queue)));
    }

    #[test]
    fn an_event_that_comes_too_late_keeps_its_time() {
        let mut stream = Stream::new(0);
        let mut out = Vec::new();
        stream.push(event(500, 0, TraceWhat::Issued));
        stream.write(Order::End, |_| String::new(), &mut out);
        stream.push(event(2, 0, TraceWhat::Queued));
        stream.write(Order::End, |_| String::new(), &mut out);
        assert_eq!(told(&out)[1..], [(500, 0, 2, Some(Act::Issue)), (2, 0, 3, Some(Act::Queue))]);
    }
}
