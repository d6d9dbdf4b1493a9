//! Building and changing a queue: the methods of a queue by which it is created, changed and traced.

pub(crate) mod build;
pub(crate) mod change;

use crate::dispatch::pump::Vacant;
use crate::elevator::Tuning;
use crate::elevator::plug::Staging;
use crate::groups::{Ledger, Meters};
use crate::plan::Plan;
use crate::plan::config::{Config, ConfigError, PolicyObserver, Watchers};
use crate::reconfiguration::build::{Handover, build, install};
use crate::reconfiguration::change::{
    Change, ChangeError, EditError, Freeze, Quiesce, Way, same_device, tuning,
};
use crate::shared::hub::{Lasting, OTHER_TALLIES, Parts, Seats};
use crate::submission::Root;
use crate::sync::{Arc, ArcDyn, Control, Mutex, ring};
use crate::{BioTable, GroupTree, MAX_TRACE_NOTES, PumpMode, Queue, Trace};
use blkmq_core::{HwQueue, Instant, Payload, SubmitterId};
use crossbeam_utils::CachePadded;
use std::fmt;

impl<P: Payload> Queue<P> {
    /// Builds a queue.
    ///
    /// # Errors
    /// If the configuration contradicts itself or exceeds a limit.
    pub fn new(config: Config<P>) -> Result<Self, ConfigError> {
        config.validate()?;
        let plan = config.plan();
        let membership = match &config.tags {
            Some(tags) => Some(tags.reserve().ok_or(ConfigError::TagUsers)?),
            None => None,
        };
        let lanes = match config.pump {
            PumpMode::Inline | PumpMode::Thread => config.queues.len() as u16,
            PumpMode::Owner => config.submitters,
        };
        let (table, credits) = BioTable::new(config.submitters, config.depth);
        let (mut idle, mut staging, mut senders) = (Vec::new(), Vec::new(), Vec::new());
        for (id, credit) in (0..config.submitters).map(SubmitterId).zip(credits) {
            let (producer, protos) = ring(credit.depth());
            // One ask for each I/O that may be in flight.
            let (asks_end, asks) = ring(credit.depth());
            let (sender, receiver) = table.finish_ring(&credit);
            staging.push((id, Staging { protos, asks }));
            senders.push(sender);
            let (hw, lane) = (plan.home(id.0), HwQueue(id.0 % lanes));
            let has_lane = usize::from(lane.0) < config.queues.len();
            let (staging, asks) = (producer, asks_end);
            idle.push(Parts { id, hw, lane, has_lane, staging, asks, receiver, credit });
        }
        idle.reverse();
        let pump_tallies = (0..lanes + OTHER_TALLIES).map(|_| CachePadded::default()).collect();
        let lasting = Arc::new(Lasting {
            table,
            tallies: senders.iter().map(|_| Arc::default()).collect(),
            senders: senders.into_boxed_slice(),
            attendance: (0..config.submitters).map(|_| CachePadded::default()).collect(),
            host: config.host,
            pump_tallies,
            control: Control::new(),
            meters: Meters::new(),
            ledger: Arc::new(Ledger::new()),
            pump_mode: config.pump,
            seats: Seats::new(idle),
            salvage: Mutex::new(()),
            membership,
        });
        lasting.meters.set(Instant::ZERO, &GroupTree::default(), &plan.groups);
        lasting.ledger.regroup(GroupTree::default().changes(&plan.groups));
        let mut engine =
            build((&plan, &Watchers::default()), Arc::clone(&lasting), lasting.control.version());
        let vacant = std::iter::repeat_with(|| Box::new(Vacant) as _);
        let devices = config.queues.into_iter().chain(vacant).take(lanes.into());
        let devices = devices.map(|queue| (queue, Instant::ZERO));
        install(&mut engine, Handover { devices: devices.collect(), staging, waiting: Vec::new() });
        let root = Arc::new(Root::new(engine, plan));
        // Loom has no weak pointers, and models no queues.
        #[cfg(not(loom))]
        if let Some(membership) = &root.lasting.membership {
            let queue = Arc::downgrade(&root);
            membership.take(queue);
        }
        Ok(Self { root })
    }
}

/// Why a trace cannot begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TraceError {
    /// Another trace, or another observer of the policies, is active.
    Busy,
    /// The requested number of notes is 0 or too large.
    Room(u32),
    /// The queue refuses changes at present.
    Change(ChangeError),
}

impl From<ChangeError> for TraceError {
    fn from(error: ChangeError) -> Self {
        Self::Change(error)
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("busy: another one of the device is under way"),
            Self::Room(notes) => {
                write!(f, "room for {notes} notes; accepted: 1 to {MAX_TRACE_NOTES}")
            }
            Self::Change(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for TraceError {}

impl<P: Send + 'static> Queue<P> {
    /// Begins a trace, with room for `notes` notes at each elevator, rounded up to a power of two. It begins in the
    /// steps of the [`Change`], and stops no I/O. A queue has at most one trace at a time.
    ///
    /// # Errors
    /// If there is a trace already, `notes` is 0 or above [`MAX_TRACE_NOTES`], or the queue refuses changes at present.
    pub fn begin_trace(&self, notes: u32) -> Result<(Trace, Change<P>), TraceError> {
        if !(1..=MAX_TRACE_NOTES).contains(&notes) {
            return Err(TraceError::Room(notes));
        }
        let trace = Trace::new(notes);
        let change = self.change_watched(|plan, watchers| match watchers.trace {
            Some(_) => Err(TraceError::Busy),
            None => {
                let trace = Some(Arc::clone(trace.shared()));
                Ok((plan.clone(), Watchers { trace, ..watchers.clone() }))
            }
        })?;
        Ok((trace, change))
    }

    /// Lets elevators record the completions that no pass has seen, because without I/O there are no passes. For
    /// readers of traces, between two readings. O(elevators).
    pub fn settle_trace(&self) {
        // Held because this enters elevators under the number of the thread that changes the queue.
        let _state = self.root.change_state();
        self.root.current().learn_all();
    }

    /// Begins to end `trace`; after the [`Change`] is over, no more events are added. The recorded ones can still be
    /// read.
    ///
    /// # Errors
    /// If the queue refuses changes at present.
    pub fn end_trace(&self, trace: &Trace) -> Result<Change<P>, ChangeError> {
        self.settle_trace();
        self.change_watched(|plan, watchers| {
            let mut to = watchers.clone();
            to.trace = to.trace.filter(|mine| !Arc::ptr_eq(mine, trace.shared()));
            Ok((plan.clone(), to))
        })
    }

    /// Puts `observer` around the queue's policies, until [`unobserve_policies`](Self::unobserve_policies). It sees
    /// each policy from its beginning, so the queue gets new policies: it is frozen and drained as for another
    /// scheduler, and the policies lose what they have learned. A queue has at most one observer at a time.
    ///
    /// # Errors
    /// If there is an observer already, or the queue refuses changes at present.
    pub fn observe_policies(
        &self,
        observer: ArcDyn<dyn PolicyObserver>,
    ) -> Result<Change<P>, TraceError> {
        self.change_watched(|plan, watchers| match watchers.observer {
            Some(_) => Err(TraceError::Busy),
            None => {
                let observer = Some(observer);
                Ok((plan.clone(), Watchers { observer, ..watchers.clone() }))
            }
        })
    }

    /// Removes the observer without stopping I/O: the policies stay, and keep what they have learned.
    ///
    /// # Errors
    /// If the queue refuses changes at present.
    pub fn unobserve_policies(&self) -> Result<Change<P>, ChangeError> {
        self.change_watched(|plan, watchers| {
            Ok((plan.clone(), Watchers { observer: None, ..watchers.clone() }))
        })
    }
}

impl<P: Send + 'static> Queue<P> {
    /// A copy of the current settings.
    #[must_use]
    pub fn plan(&self) -> Plan {
        self.root.change_state().plan.clone()
    }

    /// Begins to replace the settings by those that `edit` makes of the current ones. The settings stay the same while
    /// `edit` runs: edits are made one after another, and none reverts another. Changes of options, `async_depth`,
    /// groups and statistics are made in the running elevators. Every other change freezes the queue, and takes effect
    /// when all I/O in flight has ended, which does not happen while the queue is quiesced.
    ///
    /// If the policy is chosen by groups ([`Plan::auto`]) and `edit` makes groups compete that did not before, the
    /// policy changes.
    ///
    /// `edit` must not call the queue.
    ///
    /// # Errors
    /// If `edit` refuses, if its plan is impossible or for another device, if another change is in progress, or if the
    /// queue is poisoned.
    pub fn edit<E>(
        &self,
        edit: impl FnOnce(&mut Plan) -> Result<(), E>,
    ) -> Result<Change<P>, EditError<E>> {
        self.change_by(|plan| {
            let mut to = plan.clone();
            edit(&mut to).map_err(EditError::Edit)?;
            Ok(to)
        })
    }

    /// Like [`edit`](Self::edit), for a caller with its own errors.
    pub(crate) fn change_by<E: From<ChangeError>>(
        &self,
        edit: impl FnOnce(&Plan) -> Result<Plan, E>,
    ) -> Result<Change<P>, E> {
        self.change_watched(|plan, watchers| Ok((edit(plan)?, watchers.clone())))
    }

    /// Like [`edit`](Self::edit), but also edits the observers of the queue.
    fn change_watched<E: From<ChangeError>>(
        &self,
        edit: impl FnOnce(&Plan, &Watchers) -> Result<(Plan, Watchers), E>,
    ) -> Result<Change<P>, E> {
        if self.is_poisoned() {
            return Err(ChangeError::Poisoned.into());
        }
        let mut state = self.root.change_state();
        if state.taken {
            return Err(ChangeError::Busy.into());
        }
        let (to, watchers) = edit(&state.plan, &state.watchers)?;
        let to = to.following_groups();
        to.validate().map_err(ChangeError::Config)?;
        if !same_device(&state.plan, &to) {
            return Err(ChangeError::Device.into());
        }
        let tuning = tuning(&state.plan, &to);
        let way = match tuning.filter(|_| !watchers.need_new_policies(&state.watchers)) {
            Some(tuning) => {
                let tapping = watchers.tapping(&state.watchers, to.shards());
                let unobserved = watchers.observer.is_none() && state.watchers.observer.is_some();
                Way::Tune { tuning: Tuning { tapping, unobserved, ..tuning }, next: 0 }
            }
            None => {
                let q = self.root.current();
                // Built before the queue is frozen, because allocation takes time.
                let next = build(
                    (&to, &watchers),
                    Arc::clone(&q.hub.lasting),
                    Control::next_version(q.hub.version),
                );
                self.root.lasting.control.freeze();
                Way::Rebuild(Box::new(next))
            }
        };
        state.taken = true;
        drop(state);
        Ok(Change { root: Arc::clone(&self.root), to: Box::new(to), watchers, way })
    }

    /// Freezes the queue: I/Os submitted later wait in staging.
    pub fn freeze(&self) -> Freeze<P> {
        self.root.lasting.control.freeze();
        Freeze { root: Arc::clone(&self.root) }
    }

    /// Quiesces the queue: devices are given no requests once [`Quiesce::step`] has returned true.
    pub fn quiesce(&self) -> Quiesce<P> {
        self.root.lasting.control.quiesce();
        Quiesce { root: Arc::clone(&self.root), seen: 0 }
    }
}
