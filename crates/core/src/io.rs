//! One I/O: the part that policies see, without buffers, completion route or tag; and its [`Payload`], the operations
//! on its bytes.
//!
//! The priority of an I/O is encoded as in Linux, `class << 13 | hint << 3 | level`; its [`Deadline`] is the time that
//! it may take. Offsets and lengths on a device, in bytes or in sectors, are distinct types, so that they are not
//! confused with each other or with a cookie. An [`Extent`] is an allocated or unallocated stretch of a device.
//!
//! Policies never see payloads, and the engine only moves, divides and rejoins them. A device sees them by shared
//! reference while it has the request, so a payload that is read into needs a cell; [`Buffer`] is the simplest.

use crate::{Instant, Nanos, SECTOR_SIZE};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::fmt;
use core::ops::BitOr;

/// The operation of an I/O.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Op {
    /// Read data.
    Read = 0,
    /// Write data.
    Write = 1,
    /// Make every completed write durable. Carries no sectors and never enters a scheduler. Devices without a
    /// volatile cache never get one.
    Flush = 2,
    /// Forget a range.
    Discard = 3,
    /// Write zeroes without sending them. Never merges.
    WriteZeroes = 4,
}

impl Op {
    /// Any operation that changes the device counts as a write for direction, discard included.
    #[must_use]
    pub const fn is_write(self) -> bool {
        !matches!(self, Self::Read)
    }
}

/// Modifiers of an I/O; a set of bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct IoFlags(u8);

impl IoFlags {
    /// No flags.
    pub const NONE: Self = Self(0);
    /// A submitter waits for it. Every read is sync unless it is read-ahead.
    pub const SYNC: Self = Self(1);
    /// Durable before it completes.
    pub const FUA: Self = Self(1 << 1);
    /// Everything completed earlier is durable before it starts.
    pub const PREFLUSH: Self = Self(1 << 2);
    /// Never merge it.
    pub const NOMERGE: Self = Self(1 << 3);
    /// Refuse the I/O if it would have to be divided, the only thing that submission could wait for.
    pub const NOWAIT: Self = Self(1 << 4);
    /// Keep the room of written zeroes allocated, instead of leaving a hole. Ignored by devices that do not support it.
    pub const NOUNMAP: Self = Self(1 << 5);

    /// The union of both, like `|`, for use in constants.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The bits that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns whether all bits of `other` are set here.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether any bit of `other` is set here.
    #[must_use]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for IoFlags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

/// The part of an I/O, or of a request made of several, that a policy may see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoMeta {
    /// First sector.
    pub sector: u64,
    /// Length in sectors; grows when neighbours merge.
    pub sectors: u32,
    /// The owner that the I/O is accounted to.
    pub owner: Owner,
    /// The owner's group.
    pub group: GroupIndex,
    /// The arrival time of the oldest part.
    pub arrived: Instant,
    /// Scatter-gather segments, or ranges for a discard.
    pub segments: u16,
    /// The hardware queue that the submitter maps to. Another one may ask a queue-wide policy for the request.
    pub hw: HwQueue,
    /// Priority class and level.
    pub ioprio: IoPrio,
    /// The operation.
    pub op: Op,
    /// Its flags.
    pub flags: IoFlags,
    /// Expected lifetime of written data, as Linux numbers write hints; 0 is "not set".
    pub write_hint: u8,
    /// The time that the I/O may take; for a request of several I/Os, that of the first.
    pub deadline: Deadline,
}

impl IoMeta {
    /// An I/O of `sectors` sectors at `sector`, one segment, with every other field at its default.
    #[must_use]
    pub const fn new(op: Op, sector: u64, sectors: u32) -> Self {
        let flags = if matches!(op, Op::Read) { IoFlags::SYNC } else { IoFlags::NONE };
        Self {
            sector,
            sectors,
            owner: Owner(0),
            group: GroupIndex::ROOT,
            arrived: Instant::ZERO,
            segments: 1,
            hw: HwQueue(0),
            ioprio: IoPrio::from_bits(0),
            op,
            flags,
            write_hint: 0,
            deadline: Deadline::NONE,
        }
    }

    /// The sector behind the last one.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.sector + self.sectors as u64
    }

    /// Returns whether this is a sync read, which depth limits never hold back.
    #[must_use]
    pub const fn is_sync_read(&self) -> bool {
        matches!(self.op, Op::Read) && self.flags.contains(IoFlags::SYNC)
    }
}

/// The error of a failed I/O: an errno, as the block layer's callers expect it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct IoError(pub u16);

impl IoError {
    /// `EIO`: the medium or the transport failed.
    pub const IO: Self = Self(5);
    /// `EAGAIN`: the I/O would have had to wait, which its flags forbid.
    pub const AGAIN: Self = Self(11);
    /// `EBUSY`: the I/O would have ended after its deadline.
    pub const BUSY: Self = Self(16);
    /// `EINVAL`: the device cannot do this I/O.
    pub const INVALID: Self = Self(22);
    /// `ENOSPC`: beyond the end, or no room.
    pub const NO_SPACE: Self = Self(28);
    /// `EILSEQ`: the contents do not match their checksum.
    pub const PROTECTION: Self = Self(84);
    /// `EOPNOTSUPP`: the device does not have this operation.
    pub const NOT_SUPPORTED: Self = Self(95);
    /// `ETIMEDOUT`: the device did not answer.
    pub const TIMED_OUT: Self = Self(110);
    /// `ECANCELED`: the I/O was not done because its submitter gave it up, or the queue went away.
    pub const CANCELLED: Self = Self(125);
    /// `ENOTRECOVERABLE`: a policy or a device of the queue panicked. The I/O may have been done.
    pub const POISONED: Self = Self(131);

    /// Returns whether the same request may succeed if it is tried again. True after a failure of the medium, a failure
    /// of the transport or a timeout; false if the device cannot do the request or if it was cancelled.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        matches!(self, Self::IO | Self::TIMED_OUT)
    }

    /// Returns whether the error may concern only a part of a request, such as one bad sector. False after a timeout,
    /// or if the request was ended without the device.
    #[must_use]
    pub const fn may_be_partial(self) -> bool {
        !matches!(self, Self::TIMED_OUT | Self::CANCELLED | Self::POISONED)
    }
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::IO => f.write_str("I/O error"),
            Self::AGAIN => f.write_str("would have to wait"),
            Self::BUSY => f.write_str("would end after its deadline"),
            Self::INVALID => f.write_str("invalid request"),
            Self::NO_SPACE => f.write_str("no space"),
            Self::PROTECTION => f.write_str("contents do not match their checksum"),
            Self::NOT_SUPPORTED => f.write_str("operation not supported"),
            Self::TIMED_OUT => f.write_str("timed out"),
            Self::CANCELLED => f.write_str("cancelled"),
            Self::POISONED => f.write_str("a policy or a device of the queue panicked"),
            Self(errno) => write!(f, "errno {errno}"),
        }
    }
}

/// Names the errnos that the library itself returns: `IoError(EINVAL)`.
impl fmt::Debug for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Self::IO => "EIO",
            Self::AGAIN => "EAGAIN",
            Self::BUSY => "EBUSY",
            Self::INVALID => "EINVAL",
            Self::NO_SPACE => "ENOSPC",
            Self::PROTECTION => "EILSEQ",
            Self::NOT_SUPPORTED => "EOPNOTSUPP",
            Self::TIMED_OUT => "ETIMEDOUT",
            Self::CANCELLED => "ECANCELED",
            Self::POISONED => "ENOTRECOVERABLE",
            Self(errno) => return write!(f, "IoError({errno})"),
        };
        write!(f, "IoError({name})")
    }
}

impl core::error::Error for IoError {}

/// The result of an I/O.
pub type IoResult = Result<(), IoError>;

/// A priority class. An I/O without a class carries `None`; policies treat it as best-effort (`spec/mq-deadline.md`
/// section 2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum Class {
    /// No class given.
    #[default]
    None = 0,
    /// Before all others.
    Realtime = 1,
    /// The ordinary class.
    BestEffort = 2,
    /// Served only when no other class wants the device.
    Idle = 3,
}

/// An I/O priority value, bit for bit that of Linux. Two requests merge only if these are equal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct IoPrio(u16);

impl IoPrio {
    /// Levels within a class, 0 (highest) to 7.
    pub const LEVELS: u16 = 8;

    /// Class and level; `None` if `level` is not in `0..8`.
    #[must_use]
    pub const fn new(class: Class, level: u16) -> Option<Self> {
        if level < Self::LEVELS { Some(Self((class as u16) << 13 | level)) } else { None }
    }

    /// The class. Values that Linux does not define count as [`Class::None`].
    #[must_use]
    pub const fn class(self) -> Class {
        match self.0 >> 13 {
            1 => Class::Realtime,
            2 => Class::BestEffort,
            3 => Class::Idle,
            _ => Class::None,
        }
    }

    /// The level within the class, 0 to 7, 0 being the most urgent.
    #[must_use]
    pub const fn level(self) -> u16 {
        self.0 & 7
    }

    /// The value as Linux passes it.
    #[must_use]
    pub const fn to_bits(self) -> u16 {
        self.0
    }

    /// A value as Linux passes it.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }
}

/// The time, from its arrival, within which an I/O is to complete. A queue that predicts completion times (attribute
/// `blkmq/forecast`) compares its prediction with the deadline before the I/O takes a slot, and afterwards counts
/// whether the prediction was right.
///
/// A deadline does not affect the order in which a scheduler serves I/Os.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Deadline(u32);

impl Deadline {
    /// No deadline.
    pub const NONE: Self = Self(0);
    /// The longest deadline, about 36 minutes.
    pub const MAX: Nanos = Nanos(((1 << 31) - 1) * 1_000);
    /// Set if the I/O is served even if it is expected to be late.
    const SERVE: u32 = 1 << 31;

    /// Refuses the I/O immediately if it is expected to take longer than `within`.
    ///
    /// `within` is rounded up to microseconds, at least one, and limited to [`MAX`](Self::MAX).
    #[must_use]
    pub const fn reject(within: Nanos) -> Self {
        let micros = within.0.div_ceil(1_000);
        let most = Self::MAX.0 / 1_000;
        Self(if micros == 0 {
            1
        } else if micros < most {
            micros as u32
        } else {
            most as u32
        })
    }

    /// Serves the I/O even if it is expected to take longer than `within`: the prediction is only compared with the
    /// outcome.
    #[must_use]
    pub const fn serve(within: Nanos) -> Self {
        Self(Self::reject(within).0 | Self::SERVE)
    }

    /// Returns whether there is a deadline.
    #[inline]
    #[must_use]
    pub const fn is_some(self) -> bool {
        self.0 != 0
    }

    /// The time from the arrival; zero without a deadline.
    #[must_use]
    pub const fn within(self) -> Nanos {
        Nanos((self.0 & !Self::SERVE) as u64 * 1_000)
    }

    /// Returns whether an I/O that is expected to take longer is refused.
    #[must_use]
    pub const fn rejects(self) -> bool {
        self.is_some() && self.0 & Self::SERVE == 0
    }
}

/// An offset or a length in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Bytes(pub u64);

/// An offset or a length in sectors of 512 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Sectors(pub u64);

/// An offset or a length that can be expressed in sectors: [`Bytes`] and [`Sectors`]. A number without a unit is
/// neither:
///
/// ```compile_fail,E0277
/// use blkmq_core::InSectors;
/// fn read(_: impl InSectors) {}
/// read(4096_u64);
/// ```
pub trait InSectors: Copy {
    /// The number of sectors; `None` for bytes that are not whole sectors.
    fn in_sectors(self) -> Option<u64>;
}

impl InSectors for Sectors {
    #[inline]
    fn in_sectors(self) -> Option<u64> {
        Some(self.0)
    }
}

impl InSectors for Bytes {
    #[inline]
    fn in_sectors(self) -> Option<u64> {
        let sector = u64::from(SECTOR_SIZE);
        self.0.is_multiple_of(sector).then_some(self.0 / sector)
    }
}

/// A stretch of a device, which begins at the end of the one before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The byte behind its last one.
    pub end: u64,
    /// The stretch is unallocated, and reads as zeroes.
    pub is_hole: bool,
}

impl Extent {
    /// Appends a stretch to a list of adjacent ones; extends the last one if it is of the same kind.
    pub fn append(list: &mut Vec<Self>, next: Self) {
        match list.last_mut() {
            Some(last) if last.is_hole == next.is_hole => last.end = next.end,
            _ => list.push(next),
        }
    }
}

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

/// A hardware queue (hctx) of a device, counted from zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct HwQueue(pub u16);

/// A driver tag: the number under which a request is known to its hardware queue, `0..hw_queue_depth`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Tag(pub u32);

/// The account to which an I/O is charged: a tenant, an export, a process, or a [thread](Owner::thread) of an
/// application. A thread is not a tenant: tenants are named, and I/O without a named owner belongs to one application,
/// with an account for each of its threads.
///
/// I/Os of different owners never merge in a plug, and may merge in an elevator where the policy allows it, as I/Os
/// of different processes may in Linux. When such a request fails, it is taken apart and repeated owner by owner, so
/// that an error of one owner's I/O does not fail the others'. I/Os of different [groups](GroupId) never merge, like
/// I/Os of different cgroups in Linux.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Owner(pub u32);

impl Owner {
    /// The owner of I/O that names none.
    pub const UNNAMED: Self = Self(0);
    /// The bit that marks the number of a thread.
    const THREAD: u32 = 1 << 31;

    /// Thread `number` of an application, of which 31 bits count. It has its own account, but is not a tenant. A policy
    /// may serve threads of applications together, as Linux serves processes that begin together or work side by side.
    ///
    /// An I/O of [`UNNAMED`](Self::UNNAMED) has the account of its submitter, which is a thread in this sense.
    #[must_use]
    pub const fn thread(number: u32) -> Self {
        Self(number | Self::THREAD)
    }

    /// Returns whether the owner is a thread of an application, and not a tenant.
    #[must_use]
    pub const fn is_thread(self) -> bool {
        self.0 & Self::THREAD != 0
    }

    /// The owner's number; a thread's is its number among threads.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0 & !Self::THREAD
    }

    /// The owner to which submitter `by` charges an I/O that names this owner: [`UNNAMED`](Self::UNNAMED) is replaced
    /// by the thread of the submitter.
    #[must_use]
    pub const fn or_submitter(self, by: SubmitterId) -> Self {
        if self.0 == Self::UNNAMED.0 { Self::thread(by.0 as u32) } else { self }
    }
}

/// A group in the tables of its queue, as policies and statistics see it: a node of the tree of groups. The index is
/// reused after the group has been removed.
/// gone, the index is given to another one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct GroupIndex(pub u16);

impl GroupIndex {
    /// The root of the tree.
    pub const ROOT: Self = Self(0);
}

/// A group of owners, as I/Os name it. An id is never used again, in this queue or another, so that an id whose group
/// has been removed is detected.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GroupId(u64);

impl GroupId {
    /// The root of the tree: the group of all I/O that is not assigned to another. The same in every queue.
    pub const ROOT: Self = Self(0);

    /// The id of the group at `index` with this `generation`, of which 48 bits count. For the tree of groups.
    #[must_use]
    pub const fn new(index: GroupIndex, generation: u64) -> Self {
        Self(generation << u16::BITS | index.0 as u64)
    }

    /// The index of the group, which may have been used before and will be used again.
    #[must_use]
    pub const fn index(self) -> GroupIndex {
        GroupIndex(self.0 as u16)
    }

    /// The generation: how many ids of groups this process had made before.
    #[must_use]
    pub const fn generation(self) -> u64 {
        self.0 >> u16::BITS
    }
}

impl fmt::Debug for GroupId {
    /// The index alone, which is the same in every run of a simulation.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group {}", self.index().0)
    }
}

/// A registered submitter of a queue (the software queue, ctx), counted from zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SubmitterId(pub u16);

/// A request, named by its slot: 24 bits of index, 8 of generation.
///
/// An index, so that a policy keeps its own state in arrays beside the slots; a generation, so that a stale id is
/// detected instead of used. The generation wraps after 256 reuses of a slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(u32);

impl RequestId {
    /// The largest index plus one.
    pub const MAX_SLOTS: u32 = 1 << 24;

    /// Names slot `index` in its `generation`.
    ///
    /// # Panics
    /// If `index` needs more than 24 bits.
    #[must_use]
    pub const fn new(index: u32, generation: u8) -> Self {
        assert!(index < Self::MAX_SLOTS, "a request index has 24 bits");
        Self(index | (generation as u32) << 24)
    }

    /// The slot, for indexing side tables.
    #[must_use]
    pub const fn index(self) -> usize {
        (self.0 & (Self::MAX_SLOTS - 1)) as usize
    }

    /// The name of the slot's next request.
    #[must_use]
    pub const fn next_generation(self) -> Self {
        Self(self.0.wrapping_add(Self::MAX_SLOTS))
    }

    /// The number of earlier uses of the slot, modulo 256.
    #[must_use]
    pub const fn generation(self) -> u8 {
        (self.0 >> 24) as u8
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rq{}.{}", self.index(), self.generation())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn metadata_fits_a_cache_line_with_room_for_the_engine() {
        assert!(size_of::<IoMeta>() <= 40);
    }

    #[test]
    fn flags_are_a_set() {
        let both = IoFlags::FUA | IoFlags::SYNC;
        assert!(both.contains(IoFlags::FUA) && !IoFlags::FUA.contains(both));
        assert_eq!(both.without(IoFlags::FUA | IoFlags::PREFLUSH), IoFlags::SYNC);
    }

    #[test]
    fn discards_count_as_writes() {
        assert!(Op::Discard.is_write() && !Op::Read.is_write());
    }

    #[test]
    fn reads_are_sync_by_default_and_writes_are_not() {
        assert!(IoMeta::new(Op::Read, 0, 8).is_sync_read());
        assert!(!IoMeta::new(Op::Write, 0, 8).flags.contains(IoFlags::SYNC));
    }

    #[test]
    fn bits_are_those_of_linux() {
        let p = IoPrio::new(Class::Realtime, 3).expect("3 is a level");
        assert_eq!(p.to_bits(), 1 << 13 | 3);
        assert_eq!((p.class(), p.level()), (Class::Realtime, 3));
        assert_eq!(IoPrio::new(Class::Idle, 8), None);
        assert_eq!(IoPrio::from_bits(7 << 13).class(), Class::None);
    }

    #[test]
    fn a_deadline_is_whole_microseconds_and_knows_what_becomes_of_late_ios() {
        let reject = Deadline::reject(Nanos::from_millis(20));
        let serve = Deadline::serve(Nanos(1));
        assert_eq!((reject.within(), reject.rejects()), (Nanos::from_millis(20), true));
        assert_eq!((serve.within(), serve.rejects()), (Nanos::from_micros(1), false));
        assert!(!Deadline::NONE.is_some() && !Deadline::NONE.rejects());
        assert_eq!(Deadline::reject(Nanos::ZERO).within(), Nanos::from_micros(1));
        assert_eq!(Deadline::serve(Nanos(u64::MAX)).within(), Deadline::MAX);
    }

    #[test]
    fn bytes_are_whole_sectors_or_none() {
        assert_eq!(Bytes(4096).in_sectors(), Some(8));
        assert_eq!(Bytes(0).in_sectors(), Some(0));
        assert_eq!(Bytes(513).in_sectors(), None);
        assert_eq!(Sectors(513).in_sectors(), Some(513));
    }

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

    #[test]
    fn index_and_generation_survive_packing() {
        let id = RequestId::new(RequestId::MAX_SLOTS - 1, 255);
        assert_eq!((id.index(), id.generation()), (0xff_ffff, 255));
        assert_ne!(RequestId::new(3, 1), RequestId::new(3, 2));
        assert_eq!(id.next_generation(), RequestId::new(RequestId::MAX_SLOTS - 1, 0));
        let (group, later) = [7, 8].map(|at| GroupId::new(GroupIndex(3), at)).into();
        assert_eq!(
            (group.index(), group.generation(), later.index()),
            (GroupIndex(3), 7, GroupIndex(3))
        );
        assert!(group != later && GroupId::new(GroupIndex::ROOT, 0) == GroupId::ROOT);
    }
}
