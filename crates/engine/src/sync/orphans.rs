//! Indices of tokens that were dropped instead of being consumed, by the table to which they belong.
//!
//! Not on the path of an I/O: a stack that unwinds leaves tokens here, and so does a device that drops one. A queue
//! takes its own when it has failed, and when it ends. Entries of dropped tables remain, a few bytes each.

use std::num::NonZeroU32;
// `std` types under the model checkers too: their mutexes cannot be in a static, and this one orders only the list.
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Pairs of a table's number and an index.
pub(crate) struct Orphans(Mutex<Vec<(NonZeroU32, u32)>>);

impl Orphans {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    fn list(&self) -> MutexGuard<'_, Vec<(NonZeroU32, u32)>> {
        // A push or a removal cannot panic: running out of memory ends the process.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn leave(&self, table: NonZeroU32, index: u32) {
        self.list().push((table, index));
    }

    /// Takes out all indices of `table`.
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
