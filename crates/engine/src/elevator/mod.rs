//! The elevator: the part of a shard's scheduling that at most one thread at a time may touch.
//!
//! It is plain `&mut self` code. It offers I/Os to merging, gives slots (scheduler tags) to those that did not merge,
//! feeds the policy, and turns the requests that the policy picks into tokens for a device. It knows nothing of
//! threads: its runner calls it, and a gate decides which thread is the runner.
//!
//! *Invariant: an I/O takes a slot only after merging was tried.* When slots run out, an I/O that waits outside can
//! still merge into a request that waits inside. The kernel series that parked requests holding tags lost 72.9 % on
//! one disk for want of this (`spec/history.md` section 2).
//!
//! Its slots are the scheduler tags. [`SlotTable`] holds the requests with their bios, and counts the slots in use; it
//! decides nothing.

use crate::planted::Planted;
use crate::shared::NoMerges;
use crate::shared::common::ElevatorEnv;
use crate::shared::hctx::{Chain, PluggedRequest};
use crate::shared::slots::Bio;
use crate::shared::stats::ElevatorCounters;
use crate::sync::{Arc, Consumer};
use crate::trace::Tap;
use crate::{BioTable, Inflight, StatsMode, WriteCache, planted};
use blkmq_core::{
    HwQueue, Instant, IoFlags, IoMeta, Limits, Op, RequestId, SECTOR_SIZE, SubmitterId, Tag,
};
use blkmq_sched::goals::Member;
use blkmq_sched::{
    About, At, Bypass, Cx, Done, Event, Facts, GroupChange, Grown, Pick, Requests, Scheduler,
    StatsLevel, Used,
};
use crossbeam_utils::CachePadded;
use flush::FlushQueues;
use lobby::Lobby;
use merge::{Kind, MergeIndex};
use std::collections::VecDeque;
use watch::{FastPath, InElevator, Watch};

pub(crate) mod flush;
pub(crate) mod lobby;
pub(crate) mod merge;
pub(crate) mod merging;
pub(crate) mod runner;
pub(crate) mod timing;
pub(crate) mod watch;

/// The place that an I/O takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Join(RequestId, Kind),
    Slot,
}

/// The properties of `policy`, without the short ways if an elevator with this `config` has none: with several hardware
/// queues, the policy chooses the one by which an I/O leaves.
fn facts(policy: &dyn Scheduler, config: &Config) -> Facts {
    let facts = policy.facts();
    if config.has_short_ways() {
        facts
    } else {
        Facts { bypass: Bypass::Never, takes_plugs: false, ..facts }
    }
}

/// The lesser of the queue's `limit` and the policy's own.
fn async_depth(facts: &Facts, limit: u32) -> u32 {
    facts.async_depth.map_or(limit, |depth| depth.min(limit))
}

pub(crate) struct Elevator {
    config: Config,
    policy: Box<dyn Scheduler>,
    pub(crate) env: ElevatorEnv,
    /// The properties of the policy in this elevator.
    facts: Facts,
    /// The elevator counts events of groups, because the policy does not.
    counts_groups: bool,
    /// The watches over the requests; `None` if nothing watches.
    watch: Option<Box<Watch>>,
    fast: FastPath,
    /// Completions up to and including the next sample of the controller of latency goals.
    until_sample: u32,
    /// A request has ended since the last look of the controller of latency goals.
    some_ended: bool,
    /// The queue's `async_depth` or the policy's, whichever is less.
    async_depth: u32,
    pub(crate) slots: SlotTable,
    index: MergeIndex,
    lobby: Lobby,
    last_merge: Option<RequestId>,
    flushes: FlushQueues,
    /// Requests in whose names flushes leave, ahead of the requests that the policy holds. At most one for each
    /// hardware queue.
    carriers: VecDeque<RequestId>,
    /// Requests that have had their flush and continue with their data; empty between two calls.
    released: Vec<RequestId>,
    /// Flags that send data through a flush sequence.
    sequenced: IoFlags,
    pub(crate) counters: Arc<CachePadded<ElevatorCounters>>,
}

impl Elevator {
    pub(crate) fn new(
        config: Config,
        policy: Box<dyn Scheduler>,
        env: ElevatorEnv,
        counters: Arc<CachePadded<ElevatorCounters>>,
        watches: watch::Watches,
    ) -> Self {
        let slots = config.slots();
        let facts = facts(&*policy, &config);
        let watch = Watch::of(env.stats_mode(), slots, watches);
        let lobby = Lobby::new(config.submitters);
        Self {
            fast: FastPath::of(&config, &facts, watch.as_deref(), &lobby),
            facts,
            counts_groups: counts(&facts, env.level()),
            until_sample: 1,
            some_ended: false,
            watch,
            env,
            async_depth: async_depth(&facts, config.async_depth),
            policy,
            slots: SlotTable::new(&config),
            index: MergeIndex::new(slots),
            lobby,
            last_merge: None,
            carriers: VecDeque::with_capacity(config.hw_queues.into()),
            // One flush may serve every request.
            released: Vec::with_capacity(match config.cache {
                WriteCache::Through => 0,
                WriteCache::Back { .. } => slots as usize,
            }),
            flushes: FlushQueues::new(
                config.cache,
                config.first_hw..config.first_hw + config.hw_queues,
                slots,
            ),
            sequenced: config.cache.sequenced(),
            config,
            counters,
        }
    }

    /// Sets the time. Callers read clocks independently, so an earlier time than the last one is ignored: time never
    /// goes back for a policy.
    #[inline]
    pub(crate) fn advance(&mut self, now: Instant) {
        self.slots.now = self.slots.now.max(now);
    }

    /// The latest time that the elevator received.
    pub(crate) fn now(&self) -> Instant {
        self.slots.now
    }

    /// The number of requests that wait to be issued.
    pub(crate) fn held(&self) -> u32 {
        self.slots.held
    }

    /// Shows the statistics of the policy.
    pub(crate) fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        self.policy.inspect(out);
    }

    /// Changes the settings that may change while requests are held.
    pub(crate) fn tune(&mut self, tuning: &mut Tuning) {
        // The groups may change below.
        self.count_times();
        if tuning.unobserved
            && let Some(policy) = self.policy.release()
        {
            self.policy = policy;
        }
        for (name, value) in &tuning.options {
            let known = self.policy.set_attribute(name, *value);
            assert!(known, "the policy has no attribute '{name}' although its table says so");
        }
        self.facts = facts(&*self.policy, &self.config);
        self.env.set_stats(tuning.stats);
        self.counts_groups = counts(&self.facts, tuning.stats.level);
        self.regroup(&tuning.regroup);
        if let Some(watch) = &mut self.watch {
            watch.tune_goals(&tuning.members, self.facts.capacity);
        }
        self.tune_floors(&tuning.members);
        self.env.count_notes();
        let tapping = tuning.tapping.pop().unwrap_or(Tapping::Keep);
        self.watch = Watch::tuned(self.watch.take(), tuning.stats, tapping, self.config.slots());
        self.settle_watch();
        self.config.async_depth = tuning.async_depth;
        self.async_depth = async_depth(&self.facts, tuning.async_depth);
    }

    /// Notifies the policy and the lobby of changes to the tree of groups.
    pub(crate) fn regroup(&mut self, changes: &[GroupChange]) {
        for change in changes {
            self.policy.regroup(&self.slots.cx(&self.env), *change);
            self.regroup_lobby(*change);
        }
        self.settle_watch();
    }

    /// Follows a change of the groups. The account of floors exists while a group has a floor and the policy keeps
    /// floors.
    pub(crate) fn tune_floors(&mut self, members: &[Member]) {
        self.watch = Watch::with_floors(self.watch.take(), members, self.facts.capacity);
        self.settle_watch();
        for member in members {
            self.lobby.set_gap(member.group, 0);
        }
        if let Some(watch) = &self.watch {
            watch.set_gaps(&mut self.lobby);
        }
    }

    /// Updates the fast path after a change of the watches, or of the decisions of the controller of latency goals.
    fn settle_watch(&mut self) {
        let watch = self.watch.as_deref();
        self.fast = FastPath::of(&self.config, &self.facts, watch, &self.lobby);
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
        self.look_at_floors();
        if let Some(watch) = &mut self.watch {
            watch.count(&self.env, self.slots.now);
        }
    }

    /// Returns whether a watch has work besides completions.
    #[inline]
    fn is_look_due(&self) -> bool {
        self.watch.is_some() && self.slots.now >= self.fast.looks_at
    }

    /// Lets the watches look if that is due, after completions and at the end of a pass. Returns whether they looked
    /// and there is a controller of latency goals, so that groups that had to wait may have slots.
    #[inline]
    fn time_busy(&mut self) -> bool {
        self.is_look_due() && self.look_up()
    }

    #[inline(never)]
    fn look_up(&mut self) -> bool {
        if let Some(Watch { times: Some(times), .. }) = self.watch.as_deref_mut() {
            times.look(self.slots.now, self.slots.at_device() > 0);
        }
        self.look_at_floors();
        self.look_at_goals()
    }

    /// Lets the account of floors look, if that is due.
    fn look_at_floors(&mut self) {
        if let Some(watch) = &mut self.watch
            && watch.floors.as_ref().is_some_and(|floors| floors.due() <= self.slots.now)
            && let Some(capacity) = self.facts.capacity
        {
            watch.look_at_floors(&self.slots, &mut self.lobby, capacity);
            self.settle_watch();
        }
    }

    /// Lets the controller of latency goals look, if that is due. Returns whether there is one.
    fn look_at_goals(&mut self) -> bool {
        let Some(Watch { goals: Some(keeper), .. }) = self.watch.as_deref_mut() else {
            return false;
        };
        if keeper.goals.due() <= self.slots.now {
            let some_ended = std::mem::take(&mut self.some_ended);
            let sight = InElevator { slots: &self.slots, lobby: &self.lobby };
            keeper.look(self.slots.now, &sight, some_ended);
            self.until_sample = self.until_sample.min(keeper.goals.stride());
            self.settle_watch();
        }
        true
    }

    /// Publishes the time of the controller's next look for the threads that wait. A device that ends nothing causes no
    /// pass, and without a look it would count as meeting the goals.
    fn tell_look(&mut self) {
        if let Some(Watch { goals: Some(keeper), .. }) = self.watch.as_deref_mut()
            && !self.slots.is_idle()
            && !keeper.is_told
        {
            keeper.tell(true);
            self.settle_watch();
        }
    }

    /// The time of the controller's next look if no pass is made before; `None` without a controller, or while no
    /// request has a slot.
    fn next_look(&self) -> Option<Instant> {
        let keeper = self.watch.as_ref()?.goals.as_ref()?;
        (!self.slots.is_idle()).then(|| keeper.next_look())
    }

    /// The earliest time at which a group that waits for a latency goal may have a slot; `None` if no group waits for
    /// one.
    pub(crate) fn next_admission(&self) -> Option<Instant> {
        self.watch.as_ref()?.goals.as_ref()?.goals.next_admission(self.slots.now)
    }

    /// Ends the stretch from the last pass to `now`, before anything changes. Returns the nanoseconds to account for,
    /// or `None` if the stretch is not looked at. `some_staged` says whether I/Os in staging wait for a slot. O(1).
    #[inline]
    fn stretch(&mut self, now: Instant, some_staged: bool) -> Option<u64> {
        let stretch = now.since(self.slots.now).0;
        // Only the first pass of a run has a new time.
        if stretch == 0 {
            return None;
        }
        let is_empty = self.slots.held == 0 && self.lobby.is_empty() && self.flushes.is_empty();
        if is_empty && !some_staged {
            return None;
        }
        self.watch.as_mut()?.times.as_mut()?.waits().0.passed(stretch)
    }

    /// Notes that a tag, a budget or room at the device is missing.
    #[inline]
    fn is_short(&mut self) {
        if let Some(Watch { times: Some(times), .. }) = self.watch.as_deref_mut() {
            times.is_short(self.slots.now);
        }
    }

    /// Notes that the shortage is over.
    #[inline]
    fn is_supplied(&mut self) {
        if let Some(Watch { times: Some(times), .. }) = self.watch.as_deref_mut() {
            times.is_supplied(self.slots.now);
        }
    }

    /// Puts an I/O into the place that [`place`](Self::place) found.
    #[inline(never)]
    pub(crate) fn admit<P>(&mut self, table: &BioTable<P>, place: Place, proto: PluggedRequest) {
        self.admit_here(table, place, proto);
    }

    /// Withdraws the oldest held request that consists of the I/O of `by` with this cookie alone, and frees its slot.
    /// Of several that are equally old, any one. O(slots).
    #[cold]
    pub(crate) fn give_up<P>(
        &mut self,
        table: &BioTable<P>,
        by: SubmitterId,
        cookie: u64,
    ) -> Option<Bio> {
        // A request that has its bios here, and is in no flush sequence, is held by the policy.
        let is = |id: &RequestId| {
            let chain = self.slots.chains[id.index()].as_ref().filter(|chain| chain.bios == 1);
            chain.is_some_and(|Chain { head, .. }| {
                table.submitter(head) == by && table.is_io(head, cookie) && !self.flushes.has(*id)
            })
        };
        let found = self.slots.requests.live().filter(is);
        let id = found.min_by_key(|id| self.slots.requests.get(*id).arrived)?;
        self.unindex(id);
        self.release(id);
        if !planted::is(Planted::ForgetsToWithdraw) {
            self.policy.withdraw(&self.slots.cx(&self.env), id);
        }
        self.counters.cancelled_held.add(1);
        if let Some(watch) = &mut self.watch {
            watch.given_up(self.slots.now, id);
        }
        self.slots.free(id);
        self.slots.chains[id.index()].take().map(|chain| chain.head)
    }

    /// Like [`admit`](Self::admit), but inlined, for the loop over a plug.
    #[inline(always)]
    pub(crate) fn admit_here<P>(
        &mut self,
        table: &BioTable<P>,
        place: Place,
        proto: PluggedRequest,
    ) {
        match place {
            Place::Join(into, kind) => self.join(table, into, kind, proto),
            Place::Slot => self.insert(table, proto),
        }
    }

    /// Returns whether there is a slot that `io` may have.
    #[inline]
    fn has_slot_for(&self, io: &IoMeta) -> bool {
        let used = self.slots.used(io.hw);
        let below = used.all < self.config.nr_requests
            && (io.is_sync_read() || used.limited < self.async_depth)
            && (!self.fast.limits_slots || self.admits(io, *used));
        (below || io.op == Op::Flush) && self.slots.room() > 0
    }

    /// Returns whether the policy and the controller of latency goals let `io` have a slot.
    #[inline(never)]
    fn admits(&self, io: &IoMeta, used: Used) -> bool {
        let SlotTable { now, .. } = self.slots;
        (!self.facts.limits_slots || self.policy.admits(&self.slots.cx(&self.env), io, used))
            && self.watch.as_ref().is_none_or(|watch| watch.paces(io.group, now))
    }

    /// Counts a request as held by the policy.
    #[inline]
    fn hold(&mut self, id: RequestId) {
        self.slots.held += 1;
        if self.lobby.counts() {
            self.lobby.hold(id, self.slots.requests.get(id).group);
        }
    }

    /// Counts a request that the policy has released.
    #[inline]
    fn release(&mut self, id: RequestId) {
        self.slots.held -= 1;
        if self.lobby.counts() {
            self.lobby.release(id);
        }
    }

    /// Inserts `proto` into the policy, or begins its flush sequence. The caller has seen that a slot is free.
    // Inlined by force into the loop over a plug: a call would pass the I/O through memory.
    #[inline(always)]
    fn insert<P>(&mut self, table: &BioTable<P>, proto: PluggedRequest) {
        if proto.meta.op == Op::Flush || proto.meta.flags.intersects(self.sequenced) {
            self.insert_sequence(table, proto);
            return;
        }
        let PluggedRequest { meta, bio, bios } = proto;
        let id = self.slots.take(&meta);
        self.put(table, id, Chain { head: bio, bios, retries: 0 });
        self.index_held(id, &meta);
        self.give_policy(id, At::Tail);
    }

    /// Stores the bios of a request that has received a slot.
    #[inline(always)]
    fn put<P>(&mut self, table: &BioTable<P>, id: RequestId, chain: Chain) {
        self.slots.put_chain(id, chain);
        self.counters.inserted.add(1);
        if let Some(watch) = &mut self.watch {
            watch.inserted(&self.slots, table, id);
        }
    }

    /// Inserts a request into the policy.
    #[inline(always)]
    fn give_policy(&mut self, id: RequestId, at: At) {
        self.hold(id);
        self.policy.insert(&self.slots.cx(&self.env), id, at);
    }

    /// The next request for `hw`: a flush that waits to leave, or the policy's choice.
    #[inline]
    pub(crate) fn pick(&mut self, hw: HwQueue) -> Pick {
        if self.slots.held == 0 {
            return Pick::Empty;
        }
        if let Some(carrier) = self.carriers.pop_front() {
            self.slots.held -= 1;
            return Pick::Issue(carrier);
        }
        // To the policy, the lanes of all owners are one hardware queue.
        let hw = if self.config.hw_queues == 1 { self.slots.first_hw } else { hw };
        let pick = self.policy.pick(&self.slots.cx(&self.env), hw);
        if let Pick::Issue(id) = pick {
            self.release(id);
            self.unindex(id);
        } else {
            self.env.unpicked();
        }
        pick
    }

    /// The submitter of the first bio of a request that has not been issued.
    #[inline]
    pub(crate) fn submitter_of<P>(&self, table: &BioTable<P>, id: RequestId) -> SubmitterId {
        let chain = self.slots.chains[id.index()].as_ref().expect("a picked request has its bios");
        table.submitter(&chain.head)
    }

    /// Turns a picked request into a token for the device.
    #[inline]
    pub(crate) fn issue(&mut self, id: RequestId, hw: HwQueue, tag: Tag) -> Inflight {
        // While no request is in a flush sequence, none needs the look-up below, and the token is built in place.
        if !self.flushes.is_empty() {
            return self.issue_step(id, hw, tag);
        }
        self.issue_plain(id, hw, tag)
    }

    #[inline]
    fn issue_plain(&mut self, id: RequestId, hw: HwQueue, tag: Tag) -> Inflight {
        let chain = self.slots.chains[id.index()].take().expect("a picked request has its bios");
        let pool = self.env.picked();
        if let Some(watch) = &mut self.watch {
            watch.issued(&self.slots, &self.flushes, id);
        }
        let SlotTable { now, requests, .. } = &self.slots;
        Inflight::new(chain, id, tag, hw, *now, requests.get(id), pool)
            .with_budget(self.fast.takes_budgets)
    }

    /// Takes back finished requests: notifies the policy of each, and frees its slot. Returns their number.
    #[inline(always)]
    pub(crate) fn take_done(&mut self, returns: &mut Consumer<Done>) -> u32 {
        if self.watch.is_some() {
            let there = returns.len();
            if !self.fast.is_sampled || there >= self.until_sample {
                return self.take_watched(returns);
            }
            // The next sample comes after these requests. If more end in the meantime, it is taken a little later.
            self.until_sample -= there;
            self.some_ended |= there > 0;
        }
        let Some(returns) = returns.take_all() else { return 0 };
        let there = returns.len() as u32;
        for done in returns {
            self.tell_done(&done);
            self.slots.free(done.rq);
        }
        there
    }

    #[inline(never)]
    fn take_watched(&mut self, returns: &mut Consumer<Done>) -> u32 {
        let Some(returns) = returns.take_all() else { return 0 };
        let there = returns.len() as u32;
        if self.fast.is_sampled {
            for done in returns {
                self.tell_done(&done);
                self.sample_completed(&done);
                self.slots.free(done.rq);
            }
        } else {
            for done in returns {
                self.tell_done(&done);
                self.note_completed(&done);
                self.slots.free(done.rq);
            }
        }
        self.some_ended = true;
        there
    }

    #[inline(always)]
    fn tell_done(&mut self, done: &Done) {
        if self.facts.bypass != Bypass::Untold {
            self.policy.completed(&self.slots.cx(&self.env), done);
        }
        self.count_done(done);
    }

    /// Counts a completion towards the next sample, while the controller of latency goals is the only watch and takes
    /// nothing.
    #[inline(always)]
    fn sample_completed(&mut self, done: &Done) {
        self.until_sample -= 1;
        if self.until_sample == 0 {
            self.take_sample(done);
        }
    }

    #[inline(never)]
    fn take_sample(&mut self, done: &Done) {
        self.until_sample = 1;
        if let Some(Watch { goals: Some(goals), .. }) = self.watch.as_deref_mut() {
            self.until_sample = goals.sampled(self.slots.requests.get(done.rq), done.completed);
        }
    }

    #[inline(never)]
    fn note_completed(&mut self, done: &Done) {
        let Some(watch) = &mut self.watch else { return };
        self.some_ended |= watch.goals.is_some();
        watch.completed(&self.slots, &*self.policy, &self.counters, done);
    }
}

/// The slots that requests of one hardware queue need to pass together.
#[derive(Clone, Copy, Default)]
pub(crate) struct Slots {
    pub(crate) all: u32,
    /// Slots of requests other than sync reads.
    pub(super) limited: u32,
    /// Slots of requests without [`IoFlags::SYNC`].
    unsynced: u32,
}

impl Slots {
    #[inline]
    pub(super) fn add(&mut self, io: &IoMeta) {
        self.all += 1;
        self.limited += u32::from(!io.is_sync_read());
        self.unsynced += u32::from(!io.flags.contains(IoFlags::SYNC));
    }
}

pub(crate) struct SlotTable {
    /// The latest time that the elevator received.
    pub(super) now: Instant,
    pub(super) requests: Requests,
    /// By slot: the bios of a request that has not been issued; `None` for the others.
    pub(super) chains: Box<[Option<Chain>]>,
    used: Box<[Used]>,
    /// Requests that wait here to be issued.
    pub(super) held: u32,
    pub(super) first_hw: HwQueue,
    /// Scheduler tags of a hardware queue.
    nr_requests: u32,
}

impl SlotTable {
    pub(super) fn new(config: &Config) -> Self {
        let slots = config.slots();
        let nothing = Used { of: config.nr_requests, all: 0, limited: 0, unsynced: 0 };
        Self {
            now: Instant::ZERO,
            requests: Requests::new(slots),
            chains: (0..slots).map(|_| None).collect(),
            used: vec![nothing; config.hw_queues.into()].into_boxed_slice(),
            held: 0,
            first_hw: HwQueue(config.first_hw),
            nr_requests: config.nr_requests,
        }
    }

    /// The requests as a policy sees them.
    #[inline(always)]
    pub(super) fn cx<'a>(&'a self, env: &'a ElevatorEnv) -> Cx<'a> {
        Cx::new(self.now, &self.requests, env)
    }

    /// The slots of `hw` in use.
    #[inline]
    pub(super) fn used(&self, hw: HwQueue) -> &Used {
        &self.used[usize::from(hw.0 - self.first_hw.0)]
    }

    #[inline]
    fn used_mut(&mut self, hw: HwQueue) -> &mut Used {
        &mut self.used[usize::from(hw.0 - self.first_hw.0)]
    }

    /// The number of free slots of `hw`, without those only for bare flushes.
    pub(crate) fn free_of(&self, hw: HwQueue) -> u32 {
        self.nr_requests - self.used(hw).all
    }

    /// The number of free slots, for any request.
    #[inline]
    pub(super) fn room(&self) -> usize {
        self.requests.capacity() - self.requests.in_use()
    }

    /// Returns whether there are slots for `n` more requests of the first hardware queue, apart from the limits for
    /// some kinds of requests.
    #[inline]
    pub(crate) fn has(&self, n: u32) -> bool {
        self.room() >= n as usize && self.used[0].all + n <= self.nr_requests
    }

    /// Returns whether there is a slot that some I/O may have. Slots only for bare flushes count if such a flush waits.
    pub(super) fn has_any(&self, flush_waits: bool) -> bool {
        let of_queues = self.used.iter().any(|used| used.all < self.nr_requests);
        (of_queues || flush_waits) && self.room() > 0
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.requests.in_use() == 0
    }

    /// The number of requests that have left for the device and have not ended.
    pub(super) fn at_device(&self) -> u32 {
        (self.requests.in_use() as u32).saturating_sub(self.held)
    }

    /// The requests that have a slot, and whether each still waits here; the others have been issued. O(slots).
    pub(crate) fn live(&self) -> impl Iterator<Item = (RequestId, &IoMeta, bool)> {
        let one = |id: RequestId| (id, self.requests.get(id), self.chains[id.index()].is_some());
        // Usually the slots in use are the first ones.
        self.requests.live().take(self.requests.in_use()).map(one)
    }

    /// Takes a slot for a request with data. The caller has seen that one is free.
    #[inline(always)]
    pub(super) fn take(&mut self, meta: &IoMeta) -> RequestId {
        let id = self.fill(meta);
        let used = self.used_mut(meta.hw);
        used.all += 1;
        used.limited += u32::from(!meta.is_sync_read());
        used.unsynced += u32::from(!meta.flags.contains(IoFlags::SYNC));
        id
    }

    /// Puts a request into a free slot, which the caller has seen and counts.
    #[inline(always)]
    pub(super) fn fill(&mut self, meta: &IoMeta) -> RequestId {
        self.requests.alloc(*meta).expect("a free slot was seen")
    }

    /// Counts slots as taken by requests of `hw` that [fill](Self::fill) them.
    #[inline]
    pub(crate) fn count(&mut self, hw: HwQueue, slots: Slots) {
        let used = self.used_mut(hw);
        used.all += slots.all;
        used.limited += slots.limited;
        used.unsynced += slots.unsynced;
    }

    #[inline(always)]
    pub(super) fn free(&mut self, id: RequestId) {
        let meta = self.requests.free(id);
        if meta.op != Op::Flush {
            let (hw, limited, unsynced) =
                (meta.hw, !meta.is_sync_read(), !meta.flags.contains(IoFlags::SYNC));
            let used = self.used_mut(hw);
            used.all -= 1;
            used.limited -= u32::from(limited);
            used.unsynced -= u32::from(unsynced);
        }
    }

    /// Stores the bios of a slot that has none.
    #[inline]
    pub(super) fn put_chain(&mut self, id: RequestId, chain: Chain) {
        debug_assert!(self.chains[id.index()].is_none(), "a slot has one chain");
        self.chains[id.index()] = Some(chain);
    }

    /// Takes the bios of every request, for a queue that has failed. The elevator must not be used afterwards.
    pub(crate) fn take_chains(&mut self) -> impl Iterator<Item = Chain> + '_ {
        self.held = 0;
        self.chains.iter_mut().filter_map(Option::take)
    }
}

/// Slots only for bare flushes, which must pass a full scheduler (`spec/framework.md` section 6). A bare flush may also
/// take a slot of the other kind, so that one flush of the device serves as many as possible. When no slot is free, it
/// waits like any other I/O.
const FLUSH_SLOTS: u32 = 4;

/// The settings that an elevator is built with.
pub(crate) struct Config {
    pub(crate) limits: Limits,
    pub(crate) cache: WriteCache,
    pub(crate) nomerges: NoMerges,
    /// Hardware queues that this elevator serves: `first_hw..first_hw + hw_queues`.
    pub(crate) first_hw: u16,
    pub(crate) hw_queues: u16,
    /// Scheduler tags per hardware queue.
    pub(crate) nr_requests: u32,
    /// Driver tags per hardware queue.
    pub(crate) hw_queue_depth: u32,
    /// The most scheduler tags that I/Os other than sync reads may have, if the policy does not allow fewer.
    pub(crate) async_depth: u32,
    /// An I/O that finds no slot does not merge either, because merging was tried earlier (`shared/modes.rs`).
    pub(crate) slots_first: bool,
    /// Requests may bypass a policy that allows it.
    pub(crate) bypass: bool,
    /// Submitters of the queue.
    pub(crate) submitters: u16,
    /// I/Os that all submitters together may have in flight.
    pub(crate) credit: usize,
    /// When requests need a budget.
    pub(crate) budgets: Budgets,
}

/// When the requests of an elevator need a budget to leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Budgets {
    /// Never: there is no limit.
    Never,
    /// While the controller of latency goals takes something. Otherwise its limit equals the number of driver tags, and
    /// each request has a driver tag anyway. Requests that left earlier have no budget, so the device may hold them
    /// beside those with a budget until they end.
    WhileTaken,
    /// Always: the device, or the operator, bounds the requests that the device holds.
    Always,
}

impl Config {
    /// All slots: the most requests that the policy can ever hold.
    pub(crate) fn slots(&self) -> u32 {
        self.nr_requests * u32::from(self.hw_queues) + FLUSH_SLOTS
    }

    /// Returns whether requests may take a short way to the device.
    pub(crate) fn has_short_ways(&self) -> bool {
        self.bypass && self.hw_queues == 1
    }
}

/// Settings that an elevator takes while requests are held.
pub(crate) struct Tuning {
    /// Attributes of the policy, with values within their ranges.
    pub(crate) options: Vec<(&'static str, i64)>,
    /// As in [`Config`].
    pub(crate) async_depth: u32,
    /// Changes to the tree of groups.
    pub(crate) regroup: Vec<GroupChange>,
    /// All groups, for the controller of latency goals and the account of floors.
    pub(crate) members: Vec<Member>,
    /// The statistics to keep about groups.
    pub(crate) stats: StatsMode,
    /// The fates of traces, one for each elevator, the last elevator first.
    pub(crate) tapping: Vec<Tapping>,
    /// The policies are to be released from their observers.
    pub(crate) unobserved: bool,
}

/// The fate of an elevator's trace when its settings change.
pub(crate) enum Tapping {
    /// The trace, if any, continues.
    Keep,
    /// The trace ends.
    End,
    /// Another trace begins.
    Begin(Tap),
}

/// Returns whether the elevator counts the events of groups, for a policy with these properties at this level.
fn counts(facts: &Facts, level: StatsLevel) -> bool {
    level > StatsLevel::Off && !facts.notes_groups
}

/// The group of an I/O, its direction, and whether its submitter waits for it, by bfq's rule.
#[inline]
fn about(meta: &IoMeta) -> About {
    let waits = meta.flags.intersects(IoFlags::SYNC | IoFlags::FUA | IoFlags::PREFLUSH);
    About::new(meta.group, meta.op, waits)
}

/// The statistics of groups under a policy that keeps none: requests merged and completed, as iostat counts them for a
/// device.
impl Elevator {
    /// Counts a request that has joined another.
    #[inline]
    fn count_merged(&mut self, meta: &IoMeta) {
        if self.counts_groups {
            self.slots.cx(&self.env).note(about(meta), Event::Merged);
        }
    }

    /// Counts a finished request in one step: its pick is not counted separately.
    #[inline]
    fn count_done(&mut self, done: &Done) {
        if self.counts_groups {
            self.count_whole(done);
        }
    }

    #[inline(never)]
    fn count_whole(&mut self, done: &Done) {
        let meta = self.slots.requests.get(done.rq);
        let bytes = meta.sectors.saturating_mul(SECTOR_SIZE);
        let wait = done.issued.since(meta.arrived);
        let service = done.completed.since(done.issued);
        self.env.count_whole(about(meta), bytes, wait, service);
    }
}
