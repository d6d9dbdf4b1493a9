//! The order in which a device gets requests, compared with the order in which the elevator picked them
//! (`spec/framework.md` sections 15 and 16, line 21).
//!
//! With combining, the two orders are equal for each hardware queue, however many threads submit (decision 0003). If
//! requests are dispatched one at a time under a lock, as in the kernel, they can differ, which a test shows with a
//! thread that is stopped between its pick and its issue.

use crate::common;

use blkmq_core::{HwQueue, Instant, Op, Rng, SubmitterId};
use blkmq_device::Device;
use blkmq_engine::{Access, Config, Host, Io, NoMerges, Queue, Submitter};
use blkmq_sched::{
    Admission, Bypass, Cx, Factory, Facts, Fresh, Observed, Observer, Pick, Scheduler, Scope,
    deadline, none,
};
use common::null;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

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
        let so_far = self.picks.lock().expect("nobody panics with it").len();
        if let Some(pick) = (self.before)(so_far) {
            return pick;
        }
        let pick = policy.pick(cx, hw);
        if let Pick::Issue(id) = pick {
            self.picks
                .lock()
                .expect("nobody panics with it")
                .push((hw, cx.requests.get(id).sector));
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
        .expect("nobody panics with it")
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
        let caught = self.0.lock().expect("nobody panics with it").take();
        if let Some((caught, go)) = caught {
            caught.send(()).expect("somebody waits for it");
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
        asked_again.send(()).expect("somebody waits for it");
        is_asleep.recv().expect("somebody else begins to wait for a budget");
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
        is_caught.recv().expect("the first thread wakes somebody");
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
