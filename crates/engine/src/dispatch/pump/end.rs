//! The pump of a queue that ends, has failed, or is replaced by another one.

use super::{Installed, Pump, Vacant};
use crate::Inflight;
use crate::shared::hctx::Hctx;
use crate::shared::hub::Hub;
use crate::shared::lasting::Lasting;
use crate::shared::slots::Bio;
use blkmq_core::IoResult;
use std::panic::{AssertUnwindSafe, catch_unwind};

impl<P: Send> Pump<P> {
    /// Ends the requests that wait to be offered to the device, in a queue that has failed, and sends their
    /// completions.
    pub(crate) fn end_waiting(&mut self, hub: &Hub<P>, hctx: &Hctx, result: IoResult) {
        while let Some(rq) = self.take_waiting() {
            self.give_back(hub, &rq);
            self.completions.push_chain(&hub.lasting, rq.into_head(), result);
        }
        for rest in self.apart.drain() {
            self.completions.push_chain(&hub.lasting, rest, result);
        }
        self.ends.handbacks.publish();
        self.free_tags(hub, hctx);
        self.completions.flush(&hub.lasting);
        self.duties.wake(&mut self.completions.wake);
    }

    /// Makes every error final from now on.
    pub(crate) fn stop_retrying(&mut self) {
        self.retries = 0;
    }
}

impl<P> Pump<P> {
    /// True if no request is on its way to the device, at it, or on its way back.
    pub(crate) fn is_idle(&mut self) -> bool {
        self.at_device == 0
            && self.stuck.is_empty()
            && self.later.is_empty()
            && self.ends.outbox.is_empty()
    }

    /// Takes the device away, for a later queue.
    pub(crate) fn take_device(&mut self) -> Installed<P> {
        (std::mem::replace(&mut self.device, Box::new(Vacant)), self.now)
    }

    /// Takes a request that waits to be offered to the device.
    fn take_waiting(&mut self) -> Option<Inflight> {
        self.stuck
            .pop_front()
            .or_else(|| self.later.pop_front())
            .or_else(|| self.ends.outbox.pop())
            // Requests that were finished when the device panicked.
            .or_else(|| self.finished.pop().map(|finished| finished.rq))
    }

    /// Asks a device that panicked for the requests that it has, and drops the device. The requests that it gives
    /// back wait from then on; the others are lost.
    pub(crate) fn give_up_device(&mut self) {
        let (mut device, _) = self.take_device();
        self.at_device = 0;
        let mut held = Vec::new();
        let given_back = catch_unwind(AssertUnwindSafe(|| device.abandon(&mut held)));
        self.later.extend(held);
        if given_back.is_err() {
            // The device has panicked again: no more calls, not even its destructor.
            std::mem::forget(device);
        }
    }

    /// Takes every request that is still on its way into `held`, for the end of a queue.
    ///
    /// # Panics
    /// If the device does; `held` then has the requests that it gave back before, and all others.
    pub(crate) fn abandon(&mut self, held: &mut Vec<Inflight>) {
        held.extend(std::iter::from_fn(|| self.take_waiting()));
        // The tag of each goes back with the run that is under way.
        self.apart.drain().for_each(Bio::orphan);
        self.device.abandon(held);
    }

    /// Sends the completions that were not sent, at the end of a queue.
    pub(crate) fn send_rest(&mut self, lasting: &Lasting<P>) {
        self.completions.send_rest(lasting);
    }
}
