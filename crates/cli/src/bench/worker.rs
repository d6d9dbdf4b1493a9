//! One thread of a job: issues what its generator says, when its pacer lets it, in fio's portions; and reads
//! back what it wrote, if it verifies.
//!
//! What becomes of what has come back is in `completions.rs`.

use super::completions::{Cookie, Stamps, Taking};
use super::payload::{BenchPayload, Pool};
use super::tally::Tally;
use super::usage::Usage;
use super::verify::{Purpose, Verifying};
use blkmq_core::{Instant, IoError, Op, SECTOR_SIZE};
use blkmq_engine::{Io, Refusal, Refused};
use blkmq_lab::workload::{BlockSize, Generator, Job, NextIo, Pace, Pacer, Verifier};
use blkmq_runtime::{Client, Clock};

/// Under `gtod_reduce` one submission in so many is timed, to know the longest.
const TIMED_SUBMISSIONS: u32 = 64;
/// fio's error for contents that are not what was written: EILSEQ.
const WRONG_CONTENTS: u16 = 84;

/// Drives one client, with payloads of type `P`.
pub struct Worker<'a, P: BenchPayload> {
    job: &'a Job,
    client: Client<P>,
    clock: Clock,
    generator: Generator,
    pacer: Pacer,
    /// Drawn and not yet issued.
    next: Option<NextIo>,
    tally: Tally,
    stamps: Option<Stamps>,
    verify: Option<Verifying>,
    pool: Pool<P>,
    submissions: u32,
    stopped: bool,
}

/// Why a portion ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// As many as go together.
    Batch,
    /// As many as may be in flight.
    Depth,
    /// The next one goes to blocks that something else is on its way to.
    Occupied,
    /// The next one's time has not come.
    Paced(Instant),
    /// A pause begins when nothing is in flight.
    Drain,
    /// There are no more.
    End,
}

/// What a thread is to issue, and how its contents are checked if they are.
pub struct Stream {
    pub generator: Generator,
    /// Only with a payload that carries something.
    pub verifier: Option<Verifier>,
}

/// Bytes of the longest I/O of `job`.
pub fn longest(job: &Job) -> usize {
    let used = job.rw.directions().iter().map(|direction| &job.bs[*direction]);
    used.map(BlockSize::max).max().unwrap_or(0) as usize
}

/// When a thread runs and when it counts.
#[derive(Clone, Copy)]
pub struct Window {
    pub start: Instant,
    pub measure: Instant,
    pub end: Instant,
}

impl Window {
    /// For a thread of `job` whose phase begins at `now`.
    pub fn of(job: &Job, now: Instant) -> Self {
        let start = now + job.startdelay;
        let measure = start + job.ramp_time;
        Self { start, measure, end: job.runtime.map_or(Instant::MAX, |runtime| measure + runtime) }
    }
}

impl<'a, P: BenchPayload> Worker<'a, P> {
    pub fn new(
        job: &'a Job,
        stream: Stream,
        client: Client<P>,
        source: P::Source,
        window: Window,
    ) -> Self {
        let depth = job.depth.iodepth;
        let latencies = job.latencies;
        let Stream { generator, verifier } = stream;
        // Verification needs the places in flight, if not their times.
        let timed = latencies.slat || latencies.clat || latencies.lat || verifier.is_some();
        Self {
            job,
            clock: client.clock(),
            generator,
            pacer: Pacer::new(job, window.start),
            next: None,
            tally: Tally::new(job, window.start),
            stamps: timed.then(|| Stamps::new(depth)),
            verify: verifier.map(|verifier| Verifying::new(verifier, depth)),
            pool: Pool::new(depth, longest(job), source),
            client,
            submissions: 0,
            stopped: false,
        }
    }

    /// Runs until its time is over or there is no more to do, waits for what is in flight, and then reads back
    /// what is to be verified.
    pub fn run(mut self, window: Window) -> Tally {
        self.clock.sleep_until(window.start);
        let mut usage = Usage::of_thread();
        let mut measuring = window.measure <= window.start;
        self.skip_if_only_verifying();
        loop {
            let now = self.clock.now();
            if now >= window.end || self.stopped {
                break;
            }
            if !measuring && now >= window.measure {
                measuring = true;
                let error = self.tally.error;
                self.tally = Tally { error, ..Tally::new(self.job, now) };
                usage = Usage::of_thread();
            }
            self.tally.sample(now);
            let stop = self.fill(now);
            if !self.complete(stop, window.end) {
                break;
            }
            if self.verifying().is_some_and(|verify| verify.verifier().is_due()) {
                self.read_back();
            }
        }
        self.drain();
        self.tally.ended = self.clock.now();
        self.tally.usage = Usage::of_thread().since(usage);
        self.read_back();
        if let Some(verify) = self.verify {
            let findings = verify.into_findings();
            if findings.errors > 0 && self.tally.error == 0 {
                self.tally.error = WRONG_CONTENTS;
            }
            self.tally.verify = Some(findings);
        }
        self.tally
    }

    /// None where there is nothing to carry, which the compiler knows.
    #[inline]
    fn verifying(&mut self) -> Option<&mut Verifying> {
        if P::CARRIES { self.verify.as_mut() } else { None }
    }

    /// With `verify_only` the whole stream counts as issued, by an earlier run.
    fn skip_if_only_verifying(&mut self) {
        if let Some(verify) = &mut self.verify
            && verify.verifier().is_only()
        {
            verify.verifier().replay(&mut self.generator);
        }
    }

    /// Waits for everything in flight.
    fn drain(&mut self) {
        while self.client.outstanding() > 0 {
            let in_flight = self.client.outstanding();
            self.wait(Instant::MAX, in_flight, in_flight);
        }
    }

    /// Issues the reads that are to check what was written, and waits for everything in flight. Neither paced
    /// nor ended by the clock, as nothing would be known of what is left.
    fn read_back(&mut self) {
        while !self.stopped {
            let now = self.clock.now();
            let mut batch = 0;
            while batch < self.job.depth.batch_submit
                && self.client.outstanding() < self.job.depth.iodepth
                && let Some(io) = self.verifying().and_then(Verifying::next_check)
            {
                self.push(now, &io, Purpose::Check);
                batch += 1;
            }
            let in_flight = self.client.outstanding();
            if batch > 0 {
                self.flush(now);
            } else if in_flight == 0 {
                break;
            }
            if batch == 0 || in_flight == self.job.depth.iodepth {
                self.wait(Instant::MAX, 1, in_flight);
            }
        }
        self.drain();
    }

    /// Submits one portion.
    fn fill(&mut self, now: Instant) -> Stop {
        let depth = self.job.depth;
        let mut batch = 0;
        let stop = loop {
            if batch == depth.batch_submit {
                break Stop::Batch;
            }
            let in_flight = self.client.outstanding();
            if in_flight == depth.iodepth {
                break Stop::Depth;
            }
            let Some(io) = self.next.take().or_else(|| self.generator.next()) else {
                break Stop::End;
            };
            if self.verifying().is_some_and(|verify| !verify.verifier().admits(&io)) {
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
            self.push(now, &io, Purpose::Work);
            self.pacer.issued(&io);
            self.tally.levels.record(in_flight + 1);
            batch += 1;
        };
        if batch > 0 {
            self.tally.submits.record(batch);
            self.flush(now);
        }
        stop
    }

    #[inline]
    fn push(&mut self, now: Instant, io: &NextIo, purpose: Purpose) {
        let slot = self.stamps.as_mut().map_or(0, |stamps| stamps.begin(now));
        let moves = matches!(io.op, Op::Read | Op::Write);
        let bytes = if moves { io.sectors * SECTOR_SIZE } else { 0 };
        let mut payload = self.pool.take(bytes as usize);
        if let Some(verify) = self.verifying() {
            verify.begin(slot, io, purpose, payload.bytes());
        }
        let cookie = Cookie::new(io, slot).0;
        let io = Io {
            flags: io.flags,
            ioprio: io.prio,
            ..Io::new(io.op, io.sector, io.sectors, cookie, payload)
        };
        if let Err(refused) = self.client.push(now, io) {
            // Shapes were checked before the run; this ends the thread with an error instead of a panic.
            self.refused(refused, slot);
        }
    }

    #[cold]
    fn refused(&mut self, refused: Refused<P>, slot: u32) {
        let error = match refused.why {
            Refusal::Unsupported(_) => IoError::NOT_SUPPORTED,
            Refusal::OutOfRange { .. } => IoError::NO_SPACE,
            Refusal::NoWait { .. } => IoError::AGAIN,
            Refusal::NoCredit { .. } | Refusal::Misaligned { .. } | Refusal::TooLong { .. } => {
                IoError::INVALID
            }
        };
        let mut payload = refused.io.payload;
        if let Some(verify) = self.verifying() {
            verify.end(slot, Err(error), payload.bytes());
        }
        self.pool.give(payload);
        self.tally.error = error.0;
        self.stopped = true;
        if let Some(stamps) = &mut self.stamps {
            stamps.batch.pop();
            stamps.free.push(slot);
        }
    }

    /// Hands the portion over.
    fn flush(&mut self, now: Instant) {
        self.submissions = self.submissions.wrapping_add(1);
        let Some(stamps) = &mut self.stamps else {
            let timed = self.submissions.is_multiple_of(TIMED_SUBMISSIONS);
            let before = if timed { self.clock.now() } else { Instant::ZERO };
            self.client.flush(now);
            if timed {
                let took = self.clock.now() - before;
                self.tally.longest_call = self.tally.longest_call.max(took);
            }
            return;
        };
        let before = self.clock.now();
        self.client.flush(now);
        let after = self.clock.now();
        self.tally.longest_call = self.tally.longest_call.max(after - before);
        for slot in stamps.batch.drain(..) {
            stamps.issued[slot as usize] = after;
        }
    }

    /// Takes completions as the portion's end asks for. False if there is nothing more to do.
    fn complete(&mut self, stop: Stop, end: Instant) -> bool {
        let depth = self.job.depth;
        let in_flight = self.client.outstanding();
        match stop {
            Stop::Batch if in_flight < depth.iodepth => {
                if depth.batch_complete_min == 0 {
                    self.client.poll();
                    self.reap(depth.batch_complete_max);
                }
            }
            Stop::Batch | Stop::Depth => loop {
                self.wait(end, depth.batch_complete_min.max(1), depth.batch_complete_max);
                if self.client.outstanding() <= depth.low.min(depth.iodepth - 1)
                    || self.clock.now() >= end
                {
                    break;
                }
                // With `iodepth_low` at its default one portion is enough.
                if depth.low == depth.iodepth {
                    break;
                }
            },
            Stop::Paced(at) => {
                let until = at.min(end);
                if in_flight > 0 {
                    self.wait(until, in_flight, in_flight);
                }
                self.clock.sleep_until(until);
            }
            Stop::Occupied => self.wait(end, 1, in_flight),
            Stop::Drain => self.wait(end, in_flight, in_flight),
            Stop::End => return false,
        }
        true
    }

    fn wait(&mut self, until: Instant, least: u32, most: u32) {
        self.take(|client, taking| client.wait_until(until, least, most, |io| taking.take(io)));
    }

    fn reap(&mut self, most: u32) {
        self.take(|client, taking| client.reap(most, |io| taking.take(io)));
    }

    #[inline]
    fn take(&mut self, from: impl FnOnce(&mut Client<P>, &mut Taking<'_, P>) -> u32) {
        let mut taking = Taking {
            tally: &mut self.tally,
            stamps: &mut self.stamps,
            verify: &mut self.verify,
            pool: &mut self.pool,
            clock: self.clock,
            now: None,
            checks: 0,
            failed: false,
        };
        let got = from(&mut self.client, &mut taking);
        let (failed, checks) = (taking.failed, taking.checks);
        self.stopped |= failed;
        if checks == 0 || got > checks {
            self.tally.completes.record(got - checks);
        }
    }
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
