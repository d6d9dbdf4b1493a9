//! The outside of a policy that is replayed: gives the answers that it gave when the log was recorded.

use super::Heard;
use blkmq_core::Instant;
use blkmq_sched::{Note, PolicyEnv, StatsLevel};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};

/// The recorded answers for the coming call, and a question of the policy that has no recorded answer.
#[derive(Default)]
pub(super) struct Recorded {
    /// The pools from which the policy wants tokens in the coming call, and whether there was one.
    tokens: RefCell<VecDeque<(u32, bool)>>,
    values: RefCell<BTreeMap<u32, u64>>,
    level: Cell<StatsLevel>,
    draining: Cell<bool>,
    /// The pool of a token that the policy wants now and did not want in the recording.
    surprise: Cell<Option<usize>>,
}

impl Recorded {
    /// Adds an answer that the policy gets in the next call.
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

    /// After a call: the difference between the policy's questions and the recorded ones.
    pub(super) fn left_over(&self) -> Option<String> {
        if let Some(pool) = self.surprise.take() {
            return Some(format!("wants a token of pool {pool}, which it did not"));
        }
        let unused = self.tokens.take();
        let (pool, _) = unused.front()?;
        Some(format!("wants no token of pool {pool}, which it did"))
    }
}

impl PolicyEnv for Recorded {
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
