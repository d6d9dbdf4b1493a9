//! Freeze, quiesce, and reconfiguration of a queue while I/O runs (`spec/framework.md` sections 10 and 11).
//!
//! *Frozen*: newly submitted I/Os wait in staging, and admitted ones complete; then nothing is in flight. *Quiesced*:
//! devices are given no requests; completions and submissions continue. Both nest.
//!
//! A [`Change`] freezes the queue, waits until it is drained, and puts another queue in its place, with the same
//! devices and the same staging: another scheduler, depth, scope or access. The new queue admits the I/Os that were
//! staged in the meantime, in their order, so none is lost, doubled, or reordered against a flush.
//!
//! Like all of the engine, this never blocks. The caller repeats `step` until it returns true; each step does a share
//! of the I/O that the change waits for.

use crate::dispatch::Engine;
use crate::dispatch::visit::Held;
use crate::elevator::Tuning;
use crate::plan::Plan;
use crate::plan::config::{ConfigError, Watchers};
use crate::planted::Planted;
use crate::reconfiguration::{Handover, install};
use crate::submission::Root;
use crate::sync::{Arc, Ordering, fence};
use crate::{DeviceShape, planted};
use blkmq_core::Instant;
use std::fmt;

/// Why a requested change of a queue is impossible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ChangeError {
    /// The plan contradicts itself or exceeds a limit.
    Config(ConfigError),
    /// The plan is for another device: with other hardware queues, driver tags or budgets.
    Device,
    /// Another change is in progress.
    Busy,
    /// A policy or a device of the queue has panicked.
    Poisoned,
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(e) => e.fmt(f),
            Self::Device => f.write_str(
                "the number of hardware queues, driver tags and budgets is the device's and cannot be changed",
            ),
            Self::Busy => f.write_str("another change of this queue is under way; try again"),
            Self::Poisoned => f.write_str("a policy or a device of the queue panicked; build another one"),
        }
    }
}

impl std::error::Error for ChangeError {}

/// Why a plan was not edited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EditError<E> {
    /// The closure refused.
    Edit(E),
    /// The queue refused.
    Change(ChangeError),
}

impl<E> From<ChangeError> for EditError<E> {
    fn from(error: ChangeError) -> Self {
        Self::Change(error)
    }
}

impl<E: fmt::Display> fmt::Display for EditError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Edit(e) => e.fmt(f),
            Self::Change(e) => e.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for EditError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Edit(e) => Some(e),
            Self::Change(e) => Some(e),
        }
    }
}

/// A change of a queue to another plan, in progress. Dropping it before it is done leaves the queue unchanged.
#[must_use = "a change takes place in its steps"]
pub struct Change<P> {
    pub(super) root: Arc<Root<P>>,
    pub(super) to: Box<Plan>,
    pub(super) watchers: Watchers,
    pub(super) way: Way<P>,
}

/// The kind of a change, and its progress.
pub(super) enum Way<P> {
    /// Only settings of running elevators change: `next` is the first elevator that has not been notified.
    Tune {
        tuning: Tuning,
        next: usize,
    },
    /// Another queue has been built and waits for this one to be drained.
    Rebuild(Box<Engine<P>>),
    Done,
    /// The queue was poisoned during the change.
    Failed,
}

/// Holds a queue frozen: no submitted I/O is admitted. Dropping it thaws the queue.
#[must_use = "a queue thaws when this is dropped"]
pub struct Freeze<P> {
    pub(super) root: Arc<Root<P>>,
}

/// Holds a queue quiesced: no request is issued to its devices. Dropping it lets the queue continue.
#[must_use = "a queue goes on when this is dropped"]
pub struct Quiesce<P> {
    pub(super) root: Arc<Root<P>>,
    /// Number of leading hardware queues whose pump was found at rest.
    pub(super) seen: usize,
}

macro_rules! opaque {
    ($($name:ident),*) => {
        $(impl<P> fmt::Debug for $name<P> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        })*
    };
}

opaque!(Change, Freeze, Quiesce);

pub(super) fn same_device(one: &Plan, other: &Plan) -> bool {
    let counts = |d: &DeviceShape| (d.hw_queues, d.hw_queue_depth, d.shared_tags, d.budget);
    one.hardware == other.hardware && counts(&one.device) == counts(&other.device)
}

/// The settings to change in running elevators; `None` if the plans differ in more than these.
pub(super) fn tuning(from: &Plan, to: &Plan) -> Option<Tuning> {
    let alike = from.scheduler.name == to.scheduler.name
        && from.effective_scope() == to.effective_scope()
        && from.effective_nr_requests() == to.effective_nr_requests()
        && same_modes(from, to)
        && from.nomerges == to.nomerges
        && from.retries == to.retries
        && from.device_depth == to.device_depth
        && from.forecast == to.forecast
        && from.groups.has_goals() == to.groups.has_goals()
        && from.device == to.device;
    let names = to.scheduler.attributes.iter().map(|attribute| attribute.name);
    let values = names.map(|name| (name, from.options.get(name), to.options.get(name)));
    alike.then(|| Tuning {
        options: values
            .filter(|(_, old, new)| old != new)
            .map(|(name, _, new)| (name, new))
            .collect(),
        async_depth: to.effective_async_depth(),
        regroup: from.groups.changes(&to.groups),
        members: to.groups.members(),
        stats: to.stats,
        tapping: Vec::new(),
        unobserved: false,
    })
}

#[cfg(feature = "compare")]
fn same_modes(from: &Plan, to: &Plan) -> bool {
    from.effective_modes() == to.effective_modes()
}

#[cfg(not(feature = "compare"))]
fn same_modes(_: &Plan, _: &Plan) -> bool {
    true
}

impl<P: Send + 'static> Change<P> {
    /// Continues the change. Returns whether it is over; otherwise call it again soon. Does I/O that is due.
    /// [`outcome`](Self::outcome) says how the change ended.
    #[must_use = "it may have to be called again"]
    pub fn step(&mut self, now: Instant) -> bool {
        let root = Arc::clone(&self.root);
        if root.lasting.control.is_poisoned() {
            self.give_up(Way::Failed);
            return true;
        }
        let mut state = root.change_state();
        let q = root.current();
        match &mut self.way {
            Way::Done | Way::Failed => return true,
            Way::Tune { tuning, next } => {
                *next += q.tune(*next, tuning);
                q.help(now);
                if *next < q.hub.shards.len() {
                    return false;
                }
            }
            Way::Rebuild(_) => {
                let Some(held) = q.enter_idle() else {
                    q.help(now);
                    return false;
                };
                let Way::Rebuild(mut next) = std::mem::replace(&mut self.way, Way::Done) else {
                    unreachable!("it was to be rebuilt a moment ago")
                };
                install(&mut next, held.take());
                q.count_into(&mut state.past);
                let next = root.replace(*next);
                if root.lasting.control.thaw() {
                    next.reopen();
                }
            }
        }
        self.way = Way::Done;
        if state.plan.groups != self.to.groups {
            let changed = root.lasting.meters.set(now, &state.plan.groups, &self.to.groups);
            if changed && !planted::is(Planted::ChangesInSilence) {
                // Submitters may be sleeping until a time set by the old limit.
                fence(Ordering::SeqCst);
                root.current().wake_all();
            }
            // New groups enter the ledger before anything is counted for them, because threads use their numbers only
            // after reading them from the plan. Removed groups leave their counts to their parents.
            root.lasting.ledger.regroup(state.plan.groups.changes(&self.to.groups));
        }
        state.plan = (*self.to).clone();
        state.watchers = self.watchers.clone();
        state.taken = false;
        true
    }
}

impl<P> Change<P> {
    /// Returns whether the change waits until nothing is in flight. Until then, dropping it leaves no trace in the
    /// queue.
    #[must_use]
    pub fn waits_for_io(&self) -> bool {
        matches!(self.way, Way::Rebuild(_))
    }

    /// How the change ended, once [`step`](Self::step) has returned true; `Ok` before that.
    ///
    /// # Errors
    /// [`ChangeError::Poisoned`] if a policy or a device panicked during the change: the settings are then unspecified.
    pub fn outcome(&self) -> Result<(), ChangeError> {
        match self.way {
            Way::Failed => Err(ChangeError::Poisoned),
            Way::Tune { .. } | Way::Rebuild(_) | Way::Done => Ok(()),
        }
    }

    /// Leaves the queue unchanged, if the change is not over.
    fn give_up(&mut self, end: Way<P>) {
        if matches!(self.way, Way::Done | Way::Failed) {
            return;
        }
        let was_frozen = matches!(std::mem::replace(&mut self.way, end), Way::Rebuild(_));
        let mut state = self.root.change_state();
        state.taken = false;
        if was_frozen && self.root.lasting.control.thaw() {
            self.root.current().reopen();
        }
    }
}

impl<P> Drop for Change<P> {
    fn drop(&mut self) {
        self.give_up(Way::Done);
    }
}

impl<P: Send> Freeze<P> {
    /// Returns whether nothing is in flight, which then stays so; otherwise call it again soon. Does I/O that is due.
    /// Returns true for a poisoned queue, which admits no more I/Os.
    #[must_use = "the queue is frozen when it says so"]
    pub fn step(&mut self, now: Instant) -> bool {
        if self.root.lasting.control.is_poisoned() {
            return true;
        }
        let _state = self.root.change_state();
        let q = self.root.current();
        let idle = q.enter_idle().is_some();
        q.help(now);
        idle
    }
}

impl<P> Drop for Freeze<P> {
    fn drop(&mut self) {
        let _state = self.root.change_state();
        if self.root.lasting.control.thaw() {
            self.root.current().reopen();
        }
    }
}

impl<P: Send> Quiesce<P> {
    /// Returns whether no device is being given a request, which then stays so; otherwise call it again soon. Returns
    /// true for a poisoned queue, which issues no more requests.
    #[must_use = "the queue is quiesced when it says so"]
    pub fn step(&mut self, now: Instant) -> bool {
        if self.root.lasting.control.is_poisoned() {
            return true;
        }
        let _state = self.root.change_state();
        let q = self.root.current();
        // A pump that is not in a turn reads the control word in its next one.
        while self.seen < q.pumps.len() && q.pumps[self.seen].enter(q.hub.changer()).is_some() {
            self.seen += 1;
        }
        q.help(now);
        self.seen == q.pumps.len()
    }
}

impl<P> Drop for Quiesce<P> {
    fn drop(&mut self) {
        let _state = self.root.change_state();
        if self.root.lasting.control.unquiesce() {
            self.root.current().reopen();
        }
    }
}

impl<P> Held<'_, P> {
    /// Takes the devices, the staging and the waiting I/Os for the next queue. This queue is used afterwards only by
    /// threads that have not seen the change, and they find no work in it.
    fn take(mut self) -> Handover<P> {
        self.runners.iter_mut().for_each(|runner| {
            runner.elevator.env.count_notes();
            runner.elevator.count_times();
            runner.elevator.end_trace();
        });
        Handover {
            devices: self.pumps.iter_mut().map(|pump| pump.take_device()).collect(),
            waiting: self.runners.iter_mut().flat_map(|r| r.elevator.take_waiting()).collect(),
            staging: self.runners.iter_mut().flat_map(|runner| runner.retire()).collect(),
        }
    }
}
