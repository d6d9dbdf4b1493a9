//! Kicks as the kernel has them: one for each completed request, and passes that are put off.

use super::modes::KickMode;
use crate::dispatch::engine::Engine;
use crate::dispatch::pump_mode::PumpMode;
use crate::submission::follow::Look;
use crate::sync::Kick;
use blkmq_core::{HwQueue, Instant};

impl<P: Send> Engine<P> {
    /// Called by the holder of the pump of `hw` after each turn, where kicks are the kernel's: while the elevator
    /// waits, each request that has completed since the last turn kicks every hardware queue of the elevator, as SCSI
    /// did when the flag was proposed.
    #[inline]
    pub(crate) fn kick_for_each(&self, hw: HwQueue, completed: u64, waits: bool) {
        if waits && self.hub.modes.kick != KickMode::Coalesced {
            self.kick_each(hw, completed);
        }
    }

    #[inline(never)]
    fn kick_each(&self, hw: HwQueue, completed: u64) {
        let counters = &self.hub.hctx(hw).counters;
        for _ in 0..completed {
            for hw in self.hub.shards[self.hub.shard_of(hw)].hws().map(HwQueue) {
                match self.pump_gate(hw).kick() {
                    Kick::Queued => {
                        counters.kicks_sent.add(1);
                        if self.hub.lasting.pump_mode == PumpMode::Thread {
                            self.hub.lasting.host.wake_pump(hw);
                        }
                    }
                    Kick::Coalesced => counters.kicks_coalesced.add(1),
                }
            }
        }
    }

    /// Is the pump thread of `hw` to issue requests? Where kicks are the kernel's, the pass for which the thread was
    /// called may have been put off since. The thread then only takes back what the device has finished, and issues
    /// if there was any.
    pub(crate) fn pump_may_run(&self, hw: HwQueue, now: Instant) -> bool {
        let gate = self.pump_gate(hw);
        if !gate.is_put_off(now) || self.pump_due(hw, now, Look::All) {
            return true;
        }
        let Some(mut pump) = gate.enter(self.hub.pump_thread(hw)) else { return true };
        let mut wakes = Vec::new();
        let came_back = pump.look(&self.hub, self.hub.hctx(hw), now);
        self.carry_out(gate, &mut pump.duties, &mut wakes);
        pump.finish();
        self.wake(&wakes);
        came_back
    }
}
