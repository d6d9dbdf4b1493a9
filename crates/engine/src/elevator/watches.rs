//! The watches that an elevator is built with (`watch.rs`), and the forecast among them.
//!
//! The [`Forecaster`] connects a [`Forecast`] with an elevator, whose runner alone touches it, publishes it for threads that
//! push, and counts how its predictions agree with the truth.

use super::Done;
use super::goals::Keeper;
use crate::shared::board::Prospect;
use crate::shared::stats::ElevatorCounters;
use crate::sync::Arc;
use crate::trace::Tap;
use blkmq_core::{Instant, IoMeta, RequestId};
use blkmq_sched::Forecast;

/// The forecast of an elevator, and where it is published.
pub(crate) struct Forecaster {
    forecast: Forecast,
    prospect: Arc<Prospect>,
}

impl Forecaster {
    /// For an elevator with this many slots, and groups with numbers below `groups`.
    pub(crate) fn new(slots: u32, groups: u16, prospect: Arc<Prospect>) -> Self {
        Self { forecast: Forecast::new(slots, groups), prospect }
    }

    pub(super) fn inserted(&mut self, now: Instant, id: RequestId, io: &IoMeta) {
        self.forecast.inserted(now, id, io);
    }

    pub(super) fn issued(&mut self, now: Instant, id: RequestId, io: &IoMeta) {
        self.forecast.issued(now, id, io);
    }

    pub(super) fn requeued(&mut self, now: Instant, id: RequestId) {
        self.forecast.requeued(now, id);
    }

    pub(super) fn gone(&mut self, now: Instant, id: RequestId) {
        self.forecast.gone(now, id);
    }

    /// Publishes the forecast, where this many I/Os wait for a slot.
    pub(super) fn publish(&self, outside: u32) {
        self.prospect.publish(&self.forecast.outlook(outside));
    }

    /// The request has ended: the forecast learns from it, and a prediction is judged.
    pub(super) fn completed(&mut self, io: &IoMeta, done: &Done, counters: &ElevatorCounters) {
        let Some(expected) = self.forecast.completed(done.completed, done.rq, io) else { return };
        let writes = io.op.is_write();
        let share = self.forecast.share(io.group, writes);
        self.prospect.publish_share(io.group, writes, share);
        if io.deadline.is_some() {
            let within = io.deadline.within();
            let took = done.completed.since(io.arrived);
            let counter = match (expected > within, took > within) {
                (false, false) => &counters.in_time,
                (false, true) => &counters.missed,
                (true, true) => &counters.late,
                (true, false) => &counters.false_alarms,
            };
            counter.add(1);
        }
    }
}

/// The watches that an elevator is built with, besides the times.
#[derive(Default)]
pub(crate) struct Watches {
    pub(crate) trace: Option<Tap>,
    pub(crate) goals: Option<Keeper>,
    pub(crate) forecaster: Option<Forecaster>,
}
