//! The end of a worker before its time: by a signal, or because the queue refuses an I/O.

use super::flight::Cookie;
use super::{Buffers, Worker};
use blkmq_core::{Instant, IoError};
use blkmq_engine::{Io, Refused};

impl<P, B: Buffers<P>> Worker<'_, P, B> {
    /// The queue has refused an I/O, which ends the thread.
    #[cold]
    pub(super) fn refused(&mut self, refused: Refused<P>, slot: u32) {
        let error = IoError::from(refused.why);
        let Io { cookie, sector, mut payload, .. } = refused.into_io();
        if let Some(verify) = self.verifying() {
            verify.end(slot, Err(error), B::bytes(&mut payload));
        }
        self.buffers.give(payload);
        self.tally.error = error.0;
        let failed = Cookie(cookie).failed(Some(sector), error);
        self.tally.failures.note(failed);
        self.stopped = true;
        if let Some(stamps) = &mut self.stamps {
            stamps.free.push(slot);
        }
    }

    /// From `now` on, issues no more I/Os and checks no more contents. I/Os in flight are waited for as at the end of a
    /// runtime.
    pub fn stop(&mut self, now: Instant) {
        self.window.end = self.window.end.min(now);
        self.stopped = true;
    }

    /// Returns whether the worker counts its I/Os. False before its start, and during a ramp.
    #[must_use]
    pub fn is_measuring(&self) -> bool {
        self.measuring
    }
}
