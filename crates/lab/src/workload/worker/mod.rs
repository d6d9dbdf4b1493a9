//! One thread of a job: issues the I/Os of its generator, when its pacer allows it, in fio's portions; and reads back
//! the blocks that it wrote, if it verifies.
//!
//! A worker never waits. [`Worker::step`] does all work that is possible and returns the event to wait for; its driver
//! waits, with a real thread or in virtual time, hands over the completions ([`Worker::take`]), and calls again. So the
//! same code is measured in both.

mod ending;
mod filling;
mod flight;
mod port;

use super::goal::Goal;
use super::tally::Floor;
use super::{
    Awaited, BlockSize, Exit, Generator, Job, Member, NextIo, Pacer, Series, Tally, Ties, Verifier,
};
use blkmq_core::{GroupId, Instant, Nanos, Owner};
use ending::Ending;
pub use flight::Taking;
use flight::{Purpose, Stamps, Verifying};
pub use port::{Buffers, Completed, Journal, NoBuffers, Port};
use std::marker::PhantomData;

/// fio's error for wrong contents: EILSEQ.
const WRONG_CONTENTS: u16 = 84;

/// The times at which a thread runs and counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// The thread issues I/Os from this time on,
    pub start: Instant,
    /// counts from this time on,
    pub measure: Instant,
    /// and issues no more I/Os from this time on.
    pub end: Instant,
}

impl Window {
    /// The window of a thread of `job` in a phase that begins at `now`.
    #[must_use]
    pub fn of(job: &Job, now: Instant) -> Self {
        let start = now + job.startdelay;
        let measure = start + job.ramp_time;
        Self { start, measure, end: job.runtime.map_or(Instant::MAX, |runtime| measure + runtime) }
    }
}

/// Issues one thread's I/Os, with payloads of type `P`.
pub struct Worker<'a, P, B> {
    job: &'a Job,
    window: Window,
    owner: Owner,
    group: GroupId,
    generator: Generator,
    pacer: Pacer,
    /// The next I/O, drawn and not yet issued.
    next: Option<NextIo>,
    /// An I/O at sector 0 that stands for all, if I/Os differ only in their offsets, none ever waits for its time, and
    /// none has state that is needed when it completes.
    template: Option<NextIo>,
    tally: Tally,
    stamps: Option<Stamps>,
    verify: Option<Verifying>,
    buffers: B,
    journal: Option<Box<dyn Journal>>,
    submissions: u32,
    measuring: bool,
    stopped: bool,
    /// A write has found no space, which ends a job with `fill_device`.
    full: bool,
    /// The most I/Os in flight for now.
    most: u32,
    /// Whether anything besides time and the generator can end the thread, or change `most`.
    limited: bool,
    /// The search for the depth that keeps a latency.
    goal: Option<Goal>,
    exit: Option<Exit>,
    /// The threads after whose end this one starts.
    after: Option<Awaited>,
    /// The memberships of the thread in groups of threads that others wait for.
    awaited: Vec<Member>,
    /// The least rate.
    floor: Option<Floor>,
    state: State,
    phase: Phase,
    /// The time at which the flush of `end_fsync` was issued.
    closing: Instant,
    /// Set while the worker waits, after its time, for I/Os in flight.
    ending: Option<Ending>,
    payload: PhantomData<P>,
}

/// The driver's task before the worker's next step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Nothing; other threads may have a turn.
    Go,
    /// Take completions, without waiting for any.
    Look {
        /// The most to take.
        most: u32,
    },
    /// Wait for `least` completions, or until `until`, and take them.
    Wait {
        /// The end of waiting.
        until: Instant,
        /// The number to wait for, at most the number in flight.
        least: u32,
        /// The most to take.
        most: u32,
    },
    /// Sleep.
    Sleep {
        /// The end of sleep.
        until: Instant,
    },
    /// The worker has ended.
    Over,
}

/// The point at which a worker continues.
#[derive(Clone, Copy)]
enum State {
    New,
    Begun,
    Working,
    /// A portion has ended; it may be time to read back.
    Portion,
    /// `iodepth` is reached: no more I/Os are issued until only `iodepth_low` are in flight.
    Lowering,
    Sleeping(Instant),
    /// Nothing is issued until nothing is in flight.
    Draining(Then),
    Checking(Then),
    Over,
}

/// The purpose of the I/Os that a worker issues.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The workload, and the checks of a backlog.
    Work,
    /// The flush of `end_fsync`.
    Closing,
    /// Checks of all remaining blocks.
    Checking,
}

/// The next phase when nothing is in flight.
#[derive(Clone, Copy)]
enum Then {
    /// The work is done, and the rest of the blocks is to be checked.
    Measured,
    /// Back to work.
    Work,
    /// The writes of this loop are to be checked before the next loop begins.
    Loop,
    /// The end.
    End,
}

/// Why a portion ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// The portion has its full size.
    Batch,
    /// `iodepth` is reached.
    Depth,
    /// The next I/O goes to blocks that another I/O in flight touches.
    Occupied,
    /// The time of the next I/O has not come.
    Paced(Instant),
    /// A pause begins when nothing is in flight.
    Drain,
    /// There are no more I/Os.
    End,
}

/// The I/Os of a thread, and the verification of their contents, if any.
pub struct Stream {
    /// The source of I/Os.
    pub generator: Generator,
    /// The verification, if any; only with payloads that carry bytes.
    pub verifier: Option<Verifier>,
    /// The owner: a process to schedulers that distinguish them.
    pub owner: Owner,
    /// The group of the I/Os.
    pub group: GroupId,
    /// The ties of the thread to others.
    pub ties: Ties,
}

/// Bytes of the longest I/O of `job`.
#[must_use]
pub fn longest(job: &Job) -> usize {
    let used = job.rw.directions().iter().map(|direction| &job.bs[*direction]);
    used.map(BlockSize::max).max().unwrap_or(0) as usize
}

impl<'a, P, B: Buffers<P>> Worker<'a, P, B> {
    /// A thread of `job` that runs in `window`.
    #[must_use]
    pub fn new(job: &'a Job, stream: Stream, buffers: B, window: Window) -> Self {
        let depth = job.depth.iodepth;
        let latencies = job.latencies;
        let Stream { generator, verifier, owner, group, ties } = stream;
        let Ties { exit, after, awaited, flow } = ties;
        let floor = Floor::new(job);
        // Verification needs the places in flight, even without their times.
        let measured = latencies.slat || latencies.clat || latencies.lat;
        let bounded = job.max_latency.iter().any(|(_, most)| most.is_some());
        let timed = measured
            || bounded
            || verifier.is_some()
            || job.latency_target.is_some()
            || job.serialize_overlap;
        let pacer = Pacer::new(job, window.start).seeded(job, owner.number().into()).sharing(flow);
        let are_alike = !timed && !pacer.is_paced();
        Self {
            job,
            window,
            owner,
            group,
            template: if are_alike { generator.template() } else { None },
            generator,
            pacer,
            next: None,
            tally: Tally::new(job, window.start),
            stamps: timed.then(|| Stamps::new(depth)),
            verify: verifier.map(|verifier| Verifying::new(verifier, depth)),
            buffers,
            journal: None,
            submissions: 0,
            measuring: false,
            stopped: false,
            full: false,
            most: job.latency_target.map_or(depth, |_| 1),
            limited: job.latency_target.is_some()
                || exit.is_some()
                || floor.is_some()
                || job.fill_device,
            goal: job.latency_target.map(|target| Goal::new(target, depth)),
            exit,
            after,
            awaited,
            floor,
            state: State::New,
            phase: Phase::Work,
            closing: Instant::ZERO,
            ending: None,
            payload: PhantomData,
        }
    }

    /// Records completions over time as well, if latencies are measured at all.
    #[must_use]
    pub fn with_course(mut self) -> Self {
        self.tally.course = Some(Series::new());
        self
    }

    /// Reports each completed I/O to `journal`, checks included. The clock is read for that even under `gtod_reduce`.
    #[must_use]
    pub fn with_journal(mut self, journal: Option<Box<dyn Journal>>) -> Self {
        if journal.is_some() {
            self.stamps.get_or_insert_with(|| Stamps::new(self.job.depth.iodepth));
            self.template = None;
        }
        self.journal = journal;
        self
    }

    /// The counts.
    #[must_use]
    pub fn into_tally(mut self) -> Tally {
        if let Some(journal) = &mut self.journal {
            let after = self.tally.checks.time.0;
            journal.ended(Nanos(self.tally.runtime().0 + after));
        }
        let mut tally = self.tally;
        conclude(&mut tally, self.goal.as_ref(), self.verify.as_ref());
        tally.lateness = self.pacer.lateness().cloned();
        if let Some(mut verify) = self.verify {
            tally.verify_state = verify.verifier().state();
        }
        tally
    }

    /// The counts so far, as if counting ended at `now`; empty before counting begins.
    #[must_use]
    pub fn so_far(&self, now: Instant) -> Tally {
        if !self.measuring {
            return self.tally.anew(self.job, now);
        }
        let mut tally = self.tally.clone();
        if self.is_counting() {
            tally.ended = now.max(tally.started);
        } else if !matches!(self.state, State::Over) && tally.checks.at_end > 0 {
            tally.checks.time = now - tally.ended;
        }
        conclude(&mut tally, self.goal.as_ref(), self.verify.as_ref());
        tally
    }

    /// Returns whether the counted time has begun and has not ended.
    #[must_use]
    pub fn is_counting(&self) -> bool {
        self.measuring && self.tally.ended <= self.tally.started
    }

    /// Does one portion of the work, and returns the driver's task before the next one. The work is to issue I/Os until
    /// the time is over or the stream ends, wait for I/Os in flight, and then read back the blocks to be verified.
    pub fn step(&mut self, port: &mut impl Port<P>) -> Step {
        loop {
            match self.state {
                State::New => {
                    return Step::Sleep { until: self.sleep_in(port) };
                }
                State::Begun => {
                    port.measuring_begins();
                    self.measuring = self.window.measure <= self.window.start;
                    if self.measuring {
                        self.counting_began(port.now());
                    }
                    let skips = self.skips();
                    self.state =
                        if skips { State::Draining(Then::Measured) } else { State::Working };
                }
                State::Working => match self.work(port) {
                    Some(step) => return step,
                    None => self.state = State::Draining(Then::Measured),
                },
                State::Portion => {
                    let due = self.verifying().is_some_and(|verify| verify.verifier().is_due());
                    self.state = if due { State::Checking(Then::Work) } else { State::Working };
                }
                State::Lowering => {
                    let in_flight = port.outstanding();
                    if in_flight > self.low() && port.now() < self.window.end {
                        return self.wait(in_flight);
                    }
                    self.state = State::Portion;
                }
                State::Sleeping(until) => {
                    self.state = State::Portion;
                    return Step::Sleep { until };
                }
                State::Draining(then) => match port.outstanding() {
                    0 => self.drained(then, port),
                    in_flight => match self.end(in_flight, port) {
                        Some(step) => return step,
                        None => self.abandoned(port),
                    },
                },
                State::Checking(then) => match self.read_back(port) {
                    Some(step) => return step,
                    None => {
                        let measured = matches!(then, Then::Measured);
                        self.state = State::Draining(if measured { Then::End } else { then });
                    }
                },
                State::Over => return Step::Over,
            }
        }
    }

    fn counting_began(&mut self, now: Instant) {
        if let Some(journal) = &mut self.journal {
            journal.began(now - self.tally.started);
        }
    }

    /// Issues one portion; `None` when there is no more to do.
    fn work(&mut self, port: &mut impl Port<P>) -> Option<Step> {
        let now = if self.template.is_some() { port.recently() } else { port.now() };
        if self.is_finished(now) {
            self.tell_others();
            return None;
        }
        if !self.measuring && now >= self.window.measure {
            self.measuring = true;
            self.tally = self.tally.anew(self.job, now);
            self.generator.count_anew(self.job, self.next.is_some().into());
            port.measuring_begins();
            self.counting_began(now);
        }
        self.tally.sample(now);
        let stop = self.fill(now, port);
        self.rest(stop, port)
    }

    /// The step that follows the end of a portion.
    fn rest(&mut self, stop: Stop, port: &impl Port<P>) -> Option<Step> {
        let depth = self.job.depth;
        let in_flight = port.outstanding();
        self.state = State::Portion;
        Some(match stop {
            Stop::Batch if in_flight < self.depth() => match depth.batch_complete_min {
                0 => Step::Look { most: depth.batch_complete_max },
                _ => Step::Go,
            },
            Stop::Batch | Stop::Depth => {
                // With `iodepth_low` at its default one portion is enough.
                if depth.low < self.depth() {
                    self.state = State::Lowering;
                }
                self.wait(in_flight)
            }
            Stop::Paced(at) => {
                let until = self.nap(at.min(self.window.end), port.now());
                if in_flight > 0 && self.job.tape.is_some() {
                    // Completions are taken as they come, so that latencies end with them and not with the next
                    // arrival.
                    Step::Wait { until, least: 1, most: in_flight }
                } else if in_flight > 0 {
                    self.state = State::Sleeping(until);
                    all(until, in_flight)
                } else {
                    Step::Sleep { until }
                }
            }
            Stop::Occupied => Step::Wait { until: self.window.end, least: 1, most: in_flight },
            Stop::Drain => all(self.window.end, in_flight),
            Stop::End if self.generator.next_loop() => {
                self.state = State::Draining(Then::Loop);
                Step::Go
            }
            Stop::End => {
                self.tell_others();
                return None;
            }
        })
    }

    fn low(&self) -> u32 {
        self.job.depth.low.min(self.depth() - 1)
    }

    fn wait(&self, in_flight: u32) -> Step {
        let depth = self.job.depth;
        let least = depth.batch_complete_min.max(1).min(in_flight);
        Step::Wait { until: self.window.end, least, most: depth.batch_complete_max }
    }

    /// `None` if payloads carry no bytes, which the compiler knows.
    #[inline]
    fn verifying(&mut self) -> Option<&mut Verifying> {
        if B::CARRIES { self.verify.as_mut() } else { None }
    }

    /// With `verify_only` the whole stream counts as issued by an earlier run.
    fn skips(&mut self) -> bool {
        let only =
            self.verify.as_mut().map(Verifying::verifier).filter(|verifier| verifier.is_only());
        let Some(verifier) = only else { return false };
        verifier.replay(&mut self.generator);
        true
    }

    /// Issues verifying reads of the written blocks. They are neither paced nor ended by the clock; otherwise some
    /// blocks would stay unchecked. `None` when all are issued.
    #[inline(never)]
    fn read_back(&mut self, port: &mut impl Port<P>) -> Option<Step> {
        if self.stopped {
            return None;
        }
        let now = port.now();
        let mut batch = 0;
        while batch < self.job.depth.batch_submit
            && port.outstanding() < self.job.depth.iodepth
            && let Some(io) = self.verifying().and_then(Verifying::next_check)
        {
            self.push_rare(now, &io, Purpose::Check, port);
            batch += 1;
        }
        let in_flight = port.outstanding();
        if batch > 0 {
            self.tally.levels.record(in_flight, batch);
            self.tally.submits.record(batch);
            self.flush(now, port);
        } else if in_flight == 0 {
            return None;
        }
        Some(if batch == 0 || in_flight == self.job.depth.iodepth {
            Step::Wait { until: Instant::MAX, least: 1, most: in_flight }
        } else {
            Step::Go
        })
    }

    /// Takes the completions that `from` passes to its [`Taking`]; `from` returns their number. `clock` is read once at
    /// most.
    #[inline]
    pub fn take<C: Fn() -> Instant>(
        &mut self,
        clock: C,
        from: impl FnOnce(&mut Taking<'_, 'a, P, B, C>) -> u32,
    ) {
        let got = from(&mut Taking { worker: self, clock, now: None });
        self.tally.completes.record(got);
    }
}

/// Adds to `tally` the depth and the findings of its worker.
fn conclude(tally: &mut Tally, goal: Option<&Goal>, verify: Option<&Verifying>) {
    tally.latency_depth = goal.map(Goal::depth);
    tally.verify = verify.map(|verify| verify.findings().clone());
    let is_wrong = tally.verify.as_ref().is_some_and(|findings| findings.errors > 0);
    if is_wrong && tally.error == 0 {
        tally.error = WRONG_CONTENTS;
    }
}

/// Waits for all I/Os in flight, or until `until`.
fn all(until: Instant, in_flight: u32) -> Step {
    Step::Wait { until, least: in_flight, most: in_flight }
}

#[cfg(test)]
mod tests;
