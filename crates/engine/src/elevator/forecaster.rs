//! Forecasts: connects a [`Forecast`] with an elevator, whose runner alone touches it, publishes it for threads that push,
//! and counts how its predictions agree with the truth.

use super::{Done, Elevator};
use crate::shared::prospect::Prospect;
use crate::shared::stats::ElevatorCounters;
use crate::sync::Arc;
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

impl Elevator {
    /// Is there a forecast?
    #[inline]
    pub(super) fn forecasts(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.forecaster.is_some())
    }

    /// Publishes the forecast, where `staged` I/Os wait for a slot outside the elevator.
    pub(super) fn publish_forecast(&mut self, staged: u32) {
        let outside = staged + self.lobby.waiting() as u32;
        if let Some(forecaster) = self.watch.as_ref().and_then(|watch| watch.forecaster.as_ref()) {
            forecaster.prospect.publish(&forecaster.forecast.outlook(outside));
        }
    }
}
