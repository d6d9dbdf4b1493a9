//! Cancelling an I/O: in the plug at once, beyond it by an ask (`elevator/runner/cancel.rs`).

use super::Submitter;
use crate::dispatch::drive::Caller;
use crate::submission::staging::Ask;
use blkmq_core::{Instant, IoError};

impl<P: Send> Submitter<P> {
    /// Asks for the I/O with this cookie to be given up. If it still waits, in the plug, in staging or in an
    /// elevator, and is a request of its own, it ends with [`IoError::CANCELLED`] without reaching the device.
    /// Otherwise it continues and ends with its own result. That is the case when it has been merged with another
    /// I/O, when its flush sequence has begun, when it has been issued to a device, and always when it was divided:
    /// its parts are sent one by one, and some would be done. Either way it has one completion, which says how it
    /// ended. If no I/O in flight has the cookie, nothing happens.
    ///
    /// Cookies of I/Os that may be cancelled should differ. If several waiting I/Os have this cookie, the oldest in
    /// the plug is cancelled, and if there is none, the oldest beyond the plug, by the times that they were pushed
    /// with.
    ///
    /// O(everything that waits for the same elevator): not for every I/O. Runs elevator and pumps inline, as
    /// [`flush`](Self::flush) does, but leaves the plug alone.
    pub fn cancel(&mut self, now: Instant, cookie: u64) {
        let parts = self.parts.as_mut().expect("parts are there until the submitter is dropped");
        let (id, home) = (parts.id, parts.lane);
        let table = &self.q.hub.lasting.table;
        let meters = &self.q.hub.lasting.meters;
        let mut private = self.plug.remove(table, cookie);
        if private.is_none() && !self.throttle.is_empty() {
            private = self.throttle.remove(now, meters, table, cookie);
        }
        if let Some(bio) = private {
            self.tally.cancelled.add(1);
            if self.q.hub.lasting.senders[usize::from(id.0)].send_one(bio, Err(IoError::CANCELLED))
            {
                self.q.wake(&[id]);
            }
            return;
        }
        let ask = Ask { cookie, before: parts.staging.mark() };
        // The ring of asks is as large as the credit. If it is full, one of the asks is for this I/O, or the I/O
        // cannot be cancelled.
        if self.in_flight() == 0 || self.parts().asks.push(ask).is_err() {
            return;
        }
        self.catch_up();
        let q = &*self.q;
        let shard = &q.hub.shards[self.shard];
        shard.asked.set(id.0);
        q.ask(shard, Caller { id: Some(id), now, home, tally: &self.tally });
        // After the mark, which is a full fence (`sync/control.rs`).
        if !self.is_current() {
            self.show_staged(now);
        }
    }
}
