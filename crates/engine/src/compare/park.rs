//! Parking: a thread that finds the lock taken leaves its requests in a list.

use crate::dispatch::engine::Engine;
use crate::shared::shard::Shard;
use crate::submission::plugged::PluggedRequest;
use crate::submission::staging::{Own, stage};
use blkmq_core::HwQueue;

impl Shard {
    /// Is a request parked?
    pub(crate) fn has_parked(&self) -> bool {
        self.modes.parking.as_ref().is_some_and(|parking| !parking.lists.is_empty())
    }

    /// Leaves the bios of parked requests with the orphans.
    pub(crate) fn orphan_parked(&self) {
        if let Some(parking) = &self.modes.parking {
            parking.lists.take(|proto| proto.bio.orphan());
        }
    }
}

impl<P: Send> Engine<P> {
    /// Parks as much of the caller's plug as there are slots for; the rest waits for slots in staging.
    pub(super) fn park(&self, shard: &Shard, home: HwQueue, own: Own<'_>) {
        let parking = shard.modes.parking.as_ref().expect("this way of inserting has lists");
        // The plug must not pass I/Os that wait in staging, nor an unanswered ask to cancel, which could be taken to
        // mean one of its I/Os.
        let may_pass = own.staging.len() == 0 && !shard.asked.has(own.id.0);
        let wanted = if may_pass { own.plug.len() } else { 0 };
        let lane = usize::from(home.0 - shard.first_hw);
        let slots = parking.promises[lane].promise(wanted as u32);
        if slots > 0 {
            let who = usize::from(own.id.0);
            let is_open = || self.hub.lasting.control.is_open(self.hub.version);
            let fill =
                |list: &mut Vec<PluggedRequest>| list.extend(own.plug.drain_first(slots as usize));
            if parking.lists.park(who, is_open, fill) {
                self.tally(who).parked.add(slots.into());
            } else {
                parking.promises[lane].give_back(slots);
            }
        }
        if !own.plug.is_empty() {
            stage(shard, own);
            // No other thread need come by: this one takes the staged I/Os in when it has the lock.
            let _ = self.gate(shard).kick();
        }
    }
}
