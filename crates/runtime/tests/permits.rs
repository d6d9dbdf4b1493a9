//! Permits of a reactor: places that are waited for, kept and returned; and cancelled I/Os of callbacks.

use crate::common;

use blkmq_core::{IoError, IoResult};
use blkmq_engine::PumpMode;
use blkmq_runtime::{Answer, Handle, Permit, Unavailable};
use common::{PUMPS, Woken, block_on, gate, gate_with, poll, read, until};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::task::Poll;

/// The output of a future; `None` if it is not ready.
fn ready<F: Future + Unpin>(future: &mut F, woken: &Arc<Woken>) -> Option<F::Output> {
    match poll(future, woken) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// All permits that are available immediately.
fn all_permits(handle: &Handle<u64>) -> Vec<Permit<u64>> {
    let woken = Arc::new(Woken::default());
    std::iter::from_fn(|| {
        let mut next = handle.reserve();
        ready(&mut next, &woken).map(|permit| permit.expect("the reactor is there"))
    })
    .collect()
}

#[test]
fn a_permit_keeps_a_place_and_its_io_is_taken() {
    for pump in PUMPS {
        let (service, keeper) = gate::<u64>(2, pump);
        let reactor = service.reactor().expect("one place");
        let handle = reactor.handle();
        let permits = all_permits(&handle);
        let most = permits.len();
        assert!(most >= 2, "{most}");
        // All places are reserved, though no I/O was submitted.
        let full = handle.try_submit(read(100)).expect_err("there is no place");
        assert_eq!(full.why, Unavailable::Full { most: most as u32 });
        let futures = permits.into_iter().zip(0..).map(|(permit, n)| permit.submit(read(n)));
        let futures: Vec<_> = futures.map(|future| future.expect("it was promised")).collect();
        keeper.let_go(most as u64);
        for (future, n) in futures.into_iter().zip(0..) {
            let done = block_on(future).expect("it was taken");
            assert_eq!((done.cookie, done.result), (n, Ok(())));
        }
    }
}

#[test]
fn a_permit_that_is_dropped_lets_the_next_in_line_in() {
    let (service, keeper) = gate::<u64>(2, PumpMode::Inline);
    let reactor = service.reactor().expect("one place");
    let handle = reactor.handle();
    let mut permits = all_permits(&handle);
    let woken = Arc::new(Woken::default());
    let (mut first, mut second) = (handle.reserve(), handle.reserve());
    let io = handle.submit(read(7));
    assert!(ready(&mut first, &woken).is_none() && ready(&mut second, &woken).is_none());
    // The first future leaves the line; the second one is next, and then the I/O.
    drop(first);
    drop(permits.pop());
    until(|| woken.0.load(Ordering::Relaxed) == 1);
    let second = ready(&mut second, &woken).expect("it was woken").expect("a permit");
    drop(permits.pop());
    keeper.let_go(1);
    assert_eq!(block_on(io).expect("it was in line").cookie, 7);
    drop(second);
    // Two of the permits were dropped.
    assert_eq!(all_permits(&handle).len(), 2);
}

#[test]
fn those_who_wait_for_a_permit_hear_that_the_reactor_is_gone() {
    let (service, _keeper) = gate::<u64>(2, PumpMode::Inline);
    let reactor = service.reactor().expect("one place");
    let handle = reactor.handle();
    let mut permits = all_permits(&handle);
    let woken = Arc::new(Woken::default());
    let mut waiting = handle.reserve();
    assert!(ready(&mut waiting, &woken).is_none());
    drop(reactor);
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    let refused = ready(&mut waiting, &woken).expect("it was woken");
    assert_eq!(refused.expect_err("the reactor is gone"), Unavailable::Closed);
    let permit = permits.pop().expect("there was at least one");
    let refused = permit.submit(read(3)).expect_err("the reactor is gone");
    assert_eq!((refused.why, refused.into_io()), (Unavailable::Closed, read(3)));
    let permit = permits.pop().expect("there were two");
    let refused = permit.call(read(4), |_: Answer<u64>| panic!("it is not called"));
    assert_eq!(refused.expect_err("the reactor is gone").into_parts().0, read(4));
    let mut late = handle.reserve();
    assert!(matches!(ready(&mut late, &woken), Some(Err(Unavailable::Closed))));
}

#[test]
fn the_io_of_a_callback_is_given_up_wherever_it_waits() {
    // A device of depth 1, so that the second I/O waits in the scheduler; credit for two; the others are in the
    // inbox.
    let (service, keeper) = gate_with(2, PumpMode::Inline, |shape| shape.hw_queue_depth = 1);
    let reactor = service.reactor().expect("one place");
    let handle = reactor.handle();
    let (sent, received) = channel::<(u64, IoResult)>();
    for n in 0..4 {
        let sent = sent.clone();
        let then = move |answer: Answer<u64>| {
            let done = answer.expect("the reactor is there");
            sent.send((done.cookie, done.result)).expect("the test waits");
        };
        handle.call(read(n * 100), then).expect("there is room");
        if n == 0 {
            until(|| keeper.inside() == 1);
        }
    }
    until(|| service.stats().submitted == 2);
    handle.cancel(300);
    assert_eq!(received.recv(), Ok((300, Err(IoError::CANCELLED))));
    handle.cancel(100);
    assert_eq!(received.recv(), Ok((100, Err(IoError::CANCELLED))));
    // A cookie without an I/O, or whose I/O has ended, is ignored.
    handle.cancel(100);
    handle.cancel(77);
    keeper.let_go(2);
    assert_eq!([received.recv(), received.recv()], [Ok((0, Ok(()))), Ok((200, Ok(())))]);
}
