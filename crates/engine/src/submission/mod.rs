//! From a program to an elevator, and back: the input and output of a [`Submitter`](crate::Submitter), which are I/Os,
//! completions and refusals. `submitter.rs` and `submitter/push.rs` decide when to refuse an I/O.
//!
//! Here is the root of a queue: its current engine, and the state of its changes.

use crate::dispatch::Engine;
use crate::plan::Plan;
use crate::plan::config::Watchers;
use crate::shared::hctx::Member;
use crate::shared::hub::Lasting;
use crate::shared::stats::QueueStats;
use crate::sync::{Arc, Mutex, MutexGuard, PoisonError};
use blkmq_core::{
    Bytes, Deadline, GroupId, InSectors, IoError, IoFlags, IoPrio, IoResult, Nanos, Op, Owner,
    Payload,
};
use std::fmt;
use std::ops::Range;
use sync_wrapper::SyncWrapper;

pub(crate) mod submitter;
pub(crate) mod throttle;

pub(crate) struct Root<P> {
    pub(crate) lasting: Arc<Lasting<P>>,
    current: Mutex<Arc<Engine<P>>>,
    /// Lets one thread at a time change the queue.
    change_state: Mutex<ChangeState>,
}

/// The state of reconfiguration: the plan, and the counters of replaced queues.
pub(crate) struct ChangeState {
    pub(crate) plan: Plan,
    /// The observers of the queue, in addition to the plan.
    pub(crate) watchers: Watchers,
    /// The counters of the replaced queues.
    pub(crate) past: QueueStats,
    /// A change is in progress.
    pub(crate) taken: bool,
}

impl<P> Root<P> {
    /// The root of a queue that has just been built.
    pub(crate) fn new(engine: Engine<P>, plan: Plan) -> Self {
        let state = ChangeState {
            plan,
            watchers: Watchers::default(),
            past: QueueStats::default(),
            taken: false,
        };
        Self {
            lasting: Arc::clone(&engine.hub.lasting),
            current: Mutex::new(Arc::new(engine)),
            change_state: Mutex::new(state),
        }
    }

    /// The current queue.
    pub(crate) fn current(&self) -> Arc<Engine<P>> {
        Arc::clone(&self.current.lock().expect("no panic happens under this lock"))
    }

    /// Replaces the current queue by `next`. Returns the old one.
    pub(crate) fn replace(&self, next: Engine<P>) -> Arc<Engine<P>> {
        let (version, next) = (next.hub.version, Arc::new(next));
        *self.current.lock().expect("no panic happens under this lock") = Arc::clone(&next);
        self.lasting.control.publish(version);
        next
    }

    pub(crate) fn change_state(&self) -> MutexGuard<'_, ChangeState> {
        // The state is consistent wherever a thread may panic, and a thread that drops its change during unwinding must
        // not panic again.
        self.change_state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: Send + 'static> Member for Root<P> {
    fn tags_came_back(&self) {
        let q = self.current();
        let mut wakes = Vec::new();
        q.hub.tag_wait.take(|shard| wakes.extend(q.kick_shard(shard)));
        q.wake(&wakes);
    }
}

/// An I/O as its submitter describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Io<P> {
    /// The operation.
    pub op: Op,
    /// The first sector: a multiple of the logical block size.
    pub sector: u64,
    /// The length in sectors, also a multiple of the logical block size. 0 only for a flush.
    pub sectors: u32,
    /// The flags. The constructors set [`IoFlags::SYNC`] for reads.
    pub flags: IoFlags,
    /// The priority.
    pub ioprio: IoPrio,
    /// The owner to which the I/O is charged; [`Owner::UNNAMED`] is the thread that submits.
    pub owner: Owner,
    /// The group of the owner.
    pub group: GroupId,
    /// Expected lifetime of the data written; 0 for unknown.
    pub write_hint: u8,
    /// The time that the I/O may take.
    pub deadline: Deadline,
    /// Returned with the completion.
    pub cookie: u64,
    /// Tells the device where the bytes are; returned with the completion.
    pub payload: P,
}

impl<P> Io<P> {
    /// An I/O in sectors, with defaults for all other fields: sync if it is a read, no priority, owner 0, in the root
    /// group. For simulators, whose payloads carry no data; [`read`](Self::read), [`write`](Self::write) and similar
    /// constructors take the length from the payload.
    pub fn new(op: Op, sector: u64, sectors: u32, cookie: u64, payload: P) -> Self {
        Self {
            op,
            sector,
            sectors,
            flags: if op == Op::Read { IoFlags::SYNC } else { IoFlags::NONE },
            ioprio: IoPrio::default(),
            owner: Owner(0),
            group: GroupId::ROOT,
            write_hint: 0,
            deadline: Deadline::NONE,
            cookie,
            payload,
        }
    }

    /// Returns the same I/O with the payload that `with` makes of the old one.
    #[must_use]
    #[inline(always)]
    pub fn map<Q>(self, with: impl FnOnce(P) -> Q) -> Io<Q> {
        Io {
            op: self.op,
            sector: self.sector,
            sectors: self.sectors,
            flags: self.flags,
            ioprio: self.ioprio,
            owner: self.owner,
            group: self.group,
            write_hint: self.write_hint,
            deadline: self.deadline,
            cookie: self.cookie,
            payload: with(self.payload),
        }
    }
}

/// Reads and writes of all the bytes in a payload.
impl<P: Payload> Io<P> {
    /// Reads as many bytes as `payload` carries into it, from `at` on.
    ///
    /// If the bytes are not whole sectors, or there are none, every queue refuses the I/O as misaligned.
    pub fn read(at: impl InSectors, payload: P) -> Self {
        Self::moving(Op::Read, at, payload)
    }

    /// Writes the bytes of `payload`, from `at` on. Durable after the next flush, or immediately with
    /// [`fua`](Self::fua).
    ///
    /// Refused as [`read`](Self::read) is.
    pub fn write(at: impl InSectors, payload: P) -> Self {
        Self::moving(Op::Write, at, payload)
    }

    fn moving(op: Op, at: impl InSectors, payload: P) -> Self {
        let bytes = payload.data_len().and_then(|bytes| u64::try_from(bytes).ok());
        let (sector, sectors) = place(at.in_sectors(), Bytes(bytes.unwrap_or(0)).in_sectors());
        Self::new(op, sector, sectors, 0, payload)
    }
}

/// I/Os that move no data.
impl<P: Default> Io<P> {
    /// Makes every write durable whose completion has been reaped.
    #[must_use]
    pub fn flush() -> Self {
        Self::new(Op::Flush, 0, 0, 0, P::default())
    }

    /// Tells the device that the data in `range` is not needed. Later reads of it return arbitrary data.
    ///
    /// Queues refuse a range that is empty, does not consist of whole sectors, or has 2 TiB or more.
    #[must_use]
    pub fn discard(range: Range<impl InSectors>) -> Self {
        Self::over(Op::Discard, range)
    }

    /// Makes `range` read as zeroes, without transferring them.
    ///
    /// Refused as [`discard`](Self::discard) is.
    #[must_use]
    pub fn write_zeroes(range: Range<impl InSectors>) -> Self {
        Self::over(Op::WriteZeroes, range)
    }

    fn over(op: Op, range: Range<impl InSectors>) -> Self {
        let (start, end) = (range.start.in_sectors(), range.end.in_sectors());
        let len = start.zip(end).and_then(|(start, end)| end.checked_sub(start));
        let (sector, sectors) = place(start, len);
        Self::new(op, sector, sectors, 0, P::default())
    }
}

/// The sector and length of an I/O. If either is not in whole sectors, the length is 0, which every queue refuses. If
/// the length is too large, it is the greatest value, which is not a multiple of any block and exceeds most devices.
fn place(at: Option<u64>, len: Option<u64>) -> (u64, u32) {
    match (at, len) {
        (Some(at), Some(len)) => (at, u32::try_from(len).unwrap_or(u32::MAX)),
        _ => (0, 0),
    }
}

/// Optional attributes of an I/O.
impl<P> Io<P> {
    /// The cookie to return with the completion. 0 by default.
    #[must_use]
    pub fn cookie(self, cookie: u64) -> Self {
        Self { cookie, ..self }
    }

    /// The owner to which the I/O is charged, instead of the thread that submits.
    #[must_use]
    pub fn owner(self, owner: Owner) -> Self {
        Self { owner, ..self }
    }

    /// The group of the owner, whose weight and limits apply. The id of a removed group is refused
    /// ([`Refusal::NoGroup`]).
    #[must_use]
    pub fn group(self, group: GroupId) -> Self {
        Self { group, ..self }
    }

    /// The priority: class and level.
    #[must_use]
    pub fn ioprio(self, ioprio: IoPrio) -> Self {
        Self { ioprio, ..self }
    }

    /// The time that the I/O may take, and what to do if the queue expects it to take longer. Without a forecast
    /// ([`Plan::forecast`](crate::Plan::forecast)) the I/O is refused.
    #[must_use]
    pub fn deadline(self, deadline: Deadline) -> Self {
        Self { deadline, ..self }
    }

    /// Makes a write durable when it completes (`FUA`).
    #[must_use]
    pub fn fua(self) -> Self {
        self.with(IoFlags::FUA)
    }

    /// Marks an I/O that a caller waits for: schedulers treat it like a read.
    #[must_use]
    pub fn sync(self) -> Self {
        self.with(IoFlags::SYNC)
    }

    /// Adds these flags.
    #[must_use]
    pub fn with(self, flags: IoFlags) -> Self {
        Self { flags: self.flags | flags, ..self }
    }
}

/// A finished I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion<P> {
    /// The cookie of the [`Io`].
    pub cookie: u64,
    /// The result of the I/O.
    pub result: IoResult,
    /// The payload of the [`Io`].
    pub payload: P,
}

/// Why an I/O was not taken. The reason does not contain the I/O, so it can outlive it and cross threads, which a buffer
/// often cannot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// There is not enough credit left for the I/O or, if it must be divided, for all its parts. Reap, then try again.
    #[error("too little is left of this submitter's credit of {depth}; reap first")]
    NoCredit {
        /// The whole credit.
        depth: u32,
    },
    /// Start or length is not a multiple of the logical block size, or the length is zero.
    #[error("start and length must be multiples of {block} bytes, the length above 0")]
    Misaligned {
        /// The logical block size in bytes.
        block: u32,
    },
    /// The I/O is too long for one request of the device, and cannot be divided: its payload does not allow it, or it
    /// would have more parts than the submitter's whole credit.
    #[error("longer than the {most} sectors that can be taken, and not to be divided")]
    TooLong {
        /// The most sectors that would be taken at this sector.
        most: u32,
    },
    /// The I/O would have to be divided, but has [`IoFlags::NOWAIT`] (`EAGAIN`).
    #[error(
        "longer than the {most} sectors that the device takes at once, and NOWAIT; submit parts, \
         or without it"
    )]
    NoWait {
        /// The most sectors that are taken whole at this sector.
        most: u32,
    },
    /// The payload is in several ranges of memory. One block has more ranges than the device takes in a request, or
    /// ranges that its segments cannot join. Copy it into fewer ranges.
    #[error(
        "a block of the payload cannot be in one request: accepted are {segments} segments, which \
         meet at multiples of {boundary} bytes"
    )]
    Scattered {
        /// The most segments of a request.
        segments: u16,
        /// Segments may join only at multiples of this many bytes; 1 for anywhere.
        boundary: u64,
    },
    /// The payload is in several ranges of memory, one of which lacks the alignment that the device requires.
    #[error(
        "each of several ranges must begin at a multiple of {start} bytes and have a multiple of \
         {len} bytes"
    )]
    RangeMisaligned {
        /// Each range must begin at a multiple of this many bytes.
        start: u32,
        /// The length of each range must be a multiple of this many bytes: a logical block.
        len: u32,
    },
    /// The I/O reaches beyond the end of the device.
    #[error("beyond the end of the device at sector {capacity}")]
    OutOfRange {
        /// The device's size in sectors.
        capacity: u64,
    },
    /// The device does not have this operation.
    #[error("the device does not support {0:?}")]
    Unsupported(Op),
    /// A read with a payload that does not allow reads into it ([`Payload::WRITE_ONLY`]).
    #[error("the payload cannot be read into; use an AlignedBuf, or implement Payload::read_from")]
    WriteOnly,
    /// The I/O is expected to end after its deadline (`EBUSY`).
    #[error("expected to take {expected}, which is longer than its deadline allows")]
    Late {
        /// The time that the I/O is expected to take.
        expected: Nanos,
    },
    /// The I/O has a deadline, but the queue makes no forecasts.
    #[error("a deadline needs a forecast; set blkmq/forecast to 1, or leave it out")]
    NoForecast,
    /// The id of its group is stale (the group was removed, and its index has been reused), or it belongs to another
    /// queue.
    #[error(
        "the group was removed, and its index is another one's by now; or its id is of \
         another queue"
    )]
    NoGroup,
    /// A policy or a device of the queue panicked: it takes no more I/Os.
    #[error("a policy or a device of the queue panicked; build another one")]
    Poisoned,
}

/// The error with which the I/O would have completed, for servers that must report an errno to their clients.
impl From<Refusal> for IoError {
    fn from(why: Refusal) -> Self {
        match why {
            Refusal::NoCredit { .. } | Refusal::NoWait { .. } => Self::AGAIN,
            Refusal::Misaligned { .. }
            | Refusal::TooLong { .. }
            | Refusal::Scattered { .. }
            | Refusal::RangeMisaligned { .. }
            | Refusal::WriteOnly
            | Refusal::NoGroup => Self::INVALID,
            Refusal::OutOfRange { .. } => Self::NO_SPACE,
            Refusal::Unsupported(_) | Refusal::NoForecast => Self::NOT_SUPPORTED,
            Refusal::Late { .. } => Self::BUSY,
            Refusal::Poisoned => Self::POISONED,
        }
    }
}

/// An I/O that is returned as it was submitted.
///
/// `Sync` even if its payload is not, because the I/O is reached only by value or exclusively. So errors that carry one
/// fit into `Box<dyn Error + Send + Sync>`.
pub struct Unsubmitted<P>(SyncWrapper<Io<P>>);

impl<P> Unsubmitted<P> {
    /// Holds `io`.
    pub const fn new(io: Io<P>) -> Self {
        Self(SyncWrapper::new(io))
    }

    /// Returns the I/O.
    pub fn into_io(self) -> Io<P> {
        self.0.into_inner()
    }

    /// Borrows the I/O, to inspect or change it.
    pub fn io_mut(&mut self) -> &mut Io<P> {
        self.0.get_mut()
    }
}

impl<P> fmt::Debug for Unsubmitted<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Unsubmitted")
    }
}

/// An I/O that was not taken, and the reason.
pub struct Refused<P> {
    io: Unsubmitted<P>,
    /// The reason.
    pub why: Refusal,
}

impl<P> Refused<P> {
    /// Refuses `io` with the reason `why`.
    pub const fn new(io: Io<P>, why: Refusal) -> Self {
        Self { io: Unsubmitted::new(io), why }
    }

    /// Returns the I/O, unchanged.
    pub fn into_io(self) -> Io<P> {
        self.io.into_io()
    }

    /// Borrows the I/O, to inspect or change it.
    pub fn io_mut(&mut self) -> &mut Io<P> {
        self.io.io_mut()
    }
}

impl<P> fmt::Debug for Refused<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("why", &self.why).finish_non_exhaustive()
    }
}

impl<P> fmt::Display for Refused<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.why.fmt(f)
    }
}

impl<P> std::error::Error for Refused<P> {}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::{GroupIndex, Sectors};

    type Vector = Io<Vec<u8>>;

    #[test]
    fn every_refusal_has_a_number() {
        for (why, number) in [
            (Refusal::NoCredit { depth: 1 }, IoError::AGAIN),
            (Refusal::Misaligned { block: 512 }, IoError::INVALID),
            (Refusal::TooLong { most: 8 }, IoError::INVALID),
            (Refusal::NoWait { most: 8 }, IoError::AGAIN),
            (Refusal::Scattered { segments: 1, boundary: 4096 }, IoError::INVALID),
            (Refusal::RangeMisaligned { start: 4, len: 512 }, IoError::INVALID),
            (Refusal::OutOfRange { capacity: 8 }, IoError::NO_SPACE),
            (Refusal::Unsupported(Op::Discard), IoError::NOT_SUPPORTED),
            (Refusal::WriteOnly, IoError::INVALID),
            (Refusal::Late { expected: Nanos::from_millis(30) }, IoError::BUSY),
            (Refusal::NoForecast, IoError::NOT_SUPPORTED),
            (Refusal::NoGroup, IoError::INVALID),
            (Refusal::Poisoned, IoError::POISONED),
        ] {
            assert_eq!(IoError::from(why), number, "{why}");
        }
    }

    #[test]
    fn places_and_lengths_are_in_sectors_whatever_they_are_said_in() {
        let place = |io: &Vector| (io.op, io.sector, io.sectors);
        assert_eq!(place(&Io::write(Bytes(8192), vec![0; 4096])), (Op::Write, 16, 8));
        assert_eq!(place(&Io::read(Sectors(8192), vec![0; 512])), (Op::Read, 8192, 1));
        assert_eq!(place(&Io::discard(Bytes(512)..Bytes(2048))), (Op::Discard, 1, 3));
        assert_eq!(place(&Io::write_zeroes(Sectors(7)..Sectors(9))), (Op::WriteZeroes, 7, 2));
        assert_eq!(place(&Io::flush()), (Op::Flush, 0, 0));
    }

    #[test]
    fn what_is_not_in_whole_sectors_has_a_length_that_is_refused() {
        let odd = [
            Vector::write(Bytes(100), vec![0; 512]),
            Vector::write(Bytes(0), vec![0; 100]),
            Vector::write(Bytes(0), Vec::new()),
            Vector::discard(Bytes(0)..Bytes(1000)),
            Vector::discard(Bytes(1)..Bytes(513)),
            Vector::discard(Sectors(5)..Sectors(5)),
            Vector::discard(Sectors(5)..Sectors(4)),
        ];
        assert!(odd.iter().all(|io| io.sectors == 0), "{odd:?}");
        assert_eq!(Vector::discard(Sectors(0)..Sectors(1 << 40)).sectors, u32::MAX);
    }

    #[test]
    fn what_is_said_besides_is_there() {
        let group = GroupId::new(GroupIndex(2), 1);
        let io = Io::read(Sectors(0), vec![0; 512]).cookie(7).owner(Owner(3)).group(group);
        assert_eq!((io.cookie, io.owner, io.group), (7, Owner(3), group));
        assert_eq!(io.flags, IoFlags::SYNC, "as every read");
        let io = Io::write(Sectors(0), vec![0; 512]).fua().sync();
        assert_eq!(io.flags, IoFlags::SYNC | IoFlags::FUA);
    }
}
