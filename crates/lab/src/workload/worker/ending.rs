//! The end of a thread's work: the thread waits for its I/Os in flight or abandons them, and flushes its writes. The
//! end may come early: by a signal, or because the queue refuses an I/O.
//!
//! With a time limit, I/Os in flight get some extra time, and then are abandoned. A drain that makes progress is not
//! interrupted: a slow device with a deep queue is not a stall. A drain that would take more than ten seconds is a
//! stall; I/Os that still wait are then cancelled. I/Os that do not complete after that are stuck in the device, and
//! the thread ends without them.
//!
//! A thread sees only its own I/Os, and a scheduler may serve other threads first. With a second between two checks, 3
//! of 64 writers on a disk took that for a stall, on a machine busy with other work.

use super::flight::{Cookie, Purpose, Stamps};
use super::port::{Buffers, Port};
use super::{Phase, State, Step, Then, Worker, all};
use crate::workload::{Direction, Member, NextIo, Unfinished};
use blkmq_core::{Instant, IoError, Nanos};
use blkmq_engine::{Io, Refused};

impl<P, B: Buffers<P>> Worker<'_, P, B> {
    /// The step for I/Os in flight when no more are issued; `None` if they never complete. A thread without a
    /// runtime waits for them, and the flush at the end has no time limit.
    pub(super) fn end(&mut self, in_flight: u32, port: &mut impl Port<P>) -> Option<Step> {
        if self.window.end == Instant::MAX || self.phase == Phase::Closing {
            return Some(all(Instant::MAX, in_flight));
        }
        let now = port.now();
        let pace = if self.stopped { Pace::PROMPT } else { Pace::PATIENT };
        let fresh = || Ending::new(now, self.window.end, in_flight, pace);
        let ending = self.ending.get_or_insert_with(fresh);
        let verdict = ending.judge(now, in_flight, &mut self.tally.unfinished);
        let until = ending.look;
        match verdict {
            Verdict::Wait => {}
            Verdict::Cancel => {
                let cookies = self.stamps.as_ref().map(Stamps::in_flight).unwrap_or_default();
                cookies.into_iter().for_each(|cookie| port.cancel(now, cookie.0));
                self.stopped = true;
            }
            Verdict::Abandon => return None,
        }
        Some(all(until, in_flight))
    }

    /// Ends the thread without the I/Os in flight.
    pub(super) fn abandoned(&mut self, port: &mut impl Port<P>) {
        if self.tally.ended <= self.tally.started {
            self.tally.ended = port.now();
            port.measuring_ends();
        }
        self.note_checks(port.now());
        self.over();
    }

    /// Issues the flush of `end_fsync`, if the job may write and its last I/O was not a flush. Returns false if no
    /// flush is needed, or it is done.
    #[cold]
    #[inline(never)]
    fn close(&mut self, port: &mut impl Port<P>) -> bool {
        if self.phase == Phase::Closing || self.stopped || !self.job.end_fsync {
            return false;
        }
        let may_write = self.job.rw.directions().contains(&Direction::Write);
        if !may_write || self.generator.ends_flushed() {
            return false;
        }
        self.phase = Phase::Closing;
        let now = port.now();
        self.closing = now;
        self.push_rare(now, &NextIo::flush(self.job.prio), Purpose::Work, port);
        self.flush(now, port);
        true
    }

    /// The thread has ended.
    fn over(&mut self) {
        self.awaited.iter_mut().for_each(Member::end);
        self.state = State::Over;
    }

    fn note_checks(&mut self, now: Instant) {
        if self.phase == Phase::Checking && self.tally.checks.at_end > 0 {
            self.tally.checks.time = now - self.tally.ended;
        }
    }

    pub(super) fn drained(&mut self, then: Then, port: &mut impl Port<P>) {
        self.ending = None;
        self.state = match then {
            Then::Measured if self.close(port) => State::Draining(then),
            Then::Measured => {
                self.tally.ended = port.now();
                if self.phase == Phase::Closing && !self.stopped {
                    self.tally.end_fsync = Some(self.tally.ended - self.closing);
                }
                port.measuring_ends();
                self.phase = Phase::Checking;
                State::Checking(Then::Measured)
            }
            Then::Work => State::Working,
            Then::Loop => State::Checking(Then::Work),
            Then::End => {
                self.note_checks(port.now());
                self.awaited.iter_mut().for_each(Member::end);
                State::Over
            }
        };
    }
}

/// How often a drain is checked.
#[derive(Clone, Copy)]
pub(super) struct Pace {
    /// The time between two checks of the completions.
    look: Nanos,
    /// Between two checks, at least one in this many of the I/Os completes; otherwise the drain is a stall.
    shares: u32,
}

impl Pace {
    /// After the runtime.
    const PATIENT: Self = Self { look: Nanos::from_secs(5), shares: 2 };
    /// For a thread that was asked to stop: a user waits for its end.
    const PROMPT: Self = Self { look: Nanos::from_secs(1), shares: 10 };
}

/// After all waiting I/Os were cancelled, a completion comes within this time, or none ever will.
const LAST_LOOK: Nanos = Nanos::from_millis(200);

/// A thread that waits for its I/Os in flight after its time.
#[derive(Clone, Copy)]
pub(super) struct Ending {
    pace: Pace,
    /// The time of the next check.
    pub(super) look: Instant,
    /// The number in flight when the drain began.
    at_first: u32,
    /// The number in flight at the last check.
    left: u32,
    cancelled: bool,
}

/// The treatment of the I/Os in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Wait for them until the next check.
    Wait,
    /// Cancel those that can be cancelled, and wait until the next check.
    Cancel,
    /// End without them.
    Abandon,
}

impl Ending {
    /// The drain of `in_flight` I/Os of a thread whose time is over at `end`, as seen at `now`.
    pub(super) fn new(now: Instant, end: Instant, in_flight: u32, pace: Pace) -> Self {
        let look = now.max(end) + pace.look;
        Self { pace, look, at_first: in_flight, left: in_flight, cancelled: false }
    }

    /// Decides at `now` what to do with the remaining `in_flight` I/Os. The decision is recorded in `unfinished`.
    pub(super) fn judge(
        &mut self,
        now: Instant,
        in_flight: u32,
        unfinished: &mut Unfinished,
    ) -> Verdict {
        if now < self.look {
            return Verdict::Wait;
        }
        let came = self.left.saturating_sub(in_flight);
        self.left = in_flight;
        if !self.cancelled {
            self.look = now + self.pace.look;
            if came > 0 && came.saturating_mul(self.pace.shares) >= self.at_first {
                return Verdict::Wait;
            }
            self.cancelled = true;
            self.look = now + LAST_LOOK;
            unfinished.outstanding = in_flight;
            return Verdict::Cancel;
        }
        self.look = now + LAST_LOOK;
        if came > 0 {
            return Verdict::Wait;
        }
        unfinished.abandoned = in_flight;
        Verdict::Abandon
    }
}

impl<P, B: Buffers<P>> Worker<'_, P, B> {
    /// The queue has refused an I/O, which ends the thread.
    #[cold]
    pub(super) fn refused(&mut self, refused: Refused<P>, slot: u32) {
        let error = IoError::from(refused.why);
        let Io { cookie, sector, mut payload, .. } = refused.into_io();
        if let Some(verify) = self.verifying() {
            verify.end(slot, Err(error), B::bytes(&mut payload));
        }
        self.buffers.give(payload);
        self.tally.error = error.0;
        let failed = Cookie(cookie).failed(Some(sector), error);
        self.tally.failures.note(failed);
        self.stopped = true;
        if let Some(stamps) = &mut self.stamps {
            stamps.free.push(slot);
        }
    }

    /// From `now` on, issues no more I/Os and checks no more contents. I/Os in flight are waited for as at the end of a
    /// runtime.
    pub fn stop(&mut self, now: Instant) {
        self.window.end = self.window.end.min(now);
        self.stopped = true;
    }

    /// Returns whether the worker counts its I/Os. False before its start, and during a ramp.
    #[must_use]
    pub fn is_measuring(&self) -> bool {
        self.measuring
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(s: u64) -> Instant {
        Instant::ZERO + Nanos::from_secs(s)
    }

    #[test]
    fn a_drain_that_goes_on_is_left_alone() {
        let (mut ending, mut seen) =
            (Ending::new(s(2), s(2), 100, Pace::PATIENT), Unfinished::default());
        for (at, left) in [(6, 100), (7, 50), (11, 50), (12, 0)] {
            assert_eq!(ending.judge(s(at), left, &mut seen), Verdict::Wait, "{at} s");
        }
        assert_eq!(seen, Unfinished::default());
    }

    #[test]
    fn a_drain_that_a_user_waits_for_is_checked_each_second() {
        let (mut ending, mut seen) =
            (Ending::new(s(2), s(2), 100, Pace::PROMPT), Unfinished::default());
        assert_eq!(ending.judge(s(3), 90, &mut seen), Verdict::Wait);
        assert_eq!(ending.judge(s(4), 81, &mut seen), Verdict::Cancel);
    }

    #[test]
    fn a_drain_that_stands_still_is_cancelled_then_abandoned() {
        let (mut ending, mut seen) =
            (Ending::new(s(1), s(2), 100, Pace::PATIENT), Unfinished::default());
        assert_eq!(ending.judge(s(6), 100, &mut seen), Verdict::Wait, "not before its time");
        assert_eq!(ending.judge(s(7), 99, &mut seen), Verdict::Cancel, "500 s are too many");
        assert_eq!(ending.look, s(7) + LAST_LOOK);
        assert_eq!(ending.judge(ending.look, 5, &mut seen), Verdict::Wait, "they come");
        assert_eq!(ending.judge(ending.look, 5, &mut seen), Verdict::Abandon);
        assert_eq!(seen, Unfinished { outstanding: 99, cancelled: 0, abandoned: 5 });
    }
}
