//! The straight way of an I/O that comes alone: after a pass that had nothing else to do, and nothing left over, comes
//! one turn of one pump, without the loops that are made for batches. Whatever else turns out to be owed goes the way of
//! all other work.

use super::{Caller, Engine};
use crate::dispatch::pump_mode::PumpMode;
use crate::elevator::runner::{Runner, Sent};
use crate::planted::{self, Stop};
use crate::shared::shard::Shard;
use crate::sync::RunGuard;

impl<P: Send> Engine<P> {
    /// Ends a run that consists of a straight pass, and pumps the request that it sent.
    #[inline]
    pub(super) fn drive_straight(
        &self,
        shard: &Shard,
        mut guard: RunGuard<'_, Runner>,
        by: Caller<'_>,
        sent: Sent,
    ) {
        if let Some(id) = by.id {
            shard.lead().note_pass(id);
        }
        guard.elevator.counters.longest_run.raise(1);
        if guard.duties.any() || guard.elevator.env.has_notes() {
            self.end_pass(shard, guard, by, sent);
            return;
        }
        if let Some(owed) = guard.finish() {
            self.go_on(shard, owed, by, sent);
            return;
        }
        planted::stop(Stop::BeforePump);
        let restart = match sent {
            Sent::By(hw) if self.hub.lasting.pump_mode == PumpMode::Inline => {
                self.pump(hw, by.now, by.tally)
            }
            Sent::By(hw) => self.pump_or_call(hw, by),
            Sent::Nothing => false,
        };
        // A pump may also have kicked this very elevator, over a budget that came back.
        if restart || self.gate(shard).due(by.now) {
            self.run_again(shard, by);
        }
    }

    /// Carries out what a straight pass left, before the run ends.
    #[inline(never)]
    fn end_pass(&self, shard: &Shard, mut guard: RunGuard<'_, Runner>, by: Caller<'_>, sent: Sent) {
        let mut wakes = Vec::new();
        self.carry_out(self.gate(shard), &mut guard.duties, &mut wakes);
        let book = guard.elevator.env.take_notes(&self.hub.lasting.ledger, None);
        let owed = guard.finish();
        self.wake(&wakes);
        let Some(owed) = owed else {
            if let Some(mut book) = book {
                book.count();
            }
            self.drive(shard, sent.ready(), by);
            return;
        };
        // The notes of the next pass go into the same book.
        drop(book);
        self.go_on(shard, owed, by, sent);
    }

    /// Makes the passes that are owed behind a straight one.
    #[inline(never)]
    fn go_on(&self, shard: &Shard, owed: RunGuard<'_, Runner>, by: Caller<'_>, sent: Sent) {
        let mut ready = sent.ready();
        ready.merge(self.run(shard, owed, by, None));
        self.drive(shard, ready, by);
    }

    #[inline(never)]
    fn run_again(&self, shard: &Shard, by: Caller<'_>) {
        if let Some(guard) = self.gate(shard).run_or_owe() {
            let ready = self.run(shard, guard, by, None);
            self.drive(shard, ready, by);
        }
    }
}
