//! One thread of a job: issues what its generator says, when its pacer lets it, in fio's portions.

use super::tally::{Tally, Times};
use super::usage::Usage;
use blkmq_core::{Instant, IoError, Nanos, SECTOR_SIZE};
use blkmq_engine::{Completion, Io, Refusal};
use blkmq_lab::workload::{Direction, Generator, Job, NextIo, Pace, Pacer};
use blkmq_runtime::{Client, Clock};

/// Under `gtod_reduce` one submission in so many is timed, to know the longest.
const TIMED_SUBMISSIONS: u32 = 64;
/// Cookie layout: direction, then length in sectors, then the place in the table of times.
const SECTORS_SHIFT: u32 = 2;
const SLOT_SHIFT: u32 = 34;
/// The direction of a flush, which has none.
const FLUSH: u64 = 3;

/// Drives one client.
pub struct Worker<'a> {
    job: &'a Job,
    client: Client<()>,
    clock: Clock,
    generator: Generator,
    pacer: Pacer,
    /// Drawn and not yet issued.
    next: Option<NextIo>,
    tally: Tally,
    stamps: Option<Stamps>,
    submissions: u32,
    stopped: bool,
}

/// When each I/O in flight was decided on and handed over.
struct Stamps {
    free: Vec<u32>,
    /// Places of the batch that is being gathered.
    batch: Vec<u32>,
    start: Box<[Instant]>,
    issued: Box<[Instant]>,
}

/// Why a portion ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// As many as go together.
    Batch,
    /// As many as may be in flight.
    Depth,
    /// The next one's time has not come.
    Paced(Instant),
    /// A pause begins when nothing is in flight.
    Drain,
    /// There are no more.
    End,
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

impl<'a> Worker<'a> {
    pub fn new(job: &'a Job, generator: Generator, client: Client<()>, window: Window) -> Self {
        let depth = job.depth.iodepth as usize;
        let latencies = job.latencies;
        let timed = latencies.slat || latencies.clat || latencies.lat;
        let clock = client.clock();
        Self {
            job,
            clock,
            generator,
            pacer: Pacer::new(job, window.start),
            next: None,
            tally: Tally::new(job, window.start),
            stamps: timed.then(|| Stamps {
                free: (0..depth as u32).rev().collect(),
                batch: Vec::with_capacity(depth),
                start: vec![Instant::ZERO; depth].into_boxed_slice(),
                issued: vec![Instant::ZERO; depth].into_boxed_slice(),
            }),
            client,
            submissions: 0,
            stopped: false,
        }
    }

    /// Runs until its time is over or there is no more to do, then waits for what is in flight.
    pub fn run(mut self, window: Window) -> Tally {
        self.clock.sleep_until(window.start);
        let mut usage = Usage::of_thread();
        let mut measuring = window.measure <= window.start;
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
        }
        while self.client.in_flight() > 0 {
            let in_flight = self.client.in_flight();
            self.wait(Instant::MAX, in_flight, in_flight);
        }
        self.tally.ended = self.clock.now();
        self.tally.usage = Usage::of_thread().since(usage);
        self.tally
    }

    /// Submits one portion.
    fn fill(&mut self, now: Instant) -> Stop {
        let depth = self.job.depth;
        let mut batch = 0;
        let stop = loop {
            if batch == depth.batch_submit {
                break Stop::Batch;
            }
            let in_flight = self.client.in_flight();
            if in_flight == depth.iodepth {
                break Stop::Depth;
            }
            let Some(io) = self.next.take().or_else(|| self.generator.next()) else {
                break Stop::End;
            };
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
            self.push(now, &io);
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
    fn push(&mut self, now: Instant, io: &NextIo) {
        let slot = self.stamps.as_mut().map_or(0, |stamps| stamps.begin(now));
        let direction = Direction::of(io.op).map_or(FLUSH, |d| d as u64);
        let cookie =
            direction | u64::from(io.sectors) << SECTORS_SHIFT | u64::from(slot) << SLOT_SHIFT;
        let io = Io {
            flags: io.flags,
            ioprio: io.prio,
            ..Io::new(io.op, io.sector, io.sectors, cookie, ())
        };
        if let Err(refused) = self.client.push(now, io) {
            // Shapes were checked before the run; this ends the thread with an error instead of a panic.
            self.refused(refused.why, slot);
        }
    }

    #[cold]
    fn refused(&mut self, why: Refusal, slot: u32) {
        let error = match why {
            Refusal::Unsupported(_) => IoError::NOT_SUPPORTED,
            Refusal::OutOfRange { .. } => IoError::NO_SPACE,
            Refusal::NoCredit { .. } | Refusal::Misaligned { .. } | Refusal::TooLong { .. } => {
                IoError::INVALID
            }
        };
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
        let in_flight = self.client.in_flight();
        match stop {
            Stop::Batch if in_flight < depth.iodepth => {
                if depth.batch_complete_min == 0 {
                    self.client.poll();
                    self.reap(depth.batch_complete_max);
                }
            }
            Stop::Batch | Stop::Depth => loop {
                self.wait(end, depth.batch_complete_min.max(1), depth.batch_complete_max);
                if self.client.in_flight() <= depth.low.min(depth.iodepth - 1)
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
            Stop::Drain => self.wait(end, in_flight, in_flight),
            Stop::End => return false,
        }
        true
    }

    fn wait(&mut self, until: Instant, least: u32, most: u32) {
        let mut taking = Taking::new(&mut self.tally, &mut self.stamps, self.clock);
        let got = self.client.wait_until(until, least, most, |io| taking.take(&io));
        self.stopped |= taking.failed;
        self.tally.completes.record(got);
    }

    fn reap(&mut self, most: u32) {
        let mut taking = Taking::new(&mut self.tally, &mut self.stamps, self.clock);
        let got = self.client.reap(most, |io| taking.take(&io));
        self.stopped |= taking.failed;
        self.tally.completes.record(got);
    }
}

impl Stamps {
    fn begin(&mut self, now: Instant) -> u32 {
        let slot = self.free.pop().expect("a place for each I/O that may be in flight");
        self.start[slot as usize] = now;
        self.batch.push(slot);
        slot
    }
}

/// Counts the completions of one portion.
struct Taking<'a> {
    tally: &'a mut Tally,
    stamps: &'a mut Option<Stamps>,
    clock: Clock,
    /// Read once for what is taken together.
    now: Option<Instant>,
    failed: bool,
}

impl<'a> Taking<'a> {
    fn new(tally: &'a mut Tally, stamps: &'a mut Option<Stamps>, clock: Clock) -> Self {
        Self { tally, stamps, clock, now: None, failed: false }
    }

    #[inline]
    fn take(&mut self, io: &Completion<()>) {
        let direction = io.cookie & ((1 << SECTORS_SHIFT) - 1);
        let sectors = (io.cookie >> SECTORS_SHIFT) & u64::from(u32::MAX);
        if let Err(IoError(errno)) = io.result {
            self.failed = true;
            if self.tally.error == 0 {
                self.tally.error = errno;
            }
        }
        if direction == FLUSH {
            self.tally.flushes += 1;
        } else {
            let counts = &mut self.tally.counts[direction as usize];
            counts.ios += 1;
            counts.bytes += sectors * u64::from(SECTOR_SIZE);
        }
        if let Some(stamps) = self.stamps {
            let now = *self.now.get_or_insert_with(|| self.clock.now());
            let slot = (io.cookie >> SLOT_SHIFT) as u32;
            stamps.free.push(slot);
            if direction != FLUSH {
                let times = &mut self.tally.counts[direction as usize].times;
                let (start, issued) = (stamps.start[slot as usize], stamps.issued[slot as usize]);
                record(times, start, issued, now);
            }
        }
    }
}

fn record(times: &mut Times, start: Instant, issued: Instant, now: Instant) {
    let take = |histogram: &mut Option<_>, span: Nanos| {
        if let Some(histogram) = histogram.as_mut() {
            blkmq_core::Histogram::record(histogram, span.0);
        }
    };
    take(&mut times.slat, issued - start);
    take(&mut times.clat, now - issued);
    take(&mut times.lat, now - start);
}
