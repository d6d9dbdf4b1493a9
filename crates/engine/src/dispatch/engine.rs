//! The engine of a queue: its elevators and pumps, each behind a gate, and the words that its threads share.
//!
//! The code that enters gates is in `drive` and, for changes and ends of queues, in `reconfiguration`. Elevators and
//! pumps are given the words only, so nothing behind a gate can enter another one.

use super::gate::Gate;
use super::pump::Pump;
use super::pump_mode::PumpMode;
use crate::elevator::goals::Board;
use crate::elevator::runner::Runner;
use crate::shared::hub::Hub;
use crate::shared::shard::Shard;
use crate::shared::stats::QueueStats;
use blkmq_core::{HwQueue, Instant};

/// The current state of a queue, replaced when the queue is changed.
pub(crate) struct Engine<P> {
    /// By number of the shard.
    pub(crate) elevators: Box<[Gate<Runner>]>,
    /// By number of the hardware queue.
    pub(crate) pumps: Box<[Gate<Pump<P>>]>,
    /// Dropped last: tokens in the fields above name cells of its table, which looks for them at its end.
    pub(crate) hub: Hub<P>,
}

impl<P> Engine<P> {
    /// The way into the elevator of `shard`.
    #[inline]
    pub(crate) fn gate(&self, shard: &Shard) -> &Gate<Runner> {
        &self.elevators[usize::from(shard.index)]
    }

    /// The way into the pump of `hw`.
    #[inline]
    pub(crate) fn pump_gate(&self, hw: HwQueue) -> &Gate<Pump<P>> {
        &self.pumps[usize::from(hw.0)]
    }

    /// When a submitter of `shard`, which pumps `home` first, has to look again if no thread wakes it.
    pub(crate) fn deadline(&self, shard: &Shard, home: HwQueue) -> Option<Instant> {
        let pumps = self.lanes_of(shard, home).flat_map(|hw| self.pump_deadlines(hw));
        pumps.flatten().chain(self.pass_deadlines(shard).into_iter().flatten()).min()
    }

    /// The lanes that a submitter of `shard` looks after as long as it waits: its own one, or all; none where there are
    /// pump threads.
    #[inline]
    pub(crate) fn lanes_of(
        &self,
        shard: &Shard,
        home: HwQueue,
    ) -> impl Iterator<Item = HwQueue> + use<P> {
        let lanes = match self.hub.lasting.pump_mode {
            PumpMode::Inline => shard.hws(),
            PumpMode::Owner => home.0..home.0 + 1,
            PumpMode::Thread => 0..0,
        };
        lanes.map(HwQueue)
    }

    /// When a pass over the elevator of `shard` has to be made: for a kick or a timer, and for a look of the controller of
    /// latency goals.
    pub(crate) fn pass_deadlines(&self, shard: &Shard) -> [Option<Instant>; 2] {
        [self.gate(shard).deadline(), self.next_look(shard)]
    }

    /// When the controller of latency goals has to look. Not while there is a runner, which looks by itself: others would be
    /// told a time in the past for as long as it takes, and would not sleep.
    fn next_look(&self, shard: &Shard) -> Option<Instant> {
        let at = self.hub.board.as_ref().and_then(Board::next_look)?;
        (!self.gate(shard).is_running()).then_some(at)
    }

    /// Is such a look due by now?
    pub(crate) fn is_look_due(&self, shard: &Shard, now: Instant) -> bool {
        self.next_look(shard).is_some_and(|at| at <= now)
    }

    /// When the pump of `hw` has to run: for a kick or a timer, and for the device.
    pub(crate) fn pump_deadlines(&self, hw: HwQueue) -> [Option<Instant>; 2] {
        [self.pump_gate(hw).deadline(), self.hub.hctx(hw).next_event()]
    }

    /// Adds the counts of elevators and pumps.
    pub(crate) fn count_into(&self, stats: &mut QueueStats) {
        self.hub.shards.iter().for_each(|shard| stats.add_elevator(&shard.counters));
        self.hub.hctxs.iter().for_each(|hctx| stats.add_pump(&hctx.counters));
    }
}
