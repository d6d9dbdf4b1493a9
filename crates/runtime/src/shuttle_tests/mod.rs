//! Models of the loops that wait, under random schedules: real clients, reactors and pump threads of a real service,
//! with a modelled [disk](Disk) and a modelled clock (`crate::port::model`).
//!
//! The engine's own models (`engine/src/shuttle_tests`) call a submitter as a program might. Here the callers are the
//! loops of this crate, and the system calls by which they sleep are behind the port. A lost wake-up shows as a
//! deadlock, or as a time-out that the load does not need.
//!
//! A [`Model`] is a service on a disk of the model, its clients, and the checks at the end of every schedule. Each file
//! is a family of models. Its twins plant a bug in this crate ([`planted`](crate::planted)) or in the disk, which the
//! same models must find.
//!
//! Schedules come from a fixed seed. `SHUTTLE_RANDOM_SEED` sets another one, and `BLKMQ_SHUTTLE_TIMES` multiplies
//! their number. A failure prints its schedule, which `shuttle::replay` replays.

mod reactor;
mod sleepers;

use crate::planted::{self, Planted};
use crate::port::model::{World, thread, world};
use crate::{Client, Service, Waiting};
use blkmq_core::{HwQueue, Instant, Limits, Nanos, Op, Tag};
use blkmq_engine::{
    Another, Berth, BioTable, Completion, Config, DeviceQueue, DeviceShape, Enqueued, Finished,
    Inflight, Io, NoMerges, PumpMode, Verdict, WriteCache,
};
use blkmq_sched::{Factory, none};
use nix::sys::eventfd::{EfdFlags, EventFd};
use shuttle::rand::Rng;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::{Mutex, MutexGuard};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use thread::ThreadId;

/// A schedule with more steps than this counts as a livelock. The longest correct ones take a tenth.
const MOST_STEPS: usize = 200_000;

/// In bytes. Holds the frames of this crate, the engine and a policy.
const STACK: usize = 256 << 10;

/// Priority changes in a schedule of [`PctScheduler`], which finds bugs that need one fewer.
const PCT_DEPTH: usize = 4;

/// Clients sleep as soon as they have no work.
const SLEEPY: Waiting = Waiting { spins: 1, rounds: 0, yields: 0 };

/// A model. Its numbers are small, because a schedule has a point of choice at every atomic access.
#[derive(Clone, Copy, Debug)]
struct Model {
    seed: u64,
    /// Half of them random, half with few preemptions (PCT).
    schedules: usize,
    kind: Kind,
    pump: PumpMode,
    scheduler: &'static Factory,
    hw_queue_depth: u32,
    clients: &'static [Load],
    /// The number of CPUs, and so of clients that may watch a device at a time.
    cpus: u16,
    /// Time-outs may come at any moment. If false, they come only when every thread sleeps, and none may be needed.
    drift: bool,
    planted: Option<Planted>,
}

/// The I/Os of a client.
#[derive(Clone, Copy, Debug)]
struct Load {
    ios: u64,
    /// The maximum number of I/Os in flight.
    depth: u64,
    /// The number of completions that each wait waits for.
    least: u32,
    /// How long the thread computes after each submission, with its I/Os in flight.
    computes: Nanos,
}

impl Load {
    const fn new(ios: u64, depth: u64) -> Self {
        Self { ios, depth, least: 1, computes: Nanos(0) }
    }
}

/// A service and its running disk.
struct Stage {
    service: Service<u64>,
    world: Arc<World>,
    disk: Arc<Disk>,
    disk_thread: thread::JoinHandle<()>,
}

/// The factor for the number of schedules of a test: `BLKMQ_SHUTTLE_TIMES`, or 1.
fn times() -> usize {
    std::env::var("BLKMQ_SHUTTLE_TIMES")
        .map_or(1, |n| n.parse().expect("BLKMQ_SHUTTLE_TIMES is a number"))
}

impl Model {
    const fn new(seed: u64, kind: Kind, clients: &'static [Load]) -> Self {
        Self {
            seed,
            schedules: 2000,
            kind,
            pump: PumpMode::Inline,
            scheduler: &none::FACTORY,
            hw_queue_depth: 1,
            clients,
            cpus: 1,
            drift: false,
            planted: None,
        }
    }

    /// Runs all schedules of [`waits`](Self::waits).
    fn check(self) {
        self.explore(Self::waits);
    }

    /// Runs all schedules of `one`.
    fn explore(self, one: fn(&Self)) {
        let schedule = move || {
            planted::plant(self.planted);
            one(&self);
            World::end();
        };
        let mut config = shuttle::Config::new();
        config.max_steps = shuttle::MaxSteps::FailAfter(MOST_STEPS);
        config.silence_warnings = true;
        config.stack_size = STACK;
        let half = self.schedules * times() / 2;
        let random = RandomScheduler::new_from_seed(self.seed, half);
        shuttle::Runner::new(random, config.clone()).run(schedule);
        let pct = PctScheduler::new_from_seed(self.seed, PCT_DEPTH, half);
        shuttle::Runner::new(pct, config).run(schedule);
    }

    /// Begins a schedule.
    fn stage(&self) -> Stage {
        let world = World::begin(self.cpus, self.drift);
        let disk = Disk::new(self.kind);
        let shape = DeviceShape {
            hw_queues: 1,
            hw_queue_depth: self.hw_queue_depth,
            shared_tags: false,
            budget: None,
            limits: Limits::default(),
            cache: WriteCache::Through,
            timeout: Nanos(u64::MAX),
        };
        let config = Config {
            nomerges: NoMerges::All,
            pump: self.pump,
            submitters: self.clients.len() as u16,
            depth: self.clients.iter().map(|client| client.depth).max().unwrap_or(1) as u32,
            ..Config::new(shape, vec![disk.queue()]).scheduler(self.scheduler)
        };
        let mut service = Service::start(config).expect("the model is a valid queue");
        service.set_waiting(SLEEPY);
        let disk_thread = {
            let disk = Arc::clone(&disk);
            thread::spawn(move || disk.run())
        };
        Stage { service, world, disk, disk_thread }
    }

    /// One schedule: every client submits its I/Os and waits for them.
    fn waits(&self) {
        let stage = self.stage();
        let mut threads = Vec::new();
        for load in self.clients {
            let client = stage.service.client().expect("the queue was built for as many");
            threads.push(thread::spawn(move || load.wait_alone(client)));
        }
        threads.into_iter().for_each(|it| it.join().expect("a panic ends the schedule"));
        stage.check(self);
    }
}

/// The plain way to wait.
fn wait(client: &mut Client<u64>, least: u32, take: &mut dyn FnMut(Completion<u64>)) -> u32 {
    client.wait(least, u32::MAX, take)
}

impl Load {
    /// Submits, and waits in the client.
    fn wait_alone(&self, client: Client<u64>) {
        self.run(client, wait);
    }

    /// Submits, and waits by `wait`.
    fn run(
        &self,
        mut client: Client<u64>,
        wait: fn(&mut Client<u64>, u32, &mut dyn FnMut(Completion<u64>)) -> u32,
    ) {
        let clock = client.clock();
        let mut ended = vec![false; self.ios as usize];
        let (mut pushed, mut reaped) = (0, 0);
        while reaped < self.ios {
            while pushed < self.ios && pushed - reaped < self.depth {
                client.push(io(pushed)).expect("there is credit for it");
                pushed += 1;
            }
            if self.computes.0 > 0 {
                client.flush();
                clock.sleep_until(clock.now() + self.computes);
            }
            let least = self.least.min((pushed - reaped) as u32);
            reaped += u64::from(wait(&mut client, least, &mut |done| {
                done.result.expect("the disk fails nothing");
                let twice = std::mem::replace(&mut ended[done.cookie as usize], true);
                assert!(!twice && done.payload == !done.cookie, "another completion: {done:?}");
            }));
        }
        assert_eq!(client.outstanding(), 0);
    }
}

/// The I/O with this number.
fn io(number: u64) -> Io<u64> {
    Io::new(Op::Write, number * 64, 8, number, !number)
}

impl Stage {
    /// Ends the schedule: every I/O has completed, and no sleep needed a time-out.
    fn check(self, model: &Model) {
        if !model.drift {
            self.check_timeouts();
        }
        self.end(model.clients.iter().map(|client| client.ios).sum());
    }

    /// Checks that no sleep needed a time-out.
    fn check_timeouts(&self) {
        let timeouts = self.world.timeouts();
        assert_eq!(timeouts, 0, "a deadlock, but for the time-outs of so many sleeps");
    }

    /// Ends the schedule after `ios` I/Os.
    fn end(self, ios: u64) {
        assert_eq!(self.service.stats().submitted, ios);
        self.end_at_rest();
    }

    /// Ends the schedule, and checks that nothing is in use.
    fn end_at_rest(self) {
        let stats = self.service.stats();
        assert_eq!(stats.submitted, stats.completed, "{stats:?}");
        assert_eq!(self.service.queue().tags_in_use(HwQueue(0)), 0, "driver tags in use");
        drop(self.service);
        self.disk.stop();
        self.disk_thread.join().expect("a panic ends the schedule");
    }
}

/// The queues of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// One, which all clients watch.
    Watched,
    /// A lane for each client.
    Lanes(Option<Fault>),
}

/// A bug of a berth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// A wake-up that comes while the owner is awake is lost.
    ForgetsEarlyCalls,
    /// The sleep does not submit the entries that turns have left to it.
    LeavesEntries,
    /// A turn of another thread takes a wake-up away.
    TakesCalls,
}

/// A disk behind descriptors: its thread completes the entries that it holds, in any order and at any time.
///
/// A queue of the disk is a ring as in `uring`: entries, which the disk takes when they are submitted, and completions,
/// which make its descriptor readable. All clients share it, or it is the lane of one client and has a berth. As in
/// `uring/src/ring.rs`, a wake-up is a completion if the thread that sleeps there has asked for it in a turn, and the
/// sleep of a waiting owner submits its entries.
///
/// *Fault model.* A berth may have a bug ([`Fault`]).
struct Disk {
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
    fn new(kind: Kind) -> Arc<Self> {
        Arc::new(Self { kind, rings: Mutex::new(Vec::new()), pace: Mutex::new(Pace::Works) })
    }

    fn rings(&self) -> MutexGuard<'_, Vec<Ring>> {
        self.rings.lock().expect("a panic ends the schedule")
    }

    /// A queue of the disk.
    fn queue(self: &Arc<Self>) -> Box<dyn DeviceQueue<u64>> {
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
    fn run(&self) {
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
    fn rest(&self) {
        self.set_pace(Pace::Rests);
    }

    fn work(&self) {
        self.set_pace(Pace::Works);
    }

    /// Ends the thread of the disk.
    fn stop(&self) {
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

    fn berth(&self) -> Option<std::io::Result<Box<dyn Berth>>> {
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
