//! The portions of a thread's work, and its end.
//!
//! The I/Os of a portion are drawn, pushed, and flushed together, within limits that change while a worker runs: the
//! depth that a latency target allows, and the end of other threads.
//!
//! At the end the thread waits for its I/Os in flight or abandons them, and flushes its writes. The
//! end may come early: by a signal, or because the queue refuses an I/O.
//!
//! With a time limit, I/Os in flight get some extra time, and then are abandoned. A drain that makes progress is not
//! interrupted: a slow device with a deep queue is not a stall. A drain that would take more than ten seconds is a
//! stall; I/Os that still wait are then cancelled. I/Os that do not complete after that are stuck in the device, and
//! the thread ends without them.
//!
//! A thread sees only its own I/Os, and a scheduler may serve other threads first. With a second between two checks, 3
//! of 64 writers on a disk took that for a stall, on a machine busy with other work.

use super::flight::{Cookie, Purpose, Stamps, What};
use super::{Buffers, Phase, Port, State, Step, Stop, Then, Window, Worker, all};
use crate::workload::options::{Goal, NEVER_KEPT, Verdict};
use crate::workload::tally::{Floor, TOO_SLOW};
use crate::workload::{Direction, Exit, Member, NextIo, Pace, Unfinished};
use blkmq_core::{Instant, IoError, Nanos, Op, SECTOR_SIZE};
use blkmq_engine::{Io, Refused};

/// Under `gtod_reduce` one submission in this many is timed, to find the longest.
const TIMED_SUBMISSIONS: u32 = 64;
/// The number of I/Os whose offsets are drawn together.
const DRAWN: usize = 8;

/// Bytes that an I/O moves.
#[inline]
fn data_len(io: &NextIo) -> usize {
    let moves = matches!(io.op, Op::Read | Op::Write);
    if moves { (io.sectors * SECTOR_SIZE) as usize } else { 0 }
}

/// A portion that has been pushed.
struct Portion {
    stop: Stop,
    ios: u32,
    in_flight: u32,
}

impl<P, B: Buffers<P>> Worker<'_, P, B> {
    /// Submits one portion.
    pub(super) fn fill(&mut self, now: Instant, port: &mut impl Port<P>) -> Stop {
        let Portion { stop, ios, in_flight } = match self.template {
            Some(template) => self.push_alike(now, template, port),
            None => self.push_drawn(now, port),
        };
        if ios > 0 {
            // As in fio, the depth of each is that of the whole portion.
            self.tally.levels.record(in_flight, ios);
            self.tally.submits.record(ios);
            self.flush(now, port);
        }
        stop
    }

    /// Pushes the I/Os of a portion that differ only in their offsets and leave immediately.
    #[inline]
    fn push_alike(&mut self, now: Instant, template: NextIo, port: &mut impl Port<P>) -> Portion {
        let (batch, most) = (self.job.depth.batch_submit, self.depth());
        let mut portion = Portion { stop: Stop::End, ios: 0, in_flight: port.outstanding() };
        loop {
            if portion.ios == batch {
                portion.stop = Stop::Batch;
                return portion;
            }
            if portion.in_flight >= most {
                portion.stop = Stop::Depth;
                return portion;
            }
            let mut sectors = [0; DRAWN];
            let room = (batch - portion.ios).min(most - portion.in_flight) as usize;
            let drawn = self.generator.draw_places(&mut sectors[..room.min(DRAWN)]);
            if drawn == 0 {
                return portion;
            }
            for sector in &sectors[..drawn] {
                let io = NextIo { sector: *sector, ..template };
                portion.in_flight += u32::from(self.push_untimed(now, &io, port));
            }
            portion.ios += drawn as u32;
        }
    }

    /// Pushes the I/Os of a portion as they are drawn, each when it may leave.
    fn push_drawn(&mut self, now: Instant, port: &mut impl Port<P>) -> Portion {
        let (depth, most) = (self.job.depth, self.depth());
        let mut batch = 0;
        let mut in_flight = port.outstanding();
        let stop = loop {
            if batch == depth.batch_submit {
                break Stop::Batch;
            }
            if in_flight >= most {
                break Stop::Depth;
            }
            let pacer = &self.pacer;
            let drawn = || self.generator.next_steered(|direction| pacer.steer(now, direction));
            let Some(io) = self.next.take().or_else(drawn) else {
                break Stop::End;
            };
            if self.verifying().is_some_and(|verify| !verify.verifier().admits(&io))
                || self.job.serialize_overlap && self.overlaps(&io)
            {
                self.next = Some(io);
                break Stop::Occupied;
            }
            match self.pacer.poll(now, &io, in_flight) {
                Pace::Go => {}
                Pace::WaitUntil(at) => {
                    self.next = Some(io);
                    break Stop::Paced(at);
                }
                Pace::Drain => {
                    self.next = Some(io);
                    break Stop::Drain;
                }
            }
            in_flight += u32::from(self.push(now, &io, Purpose::Work, port));
            self.pacer.issued(&io);
            batch += 1;
        };
        Portion { stop, ios: batch, in_flight }
    }

    /// Pushes an I/O that is not one of the job's own.
    #[inline(never)]
    pub(super) fn push_rare(
        &mut self,
        now: Instant,
        io: &NextIo,
        purpose: Purpose,
        port: &mut impl Port<P>,
    ) {
        self.push(now, io, purpose, port);
    }

    /// Returns false if the I/O was refused. Inlined where a job's own I/Os are pushed: a call would take a fortieth of
    /// the instructions of an I/O.
    #[inline(always)]
    fn push(
        &mut self,
        now: Instant,
        io: &NextIo,
        purpose: Purpose,
        port: &mut impl Port<P>,
    ) -> bool {
        let begun = self.pacer.begun(now);
        let takes_slat = self.job.latencies.slat;
        let clock = || if takes_slat { port.now() } else { now };
        let slot = self.stamps.as_mut().map_or(0, |stamps| stamps.begin(begun, clock));
        let mut payload = self.buffers.take(data_len(io));
        if let Some(verify) = self.verifying() {
            verify.begin(slot, io, purpose, B::bytes(&mut payload));
        } else if io.op == Op::Write {
            self.buffers.prepare(&mut payload);
        }
        let cookie = Cookie::new(io, slot);
        if let Some(stamps) = &mut self.stamps {
            let (sector, prio) = (io.sector, io.prio);
            stamps.what[slot as usize] = What { cookie, sector, prio };
        }
        if let Some(journal) = &mut self.journal {
            journal.issued(now - self.window.start.min(now), io);
        }
        self.send(now, io, cookie, payload, port)
    }

    /// Pushes an I/O whose facts are not needed when it completes. False if it was refused.
    #[inline(always)]
    fn push_untimed(&mut self, now: Instant, io: &NextIo, port: &mut impl Port<P>) -> bool {
        let mut payload = self.buffers.take(data_len(io));
        if io.op == Op::Write {
            self.buffers.prepare(&mut payload);
        }
        self.send(now, io, Cookie::new(io, 0), payload, port)
    }

    #[inline(always)]
    fn send(
        &mut self,
        now: Instant,
        io: &NextIo,
        cookie: Cookie,
        payload: P,
        port: &mut impl Port<P>,
    ) -> bool {
        let io = Io {
            flags: io.flags,
            ioprio: io.prio,
            owner: self.owner,
            group: self.group,
            ..Io::new(io.op, io.sector, io.sectors, cookie.0, payload)
        };
        match port.push(now, io) {
            Ok(()) => true,
            Err(refused) => {
                // Lengths and limits were checked before the run; if one is refused anyway, this ends the thread with
                // an error instead of a panic.
                self.refused(refused, cookie.slot());
                false
            }
        }
    }

    /// Submits the portion.
    pub(super) fn flush(&mut self, now: Instant, port: &mut impl Port<P>) {
        self.submissions = self.submissions.wrapping_add(1);
        let Some(stamps) = &mut self.stamps else {
            let timed = self.submissions.is_multiple_of(TIMED_SUBMISSIONS);
            let before = if timed { port.now() } else { Instant::ZERO };
            port.flush(now);
            if timed {
                self.tally.longest_call = self.tally.longest_call.max(port.now() - before);
            }
            return;
        };
        let pushed = stamps.pushed.take().unwrap_or(now);
        port.flush(now);
        self.tally.longest_call = self.tally.longest_call.max(port.now() - pushed);
    }
}

/// The longest sleep of a thread that ends with others, or starts after them.
const NAP: Nanos = Nanos::from_millis(1);

impl<P, B: Buffers<P>> Worker<'_, P, B> {
    /// The most I/Os in flight for now.
    #[inline]
    pub(super) fn depth(&self) -> u32 {
        self.most
    }

    /// Returns whether the thread is done at `now`, whatever the generator has.
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

    /// Sleeps until the thread is to start. If the others have ended, the thread starts immediately, and then ends.
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

    /// The thread has waited for others until `now`, which delays its window unless the window begins later anyway.
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

    /// The thread has finished its work.
    #[cold]
    pub(super) fn tell_others(&mut self) {
        self.pacer.leave();
        if let Some(exit) = &self.exit {
            exit.end();
        }
    }
}

impl<P, B: Buffers<P>> Worker<'_, P, B> {
    /// The step for I/Os in flight when no more are issued; `None` if they never complete. A thread without a
    /// runtime waits for them, and the flush at the end has no time limit.
    pub(super) fn end(&mut self, in_flight: u32, port: &mut impl Port<P>) -> Option<Step> {
        if self.window.end == Instant::MAX || self.phase == Phase::Closing {
            return Some(all(Instant::MAX, in_flight));
        }
        let now = port.now();
        let pace = if self.stopped { EndPace::PROMPT } else { EndPace::PATIENT };
        let fresh = || Ending::new(now, self.window.end, in_flight, pace);
        let ending = self.ending.get_or_insert_with(fresh);
        let verdict = ending.judge(now, in_flight, &mut self.tally.unfinished);
        let until = ending.look;
        match verdict {
            EndVerdict::Wait => {}
            EndVerdict::Cancel => {
                let cookies = self.stamps.as_ref().map(Stamps::in_flight).unwrap_or_default();
                cookies.into_iter().for_each(|cookie| port.cancel(now, cookie.0));
                self.stopped = true;
            }
            EndVerdict::Abandon => return None,
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
pub(super) struct EndPace {
    /// The time between two checks of the completions.
    look: Nanos,
    /// Between two checks, at least one in this many of the I/Os completes; otherwise the drain is a stall.
    shares: u32,
}

impl EndPace {
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
    pace: EndPace,
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
pub(super) enum EndVerdict {
    /// Wait for them until the next check.
    Wait,
    /// Cancel those that can be cancelled, and wait until the next check.
    Cancel,
    /// End without them.
    Abandon,
}

impl Ending {
    /// The drain of `in_flight` I/Os of a thread whose time is over at `end`, as seen at `now`.
    pub(super) fn new(now: Instant, end: Instant, in_flight: u32, pace: EndPace) -> Self {
        let look = now.max(end) + pace.look;
        Self { pace, look, at_first: in_flight, left: in_flight, cancelled: false }
    }

    /// Decides at `now` what to do with the remaining `in_flight` I/Os. The decision is recorded in `unfinished`.
    pub(super) fn judge(
        &mut self,
        now: Instant,
        in_flight: u32,
        unfinished: &mut Unfinished,
    ) -> EndVerdict {
        if now < self.look {
            return EndVerdict::Wait;
        }
        let came = self.left.saturating_sub(in_flight);
        self.left = in_flight;
        if !self.cancelled {
            self.look = now + self.pace.look;
            if came > 0 && came.saturating_mul(self.pace.shares) >= self.at_first {
                return EndVerdict::Wait;
            }
            self.cancelled = true;
            self.look = now + LAST_LOOK;
            unfinished.outstanding = in_flight;
            return EndVerdict::Cancel;
        }
        self.look = now + LAST_LOOK;
        if came > 0 {
            return EndVerdict::Wait;
        }
        unfinished.abandoned = in_flight;
        EndVerdict::Abandon
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
            (Ending::new(s(2), s(2), 100, EndPace::PATIENT), Unfinished::default());
        for (at, left) in [(6, 100), (7, 50), (11, 50), (12, 0)] {
            assert_eq!(ending.judge(s(at), left, &mut seen), EndVerdict::Wait, "{at} s");
        }
        assert_eq!(seen, Unfinished::default());
    }

    #[test]
    fn a_drain_that_a_user_waits_for_is_checked_each_second() {
        let (mut ending, mut seen) =
            (Ending::new(s(2), s(2), 100, EndPace::PROMPT), Unfinished::default());
        assert_eq!(ending.judge(s(3), 90, &mut seen), EndVerdict::Wait);
        assert_eq!(ending.judge(s(4), 81, &mut seen), EndVerdict::Cancel);
    }

    #[test]
    fn a_drain_that_stands_still_is_cancelled_then_abandoned() {
        let (mut ending, mut seen) =
            (Ending::new(s(1), s(2), 100, EndPace::PATIENT), Unfinished::default());
        assert_eq!(ending.judge(s(6), 100, &mut seen), EndVerdict::Wait, "not before its time");
        assert_eq!(ending.judge(s(7), 99, &mut seen), EndVerdict::Cancel, "500 s are too many");
        assert_eq!(ending.look, s(7) + LAST_LOOK);
        assert_eq!(ending.judge(ending.look, 5, &mut seen), EndVerdict::Wait, "they come");
        assert_eq!(ending.judge(ending.look, 5, &mut seen), EndVerdict::Abandon);
        assert_eq!(seen, Unfinished { outstanding: 99, cancelled: 0, abandoned: 5 });
    }
}
