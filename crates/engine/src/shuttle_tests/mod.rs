//! Models of the whole queue under random schedules: real submitters, elevators and pumps around a small device, with
//! a virtual clock that moves only when all threads sleep.
//!
//! Loom proves the protocols of `sync/` one by one. These models look for faults *between* them: work that every thread
//! leaves undone, a sleeper that no thread wakes, a request that two threads end. Shuttle treats every atomic access as
//! sequentially consistent, so it does not check orderings; loom does.
//!
//! A [`Model`] has the configuration of the queue, the script of the device, the I/Os of the clients, and the checks at
//! the end of every schedule. Each schedule ends with every I/O completed and nothing in use, or panics. Each file is a
//! family of models; those here have every parameter drawn from a seed, combinations that no author chose. Twins plant
//! a bug in host, device or engine ([`planted`](crate::planted)), which the same models must find.
//!
//! Schedules come from a fixed seed. `SHUTTLE_RANDOM_SEED` sets another one, and `BLKMQ_SHUTTLE_TIMES` multiplies
//! their number. A failure prints its schedule, which `shuttle::replay` replays.

mod change;
mod complete;
mod flush;
mod locked;
mod sleepers;
mod world;

use crate::dispatch::pump::RESOURCE_DELAY;
use crate::elevator::flush::PENDING_AGE;
use crate::planted::{self, Planted, Stop};
use crate::shuttle_tests::world::{Arrivals, Bell, Bells, Says, Script, TestDevice, World};
use crate::sync::{Arc, yield_now};
use crate::{
    Access, Awaited, Config, DeviceQueue, DeviceShape, GroupTree, Io, IoMax, KickMode, Modes,
    NoMerges, PumpMode, Queue, Submitter, WriteCache,
};
use blkmq_core::{GroupId, HwQueue, Instant, IoError, IoFlags, Limits, Nanos, Op, Owner, Rng};
use blkmq_sched::{Factory, Scope, none, registry};
use shuttle::rand::Rng as _;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::thread;
use std::rc::Rc;

/// A schedule with more steps than this counts as a livelock. The longest correct ones take a tenth.
const MOST_STEPS: usize = 200_000;

/// Priority changes in a schedule of [`PctScheduler`], which finds bugs that need one fewer.
const PCT_DEPTH: usize = 4;

/// Polls after which the only thread with a CPU must have found work: a few times a follower's patience.
const IN_VAIN: u32 = 100;

/// Changes that another thread makes to the queue while clients use it.
type Meddle = fn(&Queue<u64>, &World);

/// A model. Its numbers are small, because a schedule has a point of choice at every atomic access: ten I/Os have
/// hundreds of them.
#[derive(Clone, Copy, Debug)]
struct Model {
    seed: u64,
    /// Half of them random, half with few preemptions (PCT).
    schedules: usize,
    access: Access,
    modes: Modes,
    scheduler: &'static Factory,
    scope: Option<Scope>,
    pump: PumpMode,
    hw_queues: u16,
    hw_queue_depth: u32,
    shared_tags: bool,
    budget: Option<u32>,
    nr_requests: Option<u32>,
    cache: WriteCache,
    /// At most 3 ms, or no timeout.
    timeout: Nanos,
    retries: u8,
    device: Script,
    /// A client per entry, each with its own submitter.
    clients: &'static [Client],
    /// The limits of a group to which all I/Os belong; empty for the root.
    max: &'static str,
    bell: Bell,
    drift: bool,
    /// The most virtual time that a schedule may take. More time shows that a thread was woken only by an unrelated
    /// timer.
    most_time: Nanos,
    planted: Option<Planted>,
    /// The first thread at this place has no CPU until all others have left. No client sleeps then, and none may wait
    /// for that thread.
    stop: Option<Stop>,
    /// Run by an additional thread while the clients run.
    meddle: Option<Meddle>,
}

/// The I/Os that one thread submits.
#[derive(Clone, Copy, Debug)]
struct Client {
    ios: u64,
    /// The maximum number of I/Os in flight.
    depth: u64,
    /// I/Os from one flush of the plug to the next.
    plug: u64,
    /// Sectors between the starts of two I/Os of 8 sectors: 8 makes them mergeable.
    stride: u64,
    /// The flags of every I/O.
    flags: IoFlags,
    /// One in this many I/Os is cancelled, every other time immediately; 0 for none.
    cancels: u64,
    /// Cookies are reused as soon as they have been returned, like numbers of buffers.
    reuses: bool,
    leaves: Leaves,
    /// After its first I/Os the thread does not call the queue until all others have left. No client sleeps then.
    goes_away: bool,
}

/// How a client ends after all its I/Os have completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Leaves {
    /// The client leaves immediately.
    AtOnce,
    /// The client polls once more, without I/Os in flight.
    AfterAPoll,
}

impl Client {
    const fn new(ios: u64, depth: u64, plug: u64) -> Self {
        Self {
            ios,
            depth,
            plug,
            stride: 64,
            flags: IoFlags::NONE,
            cancels: 0,
            reuses: false,
            leaves: Leaves::AtOnce,
            goes_away: false,
        }
    }
}

/// The factor for the number of schedules of a test: `BLKMQ_SHUTTLE_TIMES`, or 1.
fn times() -> usize {
    std::env::var("BLKMQ_SHUTTLE_TIMES")
        .map_or(1, |n| n.parse().expect("BLKMQ_SHUTTLE_TIMES is a number"))
}

impl Model {
    /// Two clients around an inline device of depth 1, with a single elevator.
    const fn new(seed: u64, clients: &'static [Client]) -> Self {
        Self {
            seed,
            schedules: 2000,
            access: Access::Combining,
            modes: Modes { dispatch: None, insert: None, merge: None, kick: None },
            scheduler: &none::FACTORY,
            scope: Some(Scope::Queue),
            pump: PumpMode::Inline,
            hw_queues: 1,
            hw_queue_depth: 1,
            shared_tags: false,
            budget: None,
            nr_requests: None,
            cache: WriteCache::Through,
            timeout: Nanos(u64::MAX),
            retries: 0,
            device: Script::INLINE,
            clients,
            max: "",
            bell: Bell::Remembers,
            drift: false,
            most_time: Nanos(0),
            planted: None,
            stop: None,
            meddle: None,
        }
    }

    /// Runs all schedules.
    fn check(self) {
        self.explore(|model| model.schedule(None));
    }

    /// Runs all schedules; `one` runs a single one.
    fn explore(self, one: fn(&Self)) {
        self.explore_in(self.schedules * times(), one);
    }

    /// Runs this many schedules of `one`.
    fn explore_in(self, schedules: usize, one: fn(&Self)) {
        let mut config = shuttle::Config::new();
        config.max_steps = shuttle::MaxSteps::FailAfter(MOST_STEPS);
        config.silence_warnings = true;
        let half = schedules / 2;
        let random = RandomScheduler::new_from_seed(self.seed, half);
        shuttle::Runner::new(random, config.clone()).run(move || one(&self));
        let pct = PctScheduler::new_from_seed(self.seed, PCT_DEPTH, half);
        shuttle::Runner::new(pct, config).run(move || one(&self));
    }

    fn config(&self, world: &Arc<World>, arrivals: Option<&Arrivals>) -> Config<u64> {
        let shape = DeviceShape {
            hw_queues: self.hw_queues,
            hw_queue_depth: self.hw_queue_depth,
            shared_tags: self.shared_tags,
            budget: self.budget,
            limits: Limits::default(),
            cache: self.cache,
            timeout: self.timeout,
        };
        let device = |_| {
            let device = TestDevice::new(self.device, arrivals.map(Arc::clone));
            Box::new(device) as Box<dyn DeviceQueue<u64>>
        };
        let lanes = match self.pump {
            PumpMode::Inline | PumpMode::Thread => self.hw_queues,
            PumpMode::Owner => self.clients.len() as u16,
        };
        let queues = (0..lanes).map(device).collect();
        let mut groups = GroupTree::default();
        if !self.max.is_empty() {
            groups.add("all", "/").expect("the name is free");
            groups.set_max("all", max(self.max)).expect("it is there");
        }
        Config {
            groups,
            scope: self.scope,
            nr_requests: self.nr_requests,
            retries: self.retries,
            access: self.access,
            modes: self.modes,
            nomerges: NoMerges::All,
            pump: self.pump,
            submitters: self.clients.len() as u16,
            depth: self.clients.iter().map(|client| client.depth).max().unwrap_or(1) as u32,
            host: Box::new(Bells(Arc::clone(world))),
            ..Config::new(shape, queues).scheduler(self.scheduler)
        }
    }

    /// Runs one schedule: all clients from their first I/O to their last, then the checks.
    fn schedule(&self, arrivals: Option<&Arrivals>) {
        planted::plant(self.planted);
        flush::begin(self.cache);
        let threaded = self.pump == PumpMode::Thread;
        let pumps = if threaded { self.hw_queues } else { 0 };
        let timer = match self.cache {
            WriteCache::Through => RESOURCE_DELAY,
            WriteCache::Back { .. } => PENDING_AGE,
        };
        let others = pumps + u16::from(self.meddle.is_some());
        let world = World::new(self.clients.len() as u16, others, self.bell, self.drift, timer);
        let lost = Arc::clone(&world);
        planted::stop_with(
            self.stop.map(|at| (at, Rc::new(move || lost.lose_cpu()) as Rc<dyn Fn()>)),
        );
        let queue = Queue::new(self.config(&world, arrivals)).expect("the model is a valid queue");
        let submitters: Vec<_> = (self.clients.iter())
            .map(|_| queue.submitter().expect("the queue was built for as many"))
            .collect();
        let mut threads = Vec::new();
        for hw in (0..pumps).map(HwQueue) {
            let (queue, world) = (queue.clone(), Arc::clone(&world));
            threads.push(thread::spawn(move || pump(&queue, &world, hw)));
        }
        if let Some(meddle) = self.meddle {
            let (queue, world) = (queue.clone(), Arc::clone(&world));
            threads.push(thread::spawn(move || {
                meddle(&queue, &world);
                world.leave(world.last_seat());
            }));
        }
        for (client, submitter) in self.clients.iter().zip(submitters) {
            let world = Arc::clone(&world);
            let sleeps = self.stop.is_none() && !self.clients.iter().any(|it| it.goes_away);
            let group = queue.plan().groups.iter().next().map_or(GroupId::ROOT, |group| group.id);
            threads.push(thread::spawn(move || client.run(submitter, &world, group, sleeps)));
        }
        threads.into_iter().for_each(|thread| thread.join().expect("a panic ends the schedule"));
        self.check_at_rest(&queue, &world);
    }

    fn check_at_rest(&self, queue: &Queue<u64>, world: &World) {
        let ios: u64 = self.clients.iter().map(|client| client.ios).sum();
        let stats = queue.stats();
        assert_eq!((stats.submitted, stats.completed), (ios, ios), "{stats:?}");
        let requests = ios - stats.merges.total() - stats.cancelled.total();
        let requests = requests.checked_add_signed(stats.flushes.surplus());
        assert_eq!(Some(stats.completed_requests), requests, "{stats:?}");
        assert_eq!(stats.dispatched, stats.completed_requests + stats.requeues, "{stats:?}");
        assert_eq!(stats.issued, stats.dispatched + stats.tail_requeues, "{stats:?}");
        for hw in (0..self.hw_queues).map(HwQueue) {
            assert_eq!(queue.tags_in_use(hw), 0, "driver tags of {hw:?} in use");
        }
        assert_eq!(queue.budgets_in_use(), 0, "budgets in use");
        let (took, most) = (world.now().since(Instant::ZERO), self.most_time);
        assert!(took <= most, "something waited for a timer: {took:?}, at most {most:?}");
    }
}

/// The limits in `text`.
fn max(text: &str) -> IoMax {
    IoMax::default().set(text).expect("limits")
}

impl Client {
    /// The sector to which the client with this number writes.
    fn sector(&self, client: u16, io: u64) -> u64 {
        u64::from(client) * 4096 + io * self.stride
    }

    /// Returns whether the client cancels this I/O.
    fn asks_for(&self, io: u64) -> bool {
        self.cancels > 0 && io.is_multiple_of(self.cancels)
    }

    /// Submits, polls, reaps, and sleeps whenever the queue agrees.
    fn run(&self, mut submitter: Submitter<u64>, world: &World, group: GroupId, sleeps: bool) {
        let id = submitter.id().0;
        world.sit(id.into());
        let mut in_vain = 0;
        // Cookies and payloads name client and I/O, so that a misdirected completion is seen.
        let name = |io: u64| u64::from(id) << 32 | io;
        let mut cookies: Vec<u64> = (0..self.ios).map(name).collect();
        let mut free: Vec<u64> = (0..self.depth).map(name).collect();
        let mut ended = vec![false; self.ios as usize];
        let mut asked = Vec::new();
        let (mut pushed, mut reaped) = (0, 0);
        while reaped < self.ios {
            let now = world.now();
            while pushed < self.ios && pushed - reaped < self.depth {
                let sector = self.sector(id, pushed);
                if self.reuses {
                    cookies[pushed as usize] = free.pop().expect("as many as may be in flight");
                }
                let cookie = cookies[pushed as usize];
                // One owner: with several, bfq would keep the device idle for longer than any timer of the engine.
                let io = Io::new(Op::Write, sector, 8, cookie, !name(pushed)).owner(Owner(1));
                let io = Io { flags: self.flags, group, ..io };
                flush::pushed(sector, io.flags);
                submitter.push(now, io).expect("there is credit for it");
                pushed += 1;
                if pushed.is_multiple_of(self.plug) {
                    submitter.flush(now);
                }
                if self.asks_for(pushed - 1) && asked.len().is_multiple_of(2) {
                    submitter.cancel(now, cookie);
                    asked.push(pushed - 1);
                }
            }
            // At every other completion the client polls without announcing it.
            if reaped.is_multiple_of(2) {
                submitter.begin_wait();
            }
            submitter.flush(now);
            if self.goes_away && reaped == 0 {
                submitter.end_wait(now);
                world.lose_cpu();
            }
            submitter.poll(now);
            let late = |io: &u64| self.asks_for(*io) && !asked.contains(io) && !ended[*io as usize];
            if let Some(io) = (0..pushed).find(late) {
                submitter.cancel(now, cookies[io as usize]);
                asked.push(io);
            }
            let got = submitter.reap(u32::MAX, |done| {
                let io = u64::from(!done.payload as u32);
                assert_eq!(done.cookie, cookies[io as usize], "a completion with another's cookie");
                free.push(done.cookie);
                assert_eq!(done.payload, !name(io), "a completion of another submitter");
                let twice = std::mem::replace(&mut ended[io as usize], true);
                assert!(!twice, "I/O {io} completed twice");
                let sector = self.sector(id, io);
                match done.result {
                    Ok(()) => flush::ended(sector),
                    Err(IoError::CANCELLED) => {
                        assert!(asked.contains(&io), "I/O {io} is gone without a request for it");
                        flush::gave_up(sector);
                    }
                    // The device has reported an error.
                    Err(_) => {}
                }
            });
            reaped += u64::from(got);
            if got > 0 {
                submitter.end_wait(now);
            }
            in_vain = if got == 0 && world.has_stopped() { in_vain + 1 } else { 0 };
            assert!(in_vain < IN_VAIN, "an I/O lies with a thread that has no CPU");
            if got == 0 && sleeps {
                wait(&mut submitter, world, now);
            } else if got == 0 {
                if submitter.awaits() == Awaited::Others {
                    submitter.look_at_all(now);
                }
                yield_now();
            }
        }
        if self.leaves == Leaves::AfterAPoll {
            submitter.poll(world.now());
        }
        drop(submitter);
        world.leave(id.into());
    }
}

fn wait(submitter: &mut Submitter<u64>, world: &World, now: Instant) {
    if let Some(until) = submitter.prepare_park(now) {
        if shuttle::rand::thread_rng().gen_bool(0.5) {
            submitter.set_alarm(until);
        }
        world.sleep(submitter.id().0.into(), Some(until));
        submitter.unpark();
    } else {
        yield_now();
    }
}

/// A pump thread.
fn pump(queue: &Queue<u64>, world: &World, hw: HwQueue) {
    let seat = world.pump_seat(hw);
    while !world.is_over() {
        let until = queue.pump(hw, world.now());
        world.sleep(seat, until);
    }
    world.leave(seat);
}

/// Begins to change the queue to `to`.
fn replan<P: Send + 'static>(
    queue: &Queue<P>,
    to: crate::Plan,
) -> Result<crate::Change<P>, crate::ChangeError> {
    queue.change_by(|_| Ok(to))
}

/// Models per test; `BLKMQ_SHUTTLE_TIMES` multiplies the number.
const MODELS: u64 = 100;

/// Longer than any service.
const TIMEOUT: Nanos = Nanos::from_millis(1);

/// Schedules of each model.
const SCHEDULES: usize = 40;

const ONE: Client = Client::new(3, 1, 1);

const SMALL: Client = Client::new(4, 2, 1);

const LARGE: Client = Client::new(6, 6, 3);

const NEIGHBOURS: Client = Client { stride: 8, ..LARGE };

const MEDDLER: Client = Client { leaves: Leaves::AfterAPoll, ..SMALL };

const QUITTER: Client = Client { cancels: 2, ..LARGE };

const SAFE: Client = Client { flags: IoFlags::FUA, ..LARGE };

const SAFER: Client = Client { flags: IoFlags::FUA.union(IoFlags::PREFLUSH), ..SMALL };

const CROWDS: &[&[Client]] = &[
    &[SMALL, SMALL],
    &[LARGE, ONE],
    &[MEDDLER, ONE],
    &[NEIGHBOURS, NEIGHBOURS],
    &[SMALL, SMALL, SMALL],
    &[LARGE, ONE, ONE],
    &[MEDDLER, ONE, ONE],
    &[NEIGHBOURS, LARGE, ONE],
    &[ONE, ONE, ONE, ONE],
    &[QUITTER, QUITTER],
    &[QUITTER, SAFE],
    &[SAFE, SAFER],
    &[SAFE, SAFER, SMALL],
];

const CACHES: &[WriteCache] = &[
    WriteCache::Through,
    WriteCache::Back { fua: false },
    WriteCache::Back { fua: false },
    WriteCache::Back { fua: true },
];

fn drawn_device(rng: &mut Rng) -> Script {
    let mut every =
        |sometimes: u64| if rng.chance(1, 3) { 2 + rng.below(sometimes) as u32 } else { 0 };
    let (resource, dev_resource, requeue) = (every(5), every(5), every(5));
    let (requeue_tail, lose) = (every(5), every(5));
    let inline = [0, 1, 2, 3][rng.below(4) as usize];
    let says = if rng.chance(1, 4) { Says::Nothing } else { Says::When };
    // No thread sleeps while a device is polled, so a lost request would never time out.
    let lose = if says == Says::Nothing { 0 } else { lose };
    let service = Nanos(rng.below(3) * 5_000);
    let room = 1 + rng.below(3) as usize;
    Script { room, resource, dev_resource, requeue, requeue_tail, lose, inline, service, says }
}

/// Draws modes that are possible with `access`.
fn drawn_modes(rng: &mut Rng, access: Access) -> Modes {
    fn some<M: Copy>(rng: &mut Rng, all: &[M]) -> Option<M> {
        rng.chance(1, 2).then(|| all[rng.below(all.len() as u64) as usize])
    }
    Modes {
        dispatch: some(rng, access.dispatch()),
        insert: some(rng, access.insert()),
        merge: some(rng, access.merge()),
        kick: some(rng, &KickMode::ALL).map(|(_, kick)| kick),
    }
}

fn drawn_model(seed: u64, access: Access) -> Model {
    let rng = &mut Rng::new(seed);
    let hw_queues = 1 + rng.below(2) as u16;
    let device = drawn_device(rng);
    let threaded = rng.chance(1, 3);
    let model = Model {
        access,
        modes: drawn_modes(&mut Rng::new(!seed), access),
        scheduler: registry::ALL[rng.below(registry::ALL.len() as u64) as usize],
        scope: Some(if rng.chance(1, 2) { Scope::Queue } else { Scope::HwQueue }),
        pump: if threaded { PumpMode::Thread } else { PumpMode::Inline },
        hw_queues,
        hw_queue_depth: 1 + rng.below(4) as u32,
        shared_tags: rng.chance(1, 3),
        budget: rng.chance(1, 3).then(|| 1 + rng.below(3) as u32),
        nr_requests: rng.chance(1, 2).then_some(4),
        device,
        timeout: TIMEOUT,
        retries: rng.below(3) as u8,
        drift: rng.chance(1, 4),
        cache: CACHES[rng.below(CACHES.len() as u64) as usize],
        ..Model::new(seed, CROWDS[rng.below(CROWDS.len() as u64) as usize])
    };
    Model { most_time: most_time(&model), ..model }
}

/// The time of one request after the other, plus each refusal, loss and reading of a running clock.
fn most_time(model: &Model) -> Nanos {
    let all = |client: &Client| {
        let flushes = if client.flags == IoFlags::NONE { 0 } else { 2 };
        client.ios * (1 + flushes)
    };
    let ios: u64 = model.clients.iter().map(all).sum();
    // At worst every second attempt is refused.
    let Script { resource, dev_resource, requeue, requeue_tail, lose, service, .. } = model.device;
    let faults = [resource, dev_resource, requeue, requeue_tail, lose];
    let faults = faults.iter().filter(|every| **every > 0).count() as u64;
    let attempts = ios * (1 + 2 * faults);
    let waits = resource > 0 || requeue_tail > 0;
    let timers = if waits { attempts * Nanos::from_millis(3).0 } else { 0 };
    // A timer may be reset once.
    let timers = timers + if lose > 0 { attempts * 2 * TIMEOUT.0 } else { 0 };
    let retries = if dev_resource > 0 { attempts * 10_000 } else { 0 };
    // A kick that is postponed by the delay of a refusal waits for that delay as well.
    let timers = if model.modes.kick.is_some() { 2 * timers } else { timers };
    let drift = if model.drift { 1_000_000 } else { 0 };
    Nanos(ios * service.0 + timers + retries + drift)
}

fn check_drawn(first: u64, access: Access) {
    for seed in first..first + MODELS * times() as u64 {
        let model = drawn_model(seed, access);
        println!("{model:?}");
        model.explore_in(SCHEDULES, |model| model.schedule(None));
    }
}

#[test]
fn shuttle_drawn_combining() {
    check_drawn(1_000_000, Access::Combining);
}

#[test]
fn shuttle_drawn_combining_too() {
    check_drawn(2_000_000, Access::Combining);
}

#[test]
fn shuttle_drawn_spin() {
    check_drawn(3_000_000, Access::Spin);
}

#[test]
fn shuttle_drawn_mutex() {
    check_drawn(4_000_000, Access::Mutex);
}

#[test]
fn shuttle_drawn_serialised() {
    check_drawn(5_000_000, Access::Serialised);
}
