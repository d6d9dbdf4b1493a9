//! Groups of owners, as a policy hears of them, and what it notes down about them.
//!
//! The tree with its names and limits is the engine's; a policy that shares by group keeps its own picture of
//! it from these changes. Every I/O names its group. One that names a group which is gone belongs to the root.

use blkmq_core::{GroupId, Instant, Nanos, Op};
use core::fmt;

/// What became of a group.
///
/// A policy that is built later than the groups hears of all of them first, parents before children.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupChange {
    /// It is new.
    Added {
        /// Which; not the root, and none that exists.
        group: GroupId,
        /// Below which; exists.
        parent: GroupId,
        /// Its share among its siblings, 1 to 1000.
        weight: u32,
    },
    /// It has another weight from now on.
    Weight {
        /// Which; exists.
        group: GroupId,
        /// 1 to 1000.
        weight: u32,
    },
    /// It is gone; it had no groups below it. What it still holds, and what comes in its name, is the parent's
    /// (the root's, where the policy has forgotten the parent).
    Removed {
        /// Which.
        group: GroupId,
    },
}

/// Something that happened to a group, small enough to be written down while the elevator runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Note {
    /// To which, and with what kind of I/O, where it is about one.
    pub about: About,
    /// What happened.
    pub what: Event,
    /// When.
    pub at: Instant,
}

/// What a note is about: a group, a direction, and whether somebody waits.
///
/// One word, made in a register: a note is read a few nanoseconds after it was written, and to read in one piece
/// what was written in several costs more than all the rest.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct About(u32);

impl About {
    /// I/O of `group`.
    #[inline]
    #[must_use]
    pub const fn new(group: GroupId, op: Op, sync: bool) -> Self {
        let direction = match op {
            Op::Read => Direction::Read,
            Op::Discard => Direction::Discard,
            Op::Write | Op::WriteZeroes | Op::Flush => Direction::Write,
        };
        Self((group.0 as u32) << 3 | (direction as u32) << 1 | sync as u32)
    }

    /// Whose.
    #[inline]
    #[must_use]
    pub const fn group(self) -> GroupId {
        GroupId((self.0 >> 3) as u16)
    }

    /// Which way.
    #[inline]
    #[must_use]
    pub const fn direction(self) -> Direction {
        match self.0 >> 1 & 3 {
            0 => Direction::Read,
            1 => Direction::Write,
            _ => Direction::Discard,
        }
    }

    /// Does somebody wait for it?
    #[inline]
    #[must_use]
    pub const fn is_sync(self) -> bool {
        self.0 & 1 != 0
    }

    /// Three bits for the kind of I/O, and the group above them.
    #[inline]
    pub(crate) const fn word(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sync = if self.is_sync() { "sync" } else { "async" };
        write!(f, "{sync} {:?} of {:?}", self.direction(), self.group())
    }
}

/// The directions that statistics tell apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Reads.
    Read,
    /// Writes, those of zeroes included.
    Write,
    /// Discards.
    Discard,
}

/// What happened (`spec/bfq.md` section 17).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A request was inserted.
    Queued,
    /// A request left without being picked: it was absorbed or withdrawn.
    Unqueued,
    /// An I/O or request was merged into another.
    Merged,
    /// A request was picked, with so many sectors, and waits no longer.
    Served(u32),
    /// A request has completed, with so many bytes.
    Completed {
        /// Its length.
        bytes: u32,
        /// How long it waited in the scheduler.
        wait: Nanos,
        /// How long it was at the device.
        service: Nanos,
    },
    /// A queue of the group was in service for so long.
    Time(Nanos),
    /// The queue in service has nothing, and the device is kept idle for it.
    IdleBegan,
    /// The device is not kept idle any more.
    IdleEnded,
    /// The group has nothing to do from now on.
    EmptyBegan,
    /// It has something again.
    EmptyEnded,
    /// It has something, but another group is in service.
    WaitBegan,
    /// It is in service again.
    WaitEnded,
    /// A queue of the group was taken off the service tree.
    Dequeued,
    /// So many requests of the group were queued when one of its queues was picked.
    QueueSize(u32),
}
