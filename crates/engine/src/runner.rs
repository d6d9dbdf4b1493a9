//! One pass over an elevator, made by the thread that holds the run of its shard (decision 0002).
//!
//! A pass takes back finished requests, admits staged requests of every submitter, takes the caller's own plug
//! straight in, and fills the outboxes in the elevator's order. It makes no system call and does a bounded amount of
//! work. `drive.rs` decides which thread makes how many passes.

use crate::before::parking::Parked;
use crate::cancel::Ask;
use crate::completions::Completions;
use crate::elevator::{Elevator, Place, PluggedRequest, Tuning};
use crate::hctx::Hctx;
use crate::inflight::Handback;
use crate::plug::Plug;
use crate::ready::Ready;
use crate::shared::{Shard, Shared};
use crate::sync::{Consumer, Producer};
use crate::{BioTable, Inflight};
use blkmq_core::{HwQueue, Instant, SubmitterId, Tag};
use blkmq_sched::{Done, Pick};

/// The most requests that one pass hands to one hardware queue: a pass is bounded (decision 0002).
const PASS_REQUESTS: u32 = 128;
/// The most staged requests that one pass takes from one submitter. A policy's structures cost more the fuller they
/// are, so while the device takes requests it is better to keep them moving: portions of 8 gave 6.4 M IOPS, taking
/// everything that was staged (27 on average) gave 5.8 M (decision 0005).
const PASS_STAGED: u32 = if cfg!(shuttle) { 2 } else { 8 };
/// The same limit while staged requests go on joining held ones. Joining needs no slot and leaves the structures as
/// full as they were, and a request left in staging may later find that the one it could have joined has been issued.
const PASS_JOINING: u32 = 4 * PASS_STAGED;
/// Driver tags taken at a time.
const TAG_BATCH: u32 = 32;
/// Budgets taken at a time (`spec/framework.md` section 15).
const BUDGET_BATCH: u32 = 8;

/// The elevator's side of one hardware queue.
pub(crate) struct Lane {
    pub(crate) outbox: Producer<Inflight>,
    /// Finished requests; their slots are to be freed.
    pub(crate) returns: Consumer<Done>,
    /// Requests that are to be issued again later, and finished steps of flush sequences.
    pub(crate) handbacks: Consumer<Handback>,
    /// Where the last driver tag was found.
    pub(crate) hint: u32,
}

/// The runner's ends of a submitter's rings.
pub(crate) struct Staging {
    pub(crate) protos: Consumer<PluggedRequest>,
    /// I/Os that the submitter wants cancelled (`cancel.rs`).
    pub(crate) asks: Consumer<Ask>,
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
    /// Tags taken and not needed.
    unused: Vec<Tag>,
    /// Completions of I/Os that end at a flush or are cancelled: a runner learns of those, and no pump does.
    pub(crate) completions: Completions,
    /// Parked submitters to be woken when the run is released, for a tag, budget or token that came back, or for a
    /// completion.
    pub(crate) wakes: Vec<SubmitterId>,
    /// A later queue has taken over: this one admits nothing any more.
    retired: bool,
    /// I/Os that wait for a slot must be tried in the next pass although it may free no slot: earlier passes admitted
    /// nothing, the limits have changed, or an earlier queue left these I/Os here.
    retry_blocked: bool,
    /// Requests taken over from insertion lists, in the mode that has them (`before/parking.rs`).
    pub(crate) parked: Parked,
}

/// The result of admitting a submitter's staged requests.
struct Admitted {
    /// At least one request was admitted.
    any: bool,
    /// The oldest request left in staging found no slot.
    waits: bool,
}

/// The caller's own submission, which need not be staged when the elevator is free.
pub(crate) struct Own<'a> {
    pub(crate) id: SubmitterId,
    pub(crate) plug: &'a mut Plug,
    pub(crate) staging: &'a mut Producer<PluggedRequest>,
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
            retry_blocked: false,
            parked: parked.unwrap_or_default(),
        }
    }

    /// Changes the settings that may change while requests are held. The new limits may give a slot to an I/O that
    /// waits for one.
    pub(crate) fn tune(&mut self, tuning: &Tuning) {
        self.elevator.tune(tuning);
        self.retry_blocked = true;
    }

    /// Installs the rings of one of the shard's submitters.
    pub(crate) fn install(&mut self, id: SubmitterId, staging: Staging) {
        self.staging[usize::from(id.0)] = Some(staging);
    }

    /// Takes in an I/O of the submitter `by` that waited for a slot in an earlier queue. It goes on waiting here,
    /// ahead of staged requests.
    pub(crate) fn adopt(&mut self, by: SubmitterId, proto: PluggedRequest) {
        self.elevator.adopt(by, proto);
        self.retry_blocked = true;
    }

    /// Gives up the rings of all submitters, to a later queue. From now on nothing is admitted here.
    pub(crate) fn retire(&mut self) -> impl Iterator<Item = (SubmitterId, Staging)> + '_ {
        self.retired = true;
        let all = (0..).map(SubmitterId).zip(&mut self.staging);
        all.filter_map(|(id, staging)| Some((id, staging.take()?)))
    }

    /// Makes one pass. `home` is the hardware queue that the caller maps to; it is served first.
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
        let freed = self.take_returns(q) | self.answer_asks(q, shard);
        self.admit_all(q, shard, freed, own);
        let mut ready = Ready::default();
        self.dispatch_all(q, shard, home, &mut ready);
        self.end(q);
        ready
    }

    /// Begins a pass, or other work on the elevator: tells it the time, and lets the policy's governor decide if that
    /// is due.
    pub(crate) fn begin<P: Send>(&mut self, q: &Shared<P>, now: Instant) {
        let Self { elevator, wakes, .. } = self;
        elevator.advance(now);
        elevator.outside.begin(now, &mut |shard| wakes.extend(q.kick_shard(shard)));
    }

    /// Ends the pass: tokens that the policy took and did not use go back, and the elevators that wait for one are
    /// kicked.
    pub(crate) fn end<P: Send>(&mut self, q: &Shared<P>) {
        let Self { elevator, wakes, .. } = self;
        elevator.outside.end(&mut |shard| wakes.extend(q.kick_shard(shard)));
    }

    /// True if the queue is frozen, or a later queue has taken over.
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
        // With combining, the kick makes this runner owe another pass; in the locked modes, the next thread that
        // polls makes it.
        let _ = shard.gate.kick();
    }

    /// If slots became free, admits I/Os that wait for one, then staged requests, then the caller's plug; and begins
    /// the flushes that these, and finished steps of flush sequences, ask for.
    pub(crate) fn admit_all<P: Send>(
        &mut self,
        q: &Shared<P>,
        shard: &Shard,
        freed: bool,
        own: Option<Own<'_>>,
    ) {
        let closed = self.admits_nothing(q);
        self.elevator.outside.set_draining(closed);
        if closed {
            self.retry_blocked = true;
            if let Some(own) = own {
                stage(shard, own);
            }
        } else {
            let freed = freed | std::mem::take(&mut self.retry_blocked);
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

    /// True if no request has a slot or waits for one that it was promised.
    pub(crate) fn is_idle(&self) -> bool {
        self.elevator.is_idle() && self.parked.line().is_empty()
    }

    /// Takes back finished and requeued requests from the pumps. True if a slot became free.
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

    /// The requests that pumps handed back and no pass has taken, for the end of a queue.
    pub(crate) fn abandon(&mut self) -> impl Iterator<Item = Inflight> + '_ {
        let pop = |lane: &mut Lane| lane.handbacks.pop().map(|back| back.rq);
        self.lanes.iter_mut().flat_map(move |lane| std::iter::from_fn(move || pop(lane)))
    }

    /// Admits requests that `id` staged, oldest first, until one finds no slot.
    fn drain_staged<P>(&mut self, q: &Shared<P>, shard: &Shard, id: SubmitterId) {
        let at = usize::from(id.0);
        if shard.asked.has(id.0) {
            // The submitter has asks that are not answered, new or left over: those come first.
            self.unfinished.push(id);
        } else if self.is_blocked[at] {
            // The submitter keeps its place among the blocked ones, but its requests may join held ones that arrived
            // since.
            self.merge_staged(&q.lasting.table, id);
        } else if self.admit_staged(&q.lasting.table, id).waits {
            self.is_blocked[at] = true;
            self.blocked.push(id);
        }
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

    /// The same where I/Os without a slot wait in the lobby: no request stays in staging for want of a slot.
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
    fn retry_waiting<P>(&mut self, table: &BioTable<P>) {
        if self.elevator.some_wait() {
            self.elevator.fill(table);
        }
        if !self.blocked.is_empty() {
            self.retry_blocked(table);
        }
    }

    /// Gives freed slots to blocked submitters in turn. A submitter that got some and needs more goes behind those
    /// that got none; otherwise a submitter that always has more would take all slots.
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

    /// Admits the caller's plug without staging it. Where there is no lobby, a request that finds no slot, and all
    /// behind it, go behind those that are staged already.
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
                // The new requests may merge although older ones wait: the next pass must look.
                shard.pending.set(own.id.0);
            }
        }
    }

    /// Asks for a pass after the next completion: an I/O waits for a slot, or the policy holds requests back.
    pub(crate) fn wait_for_completion<P: Send>(&mut self, q: &Shared<P>, shard: &Shard) {
        for at in 0..self.lanes.len() {
            q.hctxs[usize::from(self.first_hw) + at].restart.mark();
        }
        // A pump that returned slots before the mark was visible to it does not kick.
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

    /// Fills the outbox of `hw` until the policy, tags, budgets or the quota end it. True if a request was sent.
    fn dispatch<P: Send>(&mut self, q: &Shared<P>, shard: &Shard, hw: HwQueue) -> bool {
        let hctx = &q.hctxs[usize::from(hw.0)];
        if hctx.is_stuck() {
            // Requests that stay in the elevator can still merge. The pump kicks when the device takes requests
            // again.
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
            // The quota serves fairness or back-pressure, and more requests are ready: the pump kicks again.
            hctx.restart.mark();
        }
        let lane = &mut self.lanes[usize::from(hw.0 - self.first_hw)];
        lane.outbox.publish();
        self.elevator.counters.batches.add(1);
        self.elevator.counters.dispatched.add(sent.into());
        true
    }

    /// Takes budgets, then tags, then picks requests; gives back the budgets and tags that it could not use. Returns
    /// how many requests it sent, and whether another call may send more.
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
                    // An outbox has room for a request with every tag.
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
                // The thread that gives a token back kicks the elevators that were refused one.
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

    /// Gives back budgets and the tags in `unused`, and collects parked submitters for the elevators that wait for
    /// them.
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

/// Stages the caller's plug: a later pass finds it, in this queue or in the queue that takes over.
#[allow(clippy::needless_pass_by_value, reason = "it borrows what the caller submits")]
pub(crate) fn stage(shard: &Shard, own: Own<'_>) {
    for proto in own.plug.drain() {
        // Staging holds a submitter's whole credit.
        own.staging.put(proto);
    }
    own.staging.publish();
    shard.pending.set(own.id.0);
}

/// Takes up to `want` budgets. If there are none, registers the shard to be kicked, and looks once more.
fn take_budget<P: Send>(q: &Shared<P>, shard: &Shard, want: u32) -> u32 {
    match q.budget.take(want) {
        0 => {
            q.budget_wait.set(shard.index);
            q.budget.take(want)
        }
        got => got,
    }
}

fn ring_of(staging: &mut [Option<Staging>], id: SubmitterId) -> &mut Consumer<PluggedRequest> {
    &mut staging[usize::from(id.0)].as_mut().expect("a submitter of this shard").protos
}
