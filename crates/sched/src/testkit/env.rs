//! The surroundings of a policy under test: tokens, counters, values and notes in plain cells, and the simplest
//! device with a latency that depends on its load.

use crate::{Attribute, Common, Factory, Governor, Note, Options, PolicyEnv, Shape, StatsLevel};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use blkmq_core::{Instant, Nanos, RequestId};
use core::cell::{Cell, RefCell};

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
