//! Building a queue from its plan: elevators, hardware queues and the rings between them.
//!
//! A built queue is complete except for its devices and the staging of its submitters. They come last ([`install`]),
//! because a rebuilt queue takes them from its predecessor.

use crate::dispatch::Engine;
use crate::dispatch::gate::{Gate, GateShape};
use crate::dispatch::pump::{Ends, Installed, Pump, PumpLimits, Vacant};
use crate::elevator::goals::{Forecaster, Keeper, Watches};
use crate::elevator::plug::Staging;
use crate::elevator::runner::{Lane, Runner};
use crate::elevator::{Budgets, Elevator};
use crate::plan::Plan;
use crate::plan::config::Watchers;
use crate::shared::common::{Common, ElevatorEnv};
use crate::shared::hctx::{Hctx, Membership, Tags};
use crate::shared::hub::{Completions, Hub, Lasting, Shard};
use crate::shared::inflight::PluggedRequest;
#[cfg(feature = "compare")]
use crate::shared::modes::{Parked, ShardModes};
use crate::shared::stats::ElevatorCounters;
use crate::shared::stats::{Board, Prospect};
use crate::sync::{AlarmRef, Arc, Budget, Level, Pending, Restart, Sleepers, ring};
use crate::{DeviceShape, GroupTree, Inflight, MAX_GROUPS, PumpMode, WriteCache, elevator};
use blkmq_core::SubmitterId;
use blkmq_sched::Shape;
use crossbeam_utils::CachePadded;
use std::ops::Range;

/// The parts of a queue that are not built from its plan, but come from its configuration or from its predecessor.
pub(crate) struct Handover<P> {
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
        #[cfg(feature = "compare")]
        modes: modes(plan),
        // Every submitter, every pump thread, a thread that changes the queue, and a thread that keeps a run.
        #[cfg(feature = "compare")]
        threads: lasting.senders.len() + usize::from(lanes(plan, &lasting)) + 2,
        alarm: alarm(&lasting),
    };
    let common = build_common(plan);
    let budget = Budget::new(plan.budget());
    let board = plan.groups.has_goals().then(Board::new);
    let keeper = board.as_ref().and_then(|board| keeper(plan, &budget, board));
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
            #[cfg(feature = "compare")]
            modes: modes(plan),
            #[cfg(feature = "compare")]
            nr_requests: plan.effective_nr_requests(),
            nomerges: plan.nomerges,
            budget,
            board,
            budget_wait: Pending::new(shards.len() as u16),
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
pub(crate) fn install<P: Send + 'static>(engine: &mut Engine<P>, from: Handover<P>) {
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
#[cfg(feature = "compare")]
fn modes(plan: &Plan) -> crate::EffectiveModes {
    plan.effective_modes().expect("a plan is checked before it is built")
}

/// Returns whether an I/O without a slot must not merge, because merging was tried before insertion.
fn slots_first(plan: &Plan) -> bool {
    #[cfg(feature = "compare")]
    return modes(plan).parks();
    #[cfg(not(feature = "compare"))]
    {
        let _ = plan;
        false
    }
}

/// Returns whether requests may bypass a policy. Under a lock they are dispatched one by one, as in the systems
/// compared.
fn bypass(plan: &Plan) -> bool {
    #[cfg(feature = "compare")]
    return modes(plan).access == crate::Access::Combining;
    #[cfg(not(feature = "compare"))]
    {
        let _ = plan;
        true
    }
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
fn keeper(plan: &Plan, budget: &Budget, board: &Board) -> Option<Keeper> {
    let (lever, most) = budget.lever().zip(budget.limit())?;
    let capacity = plan.facts().capacity;
    Some(Keeper::new((lever, most), (&plan.groups.members(), capacity), board))
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
    #[cfg(feature = "compare")]
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
            #[cfg(feature = "compare")]
            Parked::new(modes(plan), per_shard, nr_requests),
        ));
        built.shards.push(Shard {
            #[cfg(feature = "compare")]
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
