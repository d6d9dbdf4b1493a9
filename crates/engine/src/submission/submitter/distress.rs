//! The part of a submitter in a failed queue (`salvage.rs`): it ends its own unsent I/Os, and has the rest ended.

use super::Submitter;
use blkmq_core::{Instant, IoError, IoResult};

const POISONED: IoResult = Err(IoError::POISONED);

/// What a submitter knows about its queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Health {
    Sound,
    /// A policy or a device has panicked. The I/Os that can be reached come back.
    Poisoned,
    /// Likewise, and every I/O that comes back has done so, or is ready to be reaped.
    Over,
}

impl<P> Submitter<P> {
    /// Has this submitter found the queue [poisoned](crate::Queue::is_poisoned)? Then it takes no more I/Os, and its
    /// earlier ones come back with [`IoError::POISONED`], or with the device's result.
    #[inline]
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.health != Health::Sound
    }

    /// The queue has failed: from now on every push takes the rare path, which refuses it.
    pub(super) fn notice_poison(&mut self) {
        if self.health == Health::Sound {
            self.health = Health::Poisoned;
        }
        self.plain = [0; 5];
    }
}

impl<P: Send> Submitter<P> {
    /// The number of I/Os that will not come back, with their payloads: the device that panicked has not returned
    /// them, and may still write to them. Known when every other I/O of this submitter has been reaped; `None` before
    /// that, and until the submitter has found the queue [poisoned](Self::is_poisoned).
    #[must_use]
    pub fn lost(&self) -> Option<u32> {
        let parts = self.parts.as_ref().expect("parts are there until the submitter is dropped");
        let outstanding = self.outstanding();
        let all_reaped = match self.health {
            Health::Sound => false,
            // Requests of other submitters may still be on their way.
            Health::Poisoned => outstanding == 0,
            Health::Over => !parts.receiver.reaches(1),
        };
        all_reaped.then_some(outstanding)
    }

    /// Ends the I/Os in the plug, those that the limits of groups hold back, and every other I/O that can be reached.
    #[cold]
    pub(super) fn end_all(&mut self, now: Instant) {
        self.end_private(POISONED);
        // A pass over this submitter's plug that was cut short has staged bios that runners do not see yet.
        self.parts().staging.publish();
        if self.health == Health::Poisoned && self.q.salvage(now) {
            self.health = Health::Over;
        }
    }
}
