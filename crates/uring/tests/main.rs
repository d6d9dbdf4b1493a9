//! All files of tests in this folder, in one program, so that the engine's generic code is compiled and linked once;
//! and their helpers: services around a device, and blocks that are identified by their words. `cargo test -p
//! blkmq-uring --test all contents::` runs one file.

mod contents;
mod files;
mod owners;
mod refusals;
mod threads;

use blkmq_buf::AlignedBuf;
use blkmq_core::{IoResult, Op};
use blkmq_engine::{BlockDevice, Config, Io};
use blkmq_runtime::{Client, Service};
use blkmq_sched::registry;
use blkmq_uring::UringDevice;
use files::*;

/// Sectors in a block.
const SECTORS: u32 = BLOCK as u32 / 512;

/// A service around the device, with mq-deadline.
fn service(device: &UringDevice, submitters: u16) -> Service<AlignedBuf> {
    start(device.config().expect("rings can be made"), submitters)
}

fn start(config: Config<AlignedBuf>, submitters: u16) -> Service<AlignedBuf> {
    let scheduler = registry::find("mq-deadline").expect("registered");
    let config = Config { submitters, ..config.scheduler(scheduler) };
    Service::start(config).expect("a valid configuration")
}

/// Fills a block with a word.
fn fill(buf: &mut AlignedBuf, word: u64) {
    buf.as_mut_slice().chunks_exact_mut(8).for_each(|at| at.copy_from_slice(&word.to_le_bytes()));
}

fn is_filled(bytes: &[u8], word: u64) -> bool {
    bytes.chunks_exact(8).all(|at| at == word.to_le_bytes())
}

/// A new block filled with `word`.
fn block(word: u64) -> AlignedBuf {
    let mut buf = AlignedBuf::new(BLOCK);
    fill(&mut buf, word);
    buf
}

/// Does one I/O and waits for it.
fn call(client: &mut Client<AlignedBuf>, io: Io<AlignedBuf>) -> (IoResult, AlignedBuf) {
    let now = client.clock().now();
    client.push_at(now, io).expect("it is taken");
    let mut answer = None;
    client.wait(1, 1, |done| answer = Some((done.result, done.payload)));
    answer.expect("waited for it")
}

/// An I/O of block `n`.
fn io(op: Op, n: u64, payload: AlignedBuf) -> Io<AlignedBuf> {
    Io::new(op, n * u64::from(SECTORS), SECTORS, n, payload)
}
