//! A policy or a device panics: every I/O is returned with an error or known to be lost, with every [`Access`], and no
//! thread stays asleep.

use crate::common;

use blkmq_core::{HwQueue, Instant, IoError, Nanos, RequestId};
use blkmq_engine::{
    Access, BioTable, ChangeError, Config, DeviceQueue, EditError, Enqueued, Finished, Inflight,
    Io, Queue, Refusal, Submitter,
};
use blkmq_sched::{
    Admission, At, Cx, Done, Factory, Facts, Fresh, Pick, Scheduler, Scope, registry,
};
use common::{Call, Calls, accesses, config, read, shape, write};
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};

const T0: Instant = Instant::ZERO;
/// The sector at which policies and devices of these tests panic.
const FATAL: u64 = 8_000;

/// The method in which a policy panics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Where {
    Insert,
    Pick,
    Completed,
    /// None: the policy answers that each request of a plug leaves first, which the engine detects.
    Order,
}

/// First in, first out; panics at the request that begins at [`FATAL`].
struct Fatal(Vec<(RequestId, u64)>, Where);

impl Fatal {
    fn look(&self, sector: u64, at: Where) {
        assert!(self.1 != at || sector != FATAL, "a policy that panics, as this test wants");
    }
}

impl Scheduler for Fatal {
    fn facts(&self) -> Facts {
        Facts { takes_plugs: self.1 == Where::Order, ..Facts::default() }
    }

    fn insert(&mut self, cx: &Cx<'_>, rq: RequestId, _: At) {
        let sector = cx.requests.get(rq).sector;
        self.look(sector, Where::Insert);
        self.0.push((rq, sector));
    }

    fn pick(&mut self, _: &Cx<'_>, _: HwQueue) -> Pick {
        let Some(&(rq, sector)) = self.0.first() else { return Pick::Empty };
        self.look(sector, Where::Pick);
        self.0.remove(0);
        Pick::Issue(rq)
    }

    fn admit(&mut self, _: &Cx<'_>, fresh: &Fresh<'_>, order: &mut [u8]) -> Admission {
        order.fill(0);
        Admission::of_all(fresh.rqs.len() > 1)
    }

    fn completed(&mut self, cx: &Cx<'_>, done: &Done) {
        self.look(cx.requests.get(done.rq).sector, Where::Completed);
    }

    fn withdraw(&mut self, _: &Cx<'_>, rq: RequestId) {
        self.0.retain(|(held, _)| *held != rq);
    }

    fn absorbed(&mut self, cx: &Cx<'_>, _: RequestId, gone: RequestId) {
        self.withdraw(cx, gone);
    }

    fn inspect(&self, _: &mut dyn FnMut(&'static str, u64)) {}
}

const fn factory(
    build: fn(&blkmq_sched::Shape, &blkmq_sched::Options) -> Box<dyn Scheduler>,
) -> Factory {
    Factory {
        name: "fatal",
        summary: "",
        scope: Scope::Queue,
        attributes: &[],
        common: None,
        build,
    }
}

static INSERT: Factory = factory(|_, _| Box::new(Fatal(Vec::new(), Where::Insert)));
static PICK: Factory = factory(|_, _| Box::new(Fatal(Vec::new(), Where::Pick)));
static COMPLETED: Factory = factory(|_, _| Box::new(Fatal(Vec::new(), Where::Completed)));

/// Runs `f`, which must panic, and catches the panic.
fn panics(f: impl FnOnce()) {
    assert!(catch_unwind(AssertUnwindSafe(f)).is_err(), "it panics");
}

/// Cookies and results of all I/Os that `sub` reaps, after as many polls as that may take.
fn reap_all(sub: &mut Submitter<u32>, now: Instant) -> Vec<(u64, Result<(), IoError>)> {
    let mut back = Vec::new();
    for _ in 0..10 {
        sub.poll(now);
        sub.reap(u32::MAX, |done| {
            assert_eq!(u64::from(done.payload), done.cookie, "its own payload");
            back.push((done.cookie, done.result));
        });
    }
    back.sort_by_key(|(cookie, _)| *cookie);
    back
}

/// Checks that the queue refuses every I/O and every change with the reason, and holds up no freeze.
fn assert_poisoned(queue: &Queue<u32>, sub: &mut Submitter<u32>) {
    assert!(queue.is_poisoned() && sub.is_poisoned());
    let refused = sub.push(T0, read(0, 8)).expect_err("nothing is taken");
    assert_eq!((refused.why, refused.into_io().payload), (Refusal::Poisoned, 0));
    let nothing = |_: &mut blkmq_engine::Plan| Ok::<(), Infallible>(());
    let edited = queue.edit(nothing).map(|_| ());
    assert_eq!(edited, Err(EditError::Change(ChangeError::Poisoned)));
    assert!(queue.freeze().step(T0) && queue.quiesce().step(T0));
    assert_eq!(queue.pump(HwQueue(0), T0), None);
}

#[test]
fn a_policy_panics_and_what_is_held_staged_or_plugged_comes_back() {
    for access in accesses() {
        for policy in [&INSERT, &PICK] {
            let (config, device) = config(shape(1, 2));
            let calls = Calls::default();
            let host = Box::new(calls.clone());
            let config = Config { access, submitters: 3, host, ..config.scheduler(policy) };
            let queue = Queue::new(config).expect("valid");
            let mut subs: Vec<_> =
                (0..3).map(|_| queue.submitter().expect("one is free")).collect();
            let [a, b, c] = &mut subs[..] else { panic!("three submitters") };
            // Two requests are at the device, one is in the elevator; one I/O is in a plug.
            for io in [write(100, 8), write(200, 8), write(300, 8)] {
                b.push(T0, io).expect("there is credit");
                b.flush(T0);
            }
            c.push(T0, write(400, 8)).expect("there is credit");
            a.push(T0, write(FATAL, 8)).expect("there is credit");
            a.push(T0, write(500, 8)).expect("there is credit");
            device.finish(0);
            calls.take();
            // The thread that has been running the elevator panics, which may be either one.
            panics(|| {
                a.flush(T0);
                for _ in 0..4 {
                    device.finish(1);
                    a.poll(T0);
                    b.poll(T0);
                }
            });
            let called = calls.take();
            for sub in [&*a, &*b, &*c] {
                assert!(called.contains(&Call::Submitter(sub.id())), "{access:?}: all are woken");
            }
            device.finish(8);
            let poisoned = Err(IoError::POISONED);
            let back = reap_all(a, T0);
            assert_eq!(back, [(500, poisoned), (FATAL, poisoned)], "{access:?}");
            let back = reap_all(b, T0);
            assert_eq!(back.len(), 3, "{access:?}");
            assert!(back[0].1.is_ok(), "what the device has, the device ends");
            assert_eq!(reap_all(c, T0), [(400, poisoned)]);
            for sub in [a, b, c] {
                assert_eq!((sub.outstanding(), sub.lost()), (0, Some(0)), "{access:?}");
                assert_poisoned(&queue, sub);
            }
        }
    }
}

#[test]
fn a_policy_that_panics_over_a_completion_keeps_nothing_from_coming_back() {
    for access in accesses() {
        let (config, device) = config(shape(1, 2));
        let config = Config { access, submitters: 2, ..config.scheduler(&COMPLETED) };
        let queue = Queue::new(config).expect("valid");
        let (mut a, mut b) = (queue.submitter().expect("free"), queue.submitter().expect("free"));
        a.push(T0, write(FATAL, 8)).expect("there is credit");
        a.flush(T0);
        for sector in [100, 200, 300] {
            b.push(T0, write(sector, 8)).expect("there is credit");
        }
        b.flush(T0);
        device.finish(1);
        panics(|| {
            for sector in [700, 800, 900] {
                // New work makes the runner process the completions.
                for sub in [&mut a, &mut b] {
                    sub.poll(T0);
                    sub.push(T0, write(sector, 8)).expect("there is credit");
                    sub.flush(T0);
                }
            }
        });
        device.finish(8);
        assert!(reap_all(&mut a, T0).contains(&(FATAL, Ok(()))), "{access:?}");
        assert!(reap_all(&mut b, T0).len() >= 3);
        assert_eq!((b.outstanding(), b.lost()), (0, Some(0)), "{access:?}");
    }
}

/// Holds every request; panics at [`FATAL`].
struct FatalDevice {
    held: Vec<Inflight>,
    forgets: bool,
    gives_back: bool,
}

impl<P> DeviceQueue<P> for FatalDevice {
    fn enqueue(&mut self, _: Instant, _: &BioTable<P>, rq: Inflight) -> Enqueued {
        if rq.sector() == FATAL {
            if self.forgets {
                self.held.drain(..).for_each(std::mem::forget);
            }
            panic!("a device that panics, as this test wants");
        }
        self.held.push(rq);
        Enqueued::Accepted
    }

    fn reap(&mut self, _: Instant, _: &BioTable<P>, _: &mut Vec<Finished>) {}

    fn next_event(&self) -> Option<Instant> {
        Some(Instant::MAX)
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        assert!(self.gives_back, "a device that panics once more");
        out.append(&mut self.held);
    }
}

fn fatal_device(access: Access, forgets: bool, gives_back: bool) -> Queue<u32> {
    let device = Box::new(FatalDevice { held: Vec::new(), forgets, gives_back });
    let config = Config::new(shape(1, 4), vec![device as _]);
    let none = registry::find("none").expect("registered");
    let config = Config { access, submitters: 2, ..config.scheduler(none) };
    Queue::new(config).expect("valid")
}

#[test]
fn a_device_panics_and_what_it_gives_back_comes_back() {
    for access in accesses() {
        let queue = fatal_device(access, false, true);
        let (mut a, mut b) = (queue.submitter().expect("free"), queue.submitter().expect("free"));
        b.push(T0, read(100, 8)).expect("there is credit");
        b.flush(T0);
        a.push(T0, read(FATAL, 8)).expect("there is credit");
        panics(|| {
            a.flush(T0);
            b.poll(T0);
        });
        let poisoned = Err(IoError::POISONED);
        assert_eq!(reap_all(&mut b, T0), [(100, poisoned)], "{access:?}");
        assert_eq!(reap_all(&mut a, T0), [(FATAL, poisoned)], "{access:?}");
        assert_eq!((a.lost(), b.lost()), (Some(0), Some(0)), "{access:?}");
        assert_poisoned(&queue, &mut a);
    }
}

#[test]
fn what_a_device_that_panicked_does_not_give_back_is_lost_and_said_to_be() {
    for (forgets, gives_back) in [(true, true), (false, false)] {
        let queue = fatal_device(Access::Combining, forgets, gives_back);
        let (mut a, mut b) = (queue.submitter().expect("free"), queue.submitter().expect("free"));
        b.push(T0, read(100, 8)).expect("there is credit");
        b.flush(T0);
        assert_eq!(b.lost(), None, "the queue is sound");
        a.push(T0, read(FATAL, 8)).expect("there is credit");
        panics(|| {
            a.flush(T0);
            b.poll(T0);
        });
        assert_eq!(reap_all(&mut a, T0), [(FATAL, Err(IoError::POISONED))]);
        assert_eq!(reap_all(&mut b, T0), []);
        assert_eq!((a.lost(), b.lost(), b.outstanding()), (Some(0), Some(1), 1));
        assert!(b.prepare_park(T0).is_none(), "there is nothing to sleep for");
        assert_poisoned(&queue, &mut b);
    }
}

#[test]
fn with_pump_threads_a_healthy_device_is_waited_for() {
    let (config, device) = config(shape(1, 2));
    let calls = Calls::default();
    let config = Config {
        pump: blkmq_engine::PumpMode::Thread,
        host: Box::new(calls.clone()),
        ..config.scheduler(&PICK)
    };
    let queue = Queue::new(config).expect("valid");
    let mut sub = queue.submitter().expect("free");
    sub.push(T0, write(100, 8)).expect("there is credit");
    sub.flush(T0);
    let _ = queue.pump(HwQueue(0), T0);
    assert_eq!(device.sectors(), [100]);
    sub.push(T0, write(FATAL, 8)).expect("there is credit");
    panics(|| sub.flush(T0));
    assert!(calls.take().contains(&Call::Pump(HwQueue(0))), "pump threads are woken as well");
    assert!(queue.pump(HwQueue(0), T0).is_some_and(|at| at > T0), "the device has one");
    assert_eq!(reap_all(&mut sub, T0), [(FATAL, Err(IoError::POISONED))]);
    assert_eq!(sub.lost(), None, "one comes back");
    device.finish(1);
    let later = T0 + Nanos::from_millis(1);
    assert_eq!(queue.pump(HwQueue(0), later), None);
    assert_eq!(reap_all(&mut sub, later), [(100, Ok(()))]);
    assert_eq!(sub.lost(), Some(0));
}

#[test]
fn a_submitter_with_nothing_outstanding_has_lost_nothing_whatever_a_neighbour_waits_for() {
    let (config, device) = config(shape(1, 2));
    let config = Config { submitters: 2, ..config.scheduler(&PICK) };
    let queue = Queue::new(config).expect("valid");
    let (mut a, mut b) = (queue.submitter().expect("free"), queue.submitter().expect("free"));
    a.push(T0, write(100, 8)).expect("there is credit");
    a.flush(T0);
    assert_eq!(device.sectors(), [100]);
    b.push(T0, write(FATAL, 8)).expect("there is credit");
    panics(|| {
        b.flush(T0);
        a.poll(T0);
    });
    assert_eq!(b.lost(), None, "its own is still to be reaped");
    assert_eq!(reap_all(&mut b, T0), [(FATAL, Err(IoError::POISONED))]);
    assert_eq!((b.outstanding(), b.lost()), (0, Some(0)), "the neighbour's is at the device");
    a.poll(T0);
    assert_eq!((a.outstanding(), a.lost()), (1, None));
    device.finish(1);
    assert_eq!(reap_all(&mut a, T0), [(100, Ok(()))]);
    assert_eq!((a.lost(), b.lost()), (Some(0), Some(0)));
}

#[test]
fn a_panic_in_the_closure_that_takes_completions_loses_the_one_it_had() {
    let (config, device) = config(shape(1, 4));
    let queue = Queue::new(config).expect("valid");
    let mut sub = queue.submitter().expect("free");
    for sector in [0, 100] {
        sub.push(T0, read(sector, 8)).expect("there is credit");
    }
    sub.flush(T0);
    device.finish(2);
    sub.poll(T0);
    panics(|| {
        sub.reap(2, |_| panic!("a closure that panics, as this test wants"));
    });
    assert_eq!((queue.stats().completed, sub.outstanding()), (1, 1));
    assert_eq!(sub.reap(2, |_| {}), 1);
    assert_eq!((queue.stats().completed, queue.is_poisoned()), (2, false));
}

/// The panic's message must not be hidden by a silent drop of the queue.
#[test]
fn a_panic_of_a_device_that_is_taken_apart_goes_on_and_loses_nothing_else() {
    let queue = fatal_device(Access::Combining, false, false);
    let mut a = queue.submitter().expect("free");
    a.push(T0, read(100, 8)).expect("there is credit");
    a.flush(T0);
    let panic = catch_unwind(AssertUnwindSafe(|| drop((a, queue))));
    let panic = panic.expect_err("the device does not give back what it has");
    assert_eq!(panic.downcast_ref(), Some(&"a device that panics once more"));
}

static ORDER: Factory = factory(|_, _| Box::new(Fatal(Vec::new(), Where::Order)));

/// No request is sent twice, and none is lost.
#[test]
fn an_order_that_names_a_request_twice_is_a_bug_of_the_policy() {
    for is_staged in [false, true] {
        let (config, device) = config(shape(1, 64));
        let queue = Queue::new(config.scheduler(&ORDER)).expect("valid");
        let mut sub = queue.submitter().expect("one is free");
        let runner = is_staged.then(|| queue.begin_run(HwQueue(0)).expect("no thread has it"));
        for cookie in 0..3 {
            let io = Io { cookie, payload: cookie as u32, ..write(100 * cookie, 8) };
            sub.push(T0, io).expect("there is credit");
        }
        match runner {
            None => panics(|| sub.flush(T0)),
            Some(runner) => {
                sub.flush(T0);
                panics(|| runner.finish(T0));
            }
        }
        assert_eq!(device.sectors(), [], "none has left");
        let all = [0, 1, 2].map(|cookie| (cookie, Err(IoError::POISONED)));
        assert_eq!(reap_all(&mut sub, T0), all);
        assert_poisoned(&queue, &mut sub);
    }
}
