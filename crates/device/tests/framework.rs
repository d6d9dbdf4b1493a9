//! The lines of `spec/framework.md` section 16 that need a device to be tested; among them the order in which a device
//! gets requests, compared with the order in which the elevator picked them (section 15, and section 16, line 21), and
//! writers that share flushes (section 12, and section 16, point 20).
//!
//! With combining, the two orders are equal for each hardware queue, however many threads submit (decision 0003). If
//! requests are dispatched one at a time under a lock, as in the kernel, they can differ, which a test shows with a
//! thread that is stopped between its pick and its issue.

use crate::{Event, events, null, observed, rig, unmerged};
use blkmq_core::{HwQueue, Instant, IoFlags, Nanos, Op, Rng, SubmitterId};
use blkmq_device::contract::{Checked, Rig};
use blkmq_device::{Arrival, Device};
use blkmq_engine::{Access, Config, Host, Io, NoMerges, Queue, Submitter};
use blkmq_sched::{
    Admission, Bypass, Cx, Factory, Facts, Fresh, Observed, Observer, Pick, Scheduler, Scope,
    deadline, none, registry,
};
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

const HW: HwQueue = HwQueue(0);

/// The times at which the request at `sector` was offered to the device.
fn offered(device: &Device, sector: u64) -> Vec<Nanos> {
    let arrivals = device.log.as_ref().expect("log=1").arrivals();
    let mine = arrivals.iter().filter(|arrival| arrival.sector == sector);
    mine.map(|arrival| arrival.at - Instant::ZERO).collect()
}

#[test]
fn s16_02_driver_tags_in_use_never_exceed_the_hardware_depth() {
    for text in
        ["irqmode=2,hw_queue_depth=4", "irqmode=2,hw_queue_depth=4,shared_tags=1,submit_queues=2"]
    {
        let device = null(&format!("{text},log=1"));
        let (queues, watch) = Checked::wrap(&device.shape, device.queues());
        let mut rig = Rig::new(Config { queues, ..unmerged(&device, 4, 64) });
        let mut most = 0;
        for io in 0..200 {
            rig.push(io % 4, Op::Write, io as u64 * 64, 8).expect("there is credit");
            rig.flush(io % 4);
            most = most.max(rig.queue.tags_in_use(HW));
        }
        while let Some(at) = rig.next_deadline() {
            rig.now = rig.now.max(at);
            rig.poll();
            most = most.max(rig.queue.tags_in_use(HW));
        }
        rig.finish();
        assert_eq!(most, 4, "{text}: all of them were used, and no more");
        assert!(watch.lock().unwrap().most_held <= 4);
        assert!(device.log.as_ref().expect("log=1").arrivals().iter().all(|a| a.tag.0 < 4));
        rig.check_at_rest(device.shape.hw_queues);
    }
}

#[test]
fn s16_06_resource_with_nothing_in_flight_is_retried_after_3_ms() {
    let device = null("irqmode=0,resource=1:100:0:1,log=1");
    let mut rig = rig(&device);
    rig.submit(Op::Read, 0, 8);
    rig.finish();
    assert_eq!(offered(&device, 0), [Nanos(0), Nanos::from_millis(3)]);
}

#[test]
fn s16_06_dev_resource_is_not_retried_by_a_timer_but_when_the_device_says() {
    // A fault with no request in service: the device announces the time of its next event.
    let device = null("irqmode=0,dev_resource=1:100:0:1,log=1");
    let mut one = rig(&device);
    one.submit(Op::Read, 0, 8);
    one.finish();
    assert_eq!(offered(&device, 0), [Nanos(0), Nanos::from_millis(1)]);
    // The bandwidth is used up for a second, much longer than any timer of the engine.
    let device = null("irqmode=0,mbps=1,log=1");
    let mut two = rig(&device);
    two.submit(Op::Write, 0, 2048);
    two.submit(Op::Write, 4096, 8);
    two.finish();
    assert_eq!(offered(&device, 4096), [Nanos(0), Nanos::from_secs(1)]);
}

#[test]
fn s16_06_dev_resource_is_retried_promptly_on_a_completion() {
    let device = null("irqmode=2,completion_nsec=10000,dev_resource=1:100:1:1,log=1");
    let mut rig = rig(&device);
    rig.submit(Op::Read, 0, 8);
    rig.submit(Op::Read, 64, 8);
    rig.finish();
    assert_eq!(offered(&device, 64), [Nanos(0), Nanos(10_000)]);
}

#[test]
fn s16_07_leftovers_keep_their_order_and_the_scheduler_is_not_asked_meanwhile() {
    for (_, access) in Access::ALL {
        leftovers_keep_their_order(access);
    }
}

fn leftovers_keep_their_order(access: Access) {
    use Event::{Refused, Taken};
    let (a, b, c, d) = (0, 100, 200, 300);
    // The device refuses b, the second attempt, twice.
    let mut rig = observed(&null("irqmode=2,resource=1:100:1:2"), access);
    for sector in [a, b, c] {
        rig.push(0, Op::Write, sector, 8).expect("there is credit");
    }
    rig.flush(0);
    let first = events();
    let arrivals: Vec<_> = arrivals(&first);
    assert_eq!(arrivals, [Taken(a), Refused(b)], "{access:?}");
    // While b waits, d arrives and a completes; the scheduler is not asked for a request.
    rig.submit(Op::Write, d, 8);
    rig.run_for(Nanos::from_millis(2));
    assert_eq!(rig.ended.len(), 1, "a has completed");
    assert!(!events().iter().any(is_question), "{access:?}: asked while b was stuck");
    rig.finish();
    let rest = events();
    let order = self::arrivals(&rest);
    let order: Vec<_> = order.into_iter().skip_while(|event| *event == Refused(b)).collect();
    assert_eq!(order, [Taken(b), Taken(c), Taken(d)], "{access:?}");
    let asked = rest.iter().position(is_question).expect("d was in the scheduler");
    let c_taken = rest.iter().position(|event| *event == Taken(c)).expect("c was taken");
    assert!(c_taken < asked, "{rest:?}");
}

#[test]
fn s16_22_while_dispatch_busy_is_set_requests_leave_one_at_a_time() {
    for (_, access) in Access::ALL {
        // The device refuses the request at 0, 3, 6, 9 and 12 ms, so the average is 6 when it accepts it at 15 ms.
        let mut rig = observed(&null("irqmode=0,resource=1:100:0:5,hw_queue_depth=64"), access);
        rig.submit(Op::Write, 0, 8);
        assert!(rig.queue.dispatch_busy(HW) > 0);
        for io in 1..=30 {
            rig.push(0, Op::Write, io * 64, 8).expect("there is credit");
        }
        rig.flush(0);
        rig.run_until(Instant::ZERO + Nanos::from_millis(14));
        assert_eq!(rig.queue.dispatch_busy(HW), 6);
        events();
        rig.finish();
        let batches = batches(&events());
        // The first request lowers the average to 5. Requests are issued one at a time until it is 0, and the others
        // together.
        assert_eq!(batches, [1, 1, 1, 1, 1, 25], "{access:?}: picked between two arrivals");
        assert_eq!(rig.queue.dispatch_busy(HW), 0);
    }
}

fn is_question(event: &Event) -> bool {
    matches!(event, Event::Picked(_) | Event::AskedInVain)
}

fn arrivals(events: &[Event]) -> Vec<Event> {
    events.iter().filter(|event| !is_question(event)).copied().collect()
}

/// The numbers of requests picked between one arrival and the next, without zeros.
fn batches(events: &[Event]) -> Vec<usize> {
    let groups = events.split(|event| matches!(event, Event::Taken(_) | Event::Refused(_)));
    let picked = groups.map(|group| group.iter().filter(|e| matches!(e, Event::Picked(_))).count());
    picked.filter(|count| *count > 0).collect()
}

/// The requests that an elevator picked: the hardware queue and the sector of each.
type Picks = Arc<Mutex<Vec<(HwQueue, u64)>>>;
/// A function called before the policy with the number of requests picked so far. `Some` replaces the policy's answer.
type Before = Box<dyn FnMut(usize) -> Option<Pick> + Send>;

/// Records the picks of a policy.
struct Recorded {
    picks: Picks,
    before: Before,
}

/// Forwards every question to the policy.
fn unasked() -> Before {
    Box::new(|_| None)
}

thread_local! {
    /// The parameters for the next policy built on this thread, because a factory is a plain function without state.
    static RECORDER: RefCell<Option<(Picks, Before)>> = const { RefCell::new(None) };
}

fn recorded(policy: Box<dyn Scheduler>) -> Box<dyn Scheduler> {
    let (picks, before) = RECORDER.take().unwrap_or_else(|| (Picks::default(), unasked()));
    Box::new(Observed::new(policy, Recorded { picks, before }))
}

const NONE: Factory = Factory {
    name: "none, recorded",
    summary: "",
    scope: Scope::Queue,
    attributes: &[],
    common: None,
    build: |shape, options| recorded((none::FACTORY.build)(shape, options)),
};

const MQ_DEADLINE: Factory = Factory {
    name: "mq-deadline, recorded",
    summary: "",
    scope: Scope::Queue,
    attributes: deadline::FACTORY.attributes,
    common: None,
    build: |shape, options| recorded((deadline::FACTORY.build)(shape, options)),
};

impl Observer for Recorded {
    fn facts(&self, policy: &dyn Scheduler) -> Facts {
        Facts { bypass: Bypass::Never, takes_plugs: false, ..policy.facts() }
    }

    fn admit(
        &mut self,
        _: &mut dyn Scheduler,
        _: &Cx<'_>,
        _: &Fresh<'_>,
        _: &mut [u8],
    ) -> Admission {
        // Every request must be picked.
        Admission::Refused
    }

    fn pick(&mut self, policy: &mut dyn Scheduler, cx: &Cx<'_>, hw: HwQueue) -> Pick {
        let so_far = self.picks.lock().expect("no panic poisons it").len();
        if let Some(pick) = (self.before)(so_far) {
            return pick;
        }
        let pick = policy.pick(cx, hw);
        if let Pick::Issue(id) = pick {
            self.picks.lock().expect("no panic poisons it").push((hw, cx.requests.get(id).sector));
        }
        pick
    }
}

/// Builds a queue, and the record of its first elevator's picks.
fn queue(factory: &'static Factory, before: Before, config: Config<u64>) -> (Queue<u64>, Picks) {
    let picks = Picks::default();
    RECORDER.set(Some((Arc::clone(&picks), before)));
    let config = Config { nomerges: NoMerges::None, ..config.scheduler(factory) };
    (Queue::new(config).expect("a valid queue"), picks)
}

/// The sectors of the requests that the device took on `hw`, in order.
fn taken(device: &Device, hw: HwQueue) -> Vec<u64> {
    let log = device.log.as_ref().expect("log=1");
    assert_eq!(log.missed(), 0, "the log was too small");
    log.taken().iter().filter(|arrival| arrival.hw == hw).map(|arrival| arrival.sector).collect()
}

fn picked(picks: &Picks, hw: HwQueue) -> Vec<u64> {
    picks
        .lock()
        .expect("no panic poisons it")
        .iter()
        .filter(|pick| pick.0 == hw)
        .map(|pick| pick.1)
        .collect()
}

const THREADS: u16 = 4;
/// I/Os of each thread.
const IOS: u64 = 30_000;
const DEPTH: u32 = 32;

/// Submits I/Os in small plugs. A thread that gets no completions advances the clock to its next deadline.
fn drive(mut submitter: Submitter<u64>, clock: &AtomicU64) {
    let mut rng = Rng::new(submitter.id().0.into());
    let mut next_sector = 0;
    let (mut pushed, mut ended) = (0, 0);
    while ended < IOS {
        let now = Instant::from_nanos(clock.fetch_add(1, Ordering::Relaxed));
        let room = IOS.min(ended + u64::from(DEPTH)) - pushed;
        for _ in 0..room.min(1 + rng.below(8)) {
            // Each I/O has its own sector: the threads' sectors interleave, and the multiplication scatters them.
            next_sector += 1;
            let number = next_sector * u64::from(THREADS) + u64::from(submitter.id().0);
            let sector = number * 0x9e37 % (1 << 20) * 8;
            let op = if rng.chance(1, 2) { Op::Read } else { Op::Write };
            submitter.push(now, Io::new(op, sector, 8, pushed, pushed)).expect("there is credit");
            pushed += 1;
        }
        submitter.flush(now);
        submitter.poll(now);
        let got = submitter.reap(u32::MAX, |done| assert_eq!(done.result, Ok(())));
        ended += u64::from(got);
        if got == 0 {
            let due = submitter.next_deadline().filter(|at| *at < Instant::MAX);
            clock.fetch_max(due.map_or(0, Instant::as_nanos), Ordering::Relaxed);
            std::thread::yield_now();
        }
    }
}

/// Checks, with four threads, that the device got exactly the requests that the elevator picked, in that order.
fn keeps_order(factory: &'static Factory, parameters: &str) {
    let device = null(&format!("log=1,log_size=1000000,{parameters}"));
    let config = Config { submitters: THREADS, depth: DEPTH, ..device.config() };
    let (queue, picks) = queue(factory, unasked(), config);
    let clock = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            let submitter = queue.submitter().expect("one per thread");
            scope.spawn(|| drive(submitter, &clock));
        }
    });
    let ios = u64::from(THREADS) * IOS;
    let mut seen = 0;
    for hw in (0..device.shape.hw_queues).map(HwQueue) {
        let (arrived, picked) = (taken(&device, hw), picked(&picks, hw));
        let parted = arrived.iter().zip(&picked).position(|(arrived, picked)| arrived != picked);
        assert_eq!(parted, None, "arrivals and picks part here: {parameters}");
        assert_eq!(arrived.len(), picked.len(), "{parameters}");
        seen += arrived.len() as u64;
    }
    let requeues = queue.stats().requeues;
    assert_eq!(seen, ios + requeues, "each request once, and again when it was requeued");
    assert_eq!(queue.stats().busy > 0, parameters.contains("resource"));
}

#[test]
fn s15_combining_keeps_the_elevators_order() {
    for factory in [&NONE, &MQ_DEADLINE] {
        keeps_order(factory, "irqmode=0");
        keeps_order(factory, "irqmode=2,completion_nsec=3000,hw_queue_depth=8");
    }
}

/// A request that the device refused waits ahead of requests that were picked later.
#[test]
fn s15_combining_keeps_the_elevators_order_while_the_device_refuses() {
    for factory in [&NONE, &MQ_DEADLINE] {
        keeps_order(factory, "irqmode=0,resource=5:10:0:-1,dev_resource=3:10:0:-1");
        keeps_order(
            factory,
            "irqmode=1,hw_queue_depth=4,service_limit=2,dev_resource=1:5:0:-1,requeue=1:2:0:-1",
        );
    }
}

/// If one elevator feeds several hardware queues, each queue gets its requests in the elevator's order.
#[test]
fn s15_combining_keeps_the_elevators_order_for_each_hardware_queue() {
    keeps_order(&NONE, "irqmode=1,submit_queues=2,resource=7:10:0:-1");
}

/// A host that stops the first thread that calls [`Host::wake_submitter`].
struct Catch(Mutex<Option<(Sender<()>, Receiver<()>)>>);

impl Host for Catch {
    fn wake_submitter(&self, _: SubmitterId) {
        let caught = self.0.lock().expect("no panic poisons it").take();
        if let Some((caught, go)) = caught {
            caught.send(()).expect("the test receives it");
            go.recv().expect("it is let go");
        }
    }

    fn wake_pump(&self, _: HwQueue) {}
}

/// Dispatch as in the kernel: a thread picks each request under the lock, releases the lock between picks, and issues
/// its requests at the end. In the meantime other threads may have issued requests that they picked later.
#[test]
fn s15_one_at_a_time_dispatch_can_invert_the_order() {
    for access in [Access::Spin, Access::Mutex] {
        let (picked, taken) = caught_between_pick_and_issue(access);
        assert_eq!(picked, [1, 2, 3], "{access:?}: the elevator's order");
        assert_eq!(taken, [2, 3, 1], "{access:?}: the device's order");
    }
}

/// Returns the sectors that were picked and the sectors that the device took, each in order.
///
/// The first thread submits 1 and 2 and is stopped between the pick of 1 and its issue: the policy makes it wait for 2,
/// so it returns the budget that it took for 2, and wakes a submitter of the other hardware queue for that budget; the
/// host stops it in that call. In the meantime the second thread submits 3 and dispatches 2 and 3.
fn caught_between_pick_and_issue(access: Access) -> (Vec<u64>, Vec<u64>) {
    let (caught, is_caught) = channel();
    let (let_go, may_go) = channel();
    let (asked_again, is_asked_again) = channel();
    let (asleep, is_asleep) = channel();
    let mut questions = 0;
    let before = move |so_far| {
        questions += 1;
        if questions != 2 {
            return None;
        }
        assert_eq!(so_far, 1, "1 is picked");
        asked_again.send(()).expect("the other thread receives it");
        is_asleep.recv().expect("the other thread begins to wait for a budget");
        Some(Pick::WaitCompletion)
    };
    let device = null("irqmode=0,submit_queues=2,budget=2,log=1");
    let host = Box::new(Catch(Mutex::new(Some((caught, may_go)))));
    let scope = Some(Scope::HwQueue);
    let config = Config { access, scope, host, submitters: 3, ..device.config() };
    let (queue, picks) = queue(&NONE, Box::new(before), config);
    let [mut first, mut other, mut second] = [(); 3].map(|()| queue.submitter().expect("of three"));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            submit(&mut first, &[1, 2]);
            finish(&mut first);
        });
        is_asked_again.recv().expect("the policy is asked for 2");
        submit(&mut other, &[100]);
        assert_eq!(taken(&device, other.hw()), [], "the first thread has all budgets");
        assert!(other.prepare_park(Instant::ZERO).is_some());
        asleep.send(()).expect("the policy waits for it");
        is_caught.recv().expect("the first thread wakes the other");
        other.unpark();
        submit(&mut second, &[3]);
        let_go.send(()).expect("the first thread waits for it");
        finish(&mut second);
        finish(&mut other);
    });
    assert_eq!(queue.stats().completed, 4);
    (picked(&picks, second.hw()), taken(&device, second.hw()))
}

fn submit(submitter: &mut Submitter<u64>, sectors: &[u64]) {
    for sector in sectors {
        let io = Io::new(Op::Write, *sector, 1, *sector, *sector);
        submitter.push(Instant::ZERO, io).expect("there is credit");
    }
    submitter.flush(Instant::ZERO);
}

/// Polls until nothing is in flight.
fn finish(submitter: &mut Submitter<u64>) {
    while submitter.in_flight() > 0 {
        submitter.poll(Instant::ZERO);
        submitter.reap(u32::MAX, |done| assert_eq!(done.result, Ok(())));
        std::thread::yield_now();
    }
}

/// The time that the device takes for any request.
const SERVICE: Nanos = Nanos::from_micros(50);
const WRITERS: usize = 16;
/// Writes of each writer.
const WRITES: u64 = 100;
const ALL: u64 = WRITERS as u64 * WRITES;

/// A device with a volatile cache and without FUA.
fn cached() -> Device {
    let text = format!("irqmode=2,completion_nsec={},hw_queue_depth=64,log=1", SERVICE.0);
    null(&format!("{text},write_cache=1,fua=0"))
}

/// Writers that write with FUA, one write at a time, and pause for up to `think` between writes.
struct Writers {
    rig: Rig,
    rng: Rng,
    think: Nanos,
    /// The time of each writer's next write; `None` while it waits for a completion, and at the end.
    next: [Option<Instant>; WRITERS],
    left: [u64; WRITERS],
    /// For each cookie, the writer and the sector.
    written: Vec<(usize, u64)>,
}

impl Writers {
    fn new(config: Config<u64>, think: Nanos) -> Self {
        Self {
            rig: Rig::new(Config { submitters: WRITERS as u16, ..config }),
            rng: Rng::new(16),
            think,
            next: [Some(Instant::ZERO); WRITERS],
            left: [WRITES; WRITERS],
            written: Vec::new(),
        }
    }

    fn run(&mut self) {
        let mut seen = 0;
        loop {
            for who in 0..WRITERS {
                if self.next[who].is_some_and(|at| at <= self.rig.now) {
                    self.next[who] = None;
                    self.write(who);
                }
            }
            self.rig.settle();
            while let Some(ended) = self.rig.ended.get(seen) {
                assert_eq!(ended.result, Ok(()));
                let (who, _) = self.written[ended.cookie as usize];
                let thinks = Nanos(self.rng.below(self.think.0 + 1));
                self.next[who] = (self.left[who] > 0).then_some(ended.at + thinks);
                seen += 1;
            }
            let deadline = self.rig.next_deadline().filter(|_| self.rig.in_flight() > 0);
            let next = self.next.into_iter().flatten().chain(deadline).min();
            let Some(next) = next else { return };
            self.rig.now = self.rig.now.max(next);
        }
    }

    /// Writes to a sector far from all others, so that no writes can merge.
    fn write(&mut self, who: usize) {
        let sector = self.written.len() as u64 * 64;
        let cookie = self.rig.push_with(who, Op::Write, sector, 8, IoFlags::FUA);
        assert_eq!(cookie, Some(self.written.len() as u64), "it has nothing else in flight");
        self.written.push((who, sector));
        self.rig.flush(who);
        self.left[who] -= 1;
    }

    /// Checks that each write ended after a flush that began when its data was already in the cache. The evidence is
    /// only the device's arrival log, not the engine's statistics.
    fn check_each_has_its_flush(&self, arrivals: &[Arrival]) {
        for ended in &self.rig.ended {
            let (_, sector) = self.written[ended.cookie as usize];
            let is_data = |a: &&Arrival| a.op == Op::Write && a.sector == sector;
            let data = arrivals.iter().find(is_data).expect("its data was written");
            let cached = data.at + SERVICE;
            let flush = arrivals.iter().find(|a| a.op == Op::Flush && a.at >= cached);
            let durable = flush.is_some_and(|a| a.at + SERVICE <= ended.at);
            assert!(durable, "{ended:?} has seen no flush in time");
        }
    }
}

/// Returns the number of flushes that [`ALL`] writes cost.
fn flushes(access: Access, scheduler: &'static Factory, think: Nanos) -> u64 {
    let device = cached();
    let config = Config { access, ..device.config() }.scheduler(scheduler);
    let mut writers = Writers::new(config, think);
    writers.run();
    writers.rig.check_at_rest(1);
    let arrivals = device.log.as_ref().expect("log=1").arrivals();
    writers.check_each_has_its_flush(&arrivals);
    let issued = arrivals.iter().filter(|a| a.op == Op::Flush).count() as u64;
    assert_eq!(arrivals.len() as u64 - issued, ALL, "and every write came once");
    let stats = writers.rig.queue.stats().flushes;
    assert_eq!((stats.asked, stats.issued), (ALL, issued), "the counters agree");
    issued
}

#[test]
fn s16_20_sixteen_fua_writers_share_flushes() {
    println!("{WRITERS} writers, one FUA write at a time each, write_cache=1,fua=0:");
    for (name, access) in Access::ALL {
        for scheduler in registry::ALL {
            for think in [Nanos(0), SERVICE, Nanos(4 * SERVICE.0)] {
                let issued = flushes(access, scheduler, think);
                println!(
                    "  {name:9} {:11} thinking up to {:6} ns: {ALL} flushes asked for, {issued} issued ({}.{} %)",
                    scheduler.name,
                    think.0,
                    issued * 100 / ALL,
                    issued * 1000 / ALL % 10,
                );
                assert!(issued * 10 <= ALL, "{issued} flushes for {ALL}");
            }
        }
    }
}
