//! The outside of a policy that is replayed: says what it said when the log was recorded.

use crate::observe::outside::Heard;
use blkmq_core::Instant;
use blkmq_sched::{Note, Outside, StatsLevel};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};

/// What will be said, and what was asked for that nobody said.
#[derive(Default)]
pub(super) struct Recorded {
    /// Pools from which tokens were wanted in the coming call, and whether there was one.
    tokens: RefCell<VecDeque<(u32, bool)>>,
    values: RefCell<BTreeMap<u32, u64>>,
    level: Cell<StatsLevel>,
    draining: Cell<bool>,
    /// A token that was wanted now and not then.
    surprise: Cell<Option<usize>>,
}

impl Recorded {
    /// In the next call this was heard.
    pub(super) fn will_say(&self, heard: Heard) {
        match heard {
            Heard::Token { pool, there } => self.tokens.borrow_mut().push_back((pool, there)),
            Heard::Value { index, value } => {
                self.values.borrow_mut().insert(index, value);
            }
            Heard::Level(level) => self.level.set(level),
            Heard::Draining(draining) => self.draining.set(draining),
        }
    }

    /// After a call: what differs from what was asked for when it was recorded.
    pub(super) fn left_over(&self) -> Option<String> {
        if let Some(pool) = self.surprise.take() {
            return Some(format!("wants a token of pool {pool}, which it did not"));
        }
        let unused = self.tokens.take();
        let (pool, _) = unused.front()?;
        Some(format!("wants no token of pool {pool}, which it did"))
    }
}

impl Outside for Recorded {
    fn take(&self, pool: usize) -> bool {
        let next = self.tokens.borrow_mut().pop_front();
        match next.filter(|(wanted, _)| *wanted as usize == pool) {
            Some((_, there)) => there,
            None => {
                self.surprise.set(Some(pool));
                false
            }
        }
    }

    fn count(&self, _: usize) {}

    fn value(&self, index: usize) -> u64 {
        self.values.borrow().get(&(index as u32)).copied().unwrap_or(0)
    }

    fn review_by(&self, _: Instant) {}

    fn note(&self, _: &Note) {}

    fn stats(&self) -> StatsLevel {
        self.level.get()
    }

    fn is_draining(&self) -> bool {
        self.draining.get()
    }
}
