//! Cancelling I/Os that still wait: how [`Submitter::cancel`](crate::Submitter::cancel) works beyond the plug.
//!
//! The submitter leaves an [`Ask`] in a ring of its own, adds itself to its shard's set of submitters that asked, and
//! kicks: as it stages I/Os, with the same guarantees. The runner looks at the set once a pass and answers the asks
//! before it admits anything.
//!
//! | where the I/O is | effect of an ask |
//! |---|---|
//! | staged | it is taken out of the ring, from between others if need be, frozen queue or not |
//! | waiting for a slot by group | it is taken out of its line |
//! | held by the policy | it is withdrawn and its slot is free |
//! | in a request with others | none: it goes on |
//! | in parts, divided | none, wherever they are: the parts bear its cookie, but are not the I/O |
//! | in a flush sequence, which begins with its slot | none |
//! | issued, or on its way back | none |
//!
//! A cancelled I/O ends with [`IoError::CANCELLED`] and is counted where it was. No pass keeps an ask for later, so
//! none can be lost when a queue is rebuilt: unanswered asks go to the new queue with the staging.
//!
//! *Invariant: an ask is for an I/O that was pushed before it.* A cookie may be used again as soon as it has come
//! back, and the ask may still be on its way then. So the ask carries the place in the staging ring at which it was
//! made. If anything behind that place has been admitted, the old I/O and a new one with its cookie could not be told
//! apart any more, and the ask is too late. Only the submitter's own plug does not come through that ring, and the
//! plug is staged as long as one of the submitter's asks is unanswered.

use crate::elevator::PluggedRequest;
use crate::planted::{self, Planted};
use crate::runner::{Runner, Staging};
use crate::shared::{Shard, Shared};
use crate::sync::Mark;
use blkmq_core::{IoError, SubmitterId};

/// The most asks of one submitter that a pass answers, since each is a look at everything that waits.
const PASS_ASKS: u32 = if cfg!(shuttle) { 2 } else { 32 };

/// "Cancel my I/O with this cookie."
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) cookie: u64,
    /// The I/O is ahead of this place in its submitter's staging ring, or was there.
    pub(crate) before: Mark,
}

impl Runner {
    /// Answers asks to cancel, before anything is admitted. True if an I/O was cancelled, so that others may have its
    /// slot.
    #[inline]
    pub(crate) fn answer_asks<P>(&mut self, q: &Shared<P>, shard: &Shard) -> bool {
        shard.asked.any() && self.answer_all(q, shard)
    }

    /// Answers the asks of all submitters in the set.
    #[cold]
    fn answer_all<P>(&mut self, q: &Shared<P>, shard: &Shard) -> bool {
        let mut any = false;
        shard.asked.take(|id| any |= self.answer(q, shard, SubmitterId(id)));
        self.completions.flush(q);
        if planted::is(Planted::CancelsInSilence) {
            self.completions.wake.clear();
        }
        self.wakes.append(&mut self.completions.wake);
        any
    }

    /// Answers some of the asks of `id`. True if an I/O was cancelled.
    fn answer<P>(&mut self, q: &Shared<P>, shard: &Shard, id: SubmitterId) -> bool {
        let Self { elevator, staging, completions, parked, .. } = self;
        // A later queue has taken over the rings, and answers there.
        let Some(Staging { protos, asks }) = &mut staging[usize::from(id.0)] else { return false };
        let mut any = false;
        for _ in 0..PASS_ASKS {
            let Some(Ask { cookie, before }) = asks.pop() else { return any };
            if protos.has_passed(before) && !planted::is(Planted::ForgetsMarks) {
                continue;
            }
            // A held I/O was pushed before a staged one.
            let table = &q.lasting.table;
            let bio = elevator.give_up(table, id, cookie).or_else(|| {
                let is =
                    |proto: &PluggedRequest| proto.bios == 1 && table.is_io(&proto.bio, cookie);
                let mine = |proto: &PluggedRequest| is(proto) && table.submitter(&proto.bio) == id;
                let proto = parked
                    .remove(mine)
                    .or_else(|| elevator.withdraw_waiting(id, is))
                    .or_else(|| protos.remove_before(before, is))?;
                elevator.counters.cancelled_staged.add(1);
                Some(proto.bio)
            });
            if let Some(bio) = bio {
                any = true;
                completions.push(q, bio, Err(IoError::CANCELLED));
            }
        }
        if !asks.is_empty() {
            // With combining, the kick makes this runner owe another pass; in the locked modes, the next thread that
            // polls makes it.
            shard.asked.set(id.0);
            let _ = shard.gate.kick();
        }
        any
    }
}
