//! The parts of submitters that are not registered: idle, or left behind with I/Os in flight.
//!
//! A submitter that is dropped with I/Os in flight leaves its parts here. Its completions still arrive in its ring;
//! the parts become idle when their credit is complete, at the latest when the next submitter is registered.

use crate::BioTable;
use crate::submission::parts::Parts;
use crate::sync::{Mutex, MutexGuard, PoisonError};

/// The parts of all submitters that are not registered.
pub(crate) struct Seats(Mutex<Lists>);

struct Lists {
    idle: Vec<Parts>,
    /// Parts with I/Os in flight that no submitter waits for.
    departed: Vec<Parts>,
}

impl Seats {
    /// The last of `idle` is used first.
    pub(crate) fn new(idle: Vec<Parts>) -> Self {
        Self(Mutex::new(Lists { idle, departed: Vec::new() }))
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        // Payloads are dropped elsewhere, so that no user code runs while the lock is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a submitter's parts back.
    pub(crate) fn put(&self, parts: Parts) {
        let mut lists = self.lists();
        let list = if parts.is_whole() { &mut lists.idle } else { &mut lists.departed };
        list.push(parts);
    }

    /// Parts for a new submitter: idle ones, or those of a dropped submitter after its I/Os are done. O(dropped
    /// submitters, and the completions they get back).
    pub(crate) fn take<P>(&self, table: &BioTable<P>) -> Option<Parts> {
        let mut payloads = Vec::new();
        let mut lists = self.lists();
        let parts = lists.idle.pop().or_else(|| {
            let whole = lists.departed.iter_mut().position(|parts| {
                payloads.extend(std::iter::from_fn(|| parts.pop(table)));
                parts.is_whole()
            });
            whole.map(|at| lists.departed.swap_remove(at))
        });
        drop(lists);
        drop(payloads);
        parts
    }

    /// Are there parts with I/Os in flight that no submitter waits for?
    pub(crate) fn has_departed(&self) -> bool {
        !self.lists().departed.is_empty()
    }

    /// All parts, when the queue ends.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Parts> {
        let Lists { idle, departed } = &mut *self.lists();
        std::mem::take(idle).into_iter().chain(std::mem::take(departed))
    }
}
