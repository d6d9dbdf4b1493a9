//! A small storage engine on blkmq: two writers append to logs and commit, and one reader looks up pages meanwhile.
//!
//! It shows the decisions that an engine has to make: a client for each thread, one clock reading for each batch,
//! buffers that travel with an I/O and return with its completion, a flush that makes a group durable, and owners and
//! priorities. The device is the null device, which stores no data; the device in `own_device.rs` does.
//!
//! `cargo run --release --example embed`

use blkmq::core::{Histogram, Rng};
use blkmq::prelude::*;
use blkmq::sched::Options;
use std::error::Error;
use std::thread;

/// The payload of an I/O. The queue never reads it; a device that stores data does.
type Page = AlignedBuf;
type Failure = Box<dyn Error + Send + Sync>;

const PAGE: usize = 4096;
const WRITERS: u64 = 2;
const READERS: u64 = 1;
/// Pages of a group, which become durable together.
const GROUP: u64 = 16;
/// Groups that each writer appends.
const COMMITS: u64 = 100;
const LOG_PAGES: u64 = GROUP * COMMITS;
const LOOK_UPS: u64 = 500;

/// Runs the engine and prints the latencies and the queue's statistics.
pub fn main() -> Result<(), Failure> {
    let service = open()?;
    let latencies = thread::scope(|scope| {
        let service = &service;
        let writers: Vec<_> =
            (0..WRITERS).map(|log| scope.spawn(move || append(service, log))).collect();
        let reader = scope.spawn(move || look_up(service));
        for writer in writers {
            writer.join().expect("a writer answers with an error and does not panic")?;
        }
        reader.join().expect("a reader answers with an error and does not panic")
    })?;
    let stats = service.stats();
    let micros = |share| latencies.quantile(share, 100) / 1000;
    println!("{} pages appended in {} commits", WRITERS * LOG_PAGES, WRITERS * COMMITS);
    println!("{LOOK_UPS} look-ups: p50 {} us, p99 {} us", micros(50), micros(99));
    println!(
        "{} I/Os became {} requests for the device: {} merged in plugs, {} in the scheduler",
        stats.submitted,
        stats.completed_requests,
        stats.merges.plug,
        stats.merges.total() - stats.merges.plug,
    );
    Ok(())
}

/// Starts a service for the device, with a scheduler.
fn open() -> Result<Service<Page>, Failure> {
    // Similar to a fast disk: each request takes 20 us, and the device serves 64 requests at once.
    let disk = blkmq::open("null,submit_queues=1,irqmode=2,completion_nsec=20000")?;
    let scheduler = blkmq::scheduler("mq-deadline").expect("built in");
    let mut config = disk.config()?.scheduler(scheduler);
    // The attributes have the names of sysfs: a read expires after 50 ms.
    config.options = Options::parse(scheduler.attributes, "read_expire=50")?;
    // One submitter for each thread, with at most 64 I/Os in flight each.
    config.submitters = (WRITERS + READERS) as u16;
    config.depth = 64;
    Ok(Service::start(config)?)
}

/// Appends groups of pages to one log. Each group is durable before the next group begins.
fn append(service: &Service<Page>, log: u64) -> Result<(), Failure> {
    // A client is used by one thread at a time.
    let mut client = service.client()?;
    let mut spare: Vec<Page> = (0..GROUP).map(|_| AlignedBuf::new(PAGE)).collect();
    spare.iter_mut().for_each(|page| page.as_mut_slice().fill(log as u8));
    for commit in 0..COMMITS {
        // A clock reading costs a third of an I/O. A batch reads the clock once, and flushes the plug when dropped.
        let mut batch = client.batch();
        for page in 0..GROUP {
            let place = Bytes((log * LOG_PAGES + commit * GROUP + page) * PAGE as u64);
            let buffer = spare.pop().expect("every buffer has come back");
            // Each log has its own owner: a scheduler such as bfq shares the device between owners.
            batch.push(Io::write(place, buffer).cookie(page).owner(Owner(log as u32)))?;
        }
        drop(batch);
        finish(&mut client, GROUP as u32, &mut spare)?;
        client.push(Io::flush())?;
        finish(&mut client, 1, &mut Vec::new())?;
    }
    Ok(())
}

/// Flushes the plug, waits for the `ios` I/Os in flight, and collects their buffers.
fn finish(client: &mut Client<Page>, ios: u32, buffers: &mut Vec<Page>) -> IoResult {
    let mut outcome = Ok(());
    client.wait(ios, ios, |done| {
        outcome = outcome.and(done.result);
        buffers.push(done.payload);
    });
    outcome
}

/// Reads pages one at a time, with a blocking call for each. Returns the latencies.
fn look_up(service: &Service<Page>) -> Result<Histogram, Failure> {
    let mut reader = service.blocking()?;
    let (mut page, mut random) = (AlignedBuf::new(PAGE), Rng::new(1));
    let urgent = IoPrio::new(Class::Realtime, 0).expect("0 is a level");
    let mut latencies = Histogram::new();
    for _ in 0..LOOK_UPS {
        let place = Bytes(random.below(WRITERS * LOG_PAGES) * PAGE as u64);
        let begun = service.clock().now();
        let (result, buffer) = reader.call(Io::read(place, page).ioprio(urgent))?;
        result?;
        latencies.record(service.clock().now().since(begun).0);
        page = buffer;
    }
    Ok(latencies)
}
