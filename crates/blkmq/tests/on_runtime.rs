//! Ten thousand futures on a tokio runtime, some of which are dropped in flight: every other one receives its block.

#![cfg(target_os = "linux")]

use blkmq::prelude::*;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use tokio::runtime::Builder;

const BLOCK: usize = 512;
const FUTURES: u64 = 10_000;

/// The word that fills block `n`.
fn word(n: u64) -> [u8; 8] {
    (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1).to_le_bytes()
}

/// Writes all blocks, in extents of 64 KiB.
async fn fill(disk: &Handle<AlignedBuf>) {
    const EXTENT: u64 = 128;
    for first in (0..FUTURES).step_by(EXTENT as usize) {
        let words = (first..first + EXTENT).flat_map(|n| word(n).repeat(BLOCK / 8));
        let bytes = Vec::from_iter(words);
        let write = Io::write(Bytes(first * BLOCK as u64), AlignedBuf::copy_of(&bytes));
        assert_eq!(disk.submit(write).await.expect("it is there").result, Ok(()));
    }
}

/// Reads block `n`; in one case of fifty it polls once and gives up. Returns the number of blocks that were read.
async fn read(disk: Handle<AlignedBuf>, n: u64) -> u64 {
    let io = Io::read(Bytes(n * BLOCK as u64), AlignedBuf::new(BLOCK)).cookie(n);
    let mut future = pin!(disk.submit(io));
    let answer = if n.is_multiple_of(50) {
        poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
    } else {
        Poll::Ready(future.await)
    };
    let Poll::Ready(answer) = answer else { return 0 };
    let mut done = answer.expect("the reactor is there");
    assert_eq!((done.cookie, done.result), (n, Ok(())));
    assert!(done.payload.as_mut_slice().chunks_exact(8).all(|at| at == word(n)), "block {n}");
    1
}

fn ten_thousand(device: &str, scheduler: &str, workers: usize) {
    let runtime = Builder::new_multi_thread().worker_threads(workers).enable_all().build();
    let runtime = runtime.expect("a few threads");
    let disk = match blkmq::open(device) {
        Err(error) if error.is_unavailable() => {
            eprintln!("skipped ten_thousand on {device}: {error}");
            return;
        }
        opened => opened.expect("it is made"),
    };
    let config =
        disk.config().expect("a queue").scheduler(blkmq::scheduler(scheduler).expect("it is one"));
    let service = Service::start(Config { submitters: workers as u16, ..config }).expect("valid");
    let reactor = service.reactor_on(runtime.handle()).expect("a submitter for each worker");
    runtime.block_on(fill(&reactor.handle()));
    let tasks = Vec::from_iter((0..FUTURES).map(|n| runtime.spawn(read(reactor.handle(), n))));
    let mut done = 0;
    for task in tasks {
        done += runtime.block_on(task).expect("no panic");
    }
    assert!((FUTURES - FUTURES / 50..=FUTURES).contains(&done), "{done}");
    assert_eq!(reactor.panics(), 0);
    drop(reactor);
    let stats = service.stats();
    assert_eq!(stats.submitted, stats.completed);
}

#[test]
fn ten_thousand_futures_have_their_blocks_of_memory() {
    ten_thousand("memory,size=8", "mq-deadline", 2);
    ten_thousand("memory,size=8", "none", 4);
}

#[test]
fn ten_thousand_futures_have_their_blocks_of_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk");
    ten_thousand(&format!("uring:{},size=8,direct=0", path.display()), "none", 2);
}
