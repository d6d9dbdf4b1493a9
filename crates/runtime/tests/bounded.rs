//! A device that never answers: every call of a program returns in bounded time, and reports the I/Os that have not
//! ended.

use crate::common;

use blkmq_core::Nanos;
use blkmq_engine::attributes::SetAttributeError;
use blkmq_engine::{ChangeError, EditError};
use blkmq_runtime::{GroupOptions, Service, StillHeld};
use common::{Drops, Keeper, PUMPS, block_on, gate, poll, read, until};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Longer than any of the calls may take, however busy the machine.
const FOREVER: Duration = Duration::from_secs(60);
const SOON: Nanos = Nanos::from_millis(20);

/// Calls `call` on a new thread, and returns its result.
///
/// # Panics
/// If it does not return.
fn returns<T: Send + 'static>(name: &str, call: impl FnOnce() -> T + Send + 'static) -> T {
    let (sent, received) = channel();
    let thread = std::thread::spawn(move || sent.send(call()).expect("the test waits"));
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
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| block_on(change)));
    assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"as the test wants"));
}
