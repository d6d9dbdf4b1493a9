//! Parking: an idle thread may sleep once it has announced that and looked for work again.
//!
//! The host decides how a thread sleeps and how it is woken; `dispatch/drive/wake.rs` decides which thread to wake.

use super::Submitter;
use crate::planted::{self, Planted};
use crate::sync::{Ordering, fence};
use blkmq_core::Instant;

/// A submitter's standing among its shard's sleepers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Rest {
    /// It is not among them.
    #[default]
    Awake,
    /// It is counted.
    Counted,
    /// It is counted, and has set an alarm.
    Until(Instant),
}

impl<P> Submitter<P> {
    /// Leaves the shard's sleepers, if it is among them.
    pub(super) fn rise(&mut self) {
        let alarm = match std::mem::take(&mut self.rest) {
            Rest::Awake => return,
            Rest::Counted => None,
            Rest::Until(at) => (!planted::is(Planted::KeepsAlarm)).then_some(at),
        };
        self.q.hub.shards[self.shard].sleepers.get_up(alarm);
    }
}

impl<P: Send> Submitter<P> {
    /// The thread waits for completions from now on, and [polls](Self::poll) until [`end_wait`](Self::end_wait), except
    /// while it parks. So other threads leave its lane to it, if it has one of its own.
    #[inline]
    pub fn begin_wait(&mut self) {
        self.q.hub.lasting.attendance[usize::from(self.id().0)].begin();
    }

    /// The thread turns to something else. Does the work that other threads have left to it.
    #[inline]
    pub fn end_wait(&mut self, now: Instant) {
        if self.q.hub.has_owners() {
            self.end_wait_of_owner(now);
        }
    }

    fn end_wait_of_owner(&mut self, now: Instant) {
        let id = self.id();
        self.q.hub.lasting.attendance[usize::from(id.0)].end();
        if self.q.has_been_left(self.lane(), now) {
            self.poll(now);
        }
    }

    /// May the thread park? If so it must, until [`Host::wake_submitter`](crate::Host::wake_submitter) names it or
    /// [`next_deadline`](Self::next_deadline) passes, and then call [`unpark`](Self::unpark). Not allowed while there
    /// is anything to reap, to do, or to flush.
    #[must_use]
    pub fn prepare_park(&mut self, now: Instant) -> bool {
        self.rise();
        self.catch_up();
        if self.is_poisoned() {
            return false;
        }
        let meters = &self.q.hub.lasting.meters;
        let to_do = !self.plug.is_empty() || self.throttle.is_due(now, meters);
        if to_do || self.parts().receiver.reaches(1) {
            return false;
        }
        self.shard().sleepers.lie_down();
        self.rest = Rest::Counted;
        let mut parks = self.parts().receiver.prepare_park();
        if parks {
            // Pairs with `find_parked`. This thread sets the marks and then looks for due work; the other thread does
            // it the other way round, so one of them sees the other. The same holds for a thread that rebuilds the
            // queue, or changes a limit.
            fence(Ordering::SeqCst);
            let lane = self.lane();
            self.q.delegate_expired(self.shard(), lane, now);
            parks = self.is_current()
                && !self.q.is_due(self.shard(), lane, now)
                && (planted::is(Planted::ForgetsLimits)
                    || !self.throttle.has_changed(&self.q.hub.lasting.meters));
        }
        if !parks {
            self.unpark();
        }
        parks
    }

    /// For a thread that [may park](Self::prepare_park): it will poll at `at` at the latest, even if nothing wakes it. So a
    /// thread that leaves work for a later time behind need not wake this one for it. Optional; O(1).
    ///
    /// To be called once at most between [`prepare_park`](Self::prepare_park), which has allowed it, and
    /// [`unpark`](Self::unpark).
    pub fn set_alarm(&mut self, at: Instant) {
        debug_assert_eq!(
            self.rest,
            Rest::Counted,
            "an alarm is set once, by a thread that may park"
        );
        if at < Instant::MAX {
            self.shard().sleepers.set_alarm(at);
            self.rest = Rest::Until(at);
        }
    }

    /// To be called after parking, however it ended.
    pub fn unpark(&mut self) {
        self.parts().receiver.cancel_park();
        self.rise();
    }

    /// The next time at which this submitter has work due without a wake-up, and should poll.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        [self.q.deadline(self.shard(), self.lane()), self.throttle.deadline()]
            .into_iter()
            .flatten()
            .min()
    }
}
