//! Line 8 of `spec/framework.md` section 16: no lost wake-up. Threads sleep whenever they are allowed to, and are woken
//! only by the host's calls and by the deadlines that they were given before they slept.
//!
//! One real thread plays all of them, and a seed decides which one has its turn; the model checkers cover interleavings
//! of single instructions. Two sleepers that wait for each other are found immediately: no thread can run, and I/Os are
//! in flight.

use crate::common;

use blkmq_core::{HwQueue, Instant, Nanos, Rng};
use blkmq_engine::{Access, Config, DeviceShape, PumpMode, Queue, QueueStats, Submitter};
use blkmq_sched::testkit::rationed;
use blkmq_sched::{Scope, registry};
use common::{Call, Calls, Moods, accesses, assert_at_rest, config, shape, submit_each, write};

/// I/Os of each submitter.
const IOS: u32 = 60;
/// Turns after which a run that has not ended is considered endless.
const TURNS: u32 = 200_000;

/// One submitting thread.
struct Client {
    sub: Submitter<u32>,
    left: u32,
    asleep: bool,
    /// The deadline that it was given before it fell asleep, or the time of the call that wakes it.
    alarm: Option<Instant>,
}

impl Client {
    /// Returns whether it has reaped everything, and will not return.
    fn is_gone(&self) -> bool {
        self.left == 0 && self.sub.in_flight() == 0
    }

    fn can_go_on(&self, now: Instant) -> bool {
        !self.is_gone() && (!self.asleep || self.alarm.is_some_and(|at| at <= now))
    }

    /// One turn of a thread: submits or reaps, does the work that is due, and sleeps if it may.
    fn turn(&mut self, now: Instant, rng: &mut Rng) {
        if std::mem::take(&mut self.asleep) {
            self.sub.unpark();
        }
        let room = u64::from((self.sub.depth() - self.sub.in_flight()).min(self.left).min(6));
        if room > 0 && rng.chance(2, 3) {
            for _ in 0..=rng.below(room) {
                self.sub.push(now, write(rng.below(400) * 8, 8)).expect("there is credit");
                self.left -= 1;
            }
            self.sub.flush(now);
            return;
        }
        self.sub.poll(now);
        self.sub.reap(u32::MAX, |done| assert!(done.result.is_ok()));
        let wants_to_sleep = self.sub.in_flight() > 0 && (room == 0 || rng.chance(1, 2));
        if wants_to_sleep && self.sub.prepare_park(now).is_some() {
            self.asleep = true;
            self.alarm = self.sub.next_deadline();
            if let Some(at) = self.alarm
                && rng.chance(1, 2)
            {
                self.sub.set_alarm(at);
            }
        }
    }
}

/// One pump thread.
#[derive(Clone, Copy, Default)]
struct PumpThread {
    called: bool,
    alarm: Option<Instant>,
}

impl PumpThread {
    fn can_go_on(&self, now: Instant) -> bool {
        self.called || self.alarm.is_some_and(|at| at <= now)
    }
}

struct Threads {
    queue: Queue<u32>,
    calls: Calls,
    /// On average one in this many calls to the host is lost; 0 for none.
    lose: u64,
    clients: Vec<Client>,
    pumps: Vec<PumpThread>,
    now: Instant,
    rng: Rng,
}

/// No thread can run.
#[derive(Debug)]
struct Stuck;

impl Threads {
    fn deliver(&mut self) {
        for call in self.calls.take() {
            if self.lose > 0 && self.rng.chance(1, self.lose) {
                continue;
            }
            match call {
                Call::Submitter(id) => {
                    let client = self.clients.iter_mut().find(|client| client.sub.id() == id);
                    client.expect("it is registered").alarm = Some(self.now);
                }
                Call::Pump(hw) => self.pumps[usize::from(hw.0)].called = true,
            }
        }
    }

    /// When the next thread wakes without a call; `None` for never.
    fn next_alarm(&self) -> Option<Instant> {
        let clients = self.clients.iter().filter(|client| !client.is_gone());
        let clients = clients.filter_map(|client| client.alarm.filter(|_| client.asleep));
        clients.chain(self.pumps.iter().filter_map(|pump| pump.alarm)).min()
    }

    fn run(&mut self) -> Result<(), Stuck> {
        for _ in 0..TURNS {
            let now = self.now;
            let awake: Vec<usize> = (0..self.clients.len() + self.pumps.len())
                .filter(|who| match self.clients.get(*who) {
                    Some(client) => client.can_go_on(now),
                    None => self.pumps[who - self.clients.len()].can_go_on(now),
                })
                .collect();
            if self.clients.iter().all(Client::is_gone) {
                return Ok(());
            }
            let Some(turn) = (!awake.is_empty()).then(|| self.rng.below(awake.len() as u64)) else {
                self.now = self.next_alarm().ok_or(Stuck)?.max(now);
                continue;
            };
            let who = awake[turn as usize];
            match self.clients.get_mut(who) {
                Some(client) => client.turn(now, &mut self.rng),
                None => {
                    let hw = who - self.clients.len();
                    self.pumps[hw].called = false;
                    self.pumps[hw].alarm = self.queue.pump(HwQueue(hw as u16), now);
                }
            }
            self.deliver();
            self.now += Nanos(self.rng.below(300));
        }
        panic!("everybody is awake and nothing ends");
    }
}

/// Threads with parameters drawn from the seed, except for those that a test insists on.
fn threads(seed: u64, resource: u64, dev_resource: u64, lose: u64) -> (Threads, u16) {
    let mut rng = Rng::new(seed);
    let hw_queues = 1 + rng.below(3) as u16;
    let shape = DeviceShape {
        shared_tags: rng.chance(1, 3),
        budget: rng.chance(1, 3).then(|| 1 + rng.below(3) as u32),
        // Always room for one request. With more tags than that, the device refuses requests that exceed its room.
        ..shape(hw_queues, if dev_resource > 0 { 4 } else { 1 })
    };
    let (config, device) = config(shape);
    let submitters = 1 + rng.below(4) as u16;
    let calls = Calls::default();
    let mut config = Config { submitters, host: Box::new(calls.clone()), ..config };
    let all: Vec<_> = registry::ALL.iter().copied().chain([&rationed::FACTORY]).collect();
    config = config.scheduler(all[rng.below(all.len() as u64) as usize]);
    config.scope = [None, Some(Scope::Queue), Some(Scope::HwQueue)][rng.below(3) as usize];
    config.access = Access::ALL[rng.below(4) as usize].1;
    config.nr_requests = rng.chance(1, 2).then_some(4);
    config.depth = 1 << rng.below(6);
    config.pump = if rng.chance(1, 2) { PumpMode::Inline } else { PumpMode::Thread };
    let pumps = if config.pump == PumpMode::Thread { hw_queues } else { 0 };
    device.with(|c| {
        c.room = 1;
        c.service = Some(Nanos(rng.below(20_000)));
        c.moods = Some(Moods { rng: Rng::new(!seed), resource, dev_resource, requeue: 5 });
    });
    let queue = Queue::new(config).expect("valid");
    let client = |_| {
        let sub = queue.submitter().expect("so many were asked for");
        Client { sub, left: IOS, asleep: false, alarm: None }
    };
    let clients = (0..submitters).map(client).collect();
    let pumps = vec![PumpThread::default(); pumps.into()];
    let threads = Threads { clients, pumps, queue, calls, lose, now: Instant::ZERO, rng };
    (threads, hw_queues)
}

fn all_complete(resource: u64, dev_resource: u64) -> QueueStats {
    let mut total = QueueStats::default();
    for seed in 0..4000 {
        let (mut threads, hw_queues) = threads(seed, resource, dev_resource, 0);
        threads.run().unwrap_or_else(|_| {
            panic!("seed {seed}: all are asleep at {:?}: {:?}", threads.now, threads.queue.stats())
        });
        assert_at_rest(&threads.queue, hw_queues);
        let stats = threads.queue.stats();
        assert_eq!(stats.completed, u64::from(IOS) * threads.clients.len() as u64);
        total.busy += stats.busy;
        total.staged += stats.staged;
        total.direct += stats.direct;
        total.requeues += stats.requeues;
    }
    total
}

#[test]
fn s16_08_no_lost_wake_up_with_a_device_of_depth_1() {
    let stats = all_complete(0, 0);
    assert!(stats.staged > 1_000 && stats.direct > 1_000 && stats.requeues > 1_000, "{stats:?}");
}

#[test]
fn s16_08_no_lost_wake_up_with_no_timers_but_those_of_3_ms() {
    let stats = all_complete(15, 15);
    assert!(stats.busy > 10_000, "{stats:?}");
}

#[test]
fn s16_08_no_lost_wake_up_with_dev_resource_and_no_timer_at_all() {
    let stats = all_complete(0, 30);
    assert!(stats.busy > 3_000, "{stats:?}");
}

/// A host that occasionally loses a wake-up is detected by the run above.
#[test]
fn s16_08_a_lost_wake_up_would_be_noticed() {
    let stuck = |seed: &u64| threads(*seed, 0, 10, 10).0.run().is_err();
    let found = (0..100).filter(stuck).count();
    assert!(found > 20, "{found} of 100");
}

/// A thread that leaves with a timer still set wakes a sleeper for it, unless the sleeper polls in time anyway.
#[test]
fn a_sleeper_with_an_alarm_is_not_woken_for_what_is_due_later() {
    let at = |us: u64| Instant::ZERO + Nanos::from_micros(us);
    let reap = |sub: &mut Submitter<u32>| sub.reap(9, |done| assert_eq!(done.result, Ok(())));
    for access in accesses() {
        let cases = [(None, true), (Some(999), false), (Some(1000), false), (Some(1001), true)];
        for (alarm, is_woken) in cases {
            let (config, device) = config(shape(1, 8));
            let calls = Calls::default();
            let host = Box::new(calls.clone());
            let queue =
                Queue::new(Config { access, submitters: 2, host, ..config }).expect("valid");
            let mut subs = [(); 2].map(|()| queue.submitter().expect("two were asked for"));
            let [leaves, sleeper] = &mut subs;
            device.with(|c| c.service = Some(Nanos::from_micros(50)));
            submit_each(leaves, at(0), [write(100, 8)]);
            device.with(|c| c.service = Some(Nanos::from_micros(1000)));
            submit_each(sleeper, at(0), [write(0, 8)]);
            // More polls than a follower leaves to its leader.
            (0..20).for_each(|_| sleeper.poll(at(0)));
            assert!(sleeper.prepare_park(at(0)).is_some());
            if let Some(us) = alarm {
                sleeper.set_alarm(at(us));
            }
            (0..20).for_each(|_| leaves.poll(at(50)));
            let _ = calls.take();
            assert_eq!(reap(leaves), 1);
            let woken = [Call::Submitter(sleeper.id())];
            let expected: &[Call] = if is_woken { &woken } else { &[] };
            assert_eq!(calls.take(), expected, "{access:?}, alarm {alarm:?}");

            sleeper.unpark();
            (0..20).for_each(|_| sleeper.poll(at(1000)));
            assert_eq!(reap(sleeper), 1);
            assert_at_rest(&queue, 1);
        }
    }
}
