//! Building and changing a queue: the methods of a queue by which it is created, changed and traced, and the building
//! from a plan: elevators, hardware queues and the rings between them.
//!
//! A built queue is complete except for its devices and the staging of its submitters. They come last ([`install`]),
//! because a rebuilt queue takes them from its predecessor.
//!
//! # Changes while I/O runs
//!
//! Freeze, quiesce, and reconfiguration (`spec/framework.md` sections 10 and 11). *Frozen*: newly submitted I/Os wait
//! in staging, and admitted ones complete; then nothing is in flight. *Quiesced*: devices are given no requests;
//! completions and submissions continue. Both nest.
//!
//! A [`Change`] freezes the queue, waits until it is drained, and puts another queue in its place, with the same
//! devices and the same staging: another scheduler, depth, scope or access. The new queue admits the I/Os that were
//! staged in the meantime, in their order, so none is lost, doubled, or reordered against a flush.
//!
//! Like all of the engine, this never blocks. The caller repeats `step` until it returns true; each step does a share
//! of the I/O that the change waits for.

use crate::dispatch::Engine;
use crate::dispatch::pump::{Ends, Installed, Pump, PumpLimits, Vacant};
use crate::dispatch::visit::Held;
use crate::elevator::merging::Staging;
use crate::elevator::runner::{Lane, Runner};
use crate::elevator::watch::{Forecaster, Keeper, Watches};
use crate::elevator::{Budgets, Elevator, Tuning};
use crate::groups::{Ledger, Meters};
use crate::plan::Plan;
use crate::plan::config::{Config, ConfigError, PolicyObserver, Watchers};
use crate::planted::Planted;
use crate::shared::common::{Common, ElevatorEnv};
use crate::shared::hctx::{Hctx, Membership, PluggedRequest, Tags};
use crate::shared::hub::{Completions, Hub, Lasting, OTHER_TALLIES, Parts, Seats, Shard};
use crate::shared::modes::{Access, EffectiveModes, Parked, ShardModes};
use crate::shared::stats::{Board, ElevatorCounters, Prospect};
use crate::submission::Root;
use crate::sync::{
    AlarmRef, Arc, ArcDyn, COMPARE, Control, Gate, GateShape, Level, Mutex, Ordering, Pending,
    Restart, Sleepers, TokenPool, fence, ring,
};
use crate::{
    BioTable, DeviceShape, GroupTree, Inflight, MAX_GROUPS, MAX_TRACE_NOTES, PumpMode, Queue,
    Trace, WriteCache, elevator, planted,
};
use blkmq_core::{HwQueue, Instant, Payload, SubmitterId};
use blkmq_sched::Shape;
use crossbeam_utils::CachePadded;
use std::fmt;
use std::ops::Range;

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
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// Another trace, or another observer of the policies, is active.
    #[error("busy: another one of the device is under way")]
    Busy,
    /// The requested number of notes is 0 or too large.
    #[error("room for {0} notes; accepted: 1 to {MAX_TRACE_NOTES}")]
    Room(u32),
    /// The queue refuses changes at present.
    #[error("{0}")]
    Change(ChangeError),
}

impl From<ChangeError> for TraceError {
    fn from(error: ChangeError) -> Self {
        Self::Change(error)
    }
}

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

/// The parts of a queue that are not built from its plan, but come from its configuration or from its predecessor.
struct Handover<P> {
    /// By hardware queue.
    pub(crate) devices: Vec<Installed<P>>,
    /// The staging of every submitter.
    pub(crate) staging: Vec<(SubmitterId, Staging)>,
    /// I/Os that left staging and have no slot, in the order of arrival within each elevator.
    pub(crate) waiting: Vec<(SubmitterId, PluggedRequest)>,
}

/// Builds the queue of a valid `plan`, without devices and staging.
pub(crate) fn build<P: Send + 'static>(
    (plan, watchers): (&Plan, &Watchers),
    lasting: Arc<Lasting<P>>,
    version: u32,
) -> Engine<P> {
    let table = &lasting.table;
    let gate = GateShape {
        lock: modes(plan).lock(),
        work: modes(plan).work(),
        // Every submitter, every pump thread, a thread that changes the queue, and a thread that keeps a run.
        threads: lasting.senders.len() + usize::from(lanes(plan, &lasting)) + 2,
        alarm: alarm(&lasting),
    };
    let common = build_common(plan);
    let budget = plan.budget().map(|budget| Arc::new(TokenPool::new(budget, plan.shards())));
    let board = plan.groups.has_goals().then(Board::new);
    let keeper = board.as_ref().and_then(|board| Some(keeper(plan, budget.clone()?, board)));
    let Built { shards, runners, ends, levels } =
        build_shards((plan, watchers), &lasting, (common.as_ref(), keeper));
    let limits = |lane| PumpLimits {
        lane,
        is_owned: lasting.pump_mode == PumpMode::Owner,
        tags: plan.device.hw_queue_depth,
        timeout: plan.device.timeout,
        retries: plan.retries,
    };
    let pump = |(lane, ends)| {
        let pump = Pump::new(Box::new(Vacant), ends, table, limits(lane));
        Gate::new(&gate, pump)
    };
    let elevator = |runner| Gate::new(&gate, runner);
    Engine {
        pumps: (0..).zip(ends).map(pump).collect(),
        elevators: runners.into_iter().map(elevator).collect(),
        hub: Hub {
            limits: plan.device.limits,
            needs_no_flush: plan.device.cache == WriteCache::Through,
            meaningless: plan.device.cache.meaningless(),
            modes: modes(plan),
            nr_requests: plan.effective_nr_requests(),
            nomerges: plan.nomerges,
            budget,
            board,
            tag_wait: Pending::new(shards.len() as u16),
            hctxs: build_hctxs(plan, levels, shards.len(), &lasting),
            common,
            shards: shards.into_boxed_slice(),
            version,
            lasting,
        },
    }
}

/// Installs the parts that are not built from the plan.
fn install<P: Send + 'static>(engine: &mut Engine<P>, from: Handover<P>) {
    let Handover { devices, staging, waiting } = from;
    let submitters = engine.hub.lasting.senders.len();
    assert!(devices.len() == engine.pumps.len() && staging.len() == submitters);
    for ((pump, hctx), device) in engine.pumps.iter_mut().zip(&engine.hub.hctxs).zip(devices) {
        pump.get_mut().install(device);
        hctx.set_signals(pump.get_mut().signals());
    }
    for (id, staging) in staging {
        let at = shard_of_submitter(engine, id);
        engine.elevators[at].get_mut().install(id, staging);
        // Asks to cancel that the previous queue did not answer are answered before anything is admitted here.
        engine.hub.shards[at].asked.set(id.0);
    }
    for (id, proto) in waiting {
        let at = shard_of_submitter(engine, id);
        engine.elevators[at].get_mut().adopt(id, proto);
    }
}

fn shard_of_submitter<P>(engine: &Engine<P>, id: SubmitterId) -> usize {
    let shard = engine.hub.shards.iter().position(|shard| shard.submitters.contains(&id));
    shard.expect("every submitter has an elevator")
}

/// The elevators of a queue, and their ends of the rings to the pumps.
#[derive(Default)]
struct Built {
    shards: Vec<Shard>,
    runners: Vec<Runner>,
    /// By hardware queue.
    ends: Vec<Ends>,
    /// The fill levels of the outboxes, by hardware queue.
    levels: Vec<Level<Inflight>>,
}

/// The modes of a valid plan.
fn modes(plan: &Plan) -> EffectiveModes {
    plan.effective_modes().expect("a plan is checked before it is built")
}

/// Returns whether an I/O without a slot must not merge, because merging was tried before insertion.
fn slots_first(plan: &Plan) -> bool {
    modes(plan).parks()
}

/// Returns whether requests may bypass a policy. Under a lock they are dispatched one by one, as in the systems
/// compared.
fn bypass(plan: &Plan) -> bool {
    !COMPARE || modes(plan).access == Access::Combining
}

/// The alarm that a panic in an elevator or a pump raises. Loom models no queues.
#[cfg_attr(loom, allow(unused_variables))]
fn alarm<P: Send + 'static>(lasting: &Arc<Lasting<P>>) -> AlarmRef {
    #[cfg(not(loom))]
    return Some(Arc::clone(lasting) as _);
    #[cfg(loom)]
    None
}

/// The shape for which a policy with `slots` slots is built.
fn shape(plan: &Plan, slots: u32) -> Shape {
    Shape {
        slots,
        nr_requests: plan.effective_nr_requests(),
        hw_depth: plan.device.hw_queue_depth,
        hw_queues: plan.device.hw_queues / plan.shards(),
        rotational: plan.device.limits.rotational,
    }
}

/// The controller of latency goals. There is only one elevator then, so the controller sees all I/O of its queue.
fn keeper(plan: &Plan, budget: Arc<TokenPool>, board: &Board) -> Keeper {
    Keeper::new(budget, (&plan.groups.members(), plan.facts().capacity), board)
}

/// The state that the instances of the policy share. A governor holds no requests, so it has no slots.
fn build_common(plan: &Plan) -> Option<Arc<Common>> {
    Common::new(plan.scheduler, &shape(plan, 0), &plan.options, plan.shards())
}

/// The configuration of the elevator for `hws`.
fn elevator_config(
    plan: &Plan,
    hws: Range<u16>,
    submitters: u16,
    credit: usize,
) -> elevator::Config {
    elevator::Config {
        limits: plan.device.limits,
        cache: plan.flushed_cache(),
        nomerges: plan.nomerges,
        first_hw: hws.start,
        hw_queues: hws.end - hws.start,
        nr_requests: plan.effective_nr_requests(),
        hw_queue_depth: plan.device.hw_queue_depth,
        async_depth: plan.effective_async_depth(),
        slots_first: slots_first(plan),
        bypass: bypass(plan),
        submitters,
        credit,
        budgets: budgets(plan),
    }
}

/// Which requests need a budget. The comparison modes take one for each request if there is any limit.
fn budgets(plan: &Plan) -> Budgets {
    match (plan.budget(), plan.device_depth.budget(&plan.device)) {
        (None, _) => Budgets::Never,
        (Some(_), None) if bypass(plan) => Budgets::WhileTaken,
        (Some(_), _) => Budgets::Always,
    }
}

fn build_shards<P>(
    (plan, watchers): (&Plan, &Watchers),
    lasting: &Lasting<P>,
    (common, mut keeper): (Option<&Arc<Common>>, Option<Keeper>),
) -> Built {
    let Lasting { table, ledger, senders, .. } = lasting;
    let submitters = senders.len() as u16;
    let count = plan.shards();
    let (hws_each, per_shard) = (plan.device.hw_queues / count, lanes(plan, lasting) / count);
    let nr_requests = plan.effective_nr_requests();
    let mut built = Built::default();
    for index in 0..count {
        let first_hw = index * hws_each;
        let hws = first_hw..first_hw + hws_each;
        let elevator_config = elevator_config(plan, hws, submitters, table.capacity());
        let slots = elevator_config.slots();
        let hw_depth = plan.device.hw_queue_depth;
        let shape = shape(plan, slots);
        let policy = watchers.policy(plan.scheduler, &shape, &plan.options);
        let ledger = Arc::clone(ledger);
        let env = ElevatorEnv::new(common.map(Arc::clone), (index, count), plan.stats, ledger);
        let counters = Arc::<CachePadded<ElevatorCounters>>::default();
        let mine = |id: &u16| plan.shards() == 1 || plan.home(*id).0 == index;
        let lanes = (0..per_shard).map(|_| {
            let (lane, ends) = build_lane(hw_depth, slots);
            built.ends.push(ends);
            built.levels.push(lane.outbox.level());
            lane
        });
        let prospect = plan.forecast.then(|| Arc::new(Prospect::new(MAX_GROUPS + 1)));
        let forecaster = prospect.clone().map(|it| Forecaster::new(slots, MAX_GROUPS + 1, it));
        let watches = Watches { trace: watchers.tap(index), goals: keeper.take(), forecaster };
        let mut elevator =
            Elevator::new(elevator_config, policy, env, Arc::clone(&counters), watches);
        elevator.regroup(&GroupTree::default().changes(&plan.groups));
        elevator.tune_floors(&plan.groups.members());
        let (lanes, completions) = (lanes.collect(), Completions::new(table));
        built.runners.push(Runner::new(
            elevator,
            lanes,
            first_hw,
            submitters,
            completions,
            Parked::new(modes(plan), per_shard, nr_requests),
        ));
        built.shards.push(Shard {
            modes: ShardModes::new(modes(plan), submitters, per_shard, nr_requests),
            pending: Pending::new(submitters),
            asked: Pending::new(submitters),
            returned: Pending::new(per_shard),
            sleepers: Sleepers::default(),
            submitters: (0..submitters).filter(mine).map(SubmitterId).collect(),
            index,
            first_hw,
            lanes: per_shard,
            counters,
            prospect,
        });
    }
    built
}

/// The rings between an elevator with `slots` slots and a pump with `hw_depth` driver tags.
fn build_lane(hw_depth: u32, slots: u32) -> (Lane, Ends) {
    let (outbox, outbox_end) = ring(hw_depth);
    let (returns_end, returns) = ring(slots);
    let (handbacks_end, handbacks) = ring(slots);
    let ends = Ends { outbox: outbox_end, returns: returns_end, handbacks: handbacks_end };
    (Lane { outbox, returns, handbacks, hint: 0 }, ends)
}

fn build_hctxs<P>(
    plan: &Plan,
    levels: Vec<Level<Inflight>>,
    shards: usize,
    lasting: &Lasting<P>,
) -> Box<[Hctx]> {
    let DeviceShape { hw_queue_depth, shared_tags, .. } = plan.device;
    let owned = lasting.pump_mode == PumpMode::Owner;
    let new_tags = || Tags::new(hw_queue_depth, shards as u16, shared_tags);
    let all = match &lasting.membership {
        Some(Membership { tags, user }) => Some(Tags::of(tags, *user)),
        None => (shared_tags || owned).then(new_tags),
    };
    // A request for one lane may wait for a tag that another lane frees.
    let restart = owned.then(|| Arc::new(CachePadded::new(Restart::new())));
    let hctxs = levels.into_iter().map(|level| {
        let tags = all.clone().unwrap_or_else(new_tags);
        let restart = restart.clone().unwrap_or_else(|| Arc::new(CachePadded::new(Restart::new())));
        Hctx::new(tags, level, restart, Arc::default())
    });
    hctxs.collect()
}

/// The number of lanes: one for each hardware queue, or for each submitter.
fn lanes<P>(plan: &Plan, lasting: &Lasting<P>) -> u16 {
    match lasting.pump_mode {
        PumpMode::Inline | PumpMode::Thread => plan.device.hw_queues,
        PumpMode::Owner => lasting.senders.len() as u16,
    }
}

/// Why a requested change of a queue is impossible.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// The plan contradicts itself or exceeds a limit.
    #[error("{0}")]
    Config(ConfigError),
    /// The plan is for another device: with other hardware queues, driver tags or budgets.
    #[error(
        "the number of hardware queues, driver tags and budgets is the device's and cannot be \
         changed"
    )]
    Device,
    /// Another change is in progress.
    #[error("another change of this queue is under way; try again")]
    Busy,
    /// A policy or a device of the queue has panicked.
    #[error("a policy or a device of the queue panicked; build another one")]
    Poisoned,
}

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

fn same_device(one: &Plan, other: &Plan) -> bool {
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

fn same_modes(from: &Plan, to: &Plan) -> bool {
    !COMPARE || from.effective_modes() == to.effective_modes()
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
