//! The end of a wait: completions are reaped, also from a queue that has failed, and an idle thread may sleep once it
//! has announced that and has checked for work again.
//!
//! The host decides how a thread sleeps and how it is woken; `dispatch/mod.rs` decides which thread to wake.

use super::Submitter;
use crate::planted;
use crate::planted::Planted;
use crate::shared::slots::Popped;
use crate::shared::stats::SubmitterCounters;
use crate::submission::io::Completion;
use crate::sync::{Ordering, fence};
use blkmq_core::{GroupId, Instant, IoError, IoResult, Op, Payload};

/// A submitter's state among its shard's sleepers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Rest {
    /// Not a sleeper.
    #[default]
    Awake,
    /// Counted as a sleeper.
    Counted,
    /// Counted as a sleeper, with an alarm at this time.
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
    /// Begins a wait for completions: the thread [polls](Self::poll) until [`end_wait`](Self::end_wait), except while
    /// it parks. So other threads leave its lane to it, if it has its own.
    #[inline]
    pub fn begin_wait(&mut self) {
        self.q.hub.lasting.attendance[usize::from(self.id().0)].begin();
    }

    /// Ends a wait, and does the work that other threads have left to this one.
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

    /// Returns the time until which the thread may park, or `None` while there is anything to reap, to do, or to flush.
    /// The thread parks until that time, [`Instant::MAX`] for no end, or until
    /// [`Host::wake_submitter`](crate::Host::wake_submitter) names this submitter, and then calls
    /// [`unpark`](Self::unpark).
    #[must_use]
    pub fn prepare_park(&mut self, now: Instant) -> Option<Instant> {
        self.rise();
        self.catch_up();
        if self.is_poisoned() {
            return None;
        }
        let meters = &self.q.hub.lasting.meters;
        let to_do = !self.plug.is_empty() || self.throttle.is_due(now, meters);
        if to_do || self.parts().receiver.reaches(1) {
            return None;
        }
        self.shard().sleepers.lie_down();
        self.rest = Rest::Counted;
        let mut until = None;
        if self.parts().receiver.prepare_park() {
            // Pairs with `find_parked`. This thread sets the marks and then checks for due work; the other thread does
            // the reverse, so one of them sees the other. The same holds for a thread that rebuilds the queue, or
            // changes a limit.
            fence(Ordering::SeqCst);
            let is_settled = self.is_current()
                && (planted::is(Planted::ForgetsLimits)
                    || !self.throttle.has_changed(&self.q.hub.lasting.meters));
            let due = self.q.rest_until(self.shard(), self.lane(), now);
            until = due.filter(|_| is_settled).map(|at| self.throttle_or(at));
        }
        if until.is_none() {
            self.unpark();
        }
        until
    }

    /// The earlier of `at` and the next time at which an I/O may pass the limit that holds it back.
    fn throttle_or(&self, at: Instant) -> Instant {
        self.throttle.deadline().map_or(at, |limit| limit.min(at))
    }

    /// For a thread that [may park](Self::prepare_park): announces that it will poll at `at` at the latest, even if it
    /// is not woken. A thread that leaves behind work for a later time then need not wake this one. Optional; O(1).
    ///
    /// Must be called at most once between [`prepare_park`](Self::prepare_park), which has returned a time, and
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

    /// Must be called after parking, however it ended.
    pub fn unpark(&mut self) {
        self.parts().receiver.cancel_park();
        self.rise();
    }

    /// The time at which this submitter has work due without a wake-up, and should poll. `None` for never.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let at = self.throttle_or(self.q.deadline(self.shard(), self.lane()));
        (at < Instant::MAX).then_some(at)
    }
}

impl<P: Payload> Submitter<P> {
    /// Passes up to `most` completions to `take`, oldest first. Returns their number. A part of a divided I/O is not a
    /// completion, unless it is the last missing one: then the I/O completes, with the error of the lowest failed part,
    /// if any.
    pub fn reap(&mut self, most: u32, mut take: impl FnMut(Completion<P>)) -> u32 {
        let q = &*self.q;
        let parts = self.parts.as_mut().expect("parts are there until the submitter is dropped");
        if !parts.receiver.reaches(1) {
            return 0;
        }
        let mut reaped = 0;
        let mut counted = Reaped { bios: 0, tally: &self.tally };
        let mut finished = parts.receiver.finished(&q.hub.lasting.table, &mut parts.credit);
        while reaped < most
            && let Some(popped) = finished.next()
        {
            counted.bios += 1;
            let Popped { cookie, mut result, mut payload, cell, part } = popped;
            if part {
                match self.splits.part_done(q.hub.lasting.table.place(cell), result, payload) {
                    Some(whole) => (result, payload) = whole,
                    None => continue,
                }
            }
            take(Completion { cookie, result, payload });
            reaped += 1;
        }
        let bios = counted.bios;
        drop(counted);
        if bios > 0 && parts.credit.left() == self.depth {
            // With no I/O in flight this thread may never return, and a parked submitter may rely on it.
            self.catch_up();
            self.q.wake_successor(self.shard(), self.lane());
        }
        reaped
    }

    /// Returns whether there are probably `n` completions to reap. Reads only one entry of the ring, so that a thread
    /// that spins on this does not take a line that is being filled. With `n` of 1 the answer is exact.
    ///
    /// Takes in finished parts of divided I/Os if they are the oldest entries and do not complete their I/O.
    #[must_use]
    pub fn has_completions(&mut self, n: u32) -> bool {
        if self.splits.extra() > 0 {
            self.take_parts_in();
        }
        self.parts().receiver.reaches(n)
    }

    /// Takes in parts until the oldest entry of the ring is a completion, or the ring is empty.
    #[cold]
    fn take_parts_in(&mut self) {
        let q = &*self.q;
        let parts = self.parts.as_mut().expect("parts are there until the submitter is dropped");
        while let Some(place) = parts.receiver.peek_part(&q.hub.lasting.table)
            && !self.splits.completes(place)
        {
            let mut finished = parts.receiver.finished(&q.hub.lasting.table, &mut parts.credit);
            let part = finished.next().expect("it was seen just now");
            let whole = self.splits.part_done(place, part.result, part.payload);
            assert!(whole.is_none(), "others are missing");
            self.tally.completed.add(1);
        }
    }
}

/// Bios being reaped. They are counted when the call ends, even if the closure that takes them panics.
pub(super) struct Reaped<'a> {
    pub(super) bios: u64,
    pub(super) tally: &'a SubmitterCounters,
}

impl Drop for Reaped<'_> {
    #[inline]
    fn drop(&mut self) {
        self.tally.completed.add(self.bios);
    }
}

impl<P> Submitter<P> {
    /// The number of I/Os that wait for the limits of their groups, and the earliest time at which one may proceed.
    /// O(groups with waiting I/Os).
    #[must_use]
    pub fn throttled(&self) -> (u32, Option<Instant>) {
        (self.throttle.len(), self.throttle.deadline())
    }

    /// Returns whether another I/O of `group`, in the direction of `op`, would wait for a limit behind I/Os that wait
    /// here. Reads are one direction, all other operations the other. O(groups with waiting I/Os).
    #[must_use]
    #[inline]
    pub fn is_throttled(&self, group: GroupId, op: Op) -> bool {
        !self.throttle.is_empty() && self.throttle.waits(group.index(), op)
    }

    /// The number of I/Os, and parts of divided ones, that submitters of this number have reaped.
    #[must_use]
    pub fn taken_back(&self) -> u64 {
        self.tally.completed.get()
    }
}

const POISONED: IoResult = Err(IoError::POISONED);

/// The health of a queue, as one of its submitters knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Health {
    Sound,
    /// A policy or a device has panicked. The I/Os within reach are being returned.
    Poisoned,
    /// A policy or a device has panicked. Every I/O within reach was returned, or is ready to be reaped.
    Over,
}

impl<P> Submitter<P> {
    /// Returns whether this submitter has found the queue [poisoned](crate::Queue::is_poisoned). If true, the submitter
    /// takes no more I/Os, and its earlier ones end with [`IoError::POISONED`], or with the device's result.
    #[inline]
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.health != Health::Sound
    }

    /// Notes that the queue has failed: every further push takes the rare path, which refuses it.
    pub(super) fn notice_poison(&mut self) {
        if self.health == Health::Sound {
            self.health = Health::Poisoned;
        }
        self.plain = [0; 5];
    }
}

impl<P: Send> Submitter<P> {
    /// The number of I/Os that will not be returned, with their payloads: the device that panicked has not returned
    /// them, and may still write to them. Known when every other I/O of this submitter has been reaped. `None` before
    /// that, and until the submitter has found the queue [poisoned](Self::is_poisoned).
    #[must_use]
    pub fn lost(&self) -> Option<u32> {
        let parts = self.parts.as_ref().expect("parts are there until the submitter is dropped");
        let outstanding = self.outstanding();
        let all_reaped = match self.health {
            Health::Sound => false,
            // Requests of other submitters may still be in flight.
            Health::Poisoned => outstanding == 0,
            Health::Over => !parts.receiver.reaches(1),
        };
        all_reaped.then_some(outstanding)
    }

    /// Ends the I/Os in the plug, the I/Os held back by limits of groups, and every other I/O within reach.
    #[cold]
    pub(super) fn end_all(&mut self, now: Instant) {
        self.end_private(POISONED);
        // An interrupted pass over this submitter's plug has staged bios that runners do not see yet.
        self.parts().staging.publish();
        if self.health == Health::Poisoned && self.q.salvage(now) {
            self.health = Health::Over;
        }
    }
}
