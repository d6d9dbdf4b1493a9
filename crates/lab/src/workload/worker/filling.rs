//! A portion: I/Os are drawn, pushed, and flushed together, within limits that change while a worker runs.
//!
//! The limits are the depth that a latency target allows, and the end of other threads.

use super::flight::{Cookie, Purpose, What};
use super::{Buffers, Port, State, Stop, Window, Worker};
use crate::workload::goal::{Goal, NEVER_KEPT, Verdict};
use crate::workload::tally::{Floor, TOO_SLOW};
use crate::workload::{Exit, NextIo, Pace};
use blkmq_core::{Instant, Nanos, Op, SECTOR_SIZE};
use blkmq_engine::Io;

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
