//! The last step of an I/O: its completion is handed to the program.

use super::Submitter;
use super::reaped::Reaped;
use crate::shared::slots::Popped;
use crate::submission::io::Completion;
use blkmq_core::Payload;

impl<P: Payload> Submitter<P> {
    /// Hands up to `most` completions to `take`, oldest first. Returns how many. A part of a divided I/O is not a
    /// completion, unless it is the last missing one: then the I/O completes, with the first error in ascending order
    /// of sectors if there was one.
    pub fn reap(&mut self, most: u32, mut take: impl FnMut(Completion<P>)) -> u32 {
        let q = &*self.q;
        let parts = self.parts.as_mut().expect("parts are there until the submitter is dropped");
        let mut reaped = 0;
        let mut counted = Reaped { bios: 0, tally: &self.tally };
        let mut finished = parts.receiver.finished(&q.hub.lasting.table, &mut parts.credit);
        while reaped < most
            && let Some(popped) = finished.next()
        {
            counted.bios += 1;
            let Popped { cookie, mut result, mut payload, cell, part } = popped;
            if part {
                match self.splits.part_done(q.hub.lasting.table.place(cell), result, payload) {
                    Some(whole) => (result, payload) = whole,
                    None => continue,
                }
            }
            take(Completion { cookie, result, payload });
            reaped += 1;
        }
        let bios = counted.bios;
        drop(counted);
        if bios > 0 && parts.credit.left() == self.depth {
            // With no I/O in flight this thread may never come back, and a parked submitter may count on it.
            self.catch_up();
            self.q.wake_successor(self.shard(), self.lane());
        }
        reaped
    }

    /// Are there probably `n` completions to reap? Looks at one entry of the ring only, so that a thread that spins
    /// on this does not take a line that is being filled. With `n` of 1 the answer is exact.
    ///
    /// Takes in finished parts of divided I/Os, if they are the oldest entries and do not complete their I/O.
    #[must_use]
    pub fn has_completions(&mut self, n: u32) -> bool {
        if self.splits.extra() > 0 {
            self.take_parts_in();
        }
        self.parts().receiver.reaches(n)
    }

    /// Takes in parts until the front of the ring is a completion, or the ring is empty.
    #[cold]
    fn take_parts_in(&mut self) {
        let q = &*self.q;
        let parts = self.parts.as_mut().expect("parts are there until the submitter is dropped");
        while let Some(place) = parts.receiver.peek_part(&q.hub.lasting.table)
            && !self.splits.completes(place)
        {
            let mut finished = parts.receiver.finished(&q.hub.lasting.table, &mut parts.credit);
            let part = finished.next().expect("it was seen just now");
            let whole = self.splits.part_done(place, part.result, part.payload);
            assert!(whole.is_none(), "others are missing");
            self.tally.completed.add(1);
        }
    }
}
