//! Building a queue from its plan: elevators, hardware queues and the rings between them.
//!
//! A built queue is complete except for its devices and the staging of its submitters. It gets these last
//! ([`Shared::install`]), because a queue that is rebuilt takes them from its predecessor.

use crate::before;
use crate::before::parking::{Parked, Parking};
use crate::common::{Common, Surroundings};
use crate::completions::Completions;
use crate::device::{DeviceQueue, Enqueued, Finished};
use crate::elevator::{self, Elevator, PluggedRequest};
use crate::gate::Gate;
use crate::groups::Ledger;
use crate::hctx::Hctx;
use crate::inflight::Handback;
use crate::plan::Plan;
use crate::pump::{Pump, PumpLimits};
use crate::runner::{Lane, Runner, Staging};
use crate::shared::{Lasting, Shard, Shared};
use crate::stats::ElevatorCounters;
use crate::sync::{AlarmRef, Arc, Budget, Consumer, Pending, Producer, Sleepers, ring};
use crate::tags::{Membership, Tags};
use crate::{BioTable, DeviceShape, EffectiveModes, GroupTree, Inflight, InsertMode, WriteCache};
use blkmq_core::{Instant, SubmitterId};
use blkmq_sched::{Done, Shape};
use crossbeam_utils::CachePadded;

/// The ends of the rings between an elevator and one hardware queue's pump, while a queue is being built.
pub(crate) struct Ends {
    pub(crate) outbox: Consumer<Inflight>,
    pub(crate) returns: Producer<Done>,
    pub(crate) handbacks: Producer<Handback>,
}

/// A hardware queue of a device, and the latest time that the device was told.
pub(crate) type Installed<P> = (Box<dyn DeviceQueue<P>>, Instant);

/// The parts that a queue does not build from its plan, but gets from its configuration or from its predecessor.
pub(crate) struct Handover<P> {
    /// By hardware queue.
    pub(crate) devices: Vec<Installed<P>>,
    /// The staging of every submitter.
    pub(crate) staging: Vec<(SubmitterId, Staging)>,
    /// I/Os that left staging and have no slot, in the order of arrival within each elevator.
    pub(crate) waiting: Vec<(SubmitterId, PluggedRequest)>,
}

/// Stands in for a device that is yet to come, or that has gone to a later queue.
pub(crate) struct Vacant;

impl<P> DeviceQueue<P> for Vacant {
    fn enqueue(&mut self, _: Instant, _: &BioTable<P>, _: Inflight) -> Enqueued {
        unreachable!("nothing is issued by a queue without its device")
    }

    fn reap(&mut self, _: Instant, _: &mut Vec<Finished>) {}

    fn next_event(&self) -> Option<Instant> {
        Some(Instant::MAX)
    }

    fn abandon(&mut self, _: &mut Vec<Inflight>) {}
}

impl<P: Send + 'static> Shared<P> {
    /// Builds the queue of a valid `plan`, without devices and staging.
    pub(crate) fn build(plan: &Plan, lasting: Arc<Lasting<P>>, version: u32) -> Self {
        let Lasting { table, senders, .. } = &*lasting;
        let modes = plan.effective_modes().expect("a plan is checked before it is built");
        // The threads that may hold a lock: every submitter, every pump thread, a thread that changes the queue, and
        // a thread that keeps a run.
        let lockers = senders.len() + usize::from(plan.device.hw_queues) + 2;
        let common = build_common(plan);
        let (shards, ends) = build_shards(
            (plan, modes),
            table,
            (senders.len() as u16, lockers),
            (common.as_ref(), &lasting.ledger),
            &alarm(&lasting),
        );
        let limits = PumpLimits {
            tags: plan.device.hw_queue_depth,
            timeout: plan.device.timeout,
            retries: plan.retries,
        };
        let pump = |ends| {
            let pump = Pump::new(Box::new(Vacant), ends, table, limits);
            Gate::new(modes, lockers, pump, alarm(&lasting))
        };
        let hctxs = build_hctxs(
            ends.into_iter().map(pump),
            &plan.device,
            shards.len(),
            lasting.membership.as_ref(),
        );
        Self {
            limits: plan.device.limits,
            needs_no_flush: plan.device.cache == WriteCache::Through,
            meaningless: plan.device.cache.meaningless(),
            modes,
            nr_requests: plan.effective_nr_requests(),
            nomerges: plan.nomerges,
            budget: Budget::new(plan.device.budget),
            budget_wait: Pending::new(shards.len() as u16),
            tag_wait: Pending::new(shards.len() as u16),
            common,
            shards,
            hctxs,
            lasting,
            version,
        }
    }

    /// Installs the parts that are not built from the plan.
    pub(crate) fn install(&mut self, from: Handover<P>) {
        let Handover { devices, staging, waiting } = from;
        assert!(devices.len() == self.hctxs.len() && staging.len() == self.lasting.senders.len());
        for (hctx, device) in self.hctxs.iter_mut().zip(devices) {
            hctx.pump.get_mut().install(device);
        }
        for (id, staging) in staging {
            let shard = self.shard_of_submitter(id);
            shard.gate.get_mut().install(id, staging);
            // Asks to cancel that the previous queue did not answer are answered before anything is admitted here.
            shard.asked.set(id.0);
        }
        for (id, proto) in waiting {
            self.shard_of_submitter(id).gate.get_mut().adopt(id, proto);
        }
    }

    fn shard_of_submitter(&mut self, id: SubmitterId) -> &mut Shard {
        let shard = self.shards.iter_mut().find(|shard| shard.submitters.contains(&id));
        shard.expect("every submitter has an elevator")
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

/// The state that the instances of the policy share. A governor holds no requests, so it has no slots.
fn build_common(plan: &Plan) -> Option<Arc<Common>> {
    Common::new(plan.scheduler, &shape(plan, 0), &plan.options, plan.shards())
}

fn build_shards<P>(
    (plan, modes): (&Plan, EffectiveModes),
    table: &BioTable<P>,
    (submitters, lockers): (u16, usize),
    (common, ledger): (Option<&Arc<Common>>, &Arc<Ledger>),
    alarm: &AlarmRef,
) -> (Box<[Shard]>, Vec<Ends>) {
    let count = plan.shards();
    let per_shard = plan.device.hw_queues / count;
    let nr_requests = plan.effective_nr_requests();
    let lists = modes.insert == InsertMode::PercpuLists;
    let mut ends = Vec::new();
    let shards = (0..count).map(|index| {
        let first_hw = index * per_shard;
        let elevator_config = elevator::Config {
            limits: plan.device.limits,
            cache: plan.flushed_cache(),
            nomerges: plan.nomerges,
            first_hw,
            hw_queues: per_shard,
            nr_requests,
            hw_queue_depth: plan.device.hw_queue_depth,
            async_depth: plan.effective_async_depth(),
            slots_first: lists,
            submitters,
            credit: table.capacity(),
        };
        let slots = elevator_config.slots();
        let hw_depth = plan.device.hw_queue_depth;
        let shape = shape(plan, slots);
        let policy = (plan.scheduler.build)(&shape, &plan.options);
        let ledger = Arc::clone(ledger);
        let outside = Surroundings::new(common.map(Arc::clone), (index, count), plan.stats, ledger);
        let counters = Arc::<CachePadded<ElevatorCounters>>::default();
        let mine = |id: &u16| plan.shards() == 1 || plan.home(*id).0 == index;
        let lanes = (0..per_shard).map(|_| {
            let (outbox, outbox_end) = ring(hw_depth);
            let (returns_end, returns) = ring(slots);
            let (handbacks_end, handbacks) = ring(slots);
            ends.push(Ends { outbox: outbox_end, returns: returns_end, handbacks: handbacks_end });
            Lane { outbox, returns, handbacks, hint: 0 }
        });
        let mut elevator = Elevator::new(elevator_config, policy, outside, Arc::clone(&counters));
        elevator.regroup(&GroupTree::default().changes(&plan.groups));
        let (lanes, completions) = (lanes.collect(), Completions::new(table));
        let parked = lists.then(|| Parked::new(per_shard, nr_requests));
        let runner = Runner::new(elevator, lanes, first_hw, submitters, completions, parked);
        Shard {
            gate: Gate::new(modes, lockers, runner, alarm.clone()),
            serial: before::serial(modes.access).map(CachePadded::new),
            parking: lists.then(|| Parking::new(submitters, per_shard, nr_requests)),
            pending: Pending::new(submitters),
            asked: Pending::new(submitters),
            sleepers: Sleepers::default(),
            held: CachePadded::default(),
            submitters: (0..submitters).filter(mine).map(SubmitterId).collect(),
            index,
            first_hw,
            hw_queues: per_shard,
            counters,
        }
    });
    (shards.collect(), ends)
}

fn build_hctxs<P: Send>(
    pumps: impl Iterator<Item = Gate<Pump<P>>>,
    device: &DeviceShape,
    shards: usize,
    shared: Option<&Membership>,
) -> Box<[Hctx<P>]> {
    let new_tags = || Tags::new(device.hw_queue_depth, shards as u16, device.shared_tags);
    let all = match shared {
        Some(Membership { tags, user }) => Some(Tags::of(tags, *user)),
        None => device.shared_tags.then(new_tags),
    };
    let hctxs = pumps.map(|pump| {
        let tags = all.clone().unwrap_or_else(new_tags);
        Hctx::new(pump, tags, Arc::default())
    });
    hctxs.collect()
}
