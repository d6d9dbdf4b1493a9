//! A disk behind descriptors: its thread completes the entries that it holds, in any order and at any time.
//!
//! A queue of the disk is a ring as in `uring`: entries, which the disk takes when they are submitted, and completions,
//! which make its descriptor readable. All clients share it, or it is the lane of one client and has a berth. As in
//! `uring/src/berth.rs`, a wake-up is a completion if the thread that sleeps there has asked for it in a turn, and the
//! sleep of a waiting owner submits its entries.
//!
//! *Fault model.* A berth may have a bug ([`Fault`]).

use crate::port::model::{thread, world};
use blkmq_core::{Instant, Nanos, Tag};
use blkmq_engine::{Another, Berth, BioTable, DeviceQueue, Enqueued, Finished, Inflight, Verdict};
use nix::sys::eventfd::{EfdFlags, EventFd};
use shuttle::rand::Rng;
use shuttle::sync::{Mutex, MutexGuard};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use thread::ThreadId;

/// The queues of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// One, which all clients watch.
    Watched,
    /// A lane for each client.
    Lanes(Option<Fault>),
}

/// A bug of a berth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// A wake-up that comes while the owner is awake is lost.
    ForgetsEarlyCalls,
    /// The sleep does not submit the entries that turns have left to it.
    LeavesEntries,
    /// A turn of another thread takes a wake-up away.
    TakesCalls,
}

/// The disk.
pub(super) struct Disk {
    kind: Kind,
    rings: Mutex<Vec<Ring>>,
    pace: Mutex<Pace>,
}

/// The behaviour of the disk's thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pace {
    Works,
    Rests,
    Ends,
}

/// The part of a queue that its pump shares with sleepers, callers and the disk.
struct Ring {
    fd: Arc<EventFd>,
    /// Not yet submitted.
    entries: Vec<Tag>,
    /// Submitted to the disk.
    inside: Vec<Tag>,
    completions: Vec<Completed>,
    /// The number of completions so far.
    tail: u64,
    /// The ring has received a wake-up.
    called: bool,
    /// The thread that last slept here, or wanted to.
    sleeper: Option<ThreadId>,
    /// The thread that has asked for wake-ups.
    polls: Option<ThreadId>,
    /// The thread that waits here, asleep or awake.
    waits: Option<ThreadId>,
    /// That thread is asleep.
    sleeps: bool,
    /// A sleeper or the disk should check the ring.
    changed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Completed {
    Request(Tag),
    Call,
}

impl Disk {
    pub(super) fn new(kind: Kind) -> Arc<Self> {
        Arc::new(Self { kind, rings: Mutex::new(Vec::new()), pace: Mutex::new(Pace::Works) })
    }

    fn rings(&self) -> MutexGuard<'_, Vec<Ring>> {
        self.rings.lock().expect("a panic ends the schedule")
    }

    /// A queue of the disk.
    pub(super) fn queue(self: &Arc<Self>) -> Box<dyn DeviceQueue<u64>> {
        let fd = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let fd = Arc::new(fd.expect("there are descriptors left"));
        let mut rings = self.rings();
        rings.push(Ring {
            fd: Arc::clone(&fd),
            entries: Vec::new(),
            inside: Vec::new(),
            completions: Vec::new(),
            tail: 0,
            called: false,
            sleeper: None,
            polls: None,
            waits: None,
            sleeps: false,
            changed: false,
        });
        let end = End { disk: Arc::clone(self), at: rings.len() - 1, fd };
        Box::new(Queue { end, held: Vec::new(), has_left: false })
    }

    /// Runs the disk, until [`stop`](Self::stop).
    pub(super) fn run(&self) {
        let pace = || *self.pace.lock().expect("a panic ends the schedule");
        let has_work = || self.rings().iter().any(|it| !it.inside.is_empty());
        while pace() != Pace::Ends {
            world().sleep(None, || match pace() {
                Pace::Works => has_work(),
                Pace::Rests => false,
                Pace::Ends => true,
            });
            if pace() == Pace::Works {
                self.complete_one();
            }
        }
    }

    fn complete_one(&self) {
        let mut rings = self.rings();
        let all = rings.iter().enumerate();
        let all: Vec<_> =
            all.flat_map(|(at, it)| (0..it.inside.len()).map(move |n| (at, n))).collect();
        if let Some(most) = all.len().checked_sub(1) {
            let (at, n) = all[shuttle::rand::thread_rng().gen_range(0..=most)];
            let tag = rings[at].inside.swap_remove(n);
            rings[at].complete(Completed::Request(tag));
            drop(rings);
            world().changed();
        }
    }

    /// Stops completing requests until the disk [works](Self::work) again.
    pub(super) fn rest(&self) {
        self.set_pace(Pace::Rests);
    }

    pub(super) fn work(&self) {
        self.set_pace(Pace::Works);
    }

    /// Ends the thread of the disk.
    pub(super) fn stop(&self) {
        self.set_pace(Pace::Ends);
    }

    fn set_pace(&self, pace: Pace) {
        *self.pace.lock().expect("a panic ends the schedule") = pace;
        world().changed();
    }
}

impl Ring {
    fn complete(&mut self, completed: Completed) {
        self.completions.push(completed);
        self.tail += 1;
        self.fd.write(1).expect("there is room in the count");
        self.changed = true;
    }

    fn submit(&mut self) {
        if !self.entries.is_empty() {
            self.inside.append(&mut self.entries);
            self.changed = true;
        }
    }

    /// Asks for wake-ups as a turn of the pump does, if the calling thread is the one that sleeps here.
    fn ask(&mut self) {
        let me = Some(thread::current().id());
        if self.sleeper == me && self.polls != me {
            self.polls = me;
            if self.called {
                self.complete(Completed::Call);
            }
        }
    }
}

/// A share in one queue.
#[derive(Clone)]
struct End {
    disk: Arc<Disk>,
    at: usize,
    fd: Arc<EventFd>,
}

impl End {
    fn with<T>(&self, then: impl FnOnce(&mut Ring) -> T) -> T {
        let mut rings = self.disk.rings();
        let ring = &mut rings[self.at];
        let result = then(ring);
        let changed = std::mem::take(&mut ring.changed);
        // Sleepers look at the rings while they hold the lock of the world.
        drop(rings);
        if changed {
            world().changed();
        }
        result
    }

    fn fault(&self) -> Option<Fault> {
        match self.disk.kind {
            Kind::Watched => None,
            Kind::Lanes(fault) => fault,
        }
    }
}

struct Queue {
    end: End,
    held: Vec<Inflight>,
    /// The last turn left its entries to the sleep.
    has_left: bool,
}

impl DeviceQueue<u64> for Queue {
    fn enqueue(&mut self, _: Instant, _: &BioTable<u64>, rq: Inflight) -> Enqueued {
        self.end.with(|ring| ring.entries.push(rq.tag()));
        self.held.push(rq);
        Enqueued::Accepted
    }

    fn commit(&mut self, _: Instant) {
        let me = Some(thread::current().id());
        self.has_left = self.end.with(|ring| {
            if ring.waits != me {
                ring.submit();
            }
            ring.waits == me
        });
    }

    fn reap(&mut self, _: Instant, _: &BioTable<u64>, out: &mut Vec<Finished>) {
        let (has_left, fault) = (std::mem::take(&mut self.has_left), self.end.fault());
        let completions = self.end.with(|ring| {
            let completions = std::mem::take(&mut ring.completions);
            // The read fails if the count is zero already.
            let _ = ring.fd.read();
            ring.ask();
            // A turn that has just left its entries does not submit them.
            if !has_left {
                ring.submit();
            }
            let is_call = |it: &Completed| *it == Completed::Call;
            let passes_on = ring.sleeper != Some(thread::current().id());
            if passes_on && completions.iter().any(is_call) && fault != Some(Fault::TakesCalls) {
                ring.complete(Completed::Call);
            }
            completions
        });
        for completed in completions {
            if let Completed::Request(tag) = completed {
                let at = self.held.iter().position(|rq| rq.tag() == tag);
                let rq = self.held.swap_remove(at.expect("the disk completes what it has"));
                out.push(Finished { rq, verdict: Verdict::Done(Ok(())) });
            }
        }
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.end.fd.as_fd())
    }

    fn another(&self) -> Option<Another<u64>> {
        let disk = Arc::clone(&self.end.disk);
        let another = || Box::new(move || Ok(disk.queue())) as Another<u64>;
        matches!(self.end.disk.kind, Kind::Lanes(_)).then(another)
    }

    fn berth(&self) -> Option<io::Result<Box<dyn Berth>>> {
        let bed = || Box::new(self.end.clone()) as Box<dyn Berth>;
        matches!(self.end.disk.kind, Kind::Lanes(_)).then(|| Ok(bed()))
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        out.append(&mut self.held);
    }
}

impl Berth for End {
    fn attend(&self) -> bool {
        let me = Some(thread::current().id());
        self.with(|ring| {
            ring.sleeper = me;
            ring.polls == me
        })
    }

    fn begin(&self) {
        self.with(|ring| ring.waits = Some(thread::current().id()));
    }

    fn end(&self) {
        self.with(|ring| {
            ring.waits = None;
            ring.submit();
        });
    }

    fn sleep(&self, left: Option<Nanos>) {
        if !self.attend() {
            // Another thread may have to make the turn.
            shuttle::thread::yield_now();
            return;
        }
        let head = self.with(|ring| {
            if self.fault() != Some(Fault::LeavesEntries) {
                ring.submit();
            }
            ring.sleeps = true;
            ring.tail - ring.completions.len() as u64
        });
        // As in the kernel, a completion ends the sleep even if another thread takes it first.
        world().sleep(left, || self.disk.rings()[self.at].tail > head);
        self.with(|ring| ring.sleeps = false);
    }

    fn call(&self) {
        self.with(|ring| {
            if self.fault() == Some(Fault::ForgetsEarlyCalls) && !ring.sleeps {
                return;
            }
            ring.called = true;
            if ring.polls.is_some() {
                ring.complete(Completed::Call);
            }
        });
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
