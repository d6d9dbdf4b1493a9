//! A device in one file, and a queue around it: `Ram` keeps what is written, serves one request after the
//! other, and takes 5 us for each and 1 us for every 4 KiB of it.
//!
//! What a device is told and must answer is on [`DeviceQueue`]. A real one would hand requests to hardware in
//! `enqueue`, ring its doorbell in `commit`, and say `None` in `next_event` because it interrupts; this one
//! is virtual and computes when a request is finished. Every [`Inflight`] token goes back exactly once.
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

/// The one hardware queue of the device. Nothing here is shared: it belongs to whoever pumps.
pub struct Ram {
    memory: Vec<u8>,
    /// In the order in which they end, which is the order in which they came.
    serving: VecDeque<Serving>,
    /// When everything taken so far is finished.
    free_at: Instant,
}

struct Serving {
    until: Instant,
    rq: Inflight,
    result: IoResult,
}

impl Ram {
    /// 4 MiB of zeroes.
    pub fn zeroed() -> Self {
        let memory = vec![0; (CAPACITY * u64::from(SECTOR_SIZE)) as usize];
        Self { memory, serving: VecDeque::new(), free_at: Instant::ZERO }
    }

    /// What the engine must know: merging is bounded by the limits, and driver tags by the depth.
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
            // What is written is where it stays: there is nothing to flush.
            cache: WriteCache::Through,
            timeout: DEFAULT_TIMEOUT,
        }
    }

    /// Moves the bytes. A merged request has several I/Os, each with a payload of its own.
    fn transfer<P: Payload>(&mut self, bios: &BioTable<P>, rq: &Inflight) -> IoResult {
        rq.bios(bios).try_for_each(|bio| {
            // The queue has checked every I/O against the capacity.
            let start = (bio.sector * u64::from(SECTOR_SIZE)) as usize;
            let memory = &mut self.memory[start..][..(bio.sectors * SECTOR_SIZE) as usize];
            match (rq.op(), bio.payload.data_len()) {
                // A payload that carries no data moves none.
                (Op::Read | Op::Write, None) => Ok(()),
                // A buffer of another length than its I/O is the caller's mistake, and no reason to panic.
                (Op::Read | Op::Write, Some(len)) if len != memory.len() => Err(IoError::INVALID),
                (Op::Read, _) => bio.payload.read_from(0, memory),
                (Op::Write, _) => bio.payload.write_to(0, memory),
                (Op::WriteZeroes, _) => {
                    memory.fill(0);
                    Ok(())
                }
                // What is in memory is as durable as it gets.
                (Op::Flush, _) => Ok(()),
                // The limits say that there is no discard, so none arrives.
                (Op::Discard, _) => Err(IoError::NOT_SUPPORTED),
            }
        })
    }
}

impl<P: Payload> DeviceQueue<P> for Ram {
    fn enqueue(&mut self, now: Instant, bios: &BioTable<P>, rq: Inflight) -> Enqueued {
        // Payloads can be seen in this call only, so the bytes move now and the answer comes later.
        let result = self.transfer(bios, &rq);
        let until = self.free_at.max(now) + SETUP + Nanos(PER_SECTOR.0 * u64::from(rq.sectors()));
        self.free_at = until;
        self.serving.push_back(Serving { until, rq, result });
        Enqueued::Accepted
    }

    fn reap(&mut self, now: Instant, out: &mut Vec<Finished>) {
        while self.serving.front().is_some_and(|first| first.until <= now) {
            let first = self.serving.pop_front().expect("there is a first one");
            out.push(Finished { rq: first.rq, verdict: Verdict::Done(first.result) });
        }
    }

    fn next_event(&self) -> Option<Instant> {
        // `None` would mean that it cannot tell, and have it polled.
        Some(self.serving.front().map_or(Instant::MAX, |first| first.until))
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        out.extend(self.serving.drain(..).map(|serving| serving.rq));
    }
}

const PAGE: usize = 4096;
const PAGES: u64 = 512;
/// Written or read together: one plug.
const BATCH: u64 = 32;
/// Pages by number.
type Pages = Vec<(u64, Vec<u8>)>;

/// Writes pages, reads them back and compares, with and without merging.
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

/// Does `op` with a batch of pages from `first` on, and returns them by number.
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
