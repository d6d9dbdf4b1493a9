//! The watches over the requests of an elevator: the counts of their times, a trace, the controller of latency goals
//! (`goals.rs`), a forecast (`forecaster.rs`), and the account of floors (`floors.rs`). Without any, each call here is a
//! branch; the work behind it is out of line, where it costs the path of an I/O nothing. The runner alone touches them.

use super::config::{Budgets, Tapping};
use super::forecaster::Forecaster;
use super::goals::Keeper;
use super::timing::Timing;
use super::{Done, Elevator, PluggedRequest, floors};
use crate::elevator::merge;
use crate::shared::inflight::Way;
use crate::shared::slots::Bio;
use crate::trace::{Kind, Tap};
use crate::{BioTable, StatsMode};
use blkmq_core::{Instant, IoFlags, IoMeta, Op, RequestId};
use blkmq_sched::{Bypass, Floors};

/// The watches of an elevator that has at least one.
#[derive(Default)]
pub(crate) struct Watch {
    pub(super) times: Option<Timing>,
    trace: Option<Tap>,
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
    fn of(times: Option<Timing>, watches: Watches) -> Option<Box<Self>> {
        let Watches { trace, goals, forecaster } = watches;
        Self { times, trace, goals, forecaster, floors: None }.if_any()
    }

    fn if_any(self) -> Option<Box<Self>> {
        let Self { times, trace, goals, forecaster, floors } = &self;
        let kept = times.is_some() || goals.is_some() || forecaster.is_some() || floors.is_some();
        (kept || trace.is_some()).then(|| Box::new(self))
    }

    /// The I/Os that became a request: the first has it, the others joined it in their plug.
    fn began<P>(&mut self, now: Instant, table: &BioTable<P>, io: &IoMeta, bios: &Bio) {
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
    fn joined<P>(
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

/// A flush of the device, in the name of the request `io`.
fn flush(io: &IoMeta) -> IoMeta {
    let flags = IoFlags::SYNC | IoFlags::PREFLUSH;
    IoMeta { op: Op::Flush, sector: 0, sectors: 0, flags, ..*io }
}

impl Elevator {
    /// Is a trace taken? Its requests take no short way, on which their I/Os cannot be told.
    #[inline]
    pub(super) fn is_traced(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.trace.is_some())
    }

    /// Watches as `mode` and `tapping` say from now on.
    pub(super) fn tune_watch(&mut self, mode: StatsMode, tapping: Tapping) {
        let mut watch = *self.watch.take().unwrap_or_default();
        match tapping {
            Tapping::Keep => {}
            Tapping::End => watch.trace = None,
            Tapping::Begin(tap) => watch.trace = Some(tap),
        }
        watch.times = match watch.times {
            _ if !mode.times => None,
            Some(mut times) => {
                times.set_slow(mode.slow);
                Some(times)
            }
            None => Some(Timing::new(self.config.slots(), mode.slow)),
        };
        self.watch = watch.if_any();
        self.settle_watch();
    }

    /// Changes the account of floors.
    pub(super) fn with_floors(&mut self, change: impl FnOnce(Option<Floors>) -> Option<Floors>) {
        let mut watch = *self.watch.take().unwrap_or_default();
        watch.floors = change(watch.floors);
        self.watch = watch.if_any();
        self.settle_watch();
    }

    /// Follows a change of the watches, or of what the controller of latency goals takes: sets the words that the path
    /// of an I/O looks at instead.
    pub(super) fn settle_watch(&mut self) {
        self.longest = self.longest_request();
        let watch = self.watch.as_deref();
        let goals = watch.and_then(|watch| watch.goals.as_ref());
        let floors = watch.and_then(|watch| watch.floors.as_ref());
        let takes = goals.is_some_and(Keeper::takes);
        self.notes_requests =
            watch.is_some_and(|watch| watch.times.is_some() || watch.forecaster.is_some());
        self.notes_passing = self.facts.bypass == Bypass::Told || self.notes_requests;
        self.limits_slots = self.facts.limits_slots || takes;
        self.takes_budgets = match self.config.budgets {
            Budgets::Never => false,
            Budgets::WhileTaken => takes,
            Budgets::Always => true,
        };
        // The lobby is open where the policy shares by group, or groups have latency goals.
        let is_by_group = self.lobby.is_open() && self.facts.shares_by_group;
        self.is_short = self.config.has_short_ways()
            && !(is_by_group || takes || self.takes_budgets || self.is_traced());
        let looks_only = !takes && !self.notes_requests;
        self.is_sampled = goals.is_some() && looks_only && floors.is_none() && !self.is_traced();
        let dues = goals.map(Keeper::due).into_iter().chain(floors.map(Floors::due));
        self.looks_at = dues.min().filter(|_| looks_only).unwrap_or(Instant::ZERO);
    }

    /// Is there any watch?
    #[inline]
    pub(super) fn is_watched(&self) -> bool {
        self.watch.is_some()
    }

    /// Has a watch work now, beyond the requests that end?
    #[inline]
    pub(super) fn is_look_due(&self) -> bool {
        self.watch.is_some() && self.now >= self.looks_at
    }

    /// Ends this elevator's part of a trace: its queue is replaced by another.
    pub(crate) fn end_trace(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.trace = None;
        }
        self.settle_watch();
    }

    /// Moves the counts to the ledger, after waiting for another thread that counts.
    pub(crate) fn count_times(&mut self) {
        self.count_floors();
        if let Some(Watch { times: Some(times), .. }) = self.watch.as_deref_mut() {
            self.env.count_times(times.settled(self.now));
        }
    }

    /// The request has a slot and its bios.
    #[inline]
    pub(super) fn watch_inserted<P>(&mut self, table: &BioTable<P>, id: RequestId) {
        if self.watch.is_some() {
            self.note_inserted(table, id);
        }
    }

    #[inline(never)]
    fn note_inserted<P>(&mut self, table: &BioTable<P>, id: RequestId) {
        let Some(watch) = &mut self.watch else { return };
        let Some(chain) = &self.chains[id.index()] else { return };
        let io = self.requests.get(id);
        if let Some(times) = &mut watch.times {
            times.inserted(self.now, id, io, chain.bios);
        }
        if let Some(goals) = &mut watch.goals {
            goals.inserted(self.now, io);
        }
        if let Some(forecaster) = &mut watch.forecaster {
            forecaster.inserted(self.now, id, io);
        }
        watch.began(self.now, table, io, &chain.head);
    }

    /// The request, which has this many bios, has a slot and a tag, and leaves at once.
    #[inline]
    pub(super) fn watch_passed(&mut self, id: RequestId, bios: u32) {
        if self.notes_requests {
            self.note_passed(id, bios);
        }
    }

    #[inline(never)]
    fn note_passed(&mut self, id: RequestId, bios: u32) {
        let Some(watch) = &mut self.watch else { return };
        let io = self.requests.get(id);
        if let Some(times) = &mut watch.times {
            times.is_supplied(self.now);
            times.inserted(self.now, id, io, bios);
        }
        if let Some(forecaster) = &mut watch.forecaster {
            forecaster.inserted(self.now, id, io);
            forecaster.issued(self.now, id, io);
        }
    }

    /// The request leaves for the device.
    #[inline]
    pub(super) fn watch_issued(&mut self, id: RequestId) {
        if self.watch.is_some() {
            self.note_issued(id);
        }
    }

    #[inline(never)]
    fn note_issued(&mut self, id: RequestId) {
        let Some(watch) = &mut self.watch else { return };
        if let Some(times) = &mut watch.times {
            times.issued(self.now, id);
        }
        if let Some(forecaster) = &mut watch.forecaster {
            forecaster.issued(self.now, id, self.requests.get(id));
        }
        if let Some(tap) = &mut watch.trace {
            let io = self.requests.get(id);
            let is_flush = !self.flushes.is_empty() && self.flushes.way(id) == Way::Flush;
            let io = if is_flush { &flush(io) } else { io };
            tap.note(self.now, Kind::Issued, io, Ok(()));
        }
    }

    /// The I/Os of `proto` join a request; in a moment they are not told apart any more.
    #[inline]
    pub(super) fn watch_joined<P>(
        &mut self,
        table: &BioTable<P>,
        proto: &PluggedRequest,
        kind: merge::Kind,
    ) {
        if self.watch.is_some() {
            self.note_joined(table, proto, kind);
        }
    }

    #[inline(never)]
    fn note_joined<P>(&mut self, table: &BioTable<P>, proto: &PluggedRequest, kind: merge::Kind) {
        let Some(watch) = &mut self.watch else { return };
        if let Some(times) = &mut watch.times {
            times.merged(&proto.meta, proto.bios);
        }
        if let Some(goals) = &mut watch.goals {
            goals.joined(self.now, &proto.meta);
        }
        watch.joined(self.now, table, (&proto.meta, kind), &proto.bio);
    }

    /// The request `id`, which was `gone`, was fused into another.
    pub(super) fn watch_fused(&mut self, id: RequestId, gone: &IoMeta) {
        let Some(watch) = &mut self.watch else { return };
        if let Some(forecaster) = &mut watch.forecaster {
            forecaster.gone(self.now, id);
        }
        if let Some(times) = &mut watch.times {
            times.merged(gone, 1);
        }
        if let Some(tap) = &mut watch.trace {
            tap.note(self.now, Kind::Fused, gone, Ok(()));
        }
    }

    /// The request has ended at the device.
    #[inline]
    pub(super) fn watch_completed(&mut self, done: &Done) {
        if self.watch.is_some() {
            self.note_completed(done);
        }
    }

    /// The same where the controller of latency goals alone watches, and takes nothing.
    #[inline(always)]
    pub(super) fn sample_completed(&mut self, done: &Done) {
        self.until_sample -= 1;
        if self.until_sample == 0 {
            self.take_sample(done);
        }
    }

    #[inline(never)]
    fn take_sample(&mut self, done: &Done) {
        self.until_sample = 1;
        if let Some(Watch { goals: Some(goals), .. }) = self.watch.as_deref_mut() {
            self.until_sample = goals.sampled(self.requests.get(done.rq), done.completed);
        }
    }

    #[inline(never)]
    fn note_completed(&mut self, done: &Done) {
        let Some(watch) = &mut self.watch else { return };
        let io = self.requests.get(done.rq);
        if let Some(times) = &mut watch.times {
            times.completed(io, done);
        }
        if let Some(goals) = &mut watch.goals {
            goals.completed(io, done.completed);
            self.some_ended = true;
        }
        if let Some(floors) = &mut watch.floors {
            floors::completed(floors, &*self.policy, io, done);
        }
        if let Some(forecaster) = &mut watch.forecaster {
            forecaster.completed(io, done, &self.counters);
        }
        if let Some(tap) = &mut watch.trace {
            tap.note(done.completed, Kind::Completed, io, done.result);
        }
    }

    /// The request goes back, to be issued again.
    pub(super) fn watch_requeued(&mut self, id: RequestId, way: Way) {
        let Some(watch) = &mut self.watch else { return };
        if let Some(forecaster) = &mut watch.forecaster {
            forecaster.requeued(self.now, id);
        }
        if let Some(tap) = &mut watch.trace {
            let io = self.requests.get(id);
            let io = if way == Way::Flush { &flush(io) } else { io };
            tap.note(self.now, Kind::Requeued, io, Ok(()));
        }
    }

    /// The request is given up while the policy holds it.
    pub(super) fn watch_given_up(&mut self, id: RequestId) {
        if let Some(Watch { forecaster: Some(forecaster), .. }) = self.watch.as_deref_mut() {
            forecaster.gone(self.now, id);
        }
    }

    /// A flush of the device has ended.
    pub(super) fn watch_flushed(&mut self, done: &Done) {
        let Some(watch) = &mut self.watch else { return };
        if let Some(times) = &mut watch.times {
            times.flushed(done);
        }
        if let Some(forecaster) = &mut watch.forecaster {
            // The device has done a step. The request has others to come, or is served by it.
            forecaster.gone(done.completed, done.rq);
        }
        if let Some(tap) = &mut watch.trace {
            let io = flush(self.requests.get(done.rq));
            tap.note(done.completed, Kind::Completed, &io, done.result);
        }
    }

    /// The request `id` ends at the flush `by`. If it is a bare flush, it is counted; data was counted by itself.
    pub(super) fn watch_served(&mut self, id: RequestId, by: &Done) {
        let io = self.requests.get(id);
        let Some(watch) = &mut self.watch else { return };
        if io.op == Op::Flush {
            if let Some(times) = &mut watch.times {
                times.completed(io, &Done { rq: id, ..*by });
            }
            if let Some(goals) = watch.goals.as_mut().filter(|_| !self.is_sampled) {
                goals.completed(io, by.completed);
            }
        }
        let is_sample = self.is_sampled && io.op == Op::Flush;
        if let Some(forecaster) = &mut watch.forecaster {
            forecaster.gone(by.completed, id);
        }
        if is_sample {
            self.sample_completed(&Done { rq: id, ..*by });
        }
        self.some_ended = true;
    }

    /// A tag, a budget or room at the device is missing.
    #[inline]
    pub(super) fn is_short(&mut self) {
        if let Some(Watch { times: Some(times), .. }) = self.watch.as_deref_mut() {
            times.is_short(self.now);
        }
    }

    /// There is one again.
    #[inline]
    pub(super) fn is_supplied(&mut self) {
        if let Some(Watch { times: Some(times), .. }) = self.watch.as_deref_mut() {
            times.is_supplied(self.now);
        }
    }

    /// Requests have come back, or a pass has ended. True if the controller of latency goals has looked or takes something,
    /// so that groups that had to wait may have slots now.
    #[inline]
    pub(super) fn time_busy(&mut self) -> bool {
        self.is_look_due() && self.look_up()
    }

    #[inline(never)]
    fn look_up(&mut self) -> bool {
        if let Some(Watch { times: Some(times), .. }) = self.watch.as_deref_mut() {
            times.look(self.now, self.requests.in_use() > self.held as usize);
        }
        self.look_at_floors();
        self.look_at_goals()
    }
}
