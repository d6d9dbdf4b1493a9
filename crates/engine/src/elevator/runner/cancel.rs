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

use super::Runner;
use crate::planted::{self, Planted};
use crate::shared::hub::Hub;
use crate::shared::shard::Shard;
use crate::submission::plugged::PluggedRequest;
use crate::submission::staging::{Ask, Staging};
use blkmq_core::{IoError, SubmitterId};

/// The most asks of one submitter that a pass answers, since each is a look at everything that waits.
const PASS_ASKS: u32 = if cfg!(shuttle) { 2 } else { 32 };

impl Runner {
    /// Answers asks to cancel, before anything is admitted. True if an I/O was cancelled, so that others may have its
    /// slot.
    #[inline]
    pub(crate) fn answer_asks<P>(&mut self, hub: &Hub<P>, shard: &Shard) -> bool {
        shard.asked.any() && self.answer_all(hub, shard)
    }

    /// Answers the asks of all submitters in the set.
    #[cold]
    fn answer_all<P>(&mut self, hub: &Hub<P>, shard: &Shard) -> bool {
        let mut any = false;
        shard.asked.take(|id| any |= self.answer(hub, shard, SubmitterId(id)));
        self.completions.flush(&hub.lasting);
        if planted::is(Planted::CancelsInSilence) {
            self.completions.wake.clear();
        }
        self.duties.wake(&mut self.completions.wake);
        any
    }

    /// Answers some of the asks of `id`. True if an I/O was cancelled.
    fn answer<P>(&mut self, hub: &Hub<P>, shard: &Shard, id: SubmitterId) -> bool {
        let Self { elevator, staging, completions, duties, .. } = self;
        // A later queue has taken over the rings, and answers there.
        let Some(Staging { protos, asks }) = &mut staging[usize::from(id.0)] else { return false };
        let mut any = false;
        for _ in 0..PASS_ASKS {
            let Some(Ask { cookie, before }) = asks.pop() else { return any };
            if protos.has_passed(before) && !planted::is(Planted::ForgetsMarks) {
                continue;
            }
            // A held I/O was pushed before a staged one.
            let table = &hub.lasting.table;
            let bio = elevator.give_up(table, id, cookie).or_else(|| {
                let is =
                    |proto: &PluggedRequest| proto.bios == 1 && table.is_io(&proto.bio, cookie);
                #[cfg(feature = "compare")]
                let mine = |proto: &PluggedRequest| is(proto) && table.submitter(&proto.bio) == id;
                #[cfg(feature = "compare")]
                let parked = self.parked.remove(mine);
                #[cfg(not(feature = "compare"))]
                let parked = None;
                let proto = parked
                    .or_else(|| elevator.withdraw_waiting(id, is))
                    .or_else(|| protos.remove_before(before, is))?;
                elevator.counters.cancelled_staged.add(1);
                Some(proto.bio)
            });
            if let Some(bio) = bio {
                any = true;
                completions.push(&hub.lasting, bio, Err(IoError::CANCELLED));
            }
        }
        if !asks.is_empty() {
            // With combining, this runner then owes another pass; in the locked modes, the next thread that polls
            // makes it.
            shard.asked.set(id.0);
            duties.again();
        }
        any
    }
}
