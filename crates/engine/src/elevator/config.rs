//! The configuration of an elevator, and the part of it that may change while requests are held.

use crate::shared::settings::NoMerges;
use crate::trace::Tap;
use crate::{StatsMode, WriteCache};
use blkmq_core::Limits;
use blkmq_sched::GroupChange;
use blkmq_sched::goals::Member;

/// Slots for bare flushes alone, which must pass a full scheduler (`spec/framework.md` section 6). A bare flush may
/// also have a free slot of the others, so that one flush of the device serves as many as possible; when no slot is
/// free, it waits like any other I/O.
const FLUSH_SLOTS: u32 = 4;

/// The settings that an elevator is built with.
pub(crate) struct Config {
    pub(crate) limits: Limits,
    pub(crate) cache: WriteCache,
    pub(crate) nomerges: NoMerges,
    /// Hardware queues that this elevator serves: `first_hw..first_hw + hw_queues`.
    pub(crate) first_hw: u16,
    pub(crate) hw_queues: u16,
    /// Scheduler tags per hardware queue.
    pub(crate) nr_requests: u32,
    /// Driver tags per hardware queue.
    pub(crate) hw_queue_depth: u32,
    /// The most scheduler tags that I/Os other than sync reads may have, if the policy does not allow fewer.
    pub(crate) async_depth: u32,
    /// An I/O that finds no slot does not merge either: merging was tried before it came here (`shared/parking.rs`).
    pub(crate) slots_first: bool,
    /// Requests may pass a policy by that allows it.
    pub(crate) bypass: bool,
    /// Submitters of the queue.
    pub(crate) submitters: u16,
    /// I/Os that all submitters together may have in flight.
    pub(crate) credit: usize,
    /// When requests need a budget.
    pub(crate) budgets: Budgets,
}

/// When the requests of an elevator need a budget to leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Budgets {
    /// Never: there is no limit.
    Never,
    /// While the controller of latency goals takes something. Its limit is otherwise that of the driver tags, which each
    /// request has anyway. Requests that left before have none, so the device may hold them beside those with a budget
    /// until they end.
    WhileTaken,
    /// Always: the device, or the operator, bounds the requests that the device holds.
    Always,
}

impl Config {
    /// All slots: the most requests that the policy can ever hold.
    pub(crate) fn slots(&self) -> u32 {
        self.nr_requests * u32::from(self.hw_queues) + FLUSH_SLOTS
    }

    /// Returns whether requests may take a short way to the device.
    pub(crate) fn has_short_ways(&self) -> bool {
        self.bypass && self.hw_queues == 1
    }
}

/// Settings that an elevator takes while requests are held.
pub(crate) struct Tuning {
    /// Attributes of the policy, with values within their ranges.
    pub(crate) options: Vec<(&'static str, i64)>,
    /// As in [`Config`].
    pub(crate) async_depth: u32,
    /// Changes to the tree of groups.
    pub(crate) regroup: Vec<GroupChange>,
    /// All groups, for the controller of latency goals and the account of floors.
    pub(crate) members: Vec<Member>,
    /// The statistics to keep about groups.
    pub(crate) stats: StatsMode,
    /// The fates of traces, by elevator from the last one on.
    pub(crate) tapping: Vec<Tapping>,
    /// Observers of the policies are there no longer.
    pub(crate) unobserved: bool,
}

/// The fate of an elevator's trace when its settings change.
pub(crate) enum Tapping {
    /// It stays as it is.
    Keep,
    /// There is none.
    End,
    /// There is another one.
    Begin(Tap),
}
