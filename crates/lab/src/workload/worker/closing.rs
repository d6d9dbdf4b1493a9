//! The end of a thread's work: the thread waits for its I/Os in flight or gives them up, and flushes its writes.

use super::ending::{Ending, Pace, Verdict};
use super::flight::Stamps;
use super::port::{Buffers, Port};
use super::verifying::Purpose;
use super::{Phase, State, Step, Then, Worker, all};
use crate::workload::{Direction, Member, NextIo};
use blkmq_core::Instant;

impl<P, B: Buffers<P>> Worker<'_, P, B> {
    /// The treatment of I/Os in flight when no more are issued; `None` if they never complete. A thread without a
    /// runtime waits for them, and the flush at the end may take as long as it has to.
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

    /// Issues the flush of `end_fsync`, if there is something to flush. False if not, or if it is done.
    fn close(&mut self, port: &mut impl Port<P>) -> bool {
        let wrote = self.tally.counts[Direction::Write as usize].ios > 0;
        if self.phase == Phase::Closing || self.stopped || !self.job.end_fsync || !wrote {
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
