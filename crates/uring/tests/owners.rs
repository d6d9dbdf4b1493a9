//! Several clients of one file, each with a ring of its own: completions, calls, and clients that are away. Also files
//! behind a reactor on a tokio runtime, where futures may be dropped.

#![cfg(target_os = "linux")]

use crate::{BLOCK, TempFile, block, fill, io, is_filled};
use blkmq_buf::AlignedBuf;
use blkmq_core::{Instant, Nanos, Op};
use blkmq_engine::{BlockDevice, Config, DEFAULT_SUBMITTERS};
use blkmq_runtime::{Client, Handle, Service, Sleep, SubmitErrorKind};
use blkmq_sched::{Factory, deadline, none};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;
use std::sync::{Arc, Barrier};
use tokio::runtime::{Builder, Runtime};

const BLOCKS: u64 = 256;
/// A time longer than any wait here, unless a completion or a call is missed.
const LONG: Nanos = Nanos::from_secs(5);

/// A service for `clients` clients of a file, with `depth` driver tags. `None` if there is no io_uring here.
fn owners(
    test: &str,
    clients: u16,
    depth: u32,
    scheduler: &'static Factory,
) -> Option<(TempFile, Service<AlignedBuf>)> {
    let file = TempFile::new(test, BLOCKS * BLOCK as u64);
    let device = file.open(test, &format!(",hw_queue_depth={depth}"))?;
    let config: Config<AlignedBuf> = device.config().expect("a small ring");
    let config = Config { submitters: clients, depth: 16, ..config.scheduler(scheduler) };
    let service = Service::start(config).expect("small rings");
    assert_eq!(service.attribute("blkmq/pump").as_deref(), Ok("owner"));
    Some((file, service))
}

/// The lane of a client, with its ring, is made with the client, while others have I/Os in flight, and stays for the
/// next client. So a queue is for any number of clients.
#[test]
fn a_lane_is_made_when_its_client_comes() {
    let Some((_file, service)) =
        owners("a_lane_is_made_when_its_client_comes", DEFAULT_SUBMITTERS, 8, &none::FACTORY)
    else {
        return;
    };
    let mut first = service.client().expect("the first");
    assert!(write(&mut first, 0) < LONG && first.has_own_lane());
    first.push(io(Op::Read, 0, AlignedBuf::new(BLOCK))).expect("there is credit");
    first.flush();
    let mut others = vec![service.client().expect("the second")];
    assert!(write(&mut others[0], 1) < LONG);
    // The engine is built anew, and takes over the existing lanes.
    service.set_attribute("queue/scheduler", "mq-deadline").expect("it is registered");
    others.extend((3..DEFAULT_SUBMITTERS).map(|_| service.client().expect("further ones")));
    for (n, client) in (2..).zip(&mut others) {
        assert!(write(client, n) < LONG && client.has_own_lane());
    }
    assert_eq!(first.wait(1, 1, |done| assert_eq!(done.result, Ok(()))), 1);
    others.truncate(1);
    let mut again = service.client().expect("a place that was had before");
    assert!(write(&mut again, 3) < LONG && again.has_own_lane());
}

/// The time since `begun`.
fn since(client: &Client<AlignedBuf>, begun: Instant) -> Nanos {
    client.clock().now() - begun
}

/// Writes block `n` and waits. Returns the time that this took.
fn write(client: &mut Client<AlignedBuf>, n: u64) -> Nanos {
    let mut buf = AlignedBuf::new(BLOCK);
    fill(&mut buf, n);
    let begun = client.clock().now();
    client.push(io(Op::Write, n, buf)).expect("there is credit");
    assert_eq!(client.wait(1, 1, |done| assert_eq!(done.result, Ok(()))), 1);
    since(client, begun)
}

fn every_block_arrives(test: &str, scheduler: &'static Factory) {
    let Some((file, service)) = owners(test, 4, 2, scheduler) else { return };
    std::thread::scope(|scope| {
        for first in 0..4 {
            let mut client = service.client().expect("one each");
            scope.spawn(move || {
                for n in (first..BLOCKS).step_by(4) {
                    assert!(write(&mut client, n) < LONG);
                }
            });
        }
    });
    drop(service);
    let bytes = file.bytes();
    assert!(bytes.chunks_exact(BLOCK).zip(0..).all(|(bytes, n)| is_filled(bytes, n)));
}

/// With four threads and two tags, requests are picked by threads whose completions have freed tags.
#[test]
fn every_block_of_several_clients_arrives() {
    every_block_arrives("every_block_of_several_clients_arrives", &none::FACTORY);
}

#[test]
fn every_block_of_several_clients_arrives_mq_deadline() {
    every_block_arrives("every_block_of_several_clients_arrives_mq_deadline", &deadline::FACTORY);
}

/// One client has both tags and does not wait. The other one takes its completions.
#[test]
fn a_client_that_is_away_keeps_no_tag() {
    let Some((_file, service)) =
        owners("a_client_that_is_away_keeps_no_tag", 2, 2, &deadline::FACTORY)
    else {
        return;
    };
    let mut away = service.client().expect("one of two");
    for n in [8, 16] {
        away.push(io(Op::Read, n, AlignedBuf::new(BLOCK))).expect("there is credit");
    }
    away.flush();
    let mut other = service.client().expect("the other");
    let took = std::thread::spawn(move || write(&mut other, 1)).join().expect("no panic");
    assert!(took < LONG, "{took:?}");
    assert_eq!(away.wait(2, 2, |_| {}), 2);
}

/// The kernel handles calls in the thread that added the poll, so a client that moves to another thread adds it again.
#[test]
fn a_client_that_moves_is_called_on_its_new_thread() {
    let Some((_file, service)) =
        owners("a_client_that_moves_is_called_on_its_new_thread", 2, 2, &none::FACTORY)
    else {
        return;
    };
    let mut mover = service.client().expect("one of two");
    let mut other = service.client().expect("the other");
    for round in 0..8 {
        // The other client has both tags: the mover's write is held, and it is called when one is free.
        for n in [8, 16] {
            other.push(io(Op::Read, n, AlignedBuf::new(BLOCK))).expect("there is credit");
        }
        other.flush();
        let there = std::thread::spawn(move || (write(&mut mover, round), mover));
        assert_eq!(other.wait(2, 2, |_| {}), 2);
        let (took, back) = there.join().expect("no panic");
        assert!(took < LONG, "round {round}: {took:?}");
        mover = back;
    }
}

#[test]
fn a_dropped_client_leaves_its_tags_to_others() {
    let Some((_file, service)) =
        owners("a_dropped_client_leaves_its_tags_to_others", 2, 2, &deadline::FACTORY)
    else {
        return;
    };
    let mut gone = service.client().expect("one of two");
    for n in 0..8 {
        gone.push(io(Op::Read, 2 * n, AlignedBuf::new(BLOCK))).expect("there is credit");
    }
    gone.flush();
    drop(gone);
    let mut other = service.client().expect("the other");
    assert!(write(&mut other, 1) < LONG);
    let begun = service.clock().now();
    while let Err(none_left) = service.client() {
        assert!(since(&other, begun) < LONG, "{none_left}");
        write(&mut other, 2);
    }
}

/// A thread that sleeps for a completion that never arrives is called by another thread.
#[test]
fn a_sleeping_client_hears_of_a_cancel() {
    let Some((_file, service)) =
        owners("a_sleeping_client_hears_of_a_cancel", 2, 2, &none::FACTORY)
    else {
        return;
    };
    let mut blocking = service.blocking().expect("one of two");
    let canceller = blocking.canceller();
    let freeze = service.queue().freeze();
    let begins = Arc::new(Barrier::new(2));
    let clock = service.clock();
    let there = {
        let begins = Arc::clone(&begins);
        std::thread::spawn(move || {
            begins.wait();
            let begun = clock.now();
            let answer = blocking.call(io(Op::Read, 3, AlignedBuf::new(BLOCK)));
            (answer.map(|(result, _)| result).map_err(|error| error.why()), clock.now() - begun)
        })
    };
    begins.wait();
    let begun = clock.now();
    while !there.is_finished() && clock.now() - begun < LONG {
        canceller.cancel();
        std::thread::yield_now();
    }
    let (result, took) = there.join().expect("no panic");
    assert!(result.is_ok_and(|result| result.is_err()) && took < LONG, "{took:?}");
    drop(freeze);
}

#[test]
fn a_wait_ends_at_its_time() {
    let Some((_file, service)) = owners("a_wait_ends_at_its_time", 2, 2, &none::FACTORY) else {
        return;
    };
    let mut client = service.client().expect("one of two");
    let freeze = service.queue().freeze();
    client.push(io(Op::Read, 3, AlignedBuf::new(BLOCK))).expect("there is credit");
    let deadline = client.clock().now() + Nanos::from_millis(30);
    assert_eq!(client.wait_until(deadline, 1, 1, |_| {}), 0);
    let late = client.clock().now() - deadline;
    assert!(late < LONG, "{late:?}");
    drop(freeze);
    assert_eq!(client.wait(1, 1, |_| {}), 1);
}

/// The descriptor of a client with a ring of its own, in another program's loop of poll(2).
#[test]
fn the_descriptor_of_an_owner_wakes_a_foreign_loop() {
    let Some((_file, service)) =
        owners("the_descriptor_of_an_owner_wakes_a_foreign_loop", 2, 2, &deadline::FACTORY)
    else {
        return;
    };
    let mut other = service.client().expect("one of two");
    let mut client = service.client().expect("the other");
    let fd = client.event_fd().expect("it has one").as_fd().try_clone_to_owned().expect("a copy");
    for round in 0..16 {
        // In odd rounds the request waits for a tag, and the client is called for it.
        let taken = if round % 2 == 1 { 2 } else { 0 };
        for n in 0..taken {
            other.push(io(Op::Read, 8 * n + 8, AlignedBuf::new(BLOCK))).expect("there is credit");
        }
        other.flush();
        client.push(io(Op::Read, 3, AlignedBuf::new(BLOCK))).expect("there is credit");
        let begun = client.clock().now();
        let mut got = 0;
        while got == 0 {
            assert!(since(&client, begun) < LONG, "round {round}");
            if let Sleep::Until(_) = client.prepare_wait() {
                if taken > 0 {
                    assert_eq!(other.wait(0, 2, |_| {}), 0);
                }
                let mut fds = [PollFd::new(&fd, PollFlags::IN)];
                let left = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
                poll(&mut fds, Some(&left)).expect("it polls");
                client.end_wait();
            }
            other.poll();
            client.poll();
            got = client.reap(1, |done| assert_eq!(done.result, Ok(())));
        }
        other.wait(u32::try_from(taken).expect("few"), 2, |_| {});
    }
}

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

/// Driver tags are fewer than tasks, so that workers call each other.
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

/// The kernel handles calls in the thread that added the poll. After the end of that thread, another one adds it.
#[test]
fn calls_reach_a_task_whose_first_thread_has_ended() {
    let test = "calls_reach_a_task_whose_first_thread_has_ended";
    let Some((_file, service)) = rings(test, 2, 1, &none::FACTORY) else { return };
    let runtime = Builder::new_current_thread().enable_all().build().expect("no thread");
    let mut other = service.client().expect("one of two");
    let reactor = service.reactor_on(runtime.handle()).expect("the other");
    let disk = reactor.handle();
    for round in 0..4 {
        // The client has the only tag, and the task's I/O is held until a turn of the client frees it.
        other.push(io(Op::Read, 200, AlignedBuf::new(BLOCK))).expect("there is credit");
        other.flush();
        std::thread::scope(|scope| {
            let there = scope.spawn(|| runtime.block_on(write_and_read(&disk, round)));
            assert_eq!(other.wait(1, 1, |_| {}), 1);
            there.join().expect("no panic");
        });
    }
}

/// Buffers stay with their I/Os after the end of futures, tasks and runtime.
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
