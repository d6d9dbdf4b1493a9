//! Real threads that sleep on the descriptor of a device. The disk behind it is a thread that answers on command. A
//! test that waits until other threads have fallen asleep asks the kernel.

#![cfg(target_os = "linux")]

use blkmq_core::{Instant, Limits, Nanos, Op};
use blkmq_engine::{
    BioTable, Config, DeviceQueue, DeviceShape, Enqueued, Finished, Inflight, Io, PumpMode,
    Verdict, WriteCache,
};
use blkmq_runtime::{Client, Service};
use blkmq_sched::registry;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

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
