//! Real threads that sleep on the descriptor of a device. The disk behind it is a thread that answers on command. A
//! test that waits until other threads have fallen asleep asks the kernel.
//!
//! Threads may sleep outside of their clients: in an epoll loop beside sockets, or on several clients at once.

#![cfg(target_os = "linux")]

use crate::common::{PUMPS, gate, null, read, until};
use blkmq_core::{Instant, Limits, Nanos, Op, Payload};
use blkmq_engine::{
    BioTable, Config, DeviceQueue, DeviceShape, Enqueued, Finished, Inflight, Io, PumpMode,
    Verdict, WriteCache,
};
use blkmq_runtime::{Client, Clock, Service, Sleep, wait_any};
use blkmq_sched::registry;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

/// A hardware queue that announces every request it has taken, and finishes as many as its handle allows.
struct Watched {
    handle: Handle,
    held: VecDeque<Inflight>,
    taken: Sender<()>,
}

#[derive(Clone)]
struct Handle(Arc<(AtomicU64, OwnedFd)>);

impl Handle {
    /// Finishes the oldest request: counts first, then signals.
    fn finish(&self) {
        self.0.0.fetch_add(1, Ordering::Release);
        rustix::io::write(&self.0.1, &1_u64.to_ne_bytes()).expect("the count is far from full");
    }
}

impl<P> DeviceQueue<P> for Watched {
    fn enqueue(&mut self, _: Instant, _: &BioTable<P>, rq: Inflight) -> Enqueued {
        self.held.push_back(rq);
        let _ = self.taken.send(());
        Enqueued::Accepted
    }

    fn reap(&mut self, _: Instant, _: &BioTable<P>, out: &mut Vec<Finished>) {
        // Clears the signal before it reads the count, so that a later signal is not cleared.
        let _ = rustix::io::read(&self.handle.0.1, &mut [0; 8]);
        let done = self.handle.0.0.swap(0, Ordering::Acquire) as usize;
        let verdict = Verdict::Done(Ok(()));
        out.extend(self.held.drain(..done).map(|rq| Finished { rq, verdict }));
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.handle.0.1.as_fd())
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        out.extend(self.held.drain(..));
    }
}

/// A service around one such queue, its handle, and the announcements.
fn service(submitters: u16, pump: PumpMode) -> (Service<u64>, Handle, Receiver<()>) {
    let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a descriptor");
    let handle = Handle(Arc::new((AtomicU64::new(0), fd)));
    let (taken, announcements) = channel();
    let shape = DeviceShape {
        hw_queues: 1,
        hw_queue_depth: 8,
        shared_tags: false,
        budget: None,
        limits: Limits::default(),
        cache: WriteCache::Through,
        timeout: blkmq_engine::DEFAULT_TIMEOUT,
    };
    let queue = Watched { handle: handle.clone(), held: VecDeque::new(), taken };
    let scheduler = registry::find("mq-deadline").expect("registered");
    let config = Config::new(shape, vec![Box::new(queue) as _]).scheduler(scheduler);
    let config = Config { submitters, pump, ..config };
    let service = Service::start(config).expect("valid");
    (service, handle, announcements)
}

/// The calling thread's directory in `/proc`.
fn this_thread() -> PathBuf {
    PathBuf::from("/proc").join(std::fs::read_link("/proc/thread-self").expect("/proc is there"))
}

/// Waits until the kernel reports that `thread` sleeps. A thread that polls is runnable and never does. A thread that
/// has ended belongs to another test of this process.
fn await_sleep(thread: &Path) {
    for _ in 0..5_000_000 {
        let Ok(stat) = std::fs::read_to_string(thread.join("stat")) else { return };
        let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
        if state == Some("S") {
            return;
        }
        thread::yield_now();
    }
    panic!("{} did not go to sleep", thread.display());
}

/// The pump threads of this process, by name.
fn pump_threads() -> Vec<PathBuf> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("/proc is there");
    let tasks = tasks.map(|task| task.expect("readable").path());
    let is_pump = |task: &PathBuf| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.starts_with("blkmq-pump"))
    };
    tasks.filter(is_pump).collect()
}

fn one_by_one(client: &mut Client<u64>, ios: u64) {
    for n in 0..ios {
        let now = client.clock().now();
        client.push_at(now, Io::new(Op::Read, n * 8, 8, n, n)).expect("there is credit");
        let mut got = None;
        assert_eq!(client.wait(1, 1, |io| got = Some((io.cookie, io.result, io.payload))), 1);
        assert_eq!(got, Some((n, Ok(()), n)));
    }
}

#[test]
fn a_client_sleeps_until_the_device_has_something() {
    let (service, device, taken) = service(1, PumpMode::Inline);
    let mut client = service.client().expect("one was asked for");
    let waiter = this_thread();
    let disk = thread::spawn(move || {
        for () in taken {
            await_sleep(&waiter);
            device.finish();
        }
    });
    one_by_one(&mut client, 100);
    drop((client, service));
    disk.join().expect("the disk saw it sleep each time");
}

#[test]
fn with_a_pump_thread_both_sleep() {
    let (service, device, taken) = service(1, PumpMode::Thread);
    let mut client = service.client().expect("one was asked for");
    let waiter = this_thread();
    let disk = thread::spawn(move || {
        for () in taken {
            await_sleep(&waiter);
            pump_threads().iter().for_each(|pump| await_sleep(pump));
            device.finish();
        }
    });
    one_by_one(&mut client, 100);
    drop((client, service));
    disk.join().expect("the disk saw them sleep each time");
}

/// The thread that wakes first reaps for all, so the others must be woken by their bells.
#[test]
fn threads_that_sleep_on_one_device_all_get_what_is_theirs() {
    let (service, device, taken) = service(4, PumpMode::Inline);
    let clients = (0..4).map(|_| service.client().expect("four were asked for"));
    let clients: Vec<_> = clients.collect();
    let disk = thread::spawn(move || {
        for (n, ()) in taken.into_iter().enumerate() {
            // Sometimes immediately, sometimes after all threads have had time to fall asleep.
            (0..n % 256).for_each(|_| thread::yield_now());
            device.finish();
        }
    });
    thread::scope(|scope| {
        for mut client in clients {
            scope.spawn(move || one_by_one(&mut client, 500));
        }
    });
    drop(service);
    disk.join().expect("the disk only answers");
}

#[test]
fn a_deadline_ends_the_sleep() {
    let (service, device, taken) = service(1, PumpMode::Inline);
    let mut client = service.client().expect("one was asked for");
    let now = client.clock().now();
    client.push_at(now, Io::new(Op::Read, 0, 8, 0, 0)).expect("there is credit");
    let until = now + Nanos::from_millis(5);
    assert_eq!(client.wait_until(until, 1, 1, |_| {}), 0, "the disk does not answer");
    assert!(client.clock().now() >= until);
    taken.recv().expect("it was issued all the same");
    device.finish();
    assert_eq!(client.wait(1, 1, |io| assert!(io.result.is_ok())), 1);
}

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
            let (go, gone) = channel::<u32>();
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
