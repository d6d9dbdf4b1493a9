//! A policy or a device panics while other clients sleep: they are woken, and their payloads are returned.

use crate::common;

use blkmq_core::{HwQueue, Instant, IoError, Op, RequestId};
use blkmq_engine::{
    BioTable, Config, DEFAULT_TIMEOUT, DeviceQueue, DeviceShape, Enqueued, Finished, Inflight, Io,
    Refusal, WriteCache,
};
use blkmq_runtime::{CallError, Service, SubmitError};
use blkmq_sched::{At, Cx, Done, Factory, Pick, Scheduler, Scope};
use common::{PUMPS, block_on, null, until};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// First in, first out; panics when the request at [`FATAL`] is inserted.
struct Fatal(Vec<RequestId>);

const FATAL: u64 = 8_000;
const POISONED: Result<(), IoError> = Err(IoError::POISONED);

impl Scheduler for Fatal {
    fn insert(&mut self, cx: &Cx<'_>, rq: RequestId, _: At) {
        let sector = cx.requests.get(rq).sector;
        assert!(sector != FATAL, "a policy that panics, as this test wants");
        self.0.push(rq);
    }

    fn pick(&mut self, _: &Cx<'_>, _: HwQueue) -> Pick {
        if self.0.is_empty() { Pick::Empty } else { Pick::Issue(self.0.remove(0)) }
    }

    fn completed(&mut self, _: &Cx<'_>, _: &Done) {}

    fn withdraw(&mut self, _: &Cx<'_>, rq: RequestId) {
        self.0.retain(|held| *held != rq);
    }

    fn absorbed(&mut self, cx: &Cx<'_>, _: RequestId, gone: RequestId) {
        self.withdraw(cx, gone);
    }

    fn inspect(&self, _: &mut dyn FnMut(&'static str, u64)) {}
}

static POLICY: Factory = Factory {
    name: "fatal",
    summary: "",
    scope: Scope::Queue,
    attributes: &[],
    common: None,
    build: |_, _| Box::new(Fatal(Vec::new())),
};

fn io(sector: u64) -> Io<u64> {
    Io::new(Op::Read, sector, 8, sector, sector)
}

#[test]
fn a_client_that_sleeps_hears_of_a_policy_that_panics_and_the_panicking_one_goes_on() {
    for pump in PUMPS {
        let device = "null,submit_queues=1,irqmode=2,completion_nsec=20000000,hw_queue_depth=1";
        let service = null(device, |config| {
            (config.pump, config.submitters, config.scheduler) = (pump, 2, &POLICY);
        });
        let mut sleeper = service.client().expect("two places");
        for sector in [100, 200] {
            sleeper.push(io(sector)).expect("there is credit");
        }
        sleeper.flush();
        thread::scope(|scope| {
            let waits = scope.spawn(move || {
                let mut back = Vec::new();
                let wait = AssertUnwindSafe(|| {
                    sleeper.wait(2, 2, |done| back.push((done.payload, done.result)));
                });
                // The thread that runs the policy panics, which may be this one.
                if catch_unwind(wait).is_err() {
                    sleeper.wait(2, 2, |done| back.push((done.payload, done.result)));
                }
                // If another thread has ended the I/Os, this client does not know yet that the queue is poisoned.
                sleeper.poll();
                assert_eq!((sleeper.is_poisoned(), sleeper.lost()), (true, Some(0)));
                back
            });
            let mut fatal = service.client().expect("two places");
            fatal.push(io(FATAL)).expect("there is credit");
            let mut back = Vec::new();
            let wait = AssertUnwindSafe(|| {
                fatal.wait(1, 1, |done| back.push((done.payload, done.result)));
            });
            if catch_unwind(wait).is_err() {
                fatal.wait(1, 1, |done| back.push((done.payload, done.result)));
            }
            assert_eq!(back, [(FATAL, POISONED)], "{pump:?}");
            let mut back = waits.join().expect("it waits to the end");
            back.sort_unstable_by_key(|(payload, _)| *payload);
            assert_eq!(back, [(100, Ok(())), (200, POISONED)], "{pump:?}");
        });
        assert!(service.is_poisoned());
        let mut late = service.blocking().expect("a place is free");
        let refused = late.call(io(0)).map_err(|error| error.into_io().map(|io| io.payload));
        // The first call notices the panic; from then on every call is refused.
        assert!(matches!(refused, Ok((POISONED, 0)) | Err(Some(0))), "{refused:?}");
        let Err(CallError::Refused(refused)) = late.call(io(0)) else { panic!("it is refused") };
        assert_eq!(refused.why, Refusal::Poisoned);
        assert!(service.set_attribute("queue/nr_requests", "8").is_err());
    }
}

static HAS_ONE: AtomicBool = AtomicBool::new(false);

/// Keeps every request; at [`FATAL`] leaks all of them with `mem::forget`, and panics.
struct Forgetful(Vec<Inflight>);

impl<P> DeviceQueue<P> for Forgetful {
    fn enqueue(&mut self, _: Instant, _: &BioTable<P>, rq: Inflight) -> Enqueued {
        if rq.sector() == FATAL {
            self.0.drain(..).for_each(std::mem::forget);
            panic!("a device that panics, as this test wants");
        }
        self.0.push(rq);
        HAS_ONE.store(true, Ordering::SeqCst);
        Enqueued::Accepted
    }

    fn reap(&mut self, _: Instant, _: &BioTable<P>, _: &mut Vec<Finished>) {}

    fn next_event(&self) -> Option<Instant> {
        Some(Instant::MAX)
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        out.append(&mut self.0);
    }
}

fn forgetful() -> Service<u64> {
    let shape = DeviceShape {
        hw_queues: 1,
        hw_queue_depth: 8,
        shared_tags: false,
        budget: None,
        limits: blkmq_core::Limits::default(),
        cache: WriteCache::Through,
        timeout: DEFAULT_TIMEOUT,
    };
    let mut config = Config::new(shape, vec![Box::new(Forgetful(Vec::new())) as _]);
    config.submitters = 2;
    Service::start(config).expect("a queue around it")
}

#[test]
fn a_sleeper_whose_io_a_device_forgot_is_told_that_it_is_lost() {
    HAS_ONE.store(false, Ordering::SeqCst);
    let service = forgetful();
    thread::scope(|scope| {
        let service = &service;
        let sleeper = scope.spawn(move || {
            let mut client = service.blocking().expect("two places");
            catch_unwind(AssertUnwindSafe(|| client.call(io(100))))
        });
        until(|| HAS_ONE.load(Ordering::SeqCst));
        let mut fatal = service.client().expect("two places");
        fatal.push(io(FATAL)).expect("there is credit");
        let now = fatal.clock().now();
        let panicked = catch_unwind(AssertUnwindSafe(|| fatal.flush_at(now))).is_err();
        let mut back = None;
        fatal.wait(1, 1, |done| back = Some((done.payload, done.result)));
        assert_eq!(back, Some((FATAL, POISONED)));
        match sleeper.join().expect("its panics are caught") {
            Ok(answer) => assert!(matches!(answer, Err(CallError::Lost)), "{answer:?}"),
            Err(_) => assert!(!panicked, "one of the two threads runs the device"),
        }
    });
}

#[test]
fn a_reactor_answers_everything_after_its_policy_panicked() {
    let service = null("null,submit_queues=1", |config| config.scheduler = &POLICY);
    let reactor = service.reactor().expect("one place");
    let handle = reactor.handle();
    let answers: Vec<_> = [0, 100, FATAL, 300].map(|sector| handle.submit(io(sector))).into();
    for (future, sector) in answers.into_iter().zip([0, 100, FATAL, 300]) {
        match block_on(future) {
            Ok(done) => assert_eq!(done.payload, sector),
            Err(SubmitError::Closed(io)) => assert_eq!(io.into_io().payload, sector),
            Err(SubmitError::Refused(refused)) => {
                assert_eq!((refused.why, refused.into_io().payload), (Refusal::Poisoned, sector));
            }
            Err(lost) => panic!("nothing is lost: {lost}"),
        }
    }
    assert!(reactor.panics() >= 1 && service.is_poisoned());
}
