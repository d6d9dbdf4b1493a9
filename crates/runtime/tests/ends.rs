//! Endings: futures dropped at every stage, reactors dropped with I/Os in flight, panics. No payload is lost, freed
//! twice, or freed while the device has it.
//!
//! A device that never answers holds up no call of a program: every call returns in bounded time, and reports the I/Os
//! that have not ended. When a policy or a device panics, the clients that sleep are woken, and their payloads are
//! returned.

use crate::common::{
    Counted, Drops, Keeper, POISON, PUMPS, Woken, block_on, gate, null, poll, read, until,
};
use blkmq_core::{HwQueue, Instant, IoError, Nanos, Op, RequestId};
use blkmq_engine::attributes::SetAttributeError;
use blkmq_engine::{
    BioTable, ChangeError, Config, DEFAULT_TIMEOUT, DeviceQueue, DeviceShape, EditError, Enqueued,
    Finished, Inflight, Io, Refusal, WriteCache,
};
use blkmq_runtime::{
    Answer, CallError, GroupOptions, Service, StillHeld, SubmitError, SubmitErrorKind, Unavailable,
};
use blkmq_sched::{At, Cx, Done, Factory, Pick, Scheduler, Scope};
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

fn number(answer: &Answer<Counted>) -> u64 {
    answer.as_ref().map(|done| done.payload.0).expect("it was done")
}

#[test]
fn a_dropped_future_leaves_its_payload_to_the_device() {
    for pump in PUMPS {
        let (service, keeper) = gate(4, pump);
        let reactor = service.reactor().unwrap();
        let (handle, drops, woken) = (reactor.handle(), Drops::default(), Arc::<Woken>::default());
        // I/Os at the device: one whose future is never polled, one polled once, and one that is kept.
        let fresh = handle.submit(drops.io(0));
        let mut polled = handle.submit(drops.io(1));
        let kept = handle.submit(drops.io(2));
        assert!(poll(&mut polled, &woken).is_pending());
        until(|| keeper.inside() == 3);
        drop((fresh, polled));
        assert_eq!((drops.count(), keeper.inside()), (0, 3), "the device has them");
        keeper.let_go(2);
        until(|| drops.count() == 2);
        keeper.let_go(1);
        assert_eq!(number(&block_on(kept)), 2);
        assert_eq!((drops.count(), keeper.inside()), (3, 0));
        assert_eq!(woken.0.load(Ordering::SeqCst), 0, "it was not there");
    }
}

#[test]
fn a_dropped_future_keeps_its_place_in_the_inbox_but_not_in_line() {
    const PLACES: u64 = 2 + 4;
    for pump in PUMPS {
        let (service, keeper) = gate(2, pump);
        let reactor = service.reactor().unwrap();
        let (handle, drops) = (reactor.handle(), Drops::default());
        let mut at_device: Vec<_> = (0..2).map(|n| handle.submit(drops.io(n))).collect();
        until(|| keeper.inside() == 2);
        let mut rest: Vec<_> = (2..PLACES + 4).map(|n| Some(handle.submit(drops.io(n)))).collect();
        let mut forsake = |n: u64| drop(rest[n as usize - 2].take().expect("not dropped before"));
        forsake(3);
        assert_eq!(drops.count(), 0, "it has a place");
        // I/Os from the middle of the line, its end and its head.
        for (n, dropped) in [(PLACES + 1, 1), (PLACES + 3, 2), (PLACES, 3)] {
            forsake(n);
            assert_eq!(drops.count(), dropped);
        }
        assert_eq!(keeper.came(), 2);
        keeper.let_go(100);
        let done = at_device.drain(..).chain(rest.into_iter().flatten());
        let numbers: Vec<u64> = done.map(|future| number(&block_on(future))).collect();
        assert_eq!(numbers, [0, 1, 2, 4, 5, PLACES + 2]);
        assert_eq!((keeper.came(), drops.count()), (PLACES + 1, PLACES + 4));
    }
}

#[test]
fn an_answer_that_nobody_fetches_is_dropped_with_its_future() {
    let service = null("null,irqmode=0", |_| {});
    let reactor = service.reactor().unwrap();
    let (handle, drops, woken) = (reactor.handle(), Drops::default(), Arc::<Woken>::default());
    let mut futures = [0, 1].map(|n| handle.submit(drops.io(n)));
    until(|| service.stats().completed == 2);
    // It follows the two, so they are delivered when it is.
    assert!(block_on(handle.submit(drops.io(2))).is_ok());
    assert_eq!(drops.count(), 1);
    assert!(poll(&mut futures[0], &woken).is_ready());
    assert_eq!(drops.count(), 2, "the answer was dropped just now");
    drop(futures);
    assert_eq!(drops.count(), 3);
}

#[test]
fn thousands_of_futures_dropped_at_random_leak_nothing() {
    const IOS: u64 = 4_000;
    for pump in PUMPS {
        let change = |config: &mut Config<_>| {
            (config.pump, config.depth) = (pump, 8);
        };
        let service = null("null,irqmode=2,completion_nsec=2000", change);
        let reactor = service.reactor().unwrap();
        let (handle, drops, woken) = (reactor.handle(), Drops::default(), Arc::<Woken>::default());
        let mut random = blkmq_core::Rng::new(7);
        let mut alive = Vec::new();
        for n in 0..IOS {
            let mut future = handle.submit(drops.io(n));
            match random.below(4) {
                0 => drop(future),
                1 => drop(poll(&mut future, &woken)),
                2 => alive.push(future),
                _ => assert_eq!(number(&block_on(future)), n),
            }
            if alive.len() == 30 {
                drop(alive.swap_remove(random.below(30) as usize));
                alive.truncate(random.below(30) as usize);
            }
        }
        drop(reactor);
        drop(alive);
        assert_eq!(drops.count(), IOS);
        let stats = service.stats();
        assert_eq!(stats.submitted, stats.completed);
    }
}

#[test]
fn a_dropped_reactor_finishes_what_it_took_and_gives_back_the_rest() {
    for pump in PUMPS {
        let (service, keeper) = gate(2, pump);
        let reactor = service.reactor().unwrap();
        let (handle, drops, called) = (reactor.handle(), Drops::default(), channel());
        let mut futures: Vec<_> = (0..2).map(|n| handle.submit(drops.io(n))).collect();
        until(|| keeper.inside() == 2);
        futures.extend((2..5).map(|n| handle.submit(drops.io(n))));
        handle.call(drops.io(5), move |answer| called.0.send(number(&answer)).unwrap()).unwrap();
        let in_line = handle.submit(drops.io(6));
        thread::scope(|scope| {
            scope.spawn(|| drop(reactor));
            // The I/O in line is refused immediately, although the device still holds all requests.
            let Err(SubmitError::Closed(io)) = block_on(in_line) else { panic!("it was in line") };
            let io = io.into_io();
            assert_eq!((io.cookie, io.payload.0, drops.count()), (6, 6, 0));
            let Err(refused) = handle.try_submit(io) else { panic!("it is closed") };
            assert_eq!(refused.why, Unavailable::Closed);
            let answer = block_on(handle.submit(refused.into_io())).expect_err("it is closed");
            assert_eq!(answer.into_io().expect("it is handed back").payload.0, 6);
            keeper.let_go(6);
        });
        // The reactor is gone, and every answer was delivered.
        assert_eq!(called.1.try_recv(), Ok(5));
        for (n, future) in (0..).zip(futures) {
            assert_eq!(number(&block_on(future)), n);
        }
        assert_eq!((keeper.came(), drops.count()), (6, 7));
        assert_eq!(service.stats().completed, 6);
    }
}

#[test]
fn a_reactor_outlives_its_service() {
    for pump in PUMPS {
        let (service, keeper) = gate(2, pump);
        let reactor = service.reactor().unwrap();
        let future = reactor.handle().submit(read(1));
        until(|| keeper.inside() == 1);
        drop(service);
        keeper.let_go(2);
        assert_eq!(block_on(future).unwrap().payload, 1);
        assert_eq!(block_on(reactor.handle().submit(read(2))).unwrap().payload, 2);
    }
}

#[test]
fn a_reactor_may_be_dropped_by_its_own_callback() {
    let service = null::<u64>("null", |_| {});
    let reactor = service.reactor().unwrap();
    let (handle, (sent, received)) = (reactor.handle(), channel());
    let place = Arc::new(Mutex::new(None));
    let its_place = Arc::clone(&place);
    let drops_it = move |_| {
        until(|| its_place.lock().unwrap().is_some());
        drop(its_place.lock().unwrap().take());
        sent.send(()).unwrap();
    };
    handle.call(read(1), drops_it).unwrap();
    *place.lock().unwrap() = Some(reactor);
    received.recv().unwrap();
    let closed = block_on(handle.submit(read(2))).expect_err("it is gone");
    assert_eq!((closed.why(), closed.into_io()), (SubmitErrorKind::Closed, Some(read(2))));
    // The reactor's thread ends without a call and frees the submitter.
    until(|| service.reactor().is_ok());
}

#[test]
fn a_panic_in_a_callback_ends_there_and_is_counted() {
    let service = null("null", |_| {});
    let reactor = service.reactor().unwrap();
    let (handle, drops) = (reactor.handle(), Drops::default());
    handle.call(drops.io(1), |_| panic!("a callback that panics, as this test wants")).unwrap();
    assert_eq!(number(&block_on(handle.submit(drops.io(2)))), 2);
    assert_eq!((reactor.panics(), drops.count()), (1, 2));
}

#[test]
fn when_a_device_panics_everything_is_answered() {
    let (service, keeper) = gate(2, blkmq_engine::PumpMode::Inline);
    let reactor = service.reactor().unwrap();
    let (handle, called) = (reactor.handle(), channel());
    let held = handle.submit(read(1));
    until(|| keeper.inside() == 1);
    let panics = handle.submit(Io { sector: POISON, ..read(2) });
    for (future, n) in [(panics, 2), (held, 1)] {
        let done = block_on(future).expect("the device gives it back");
        assert_eq!((done.cookie, done.payload, done.result), (n, n, Err(IoError::POISONED)));
    }
    // Dropping the reactor waits for its thread, which has no more work.
    drop(reactor);
    let late = handle.call(read(3), move |_| called.0.send(()).unwrap());
    assert_eq!(late.unwrap_err().why, Unavailable::Closed);
    assert!(service.is_poisoned());
    assert!(called.1.recv().is_err(), "it was not taken, so it is not called");
}

/// Longer than any of the calls may take, however busy the machine.
const FOREVER: Duration = Duration::from_secs(60);

const SOON: Nanos = Nanos::from_millis(20);

/// Calls `call` on a new thread, and returns its result.
///
/// # Panics
/// If it does not return.
fn returns<T: Send + 'static>(name: &str, call: impl FnOnce() -> T + Send + 'static) -> T {
    let (sent, received) = channel();
    let thread = thread::spawn(move || sent.send(call()).expect("the test waits"));
    let result = received.recv_timeout(FOREVER);
    let result = result.unwrap_or_else(|_| panic!("{name} has not returned"));
    thread.join().expect("it has sent its result");
    result
}

/// A service with one read that the device keeps, and the client that pushed it.
fn stuck(pump: blkmq_engine::PumpMode) -> (Service<u64>, Arc<Keeper>, blkmq_runtime::Client<u64>) {
    let (service, keeper) = gate::<u64>(4, pump);
    let mut client = service.client().expect("one");
    client.push(read(7)).expect("there is credit");
    client.flush();
    until(|| {
        client.poll();
        keeper.inside() == 1
    });
    (service, keeper, client)
}

fn assert_names_the_read(held: &StillHeld) {
    let text = held.to_string();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("1 request has not ended:"), "{text}");
    let place = "  read of 8 sectors at 448, thread 0: at the device, for ";
    assert!(lines.next().is_some_and(|line| line.starts_with(place)), "{text}");
}

#[test]
fn a_reactor_is_closed_in_bounded_time() {
    for pump in PUMPS {
        let (service, keeper) = gate::<u64>(4, pump);
        let reactor = service.reactor().expect("one");
        let handle = reactor.handle();
        let future = handle.submit(read(7));
        until(|| keeper.inside() == 1);
        let held = returns("close", move || reactor.close(SOON)).expect_err("the device keeps it");
        assert_names_the_read(&held);
        let refused = block_on(handle.submit(read(8))).expect_err("it is closed");
        assert_eq!(refused.into_io().expect("it is handed back"), read(8));
        keeper.let_go(1);
        assert_eq!(block_on(future).expect("its reactor still delivers").payload, 7);
        // The submitter of the reactor is free again.
        until(|| service.reactor().is_ok());
        let idle = service.reactor().expect("one");
        assert!(returns("close", move || idle.close(Nanos::from_secs(60))).is_ok());
    }
}

#[test]
fn the_end_of_a_reactor_can_be_awaited() {
    let (service, keeper) = gate::<u64>(4, PUMPS[0]);
    let reactor = service.reactor().expect("one");
    let future = reactor.handle().submit(read(7));
    until(|| keeper.inside() == 1);
    let woken = Arc::default();
    let mut closed = reactor.closed();
    assert!(poll(&mut closed, &woken).is_pending());
    keeper.let_go(1);
    block_on(closed);
    assert!(block_on(future).is_ok());
    assert!(service.client().is_ok(), "its submitter is free");
}

#[cfg(target_os = "linux")]
#[test]
fn a_reactor_that_is_dropped_by_a_task_blocks_no_worker() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_all().build().expect("a runtime");
    for on_runtime in [false, true] {
        let (service, keeper) = gate::<u64>(4, PUMPS[0]);
        let reactor = match on_runtime {
            false => service.reactor(),
            true => service.reactor_on(runtime.handle()),
        };
        let reactor = reactor.expect("one");
        let future = reactor.handle().submit(read(7));
        runtime.block_on(async {
            let task = tokio::spawn(async move { drop(reactor) });
            tokio::time::timeout(FOREVER, task).await.expect("it returns").expect("no panic");
        });
        keeper.let_go(1);
        assert!(block_on(future).is_ok(), "it is delivered nevertheless");
    }
}

#[test]
fn a_service_is_closed_once_its_device_has_answered() {
    for pump in PUMPS {
        let (service, keeper, client) = stuck(pump);
        drop(client);
        keeper.let_go(1);
        assert!(returns("close", move || service.close(Nanos::from_secs(60))).is_ok());
    }
}

/// Leaks the queues, as `Service::close` says: the address sanitizer leaves it out.
#[test]
fn a_service_is_closed_in_bounded_time() {
    for pump in PUMPS {
        let (service, keeper) = gate(4, pump);
        let drops = Drops::default();
        let mut client = service.client().expect("one");
        client.push(drops.io(7)).expect("there is credit");
        client.flush();
        until(|| {
            client.poll();
            keeper.inside() == 1
        });
        drop(client);
        let held = returns("close", move || service.close(SOON)).expect_err("the device keeps it");
        assert_names_the_read(&held);
        assert_eq!(drops.count(), 0, "the device may still use it");
        // A pump thread goes to sleep.
        keeper.let_go(1);
    }
}

#[test]
fn changes_are_futures_with_a_deadline() {
    for pump in PUMPS {
        let (service, keeper, mut client) = stuck(pump);
        // Another scheduler waits for the read.
        let change = service.set_attribute_async("queue/scheduler", "mq-deadline", SOON);
        let refused = returns("set_attribute_async", move || block_on(change));
        assert!(matches!(refused, Err(SetAttributeError::Change(ChangeError::Busy))));
        let depth = |depth| {
            let edit = move |plan: &mut blkmq_engine::Plan| {
                plan.nr_requests = Some(depth);
                Ok::<_, Infallible>(())
            };
            service.edit_async(edit, SOON)
        };
        let change = depth(64);
        let refused = returns("edit_async", move || block_on(change));
        assert!(matches!(refused, Err(EditError::Change(ChangeError::Busy))), "{refused:?}");
        let options = GroupOptions::default();
        let adding = service.add_group_async("tenant", &options, Nanos::from_secs(60));
        let tenant = returns("add_group_async", move || block_on(adding)).expect("nothing waits");
        assert_eq!(tenant.name(), "tenant");
        keeper.let_go(1);
        client.wait(1, 1, |_| ());
        block_on(service.set_attribute_async(
            "queue/scheduler",
            "mq-deadline",
            Nanos::from_secs(60),
        ))
        .expect("the queue is idle");
        block_on(depth(64)).expect("a number of slots");
        assert_eq!(service.queue().plan().nr_requests, Some(64));
    }
}

#[test]
fn a_group_goes_although_its_guard_must_not_wait() {
    let (service, keeper, mut client) = stuck(PUMPS[0]);
    let tenant = service.add_group("tenant", &GroupOptions::default()).expect("a free name");
    let there =
        |service: &Service<u64>| service.queue().snapshot().plan.groups.find("tenant").is_ok();
    // Another change is in progress.
    let other = service.set_attribute_async("queue/scheduler", "bfq", Nanos::from_secs(60));
    let busy = Err(SetAttributeError::Change(ChangeError::Busy));
    until(|| service.queue().set_attribute("queue/nr_requests", "8").map(drop) == busy);
    returns("drop(GroupGuard)", move || drop(tenant));
    assert!(there(&service));
    keeper.let_go(1);
    client.wait(1, 1, |_| ());
    block_on(other).expect("the queue is idle");
    until(|| !there(&service));
}

/// The calls without a section `# Blocking`; `docs/blocking.md` lists the others.
#[test]
fn every_other_call_returns() {
    for pump in PUMPS {
        let (service, keeper, mut client) = stuck(pump);
        let service = Arc::new(service);
        let of = |name: &str, call: fn(&Service<u64>)| {
            let service = Arc::clone(&service);
            returns(name, move || call(&service));
        };
        // A change waits for the read.
        let change = service.set_attribute_async("queue/scheduler", "bfq", Nanos::from_secs(60));
        of("attributes", |it| assert!(!it.attributes().is_empty()));
        of("attribute", |it| assert!(it.attribute("queue/nr_requests").is_ok()));
        of("stats", |it| assert_eq!(it.stats().completed, 0));
        of("times", |it| drop(it.queue().times()));
        of("waits", |it| drop(it.queue().waits()));
        of("outstanding", |it| drop(it.queue().outstanding(it.clock().now(), 9)));
        of("snapshot", |it| drop(it.queue().snapshot()));
        of("plan", |it| drop(it.queue().plan()));
        of("poll", |it| it.queue().poll(it.clock().now()));
        of("client", |it| assert!(it.client().is_err(), "there is one"));
        of("reactor", |it| assert!(it.reactor().is_err(), "there is one"));
        of("Queue::set_attribute", |it| drop(it.queue().set_attribute("queue/iostats", "0")));
        returns("calls of a client", move || {
            assert!(client.push(read(8)).is_ok());
            client.flush();
            client.cancel(7);
            client.poll();
            assert_eq!(client.reap(9, |_| ()), 0);
            assert_eq!(client.wait_until(client.clock().now() + SOON, 1, 1, |_| ()), 0);
            drop(client);
        });
        keeper.let_go(2);
        block_on(change).expect("the device has answered");
        assert!(
            Arc::into_inner(service)
                .expect("the calls are over")
                .close(Nanos::from_secs(60))
                .is_ok()
        );
    }
}

#[test]
fn a_panic_of_an_edit_continues_where_it_is_awaited() {
    let (service, ..) = gate::<u64>(4, PUMPS[0]);
    let panics =
        |_: &mut blkmq_engine::Plan| -> Result<(), Infallible> { panic!("as the test wants") };
    let change = service.edit_async(panics, SOON);
    let caught = catch_unwind(AssertUnwindSafe(|| block_on(change)));
    assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"as the test wants"));
}

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
