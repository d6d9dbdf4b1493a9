//! A policy with a slot table and a clock, driven by a test; and its surroundings: tokens, counters, values and notes
//! in plain cells, and the simplest device with a latency that depends on its load.

use super::Checked;
use crate::{
    Admission, At, Attribute, Bypass, Common, Cx, Done, Factory, Facts, Fresh, Governor,
    GroupChange, Grown, Note, Options, PLUG, Pick, PolicyEnv, Requests, Scheduler, Shape,
    StatsLevel, Used,
};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use blkmq_core::{HwQueue, Instant, IoFlags, IoMeta, Nanos, Op, Owner, RequestId};
use core::cell::{Cell, RefCell};

/// Acts as the engine for one policy, which it watches through [`Checked`].
pub struct Driver {
    policy: Checked,
    requests: Requests,
    env: LocalEnv,
    now: Instant,
    /// The issue time of each issued request.
    issued_at: BTreeMap<RequestId, Instant>,
}

macro_rules! cx {
    ($driver:ident) => {
        Cx::new($driver.now, &$driver.requests, &$driver.env)
    };
}

impl Driver {
    /// Drives `policy`, which was built for `slots`.
    #[must_use]
    pub fn new(policy: Box<dyn Scheduler>, slots: u32) -> Self {
        Self::with_env(policy, slots, LocalEnv::default())
    }

    /// Drives `policy`, which was built for `slots`, with the environment `env`.
    #[must_use]
    pub fn with_env(policy: Box<dyn Scheduler>, slots: u32, env: LocalEnv) -> Self {
        let requests = Requests::new(slots);
        let (policy, issued_at) = (Checked::checking(policy), BTreeMap::new());
        Self { policy, requests, env, now: Instant::ZERO, issued_at }
    }

    /// Builds the policy of `factory` with `options` as `key=value,...`, for one hardware queue with half as
    /// many driver tags as there are slots.
    ///
    /// # Panics
    /// If the options are refused.
    #[must_use]
    pub fn of(factory: &Factory, slots: u32, options: &str) -> Self {
        Self::of_shape(factory, &Self::shape(slots), options)
    }

    /// As [`of`](Self::of), for the given shape.
    ///
    /// # Panics
    /// If the options are refused.
    #[must_use]
    pub fn of_shape(factory: &Factory, shape: &Shape, options: &str) -> Self {
        let options = Options::parse(factory.attributes, options)
            .unwrap_or_else(|e| panic!("{}: {e}", factory.name));
        let env = LocalEnv::of(factory, shape, &options);
        Self::with_env((factory.build)(shape, &options), shape.slots, env)
    }

    /// One hardware queue, with half as many driver tags as there are slots, on a device without moving parts.
    #[must_use]
    pub fn shape(slots: u32) -> Shape {
        Shape {
            slots,
            nr_requests: slots,
            hw_depth: slots.div_ceil(2),
            hw_queues: 1,
            rotational: false,
        }
    }

    /// The environment of the policy.
    #[must_use]
    pub fn env(&self) -> &LocalEnv {
        &self.env
    }

    /// The current time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Lets time pass.
    pub fn advance(&mut self, span: Nanos) {
        self.now += span;
    }

    /// Requests that the policy holds, ascending by id.
    #[must_use]
    pub fn held(&self) -> Vec<RequestId> {
        self.policy.observer().held().iter().copied().collect()
    }

    /// Requests picked and not completed, ascending by id.
    #[must_use]
    pub fn issued(&self) -> Vec<RequestId> {
        self.policy.observer().issued().iter().copied().collect()
    }

    /// The time at which a request that is at the device was last picked.
    #[must_use]
    pub fn picked_at(&self, rq: RequestId) -> Option<Instant> {
        self.issued_at.get(&rq).copied()
    }

    /// The metadata of a live request.
    #[must_use]
    pub fn meta(&self, rq: RequestId) -> &IoMeta {
        self.requests.get(rq)
    }

    /// Inserts an I/O of eight sectors without a class.
    ///
    /// # Panics
    /// If no slot is free.
    pub fn insert(&mut self, op: Op, sector: u64) -> RequestId {
        self.insert_meta(IoMeta::new(op, sector, 8), At::Tail).expect("a slot is free")
    }

    /// Inserts a request; `None` if no slot is free.
    pub fn insert_meta(&mut self, meta: IoMeta, at: At) -> Option<RequestId> {
        let rq = self.requests.alloc(IoMeta { arrived: self.now, ..meta })?;
        self.policy.insert(&cx!(self), rq, at);
        Some(rq)
    }

    /// Gives new requests to a policy that holds none, and picks until none is held or the policy waits, with the calls
    /// that the engine makes for this policy. Returns the picks. Requests without a free slot are left out.
    pub fn admit(&mut self, metas: &[IoMeta]) -> Vec<Pick> {
        let now = self.now;
        let alloc = |meta: &IoMeta| self.requests.alloc(IoMeta { arrived: now, ..*meta });
        let rqs: Vec<RequestId> = metas.iter().filter_map(alloc).collect();
        self.env.review(self.now);
        let facts = self.policy.facts();
        if facts.bypass == Bypass::Told {
            rqs.iter().for_each(|rq| self.policy.passed(&cx!(self), *rq, HwQueue(0)));
            self.issued_at.extend(rqs.iter().map(|rq| (*rq, now)));
            return rqs.into_iter().map(Pick::Issue).collect();
        }
        // Twice as many tags as there are slots, so that tags decide nothing here.
        let of = 2 * self.requests.capacity() as u32;
        let used = (rqs.len() > 1).then_some(Used { of, all: 0, limited: 0, unsynced: 0 });
        let fresh = Fresh { rqs: &rqs, hw: HwQueue(0), used };
        let mut order = [0; PLUG];
        let order = &mut order[..rqs.len()];
        let admission = match rqs.len() {
            1 => self.policy.admit(&cx!(self), &fresh, order),
            _ if facts.takes_plugs && self.is_whole(&rqs) => {
                self.policy.admit(&cx!(self), &fresh, order)
            }
            _ => Admission::Refused,
        };
        match (admission, &*rqs) {
            (Admission::Issued, [rq]) => Vec::from([self.settle(Pick::Issue(*rq))]),
            (Admission::Issued, _) => {
                let picked: Vec<RequestId> = order.iter().map(|at| rqs[usize::from(*at)]).collect();
                self.issued_at.extend(picked.iter().map(|rq| (*rq, now)));
                self.env.settle_all(&picked);
                picked.into_iter().map(Pick::Issue).collect()
            }
            (Admission::Held(pick), _) => Vec::from([self.settle(pick)]),
            (Admission::Refused, _) => {
                rqs.iter().for_each(|rq| self.policy.insert(&cx!(self), *rq, At::Tail));
                rqs.iter().map(|_| self.pick()).collect()
            }
        }
    }

    /// Returns whether the engine would give a policy these requests together.
    fn is_whole(&self, rqs: &[RequestId]) -> bool {
        let Some(first) = rqs.first() else { return false };
        let op = self.meta(*first).op;
        matches!(op, Op::Read | Op::Write) && rqs.iter().all(|rq| self.meta(*rq).op == op)
    }

    /// Calls `pick` for hardware queue 0.
    pub fn pick(&mut self) -> Pick {
        self.env.review(self.now);
        let pick = self.policy.pick(&cx!(self), HwQueue(0));
        self.settle(pick)
    }

    fn settle(&mut self, pick: Pick) -> Pick {
        let issued = match pick {
            Pick::Issue(rq) => Some(rq),
            _ => None,
        };
        self.issued_at.extend(issued.map(|rq| (rq, self.now)));
        self.env.settle(issued);
        pick
    }

    /// Calls `pick` for hardware queue 0, which must return a request.
    ///
    /// # Panics
    /// If it returns none.
    pub fn issue(&mut self) -> RequestId {
        match self.pick() {
            Pick::Issue(rq) => rq,
            other => panic!("expected a request, got {other:?}"),
        }
    }

    /// As [`issue`](Self::issue), but returns the start sector.
    pub fn issue_sector(&mut self) -> u64 {
        let rq = self.issue();
        self.meta(rq).sector
    }

    /// Issues and completes the next request; returns its start sector.
    pub fn serve_sector(&mut self) -> u64 {
        let rq = self.issue();
        let sector = self.meta(rq).sector;
        self.complete(rq);
        sector
    }

    /// Completes an issued request and frees its slot. The request has been at the device since it was picked.
    pub fn complete(&mut self, rq: RequestId) {
        let issued = self.issued_at.remove(&rq).unwrap_or(self.now);
        let done = Done { rq, result: Ok(()), issued, completed: self.now };
        self.env.give_back(rq);
        self.policy.completed(&cx!(self), &done);
        self.requests.free(rq);
    }

    /// Requeues an issued request.
    pub fn requeue(&mut self, rq: RequestId) {
        self.issued_at.remove(&rq);
        self.env.give_back(rq);
        self.policy.insert(&cx!(self), rq, At::Head);
    }

    /// Passes a change of the tree of groups to the policy.
    pub fn regroup(&mut self, change: GroupChange) {
        self.policy.regroup(&cx!(self), change);
    }

    /// Gives the policy the hint that no I/O of an owner will arrive for a long time.
    pub fn owner_gone(&mut self, owner: Owner) {
        self.policy.owner_gone(&cx!(self), owner);
    }

    /// Returns whether the policy would give a slot to `io`. True if the policy does not limit slots.
    #[must_use]
    pub fn admits(&self, io: &IoMeta) -> bool {
        let of = self.requests.capacity() as u32;
        let mut used = Used { of, all: 0, limited: 0, unsynced: 0 };
        for rq in self.requests.live() {
            let meta = self.requests.get(rq);
            used.all += 1;
            used.limited += u32::from(!meta.is_sync_read());
            used.unsynced += u32::from(!meta.flags.contains(IoFlags::SYNC));
        }
        self.admits_with(io, used)
    }

    /// Withdraws a held request and frees its slot.
    pub fn withdraw(&mut self, rq: RequestId) {
        self.policy.withdraw(&cx!(self), rq);
        self.requests.free(rq);
    }

    /// Returns whether `io` may join `into`.
    #[must_use]
    pub fn may_merge(&self, into: RequestId, io: &IoMeta) -> bool {
        self.policy.may_merge(&cx!(self), into, io)
    }

    /// Appends `sectors` to a held request.
    pub fn grow_back(&mut self, rq: RequestId, sectors: u32) {
        self.requests.get_mut(rq).sectors += sectors;
        self.policy.grown(&cx!(self), rq, Grown::Back);
    }

    /// Prepends `sectors` to a held request, as far as the device has them.
    pub fn grow_front(&mut self, rq: RequestId, sectors: u32) {
        let meta = self.requests.get_mut(rq);
        let old_sector = meta.sector;
        meta.sector = old_sector.saturating_sub(sectors.into());
        meta.sectors += (old_sector - meta.sector) as u32;
        self.policy.grown(&cx!(self), rq, Grown::Front { old_sector });
    }

    /// Adds a range at `sector` to a held discard, which then starts at the lower of the two.
    pub fn grow_discard(&mut self, rq: RequestId, sector: u64, sectors: u32) {
        let meta = self.requests.get_mut(rq);
        meta.sector = meta.sector.min(sector);
        meta.sectors += sectors;
        meta.segments += 1;
        self.policy.grown(&cx!(self), rq, Grown::Discard);
    }

    /// Fuses the held request `gone` into the held request `into`, which then starts at the lower of the two.
    pub fn absorb(&mut self, into: RequestId, gone: RequestId) {
        let lost = *self.requests.get(gone);
        let kept = self.requests.get_mut(into);
        kept.sector = kept.sector.min(lost.sector);
        kept.sectors += lost.sectors;
        kept.segments += lost.segments;
        kept.arrived = kept.arrived.min(lost.arrived);
        self.policy.absorbed(&cx!(self), into, gone);
        self.requests.free(gone);
    }

    /// Merges `io` behind a held request if the policy allows it. Returns whether it does.
    pub fn try_merge(&mut self, into: RequestId, io: &IoMeta) -> bool {
        let may = self.may_merge(into, io);
        if may {
            self.grow_back(into, io.sectors);
        }
        may
    }

    /// Sets an attribute, which must exist.
    ///
    /// # Panics
    /// If it does not exist.
    pub fn set(&mut self, name: &str, value: i64) {
        assert!(self.policy.set_attribute(name, value), "no attribute '{name}'");
        self.env.set_attribute(name, value);
    }

    /// The value of an attribute.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<i64> {
        self.policy.attribute(name)
    }

    /// The properties of the policy.
    #[must_use]
    pub fn facts(&self) -> Facts {
        self.policy.facts()
    }

    /// Returns whether `io` may have a slot of its own, with these slots in use.
    #[must_use]
    pub fn admits_with(&self, io: &IoMeta, used: Used) -> bool {
        !self.policy.facts().limits_slots || self.policy.admits(&cx!(self), io, used)
    }

    /// All counters that the policy reports.
    #[must_use]
    pub fn inspect(&self) -> Vec<(&'static str, u64)> {
        let mut all = Vec::new();
        self.policy.inspect(&mut |name, value| all.push((name, value)));
        all
    }

    /// One value of [`inspect`](Self::inspect).
    ///
    /// # Panics
    /// If the policy reports no counter of that name.
    #[must_use]
    pub fn shown(&self, name: &str) -> u64 {
        let found = self.inspect().into_iter().find(|(n, _)| *n == name);
        found.unwrap_or_else(|| panic!("nothing called '{name}' is shown")).1
    }

    /// Checks liveness: calls `pick` until no request is held, follows each answer, and completes every request.
    /// Returns the order in which requests were picked.
    ///
    /// # Panics
    /// If the policy waits more often than eight times per request plus a hundred times.
    pub fn drain(&mut self) -> Vec<RequestId> {
        let mut order = Vec::new();
        // A policy may wait for a ceiling on each level of the tree, and for a completion.
        let mut waits = 8 * (self.held().len() + self.issued().len()) + 100;
        loop {
            match self.pick() {
                Pick::Issue(rq) => {
                    order.push(rq);
                    continue;
                }
                Pick::Empty => break,
                Pick::WaitUntil(at) => self.now = at,
                Pick::WaitCompletion | Pick::WaitToken => {
                    let oldest = self.issued().first().copied();
                    self.complete(oldest.expect("checked: something is in flight"));
                }
            }
            waits -= 1;
            assert!(waits > 0, "held for ever: {:?}", self.held());
        }
        self.issued().into_iter().for_each(|rq| self.complete(rq));
        assert_eq!(self.requests.in_use(), 0, "a request was lost");
        order
    }
}

/// The environment that the engine keeps for a policy, for one thread. Several instances may share one.
#[derive(Default)]
pub struct LocalEnv {
    inner: RefCell<Inner>,
    /// The pool that the current `pick` took a token from.
    taken: Cell<Option<usize>>,
    /// The pool that the current plug took tokens from, and their number.
    taken_all: Cell<Option<(usize, u32)>>,
    due: Cell<Option<Instant>>,
    level: Cell<StatsLevel>,
    draining: Cell<bool>,
}

#[derive(Default)]
struct Inner {
    governor: Option<Box<dyn Governor>>,
    tokens: Vec<u32>,
    out: Vec<u32>,
    counters: Vec<u64>,
    values: Vec<u64>,
    /// The pool of the token of each issued request.
    held: BTreeMap<RequestId, usize>,
    notes: Vec<Note>,
}

impl LocalEnv {
    /// The state that instances of `factory` with these options share.
    #[must_use]
    pub fn of(factory: &Factory, shape: &Shape, options: &Options) -> Self {
        Self::sharing(factory.common, factory, shape, options)
    }

    /// Returns this environment with other shared state.
    #[must_use]
    pub fn sharing(
        common: Option<Common>,
        factory: &Factory,
        shape: &Shape,
        options: &Options,
    ) -> Self {
        let env = Self::default();
        let Some(common) = common else { return env };
        *env.inner.borrow_mut() = Inner {
            governor: Some((common.governor)(shape, options)),
            tokens: common.tokens.to_vec(),
            out: vec![0; common.tokens.len()],
            counters: vec![0; common.counters],
            values: vec![0; common.values],
            ..Inner::default()
        };
        for Attribute { name, .. } in factory.attributes {
            env.set_attribute(name, options.get(name));
        }
        env
    }

    /// Passes the value of an attribute to the governor, if there is one.
    pub fn set_attribute(&self, name: &str, value: i64) {
        let Inner { governor, tokens, values, .. } = &mut *self.inner.borrow_mut();
        if let Some(governor) = governor {
            governor.set_attribute(name, value, tokens, values);
        }
    }

    /// Runs a review of the governor, if one is due.
    pub fn review(&self, now: Instant) {
        if self.due.get().is_none_or(|due| due > now) {
            return;
        }
        self.due.set(None);
        let Inner { governor, tokens, counters, values, .. } = &mut *self.inner.borrow_mut();
        if let Some(governor) = governor {
            governor.review(now, counters, tokens, values);
        }
        counters.fill(0);
    }

    /// Ends a `pick`: a token that it took goes with the request, or back to the pool.
    ///
    /// # Panics
    /// If the issued request holds a token already.
    pub fn settle(&self, issued: Option<RequestId>) {
        let Some(pool) = self.taken.take() else { return };
        let inner = &mut *self.inner.borrow_mut();
        match issued {
            Some(rq) => {
                assert!(inner.held.insert(rq, pool).is_none(), "{rq:?} has a token already");
            }
            None => inner.out[pool] -= 1,
        }
    }

    /// Gives each request of an issued plug one of the tokens that were taken for it.
    ///
    /// # Panics
    /// If there are more or fewer tokens than requests, or one of them holds a token already.
    pub fn settle_all(&self, issued: &[RequestId]) {
        let Some((pool, n)) = self.taken_all.take() else { return };
        assert_eq!(issued.len(), n as usize, "a token for each request of the plug");
        let inner = &mut *self.inner.borrow_mut();
        for rq in issued {
            assert!(inner.held.insert(*rq, pool).is_none(), "{rq:?} has a token already");
        }
    }

    /// Returns the token of `rq`, which the device has returned.
    pub fn give_back(&self, rq: RequestId) {
        let inner = &mut *self.inner.borrow_mut();
        if let Some(pool) = inner.held.remove(&rq) {
            inner.out[pool] -= 1;
        }
    }

    /// The number of tokens of each pool.
    #[must_use]
    pub fn tokens(&self) -> Vec<u32> {
        self.inner.borrow().tokens.clone()
    }

    /// Sets the number of tokens of a pool, as its governor might.
    ///
    /// # Panics
    /// If there is no such pool.
    pub fn set_tokens(&self, pool: usize, tokens: u32) {
        self.inner.borrow_mut().tokens[pool] = tokens;
    }

    /// Sets a value, as the governor might.
    ///
    /// # Panics
    /// If there is no such value.
    pub fn set_value(&self, index: usize, value: u64) {
        self.inner.borrow_mut().values[index] = value;
    }

    /// The number of taken tokens of each pool.
    #[must_use]
    pub fn out(&self) -> Vec<u32> {
        self.inner.borrow().out.clone()
    }

    /// The growth of the counters since the last review.
    #[must_use]
    pub fn counters(&self) -> Vec<u64> {
        self.inner.borrow().counters.clone()
    }

    /// The values that the governor has last published.
    #[must_use]
    pub fn values(&self) -> Vec<u64> {
        self.inner.borrow().values.clone()
    }

    /// The time of the next review.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.due.get()
    }

    /// Sets the level of detail of notes.
    pub fn set_stats(&self, level: StatsLevel) {
        self.level.set(level);
    }

    /// Sets whether the queue is draining.
    pub fn set_draining(&self, draining: bool) {
        self.draining.set(draining);
    }

    /// All notes since the last call.
    #[must_use]
    pub fn take_notes(&self) -> Vec<Note> {
        core::mem::take(&mut self.inner.borrow_mut().notes)
    }

    /// All counters that the governor reports.
    #[must_use]
    pub fn inspect(&self) -> Vec<(&'static str, u64)> {
        let mut all = Vec::new();
        if let Some(governor) = &self.inner.borrow().governor {
            governor.inspect(&mut |name, value| all.push((name, value)));
        }
        all
    }
}

impl PolicyEnv for LocalEnv {
    fn take(&self, pool: usize) -> bool {
        assert!(self.taken.get().is_none(), "a pick takes one token at most");
        let inner = &mut *self.inner.borrow_mut();
        let there = inner.out[pool] < inner.tokens[pool];
        if there {
            inner.out[pool] += 1;
            self.taken.set(Some(pool));
        }
        there
    }

    fn take_all(&self, pool: usize, n: u32) -> bool {
        assert!(self.taken_all.get().is_none(), "a plug takes from one pool, once");
        let inner = &mut *self.inner.borrow_mut();
        let there = inner.out[pool] + n <= inner.tokens[pool];
        if there {
            inner.out[pool] += n;
            self.taken_all.set(Some((pool, n)));
        }
        there
    }

    fn count(&self, counter: usize) {
        self.inner.borrow_mut().counters[counter] += 1;
    }

    fn value(&self, index: usize) -> u64 {
        self.inner.borrow().values[index]
    }

    fn review_by(&self, at: Instant) {
        let due = self.due.get().map_or(at, |due| due.min(at));
        self.due.set(Some(due));
    }

    fn note(&self, note: &Note) {
        if self.level.get() > StatsLevel::Off {
            self.inner.borrow_mut().notes.push(*note);
        }
    }

    fn stats(&self) -> StatsLevel {
        self.level.get()
    }

    fn is_draining(&self) -> bool {
        self.draining.get()
    }
}

/// A device that works on a fixed number of requests at a time, its ways, and takes the others in order of arrival.
///
/// Its latency does not depend on depth up to the number of ways, and is proportional to depth above it.
pub struct FakeDevice {
    /// The time at which each way will be free.
    free: Vec<Instant>,
}

impl FakeDevice {
    /// A device with this many ways.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn new(ways: usize) -> Self {
        assert!(ways > 0, "a device without a way never finishes anything");
        Self { free: vec![Instant::ZERO; ways] }
    }

    /// Accepts a request that takes `service` once its turn has come, and returns its finishing time. `now` is never
    /// earlier than in the previous call. O(ways).
    pub fn accept(&mut self, now: Instant, service: Nanos) -> Instant {
        let first = self.free.iter_mut().min().expect("there is a way");
        *first = (*first).max(now) + service;
        *first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_is_flat_as_far_as_the_ways_and_grows_from_there() {
        let mut device = FakeDevice::new(4);
        let mut latencies = |n| -> Vec<u64> {
            let now = Instant::from_nanos(1_000);
            (0..n).map(|_| (device.accept(now, Nanos(10)) - now).0).collect()
        };
        assert_eq!(latencies(4), [10; 4]);
        assert_eq!(latencies(6), [20, 20, 20, 20, 30, 30]);
        let late = Instant::from_nanos(5_000);
        assert_eq!(device.accept(late, Nanos(10)) - late, Nanos(10));
    }
}
