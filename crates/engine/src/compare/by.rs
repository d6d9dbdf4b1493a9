//! [`By`]: the caller of the locked path.

use crate::dispatch::drive::Caller;
use blkmq_core::Instant;

/// The caller of the locked path, and the time.
#[derive(Clone, Copy)]
pub(crate) struct By {
    /// The number with which the caller takes locks.
    pub(crate) who: usize,
    pub(crate) now: Instant,
}

impl Caller<'_> {
    /// This submitter as a caller of the locked path.
    pub(crate) fn locker(&self) -> By {
        let id = self.id.expect("a submitter calls");
        By { who: id.0.into(), now: self.now }
    }
}
