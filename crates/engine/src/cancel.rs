//! Giving up I/Os that still wait: what becomes of [`Submitter::cancel`](crate::Submitter::cancel) beyond the plug.
//!
//! The submitter leaves an [`Ask`] in a ring of its own, puts itself into its shard's set of those who asked,
//! and kicks: the way by which it stages I/Os, with the same guarantees. Whoever runs the elevator looks at the
//! set once a pass and answers before anything else is admitted.
//!
//! | where the I/O is | what comes of an ask |
//! |---|---|
//! | staged | it is taken out of the ring, from between others if need be, frozen queue or not |
//! | waiting for a slot by group | it is taken out of its line |
//! | held by the policy | it is withdrawn and its slot is free |
//! | in a request with others | nothing: it goes on |
//! | in parts, divided | nothing, wherever they are: they bear its cookie, but are not it |
//! | in a flush sequence, which begins with its slot | nothing |
//! | issued, or on its way back | nothing |
//!
//! What is given up ends with [`IoError::CANCELLED`] and is counted where it was. No ask is kept for later, so
//! none can be lost when a queue is rebuilt: what has not been answered goes over with the staging.
//!
//! *Invariant: an ask is for what was pushed before it.* A cookie may be used again as soon as it has come back, and
//! then the ask may still be on its way. It carries the place in the staging ring that it was made at; if
//! anything behind that place has been admitted, the two could not be told apart any more, and the ask is too
//! late. What does not come through that ring is its submitter's own plug, and that is staged as long as
//! one of its asks is to be answered.

use crate::elevator::Proto;
use crate::planted::{self, Planted};
use crate::runner::{Runner, Staging};
use crate::shared::{Shard, Shared};
use crate::sync::Mark;
use blkmq_core::{IoError, SubmitterId};

/// Asks of one submitter that a pass answers; each is a look at everything that waits (D8).
const PASS_ASKS: u32 = if cfg!(shuttle) { 2 } else { 32 };

/// "Give up my I/O with this cookie."
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) cookie: u64,
    /// It is ahead of this place in its submitter's staging ring, or has been there.
    pub(crate) before: Mark,
}

impl Runner {
    /// Answers those who asked for something to be given up. True if anything was, so that others may have
    /// its place.
    #[cold]
    pub(crate) fn answer_all<P>(&mut self, q: &Shared<P>, shard: &Shard) -> bool {
        let mut any = false;
        shard.asked.take(|id| any |= self.answer(q, shard, SubmitterId(id)));
        self.completions.flush(q);
        if planted::is(Planted::CancelsInSilence) {
            self.completions.wake.clear();
        }
        self.wakes.append(&mut self.completions.wake);
        any
    }

    /// Answers some of what `id` asked for.
    fn answer<P>(&mut self, q: &Shared<P>, shard: &Shard, id: SubmitterId) -> bool {
        let Self { elevator, staging, completions, parked, .. } = self;
        // A later queue has taken over, and answers there.
        let Some(Staging { protos, asks }) = &mut staging[usize::from(id.0)] else { return false };
        let mut any = false;
        for _ in 0..PASS_ASKS {
            let Some(Ask { cookie, before }) = asks.pop() else { return any };
            if protos.has_passed(before) && !planted::is(Planted::ForgetsMarks) {
                continue;
            }
            // What is held was pushed before what is staged.
            let table = &q.lasting.table;
            let bio = elevator.give_up(table, id, cookie).or_else(|| {
                let is = |proto: &Proto| proto.bios == 1 && table.is_io(&proto.bio, cookie);
                let mine = |proto: &Proto| is(proto) && table.submitter(&proto.bio) == id;
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
            // To the runner itself, which owes another pass by that; in the locked modes, to whoever polls next.
            shard.asked.set(id.0);
            let _ = shard.gate.kick();
        }
        any
    }
}
