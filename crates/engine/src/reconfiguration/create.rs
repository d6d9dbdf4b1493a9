//! The creation of a queue from its configuration.

use super::build::Handover;
use super::config::Config;
use super::config_error::ConfigError;
use super::root::Root;
use super::watchers::Watchers;
use crate::dispatch::engine::Engine;
use crate::dispatch::pump::Vacant;
use crate::groups::{Ledger, Meters};
use crate::shared::lasting::{Lasting, OTHER_TALLIES};
use crate::submission::parts::Parts;
use crate::submission::seats::Seats;
use crate::submission::staging::Staging;
use crate::sync::{Arc, Control, Mutex, ring};
use crate::{BioTable, GroupTree, PumpMode, Queue};
use blkmq_core::{HwQueue, Instant, Payload, SubmitterId};
use crossbeam_utils::CachePadded;

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
        let mut engine = Engine::build(
            (&plan, &Watchers::default()),
            Arc::clone(&lasting),
            lasting.control.version(),
        );
        let vacant = std::iter::repeat_with(|| Box::new(Vacant) as _);
        let devices = config.queues.into_iter().chain(vacant).take(lanes.into());
        let devices = devices.map(|queue| (queue, Instant::ZERO));
        engine.install(Handover { devices: devices.collect(), staging, waiting: Vec::new() });
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
