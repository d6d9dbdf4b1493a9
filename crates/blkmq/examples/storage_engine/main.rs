//! A log-structured key-value store: a record that `put` has acknowledged survives kills and power cuts.
//!
//! `store.rs` is the store, a starting point for engines, with its blocks and its client. This file lets four writers
//! put records, cuts the power under them, and compares the acknowledged records with the recovered ones.
//!
//! `cargo run --release --example storage_engine` uses a device in memory. `... storage_engine uring:store.img,size=64`
//! puts records on a file until it is killed, and checks them at the next start.

pub mod store;

use blkmq::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
pub use store::Failure;
use store::{Reader, Store};

/// Threads that put.
const WRITERS: usize = 4;

/// Fills a store, cuts the power and compares; or fills a store on a file until it is killed.
pub fn main() -> Result<(), Failure> {
    if let Some(device) = std::env::args().nth(1).filter(|it| it.starts_with("uring:")) {
        let service = blkmq::open(&device)?.start("mq-deadline")?;
        let store = Store::open(&service)?;
        let begin = check(&mut store.reader(&service)?)?;
        println!("puts until now: {begin:?}");
        return load(&store, begin, |_, _| true).1;
    }
    let disk = blkmq::device("memory,size=64,cache_size=8")?;
    let cut = |writer, nth| {
        let is_time = (writer, nth) == (0, 400);
        if is_time {
            disk.memory().expect("it is a memory device").cut_power(1);
        }
        !is_time
    };
    let service = Service::start(disk.config())?;
    let store = Store::open(&service)?;
    let (told, ended) = load(&store, [0; WRITERS], cut);
    let why = ended.expect_err("the power is cut");
    drop((store, service));
    let service = Service::start(disk.config())?;
    let store = Store::open(&service)?;
    let found = check(&mut store.reader(&service)?)?;
    println!("puts acknowledged before the power cut ({why}): {told:?}; found: {found:?}");
    compare(told, found)?;
    store.close()?;
    Ok(service.close(blkmq::Nanos::from_secs(5))?)
}

/// A number of puts for each writer.
pub type Counts = [u64; WRITERS];

/// Each writer puts records, starting at its number in `begin`, as long as `goes_on` returns true for the last
/// acknowledged one. Returns the number after each writer's last acknowledged put, and why the writers stopped.
pub fn load(
    store: &Store,
    begin: Counts,
    goes_on: impl Fn(u64, u64) -> bool + Sync,
) -> (Counts, Result<(), Failure>) {
    let told = begin.map(AtomicU64::new);
    let write = |writer: usize| {
        for nth in begin[writer].. {
            store.put(&format!("{writer}/{}", key(nth)), &value(nth))?;
            told[writer].store(nth + 1, SeqCst);
            if !goes_on(writer as u64, nth) {
                break;
            }
        }
        Ok(())
    };
    let write = &write;
    let outcome = thread::scope(|scope| {
        let writers = Vec::from_iter((0..told.len()).map(|it| scope.spawn(move || write(it))));
        writers.into_iter().try_for_each(|it| it.join().expect("a writer does not panic"))
    });
    (told.map(AtomicU64::into_inner), outcome)
}

/// The key of the `nth` put. Of four sets of twenty keys, each is written three times, and then rests while the other
/// three are.
fn key(nth: u64) -> u64 {
    nth / 60 % 4 * 20 + nth % 20
}

fn value(nth: u64) -> String {
    format!("{nth:0>width$}", width = (nth * 613 % 3000) as usize)
}

/// Returns the number of puts of each writer that the stored records contain.
pub fn check(reader: &mut Reader) -> Result<Counts, Failure> {
    let mut counts = Counts::default();
    for (writer, count) in counts.iter_mut().enumerate() {
        let mut found = [None; 80];
        for (key, newest) in found.iter_mut().enumerate() {
            let value = reader.get(&format!("{writer}/{key}"))?;
            *newest = value.map(|text| text.parse::<u64>()).transpose()?;
        }
        *count = found.iter().flatten().max().map_or(0, |newest| newest + 1);
        let mut expected = [None; 80];
        (0..*count).for_each(|nth| expected[key(nth) as usize] = Some(nth));
        if found != expected {
            return Err(format!("of {writer} is {found:?} after {count} puts").into());
        }
    }
    Ok(counts)
}

/// Checks that every acknowledged put is there, and at most one further put of each writer.
pub fn compare(told: Counts, found: Counts) -> Result<(), Failure> {
    let holds = told.iter().zip(&found).all(|(told, found)| (*told..=told + 1).contains(found));
    if holds { Ok(()) } else { Err(format!("told {told:?}, found {found:?}").into()) }
}
