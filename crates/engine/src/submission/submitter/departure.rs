//! The end of a submitter: the I/Os that it has not sent are cancelled, and its parts go back to the queue, where
//! they stay until the I/Os in flight are done (`seats.rs`).

use super::Submitter;
use blkmq_core::{IoError, IoResult};

impl<P> Submitter<P> {
    /// Ends the I/Os in the plug and those that the limits of groups hold back, with `result`. Their completions are
    /// this submitter's own, so no thread has to be woken. Returns how many requests they were.
    pub(super) fn end_private(&mut self, result: IoResult) -> u64 {
        let lasting = &self.q.hub.lasting;
        let Some(parts) = &self.parts else { return 0 };
        let mut requests = 0;
        let sender = &lasting.senders[usize::from(parts.id.0)];
        for proto in self.plug.drain().chain(self.throttle.drain()) {
            requests += 1;
            let mut rest = Some(proto.bio);
            while let Some(head) = rest {
                let (bio, behind) = lasting.table.split_first(head);
                let _ = sender.send_one(bio, result);
                rest = behind;
            }
        }
        requests
    }
}

impl<P> Drop for Submitter<P> {
    fn drop(&mut self) {
        let cancelled = self.end_private(Err(IoError::CANCELLED));
        let Some(mut parts) = self.parts.take() else { return };
        self.tally.cancelled.add(cancelled);
        self.tally.dropped.add((self.depth - parts.credit.left()).into());
        // A pass over its plug that was cut short has staged bios that runners do not see yet.
        parts.staging.publish();
        // A thread that unwinds may have been waiting, or about to sleep.
        self.q.hub.lasting.attendance[usize::from(parts.id.0)].end();
        parts.receiver.cancel_park();
        self.rise();
        let lasting = &self.q.hub.lasting;
        while let Some(payload) = parts.pop(&lasting.table) {
            drop(payload);
        }
        let (leaves_some, lane) = (!parts.is_whole(), parts.lane);
        lasting.seats.put(parts);
        if leaves_some {
            // A sleeping thread may count on this one.
            self.q.wake_successor(&self.q.hub.shards[self.shard], lane);
        }
    }
}
