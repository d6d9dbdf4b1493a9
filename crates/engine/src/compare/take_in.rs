//! The part of a runner in the locked modes: it takes over parked requests, and publishes what threads look at before
//! they take the lock.

use super::parking::Parked;
use crate::dispatch::ready::Ready;
use crate::elevator::runner::Runner;
use crate::planted::{self, Planted};
use crate::shared::hub::Hub;
use crate::shared::shard::Shard;
use crate::submission::staging::Own;
use crate::sync::Ordering;
use blkmq_core::HwQueue;

impl Runner {
    /// Takes over parked requests. Each is inserted if it has a slot, or merged with a held request.
    pub(crate) fn take_over<P>(&mut self, hub: &Hub<P>, shard: &Shard) {
        let Some(parking) = &shard.modes.parking else { return };
        if parking.lists.any() && !planted::is(Planted::ForgetsParkedRequests) {
            let Parked { line, lanes } = &mut self.parked;
            parking.lists.take(|proto| {
                let lane = &mut lanes[usize::from(proto.meta.hw.0 - shard.first_hw)];
                lane.promised = lane.promised.wrapping_sub(1);
                line.push_back(proto);
            });
        }
        self.let_line_in(hub, shard);
    }

    /// Admits requests from the line, as far as there are slots.
    fn let_line_in<P>(&mut self, hub: &Hub<P>, shard: &Shard) {
        let before = self.parked.line.len();
        while let Some(first) = self.parked.line.front() {
            let Some(place) = self.elevator.place(&first.meta) else {
                self.wait_for_slot(hub, shard);
                break;
            };
            let proto = self.parked.line.pop_front().expect("it was seen just now");
            self.elevator.admit(&hub.lasting.table, place, proto);
        }
        if self.parked.line.len() < before {
            self.begin_flushes();
        }
    }

    /// Takes in all that a holder of the lock must take in: finished requests, parked ones, then staged I/Os and the
    /// caller's own plug.
    pub(crate) fn take_in<P>(
        &mut self,
        hub: &Hub<P>,
        shard: &Shard,
        freed: bool,
        own: Option<Own<'_>>,
    ) {
        let mut freed = freed | self.take_returns(hub, shard);
        self.take_over(hub, shard);
        if self.answer_asks(hub, shard) {
            // The slot of a cancelled I/O may be the one for which the line waits. No completion follows it.
            self.let_line_in(hub, shard);
            freed = true;
        }
        // Under a lock no request passes the policy by.
        self.admit_all(hub, shard, (freed, own), &mut Ready::default());
    }

    /// Publishes the hints that are read without the lock: the number of held requests, and the slots that may be
    /// promised.
    pub(crate) fn publish(&mut self, shard: &Shard) {
        shard.modes.held.store(self.elevator.held(), Ordering::Release);
        let Some(parking) = &shard.modes.parking else { return };
        let Parked { line, lanes } = &mut self.parked;
        for ((lane, promises), hw) in lanes.iter_mut().zip(&parking.promises).zip(shard.hws()) {
            let free = self.elevator.free_slots(HwQueue(hw)).saturating_sub(line.len() as u32);
            promises.renew(free, lane);
        }
    }
}
