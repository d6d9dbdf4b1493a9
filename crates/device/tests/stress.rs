//! No wake-up is lost (`spec/framework.md` section 16, line 8): real threads, a device with one tag that
//! refuses now and then, and every way into the elevator.
//!
//! Threads park whenever the queue allows it, as programs do. The clock is virtual and jumps when all of them
//! are parked, to the earliest time that one of them was told; so no test waits for a timer, and a wake-up
//! that was lost shows at once: nobody is left to call, or the clock has jumped further than the device and
//! its refusals account for.
//!
//! `BLKMQ_STRESS_IOS` is the number of I/Os of each combination; acceptance takes ten million.

mod common;

use blkmq_core::{HwQueue, Instant, Nanos, Op, Rng, SubmitterId, Tag};
use blkmq_device::null::DEV_RESOURCE_DELAY;
use blkmq_engine::{
    Access, BioTable, Busy, Config, DeviceQueue, DispatchMode, Enqueued, Expiry, Finished, Host,
    Inflight, InsertMode, Io, KickMode, MergeMode, Modes, Queue, QueueStats, Submitter,
};
use blkmq_sched::{Factory, registry};
use common::null;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// I/Os of one combination unless the environment says otherwise.
const IOS: u64 = 30_000;
/// More than there are cores anywhere.
const THREADS: u16 = 16;
/// A fair spin lock where threads outnumber cores hands itself to threads that do not run, and gets
/// nowhere: the reason why the other modes exist.
const SPINNING_THREADS: u16 = 2;
/// Where every kick is a wake-up, each thread more costs all others.
const FEW_THREADS: u16 = 4;
/// Those that go with the access.
const OWN: Modes = Modes { dispatch: None, insert: None, merge: None, kick: None };
/// The longest timer that the engine knows: RESOURCE.
const LONGEST: Nanos = Nanos::from_millis(3);
/// What a request may take at the device.
const SERVICE: Nanos = Nanos(10_000);

/// A device that answers at the next reap, so that threads meet all the time, with both refusals; and one
/// that takes 10 us, so that they sleep in between, with DEV_RESOURCE alone: then the engine has no timers.
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

/// What was proposed for Linux, all of it together and each by itself.
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

/// Panics in a thread, so that the message says no more than that.
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

/// Runs all threads to their end and checks what is left.
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

/// One request at a time, and each refusal until its timer: whatever time passed beyond that, something was
/// due and had to wait for a timer of somebody else.
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

/// What the device saw.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    taken: u64,
    resource: u64,
    dev_resource: u64,
}

/// What the device answers to the question for the next event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Says {
    /// The truth.
    When,
    /// Planted: that there is nothing to come, whatever it holds.
    Never,
}

/// Watches that the device holds one request at most and that its time does not run backwards, and counts.
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

    fn reap(&mut self, now: Instant, out: &mut Vec<Finished>) {
        self.at(now);
        let before = out.len();
        self.inner.reap(now, out);
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

/// I/Os of one thread in flight at most.
const DEPTH: u32 = 8;

struct Client<'a> {
    submitter: Submitter<u64>,
    each: u64,
    seat: Seat<'a>,
}

impl Client<'_> {
    /// Submits `each` I/Os in plugs of a few, some of them neighbours, and sleeps whenever it may.
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
                let io = Io::new(op, sector, 8, cookie, !cookie);
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
        if self.submitter.prepare_park(now) {
            self.seat.sleep(self.submitter.next_deadline());
            self.submitter.unpark();
        } else {
            std::thread::yield_now();
        }
    }
}

/// Where a thread is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Awake,
    Asleep(Option<Instant>),
    Gone,
}

struct Sleepers {
    places: Vec<Place>,
    /// Woken before they got to sleep.
    rung: Vec<bool>,
    awake: usize,
    /// Time that passed while everybody slept.
    jumped: Nanos,
    /// A thread has panicked: nobody may wait for it.
    failed: bool,
}

/// A clock that ticks at each look, and jumps when everybody sleeps.
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

    /// Later than whatever anybody has read so far: two threads never agree on the time.
    fn now(&self) -> Instant {
        Instant::from_nanos(self.now.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn latest(&self) -> Instant {
        Instant::from_nanos(self.now.load(Ordering::Relaxed))
    }

    /// The state, also after a panic under the lock: `failed` says so, and a thread that unwinds drops its
    /// submitter, which wakes others. A second panic there would end the process.
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

    /// Has everybody panic who would wait for the one that does.
    fn fail(&self, state: &mut Sleepers) {
        state.failed = true;
        (0..state.places.len()).for_each(|at| self.rouse(state, at));
    }

    /// Lets time pass if nobody is awake.
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

/// A thread's place at the clock. Leaves it when dropped.
struct Seat<'a> {
    clock: &'a Clock,
    id: SubmitterId,
}

impl Seat<'_> {
    /// Sleeps until the bell rings or `until`.
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

/// The queue's view of the sleepers.
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
