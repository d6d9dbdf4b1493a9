//! One pass over an elevator, made by the thread that holds the run of its shard (decision 0002).
//!
//! A pass takes back finished requests, admits staged requests of every submitter, takes the caller's own plug
//! straight in, and fills the outboxes in the elevator's order. It makes no system call and does a bounded amount of
//! work, and leaves duties to its caller. `dispatch/mod.rs` decides which thread makes how many passes.
//!
//! # Admission
//!
//! Each I/O is offered to merging first, and takes a slot only if it did not merge. An I/O without a slot waits in
//! staging, or in the lobby where slots go by group.
//!
//! # Cancelling
//!
//! A submitter that cancels an I/O leaves an [`Ask`] in a ring of its own, adds itself to its shard's set of submitters
//! that asked, and kicks. It stages I/Os in the same way, with the same guarantees. The runner looks at the set once a
//! pass and answers the asks before it admits anything.
//!
//! | where the I/O is | effect of an ask |
//! |---|---|
//! | staged | it is taken out of the ring, also from between others, and also of a frozen queue |
//! | waiting for a slot by group | it is taken out of its line |
//! | held by the policy | it is withdrawn and its slot is free |
//! | in a request with others | none: it continues |
//! | divided into parts | none, wherever they are: the parts have its cookie, but are not the I/O |
//! | in a flush sequence, which begins with its slot | none |
//! | issued, or on its way back | none |
//!
//! A cancelled I/O ends with [`IoError::CANCELLED`] and is counted where it was. No pass keeps an ask for later, so
//! a rebuilt queue loses no ask: unanswered asks go to the new queue with the staging.
//!
//! *Invariant: an ask is for an I/O that was pushed before it.* A cookie may be used again as soon as it has been
//! returned, while the ask may still be on its way. So the ask has the place in the staging ring at which it was made.
//! If an I/O behind that place has been admitted, the old I/O and a new one with its cookie cannot be told apart, and
//! the ask is too late. Only the submitter's own plug does not come through that ring, and the plug is staged as long
//! as one of the submitter's asks is unanswered.

use crate::elevator::merging::{Own, Plug, Staging, stage};
use crate::elevator::watch::Watch;
use crate::elevator::{Elevator, Place, Tuning};
use crate::planted::Planted;
use crate::shared::hctx::{Duties, Handback, Hctx, PluggedRequest, Ready};
use crate::shared::hub::{Ask, Completions, Hub, Lasting, Shard};
use crate::shared::modes::Parked;
use crate::sync::{COMPARE, Consumer, Ordering, Producer};
use crate::{BioTable, Inflight, planted};
use blkmq_core::{HwQueue, Instant, IoError, SubmitterId, Tag};
use blkmq_sched::{Done, PLUG, Pick};
pub(crate) use bypass::Sent;

/// Driver tags taken at a time.
const TAG_BATCH: u32 = 32;

mod bypass;

/// The elevator's side of one hardware queue.
pub(crate) struct Lane {
    pub(crate) outbox: Producer<Inflight>,
    /// Finished requests; their slots are to be freed.
    pub(crate) returns: Consumer<Done>,
    /// Requests that are to be issued again later, and finished steps of flush sequences.
    pub(crate) handbacks: Consumer<Handback>,
    /// The place at which the last driver tag was found.
    pub(crate) hint: u32,
}

/// The state that only the holder of a shard's run may touch.
pub(crate) struct Runner {
    pub(crate) elevator: Elevator,
    pub(crate) lanes: Box<[Lane]>,
    pub(crate) first_hw: u16,
    /// Staging of this shard's submitters, by submitter; `None` for those of other shards.
    pub(crate) staging: Box<[Option<Staging>]>,
    /// Submitters with a staged request that found no slot, in the order in which they get the next ones.
    blocked: Vec<SubmitterId>,
    /// Blocked submitters that got slots in the current call; empty between two calls.
    served: Vec<SubmitterId>,
    is_blocked: Box<[bool]>,
    /// Submitters that had more staged than a pass takes.
    unfinished: Vec<SubmitterId>,
    /// Slots became free in the middle of this pass.
    freed_meanwhile: bool,
    /// Staged requests on their way to an outbox; empty between two calls.
    tray: Plug,
    /// Driver tags that were taken and not used.
    unused: Vec<Tag>,
    /// Completions of I/Os that end with a flush or are cancelled. The runner ends them, and no pump sees them.
    pub(crate) completions: Completions,
    /// The duties that the passes leave to the thread that made them.
    pub(crate) duties: Duties,
    /// A later queue has taken over, and this one admits nothing.
    retired: bool,
    /// I/Os that wait for a slot must be tried in the next pass although it may free no slot: earlier passes admitted
    /// nothing, the limits have changed, or an earlier queue left these I/Os here.
    retry_blocked: bool,
    /// Requests taken over from insertion lists, in the mode that has them (`shared/modes.rs`).
    pub(crate) parked: Parked,
}

impl Runner {
    pub(crate) fn new(
        elevator: Elevator,
        lanes: Box<[Lane]>,
        first_hw: u16,
        submitters: u16,
        completions: Completions,
        parked: Parked,
    ) -> Self {
        let submitters = usize::from(submitters);
        Self {
            elevator,
            lanes,
            first_hw,
            staging: (0..submitters).map(|_| None).collect(),
            blocked: Vec::with_capacity(submitters),
            served: Vec::with_capacity(submitters),
            is_blocked: vec![false; submitters].into_boxed_slice(),
            // A pass adds a submitter up to three times: when slots were freed, for its staged requests, and when slots
            // were freed during the pass.
            unfinished: Vec::with_capacity(3 * submitters),
            freed_meanwhile: false,
            tray: Plug::new(PLUG),
            unused: Vec::with_capacity(TAG_BATCH as usize),
            completions,
            duties: Duties::default(),
            retired: false,
            retry_blocked: false,
            parked,
        }
    }

    /// Changes the settings that may change while requests are held. The new limits may give a slot to an I/O that
    /// waits for one.
    pub(crate) fn tune(&mut self, tuning: &mut Tuning) {
        self.elevator.tune(tuning);
        self.retry_blocked = true;
    }

    /// Installs the rings of one of the shard's submitters.
    pub(crate) fn install(&mut self, id: SubmitterId, staging: Staging) {
        self.staging[usize::from(id.0)] = Some(staging);
    }

    /// Takes in an I/O of the submitter `by` that waited for a slot in an earlier queue. It continues to wait here,
    /// ahead of staged requests.
    pub(crate) fn adopt(&mut self, by: SubmitterId, proto: PluggedRequest) {
        self.elevator.adopt(by, proto);
        self.retry_blocked = true;
    }

    /// Hands the rings of all submitters to a later queue. Afterwards nothing is admitted here.
    pub(crate) fn retire(&mut self) -> impl Iterator<Item = (SubmitterId, Staging)> + '_ {
        self.retired = true;
        let all = (0..).map(SubmitterId).zip(&mut self.staging);
        all.filter_map(|(id, staging)| Some((id, staging.take()?)))
    }

    /// Makes one pass. `home` is the hardware queue that the caller maps to; it is served first. Returns the hardware
    /// queues that were given requests; the caller also has the [`duties`](Self::duties) to carry out.
    pub(crate) fn pass<P>(
        &mut self,
        hub: &Hub<P>,
        shard: &Shard,
        now: Instant,
        home: HwQueue,
        own: Option<Own<'_>>,
    ) -> Ready {
        self.account_waits(now);
        self.begin(now);
        self.elevator.counters.passes.add(1);
        let freed = self.take_returns(hub, shard) | self.answer_asks(hub, shard);
        let mut ready = Ready::default();
        self.admit_all(hub, shard, (freed, own), &mut ready);
        self.dispatch_all(hub, shard, home, &mut ready);
        if self.elevator.is_look_due() {
            self.end_watched();
        }
        self.publish_forecast();
        self.end();
        ready
    }

    /// Publishes the forecast, if there is one, with the I/Os that wait in staging for a slot.
    #[inline]
    fn publish_forecast(&mut self) {
        let Self { elevator, staging, blocked, .. } = self;
        if let Some(Watch { forecaster: Some(forecaster), .. }) = elevator.watch.as_deref() {
            let rings = blocked.iter().filter_map(|id| staging[usize::from(id.0)].as_ref());
            let staged: u32 = rings.map(|rings| rings.protos.len()).sum();
            forecaster.publish(staged + elevator.lobby.waiting() as u32);
        }
    }

    /// The last look of the watches in a pass.
    #[inline(never)]
    fn end_watched(&mut self) {
        // If the controller has given something back, I/Os that wait may have slots in the next pass.
        self.retry_blocked |= self.elevator.time_busy();
        self.elevator.tell_look();
    }

    /// Begins a pass, or other work on the elevator: sets its time, and runs the policy's governor if that is due.
    #[inline]
    pub(crate) fn begin(&mut self, now: Instant) {
        let Self { elevator, duties, .. } = self;
        elevator.advance(now);
        elevator.env.begin(now, &mut |shard| duties.kick(shard));
    }

    /// Ends the pass: returns tokens that the policy took and did not use, and adds kicks for the elevators that wait
    /// for one to the duties.
    #[inline]
    pub(crate) fn end(&mut self) {
        let Self { elevator, duties, .. } = self;
        elevator.env.end(&mut |shard| duties.kick(shard));
    }

    #[inline]
    pub(crate) fn begin_flushes(&mut self) {
        if self.elevator.has_flushes()
            && let Some(at) = self.elevator.begin_flushes()
        {
            self.duties.arm(at);
        }
    }

    /// Returns whether no request has a slot or waits for one that it was promised.
    pub(crate) fn is_idle(&self) -> bool {
        self.parked.line().is_empty() && self.elevator.slots.is_idle()
    }

    /// Takes back finished and requeued requests from the pumps. Returns whether a slot became free.
    #[inline]
    pub(crate) fn take_returns<P>(&mut self, hub: &Hub<P>, shard: &Shard) -> bool {
        let lasting = &hub.lasting;
        let mut freed = if hub.has_owners() {
            self.take_returns_of_owners(lasting, shard)
        } else {
            let Self { elevator, lanes, completions, .. } = self;
            lanes
                .iter_mut()
                .fold(false, |freed, lane| freed | take_back(elevator, lane, completions, lasting))
        };
        freed |= self.elevator.time_busy();
        let Self { completions, duties, .. } = self;
        completions.flush(lasting);
        duties.wake(&mut completions.wake);
        freed
    }

    /// Like [`take_returns`](Self::take_returns), outside of a pass: the next pass finds nothing returned, and has to try
    /// the I/Os that wait for a slot all the same.
    pub(crate) fn take_returns_early<P>(&mut self, hub: &Hub<P>, shard: &Shard) -> bool {
        let freed = self.take_returns(hub, shard);
        self.retry_blocked |= freed && !planted::is(Planted::ForgetsFreedSlots);
        freed
    }

    /// Like [`take_returns`](Self::take_returns), but visits only lanes with returned requests: there are as many lanes
    /// as submitters.
    #[inline(never)]
    fn take_returns_of_owners<P>(&mut self, lasting: &Lasting<P>, shard: &Shard) -> bool {
        let Self { elevator, lanes, completions, .. } = self;
        let mut freed = false;
        if shard.returned.any() {
            shard.returned.take(|lane| {
                freed |= take_back(elevator, &mut lanes[usize::from(lane)], completions, lasting);
            });
        }
        freed
    }

    /// Returns whether passes have taken everything that pumps have given back.
    fn has_taken_all<P>(&mut self, hub: &Hub<P>, shard: &Shard) -> bool {
        if hub.has_owners() {
            return !shard.returned.any();
        }
        self.lanes.iter_mut().all(|lane| lane.returns.is_empty())
    }

    /// The requests that pumps handed back and no pass has taken, for the end of a queue.
    pub(crate) fn abandon(&mut self) -> impl Iterator<Item = Inflight> + '_ {
        let pop = |lane: &mut Lane| lane.handbacks.pop().map(|back| back.rq);
        self.lanes.iter_mut().flat_map(move |lane| std::iter::from_fn(move || pop(lane)))
    }

    /// Asks for a pass when an I/O that waits for a slot may have one: after the next completion, and when the latency
    /// goals of other groups let its group continue, which need not follow a completion.
    fn wait_for_slot<P>(&mut self, hub: &Hub<P>, shard: &Shard) {
        self.wait_for_completion(hub, shard);
        if let Some(at) = self.elevator.next_admission() {
            self.duties.arm(at);
        }
    }

    /// Asks for a pass at the next look of the controller of latency goals, where passes are not made by a runner.
    pub(crate) fn look_again(&mut self) {
        if let Some(at) = self.elevator.next_look() {
            self.duties.arm(at);
        }
    }

    /// Asks for a pass after the next completion: an I/O waits for a slot, or the policy holds requests back.
    pub(crate) fn wait_for_completion<P>(&mut self, hub: &Hub<P>, shard: &Shard) {
        // Lanes of owners have one mark.
        let marks = if hub.has_owners() { 1 } else { self.lanes.len() };
        for at in 0..marks {
            hub.hctxs[usize::from(self.first_hw) + at].restart.mark();
        }
        // A pump that returned slots before the mark was visible to it does not kick.
        if !self.has_taken_all(hub, shard) {
            self.duties.again();
        }
    }
}

/// Takes back the requests that the pump of `lane` has given back. Returns whether a slot became free.
#[inline(always)]
fn take_back<P>(
    elevator: &mut Elevator,
    lane: &mut Lane,
    completions: &mut Completions,
    lasting: &Lasting<P>,
) -> bool {
    let mut freed = elevator.take_done(&mut lane.returns) > 0;
    while let Some(back) = lane.handbacks.pop() {
        freed |= elevator.take_back(back, |bio, result| completions.push(lasting, bio, result));
    }
    freed
}

impl Runner {
    /// Accounts for the time from the last pass to `now`, in which nothing has changed here. Costs a branch if no time
    /// is counted.
    #[inline]
    pub(crate) fn account_waits(&mut self, now: Instant) {
        if self.elevator.watch.is_some() {
            self.account_stretch(now);
        }
    }

    #[inline(never)]
    fn account_stretch(&mut self, now: Instant) {
        if let Some(time) = self.elevator.stretch(now, !self.blocked.is_empty()) {
            self.look_at_groups(time);
        }
    }

    #[cold]
    #[inline(never)]
    fn look_at_groups(&mut self, time: u64) {
        let Self { elevator, blocked, staging, .. } = self;
        let Some(watch) = &mut elevator.watch else { return };
        watch.account_waits(&elevator.slots, &elevator.lobby, time, |show| {
            // Of the I/Os that wait in staging, only the first of each submitter counts.
            for id in blocked {
                let ring = staging[usize::from(id.0)].as_mut();
                if let Some(first) = ring.and_then(|staging| staging.protos.peek()) {
                    show(first.meta.group);
                }
            }
        });
    }
}

/// The most requests that one pass hands to one hardware queue, because a pass is bounded (decision 0002). The passes
/// of many submitters admit fewer. Requests that a pass leaves behind are ahead of all later requests, and keep them
/// from the short ways.
const PASS_REQUESTS: u32 = 256;
/// Budgets taken at a time (`spec/framework.md` section 15).
const BUDGET_BATCH: u32 = 8;

impl Runner {
    fn dispatch_all<P>(&mut self, hub: &Hub<P>, shard: &Shard, home: HwQueue, ready: &mut Ready) {
        if hub.has_owners() {
            self.dispatch_to_owners(hub, shard, home, ready);
            return;
        }
        let lanes = self.lanes.len();
        let first = usize::from(home.0 - self.first_hw);
        for step in 0..lanes {
            if self.elevator.held() == 0 {
                break;
            }
            let at = (first + step) % lanes;
            let hw = HwQueue(self.first_hw + at as u16);
            self.dispatch(hub, shard, hw, ready);
        }
    }

    /// Like [`dispatch_all`](Self::dispatch_all), but for lanes of owners: the policy is asked once for all lanes, and
    /// a request leaves by the lane of its submitter.
    fn dispatch_to_owners<P>(
        &mut self,
        hub: &Hub<P>,
        shard: &Shard,
        home: HwQueue,
        ready: &mut Ready,
    ) {
        if self.elevator.held() > 0 {
            self.dispatch(hub, shard, home, ready);
        }
    }

    /// Asks the policy for requests for `hw` until the policy, tags, budgets or the quota stop it. Adds the lanes that
    /// received requests to `ready`.
    fn dispatch<P>(&mut self, hub: &Hub<P>, shard: &Shard, hw: HwQueue, ready: &mut Ready) {
        let hctx = &hub.hctxs[usize::from(hw.0)];
        if hctx.is_stuck() {
            // Requests that stay in the elevator can still merge. The pump kicks when the device takes requests
            // again.
            hctx.restart.mark();
            if hctx.is_stuck() {
                self.elevator.is_short();
                return;
            }
        }
        let quota = if hctx.busy() == 0 { PASS_REQUESTS } else { 1 };
        let mut sent = 0;
        while sent < quota && self.elevator.held() > 0 {
            let want = (quota - sent).min(self.elevator.held()).min(TAG_BATCH);
            let (got, more) = self.dispatch_batch(hub, shard, hw, want, ready);
            sent += got;
            if !more {
                break;
            }
        }
        if sent == 0 {
            return;
        }
        self.publish_outboxes(shard, *ready);
        if sent >= quota && self.elevator.held() > 0 {
            // The quota serves fairness or back-pressure, and more requests are ready: the pump kicks again.
            hctx.restart.mark();
        }
        self.elevator.counters.batches.add(1);
        self.elevator.counters.dispatched.add(sent.into());
    }

    /// Takes budgets, then tags, then picks requests; gives back the budgets and tags that it could not use. Returns
    /// how many requests it sent, and whether another call may send more.
    fn dispatch_batch<P>(
        &mut self,
        hub: &Hub<P>,
        shard: &Shard,
        hw: HwQueue,
        want: u32,
        ready: &mut Ready,
    ) -> (u32, bool) {
        let hctx = &hub.hctxs[usize::from(hw.0)];
        let lane = &mut self.lanes[usize::from(hw.0 - self.first_hw)];
        let (mut want, mut budget) = (want, 0);
        if self.elevator.takes_budgets() {
            budget = hub.take_budget(shard, want.min(BUDGET_BATCH));
            if budget == 0 {
                self.elevator.is_short();
                return (0, false);
            }
            want = budget;
        }
        let mut tags = hctx.tags.get_batch(&mut lane.hint, want);
        if tags.is_none() {
            hctx.restart.mark();
            hctx.tags.wait(shard.index, &hub.tag_wait, self.elevator.now());
            tags = hctx.tags.get_batch(&mut lane.hint, want);
        }
        let Some(mut tags) = tags else {
            self.elevator.is_short();
            self.give_back(hub, hctx, budget);
            return (0, false);
        };
        self.elevator.is_supplied();
        let (mut sent, mut more) = (0, true);
        while let Some(tag) = tags.pop() {
            match self.elevator.pick(hw) {
                Pick::Issue(id) => {
                    let by = if hub.has_owners() {
                        HwQueue(self.elevator.submitter_of(&hub.lasting.table, id).0)
                    } else {
                        hw
                    };
                    let lane = &mut self.lanes[usize::from(by.0 - self.first_hw)];
                    // An outbox has room for a request with every tag.
                    lane.outbox.put_with(|| self.elevator.issue(id, by, tag));
                    ready.add(by);
                    sent += 1;
                    continue;
                }
                waits => self.wait_as_told(hub, shard, waits),
            }
            more = false;
            self.unused.push(tag);
            break;
        }
        while let Some(tag) = tags.pop() {
            self.unused.push(tag);
        }
        let unused = if budget > 0 { budget - sent } else { 0 };
        self.give_back(hub, hctx, unused);
        (sent, more)
    }

    /// Shows the pumps of `ready` the contents of their outboxes.
    #[inline]
    fn publish_outboxes(&mut self, shard: &Shard, ready: Ready) {
        for lane in ready.iter(shard.hws()) {
            self.lanes[usize::from(lane.0 - self.first_hw)].outbox.publish();
        }
    }

    /// Arranges for the policy to be asked again when its answer requires it.
    fn wait_as_told<P>(&mut self, hub: &Hub<P>, shard: &Shard, pick: Pick) {
        match pick {
            Pick::WaitUntil(at) => {
                self.duties.arm(at);
                self.wait_for_completion(hub, shard);
            }
            Pick::WaitCompletion => self.wait_for_completion(hub, shard),
            // The thread that gives a token back kicks the elevators that were refused one.
            Pick::WaitToken | Pick::Empty | Pick::Issue(_) => {}
        }
    }

    /// Gives back budgets and the tags in `unused`. Adds kicks for the elevators that wait for them to the duties.
    fn give_back<P>(&mut self, hub: &Hub<P>, hctx: &Hctx, budget: u32) {
        if budget > 0 {
            hub.put_budget(budget, &mut self.duties);
        }
        if !self.unused.is_empty() {
            hctx.tags.put(&self.unused, &hub.tag_wait, &mut self.duties);
            self.unused.clear();
        }
    }
}

impl Runner {
    /// Leaves every token that is staged or held with the orphans, except tokens on their way to a pump.
    pub(crate) fn end_all(&mut self) {
        // A pass that was cut short by a panic may have left requests in outboxes where their pumps do not see them
        // yet.
        self.lanes.iter_mut().for_each(|lane| lane.outbox.publish());
        for staging in self.staging.iter_mut().flatten() {
            while let Some(proto) = staging.protos.pop() {
                proto.bio.orphan();
            }
            while staging.asks.pop().is_some() {}
        }
        self.abandon().for_each(|rq| rq.into_head().orphan());
        self.parked.clear();
        self.elevator.take_waiting().into_iter().for_each(|(_, proto)| proto.bio.orphan());
        self.elevator.slots.take_chains().for_each(|chain| chain.head.orphan());
    }
}

/// The most staged requests that one pass takes from one submitter. A policy's structures cost more the fuller they
/// are, so while the device takes requests it is better to keep them moving: portions of 8 gave 6.4 M IOPS, taking
/// everything that was staged (27 on average) gave 5.8 M (decision 0005).
pub(super) const PASS_STAGED: u32 = if cfg!(shuttle) { 2 } else { 8 };
/// The limit, in place of [`PASS_STAGED`], while staged requests continue to join held ones. Joining needs no slot and
/// leaves the structures as full as they were, and a request left in staging may later find that the one it could have
/// joined has been issued.
const PASS_JOINING: u32 = 4 * PASS_STAGED;
/// Portions of one submitter that one pass sends by the short way, which leaves the policy's structures empty.
const PASS_PORTIONS: u32 = 4;
/// The result of admitting a submitter's staged requests.
struct Admitted {
    /// At least one request was admitted.
    any: bool,
    /// The oldest request left in staging found no slot.
    waits: bool,
}

impl Runner {
    /// Returns whether the queue is frozen, or a later queue has taken over.
    pub(crate) fn admits_nothing<P>(&self, hub: &Hub<P>) -> bool {
        self.retired || hub.lasting.control.is_frozen()
    }

    /// Asks for another pass over the requests that this one left in staging.
    #[inline]
    fn owe_unfinished(&mut self, shard: &Shard) {
        if !self.unfinished.is_empty() {
            self.owe_all(shard);
        }
    }

    #[inline(never)]
    fn owe_all(&mut self, shard: &Shard) {
        for id in self.unfinished.drain(..) {
            shard.pending.set(id.0);
        }
        // With combining, this runner then owes another pass; in the locked modes, the next thread that polls makes it.
        self.duties.again();
    }

    /// Admits I/Os that wait for a slot, if slots became free, then staged requests, then the caller's plug. Begins the
    /// flushes that these, and finished steps of flush sequences, ask for. A request that need not wait may go to its
    /// hardware queue immediately, which is then added to `ready`.
    fn admit_all<P>(
        &mut self,
        hub: &Hub<P>,
        shard: &Shard,
        (freed, own): (bool, Option<Own<'_>>),
        ready: &mut Ready,
    ) {
        let closed = self.admits_nothing(hub);
        self.elevator.env.set_draining(closed);
        if closed {
            self.retry_blocked = true;
            if let Some(own) = own {
                stage(shard, own);
            }
        } else {
            let freed = freed | std::mem::take(&mut self.retry_blocked);
            if freed {
                self.retry_waiting(hub, ready);
            }
            if shard.pending.any() {
                shard.pending.take_ahead(|id, next| {
                    if let Some(next) = next {
                        // Prefetched while the requests of this submitter are admitted.
                        ring_of(&mut self.staging, SubmitterId(next)).prefetch(PASS_STAGED);
                    }
                    self.drain_staged(hub, shard, SubmitterId(id), ready);
                });
                if std::mem::take(&mut self.freed_meanwhile) {
                    self.retry_waiting(hub, ready);
                }
            }
            match own {
                Some(own) if shard.asked.has(own.id.0) => stage(shard, own),
                Some(own) => self.admit_plug(hub, shard, own, ready),
                None => {}
            }
            if self.elevator.has_newcomers() {
                self.elevator.fill(&hub.lasting.table);
            }
        }
        self.begin_flushes();
        if !self.blocked.is_empty() || self.elevator.some_wait() {
            self.wait_for_slot(hub, shard);
        }
        self.owe_unfinished(shard);
    }

    /// Admits requests that `id` staged, oldest first, until one finds no slot. A portion that need not wait goes to
    /// its hardware queue immediately.
    fn drain_staged<P>(&mut self, hub: &Hub<P>, shard: &Shard, id: SubmitterId, ready: &mut Ready) {
        let at = usize::from(id.0);
        if shard.asked.has(id.0) {
            // The submitter has unanswered asks, new or left over, which come first.
            self.unfinished.push(id);
        } else if self.is_blocked[at] {
            // The submitter keeps its place among the blocked ones, but its requests may join held ones that arrived
            // since.
            self.merge_staged(&hub.lasting.table, id);
        } else {
            if !self.elevator.slots.has(PASS_STAGED) {
                // Requests that a pump has finished since this pass began leave their slots.
                self.freed_meanwhile |= self.take_returns(hub, shard);
            }
            if self.admit_portions(hub, id, PASS_PORTIONS, ready).waits {
                self.is_blocked[at] = true;
                self.blocked.push(id);
            }
        }
    }

    /// Admits requests that `id` staged, oldest first: at most `most` portions by a short way, or one by the long way.
    fn admit_portions<P>(
        &mut self,
        hub: &Hub<P>,
        id: SubmitterId,
        most: u32,
        ready: &mut Ready,
    ) -> Admitted {
        let mut any = false;
        for _ in 0..most {
            if ring_of(&mut self.staging, id).is_empty() {
                return Admitted { any, waits: false };
            }
            if !self.is_way_free(hub) || !self.pass_staged(hub, id, ready) {
                let rest = self.admit_staged(&hub.lasting.table, id);
                return Admitted { any: any | rest.any, ..rest };
            }
            any = true;
        }
        if !ring_of(&mut self.staging, id).is_empty() {
            self.unfinished.push(id);
        }
        Admitted { any, waits: false }
    }

    /// Admits requests that `id` staged, oldest first, until its portion is used up or one finds no slot.
    fn admit_staged<P>(&mut self, table: &BioTable<P>, id: SubmitterId) -> Admitted {
        if self.elevator.has_lobby() {
            return self.admit_by_group(table, id);
        }
        let ring = ring_of(&mut self.staging, id);
        ring.prefetch(PASS_STAGED);
        let most = if self.elevator.slots_come_first() { PASS_STAGED } else { PASS_JOINING };
        let mut joined = false;
        for n in 0..most {
            if n >= PASS_STAGED && !joined {
                break;
            }
            let Some(staged) = ring.peek() else { return Admitted { any: n > 0, waits: false } };
            let Some(place) = self.elevator.place(&staged.meta) else {
                return Admitted { any: n > 0, waits: true };
            };
            joined = matches!(place, Place::Join(..));
            self.elevator.admit(table, place, ring.take());
        }
        if !ring.is_empty() {
            self.unfinished.push(id);
        }
        Admitted { any: true, waits: false }
    }

    /// Admits staged requests where I/Os without a slot wait in the lobby: no request stays in staging for want of a
    /// slot.
    fn admit_by_group<P>(&mut self, table: &BioTable<P>, id: SubmitterId) -> Admitted {
        let ring = ring_of(&mut self.staging, id);
        ring.prefetch(PASS_STAGED);
        let mut any = false;
        for _ in 0..PASS_JOINING {
            let Some(proto) = ring.pop() else { return Admitted { any, waits: false } };
            self.elevator.take_in(table, id, proto);
            any = true;
        }
        if !ring.is_empty() {
            self.unfinished.push(id);
        }
        Admitted { any, waits: false }
    }

    /// Merges requests that `id` staged, oldest first, until one needs a slot.
    fn merge_staged<P>(&mut self, table: &BioTable<P>, id: SubmitterId) {
        let ring = ring_of(&mut self.staging, id);
        while let Some(staged) = ring.peek() {
            match self.elevator.place(&staged.meta) {
                Some(place @ Place::Join(..)) => self.elevator.admit(table, place, ring.take()),
                Some(Place::Slot) | None => return,
            }
        }
        self.is_blocked[usize::from(id.0)] = false;
        self.blocked.retain(|other| *other != id);
    }

    /// Gives freed slots to I/Os in the lobby, and to blocked submitters.
    fn retry_waiting<P>(&mut self, hub: &Hub<P>, ready: &mut Ready) {
        if self.elevator.some_wait() {
            self.elevator.fill(&hub.lasting.table);
        }
        if !self.blocked.is_empty() {
            self.retry_blocked(hub, ready);
        }
    }

    /// Gives freed slots to blocked submitters in turn. A submitter that got some and needs more goes behind those
    /// that got none; otherwise a submitter that always has more would take all slots.
    fn retry_blocked<P>(&mut self, hub: &Hub<P>, ready: &mut Ready) {
        let mut waiting = std::mem::take(&mut self.blocked);
        waiting.retain(|id| {
            let Admitted { any, waits } = self.admit_portions(hub, *id, 1, ready);
            self.is_blocked[usize::from(id.0)] = waits;
            if any && waits {
                self.served.push(*id);
            }
            waits && !any
        });
        waiting.append(&mut self.served);
        self.blocked = waiting;
    }

    /// Admits the caller's plug without staging it. Where there is no lobby, a request that finds no slot, and all
    /// behind it, go behind those that are staged already.
    #[allow(clippy::needless_pass_by_value, reason = "it borrows what the caller submits")]
    fn admit_plug<P>(&mut self, hub: &Hub<P>, shard: &Shard, own: Own<'_>, ready: &mut Ready) {
        let at = usize::from(own.id.0);
        let was_blocked = self.is_blocked[at];
        self.pass_sorted(hub, own.plug, ready);
        if own.plug.is_empty() {
            return;
        }
        let mut rest = own.plug.drain();
        self.pass_by(hub, &mut rest, ready);
        if self.elevator.has_lobby() && !was_blocked {
            for proto in &mut rest {
                self.elevator.take_in(&hub.lasting.table, own.id, proto);
            }
            rest.end();
            return;
        }
        let mut staged = false;
        while let Some(next) = rest.peek() {
            let place = if self.is_blocked[at] { None } else { self.elevator.place(&next.meta) };
            let Some(proto) = rest.next() else { break };
            if let Some(place) = place {
                self.elevator.admit_here(&hub.lasting.table, place, proto);
                continue;
            }
            if !self.is_blocked[at] {
                self.is_blocked[at] = true;
                self.blocked.push(own.id);
            }
            own.staging.put(proto);
            staged = true;
        }
        rest.end();
        if staged {
            own.staging.publish();
            if was_blocked {
                // The new requests may merge although older ones wait: the next pass must try.
                shard.pending.set(own.id.0);
            }
        }
    }
}

pub(super) fn ring_of(
    staging: &mut [Option<Staging>],
    id: SubmitterId,
) -> &mut Consumer<PluggedRequest> {
    &mut staging[usize::from(id.0)].as_mut().expect("a submitter of this shard").protos
}

impl Runner {
    /// Takes over parked requests. Each is inserted if it has a slot, or merged with a held request.
    pub(crate) fn take_over<P>(&mut self, hub: &Hub<P>, shard: &Shard) {
        let Some(parking) = &shard.modes.parking else { return };
        if parking.lists.any() && !planted::is(Planted::ForgetsParkedRequests) {
            let Parked { line, lanes } = &mut self.parked;
            parking.lists.take(|proto| {
                let lane = &mut lanes[usize::from(proto.meta.hw.0 - shard.first_hw)];
                lane.promised = lane.promised.wrapping_sub(1);
                line.push_back(proto);
            });
        }
        self.let_line_in(hub, shard);
    }

    /// Admits requests from the line, as far as there are slots.
    fn let_line_in<P>(&mut self, hub: &Hub<P>, shard: &Shard) {
        let before = self.parked.line.len();
        while let Some(first) = self.parked.line.front() {
            let Some(place) = self.elevator.place(&first.meta) else {
                self.wait_for_slot(hub, shard);
                break;
            };
            let proto = self.parked.line.pop_front().expect("it was seen just now");
            self.elevator.admit(&hub.lasting.table, place, proto);
        }
        if self.parked.line.len() < before {
            self.begin_flushes();
        }
    }

    /// Takes in all that a holder of the lock must take in: finished requests, parked ones, then staged I/Os and the
    /// caller's own plug.
    pub(crate) fn take_in<P>(
        &mut self,
        hub: &Hub<P>,
        shard: &Shard,
        freed: bool,
        own: Option<Own<'_>>,
    ) {
        let mut freed = freed | self.take_returns(hub, shard);
        self.take_over(hub, shard);
        if self.answer_asks(hub, shard) {
            // The slot of a cancelled I/O may be the one for which the line waits. No completion follows it.
            self.let_line_in(hub, shard);
            freed = true;
        }
        // Under a lock no request bypasses the policy.
        self.admit_all(hub, shard, (freed, own), &mut Ready::default());
    }

    /// Publishes the hints that are read without the lock: the number of held requests, and the slots that may be
    /// promised.
    pub(crate) fn publish(&mut self, shard: &Shard) {
        shard.modes.held.store(self.elevator.held(), Ordering::Release);
        let Some(parking) = &shard.modes.parking else { return };
        let Parked { line, lanes } = &mut self.parked;
        for ((lane, promises), hw) in lanes.iter_mut().zip(&parking.promises).zip(shard.hws()) {
            let free = self.elevator.slots.free_of(HwQueue(hw)).saturating_sub(line.len() as u32);
            promises.renew(free, lane);
        }
    }
}

/// The most asks of one submitter that a pass answers, because each one searches all I/Os that wait.
const PASS_ASKS: u32 = if cfg!(shuttle) { 2 } else { 32 };

impl Runner {
    /// Answers asks to cancel, before anything is admitted. Returns whether an I/O was cancelled, so that others may
    /// have its slot.
    #[inline]
    fn answer_asks<P>(&mut self, hub: &Hub<P>, shard: &Shard) -> bool {
        shard.asked.any() && self.answer_all(hub, shard)
    }

    /// Answers the asks of all submitters in the set.
    #[cold]
    fn answer_all<P>(&mut self, hub: &Hub<P>, shard: &Shard) -> bool {
        let mut any = false;
        shard.asked.take(|id| any |= self.answer(hub, shard, SubmitterId(id)));
        self.completions.flush(&hub.lasting);
        if planted::is(Planted::CancelsInSilence) {
            self.completions.wake.clear();
        }
        self.duties.wake(&mut self.completions.wake);
        any
    }

    /// Answers some of the asks of `id`. Returns whether an I/O was cancelled.
    fn answer<P>(&mut self, hub: &Hub<P>, shard: &Shard, id: SubmitterId) -> bool {
        let Self { elevator, staging, completions, duties, .. } = self;
        // A later queue has taken over the rings, and answers there.
        let Some(Staging { protos, asks }) = &mut staging[usize::from(id.0)] else { return false };
        let mut any = false;
        for _ in 0..PASS_ASKS {
            let Some(Ask { cookie, before }) = asks.pop() else { return any };
            if protos.has_passed(before) && !planted::is(Planted::ForgetsMarks) {
                continue;
            }
            // A held I/O was pushed before a staged one.
            let table = &hub.lasting.table;
            let bio = elevator.give_up(table, id, cookie).or_else(|| {
                let is =
                    |proto: &PluggedRequest| proto.bios == 1 && table.is_io(&proto.bio, cookie);
                let mine = |proto: &PluggedRequest| is(proto) && table.submitter(&proto.bio) == id;
                let parked = if COMPARE { self.parked.remove(mine) } else { None };
                let proto = parked
                    .or_else(|| elevator.withdraw_waiting(id, is))
                    .or_else(|| protos.remove_before(before, is))?;
                elevator.counters.cancelled_staged.add(1);
                Some(proto.bio)
            });
            if let Some(bio) = bio {
                any = true;
                completions.push(&hub.lasting, bio, Err(IoError::CANCELLED));
            }
        }
        if !asks.is_empty() {
            // With combining, this runner then owes another pass; in the locked modes, the next thread that polls
            // makes it.
            shard.asked.set(id.0);
            duties.again();
        }
        any
    }
}
