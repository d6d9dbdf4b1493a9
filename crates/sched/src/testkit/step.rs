//! The steps of a script.

use crate::{At, GroupChange};
use blkmq_core::{IoMeta, Nanos, Owner};

/// A step of a script. Positions wrap around; a step that finds no request does nothing.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// A new request.
    Insert(IoMeta, At),
    /// Pick.
    Pick,
    /// The issued request at this position finishes.
    Complete(u64),
    /// The issued request at this position is requeued.
    Requeue(u64),
    /// The held request at this position grows at its end.
    Back(u64),
    /// It grows at its start by this many sectors.
    Front(u64, u32),
    /// It takes in a discarded range at this sector.
    Discard(u64, u64),
    /// The held request at the first position absorbs the next one that is like it.
    Absorb(u64),
    /// The held request at this position is withdrawn.
    Withdraw(u64),
    /// An attribute changes.
    Set(&'static str, i64),
    /// Time passes.
    Advance(Nanos),
    /// The tree of groups changes.
    Regroup(GroupChange),
    /// No I/O of this owner will arrive for a long time.
    Left(Owner),
    /// Ask whether this I/O would get a slot.
    Admits(IoMeta),
}

/// Owner `number` of a script: every other one is a thread of an application.
pub(super) fn account(number: u64) -> Owner {
    let number = number as u32;
    if number % 2 == 1 { Owner::thread(number) } else { Owner(number) }
}
