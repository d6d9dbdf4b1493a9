//! The elevator: the part of a shard's scheduling that at most one thread at a time may touch.
//!
//! It is plain `&mut self` code. It offers I/Os to merging, gives slots (scheduler tags) to those that did not merge,
//! feeds the policy, and turns the requests that the policy picks into tokens for a device. It knows nothing of
//! threads; its runner calls it, and the gate decides which thread may be that.
//!
//! *Invariant: an I/O takes a slot only after merging was tried.* When slots run out, an I/O that waits outside can
//! still merge into a request that waits inside. The kernel series that parked requests holding tags lost 72.9 % on
//! one disk for want of this (`spec/history.md` section 2).

use crate::planted::Planted;
use crate::shared::common::ElevatorEnv;
use crate::shared::inflight::{Chain, PluggedRequest, Way};
use crate::shared::settings::NoMerges;
use crate::shared::slots::Bio;
use crate::shared::stats::ElevatorCounters;
use crate::sync::{Arc, Consumer};
use crate::{BioTable, Inflight, WriteCache, planted};
use blkmq_core::{HwQueue, Instant, IoFlags, IoMeta, Op, RequestId, SubmitterId, Tag};
use blkmq_sched::{
    At, Bypass, Cx, Done, Facts, GroupChange, Grown, Pick, Requests, Scheduler, Used,
};
use crossbeam_utils::CachePadded;
use flush::FlushQueues;
use lobby::Lobby;
use merge::Kind;
use merge_index::MergeIndex;
use std::collections::VecDeque;

mod bypass;
mod config;
pub(crate) mod flush;
pub(crate) mod goals;
pub(crate) mod lobby;
pub(crate) mod merge;
pub(crate) mod merge_index;
mod merging;
pub(crate) mod plug;
pub(crate) mod runner;
pub(crate) mod timing;
pub(crate) mod waits;
pub(crate) mod watch;
pub(crate) mod watches;

pub(crate) use config::{Budgets, Config, Tapping, Tuning};

/// The place that an I/O takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Join(RequestId, Kind),
    Slot,
}

/// The state of a hardware queue that has `of` scheduler tags and uses none.
fn nothing_used(of: u32) -> Used {
    Used { of, all: 0, limited: 0, unsynced: 0 }
}

/// The properties of `policy`, without ways that an elevator of this `config` does not have. With several hardware
/// queues, the policy chooses the one that an I/O leaves by.
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
    /// The policy limits slots, or the controller of latency goals takes something.
    limits_slots: bool,
    /// The elevator counts events of groups, because the policy does not.
    counts_groups: bool,
    /// The watches over its requests.
    watch: Option<Box<watches::Watch>>,
    /// Whether a plug may take a short way, as far as settings, watches and groups are concerned.
    is_short: bool,
    /// Requests need a budget to leave.
    takes_budgets: bool,
    /// A request that leaves is noted: the policy is notified of it, or times are counted.
    notes_passing: bool,
    /// Each request is noted: times are counted, or there is a forecast.
    notes_requests: bool,
    /// Nothing watches but the controller of latency goals, which takes nothing: of requests that end, it counts samples.
    is_sampled: bool,
    /// The most sectors of a request of a group whose requests are shortened for a latency goal.
    longest: u32,
    /// Requests to end until the next sample, with it.
    until_sample: u32,
    /// A request has ended since the controller looked.
    some_ended: bool,
    /// From this time on, the watches have work in every pass.
    looks_at: Instant,
    /// The queue's `async_depth` or the policy's, whichever is less.
    async_depth: u32,
    requests: Requests,
    chains: Box<[Option<Chain>]>,
    index: MergeIndex,
    lobby: Lobby,
    last_merge: Option<RequestId>,
    flushes: FlushQueues,
    /// Carriers: requests that each lend their name to a flush, which leaves ahead of the requests that the policy
    /// holds; at most one for each hardware queue.
    carriers: VecDeque<RequestId>,
    /// Requests that have had their flush and continue with their data; empty between two calls.
    released: Vec<RequestId>,
    /// Flags that send data through a flush sequence.
    sequenced: IoFlags,
    used: Box<[Used]>,
    held: u32,
    now: Instant,
    pub(crate) counters: Arc<CachePadded<ElevatorCounters>>,
}

impl Elevator {
    pub(crate) fn new(
        config: Config,
        policy: Box<dyn Scheduler>,
        env: ElevatorEnv,
        counters: Arc<CachePadded<ElevatorCounters>>,
        watches: watches::Watches,
    ) -> Self {
        let slots = config.slots();
        let facts = facts(&*policy, &config);
        let watch = watches::wanted(env.stats_mode(), slots, watches);
        let mut elevator = Self {
            facts,
            limits_slots: facts.limits_slots,
            counts_groups: bypass::counts(&facts, env.level()),
            notes_passing: false,
            notes_requests: false,
            is_sampled: false,
            longest: u32::MAX,
            until_sample: 1,
            some_ended: false,
            is_short: false,
            takes_budgets: false,
            looks_at: Instant::ZERO,
            watch,
            env,
            async_depth: async_depth(&facts, config.async_depth),
            policy,
            requests: Requests::new(slots),
            chains: (0..slots).map(|_| None).collect(),
            index: MergeIndex::new(slots),
            lobby: Lobby::new(config.submitters),
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
            used: vec![nothing_used(config.nr_requests); config.hw_queues.into()]
                .into_boxed_slice(),
            held: 0,
            now: Instant::ZERO,
            config,
            counters,
        };
        elevator.settle_watch();
        elevator
    }

    /// Sets the time. Callers read clocks on their own, so an earlier time than before is ignored: a policy never
    /// sees time go back.
    #[inline]
    pub(crate) fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    /// The latest time that the elevator received.
    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    /// Requests that wait here to be issued.
    pub(crate) fn held(&self) -> u32 {
        self.held
    }

    /// Free slots of `hw`, without those for bare flushes alone.
    #[cfg(feature = "compare")]
    pub(crate) fn free_slots(&self, hw: HwQueue) -> u32 {
        let used = &self.used[usize::from(hw.0 - self.config.first_hw)];
        self.config.nr_requests - used.all
    }

    /// Takes the bios of every request, for a queue that has failed. The elevator must not be used afterwards.
    pub(crate) fn take_chains(&mut self) -> impl Iterator<Item = Chain> + '_ {
        self.held = 0;
        self.chains.iter_mut().filter_map(Option::take)
    }

    /// Shows the statistics of the policy.
    pub(crate) fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        self.policy.inspect(out);
    }

    /// True if no request has a slot.
    pub(crate) fn is_idle(&self) -> bool {
        self.requests.in_use() == 0
    }

    /// Changes the settings that may change while requests are held.
    pub(crate) fn tune(&mut self, tuning: &mut Tuning) {
        // The groups may be others in a moment.
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
        self.counts_groups = bypass::counts(&self.facts, tuning.stats.level);
        self.regroup(&tuning.regroup);
        self.tune_goals(&tuning.members);
        self.tune_floors(&tuning.members);
        self.env.count_notes();
        self.tune_watch(tuning.stats, tuning.tapping.pop().unwrap_or(Tapping::Keep));
        self.config.async_depth = tuning.async_depth;
        self.async_depth = async_depth(&self.facts, tuning.async_depth);
    }

    /// Tells the policy, and the lobby, of changes to the tree of groups.
    pub(crate) fn regroup(&mut self, changes: &[GroupChange]) {
        for change in changes {
            let cx = Cx::new(self.now, &self.requests, &self.env);
            self.policy.regroup(&cx, *change);
            self.regroup_lobby(*change);
        }
        self.settle_watch();
    }

    fn cx(&self) -> Cx<'_> {
        Cx::new(self.now, &self.requests, &self.env)
    }

    fn used(&mut self, hw: HwQueue) -> &mut Used {
        &mut self.used[usize::from(hw.0 - self.config.first_hw)]
    }

    /// Returns whether an I/O that could merge also needs a free slot.
    #[inline]
    pub(crate) fn slots_come_first(&self) -> bool {
        self.config.slots_first
    }

    /// The place for an I/O like `io`: in a held request, or in a slot of its own. `None` if it needs a slot and may
    /// have none. O(1) look-ups.
    #[inline]
    pub(crate) fn place(&mut self, io: &IoMeta) -> Option<Place> {
        match self.merge_target(io) {
            Some(_) if self.config.slots_first && self.lacks_slot_for(io) => None,
            Some((into, kind)) => Some(Place::Join(into, kind)),
            None if self.has_slot_for(io) => Some(Place::Slot),
            None => None,
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
            let chain = self.chains[id.index()].as_ref().filter(|chain| chain.bios == 1);
            chain.is_some_and(|Chain { head, .. }| {
                table.submitter(head) == by && table.is_io(head, cookie) && !self.flushes.has(*id)
            })
        };
        let found = self.requests.live().filter(is);
        let id = found.min_by_key(|id| self.requests.get(*id).arrived)?;
        self.unindex(id);
        self.release(id);
        if !planted::is(Planted::ForgetsToWithdraw) {
            let cx = Cx::new(self.now, &self.requests, &self.env);
            self.policy.withdraw(&cx, id);
        }
        self.counters.cancelled_held.add(1);
        self.watch_given_up(id);
        self.free_slot(id);
        self.chains[id.index()].take().map(|chain| chain.head)
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

    /// Out of line, to keep [`place`](Self::place) small in the other modes.
    #[cold]
    #[inline(never)]
    fn lacks_slot_for(&self, io: &IoMeta) -> bool {
        !self.has_slot_for(io)
    }

    /// Returns whether there is a slot that `io` may have.
    #[inline]
    fn has_slot_for(&self, io: &IoMeta) -> bool {
        let used = &self.used[usize::from(io.hw.0 - self.config.first_hw)];
        let below = used.all < self.config.nr_requests
            && (io.is_sync_read() || used.limited < self.async_depth)
            && (!self.limits_slots || self.admits(io, *used));
        (below || io.op == Op::Flush) && self.requests.in_use() < self.requests.capacity()
    }

    /// Returns whether the policy and the controller of latency goals let `io` have a slot.
    #[inline(never)]
    fn admits(&self, io: &IoMeta, used: Used) -> bool {
        (!self.facts.limits_slots || self.policy.admits(&self.cx(), io, used)) && self.paces(io)
    }

    /// Stores the bios of a slot that has none.
    #[inline]
    fn put_chain(&mut self, id: RequestId, chain: Chain) {
        debug_assert!(self.chains[id.index()].is_none(), "a slot has one chain");
        self.chains[id.index()] = Some(chain);
    }

    #[inline(always)]
    fn free_slot(&mut self, id: RequestId) {
        let meta = self.requests.free(id);
        if meta.op != Op::Flush {
            let (hw, limited, unsynced) =
                (meta.hw, !meta.is_sync_read(), !meta.flags.contains(IoFlags::SYNC));
            let used = self.used(hw);
            used.all -= 1;
            used.limited -= u32::from(limited);
            used.unsynced -= u32::from(unsynced);
        }
    }

    /// Counts a request as held by the policy.
    #[inline]
    fn hold(&mut self, id: RequestId) {
        self.held += 1;
        if self.lobby.counts() {
            self.lobby.hold(id, self.requests.get(id).group);
        }
    }

    /// Counts a request as no longer held by the policy.
    #[inline]
    fn release(&mut self, id: RequestId) {
        self.held -= 1;
        if self.lobby.counts() {
            self.lobby.release(id);
        }
    }

    /// Takes a slot for a request with data. The caller has seen that one is free.
    #[inline(always)]
    fn take_slot(&mut self, meta: &IoMeta) -> RequestId {
        let id = self.fill_slot(meta);
        let used = self.used(meta.hw);
        used.all += 1;
        used.limited += u32::from(!meta.is_sync_read());
        used.unsynced += u32::from(!meta.flags.contains(IoFlags::SYNC));
        id
    }

    /// Puts a request into a free slot, which the caller has seen and counts.
    #[inline(always)]
    fn fill_slot(&mut self, meta: &IoMeta) -> RequestId {
        self.requests.alloc(*meta).expect("a free slot was seen")
    }

    /// Lets others merge with a request that is held from now on, if it is of that kind.
    #[inline]
    fn index_held(&mut self, id: RequestId, meta: &IoMeta) {
        if self.config.nomerges != NoMerges::None && merge::mergeable(meta) {
            self.index.insert(id, meta.sector, meta.end());
            if self.last_merge.is_none() {
                self.last_merge = Some(id);
            }
        }
    }

    /// Inserts `proto` into the policy, or begins its flush sequence. The caller has seen that a slot is free.
    // By force in the loop over a plug: as a call, the I/O travels through memory.
    #[inline(always)]
    fn insert<P>(&mut self, table: &BioTable<P>, proto: PluggedRequest) {
        if proto.meta.op == Op::Flush || proto.meta.flags.intersects(self.sequenced) {
            self.insert_sequence(table, proto);
            return;
        }
        let PluggedRequest { meta, bio, bios } = proto;
        let id = self.take_slot(&meta);
        self.put_chain(id, Chain { head: bio, bios, retries: 0 });
        self.counters.inserted.add(1);
        self.watch_inserted(table, id);
        self.hold(id);
        self.index_held(id, &meta);
        let cx = Cx::new(self.now, &self.requests, &self.env);
        self.policy.insert(&cx, id, At::Tail);
    }

    /// The next request for `hw`: a flush that waits to leave, or the policy's choice.
    #[inline]
    pub(crate) fn pick(&mut self, hw: HwQueue) -> Pick {
        if self.held == 0 {
            return Pick::Empty;
        }
        if let Some(carrier) = self.carriers.pop_front() {
            self.held -= 1;
            return Pick::Issue(carrier);
        }
        // Lanes of owners are one hardware queue.
        let hw = if self.config.hw_queues == 1 { HwQueue(self.config.first_hw) } else { hw };
        let cx = Cx::new(self.now, &self.requests, &self.env);
        let pick = self.policy.pick(&cx, hw);
        if let Pick::Issue(id) = pick {
            self.release(id);
            self.unindex(id);
        } else {
            self.env.unpicked();
        }
        pick
    }

    /// The submitter of the first bio of a request that is here.
    #[inline]
    pub(crate) fn submitter_of<P>(&self, table: &BioTable<P>, id: RequestId) -> SubmitterId {
        let chain = self.chains[id.index()].as_ref().expect("a picked request has its bios");
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
        let chain = self.chains[id.index()].take().expect("a picked request has its bios");
        let pool = self.env.picked();
        self.watch_issued(id);
        let meta = self.requests.get(id);
        Inflight::new(chain, id, tag, hw, self.now, meta, pool).with_budget(self.takes_budgets)
    }

    /// Takes back finished requests: tells the policy of each, and frees its slot. Returns how many there were.
    #[inline(always)]
    pub(crate) fn take_done(&mut self, returns: &mut Consumer<Done>) -> u32 {
        if self.is_watched() {
            let there = returns.len();
            if !self.is_sampled || there >= self.until_sample {
                return self.take_watched(returns);
            }
            // The next sample is none of these. More may have come in the meantime: it is taken a little later then.
            self.until_sample -= there;
            self.some_ended |= there > 0;
        }
        let Some(returns) = returns.take_all() else { return 0 };
        let there = returns.len() as u32;
        for done in returns {
            self.tell_done(&done);
            self.free_slot(done.rq);
        }
        there
    }

    #[inline(never)]
    fn take_watched(&mut self, returns: &mut Consumer<Done>) -> u32 {
        let Some(returns) = returns.take_all() else { return 0 };
        let there = returns.len() as u32;
        if self.is_sampled {
            for done in returns {
                self.tell_done(&done);
                self.sample_completed(&done);
                self.free_slot(done.rq);
            }
        } else {
            for done in returns {
                self.tell_done(&done);
                self.watch_completed(&done);
                self.free_slot(done.rq);
            }
        }
        self.some_ended = true;
        there
    }

    #[inline(always)]
    fn tell_done(&mut self, done: &Done) {
        if self.facts.bypass != Bypass::Untold {
            let cx = Cx::new(self.now, &self.requests, &self.env);
            self.policy.completed(&cx, done);
        }
        self.count_done(done);
    }

    /// Takes back `rq`, which is to be issued again later. It goes to the head, and nothing merges with it there.
    fn requeue(&mut self, rq: Inflight) {
        let (id, way) = (rq.id, rq.way());
        self.watch_requeued(id, way);
        self.put_chain(id, rq.into_chain());
        self.counters.requeues.add(1);
        if way == Way::Flush {
            self.held += 1;
            self.carriers.push_front(id);
            return;
        }
        self.hold(id);
        let cx = Cx::new(self.now, &self.requests, &self.env);
        self.policy.insert(&cx, id, At::Head);
    }

    /// The requests that have a slot, and whether each still waits here; the others have been issued. O(slots).
    pub(crate) fn live(&self) -> impl Iterator<Item = (RequestId, &IoMeta, bool)> {
        let one = |id: RequestId| (id, self.requests.get(id), self.chains[id.index()].is_some());
        self.requests.live().map(one)
    }
}
