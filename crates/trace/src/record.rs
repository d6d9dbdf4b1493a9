//! blktrace's records: versions 1 and 2 are read, version 1 is written. No I/O: bytes in, bytes out.
//!
//! A record is a header of fixed size and a payload of the length in the header. The magic number gives the byte
//! order of the machine that wrote the record; both orders are read, and that of this machine is written. For any
//! bytes, reading ends in a record or in an error that states the reason and the place.

use blkmq_core::{IoFlags, Op};
use std::fmt;

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
            Self::Queue
            | Self::BackMerge
            | Self::FrontMerge
            | Self::GetRequest
            | Self::Sleep
            | Self::Plug
            | Self::Unplug
            | Self::UnplugTimer
            | Self::Insert
            | Self::Bounce
            | Self::Remap
            | Self::Abort => category::QUEUE,
            Self::Requeue => category::REQUEUE,
            Self::Issue => category::ISSUE,
            Self::Complete => category::COMPLETE,
            Self::Split => 0,
            Self::DriverData => category::DRIVER_DATA,
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TraceError {
    /// A record does not begin with the magic number.
    Magic {
        /// The place.
        offset: u64,
        /// The word found there.
        found: u32,
    },
    /// An unknown version.
    Version {
        /// The place.
        offset: u64,
        /// The version.
        version: u8,
    },
    /// The end comes before the end of a record.
    Truncated {
        /// The beginning of the record.
        offset: u64,
        /// Its length in bytes.
        wanted: usize,
        /// The bytes that are left.
        found: usize,
    },
    /// More payload than any record has.
    Payload {
        /// The beginning of the record.
        offset: u64,
        /// The payload length in its header.
        length: usize,
    },
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Magic { offset, found } => write!(
                f,
                "no blktrace record at byte {offset}: it begins with {found:#010x}; accepted is 0x65617407 or \
                 0x65617408, in either byte order"
            ),
            Self::Version { offset, version } => write!(
                f,
                "the blktrace record at byte {offset} is of version {version}; accepted are 7 (v1) and 8 (v2)"
            ),
            Self::Truncated { offset, wanted, found } => write!(
                f,
                "the trace ends within the record at byte {offset}: {found} of its {wanted} bytes are there"
            ),
            Self::Payload { offset, length } => write!(
                f,
                "the record at byte {offset} claims {length} bytes of payload; accepted are up to {MOST_PAYLOAD}"
            ),
        }
    }
}

impl std::error::Error for TraceError {}

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

#[cfg(test)]
mod tests;
