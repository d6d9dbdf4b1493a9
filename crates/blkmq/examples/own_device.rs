//! A device in one file, and a queue around it. `Ram` stores its data in memory and serves one request at a time; a
//! request takes 5 us, plus 1 us for each 4 KiB.
//!
//! The page of [`DeviceQueue`] describes the calls that a device gets and the answers that it must give. A hardware
//! driver would pass requests to the hardware in `enqueue`, ring the doorbell in `commit`, and return `None` from
//! `next_event`, because interrupts report completions. This device is virtual and computes when a request is finished.
//! A device must return each [`Inflight`] token exactly once.
//!
//! `cargo run --release --example own_device`

use blkmq::core::{Instant, Limits, Nanos, Payload, SECTOR_SIZE};
use blkmq::engine::{BioTable, DeviceQueue, DeviceShape, Enqueued, Finished, Inflight, NoMerges};
use blkmq::engine::{DEFAULT_TIMEOUT, Verdict, WriteCache};
use blkmq::prelude::*;
use std::collections::VecDeque;
use std::error::Error;

const CAPACITY: u64 = 8192;
const SETUP: Nanos = Nanos::from_micros(5);
const PER_SECTOR: Nanos = Nanos(125);

/// The only hardware queue of the device. It needs no lock: only the thread that runs the pump calls it.
pub struct Ram {
    memory: Vec<u8>,
    /// The requests in service, in order of arrival, which is also the order in which they finish.
    serving: VecDeque<Serving>,
    /// The time at which all accepted requests are finished.
    free_at: Instant,
}

struct Serving {
    until: Instant,
    rq: Inflight,
    result: IoResult,
}

impl Ram {
    /// Returns a device with 4 MiB of zeroes.
    pub fn zeroed() -> Self {
        let memory = vec![0; (CAPACITY * u64::from(SECTOR_SIZE)) as usize];
        Self { memory, serving: VecDeque::new(), free_at: Instant::ZERO }
    }

    /// Returns the shape, from which the engine takes the limits of merging and the number of driver tags.
    pub fn shape() -> DeviceShape {
        DeviceShape {
            hw_queues: 1,
            hw_queue_depth: 32,
            shared_tags: false,
            budget: None,
            limits: Limits {
                max_sectors: 1024,
                max_write_zeroes_sectors: 1024,
                capacity: CAPACITY,
                ..Limits::default()
            },
            // The device has no volatile cache, so there is nothing to flush.
            cache: WriteCache::Through,
            timeout: DEFAULT_TIMEOUT,
        }
    }

    /// Moves the data of a request. A merged request has several bios, each with its own payload.
    fn transfer<P: Payload>(&mut self, bios: &BioTable<P>, rq: &Inflight) -> IoResult {
        rq.bios(bios).try_for_each(|bio| {
            // The queue has checked each I/O against the capacity.
            let start = (bio.sector * u64::from(SECTOR_SIZE)) as usize;
            let memory = &mut self.memory[start..][..(bio.sectors * SECTOR_SIZE) as usize];
            match (rq.op(), bio.payload.data_len()) {
                // A payload without data moves no data.
                (Op::Read | Op::Write, None) => Ok(()),
                // A buffer that differs in length from its I/O is a mistake of the caller: an error, not a panic.
                (Op::Read | Op::Write, Some(len)) if len != memory.len() => Err(IoError::INVALID),
                (Op::Read, _) => bio.payload.read_from(0, memory),
                (Op::Write, _) => bio.payload.write_to(0, memory),
                (Op::WriteZeroes, _) => {
                    memory.fill(0);
                    Ok(())
                }
                // Memory has no cache to flush.
                (Op::Flush, _) => Ok(()),
                // The limits allow no discards, so none arrives.
                (Op::Discard, _) => Err(IoError::NOT_SUPPORTED),
            }
        })
    }
}

impl<P: Payload> DeviceQueue<P> for Ram {
    fn enqueue(&mut self, now: Instant, bios: &BioTable<P>, rq: Inflight) -> Enqueued {
        // The data moves now, and the completion follows later. A device whose data comes later puts it into the bios
        // in `reap`.
        let result = self.transfer(bios, &rq);
        let until = self.free_at.max(now) + SETUP + Nanos(PER_SECTOR.0 * u64::from(rq.sectors()));
        self.free_at = until;
        self.serving.push_back(Serving { until, rq, result });
        Enqueued::Accepted
    }

    fn reap(&mut self, now: Instant, _: &BioTable<P>, out: &mut Vec<Finished>) {
        while self.serving.front().is_some_and(|first| first.until <= now) {
            let first = self.serving.pop_front().expect("there is a first one");
            out.push(Finished { rq: first.rq, verdict: Verdict::Done(first.result) });
        }
    }

    fn next_event(&self) -> Option<Instant> {
        // `None` would mean that the device cannot tell, and the engine would poll it.
        Some(self.serving.front().map_or(Instant::MAX, |first| first.until))
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        out.extend(self.serving.drain(..).map(|serving| serving.rq));
    }
}

const PAGE: usize = 4096;
const PAGES: u64 = 512;
/// Pages that are written or read together, in one plug.
const BATCH: u64 = 32;
/// Pages with their numbers.
type Pages = Vec<(u64, Vec<u8>)>;

/// Writes pages, reads them back and compares them, with and without merging.
pub fn main() -> Result<(), Box<dyn Error>> {
    for (nomerges, text) in [(NoMerges::All, "merging on"), (NoMerges::None, "merging off")] {
        let queues: Vec<Box<dyn DeviceQueue<AlignedBuf>>> = vec![Box::new(Ram::zeroed())];
        let config = Config { nomerges, ..Config::new(Ram::shape(), queues) };
        let service = Service::start(config)?;
        let mut client = service.client()?;
        for first in (0..PAGES).step_by(BATCH as usize) {
            batch(&mut client, Op::Write, first, |page| vec![page as u8; PAGE])?;
        }
        for first in (0..PAGES).step_by(BATCH as usize) {
            for (page, bytes) in batch(&mut client, Op::Read, first, |_| vec![0; PAGE])? {
                if bytes.iter().any(|byte| *byte != page as u8) {
                    return Err(format!("page {page} did not come back as written").into());
                }
            }
        }
        let (requests, time) = (service.stats().completed_requests, client.clock().now());
        let micros = time.as_nanos() / 1000;
        println!("{text}: {PAGES} pages there and back in {requests} requests and {micros} us");
    }
    Ok(())
}

/// Does `op` on a batch of pages from `first` on, and returns the pages with their numbers.
fn batch(
    client: &mut Client<AlignedBuf>,
    op: Op,
    first: u64,
    bytes: impl Fn(u64) -> Vec<u8>,
) -> Result<Pages, Box<dyn Error>> {
    for page in first..first + BATCH {
        let (place, payload) = (Bytes(page * PAGE as u64), AlignedBuf::copy_of(&bytes(page)));
        let io = if op == Op::Read { Io::read(place, payload) } else { Io::write(place, payload) };
        client.push(io.cookie(page))?;
    }
    let (mut outcome, mut pages) = (Ok(()), Vec::new());
    client.wait(BATCH as u32, BATCH as u32, |done| {
        outcome = outcome.and(done.result);
        let mut payload = done.payload;
        pages.push((done.cookie, payload.as_mut_slice().to_vec()));
    });
    outcome?;
    Ok(pages)
}
