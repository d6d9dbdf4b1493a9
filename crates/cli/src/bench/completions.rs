//! Completions of one thread: counted, timed, checked, and their places and payloads taken back.

use super::payload::{BenchPayload, Pool};
use super::tally::{Tally, Times};
use super::verify::{Purpose, Verifying};
use blkmq_core::{Instant, IoError, Nanos, SECTOR_SIZE};
use blkmq_engine::Completion;
use blkmq_lab::workload::{Direction, NextIo};
use blkmq_runtime::Clock;

/// What a worker must know of an I/O again when it comes back: direction, then length in sectors, then its
/// place in flight.
#[derive(Clone, Copy)]
pub struct Cookie(pub u64);

const SECTORS_SHIFT: u32 = 2;
const SLOT_SHIFT: u32 = 34;
/// The direction of a flush, which has none.
const FLUSH: u64 = 3;

impl Cookie {
    #[inline]
    pub fn new(io: &NextIo, slot: u32) -> Self {
        let direction = Direction::of(io.op).map_or(FLUSH, |d| d as u64);
        Self(direction | u64::from(io.sectors) << SECTORS_SHIFT | u64::from(slot) << SLOT_SHIFT)
    }

    /// `FLUSH` or a [`Direction`].
    #[inline]
    fn direction(self) -> u64 {
        self.0 & ((1 << SECTORS_SHIFT) - 1)
    }

    #[inline]
    fn sectors(self) -> u64 {
        self.0 >> SECTORS_SHIFT & u64::from(u32::MAX)
    }

    #[inline]
    fn slot(self) -> u32 {
        (self.0 >> SLOT_SHIFT) as u32
    }
}

/// Places in flight, and when the I/O in each was decided on and handed over.
pub struct Stamps {
    pub free: Vec<u32>,
    /// Places of the batch that is being gathered.
    pub batch: Vec<u32>,
    start: Box<[Instant]>,
    pub issued: Box<[Instant]>,
}

impl Stamps {
    pub fn new(depth: u32) -> Self {
        let places = depth as usize;
        Self {
            free: (0..depth).rev().collect(),
            batch: Vec::with_capacity(places),
            start: vec![Instant::ZERO; places].into_boxed_slice(),
            issued: vec![Instant::ZERO; places].into_boxed_slice(),
        }
    }

    pub fn begin(&mut self, now: Instant) -> u32 {
        let slot = self.free.pop().expect("a place for each I/O that may be in flight");
        self.start[slot as usize] = now;
        self.batch.push(slot);
        slot
    }
}

/// Takes the completions of one portion.
pub struct Taking<'a, P: BenchPayload> {
    pub tally: &'a mut Tally,
    pub stamps: &'a mut Option<Stamps>,
    pub verify: &'a mut Option<Verifying>,
    pub pool: &'a mut Pool<P>,
    pub clock: Clock,
    /// Read once for what is taken together.
    pub now: Option<Instant>,
    /// Reads among them that only check.
    pub checks: u32,
    /// The thread has to end.
    pub failed: bool,
}

impl<P: BenchPayload> Taking<'_, P> {
    #[inline]
    pub fn take(&mut self, mut io: Completion<P>) {
        let cookie = Cookie(io.cookie);
        let direction = cookie.direction();
        if let Err(IoError(errno)) = io.result {
            self.failed = true;
            if self.tally.error == 0 {
                self.tally.error = errno;
            }
        }
        let purpose = self.check(&mut io);
        self.pool.give(io.payload);
        match purpose {
            Purpose::Work => self.count(cookie),
            Purpose::Check => self.checks += 1,
        }
        if let Some(stamps) = self.stamps {
            let slot = cookie.slot();
            stamps.free.push(slot);
            if direction != FLUSH && purpose == Purpose::Work {
                let now = *self.now.get_or_insert_with(|| self.clock.now());
                let times = &mut self.tally.counts[direction as usize].times;
                let (start, issued) = (stamps.start[slot as usize], stamps.issued[slot as usize]);
                record(times, start, issued, now);
            }
        }
    }

    #[inline]
    fn check(&mut self, io: &mut Completion<P>) -> Purpose {
        if P::CARRIES
            && let Some(verify) = self.verify
        {
            let purpose = verify.end(Cookie(io.cookie).slot(), io.result, io.payload.bytes());
            self.failed |= verify.verifier().is_fatal();
            return purpose;
        }
        Purpose::Work
    }

    #[inline]
    fn count(&mut self, cookie: Cookie) {
        let direction = cookie.direction();
        if direction == FLUSH {
            self.tally.flushes += 1;
        } else {
            let counts = &mut self.tally.counts[direction as usize];
            counts.ios += 1;
            counts.bytes += cookie.sectors() * u64::from(SECTOR_SIZE);
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
