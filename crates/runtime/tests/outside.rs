//! Clients whose threads sleep outside of them: in an epoll loop beside sockets, or on several clients at once.

#![cfg(target_os = "linux")]

use crate::common;

use blkmq_core::{Instant, Nanos, Payload};
use blkmq_engine::{Config, PumpMode};
use blkmq_runtime::{Client, Clock, Sleep, wait_any};
use common::{PUMPS, gate, null, read, until};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

/// Sleeps on the client's descriptor alone, as a loop that watches no other descriptor does.
fn sleep_once<P: Payload>(client: &mut Client<P>) {
    client.event_fd().expect("a descriptor");
    let left = client.prepare_wait().timeout(client.clock());
    let left = left.map(|left| Timespec::try_from(left).expect("not for centuries"));
    let fd = client.event_fd().expect("a descriptor");
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let events = poll(&mut fds, left.as_ref()).expect("poll works");
    if events > 0 {
        client.end_wait();
    } else {
        client.end_wait_without_event();
    }
    client.poll();
}

#[test]
fn a_wait_has_a_timeout_for_those_who_sleep() {
    let clock = Clock::start();
    assert_eq!(Sleep::No.timeout(clock), Some(Duration::ZERO));
    assert_eq!(Sleep::Until(None).timeout(clock), None);
    assert_eq!(Sleep::Until(Some(Instant::ZERO)).timeout(clock), Some(Duration::ZERO));
    let hour = clock.now() + Nanos::from_secs(3600);
    let left = Sleep::Until(Some(hour)).timeout(clock).expect("it is bounded");
    assert!(left > Duration::ZERO && left <= Duration::from_secs(3600));
}

#[test]
fn a_client_is_woken_through_its_descriptor() {
    for pump in PUMPS {
        let text = "null,irqmode=2,completion_nsec=100000";
        let service = null::<u64>(text, |config: &mut Config<u64>| config.pump = pump);
        let mut client = service.client().expect("one place");
        let mut done = 0;
        for n in 0..100 {
            client.push(read(n)).expect("there is credit");
            while client.outstanding() > 0 {
                sleep_once(&mut client);
                done += client.reap(8, |io| assert_eq!((io.cookie, io.result), (n, Ok(()))));
            }
        }
        assert_eq!(done, 100, "{pump:?}");
    }
}

#[test]
fn one_loop_waits_for_sockets_and_disks() {
    for pump in PUMPS {
        let (service, keeper) = gate(1, pump);
        let mut client = service.client().expect("one place");
        let (mut near, mut far) = UnixStream::pair().expect("a pair");
        let all = epoll::create(epoll::CreateFlags::CLOEXEC).expect("a descriptor");
        let add =
            |fd, what| epoll::add(&all, fd, epoll::EventData::new_u64(what), epoll::EventFlags::IN);
        add(near.as_fd(), 0).expect("it is watched");
        add(client.event_fd().expect("a descriptor"), 1).expect("it is watched");
        client.push(read(7)).expect("there is credit");
        client.flush();
        until(|| keeper.inside() == 1);
        // First an event of the socket, then one of the disk; each from another thread, once this thread may sleep.
        thread::scope(|scope| {
            let (go, gone) = std::sync::mpsc::channel::<u32>();
            scope.spawn(move || {
                for what in gone {
                    if what == 0 {
                        far.write_all(b"x").expect("it is open");
                    } else {
                        keeper.let_go(1);
                    }
                }
            });
            let (mut seen, mut sent) = (Vec::new(), 0);
            while seen.len() < 2 {
                let sleep = client.prepare_wait();
                if sent == seen.len() {
                    go.send(sent as u32).expect("it listens");
                    sent += 1;
                }
                let left = match sleep {
                    Sleep::No => Nanos::ZERO,
                    Sleep::Until(None) => Nanos::from_millis(100),
                    Sleep::Until(Some(at)) => at - client.clock().now(),
                };
                let left = Timespec { tv_sec: 0, tv_nsec: left.0.min(100_000_000) as i64 };
                let mut events = Vec::with_capacity(4);
                let buffer = rustix::buffer::spare_capacity(&mut events);
                epoll::wait(&all, buffer, Some(&left)).expect("epoll works");
                match sleep {
                    Sleep::No => {}
                    // The event of the disk may have come after this check; the next turn finds it.
                    _ if events.iter().all(|event| event.data.u64() == 0) => {
                        client.end_wait_without_event();
                    }
                    Sleep::Until(_) => client.end_wait(),
                }
                if events.iter().any(|event| event.data.u64() == 0) {
                    let mut byte = [0];
                    near.read_exact(&mut byte).expect("it was readable");
                    seen.push(0);
                }
                client.poll();
                client.reap(1, |done| seen.push(done.cookie));
            }
            assert_eq!(seen, [0, 7], "{pump:?}");
            drop(go);
        });
    }
}

#[test]
fn several_clients_are_waited_for_at_once() {
    let slow = null::<u64>("null,irqmode=2,completion_nsec=50000000", |_| {});
    let fast = null::<u64>("null,irqmode=2,completion_nsec=50000", |_| {});
    let (mut slow, mut fast) = (slow.client().expect("one"), fast.client().expect("one"));
    slow.push(read(1)).expect("there is credit");
    for n in 0..10 {
        fast.push(read(n)).expect("there is credit");
        let first = wait_any(&mut [&mut slow, &mut fast], Instant::MAX).expect("it can poll");
        assert_eq!(first, Some(1));
        assert_eq!(fast.reap(1, |_| {}), 1);
    }
    let soon = slow.clock().now() + Nanos::from_millis(1);
    assert_eq!(wait_any(&mut [&mut slow, &mut fast], soon).expect("it can poll"), None);
    assert_eq!(wait_any(&mut [&mut slow, &mut fast], Instant::MAX).expect("it can poll"), Some(0));
    assert_eq!(slow.reap(1, |_| {}), 1);
    let nothing = wait_any(&mut [&mut slow, &mut fast], Instant::MAX).expect("it can poll");
    assert_eq!(nothing, None, "nothing is outstanding");
    assert_eq!(wait_any::<u64>(&mut [], Instant::MAX).expect("it can poll"), None);
}

#[test]
fn the_descriptor_goes_where_the_client_goes() {
    let (service, keeper) = gate(1, PumpMode::Thread);
    let mut client = service.client().expect("one place");
    client.event_fd().expect("a descriptor");
    client.push(read(3)).expect("there is credit");
    client.flush();
    until(|| keeper.inside() == 1);
    thread::scope(|scope| {
        let waits = scope.spawn(move || {
            let mut cookies = Vec::new();
            while cookies.is_empty() {
                sleep_once(&mut client);
                client.reap(1, |done| cookies.push(done.cookie));
            }
            // After this, an ordinary wait sleeps on the descriptor.
            client.push(read(4)).expect("there is credit");
            client.wait(1, 1, |done| cookies.push(done.cookie));
            cookies
        });
        keeper.let_go(2);
        assert_eq!(waits.join().expect("it waits"), [3, 4]);
    });
}
