//! The second step of an I/O: the plug is sent, in the queue as it is now. And the work of a thread that waits.

use super::Submitter;
use super::push::plain_sizes;
use crate::dispatch::drive::Caller;
use crate::planted::{self, Planted};
use crate::submission::follow::Follow;
use crate::submission::staging::Own;
use blkmq_core::Instant;

/// Where a submitter's next completion comes from: [`Submitter::awaits`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Awaited {
    /// The device, by a lane that all submitters look after.
    Shared,
    /// The device, by the submitter's own lane ([`PumpMode::Owner`](crate::PumpMode)), which has a request.
    OwnLane,
    /// Other threads, which have its I/Os: its own lane has none at the device.
    Others,
}

impl<P: Send> Submitter<P> {
    /// Sends the plug: straight into the elevator if that is free, else into staging, where the runner finds it. Runs
    /// elevator and pumps inline as far as work is due.
    pub fn flush(&mut self, now: Instant) {
        if self.plug.is_empty() {
            return;
        }
        self.flush_plug(now);
    }

    fn flush_plug(&mut self, now: Instant) {
        self.catch_up();
        self.follow_length();
        if self.is_poisoned() {
            self.end_all(now);
            return;
        }
        let q = &*self.q;
        let shard = &q.hub.shards[self.shard];
        let parts = self.parts.as_mut().expect("parts are there until the submitter is dropped");
        let own = Own { id: parts.id, plug: &mut self.plug, staging: &mut parts.staging };
        let by = Caller { id: Some(own.id), now, home: parts.lane, tally: &self.tally };
        q.submit(shard, by, own, &mut self.follow);
        // After the staged bios, if any, were marked, which is a full fence (`sync/control.rs`).
        if !self.is_current() && !planted::is(Planted::ForgetsVersion) {
            self.show_staged(now);
        }
    }

    /// Does the work that is due by `now`: an owed pass over the elevator, turns of pumps that have requests to
    /// finish.
    pub fn poll(&mut self, now: Instant) {
        if self.throttle.is_due(now, &self.q.hub.lasting.meters) {
            self.let_go(now);
            self.flush(now);
        }
        self.catch_up();
        if self.is_poisoned() {
            self.end_all(now);
            return;
        }
        let (id, lane) = (self.id(), self.lane());
        let q = &*self.q;
        let shard = &q.hub.shards[self.shard];
        let by = Caller { id: Some(id), now, home: lane, tally: &self.tally };
        if q.poll(shard, by, &mut self.follow) && self.in_flight() == 0 {
            // As in `reap`: this thread may leave behind work that it ran for others.
            q.wake_successor(shard, lane);
        }
    }

    /// Looks after the lanes of all submitters of its elevator, if each has its own
    /// ([`PumpMode::Owner`](crate::PumpMode)): for one that waits for slots, tags or turns that others have, whose threads
    /// may be busy with anything else. O(submitters).
    pub fn look_at_all(&mut self, now: Instant) {
        if self.is_poisoned() || !self.q.hub.has_owners() {
            return;
        }
        let (id, lane) = (self.id(), self.lane());
        let by = Caller { id: Some(id), now, home: lane, tally: &self.tally };
        self.q.poll_all(self.shard(), by);
    }

    /// Where the completion comes from that this submitter waits for, as far as it can tell. O(1).
    #[must_use]
    pub fn awaits(&self) -> Awaited {
        if !self.q.hub.has_owners() {
            Awaited::Shared
        } else if self.q.hub.hctx(self.lane()).signals() {
            Awaited::OwnLane
        } else {
            Awaited::Others
        }
    }

    /// Has a thread that runs the elevator or a pump of this submitter got no further for so long that it has no CPU?
    /// Then the caller, which has just [polled](Self::poll) in vain, should sleep for a moment: that thread may be waiting
    /// for this very CPU. True once for each 50 us of a hold-up, and never with nothing in flight.
    #[must_use]
    pub fn is_held_up(&mut self, now: Instant) -> bool {
        if self.in_flight() == 0 {
            return false;
        }
        let progress = self.q.progress(self.shard(), self.lane());
        self.holdup.look(progress, now)
    }

    /// Is the queue that this submitter knows the current one?
    #[inline]
    pub(super) fn is_current(&self) -> bool {
        self.q.hub.version == self.q.hub.lasting.control.version()
    }

    /// Takes up the current queue.
    #[inline]
    pub(super) fn catch_up(&mut self) {
        if !self.is_current() {
            self.take_up();
        }
    }

    /// Follows the length to which the requests of some groups are shortened for latency goals.
    #[inline]
    fn follow_length(&mut self) {
        if let Some(board) = &self.q.hub.board {
            let longest = board.longest();
            if longest != self.longest {
                self.longest = longest;
                self.plain = plain_sizes(&self.q.hub.limits, longest);
            }
        } else if self.longest != u32::MAX {
            self.longest = u32::MAX;
            self.plain = plain_sizes(&self.q.hub.limits, u32::MAX);
        }
    }

    #[cold]
    fn take_up(&mut self) {
        self.q = self.root.current();
        self.shard = self.q.hub.shard_of(self.hw());
        self.follow = Follow::new(self.id(), self.q.hub.shards[self.shard].lead());
        self.plain = plain_sizes(&self.q.hub.limits, self.longest);
        if self.q.hub.lasting.control.is_poisoned() {
            self.notice_poison();
        }
    }

    /// The queue was rebuilt while this submitter used it: its staged bios and asks may not have been seen.
    #[cold]
    pub(super) fn show_staged(&mut self, now: Instant) {
        self.take_up();
        if self.is_poisoned() {
            self.end_all(now);
            return;
        }
        let id = self.id();
        let shard = self.shard();
        shard.pending.set(id.0);
        shard.asked.set(id.0);
        let _ = self.q.gate(shard).kick();
        self.poll(now);
    }
}
