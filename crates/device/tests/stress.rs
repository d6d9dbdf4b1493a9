//! No wake-up is lost (`spec/framework.md` section 16, line 8): real threads, a device with one tag that refuses
//! requests now and then, and every access mode of the elevator.
//!
//! Threads park whenever the queue allows it, as programs do. The clock is virtual: when all threads are parked, it
//! jumps to their earliest deadline. So no test waits for a timer, and a lost wake-up is detected immediately: every
//! thread sleeps without a deadline, or the clock has jumped further than the device and its refusals explain.
//!
//! `BLKMQ_STRESS_IOS` is the number of I/Os of each combination. `cargo xtask soak` runs more than the default, and
//! acceptance ten million.

use crate::null;
use blkmq_core::{HwQueue, Instant, Nanos, Op, Owner, Rng, SubmitterId, Tag};
use blkmq_device::null::DEV_RESOURCE_DELAY;
use blkmq_engine::{
    Access, BioTable, Busy, Config, DeviceQueue, DispatchMode, Enqueued, Expiry, Finished, Host,
    Inflight, InsertMode, Io, KickMode, MergeMode, Modes, Queue, QueueStats, Submitter,
};
use blkmq_sched::{Factory, registry};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// I/Os of each combination, if `BLKMQ_STRESS_IOS` is not set.
const IOS: u64 = 6_000;
/// More threads than most machines have cores.
const THREADS: u16 = 16;
/// The number of threads for the modes with a fair spin lock. If threads outnumber cores, such a lock is handed to
/// threads that are not running, and progress stops; this is why the other modes exist.
const SPINNING_THREADS: u16 = 2;
/// The number of threads for the modes in which every kick is a wake-up: each additional thread slows all others.
const FEW_THREADS: u16 = 4;
/// The default modes of each access mode.
const OWN: Modes = Modes { dispatch: None, insert: None, merge: None, kick: None };
/// The engine's longest timer, the one for RESOURCE.
const LONGEST: Nanos = Nanos::from_millis(3);
/// All threads are one tenant: between tenants, bfq keeps the device idle for longer than any timer of the engine.
const TENANT: Owner = Owner(1);
/// The longest service time of a request.
const SERVICE: Nanos = Nanos(10_000);

/// A device that completes requests at the next reap, so that threads contend all the time, with both kinds of refusal;
/// and a device that takes 10 us, so that threads sleep, with DEV_RESOURCE only, for which the engine sets no timer.
const DEVICES: [&str; 2] = [
    "irqmode=1,resource=23:100:7:-1,dev_resource=1:10:0:-1",
    "irqmode=2,completion_nsec=10000,dev_resource=1:25:0:-1",
];

fn ios() -> u64 {
    std::env::var("BLKMQ_STRESS_IOS")
        .map_or(IOS, |n| n.parse().expect("BLKMQ_STRESS_IOS is a number"))
}

#[test]
fn s16_08_no_wake_up_is_lost_with_combining() {
    every_combination(Access::Combining, OWN, THREADS);
}

#[test]
fn s16_08_no_wake_up_is_lost_with_a_mutex() {
    every_combination(Access::Mutex, OWN, THREADS);
}

#[test]
fn s16_08_no_wake_up_is_lost_with_a_spin_lock() {
    every_combination(Access::Spin, OWN, SPINNING_THREADS);
}

/// The proposals for Linux: all of them together, and then with batched dispatch.
#[test]
fn s16_08_no_wake_up_is_lost_with_serialised_dispatch() {
    every_combination(Access::Serialised, OWN, SPINNING_THREADS);
    let batch = Modes { dispatch: Some(DispatchMode::Batch), ..OWN };
    every_combination(Access::Serialised, batch, SPINNING_THREADS);
}

#[test]
fn s16_08_no_wake_up_is_lost_with_each_proposal_by_itself() {
    let lists = Modes { insert: Some(InsertMode::PercpuLists), ..OWN };
    let skip = Modes { merge: Some(MergeMode::SkipWhenContended), ..OWN };
    let batch = Modes { dispatch: Some(DispatchMode::Batch), ..OWN };
    for modes in [lists, skip, batch] {
        every_combination(Access::Mutex, modes, THREADS);
    }
    let direct = Modes { insert: Some(InsertMode::Direct), ..OWN };
    every_combination(Access::Serialised, direct, SPINNING_THREADS);
}

#[test]
fn s16_08_no_wake_up_is_lost_whatever_becomes_of_kicks() {
    for kick in [KickMode::Always, KickMode::Flag] {
        let modes = Modes { kick: Some(kick), ..OWN };
        every_combination(Access::Combining, modes, FEW_THREADS);
        every_combination(Access::Mutex, modes, FEW_THREADS);
    }
}

/// The panic occurs in a scoped thread, so the message of the test only says that a thread panicked.
#[test]
#[should_panic(expected = "a scoped thread panicked")]
fn s16_08_planted_a_device_that_forgets_to_say_when() {
    stress((Access::Combining, OWN), registry::ALL[0], DEVICES[1], THREADS, Says::Never);
}

fn every_combination(access: Access, modes: Modes, threads: u16) {
    for scheduler in registry::ALL {
        for device in DEVICES {
            println!("{access} {modes:?} {} {device}", scheduler.name);
            stress((access, modes), scheduler, device, threads, Says::When);
        }
    }
}

/// Runs all threads to their end and checks the final state.
fn stress(
    (access, modes): (Access, Modes),
    scheduler: &'static Factory,
    device: &str,
    threads: u16,
    says: Says,
) {
    let each = ios() / u64::from(threads);
    let device = null(&format!("{device},hw_queue_depth=1"));
    let (seen, clock) = (Arc::new(Mutex::default()), Arc::new(Clock::new(threads)));
    let witness = |inner| {
        Box::new(Witness { inner, now: Instant::ZERO, held: 0, seen: Arc::clone(&seen), says })
            as Box<dyn DeviceQueue<u64>>
    };
    let queues = device.queues().into_iter().map(witness).collect();
    let config = Config::new(device.shape, queues).scheduler(scheduler);
    let host = Box::new(Bells(Arc::clone(&clock)));
    let queue =
        Queue::new(Config { access, modes, submitters: threads, depth: DEPTH, host, ..config })
            .expect("a valid queue");
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let submitter = queue.submitter().expect("one per thread");
            let clock = &*clock;
            scope.spawn(move || {
                let seat = Seat { clock, id: submitter.id() };
                Client { submitter, each, seat }.run();
            });
        }
    });
    let seen = *seen.lock().expect("no thread has panicked");
    check_at_rest(&queue, each * u64::from(threads), &seen);
    check_time(clock.state().jumped, &seen);
}

/// The clock may jump by the service time of each request and by the timer of each refusal. If it jumped further, work
/// was due but waited for an unrelated timer.
fn check_time(jumped: Nanos, seen: &Seen) {
    let refusals = seen.resource * LONGEST.0 + seen.dev_resource * DEV_RESOURCE_DELAY.0;
    let accounted = Nanos(seen.taken * SERVICE.0 + refusals);
    assert!(jumped <= accounted, "the clock jumped {jumped:?}, and {accounted:?} have a reason");
}

fn check_at_rest(queue: &Queue<u64>, ios: u64, seen: &Seen) {
    let stats: QueueStats = queue.stats();
    assert_eq!((stats.submitted, stats.completed), (ios, ios), "{stats:?}");
    assert_eq!(stats.completed_requests, ios - stats.merges.total(), "{stats:?}");
    assert_eq!(stats.dispatched, stats.completed_requests + stats.requeues, "{stats:?}");
    assert_eq!((stats.issued, stats.issued), (stats.dispatched, seen.taken), "{stats:?}");
    assert_eq!(stats.busy, seen.resource + seen.dev_resource, "{stats:?}");
    assert!(seen.dev_resource > 0, "{seen:?}");
    assert_eq!((queue.tags_in_use(HwQueue(0)), queue.budgets_in_use()), (0, 0), "in use");
}

/// The requests that the device accepted, and those that it refused.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    taken: u64,
    resource: u64,
    dev_resource: u64,
}

/// The device's answer to `next_event`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Says {
    /// The true time.
    When,
    /// Planted bug: no event will come, even if the device holds requests.
    Never,
}

/// Checks that the device holds at most one request and that its time does not run backwards, and counts its answers.
struct Witness {
    inner: Box<dyn DeviceQueue<u64>>,
    now: Instant,
    held: u32,
    seen: Arc<Mutex<Seen>>,
    says: Says,
}

impl Witness {
    fn at(&mut self, now: Instant) {
        assert!(now >= self.now, "time ran backwards: {now:?} after {:?}", self.now);
        self.now = now;
    }
}

impl DeviceQueue<u64> for Witness {
    fn enqueue(&mut self, now: Instant, bios: &BioTable<u64>, rq: Inflight) -> Enqueued {
        self.at(now);
        let answer = self.inner.enqueue(now, bios, rq);
        let mut seen = self.seen.lock().expect("no thread has panicked");
        match &answer {
            Enqueued::Accepted => {
                seen.taken += 1;
                self.held += 1;
            }
            Enqueued::Done(..) => panic!("it answers later"),
            Enqueued::Busy(_, Busy::Resource) => seen.resource += 1,
            Enqueued::Busy(_, Busy::DevResource) => seen.dev_resource += 1,
        }
        assert!(self.held <= 1, "a device with one tag holds {} requests", self.held);
        answer
    }

    fn reap(&mut self, now: Instant, bios: &BioTable<u64>, out: &mut Vec<Finished>) {
        self.at(now);
        let before = out.len();
        self.inner.reap(now, bios, out);
        self.held -= (out.len() - before) as u32;
    }

    fn timed_out(&mut self, now: Instant, tag: Tag) -> Expiry {
        self.at(now);
        let answer = self.inner.timed_out(now, tag);
        self.held -= u32::from(matches!(answer, Expiry::Done(..)));
        answer
    }

    fn next_event(&self) -> Option<Instant> {
        match self.says {
            Says::When => self.inner.next_event(),
            Says::Never => Some(Instant::MAX),
        }
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.inner.abandon(out);
    }
}

/// The most I/Os of a thread in flight.
const DEPTH: u32 = 8;

struct Client<'a> {
    submitter: Submitter<u64>,
    each: u64,
    seat: Seat<'a>,
}

impl Client<'_> {
    /// Submits `each` I/Os in small plugs, some of them neighbours, and parks whenever the queue allows it.
    fn run(mut self) {
        let id = u64::from(self.submitter.id().0);
        let mut rng = Rng::new(id);
        let mut ended = vec![false; self.each as usize];
        let (mut pushed, mut reaped, mut sector) = (0, 0, 0);
        while reaped < self.each {
            let now = self.seat.clock.now();
            let most = self.each.min(reaped + 1 + rng.below(DEPTH.into()));
            while pushed < most {
                let neighbour = rng.chance(1, 4);
                sector = if neighbour { sector + 8 } else { rng.below(1 << 24) * 8 };
                let cookie = id << 32 | pushed;
                let op = if rng.chance(1, 2) { Op::Read } else { Op::Write };
                let io = Io::new(op, sector, 8, cookie, !cookie).owner(TENANT);
                self.submitter.push(now, io).expect("there is credit for it");
                pushed += 1;
            }
            self.submitter.flush(now);
            self.submitter.poll(now);
            let got = self.submitter.reap(u32::MAX, |done| {
                assert_eq!(done.cookie >> 32, id, "a completion of another submitter");
                assert_eq!(done.payload, !done.cookie, "a completion with another's payload");
                let io = done.cookie as u32 as usize;
                assert!(!std::mem::replace(&mut ended[io], true), "I/O {io} completed twice");
                assert_eq!(done.result, Ok(()));
            });
            reaped += u64::from(got);
            if got == 0 && pushed > reaped {
                self.wait(now);
            }
        }
        assert_eq!(self.submitter.in_flight(), 0);
    }

    fn wait(&mut self, now: Instant) {
        if self.submitter.prepare_park(now).is_some() {
            self.seat.sleep(self.submitter.next_deadline());
            self.submitter.unpark();
        } else {
            std::thread::yield_now();
        }
    }
}

/// The state of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Awake,
    Asleep(Option<Instant>),
    Gone,
}

struct Sleepers {
    places: Vec<Place>,
    /// By thread: whether it was woken before it slept.
    rung: Vec<bool>,
    awake: usize,
    /// The total time that the clock has jumped.
    jumped: Nanos,
    /// Whether a thread has panicked, so that other threads must not wait for it.
    failed: bool,
}

/// A clock that ticks at each reading, and jumps when all threads sleep.
struct Clock {
    now: AtomicU64,
    sleepers: Mutex<Sleepers>,
    bells: Vec<Condvar>,
}

impl Clock {
    fn new(threads: u16) -> Self {
        let threads = usize::from(threads);
        let sleepers = Sleepers {
            places: vec![Place::Awake; threads],
            rung: vec![false; threads],
            awake: threads,
            jumped: Nanos::ZERO,
            failed: false,
        };
        let bells = (0..threads).map(|_| Condvar::new()).collect();
        Self { now: AtomicU64::new(0), sleepers: Mutex::new(sleepers), bells }
    }

    /// Returns a time later than all earlier readings, so that no two readings are equal.
    fn now(&self) -> Instant {
        Instant::from_nanos(self.now.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn latest(&self) -> Instant {
        Instant::from_nanos(self.now.load(Ordering::Relaxed))
    }

    /// Locks the state, even after a panic under the lock, which `failed` records. A thread that unwinds drops its
    /// submitter, which wakes other threads; a second panic there would abort the process.
    fn state(&self) -> MutexGuard<'_, Sleepers> {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rouse(&self, state: &mut Sleepers, at: usize) {
        if matches!(state.places[at], Place::Asleep(_)) {
            state.places[at] = Place::Awake;
            state.awake += 1;
            self.bells[at].notify_one();
        }
    }

    /// Makes all sleeping threads panic, because they would wait for the panicked thread for ever.
    fn fail(&self, state: &mut Sleepers) {
        state.failed = true;
        (0..state.places.len()).for_each(|at| self.rouse(state, at));
    }

    /// Advances the clock to the next deadline if no thread is awake.
    fn settle(&self, state: &mut Sleepers) {
        if state.awake > 0 || state.places.iter().all(|place| *place == Place::Gone) {
            return;
        }
        let wanted = |place: &Place| if let Place::Asleep(until) = place { *until } else { None };
        let next = state.places.iter().filter_map(wanted).min();
        let Some(next) = next else {
            self.fail(state);
            panic!("nobody will ever be woken: all sleep and no time was named");
        };
        state.jumped = Nanos(state.jumped.0 + next.since(self.latest()).0);
        self.now.fetch_max(next.as_nanos(), Ordering::Relaxed);
        for at in 0..state.places.len() {
            if wanted(&state.places[at]).is_some_and(|until| until <= next) {
                self.rouse(state, at);
            }
        }
    }
}

/// A thread's registration at the clock, which ends when it is dropped.
struct Seat<'a> {
    clock: &'a Clock,
    id: SubmitterId,
}

impl Seat<'_> {
    /// Sleeps until the bell rings or `until` is reached.
    fn sleep(&self, until: Option<Instant>) {
        let (clock, at) = (self.clock, usize::from(self.id.0));
        let until = until.filter(|until| *until < Instant::MAX);
        if let Some(until) = until {
            let (latest, most) = (clock.latest(), LONGEST);
            assert!(until <= latest + most, "told {until:?} at {latest:?}: more than {most:?}");
        }
        let mut state = clock.state();
        if std::mem::take(&mut state.rung[at]) || until.is_some_and(|until| until <= clock.latest())
        {
            return;
        }
        state.places[at] = Place::Asleep(until);
        state.awake -= 1;
        clock.settle(&mut state);
        while state.places[at] != Place::Awake {
            state = clock.bells[at].wait(state).unwrap_or_else(PoisonError::into_inner);
            assert!(!state.failed, "another thread has panicked");
        }
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut state = self.clock.state();
        let place = &mut state.places[usize::from(self.id.0)];
        if std::mem::replace(place, Place::Gone) == Place::Awake {
            state.awake -= 1;
        }
        if std::thread::panicking() {
            self.clock.fail(&mut state);
        } else {
            self.clock.settle(&mut state);
        }
    }
}

/// The host of the queue, which wakes sleeping threads.
struct Bells(Arc<Clock>);

impl Host for Bells {
    fn wake_submitter(&self, submitter: SubmitterId) {
        let (mut state, at) = (self.0.state(), usize::from(submitter.0));
        match state.places[at] {
            Place::Awake => state.rung[at] = true,
            Place::Asleep(_) => self.0.rouse(&mut state, at),
            Place::Gone => {}
        }
    }

    fn wake_pump(&self, _: HwQueue) {
        unreachable!("nobody asked for pump threads");
    }
}
