//! Numbers of tokens that were dropped instead of being used up, by the table that they name.
//!
//! Not on the way of an I/O: a stack that unwinds leaves tokens here, and so does a device that drops one. The queue
//! takes up its own when it has failed, and when it ends. What is left of tables that are gone is a few bytes each.

use std::num::NonZeroU32;
// Plain `std` under the model checkers too: their mutexes cannot be in a static, and nothing is ordered by this one
// but the list.
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Pairs of a table's number and an index.
pub(crate) struct Orphans(Mutex<Vec<(NonZeroU32, u32)>>);

impl Orphans {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    fn list(&self) -> MutexGuard<'_, Vec<(NonZeroU32, u32)>> {
        // A push or a removal that ran out of memory has ended the process.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn leave(&self, table: NonZeroU32, index: u32) {
        self.list().push((table, index));
    }

    /// Takes out everything of `table`.
    pub(crate) fn take(&self, table: NonZeroU32) -> Vec<u32> {
        let mut list = self.list();
        let mut taken = Vec::new();
        list.retain(|(of, index)| {
            let mine = *of == table;
            if mine {
                taken.push(*index);
            }
            !mine
        });
        taken
    }
}
