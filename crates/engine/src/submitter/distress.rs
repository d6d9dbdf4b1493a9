//! What a submitter does in a queue that has failed (`salvage.rs`): it ends what is in its own hands, and has the rest
//! ended.

use super::Submitter;
use blkmq_core::{Instant, IoError, IoResult};

const POISONED: IoResult = Err(IoError::POISONED);

/// What a submitter knows of its queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Health {
    Sound,
    /// A policy or a device has panicked. I/Os come back, as far as they can be reached.
    Poisoned,
    /// Likewise, and all that come back have done so, or are there to be reaped.
    Over,
}

impl<P> Submitter<P> {
    /// Has this submitter found the queue [poisoned](crate::Queue::is_poisoned)? Then it takes no I/Os any more, and
    /// those it had come back with [`IoError::POISONED`], or as the device ended them.
    #[inline]
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.health != Health::Sound
    }

    /// The queue has failed: from now on everything that is pushed takes the rare path, which refuses it.
    pub(super) fn notice_poison(&mut self) {
        if self.health == Health::Sound {
            self.health = Health::Poisoned;
        }
        self.plain = [0; 5];
    }
}

impl<P: Send> Submitter<P> {
    /// I/Os that do not come back any more, with their payloads: the device that panicked has not given them back, and
    /// may still write to them. Known when everything else has been reaped; `None` before that, and while the queue is
    /// sound.
    #[must_use]
    pub fn lost(&self) -> Option<u32> {
        let parts = self.parts.as_ref().expect("parts are there until the submitter is dropped");
        let all_reaped = self.health == Health::Over && !parts.receiver.reaches(1);
        all_reaped.then(|| self.outstanding())
    }

    /// Ends what is in the plug, what the limits of groups hold back, and what can be reached beyond.
    #[cold]
    pub(super) fn end_all(&mut self, now: Instant) {
        self.end_private(POISONED);
        // A pass over this submitter's plug that was cut short has staged some that runners do not see yet.
        self.parts().staging.publish();
        if self.health == Health::Poisoned && self.q.salvage(now) {
            self.health = Health::Over;
        }
    }
}
