//! Models of the loops that wait, under random schedules: real clients, reactors and pump threads of a real service,
//! with a modelled [disk](disk) and a modelled clock (`crate::port::model`).
//!
//! The engine's own models (`engine/src/shuttle_tests`) call a submitter as a program might. Here the callers are the
//! loops of this crate, and the system calls by which they sleep are behind the port. A lost wake-up shows as a
//! deadlock, or as a time-out that the load does not need.
//!
//! A [`Model`] is a service on a disk of the model, its clients, and the checks at the end of every schedule. Each file is a
//! family of models. Its twins plant a bug in this crate ([`planted`](crate::planted)) or in the disk, which the same models
//! must find.
//!
//! Schedules come from a fixed seed. `SHUTTLE_RANDOM_SEED` sets another one, and `BLKMQ_SHUTTLE_TIMES` multiplies
//! their number. A failure prints its schedule, which `shuttle::replay` replays.

mod disk;
mod reactor;
mod sleepers;

use crate::planted::{self, Planted};
use crate::port::model::{World, thread};
use crate::shuttle_tests::disk::{Disk, Kind};
use crate::{Client, Service, Waiting};
use blkmq_core::{HwQueue, Limits, Nanos, Op};
use blkmq_engine::{Completion, Config, DeviceShape, Io, NoMerges, PumpMode, WriteCache};
use blkmq_sched::{Factory, none};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use std::sync::Arc;

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
