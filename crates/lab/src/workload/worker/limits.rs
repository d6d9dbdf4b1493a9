//! Limits of a worker that change while it runs: the depth that a latency target allows, and the end of other threads.

use super::{Buffers, Port, State, Window, Worker};
use crate::workload::floor::{Floor, TOO_SLOW};
use crate::workload::goal::{Goal, NEVER_KEPT, Verdict};
use crate::workload::{Exit, NextIo};
use blkmq_core::{Instant, Nanos};

/// The longest sleep of a thread that ends with others, or begins behind them.
const NAP: Nanos = Nanos::from_millis(1);

impl<P, B: Buffers<P>> Worker<'_, P, B> {
    /// The most I/Os in flight for now.
    #[inline]
    pub(super) fn depth(&self) -> u32 {
        self.most
    }

    /// Returns whether there is no more to do at `now`, whatever the generator has.
    #[inline]
    pub(super) fn is_finished(&mut self, now: Instant) -> bool {
        now >= self.window.end || self.stopped || self.limited && self.is_at_limit(now)
    }

    /// Returns whether other threads, a full device or the latency target end the thread.
    #[inline(never)]
    fn is_at_limit(&mut self, now: Instant) -> bool {
        if self.full || self.exit.as_ref().is_some_and(Exit::is_over) {
            return true;
        }
        let (started, counts) = (self.tally.started, &self.tally.counts);
        let missed = |floor: &mut Floor| floor.is_missed(now, started, counts);
        if self.floor.as_mut().is_some_and(missed) {
            self.tally.error = TOO_SLOW;
            return true;
        }
        let verdict = self.goal.as_mut().map_or(Verdict::Continue, |goal| goal.judge(now));
        self.most = self.goal.as_ref().map_or(self.most, Goal::depth);
        match verdict {
            Verdict::Continue => false,
            Verdict::Found => true,
            Verdict::Missed => {
                self.tally.error = NEVER_KEPT;
                true
            }
        }
    }

    /// Returns whether an I/O is in flight to a place of `io` (`serialize_overlap`). O(depth).
    #[inline(never)]
    pub(super) fn overlaps(&self, io: &NextIo) -> bool {
        self.stamps.as_ref().is_some_and(|stamps| stamps.overlaps(io))
    }

    /// The end of a sleep that is to last until `until`: earlier if another thread may end in the meantime.
    pub(super) fn nap(&self, until: Instant, now: Instant) -> Instant {
        if self.exit.is_some() { until.min(now + NAP) } else { until }
    }

    /// Sleeps until the thread is to start. The thread starts immediately if the others are over, and then ends.
    pub(super) fn sleep_in(&mut self, port: &impl Port<P>) -> Instant {
        let now = port.now();
        let over = self.exit.as_ref().is_some_and(Exit::is_over);
        if over {
            (self.tally.started, self.window.end) = (now, now);
        }
        if !over && self.after.as_ref().is_some_and(|others| !others.are_over()) {
            return now + NAP;
        }
        if self.after.take().is_some() {
            self.begin_late(now);
        }
        let until = if over { now } else { self.nap(self.window.start, now) };
        if over || until >= self.window.start {
            self.state = State::Begun;
        }
        until
    }

    /// The thread has waited for others until `now`, which moves its window unless that begins later anyway.
    fn begin_late(&mut self, now: Instant) {
        let Window { start, measure, end } = self.window;
        if now <= start {
            return;
        }
        let late = now - start;
        let end = if end == Instant::MAX { end } else { end + late };
        self.window = Window { start: now, measure: measure + late, end };
        self.pacer.restart(now);
        self.tally = self.tally.anew(self.job, now);
    }

    /// The thread's own work is done.
    #[cold]
    pub(super) fn tell_others(&mut self) {
        self.pacer.leave();
        if let Some(exit) = &self.exit {
            exit.end();
        }
    }
}
