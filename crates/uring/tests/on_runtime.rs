//! Files behind a reactor on a tokio runtime: every block arrives, futures may be dropped, and calls reach the tasks
//! wherever they run.

#![cfg(target_os = "linux")]

use crate::common::{BLOCK, TempFile, block, io, is_filled};
use blkmq_buf::AlignedBuf;
use blkmq_core::Op;
use blkmq_engine::{BlockDevice, Config};
use blkmq_runtime::{Handle, Service, SubmitErrorKind};
use blkmq_sched::{Factory, deadline, none};
use tokio::runtime::{Builder, Runtime};

const BLOCKS: u64 = 256;

/// A service with a ring for each submitter. `None` if there is no io_uring here.
fn rings(
    test: &str,
    submitters: u16,
    depth: u32,
    scheduler: &'static Factory,
) -> Option<(TempFile, Service<AlignedBuf>)> {
    let file = TempFile::new(test, BLOCKS * BLOCK as u64);
    let device = file.open(test, &format!(",hw_queue_depth={depth}"))?;
    let config: Config<AlignedBuf> = device.config().expect("a small ring");
    let config = Config { submitters, depth: 16, ..config.scheduler(scheduler) };
    Some((file, Service::start(config).expect("small rings")))
}

fn workers(n: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(n).enable_all().build().expect("a few threads")
}

/// Writes block `n` and reads it.
async fn write_and_read(disk: &Handle<AlignedBuf>, n: u64) {
    let done = disk.submit(io(Op::Write, n, block(n))).await.expect("the reactor is there");
    assert_eq!(done.result, Ok(()));
    let done = disk.submit(io(Op::Read, n, AlignedBuf::new(BLOCK))).await;
    let mut done = done.expect("the reactor is there");
    assert_eq!(done.result, Ok(()));
    assert!(is_filled(done.payload.as_mut_slice(), n), "block {n}");
}

/// With fewer driver tags than tasks, so that workers call each other.
#[test]
fn every_block_of_many_tasks_arrives() {
    for (threads, scheduler) in [(2, &none::FACTORY), (4, &deadline::FACTORY)] {
        let test = "every_block_of_many_tasks_arrives";
        let Some((file, service)) = rings(test, threads, 2, scheduler) else { return };
        let runtime = workers(threads.into());
        let reactor = service.reactor_on(runtime.handle()).expect("a submitter for each worker");
        let task = |n| {
            let disk = reactor.handle();
            runtime.spawn(async move { write_and_read(&disk, n).await })
        };
        for task in Vec::from_iter((0..BLOCKS).map(task)) {
            runtime.block_on(task).expect("no panic");
        }
        drop(reactor);
        let bytes = file.bytes();
        assert!(bytes.chunks_exact(BLOCK).zip(0..).all(|(bytes, n)| is_filled(bytes, n)));
    }
}

/// The kernel handles calls in the thread that asked for them. When that has ended, another one asks.
#[test]
fn calls_reach_a_task_whose_first_thread_has_ended() {
    let test = "calls_reach_a_task_whose_first_thread_has_ended";
    let Some((_file, service)) = rings(test, 2, 1, &none::FACTORY) else { return };
    let runtime = Builder::new_current_thread().enable_all().build().expect("no thread");
    let mut other = service.client().expect("one of two");
    let reactor = service.reactor_on(runtime.handle()).expect("the other");
    let disk = reactor.handle();
    for round in 0..4 {
        // The client has the only tag, and the task's I/O is held until a turn of the client gives it back.
        other.push(io(Op::Read, 200, AlignedBuf::new(BLOCK))).expect("there is credit");
        other.flush();
        std::thread::scope(|scope| {
            let there = scope.spawn(|| runtime.block_on(write_and_read(&disk, round)));
            assert_eq!(other.wait(1, 1, |_| {}), 1);
            there.join().expect("no panic");
        });
    }
}

/// Buffers stay with I/Os whose futures, tasks and runtime are gone.
#[test]
fn a_runtime_may_end_with_ios_at_the_file() {
    let test = "a_runtime_may_end_with_ios_at_the_file";
    let Some((_file, service)) = rings(test, 2, 64, &none::FACTORY) else { return };
    for round in 0..20 {
        let runtime = workers(2);
        let reactor = service.reactor_on(runtime.handle()).expect("both");
        let disk = reactor.handle();
        let task = |n| {
            let disk = disk.clone();
            runtime.spawn(async move {
                for n in n.. {
                    drop(disk.submit(io(Op::Read, (n * 7) % BLOCKS, AlignedBuf::new(BLOCK))));
                    write_and_read(&disk, n % BLOCKS).await;
                }
            })
        };
        let tasks = [0, 64, 128].map(task);
        runtime.block_on(write_and_read(&disk, 192 + round % 64));
        drop(runtime);
        drop(tasks);
        let late = disk.submit(io(Op::Read, 0, AlignedBuf::new(BLOCK)));
        let late = workers(1).block_on(late).expect_err("no task is left");
        assert_eq!(late.why(), SubmitErrorKind::Closed);
        drop(reactor);
        while service.client().and_then(|one| service.client().map(|two| (one, two))).is_err() {
            std::thread::yield_now();
        }
    }
}
