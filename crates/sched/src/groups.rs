//! Groups of owners, as a policy hears of them, and what it notes down about them.
//!
//! The tree with its names and limits is the engine's; a policy that shares by group keeps its own picture of
//! it from these changes. Every I/O names its group. One that names a group which is gone belongs to the root.

use blkmq_core::{GroupId, Instant, Nanos, Op};

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
    /// To which.
    pub group: GroupId,
    /// What kind of I/O, where it is about one.
    pub op: Op,
    /// Was it sync?
    pub sync: bool,
    /// What happened.
    pub what: Event,
    /// When.
    pub at: Instant,
}

/// What happened (`spec/bfq.md` section 17).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A request was inserted.
    Queued,
    /// A request left: it was picked, absorbed or withdrawn.
    Unqueued,
    /// An I/O or request was merged into another.
    Merged,
    /// A request was picked, with so many sectors.
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
