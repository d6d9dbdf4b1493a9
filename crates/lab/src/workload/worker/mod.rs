//! One thread of a job: issues the I/Os of its generator, when its pacer allows it, in fio's portions; and reads back
//! the blocks that it wrote, if it verifies.
//!
//! A worker never waits. [`Worker::step`] does all work that is possible and returns the event to wait for; its driver
//! waits, with a real thread or in virtual time, hands over the completions ([`Worker::take`]), and calls again. So the
//! same code is measured in both.
//!
//! The environment of a worker is a way to a queue ([`Port`]), [`Buffers`], and a [`Journal`], to which it reports each
//! I/O that it issues, and each that completes while it counts. The format of a log and its files are not here.

mod filling;
mod flight;

use super::options::Goal;
use super::tally::Floor;
use super::{
    Awaited, BlockSize, Direction, Exit, Generator, Job, Member, NextIo, Pacer, Series, Tally,
    Ties, Verifier,
};
use blkmq_core::{GroupId, Instant, IoPrio, Nanos, Owner};
use blkmq_engine::{Io, Refused};
use filling::Ending;
pub use flight::Taking;
use flight::{Purpose, Stamps, Verifying};
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

/// A thread's way to its queue, and the time: a client with its clock, or a submitter in virtual time.
pub trait Port<P> {
    /// The time. It includes the time that earlier pushes and flushes took.
    fn now(&self) -> Instant;

    /// The time at the start of a portion in which no I/O is timed or paced: it may be that of a recent portion, if the
    /// thread has not waited since.
    #[inline]
    fn recently(&mut self) -> Instant {
        self.now()
    }

    /// Takes an I/O, as [`Submitter::push`](blkmq_engine::Submitter::push) does. `now` is the time of the portion
    /// that it belongs to.
    ///
    /// # Errors
    /// Gives the I/O back if it cannot be taken.
    fn push(&mut self, now: Instant, io: Io<P>) -> Result<(), Refused<P>>;

    /// Flushes the pushed I/Os.
    fn flush(&mut self, now: Instant);

    /// Asks for the I/O with this cookie to be cancelled, as [`Submitter::cancel`](blkmq_engine::Submitter::cancel)
    /// does.
    fn cancel(&mut self, now: Instant, cookie: u64);

    /// The number of I/Os pushed and not yet reaped.
    fn outstanding(&self) -> u32;

    /// CPU usage counts from here on. Called once before the first I/O, and again when a ramp is over.
    fn measuring_begins(&mut self) {}

    /// CPU usage no longer counts from here on: all work is done, and only checks may follow.
    fn measuring_ends(&mut self) {}
}

/// The payloads of I/Os, made once and reused.
pub trait Buffers<P> {
    /// Whether payloads carry bytes. If false, contents are never checked.
    const CARRIES: bool;

    /// A payload that carries `len` bytes with the contents of its last I/O; 0 for an I/O that moves no data.
    fn take(&mut self, len: usize) -> P;

    /// Makes the bytes of a write that no verification fills, in a payload that was just taken.
    #[inline]
    fn prepare(&mut self, _payload: &mut P) {}

    /// Returns a payload to the port.
    fn give(&mut self, payload: P);

    /// The bytes of a payload.
    fn bytes(payload: &mut P) -> &mut [u8];
}

/// Payloads of I/Os that carry no bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoBuffers;

impl Buffers<()> for NoBuffers {
    const CARRIES: bool = false;

    fn take(&mut self, _: usize) {}

    fn give(&mut self, (): ()) {}

    fn bytes((): &mut ()) -> &mut [u8] {
        &mut []
    }
}

/// An I/O that has completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completed {
    /// The time of its completion, from the beginning of counting.
    pub at: Nanos,
    /// Its direction.
    pub direction: Direction,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its first byte on the device.
    pub offset: u64,
    /// Its priority.
    pub prio: IoPrio,
    /// From the decision to issue it until it was pushed.
    pub slat: Nanos,
    /// From the push until its completion.
    pub clat: Nanos,
}

/// Takes down I/Os. Times never run backwards.
pub trait Journal: Send {
    /// Counting began `ago`.
    fn began(&mut self, ago: Nanos);

    /// `io` is pushed, at `at` from the start of the thread.
    fn issued(&mut self, at: Nanos, io: &NextIo);

    /// `io` has completed.
    fn completed(&mut self, io: &Completed);

    /// Counting has ended at `at`, or the checks after it. No I/O follows.
    fn ended(&mut self, at: Nanos);
}

#[cfg(test)]
mod tests {

    //! Workers over a port that only records its calls.

    use super::*;
    use crate::workload::{Amount, Depth, Latencies, PerDirection, Rw};
    use blkmq_core::IoError;
    use blkmq_engine::{Completion, Io, Refusal, Refused};
    use std::cell::Cell;
    use std::collections::VecDeque;

    /// Refuses one push, if `until_refusal` is set, and completes every other I/O immediately.
    #[derive(Default)]
    struct Notes {
        sectors: Vec<u64>,
        ended: VecDeque<Completion<()>>,
        /// I/Os of each portion.
        portions: Vec<usize>,
        pushed: usize,
        /// Pushes that are taken before one is refused.
        until_refusal: Option<usize>,
        looks: Cell<u64>,
        rough_times: u32,
    }

    impl Port<()> for Notes {
        fn now(&self) -> Instant {
            // Each read of the clock advances it.
            self.looks.set(self.looks.get() + 1);
            Instant::from_nanos(self.looks.get())
        }

        fn recently(&mut self) -> Instant {
            self.rough_times += 1;
            self.now()
        }

        fn push(&mut self, _: Instant, io: Io<()>) -> Result<(), Refused<()>> {
            if self.until_refusal == Some(self.sectors.len()) {
                return Err(Refused::new(io, Refusal::OutOfRange { capacity: 0 }));
            }
            self.sectors.push(io.sector);
            self.ended.push_back(Completion { cookie: io.cookie, result: Ok(()), payload: () });
            self.pushed += 1;
            Ok(())
        }

        fn flush(&mut self, _: Instant) {
            self.portions.push(std::mem::take(&mut self.pushed));
        }

        fn cancel(&mut self, _: Instant, _: u64) {}

        fn outstanding(&self) -> u32 {
            self.ended.len() as u32
        }
    }

    /// 20 reads of 4 KiB at depth 16, in portions of 8, without latencies.
    fn reads() -> Job {
        Job {
            rw: Rw::RandRead,
            norandommap: true,
            size: Some(Amount::Bytes(1 << 20)),
            number_ios: Some(20),
            latencies: Latencies::NONE,
            depth: Depth {
                iodepth: 16,
                low: 16,
                batch_submit: 8,
                batch_complete_min: 8,
                batch_complete_max: 8,
            },
            ..Job::default()
        }
    }

    fn generator(job: &Job) -> Generator {
        Generator::new(job, 0, 1 << 30).expect("the job fits")
    }

    fn worker(job: &Job) -> Worker<'_, (), NoBuffers> {
        let stream = Stream {
            generator: generator(job),
            verifier: None,
            owner: Owner(1),
            group: GroupId::ROOT,
            ties: Ties::default(),
        };
        Worker::new(job, stream, NoBuffers, Window::of(job, Instant::ZERO))
    }

    fn run(job: &Job, mut port: Notes) -> (Notes, Tally) {
        let mut worker = worker(job);
        loop {
            match worker.step(&mut port) {
                Step::Over => return (port, worker.into_tally()),
                Step::Go | Step::Sleep { .. } => {}
                Step::Look { most } | Step::Wait { most, .. } => worker.take(
                    || Instant::ZERO,
                    |taking| {
                        let got = (most as usize).min(port.ended.len());
                        port.ended.drain(..got).for_each(|io| taking.take(io));
                        got as u32
                    },
                ),
            }
        }
    }

    #[test]
    fn ios_that_are_alike_are_those_of_the_stream_in_portions_of_the_same_size() {
        let job = reads();
        let (port, tally) = run(&job, Notes::default());
        let stream = Vec::from_iter(generator(&job).map(|io| io.sector));
        assert_eq!((port.sectors, port.portions), (stream, vec![8, 8, 4]));
        assert_eq!((tally.counts[0].ios, tally.counts[0].bytes), (20, 20 * 4096));
        assert_eq!(tally.submits.0.iter().sum::<u64>(), 3);
        let levels = tally.levels.0;
        assert_eq!(levels.iter().sum::<u64>(), 20, "each counted with its depth: {levels:?}");
    }

    #[test]
    fn only_portions_without_times_take_a_rough_time() {
        let rough = |job: &Job| run(job, Notes::default()).0.rough_times;
        assert!(rough(&reads()) >= 3);
        let timed = Job { latencies: Job::default().latencies, ..reads() };
        let paced = Job { rate_iops: PerDirection::all(Some(1_000_000_000)), ..reads() };
        let mixed = Job { rw: Rw::RandRw, ..reads() };
        assert_eq!([timed, paced, mixed].map(|job| rough(&job)), [0; 3]);
    }

    #[test]
    fn a_refused_io_ends_the_thread_and_is_not_counted_as_in_flight() {
        let (port, tally) = run(&reads(), Notes { until_refusal: Some(11), ..Notes::default() });
        assert_eq!(port.portions, [8, 3], "the portion of the refused one is the last");
        assert_eq!(tally.counts[0].ios, 11);
        assert_eq!(tally.error, IoError::from(Refusal::OutOfRange { capacity: 0 }).0);
    }

    #[test]
    fn completions_that_are_waited_for_have_times_of_their_own() {
        let job = Job { latencies: Job::default().latencies, ..reads() };
        let (mut worker, mut port) = (worker(&job), Notes::default());
        let least = loop {
            if let Step::Wait { least, .. } = worker.step(&mut port) {
                break least;
            }
        };
        assert_eq!(least, 8);
        let time = Cell::new(1_000);
        let mut ended = port.ended.drain(..4);
        worker.take(
            || Instant::from_nanos(time.get()),
            |taking| {
                for io in ended.by_ref().take(2) {
                    taking.take(io);
                    time.set(2_000);
                }
                for io in ended {
                    time.set(time.get() + 10_000);
                    taking.take_later(io);
                }
                4
            },
        );
        let clat = worker.tally.counts[0].times.clat.as_ref().expect("it is measured");
        assert_eq!(clat.count(), 4);
        let [low, high] = [clat.min(), clat.max()];
        assert!(low < 1_000 && (21_000..22_000).contains(&high), "{low} to {high}");
        assert!((8_000.0..9_000.0).contains(&clat.mean()), "{}", clat.mean());
    }
}
