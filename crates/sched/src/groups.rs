//! Groups of owners as policies see them, and the notes of a policy about them.
//!
//! The engine has the tree with its names and limits. A policy that shares by group keeps its own picture of the tree
//! from these changes. Every I/O names its group.

use blkmq_core::{GroupIndex, Nanos, Op};
use core::fmt;

/// A rate of I/O, as a part of the time of a device: the sum of the parts of its three numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rate {
    /// Random reads of 4 KiB per second, or other I/O that takes the device as long.
    pub iops: u64,
    /// Bytes read per second, or other transfers that take the device as long.
    pub bps: u64,
    /// Percent of the device's time.
    pub percent: u32,
}

impl Rate {
    /// Returns whether the rate specifies nothing.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// The capacity of a device by which floors are promised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    /// Random reads of 4 KiB per second; at least 1.
    pub iops: u64,
    /// Bytes read per second; at least 1.
    pub bps: u64,
    /// The part of the capacity that may be promised, in percent.
    pub safe_percent: u32,
}

impl Capacity {
    /// The part of the capacity that `rate` is, in millionths.
    #[must_use]
    pub fn millionths(&self, rate: &Rate) -> u128 {
        let part = |of: u64, whole: u64| u128::from(of) * 1_000_000 / u128::from(whole.max(1));
        part(rate.iops, self.iops) + part(rate.bps, self.bps) + part(rate.percent.into(), 100)
    }

    /// The device time that `rate` takes in a second, in nanoseconds, at most 16 seconds. An I/O takes at least as long
    /// as its transfer.
    #[must_use]
    pub fn time(&self, rate: &Rate) -> u64 {
        let second = u128::from(Nanos::from_secs(1).0);
        let byte = |bytes: u64| u128::from(bytes) * second / u128::from(self.bps.max(1));
        let ios = u128::from(rate.iops) * second / u128::from(self.iops.max(1));
        let ios = ios.max(byte(rate.iops.saturating_mul(4096)));
        let all = ios + byte(rate.bps) + u128::from(rate.percent) * second / 100;
        all.min(16 * second) as u64
    }
}

/// The floor and the ceiling of a group, for policies that keep them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Guarantee {
    /// The group gets at least this while it has requests waiting. Zero for no floor.
    pub reserve: Rate,
    /// The group gets no more than this, even from an idle device, except by its floor. Zero for no ceiling.
    pub limit: Rate,
}

/// A change to the tree of groups.
///
/// A policy built after the groups gets all of them as additions first, parents before children.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupChange {
    /// A group was added.
    Added {
        /// The new group; not the root, and not an existing one.
        group: GroupIndex,
        /// Its parent, which exists.
        parent: GroupIndex,
        /// Its share among its siblings, 1 to 1000.
        weight: u32,
    },
    /// The weight of a group has changed.
    Weight {
        /// The group, which exists.
        group: GroupIndex,
        /// The new weight, 1 to 1000.
        weight: u32,
    },
    /// The guarantee of a group has changed. A new group has none.
    Guarantee {
        /// The group, which exists.
        group: GroupIndex,
        /// Its floor and its ceiling.
        guarantee: Guarantee,
    },
    /// A group was removed; it had no children. I/O that it still holds, and I/O that arrives in its name, belongs to
    /// the parent (to the root, where the policy has forgotten the parent).
    Removed {
        /// The removed group.
        group: GroupIndex,
    },
}

/// An event of a group, small enough to be written while the elevator runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Note {
    /// The group, and the kind of I/O if the event is about I/O.
    pub about: About,
    /// The event.
    pub what: Event,
}

/// The subject of a note: a group, a direction, and whether a submitter waits.
///
/// One word, assembled in a register: a note is read a few nanoseconds after it is written, and one wide load of a
/// value written by several stores costs more than everything else.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct About(u32);

impl About {
    /// I/O of `group`.
    #[inline]
    #[must_use]
    pub const fn new(group: GroupIndex, op: Op, sync: bool) -> Self {
        let direction = match op {
            Op::Read => Direction::Read,
            Op::Discard => Direction::Discard,
            Op::Write | Op::WriteZeroes | Op::Flush => Direction::Write,
        };
        Self((group.0 as u32) << 3 | (direction as u32) << 1 | sync as u32)
    }

    /// The group.
    #[inline]
    #[must_use]
    pub const fn group(self) -> GroupIndex {
        GroupIndex((self.0 >> 3) as u16)
    }

    /// The direction.
    #[inline]
    #[must_use]
    pub const fn direction(self) -> Direction {
        match self.0 >> 1 & 3 {
            0 => Direction::Read,
            1 => Direction::Write,
            _ => Direction::Discard,
        }
    }

    /// Returns whether a submitter waits for the I/O.
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
    /// Writes, including zeroes.
    Write,
    /// Discards.
    Discard,
}

/// An event (`spec/bfq.md` section 17). All of them can be summed: events with a duration are noted when they end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A request was inserted.
    Queued,
    /// A request was absorbed or withdrawn without being picked.
    Unqueued,
    /// An I/O or request was merged into another.
    Merged,
    /// A request with this many sectors was picked.
    Served(u32),
    /// A request has completed.
    Completed {
        /// Its length.
        bytes: u32,
        /// How long it waited in the scheduler.
        wait: Nanos,
        /// How long it was at the device.
        service: Nanos,
    },
    /// A queue of the group was in service for this long.
    Time(Nanos),
    /// The queue in service was empty, and the device was kept idle for it for this long.
    Idle(Nanos),
    /// The group had no requests for this long.
    Empty(Nanos),
    /// The group had requests for this long while another group was in service.
    Waited(Nanos),
    /// A queue of the group was taken off the service tree.
    Dequeued,
    /// This many requests of the group were queued when one of its queues was picked.
    QueueSize(u32),
}
