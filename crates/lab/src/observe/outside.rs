//! The outside of a watched policy: passes everything on, and remembers what the policy has heard from there.
//!
//! Only what can make it decide otherwise: whether it got a token, and values and levels that are others than before.

use blkmq_core::Instant;
use blkmq_sched::{Note, Outside, StatsLevel};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// What a policy has heard from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heard {
    /// It wanted a token.
    Token {
        /// Of this pool.
        pool: u32,
        /// It got one.
        there: bool,
    },
    /// A value was another one than when it last looked; the first time, another one than 0.
    Value {
        /// Which.
        index: u32,
        /// What it is.
        value: u64,
    },
    /// How much is counted about groups was another level than before; off at first.
    Level(StatsLevel),
    /// The queue was frozen, or was not any more, when it last looked; not frozen at first.
    Draining(bool),
}

/// What a policy knows of its outside, and has heard since somebody asked.
#[derive(Default)]
pub(crate) struct Memory {
    values: RefCell<BTreeMap<usize, u64>>,
    level: Cell<StatsLevel>,
    draining: Cell<bool>,
    heard: RefCell<Vec<Heard>>,
}

impl Memory {
    /// What it has heard since the last time.
    pub(crate) fn take(&self) -> Vec<Heard> {
        self.heard.take()
    }
}

/// An outside, with somebody who remembers.
pub(crate) struct Spied<'a> {
    pub(crate) outside: &'a dyn Outside,
    pub(crate) memory: &'a Memory,
}

impl Outside for Spied<'_> {
    fn take(&self, pool: usize) -> bool {
        let there = self.outside.take(pool);
        self.memory.heard.borrow_mut().push(Heard::Token { pool: pool as u32, there });
        there
    }

    fn count(&self, counter: usize) {
        self.outside.count(counter);
    }

    fn value(&self, index: usize) -> u64 {
        let value = self.outside.value(index);
        let known = self.memory.values.borrow_mut().insert(index, value).unwrap_or(0);
        if known != value {
            self.memory.heard.borrow_mut().push(Heard::Value { index: index as u32, value });
        }
        value
    }

    fn review_by(&self, at: Instant) {
        self.outside.review_by(at);
    }

    fn note(&self, note: &Note) {
        self.outside.note(note);
    }

    fn stats(&self) -> StatsLevel {
        let level = self.outside.stats();
        if self.memory.level.replace(level) != level {
            self.memory.heard.borrow_mut().push(Heard::Level(level));
        }
        level
    }

    fn is_draining(&self) -> bool {
        let draining = self.outside.is_draining();
        if self.memory.draining.replace(draining) != draining {
            self.memory.heard.borrow_mut().push(Heard::Draining(draining));
        }
        draining
    }
}
