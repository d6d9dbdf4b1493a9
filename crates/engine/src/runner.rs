//! One pass over an elevator, by whoever holds the run of its shard (D3).
//!
//! A pass takes back what devices finished, drains everybody's staging, takes the caller's own plug straight
//! in, and fills the outboxes in the elevator's order. It makes no system call and does a bounded amount of
//! work; who runs how many passes is decided in `drive.rs`.

use crate::before::parking::Parked;
use crate::cancel::Ask;
use crate::completions::Completions;
use crate::elevator::{Elevator, Place, Proto, Tuning};
use crate::hctx::Hctx;
use crate::inflight::Handback;
use crate::plug::Plug;
use crate::ready::Ready;
use crate::shared::{Shard, Shared};
use crate::sync::{Consumer, Producer};
use crate::{BioTable, Inflight};
use blkmq_core::{HwQueue, Instant, SubmitterId, Tag};
use blkmq_sched::{Done, Pick};

/// Requests that one pass hands to one hardware queue at most (D8).
const PASS_REQUESTS: u32 = 128;
/// Staged requests that one pass takes from one submitter. A policy's structures cost more the fuller they
/// are, so while the device takes requests it is better to keep them moving: 8 at a time gave 6.4 M IOPS
/// where all that was there (27 on average) gave 5.8 M.
const PASS_STAGED: u32 = if cfg!(shuttle) { 2 } else { 8 };
/// The same where they go on joining what waits, which needs no slot and leaves the structures as full as they were:
/// what is left behind would find the request gone that it could have joined.
const PASS_JOINING: u32 = 4 * PASS_STAGED;
/// Driver tags taken at a time.
const TAG_BATCH: u32 = 32;
/// Budgets taken at a time (`spec/framework.md` section 15).
const BUDGET_BATCH: u32 = 8;

/// The way to and from one hardware queue, seen from the elevator.
pub(crate) struct Lane {
    pub(crate) outbox: Producer<Inflight>,
    /// What the device finished: slots to be freed.
    pub(crate) returns: Consumer<Done>,
    /// What the device wants back later, and steps of flush sequences.
    pub(crate) handbacks: Consumer<Handback>,
    /// Where the last driver tag was found.
    pub(crate) hint: u32,
}

/// What a submitter leaves for the runner, as the runner has it.
pub(crate) struct Staging {
    pub(crate) protos: Consumer<Proto>,
    /// What it wants to be given up (`cancel.rs`).
    pub(crate) asks: Consumer<Ask>,
}

/// Everything that only the holder of a shard's run may touch.
pub(crate) struct Runner {
    pub(crate) elevator: Elevator,
    pub(crate) lanes: Box<[Lane]>,
    pub(crate) first_hw: u16,
    /// Staging of this shard's submitters, by submitter; `None` for those of other shards.
    pub(crate) staging: Box<[Option<Staging>]>,
    /// Submitters whose oldest staged request found no slot, in the order in which they get the next ones.
    blocked: Vec<SubmitterId>,
    /// Of those, who got some just now; empty between two calls.
    served: Vec<SubmitterId>,
    is_blocked: Box<[bool]>,
    /// Submitters that had more staged than a pass takes.
    unfinished: Vec<SubmitterId>,
    /// Tags taken and not needed.
    unused: Vec<Tag>,
    /// What ends at a flush or is given up, which a runner learns of and no pump.
    pub(crate) completions: Completions,
    /// Parked submitters that a tag or budget given back, or a completion, concerns; woken when the run is
    /// released.
    pub(crate) wakes: Vec<SubmitterId>,
    /// A later queue has taken over: nothing is admitted here any more.
    retired: bool,
    /// Those who wait for a slot were not looked at when they could have had one.
    retry: bool,
    /// What came from insertion lists, if there are any (`before/parking.rs`).
    pub(crate) parked: Parked,
}

/// What came of looking at what a submitter staged.
struct Admitted {
    /// Something was taken in.
    any: bool,
    /// Its oldest found no slot.
    waits: bool,
}

/// The caller's own submission, which need not be staged when the elevator is free.
pub(crate) struct Own<'a> {
    pub(crate) id: SubmitterId,
    pub(crate) plug: &'a mut Plug,
    pub(crate) staging: &'a mut Producer<Proto>,
}

impl Runner {
    pub(crate) fn new(
        elevator: Elevator,
        lanes: Box<[Lane]>,
        first_hw: u16,
        submitters: u16,
        completions: Completions,
        parked: Option<Parked>,
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
            unfinished: Vec::with_capacity(submitters),
            unused: Vec::with_capacity(TAG_BATCH as usize),
            completions,
            wakes: Vec::new(),
            retired: false,
            retry: false,
            parked: parked.unwrap_or_default(),
        }
    }

    /// Sets what can be set while requests are held. Who waits for a slot may have one by that.
    pub(crate) fn tune(&mut self, tuning: &Tuning) {
        self.elevator.tune(tuning);
        self.retry = true;
    }

    /// Gives it the staging of one of its submitters.
    pub(crate) fn install(&mut self, id: SubmitterId, staging: Staging) {
        self.staging[usize::from(id.0)] = Some(staging);
    }

    /// I/Os of its submitters that waited for a slot in another queue wait here, ahead of what is staged.
    pub(crate) fn adopt(&mut self, by: SubmitterId, proto: Proto) {
        self.elevator.adopt(by, proto);
        self.retry = true;
    }

    /// Takes all staging away, for another queue. From now on nothing is admitted here.
    pub(crate) fn retire(&mut self) -> impl Iterator<Item = (SubmitterId, Staging)> + '_ {
        self.retired = true;
        let all = (0..).map(SubmitterId).zip(&mut self.staging);
        all.filter_map(|(id, staging)| Some((id, staging.take()?)))
    }

    /// One pass. `home` is the hardware queue that the caller maps to; it is served first.
    pub(crate) fn pass<P: Send>(
        &mut self,
        q: &Shared<P>,
        shard: &Shard,
        now: Instant,
        home: HwQueue,
        own: Option<Own<'_>>,
    ) -> Ready {
        self.begin(q, now);
        self.elevator.counters.passes.add(1);
        let freed = self.take_returns(q);
        self.admit_all(q, shard, freed, own);
        let mut ready = Ready::default();
        self.dispatch_all(q, shard, home, &mut ready);
        self.end(q);
        ready
    }

    /// A pass begins, or whatever comes near one: this is the time.
    pub(crate) fn begin<P: Send>(&mut self, q: &Shared<P>, now: Instant) {
        let Self { elevator, wakes, .. } = self;
        elevator.advance(now);
        elevator.outside.begin(now, &mut |shard| wakes.extend(q.kick_shard(shard)));
    }

    /// It is over: others may have what was not needed.
    pub(crate) fn end<P: Send>(&mut self, q: &Shared<P>) {
        let Self { elevator, wakes, .. } = self;
        elevator.outside.end(&mut |shard| wakes.extend(q.kick_shard(shard)));
    }

    /// The queue is frozen, or is no longer the queue.
    pub(crate) fn admits_nothing<P>(&self, q: &Shared<P>) -> bool {
        self.retired || q.lasting.control.is_frozen()
    }

    /// Asks for another pass over what this one left in staging.
    fn owe_unfinished(&mut self, shard: &Shard) {
        if self.unfinished.is_empty() {
            return;
        }
        for id in self.unfinished.drain(..) {
            shard.pending.set(id.0);
        }
        // To the runner itself, which owes another pass by that; in the locked modes, to whoever polls next.
        let _ = shard.gate.kick();
    }

    /// Gives up what its submitters do not want any more; takes in who waited for a slot, if some became free,
    /// then what was staged, then the caller's plug; and begins the flushes that all of that, and what came
    /// back, asked for.
    pub(crate) fn admit_all<P: Send>(
        &mut self,
        q: &Shared<P>,
        shard: &Shard,
        freed: bool,
        own: Option<Own<'_>>,
    ) {
        let freed = freed | (shard.asked.any() && self.answer_all(q, shard));
        let closed = self.admits_nothing(q);
        self.elevator.outside.set_draining(closed);
        if closed {
            self.retry = true;
            if let Some(own) = own {
                stage(shard, own);
            }
        } else {
            let freed = freed | std::mem::take(&mut self.retry);
            if freed {
                self.retry_waiting(&q.lasting.table);
            }
            if shard.pending.any() {
                shard.pending.take(|id| self.drain_staged(q, shard, SubmitterId(id)));
            }
            match own {
                Some(own) if shard.asked.has(own.id.0) => stage(shard, own),
                Some(own) => self.admit_plug(q, shard, own),
                None => {}
            }
            if self.elevator.has_newcomers() {
                self.elevator.fill(&q.lasting.table);
            }
        }
        self.begin_flushes(shard);
        if !self.blocked.is_empty() || self.elevator.some_wait() {
            self.wait_for_completion(q, shard);
        }
        self.owe_unfinished(shard);
    }

    #[inline]
    pub(crate) fn begin_flushes(&mut self, shard: &Shard) {
        if let Some(at) = self.elevator.begin_flushes() {
            shard.gate.arm(at);
        }
    }

    /// No request has a slot, or waits for one that it was promised.
    pub(crate) fn is_idle(&self) -> bool {
        self.elevator.is_idle() && self.parked.line().is_empty()
    }

    /// Takes back what the pumps returned. True if a slot became free.
    pub(crate) fn take_returns<P>(&mut self, q: &Shared<P>) -> bool {
        let Self { elevator, lanes, completions, wakes, .. } = self;
        let mut freed = false;
        for lane in lanes {
            while let Some(done) = lane.returns.peek() {
                freed = true;
                elevator.done(done);
                lane.returns.take();
            }
            while let Some(back) = lane.handbacks.pop() {
                freed |= elevator.take_back(back, |bio, result| completions.push(q, bio, result));
            }
        }
        completions.flush(q);
        wakes.append(&mut completions.wake);
        freed
    }

    /// What pumps handed back and nobody took up, for a queue that goes away.
    pub(crate) fn abandon(&mut self) -> impl Iterator<Item = Inflight> + '_ {
        let pop = |lane: &mut Lane| lane.handbacks.pop().map(|back| back.rq);
        self.lanes.iter_mut().flat_map(move |lane| std::iter::from_fn(move || pop(lane)))
    }

    /// Admits what `id` staged, oldest first, until something finds no slot.
    fn drain_staged<P>(&mut self, q: &Shared<P>, shard: &Shard, id: SubmitterId) {
        let at = usize::from(id.0);
        if shard.asked.has(id.0) {
            // It asked for more to be given up than was answered, or has just asked: that comes first.
            self.unfinished.push(id);
        } else if self.is_blocked[at] {
            // It has its place among those who wait for a slot, but may join what others inserted since.
            self.merge_staged(&q.lasting.table, id);
        } else if self.admit_staged(&q.lasting.table, id).waits {
            self.is_blocked[at] = true;
            self.blocked.push(id);
        }
    }

    /// Takes in what `id` staged, oldest first, until its portion is used up or something finds no slot.
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

    /// The same where what finds no slot waits by group: nothing stays in staging for want of one.
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

    /// Merges what `id` staged as far as that goes without slots.
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

    /// Slots have become free: for what waits by group, and for submitters that wait.
    fn retry_waiting<P>(&mut self, table: &BioTable<P>) {
        if self.elevator.some_wait() {
            self.elevator.fill(table);
        }
        if !self.blocked.is_empty() {
            self.retry_blocked(table);
        }
    }

    /// Slots have become free: those who wait get them in turn. Who got some and wants more goes behind those who
    /// got none, or one that always has more would have them all.
    fn retry_blocked<P>(&mut self, table: &BioTable<P>) {
        let mut waiting = std::mem::take(&mut self.blocked);
        waiting.retain(|id| {
            let Admitted { any, waits } = self.admit_staged(table, *id);
            self.is_blocked[usize::from(id.0)] = waits;
            if any && waits {
                self.served.push(*id);
            }
            waits && !any
        });
        waiting.append(&mut self.served);
        self.blocked = waiting;
    }

    /// The caller's plug, straight in. What finds no slot is staged behind what already is.
    #[allow(clippy::needless_pass_by_value, reason = "it borrows what the caller submits")]
    fn admit_plug<P: Send>(&mut self, q: &Shared<P>, shard: &Shard, own: Own<'_>) {
        let at = usize::from(own.id.0);
        let was_blocked = self.is_blocked[at];
        if self.elevator.has_lobby() && !was_blocked {
            for proto in own.plug.drain() {
                self.elevator.take_in(&q.lasting.table, own.id, proto);
            }
            return;
        }
        let mut staged = false;
        let mut rest = own.plug.drain();
        while let Some(next) = rest.peek() {
            let place = if self.is_blocked[at] { None } else { self.elevator.place(&next.meta) };
            let Some(proto) = rest.next() else { break };
            if let Some(place) = place {
                self.elevator.admit(&q.lasting.table, place, proto);
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
                // What is new may merge although what is older waits: let the next pass look.
                shard.pending.set(own.id.0);
            }
        }
    }

    /// Somebody waits for a slot, or the policy holds something back: completions must bring a runner back.
    pub(crate) fn wait_for_completion<P: Send>(&mut self, q: &Shared<P>, shard: &Shard) {
        for at in 0..self.lanes.len() {
            q.hctxs[usize::from(self.first_hw) + at].restart.mark();
        }
        // A pump that returned slots before it could see the mark will not call.
        if self.lanes.iter_mut().any(|lane| !lane.returns.is_empty()) {
            let _ = shard.gate.kick();
        }
    }

    fn dispatch_all<P: Send>(
        &mut self,
        q: &Shared<P>,
        shard: &Shard,
        home: HwQueue,
        ready: &mut Ready,
    ) {
        let lanes = self.lanes.len();
        let first = usize::from(home.0 - self.first_hw);
        for step in 0..lanes {
            if self.elevator.held() == 0 {
                break;
            }
            let at = (first + step) % lanes;
            let hw = HwQueue(self.first_hw + at as u16);
            if self.dispatch(q, shard, hw) {
                ready.add(hw);
            }
        }
    }

    /// Fills the outbox of `hw` until the policy, tags, budgets or the quota say stop. True if anything went.
    fn dispatch<P: Send>(&mut self, q: &Shared<P>, shard: &Shard, hw: HwQueue) -> bool {
        let hctx = &q.hctxs[usize::from(hw.0)];
        if hctx.is_stuck() {
            // Leave the rest where it can merge (D7). The pump calls when the device takes requests again.
            hctx.restart.mark();
            if hctx.is_stuck() {
                return false;
            }
        }
        let quota = if hctx.busy().get() == 0 { PASS_REQUESTS } else { 1 };
        let mut sent = 0;
        while sent < quota && self.elevator.held() > 0 {
            let want = (quota - sent).min(self.elevator.held()).min(TAG_BATCH);
            let (got, more) = self.dispatch_batch(q, shard, hw, hctx, want);
            sent += got;
            if !more {
                break;
            }
        }
        if sent == 0 {
            return false;
        }
        if sent >= quota && self.elevator.held() > 0 {
            // The quota is for fairness or back-pressure, not for want of work: the pump calls again.
            hctx.restart.mark();
        }
        let lane = &mut self.lanes[usize::from(hw.0 - self.first_hw)];
        lane.outbox.publish();
        self.elevator.counters.batches.add(1);
        self.elevator.counters.dispatched.add(sent.into());
        true
    }

    /// Takes budgets, then tags, then requests; gives back what it could not use. The second answer is
    /// whether asking again makes sense.
    fn dispatch_batch<P: Send>(
        &mut self,
        q: &Shared<P>,
        shard: &Shard,
        hw: HwQueue,
        hctx: &Hctx<P>,
        want: u32,
    ) -> (u32, bool) {
        let lane = &mut self.lanes[usize::from(hw.0 - self.first_hw)];
        let mut budget = want;
        if q.budget.is_limited() {
            budget = take_budget(q, shard, want.min(BUDGET_BATCH));
            if budget == 0 {
                return (0, false);
            }
        }
        let mut tags = hctx.tags.get_batch(&mut lane.hint, budget);
        if tags.is_none() {
            hctx.restart.mark();
            hctx.tags.wait(q, shard, self.elevator.now());
            tags = hctx.tags.get_batch(&mut lane.hint, budget);
        }
        let Some(mut tags) = tags else {
            self.give_back(q, hctx, budget);
            return (0, false);
        };
        let (mut sent, mut more) = (0, true);
        while let Some(tag) = tags.pop() {
            match self.elevator.pick(hw) {
                Pick::Issue(id) => {
                    let lane = &mut self.lanes[usize::from(hw.0 - self.first_hw)];
                    // An outbox holds as many as there are tags.
                    lane.outbox.put_with(|| self.elevator.issue(id, hw, tag));
                    sent += 1;
                    continue;
                }
                Pick::Empty => {}
                Pick::WaitUntil(at) => {
                    shard.gate.arm(at);
                    self.wait_for_completion(q, shard);
                }
                Pick::WaitCompletion => self.wait_for_completion(q, shard),
                // Whoever gives a token back calls those that were refused one.
                Pick::WaitToken => {}
            }
            more = false;
            self.unused.push(tag);
            break;
        }
        while let Some(tag) = tags.pop() {
            self.unused.push(tag);
        }
        self.give_back(q, hctx, budget - sent);
        (sent, more)
    }

    /// Gives back budgets and the tags in `unused`. Others may wait for them if they are shared.
    fn give_back<P: Send>(&mut self, q: &Shared<P>, hctx: &Hctx<P>, budget: u32) {
        if budget > 0 {
            q.put_budget(budget, &mut self.wakes);
        }
        if !self.unused.is_empty() {
            hctx.tags.put(q, &self.unused, &mut self.wakes);
            self.unused.clear();
        }
    }
}

/// Leaves the caller's plug where a later pass, here or in the queue that takes over, will look.
#[allow(clippy::needless_pass_by_value, reason = "it borrows what the caller submits")]
pub(crate) fn stage(shard: &Shard, own: Own<'_>) {
    for proto in own.plug.drain() {
        // Staging holds a submitter's whole credit.
        own.staging.put(proto);
    }
    own.staging.publish();
    shard.pending.set(own.id.0);
}

/// Takes up to `want` budgets; if there are none, asks to be called and looks once more.
fn take_budget<P: Send>(q: &Shared<P>, shard: &Shard, want: u32) -> u32 {
    match q.budget.take(want) {
        0 => {
            q.budget_wait.set(shard.index);
            q.budget.take(want)
        }
        got => got,
    }
}

fn ring_of(staging: &mut [Option<Staging>], id: SubmitterId) -> &mut Consumer<Proto> {
    &mut staging[usize::from(id.0)].as_mut().expect("a submitter of this shard").protos
}
