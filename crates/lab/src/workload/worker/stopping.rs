//! The end of a worker before its time, by a signal for example.

use super::{Buffers, Worker};
use blkmq_core::Instant;

impl<P, B: Buffers<P>> Worker<'_, P, B> {
    /// From `now` on, issues no more I/Os and checks no more contents. I/Os in flight are waited for as at the end of a
    /// runtime.
    pub fn stop(&mut self, now: Instant) {
        self.window.end = self.window.end.min(now);
        self.stopped = true;
    }

    /// Does it count its I/Os? Not before its start, nor during a ramp.
    #[must_use]
    pub fn is_measuring(&self) -> bool {
        self.measuring
    }
}
