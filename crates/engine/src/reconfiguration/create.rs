//! The creation of a queue from its configuration.

use super::build::Handover;
use super::config::Config;
use super::config_error::ConfigError;
use super::root::Root;
use super::watchers::Watchers;
use crate::dispatch::engine::Engine;
use crate::groups::{Ledger, Meters};
use crate::shared::lasting::{Lasting, OTHER_TALLIES};
use crate::submission::parts::Parts;
use crate::submission::seats::Seats;
use crate::submission::staging::Staging;
use crate::sync::{Arc, Control, Mutex, ring};
use crate::{BioTable, GroupTree, Queue};
use blkmq_core::{HwQueue, Instant, SubmitterId};
use crossbeam_utils::CachePadded;

impl<P: Send + 'static> Queue<P> {
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
        let lanes = config.queues.len() as u16;
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
            idle.push(Parts { id, hw, lane, staging: producer, asks: asks_end, receiver, credit });
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
        let devices = config.queues.into_iter().map(|queue| (queue, Instant::ZERO));
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
