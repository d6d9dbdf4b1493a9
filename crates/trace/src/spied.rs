//! An environment for a watched policy: it forwards every call, and records the answers that the policy got.
//!
//! Only answers that can change the decisions of the policy are recorded: whether it got a token, and values and levels
//! that differ from the previous ones.

use blkmq_core::Instant;
use blkmq_sched::{Note, PolicyEnv, StatsLevel};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// An answer that a policy got from its environment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heard {
    /// The policy asked for a token.
    Token {
        /// The pool of tokens.
        pool: u32,
        /// Whether the policy got a token.
        there: bool,
    },
    /// A value differs from the one that the policy last read; at the first read, from 0.
    Value {
        /// The index of the value.
        index: u32,
        /// The value.
        value: u64,
    },
    /// The level of statistics about groups differs from the previous one; off at first.
    Level(StatsLevel),
    /// Whether the queue is frozen has changed since the policy last asked; not frozen at first.
    Draining(bool),
}

/// The last answers that a policy got from its environment, and the new ones since the last
/// [`take_all`](Self::take_all).
#[derive(Default)]
pub(crate) struct Memory {
    values: RefCell<BTreeMap<usize, u64>>,
    level: Cell<StatsLevel>,
    draining: Cell<bool>,
    heard: RefCell<Vec<Heard>>,
}

impl Memory {
    /// Passes the answers since the last call to `look`.
    pub(crate) fn take_all(&self, look: impl FnMut(Heard)) {
        self.heard.borrow_mut().drain(..).for_each(look);
    }
}

/// An environment that records its answers in a [`Memory`].
pub(crate) struct Spied<'a> {
    pub(crate) env: &'a dyn PolicyEnv,
    pub(crate) memory: &'a Memory,
}

impl PolicyEnv for Spied<'_> {
    fn take(&self, pool: usize) -> bool {
        let there = self.env.take(pool);
        self.memory.heard.borrow_mut().push(Heard::Token { pool: pool as u32, there });
        there
    }

    fn take_all(&self, pool: usize, n: u32) -> bool {
        let there = self.env.take_all(pool, n);
        if there {
            let one = Heard::Token { pool: pool as u32, there };
            self.memory.heard.borrow_mut().extend((0..n).map(|_| one));
        }
        there
    }

    fn count(&self, counter: usize) {
        self.env.count(counter);
    }

    fn value(&self, index: usize) -> u64 {
        let value = self.env.value(index);
        let known = self.memory.values.borrow_mut().insert(index, value).unwrap_or(0);
        if known != value {
            self.memory.heard.borrow_mut().push(Heard::Value { index: index as u32, value });
        }
        value
    }

    fn review_by(&self, at: Instant) {
        self.env.review_by(at);
    }

    fn note(&self, note: &Note) {
        self.env.note(note);
    }

    fn stats(&self) -> StatsLevel {
        let level = self.env.stats();
        if self.memory.level.replace(level) != level {
            self.memory.heard.borrow_mut().push(Heard::Level(level));
        }
        level
    }

    fn is_draining(&self) -> bool {
        let draining = self.env.is_draining();
        if self.memory.draining.replace(draining) != draining {
            self.memory.heard.borrow_mut().push(Heard::Draining(draining));
        }
        draining
    }
}
