//! The watches that an elevator may have, together, and the forecast among them.
//!
//! The [`Forecaster`] connects a [`Forecast`] with an elevator, whose runner alone touches it, publishes it for threads that
//! push, and counts how its predictions agree with the truth.

use super::Done;
use super::goals::Keeper;
use super::timing::Timing;
use crate::elevator::merge;
use crate::shared::board::Prospect;
use crate::shared::slots::Bio;
use crate::shared::stats::ElevatorCounters;
use crate::sync::Arc;
use crate::trace::{Kind, Tap};
use crate::{BioTable, StatsMode};
use blkmq_core::{Instant, IoMeta, RequestId};
use blkmq_sched::{Floors, Forecast};

/// The forecast of an elevator, and where it is published.
pub(crate) struct Forecaster {
    pub(super) forecast: Forecast,
    pub(super) prospect: Arc<Prospect>,
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

/// The watches of an elevator that has at least one.
#[derive(Default)]
pub(crate) struct Watch {
    pub(super) times: Option<Timing>,
    pub(super) trace: Option<Tap>,
    pub(super) goals: Option<Keeper>,
    pub(super) forecaster: Option<Forecaster>,
    pub(super) floors: Option<Floors>,
}

/// The watches that an elevator is built with, besides the times.
#[derive(Default)]
pub(crate) struct Watches {
    pub(crate) trace: Option<Tap>,
    pub(crate) goals: Option<Keeper>,
    pub(crate) forecaster: Option<Forecaster>,
}

/// For an elevator with this many slots; `None` if nothing watches.
pub(super) fn wanted(mode: StatsMode, slots: u32, watches: Watches) -> Option<Box<Watch>> {
    Watch::of(mode.times.then(|| Timing::new(slots, mode.slow)), watches)
}

impl Watch {
    pub(super) fn of(times: Option<Timing>, watches: Watches) -> Option<Box<Self>> {
        let Watches { trace, goals, forecaster } = watches;
        Self { times, trace, goals, forecaster, floors: None }.if_any()
    }

    pub(super) fn if_any(self) -> Option<Box<Self>> {
        let Self { times, trace, goals, forecaster, floors } = &self;
        let kept = times.is_some() || goals.is_some() || forecaster.is_some() || floors.is_some();
        (kept || trace.is_some()).then(|| Box::new(self))
    }

    /// The I/Os that became a request: the first has it, the others joined it in their plug.
    pub(super) fn began<P>(&mut self, now: Instant, table: &BioTable<P>, io: &IoMeta, bios: &Bio) {
        let Some(tap) = &mut self.trace else { return };
        let mut kind = Kind::First;
        let mut count = 0;
        for bio in table.iter(bios) {
            let one = IoMeta { sector: bio.sector, sectors: bio.sectors, ..*io };
            // Most requests are of one I/O, and one note does for that.
            if count == 0 && one.sectors == io.sectors {
                tap.note(now, Kind::Alone, io, Ok(()));
                return;
            }
            tap.note(now, kind, &one, Ok(()));
            (kind, count) = (Kind::Behind, count + 1);
        }
        tap.note(now, Kind::Inserted, io, Ok(()));
    }

    /// The I/Os that joined a request.
    pub(super) fn joined<P>(
        &mut self,
        now: Instant,
        table: &BioTable<P>,
        (io, kind): (&IoMeta, merge::Kind),
        bios: &Bio,
    ) {
        let Some(tap) = &mut self.trace else { return };
        let kind = if kind == merge::Kind::Front { Kind::Ahead } else { Kind::Behind };
        for bio in table.iter(bios) {
            let one = IoMeta { sector: bio.sector, sectors: bio.sectors, ..*io };
            tap.note(now, kind, &one, Ok(()));
        }
    }
}
