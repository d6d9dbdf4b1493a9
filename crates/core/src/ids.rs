//! Names of objects in tables. Indices, never pointers.

use core::fmt;

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
/// I/Os of different owners never merge in a plug, and may merge in an elevator where the policy allows it, as those
/// of different processes may in Linux. When such a request fails, it is taken apart and repeated owner by owner, so
/// that an error of one owner's I/O does not fail the others'. I/Os of different [groups](GroupId) never merge, as
/// those of different cgroups never do.
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
