//! The bound of the pool, and requests that no thread begins.

use super::*;
use crate::Options;
use crate::target::Target;
use blkmq_buf::AlignedBuf;
use blkmq_core::{IoResult, Nanos, Op};
use blkmq_engine::{Config, DeviceShape, Io, Queue, Submitter};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 64;

/// A queue around a file of zeroes, and its pool of at most `threads`.
fn queue(timeout: Nanos, threads: u16) -> (Queue<AlignedBuf>, Arc<Pool>) {
    let file = tempfile::NamedTempFile::new().expect("a folder for files");
    file.as_file().set_len(BLOCKS * BLOCK as u64).expect("a small file");
    let target = Target::open(file.path(), &Options::default()).expect("it opens");
    let shape = DeviceShape {
        hw_queues: 1,
        hw_queue_depth: 64,
        shared_tags: false,
        budget: None,
        limits: target.limits,
        cache: target.cache,
        timeout,
    };
    let files = [Arc::clone(&target.file)];
    let pool = Pool::new(threads, files, target.alignment.block).expect("one thread");
    let parts = [Part { start: 0, target }];
    let queue = ThreadQueue::new(Arc::clone(&pool), &parts, 64).expect("a descriptor");
    (Queue::new(Config::new(shape, vec![Box::new(queue)])).expect("valid"), pool)
}

fn read(submitter: &mut Submitter<AlignedBuf>, now: Instant, n: u64) {
    let io = Io::new(Op::Read, n * 8, 8, n, AlignedBuf::new(BLOCK));
    submitter.push(now, io.with(blkmq_core::IoFlags::NOMERGE)).expect("there is credit");
}

/// Polls at `now` until `count` reads have ended; a real disk takes real time.
fn results(submitter: &mut Submitter<AlignedBuf>, now: Instant, count: usize) -> Vec<IoResult> {
    let mut results = Vec::new();
    for _ in 0..50_000_000_u64 {
        submitter.poll(now);
        submitter.reap(u32::MAX, |done| results.push(done.result));
        if results.len() == count {
            return results;
        }
        std::thread::yield_now();
    }
    panic!("{} of {count} reads have ended", results.len());
}

#[test]
fn there_are_as_many_threads_as_allowed_and_as_needed() {
    for (most, at_once, expected) in [(1, 32, 1..=1), (3, 64, 2..=3), (16, 1, 1..=2)] {
        let (queue, pool) = queue(Nanos(u64::MAX), most);
        let mut submitter = queue.submitter().expect("one was asked for");
        for round in 0..8 {
            let now = Instant::ZERO + Nanos(round);
            (0..at_once).for_each(|n| read(&mut submitter, now, n));
            submitter.flush(now);
            assert!(results(&mut submitter, now, at_once as usize).iter().all(Result::is_ok));
        }
        assert!(expected.contains(&pool.threads()), "{} of {most}", pool.threads());
    }
}

#[test]
fn what_no_thread_begins_is_given_back_when_its_time_is_over() {
    let (queue, pool) = queue(Nanos::from_secs(1), 4);
    pool.close();
    let mut submitter = queue.submitter().expect("one was asked for");
    (0..4).for_each(|n| read(&mut submitter, Instant::ZERO, n * 2));
    submitter.flush(Instant::ZERO);
    submitter.poll(Instant::ZERO + Nanos::from_millis(999));
    assert_eq!(submitter.reap(u32::MAX, |_| {}), 0, "in time");
    let late = Instant::ZERO + Nanos::from_secs(2);
    assert_eq!(results(&mut submitter, late, 4), [Err(IoError::TIMED_OUT); 4]);
}

#[test]
fn what_no_thread_begins_is_given_back_when_the_queue_ends() {
    let leaked = blkmq_engine::leaked_bios();
    let (queue, pool) = queue(Nanos(u64::MAX), 4);
    pool.close();
    let mut submitter = queue.submitter().expect("one was asked for");
    (0..4).for_each(|n| read(&mut submitter, Instant::ZERO, n * 2));
    submitter.flush(Instant::ZERO);
    drop((submitter, queue));
    assert_eq!(blkmq_engine::leaked_bios(), leaked, "every token came back");
}
