//! State that the instances of one policy share across threads: pools of tokens, counters, the values that a governor
//! publishes, and the time of the governor's next review.
//!
//! A policy sees it through [`ElevatorEnv`], one for each elevator, which only its runner uses. A runner takes tokens
//! from a pool a few at a time and returns unused ones at the end of its pass, so that runners do not contend for the
//! pool's line once per request. A token goes with its request and is returned by the pump, like a budget; the pump
//! then kicks the elevators that wait for a token.
//!
//! The first runner whose pass begins after the due time runs the governor, unless another thread is running it. A
//! counter has one writer at a time and is never reset; the governor's state keeps the sums of the last review.

use crate::groups::{Book, Counted, Ledger, StatsMode};
use crate::sync::{Arc, AtomicU64, COMPARE, Mutex, MutexGuard, Ordering, PoisonError, TokenPool};
use blkmq_core::{Instant, Nanos, SECTOR_SIZE};
use blkmq_sched::{
    About, Event, Factory, Floors, Governor, Note, Options, PolicyEnv, Shape, StatsLevel, Tallies,
};
use crossbeam_utils::CachePadded;
use std::cell::{Cell, RefCell};

/// The most tokens taken from a pool at a time.
const MOST_AT_A_TIME: u32 = 16;
/// No review is due.
const NEVER: u64 = u64::MAX;
/// The most pools: the number of a pool takes five bits of a request.
const MAX_POOLS: usize = 31;
/// Passes with notes after which a runner moves their sums to the ledger. The sums are few words, however many notes
/// there were.
const PASSES_NOTED: u32 = if cfg!(any(loom, shuttle)) { 2 } else { 16 };

/// The state that all elevators of a queue share for their policy.
pub(crate) struct Common {
    pools: Box<[TokenPool]>,
    /// By elevator. Each is on separate cache lines, because it is written once per I/O.
    counters: Box<[CachePadded<Box<[AtomicU64]>>]>,
    values: Box<[AtomicU64]>,
    /// The time at which the governor's next review is due, in nanoseconds.
    due: CachePadded<AtomicU64>,
    governor: Mutex<GovernorState>,
}

/// The governor and the data that it works with.
struct GovernorState {
    governor: Box<dyn Governor>,
    /// The sums of the counters at the last review.
    seen: Vec<u64>,
    grown: Vec<u64>,
    tokens: Vec<u32>,
    values: Vec<u64>,
}

impl Common {
    /// The state that `shards` instances of `factory` share; `None` if they share none.
    ///
    /// # Panics
    /// If the policy wants more than 31 pools.
    pub(crate) fn new(
        factory: &Factory,
        shape: &Shape,
        options: &Options,
        shards: u16,
    ) -> Option<Arc<Self>> {
        let wanted = factory.common?;
        assert!(wanted.tokens.len() <= MAX_POOLS, "{}: too many pools", factory.name);
        let words = |count| (0..count).map(|_| AtomicU64::new(0)).collect::<Box<[_]>>();
        let mut state = GovernorState {
            governor: (wanted.governor)(shape, options),
            seen: vec![0; wanted.counters],
            grown: vec![0; wanted.counters],
            tokens: wanted.tokens.to_vec(),
            values: vec![0; wanted.values],
        };
        for attribute in factory.attributes {
            state.set_attribute(attribute.name, options.get(attribute.name));
        }
        let common = Self {
            pools: state.tokens.iter().map(|&tokens| TokenPool::new(tokens, shards)).collect(),
            counters: (0..shards).map(|_| CachePadded::new(words(wanted.counters))).collect(),
            values: words(wanted.values),
            due: CachePadded::new(AtomicU64::new(NEVER)),
            governor: Mutex::new(state),
        };
        common.publish(&common.governor(), &mut |_| {});
        Some(Arc::new(common))
    }

    fn governor(&self) -> MutexGuard<'_, GovernorState> {
        // After a panic the governor makes no more decisions; its last ones remain.
        self.governor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `n` tokens to a pool. Passes the elevators that wait for a token to `tell`.
    pub(crate) fn put(&self, pool: usize, n: u32, tell: impl FnMut(u16)) {
        self.pools[pool].put(n, tell);
    }

    /// Notifies the governor of an attribute's value.
    pub(crate) fn set_attribute(&self, name: &str, value: i64, tell: &mut dyn FnMut(u16)) {
        let mut state = self.governor();
        state.set_attribute(name, value);
        self.publish(&state, tell);
    }

    /// Runs the governor if a review is due and no other thread is running it. A plain load if none is due.
    #[inline]
    pub(crate) fn review(&self, now: Instant, tell: &mut dyn FnMut(u16)) {
        if self.due.load(Ordering::Relaxed) <= now.as_nanos() {
            self.review_now(now, tell);
        }
    }

    #[cold]
    fn review_now(&self, now: Instant, tell: &mut dyn FnMut(u16)) {
        let Ok(mut state) = self.governor.try_lock() else { return };
        // A later `review_by` arms the next review, which counts its samples.
        self.due.store(NEVER, Ordering::Relaxed);
        state.review(now, &self.counters);
        self.publish(&state, tell);
    }

    /// Publishes the decisions of the governor.
    fn publish(&self, state: &GovernorState, tell: &mut dyn FnMut(u16)) {
        for (value, new) in self.values.iter().zip(&state.values) {
            value.store(*new, Ordering::Relaxed);
        }
        for (pool, tokens) in self.pools.iter().zip(&state.tokens) {
            if pool.limit() != *tokens {
                pool.set_limit(*tokens, &mut *tell);
            }
        }
    }

    /// By pool: the number of tokens in use, and of all tokens.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.pools.iter().map(|pool| (pool.out(), pool.limit()))
    }

    /// Passes the governor's own figures to `out`.
    pub(crate) fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        self.governor().governor.inspect(out);
    }
}

impl GovernorState {
    fn set_attribute(&mut self, name: &str, value: i64) {
        let Self { governor, tokens, values, .. } = self;
        governor.set_attribute(name, value, tokens, values);
    }

    fn review(&mut self, now: Instant, counters: &[CachePadded<Box<[AtomicU64]>>]) {
        let Self { governor, seen, grown, tokens, values } = self;
        for (at, (seen, grown)) in seen.iter_mut().zip(grown.iter_mut()).enumerate() {
            // Relaxed: a sample that is not visible yet counts at the next review.
            let sum = counters.iter().map(|of| of[at].load(Ordering::Relaxed)).sum();
            *grown = sum - *seen;
            *seen = sum;
        }
        governor.review(now, grown, tokens, values);
    }
}

/// The environment of one elevator's policy.
pub(crate) struct ElevatorEnv {
    common: Option<Arc<Common>>,
    /// The number of this elevator, and the number of all elevators.
    shard: u16,
    shards: u16,
    /// Tokens taken and not yet used, by pool.
    stash: Box<[Cell<u32>]>,
    /// Whether the stash may have tokens.
    stashed: Cell<bool>,
    /// The most tokens to take at a time.
    most: Cell<u32>,
    /// The pool that gave a token to the request that is being picked.
    taken: Cell<Option<u8>>,
    stats: Cell<StatsMode>,
    /// The queue is frozen.
    draining: Cell<bool>,
    /// The policy's notes that no runner has moved to the ledger yet.
    notes: RefCell<Tallies>,
    /// Passes since notes were last moved.
    passes_noted: Cell<u32>,
    ledger: Arc<Ledger>,
}

impl ElevatorEnv {
    pub(crate) fn new(
        common: Option<Arc<Common>>,
        (shard, shards): (u16, u16),
        stats: StatsMode,
        ledger: Arc<Ledger>,
    ) -> Self {
        let pools = common.as_ref().map_or(0, |common| common.pools.len());
        Self {
            common,
            shard,
            shards,
            stash: vec![Cell::new(0); pools].into_boxed_slice(),
            stashed: Cell::new(false),
            most: Cell::new(MOST_AT_A_TIME),
            taken: Cell::new(None),
            stats: Cell::new(stats),
            draining: Cell::new(false),
            notes: RefCell::default(),
            passes_noted: Cell::new(0),
            ledger,
        }
    }

    /// Sets which counts to keep, and when to count.
    pub(crate) fn set_stats(&self, stats: StatsMode) {
        self.stats.set(stats);
    }

    /// Which counts to keep, and when to count.
    pub(crate) fn stats_mode(&self) -> StatsMode {
        self.stats.get()
    }

    /// Moves the times of completed requests to the ledger, waiting for another thread that counts.
    pub(crate) fn count_times(&self, counted: &mut Counted) {
        self.ledger.count_times(self.shard, counted);
    }

    /// Moves the counts of floors to the ledger, waiting for another thread that counts.
    pub(crate) fn count_floors(&self, floors: &mut Floors) {
        self.ledger.count_floors(floors);
    }

    /// The level of the statistics.
    pub(crate) fn level(&self) -> StatsLevel {
        self.stats.get().level
    }

    /// Sets whether the queue is frozen: a frozen queue admits nothing.
    #[inline]
    pub(crate) fn set_draining(&self, draining: bool) {
        self.draining.set(draining);
    }

    /// Returns whether the policy has notes that no runner has moved.
    #[inline]
    pub(crate) fn has_notes(&mut self) -> bool {
        self.sums().is_some() && !self.notes.get_mut().is_empty()
    }

    /// Once in [`PASSES_NOTED`] passes with notes, moves them into `book` if the run already has it, otherwise into the
    /// ledger's book if that is free. They are counted after the run.
    #[inline]
    pub(crate) fn take_notes<'a>(
        &mut self,
        ledger: &'a Ledger,
        book: Option<MutexGuard<'a, Book>>,
    ) -> Option<MutexGuard<'a, Book>> {
        if self.has_notes() { self.take_some(ledger, book) } else { book }
    }

    #[inline(never)]
    fn take_some<'a>(
        &mut self,
        ledger: &'a Ledger,
        book: Option<MutexGuard<'a, Book>>,
    ) -> Option<MutexGuard<'a, Book>> {
        let notes = self.notes.get_mut();
        let passes = self.passes_noted.get() + 1;
        self.passes_noted.set(passes % PASSES_NOTED);
        if passes < PASSES_NOTED {
            return book;
        }
        match book {
            Some(mut book) => {
                book.take(notes);
                Some(book)
            }
            None => ledger.try_take(notes),
        }
    }

    /// Removes and returns the notes that have not been moved to the ledger.
    pub(crate) fn leftover_notes(&mut self) -> Tallies {
        self.notes.take()
    }

    /// Counts the notes immediately, waiting for another thread that counts, because the indices of their groups may
    /// soon be reused.
    pub(crate) fn count_notes(&self) {
        self.ledger.count(&mut self.notes.borrow_mut());
    }

    fn common(&self) -> &Common {
        self.common.as_deref().expect("only a policy that declared something in common uses it")
    }

    /// Begins a pass. Passes the elevators that wait for a token, and may find one, to `tell`.
    #[inline]
    pub(crate) fn begin(&self, now: Instant, tell: &mut dyn FnMut(u16)) {
        if let Some(common) = &self.common {
            common.review(now, tell);
        }
    }

    /// Announces that at most one request is picked until `pick` returns: at most one token is taken for it.
    #[inline]
    pub(crate) fn for_one<T>(&self, pick: impl FnOnce() -> T) -> T {
        self.most.set(1);
        let picked = pick();
        self.most.set(MOST_AT_A_TIME);
        picked
    }

    /// Ends a pass: returns tokens that it took and did not use.
    #[inline]
    pub(crate) fn end(&self, tell: &mut dyn FnMut(u16)) {
        if self.stashed.get() {
            self.put_stash(tell);
        }
    }

    #[inline(never)]
    fn put_stash(&self, tell: &mut dyn FnMut(u16)) {
        self.stashed.set(false);
        for (pool, stash) in self.stash.iter().enumerate() {
            let left = stash.take();
            if left > 0 {
                self.common().put(pool, left, &mut *tell);
            }
        }
    }

    /// Counts a completed request, for a policy that notes nothing down.
    #[inline]
    pub(crate) fn count_whole(&mut self, about: About, bytes: u32, wait: Nanos, service: Nanos) {
        if self.counts_inline() {
            for what in
                [Event::Served(bytes / SECTOR_SIZE), Event::Completed { bytes, wait, service }]
            {
                self.count_at_once(&Note { about, what });
            }
        } else {
            self.notes.get_mut().add_whole(about, bytes, wait, service);
        }
    }

    /// See [`Ledger`](crate::groups::Ledger).
    #[inline]
    fn counts_inline(&self) -> bool {
        COMPARE && self.stats.get().inline
    }

    #[inline(never)]
    fn count_at_once(&self, note: &Note) {
        self.ledger.count_one(note);
    }

    /// The pool that gave a token to the request just picked.
    #[inline]
    pub(crate) fn picked(&self) -> Option<u8> {
        self.taken.take()
    }

    /// Notes that no request was picked: a token taken for it goes back to the stash.
    #[inline]
    pub(crate) fn unpicked(&self) {
        if let Some(pool) = self.taken.take() {
            let stash = &self.stash[usize::from(pool)];
            stash.set(stash.get() + 1);
            self.stashed.set(true);
        }
    }
}

impl PolicyEnv for ElevatorEnv {
    #[inline]
    fn take(&self, pool: usize) -> bool {
        assert!(self.taken.get().is_none(), "a pick takes one token at most");
        let stash = &self.stash[pool];
        let mut there = stash.get();
        if there == 0 {
            let tokens = &self.common().pools[pool];
            // A few at a time, so that most of the pool is left to the other elevators.
            let want = tokens.limit() / (4 * u32::from(self.shards));
            there = tokens.take_or_wait(want.clamp(1, self.most.get()), self.shard);
            if there == 0 {
                return false;
            }
            // A single token is used immediately.
            self.stashed.set(self.stashed.get() || there > 1);
        }
        stash.set(there - 1);
        // There are at most 31 pools.
        self.taken.set(Some(pool as u8));
        true
    }

    #[inline]
    fn take_all(&self, pool: usize, n: u32) -> bool {
        assert!(self.taken.get().is_none(), "a plug takes from one pool, once");
        let stash = &self.stash[pool];
        let there = stash.get();
        // All of them are used immediately, so none is withheld from the other elevators.
        let missing = n.saturating_sub(there);
        let got = if missing == 0 { 0 } else { self.common().pools[pool].take(missing) };
        let there = there + got;
        if got < missing {
            stash.set(there);
            self.stashed.set(self.stashed.get() || there > 0);
            return false;
        }
        stash.set(there - n);
        // There are at most 31 pools.
        self.taken.set(Some(pool as u8));
        true
    }

    #[inline]
    fn count(&self, counter: usize) {
        let counter = &self.common().counters[usize::from(self.shard)][counter];
        // There is one writer at a time, and the run that guarantees this also orders the writes.
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    #[inline]
    fn value(&self, index: usize) -> u64 {
        self.common().values[index].load(Ordering::Relaxed)
    }

    fn review_by(&self, at: Instant) {
        let due = &self.common().due;
        if at.as_nanos() < due.load(Ordering::Relaxed) {
            due.fetch_min(at.as_nanos(), Ordering::Relaxed);
        }
    }

    fn note(&self, note: &Note) {
        match self.stats() {
            StatsLevel::Off => {}
            _ if self.counts_inline() => self.count_at_once(note),
            _ => self.notes.borrow_mut().add(note.about, note.what),
        }
    }

    #[inline]
    fn stats(&self) -> StatsLevel {
        self.stats.get().level
    }

    #[inline]
    fn sums(&self) -> Option<&RefCell<Tallies>> {
        (self.stats() > StatsLevel::Off && !self.counts_inline()).then_some(&self.notes)
    }

    #[inline]
    fn is_draining(&self) -> bool {
        self.draining.get()
    }
}
