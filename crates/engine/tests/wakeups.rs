//! Line 8 of `spec/framework.md` section 16: no lost wake-up. Threads sleep whenever they are allowed to, and are woken
//! only by the host's calls and by the deadlines that they were given before they slept.
//!
//! One real thread plays all of them, and a seed decides which one has its turn; the model checkers cover interleavings
//! of single instructions. Two sleepers that wait for each other are found immediately: no thread can run, and I/Os are
//! in flight.
//!
//! Pump threads, seen from the host that runs them: when they are woken, the effect of a wake-up, and when a pump asks
//! to be called again (`PumpMode::Thread`). The test plays the threads.

use crate::common::{
    Call, Calls, Handle, Moods, accesses, assert_at_rest, config, deadline, drain, shape,
    submit_each, write,
};
use blkmq_core::{HwQueue, Instant, Nanos, Rng};
use blkmq_engine::{Access, Busy, Config, DeviceShape, PumpMode, Queue, QueueStats, Submitter};
use blkmq_sched::testkit::rationed;
use blkmq_sched::{Scope, registry};

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
        panic!("all are awake and nothing ends");
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

const T0: Instant = Instant::ZERO;

const HW: HwQueue = HwQueue(0);

fn ms(ms: u64) -> Instant {
    T0 + Nanos::from_millis(ms)
}

/// A queue with pump threads around a device with interrupts.
fn queue_with(
    shape: DeviceShape,
    adjust: impl FnOnce(&mut Config<u32>),
) -> (Queue<u32>, Handle, Calls) {
    let (config, device) = config(shape);
    let calls = Calls::default();
    let host = Box::new(calls.clone());
    let mut config =
        Config { pump: PumpMode::Thread, host, submitters: 2, ..config.scheduler(deadline()) };
    adjust(&mut config);
    device.with(|c| c.interrupts = true);
    (Queue::new(config).expect("valid"), device, calls)
}

fn submitter(queue: &Queue<u32>) -> Submitter<u32> {
    queue.submitter().expect("two were asked for")
}

#[test]
fn a_submission_calls_the_pump_once_and_leaves_the_device_to_it() {
    let (queue, device, calls) = queue_with(shape(1, 8), |_| {});
    let mut sub = submitter(&queue);
    submit_each(&mut sub, T0, [write(0, 8)]);
    assert_eq!(calls.take(), [Call::Pump(HW)]);
    submit_each(&mut sub, T0, [write(100, 8), write(200, 8)]);
    assert_eq!(calls.take(), [], "it has not come yet, so it need not be called again");
    sub.poll(T0);
    assert_eq!(device.sectors(), [], "only the pump issues");
    assert!(sub.prepare_park(T0).is_some(), "and no other thread has anything to do");
    assert_eq!(queue.pump(HW, T0), None, "the device will interrupt");
    assert_eq!(device.sectors(), [0, 100, 200]);
    assert_eq!(calls.take(), []);

    device.finish(3);
    assert_eq!(queue.pump(HW, T0), None);
    assert_eq!(calls.take(), [Call::Submitter(sub.id())], "it was parked");
    sub.unpark();
    let mut ended = 0;
    sub.reap(9, |_| ended += 1);
    assert_eq!(ended, 3);
    assert_at_rest(&queue, 1);
}

#[test]
fn a_submitter_that_is_awake_is_not_woken() {
    for access in accesses() {
        let (queue, device, calls) = queue_with(shape(1, 8), |config| config.access = access);
        let mut sub = submitter(&queue);
        submit_each(&mut sub, T0, [write(0, 8)]);
        let _ = queue.pump(HW, T0);
        device.finish(1);
        calls.take();
        let _ = queue.pump(HW, T0);
        assert_eq!(calls.take(), [], "{access:?}");
        assert!(sub.prepare_park(T0).is_none(), "there is something to reap");
        drain(&mut sub, &mut { T0 }, 1);
        assert_at_rest(&queue, 1);
    }
}

/// Twenty requests for a device of depth 1, and a submitter that sleeps throughout.
#[test]
fn the_pump_thread_keeps_the_elevator_going_by_itself() {
    for access in accesses() {
        let (queue, device, calls) = queue_with(shape(1, 1), |config| config.access = access);
        let mut sub = submitter(&queue);
        for i in 0..20 {
            sub.push(T0, write(i * 100, 8)).expect("there is credit");
        }
        sub.flush(T0);
        let _ = queue.pump(HW, T0);
        assert!(sub.prepare_park(T0).is_some(), "{access:?}");
        for done in 1..=20 {
            device.finish(1);
            let mut again = queue.pump(HW, T0);
            while again.is_some_and(|at| at <= T0) {
                again = queue.pump(HW, T0);
            }
            assert_eq!(device.sectors().len(), (done + 1).min(20), "{access:?}");
        }
        assert!(calls.take().contains(&Call::Submitter(sub.id())));
        sub.unpark();
        assert_eq!(drain(&mut sub, &mut { T0 }, 1).len(), 20);
        assert_at_rest(&queue, 1);
    }
}

/// The pump thread is also responsible for requests that wait for a scheduler tag.
#[test]
fn what_is_staged_for_want_of_a_slot_gets_in_without_its_submitter() {
    for access in accesses() {
        let (queue, device, _) = queue_with(shape(1, 1), |config| {
            config.access = access;
            config.nr_requests = Some(4);
        });
        let mut sub = submitter(&queue);
        submit_each(&mut sub, T0, (0..12).map(|i| write(i * 100, 8)));
        assert_eq!(queue.stats().inserted, 4);
        for _ in 0..40 {
            device.finish(1);
            let _ = queue.pump(HW, T0);
        }
        assert_eq!(device.sectors().len(), 12, "{access:?}");
        drain(&mut sub, &mut { T0 }, 1);
        assert_at_rest(&queue, 1);
    }
}

#[test]
fn s16_06_resource_makes_the_pump_say_when_to_come_back() {
    for access in accesses() {
        let (queue, device, calls) = queue_with(shape(1, 8), |config| config.access = access);
        let mut sub = submitter(&queue);
        device.with(|c| c.script.push_back(Some(Busy::Resource)));
        submit_each(&mut sub, T0, [write(0, 8)]);
        // In the locked modes the submitter itself issues, and the pump thread is woken for the refused request.
        assert_eq!(calls.take(), [Call::Pump(HW)], "{access:?}");
        let locked = access != Access::Combining;
        assert_eq!(queue.stats().busy, u64::from(locked));
        if !locked {
            assert_eq!(queue.pump(HW, T0), Some(ms(3)));
        }
        assert_eq!(device.sectors(), []);
        assert!(sub.prepare_park(ms(2)).is_some(), "{access:?}: it is the pump's business");
        sub.unpark();
        assert_eq!(queue.pump(HW, ms(3)), None);
        assert_eq!(device.sectors(), [0]);
        device.finish(1);
        let _ = queue.pump(HW, ms(3));
        drain(&mut sub, &mut ms(3), 1);
        assert_at_rest(&queue, 1);
    }
}

/// R2 of section 9.1, where the kernel fails: a retry is due, then a pass is requested immediately, then a later one;
/// nothing delays the pass that is due.
#[test]
fn s16_09_a_retry_that_is_armed_neither_delays_a_call_nor_is_lost_by_it() {
    let (queue, device, calls) = queue_with(shape(2, 8), |config| {
        config.scope = Some(Scope::HwQueue);
    });
    let (mut sub, mut other) = (submitter(&queue), submitter(&queue));
    device.with(|c| c.script.extend([None, Some(Busy::Resource)]));
    submit_each(&mut sub, T0, [write(0, 8), write(100, 8)]);
    assert_eq!(queue.pump(HW, T0), Some(ms(3)), "100 is to be offered again then");
    assert_eq!(device.sectors(), [0]);
    // The other hardware queue is not affected.
    submit_each(&mut other, ms(1), [write(5000, 8)]);
    assert_eq!(calls.take(), [Call::Pump(HW), Call::Pump(HwQueue(1))]);
    assert_eq!(queue.pump(HwQueue(1), ms(1)), None);
    assert_eq!(device.sectors(), [0, 5000]);
    // The first request completes: that requests a turn immediately, and brings the retry forward.
    device.finish(1);
    let _ = queue.pump(HW, ms(2));
    assert_eq!(device.sectors(), [0, 5000, 100]);
    device.finish(9);
    let _ = (queue.pump(HW, ms(2)), queue.pump(HwQueue(1), ms(2)));
    drain(&mut sub, &mut ms(2), 1);
    drain(&mut other, &mut ms(2), 1);
    assert_at_rest(&queue, 2);
}

/// One elevator feeds two hardware queues: both their threads are woken, each for its own requests.
#[test]
fn each_hardware_queue_has_a_pump_of_its_own() {
    let (queue, device, calls) = queue_with(shape(2, 2), |_| {});
    let mut sub = submitter(&queue);
    for i in 0..4 {
        sub.push(T0, write(i * 100, 8)).expect("there is credit");
    }
    sub.flush(T0);
    assert_eq!(calls.take(), [Call::Pump(HW), Call::Pump(HwQueue(1))]);
    let _ = queue.pump(HwQueue(1), T0);
    assert_eq!(device.sectors(), [200, 300]);
    let _ = queue.pump(HW, T0);
    assert_eq!(device.with(|c| c.arrivals.iter().map(|a| a.hw).collect::<Vec<_>>()), [1, 1, 0, 0]);
    device.finish(4);
    let _ = (queue.pump(HW, T0), queue.pump(HwQueue(1), T0));
    drain(&mut sub, &mut { T0 }, 1);
    assert_at_rest(&queue, 2);
}

/// One pump returns a tag or a budget that an elevator behind another pump waits for. That elevator's submitter
/// sleeps, and is woken.
#[test]
fn shared_tags_and_budgets_wake_the_submitter_of_the_other_elevator() {
    let tags = DeviceShape { shared_tags: true, ..shape(2, 1) };
    let budgets = DeviceShape { budget: Some(1), ..shape(2, 8) };
    for access in accesses() {
        for shape in [tags, budgets] {
            let (queue, device, calls) = queue_with(shape, |config| {
                config.scope = Some(Scope::HwQueue);
                config.access = access;
            });
            let (mut a, mut b) = (submitter(&queue), submitter(&queue));
            submit_each(&mut a, T0, [write(0, 8)]);
            let _ = queue.pump(HW, T0);
            submit_each(&mut b, T0, [write(1000, 8)]);
            assert!(b.prepare_park(T0).is_some(), "{access:?} {shape:?}: nothing to do for it");
            calls.take();
            device.finish(1);
            let _ = queue.pump(HW, T0);
            assert_eq!(calls.take(), [Call::Submitter(b.id())], "{access:?} {shape:?}");
            b.unpark();
            b.poll(T0);
            let _ = queue.pump(HwQueue(1), T0);
            assert_eq!(device.sectors(), [0, 1000], "{access:?} {shape:?}");
            device.finish(1);
            let _ = queue.pump(HwQueue(1), T0);
            drain(&mut a, &mut { T0 }, 1);
            drain(&mut b, &mut { T0 }, 1);
            assert_at_rest(&queue, 2);
        }
    }
}

/// Devices that have a descriptor to watch: no thread has to stay awake for them, and a thread that is awake still
/// reaps.
#[cfg(target_os = "linux")]
mod event_fd {
    use super::{HW, T0};

    use crate::common::{
        Calls, Handle, accesses, assert_at_rest, config, deadline, drain, replan, shape,
        submit_each, watched_config, write,
    };
    use blkmq_core::{Instant, Nanos};
    use blkmq_engine::{
        Access, BioTable, Busy, Config, DeviceQueue, Enqueued, Finished, Inflight, PumpMode, Queue,
    };
    use std::fs::File;
    use std::os::fd::{AsFd, BorrowedFd};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn queue(
        (config, device): (Config<u32>, Handle),
        access: Access,
        pump: PumpMode,
    ) -> (Queue<u32>, Handle, Calls) {
        let calls = Calls::default();
        let host = Box::new(calls.clone());
        let config = Config { access, pump, host, submitters: 2, ..config.scheduler(deadline()) };
        (Queue::new(config).expect("valid"), device, calls)
    }

    #[test]
    fn a_waiter_sleeps_while_the_device_works_and_finds_what_it_has_done() {
        for access in accesses() {
            let (queue, device, _) = queue(watched_config(shape(1, 8)), access, PumpMode::Inline);
            let mut sub = queue.submitter().expect("two were asked for");
            submit_each(&mut sub, T0, [write(0, 8), write(100, 8)]);
            assert_eq!(device.sectors(), [0, 100], "{access:?}");
            assert!(sub.prepare_park(T0).is_some(), "{access:?}: the descriptor will tell");
            assert_eq!(sub.next_deadline(), None, "{access:?}");
            sub.unpark();
            device.finish(2);
            assert_eq!(drain(&mut sub, &mut { T0 }, 1).len(), 2, "{access:?}");
            assert_at_rest(&queue, 1);
        }
    }

    /// Without a descriptor: the outcome of the test above if the engine ignored descriptors.
    #[test]
    fn without_a_descriptor_a_device_that_cannot_tell_is_polled() {
        let (queue, device, _) = queue(config(shape(1, 8)), Access::default(), PumpMode::Inline);
        let mut sub = queue.submitter().expect("two were asked for");
        submit_each(&mut sub, T0, [write(0, 8)]);
        assert!(sub.prepare_park(T0).is_none(), "no other thread would look");
        assert_eq!(sub.next_deadline(), Some(T0));
        device.finish(1);
        drain(&mut sub, &mut { T0 }, 1);
    }

    #[test]
    fn a_pump_thread_is_told_to_sleep() {
        for access in accesses() {
            let (queue, device, _) = queue(watched_config(shape(1, 8)), access, PumpMode::Thread);
            let mut sub = queue.submitter().expect("two were asked for");
            submit_each(&mut sub, T0, [write(0, 8)]);
            assert_eq!(queue.pump(HW, T0), None, "{access:?}");
            device.finish(1);
            assert_eq!(queue.pump(HW, T0), None, "{access:?}");
            assert_eq!(drain(&mut sub, &mut { T0 }, 1).len(), 1, "{access:?}");
            assert_at_rest(&queue, 1);
        }
    }

    /// A thread that leaves wakes no other one for the device: the others watch it themselves.
    #[test]
    fn who_has_everything_back_leaves_the_device_to_those_who_watch_it() {
        let (queue, device, calls) =
            queue(watched_config(shape(1, 8)), Access::default(), PumpMode::Inline);
        let mut leaver = queue.submitter().expect("two were asked for");
        let mut sleeper = queue.submitter().expect("two were asked for");
        submit_each(&mut leaver, T0, [write(0, 8)]);
        submit_each(&mut sleeper, T0, [write(100, 8)]);
        while !device.sectors().contains(&100) {
            sleeper.poll(T0);
        }
        assert!(sleeper.prepare_park(T0).is_some());
        calls.take();
        device.finish(1);
        assert_eq!(drain(&mut leaver, &mut { T0 }, 1), [0]);
        assert_eq!(calls.take(), [], "one is still at the device, and there is nothing else to do");
        sleeper.unpark();
        device.finish(1);
        assert_eq!(drain(&mut sleeper, &mut { T0 }, 1), [100]);
        assert_at_rest(&queue, 1);
    }

    /// Times that the device names, or that the engine sets itself, are kept as without a descriptor.
    #[test]
    fn times_count_as_before() {
        let (queue, device, _) =
            queue(watched_config(shape(1, 8)), Access::default(), PumpMode::Inline);
        let mut sub = queue.submitter().expect("two were asked for");
        device.with(|c| c.script.push_back(Some(Busy::Resource)));
        submit_each(&mut sub, T0, [write(0, 8)]);
        let retry = T0 + Nanos::from_millis(3);
        assert_eq!(sub.next_deadline(), Some(retry));
        device.with(|c| c.service = Some(Nanos(5)));
        sub.poll(retry);
        assert_eq!(sub.next_deadline(), Some(retry + Nanos(5)), "the device knows when");
        assert!(sub.prepare_park(retry + Nanos(5)).is_none());
        drain(&mut sub, &mut { retry + Nanos(5) }, 1);
        assert_at_rest(&queue, 1);
    }

    /// When the scheduler changes, the device moves to another queue, and its descriptor with it.
    #[test]
    fn a_changed_queue_knows_the_descriptor_of_the_device_that_it_took_over() {
        let (queue, device, _) =
            queue(watched_config(shape(1, 8)), Access::default(), PumpMode::Inline);
        let mut sub = queue.submitter().expect("two were asked for");
        let none = blkmq_sched::registry::find("none").expect("registered");
        let mut change = replan(&queue, queue.plan().scheduler(none)).expect("possible");
        assert!((0..100).any(|_| change.step(T0)), "nothing is in its way");
        submit_each(&mut sub, T0, [write(0, 8)]);
        assert_eq!(device.sectors(), [0]);
        assert!(sub.prepare_park(T0).is_some(), "the descriptor will tell");
        sub.unpark();
        device.finish(1);
        drain(&mut sub, &mut { T0 }, 1);
        assert_at_rest(&queue, 1);
    }

    /// A device with work while no request is there, such as a copy.
    struct Copier {
        has_own_work: bool,
        fd: File,
        reaps: Arc<AtomicU32>,
    }

    /// The time of its next event.
    const NEXT: Instant = Instant::from_nanos(7);

    impl DeviceQueue<u32> for Copier {
        fn enqueue(&mut self, _: Instant, _: &BioTable<u32>, rq: Inflight) -> Enqueued {
            Enqueued::Done(rq, Ok(()))
        }

        fn reap(&mut self, _: Instant, _: &BioTable<u32>, _: &mut Vec<Finished>) {
            self.reaps.fetch_add(1, Ordering::Relaxed);
        }

        fn next_event(&self) -> Option<Instant> {
            Some(NEXT)
        }

        fn event_fd(&self) -> Option<BorrowedFd<'_>> {
            Some(self.fd.as_fd())
        }

        fn has_own_work(&self) -> bool {
            self.has_own_work
        }

        fn abandon(&mut self, _: &mut Vec<Inflight>) {}
    }

    /// If nothing polled the device, a thread that watches the descriptor would wake for it again and again.
    #[test]
    fn a_device_with_work_of_its_own_gets_turns_without_requests() {
        for has_own_work in [false, true] {
            let reaps = Arc::new(AtomicU32::new(0));
            let fd = File::open("/dev/null").expect("it is there");
            let copier = Copier { has_own_work, fd, reaps: Arc::clone(&reaps) };
            let (config, _) = config(shape(1, 8));
            let config = Config { queues: vec![Box::new(copier)], submitters: 1, ..config };
            let queue = Queue::new(config.scheduler(deadline())).expect("valid");
            let mut sub = queue.submitter().expect("one was asked for");
            // The queue that was built first, then the one that takes its place.
            for _ in 0..2 {
                reaps.store(0, Ordering::Relaxed);
                for _ in 0..3 {
                    sub.poll(T0);
                }
                assert_eq!(reaps.load(Ordering::Relaxed), if has_own_work { 3 } else { 0 });
                assert_eq!(sub.next_deadline(), has_own_work.then_some(NEXT));
                assert!(sub.prepare_park(T0).is_some(), "it may sleep until then");
                sub.unpark();
                let none = blkmq_sched::registry::find("none").expect("registered");
                let mut change = replan(&queue, queue.plan().scheduler(none)).expect("possible");
                assert!((0..100).any(|_| change.step(T0)), "nothing is in its way");
            }
        }
    }
}
