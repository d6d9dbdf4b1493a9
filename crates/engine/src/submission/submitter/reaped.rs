//! [`Reaped`]: the count of bios that a call of `reap` takes.

use crate::shared::stats::SubmitterCounters;

/// Bios being reaped. They are counted when the call ends, also if the closure that takes them panics.
pub(super) struct Reaped<'a> {
    pub(super) bios: u64,
    pub(super) tally: &'a SubmitterCounters,
}

impl Drop for Reaped<'_> {
    #[inline]
    fn drop(&mut self) {
        self.tally.completed.add(self.bios);
    }
}
