//! A reactor and I/Os that exceed the device's limits: an I/O costs a credit for each of its parts.

use crate::common;

use blkmq_core::{IoError, Op};
use blkmq_engine::{Io, PumpMode, Refusal};
use blkmq_runtime::SubmitError;
use common::{POISON, PUMPS, block_on, gate_of, read, until};
use std::sync::mpsc::channel;

/// A read of that many parts of 8 sectors, which no other read continues.
fn parts(n: u64, count: u32) -> Io<u64> {
    Io::new(Op::Read, n * 64, 8 * count, n, n)
}

/// Callers do not see credit, so the read must not be refused for lack of it.
#[test]
fn what_has_too_little_credit_waits_for_it_and_so_does_all_behind() {
    for pump in PUMPS {
        let (service, keeper) = gate_of(4, pump, 8);
        let reactor = service.reactor().unwrap();
        let (handle, (sent, received)) = (reactor.handle(), channel());
        // If the last read could overtake the others, the device would answer it before them.
        for (n, count) in [(0, 3), (1, 2), (2, 4), (3, 1)] {
            let sent = sent.clone();
            let then = move |answer| sent.send(answer).unwrap();
            handle.call(parts(n, count), then).unwrap();
        }
        until(|| keeper.inside() == 3);
        keeper.let_go(100);
        for n in 0..4 {
            let answer = received.recv().unwrap().unwrap();
            assert_eq!((answer.cookie, answer.payload, answer.result), (n, n, Ok(())), "{pump:?}");
        }
        assert_eq!(keeper.came(), 10);
    }
}

#[test]
fn what_can_never_have_enough_is_refused() {
    let (service, keeper) = gate_of(4, PumpMode::Inline, 8);
    keeper.let_go(100);
    let reactor = service.reactor().unwrap();
    let handle = reactor.handle();
    let answer = block_on(handle.submit(parts(1, 5)));
    let Err(SubmitError::Refused(refused)) = answer else { panic!("it has five parts") };
    assert_eq!((refused.why, refused.into_io()), (Refusal::TooLong { most: 32 }, parts(1, 5)));
    assert_eq!(block_on(handle.submit(parts(2, 4))).unwrap().result, Ok(()));
}

/// A device panics: the I/Os that it gives back end with an error, and the I/Os that waited for credit are returned
/// undone.
#[test]
fn what_waits_for_credit_when_a_device_panics_comes_back() {
    let (service, keeper) = gate_of(4, PumpMode::Inline, 8);
    let reactor = service.reactor().unwrap();
    let (handle, (sent, received)) = (reactor.handle(), channel());
    let held = handle.submit(read(1));
    until(|| keeper.inside() == 1);
    // Submitted on the reactor's own thread, so that the reactor takes them together: the pushed ones take three
    // credits, which leaves none for the last one.
    let again = handle.clone();
    let all = [Io { sector: POISON, ..read(2) }, parts(3, 2), parts(4, 2)];
    let then = move |_| {
        for io in all {
            let sent = sent.clone();
            again.call(io, move |answer| sent.send(answer).unwrap()).unwrap();
        }
    };
    handle.call(Io { sectors: 0, ..read(0) }, then).unwrap();
    let mut undone = Vec::new();
    for answer in received.iter().take(3) {
        match answer {
            Ok(done) => assert_eq!(done.result, Err(IoError::POISONED)),
            Err(SubmitError::Closed(io)) => undone.push(io.into_io()),
            Err(SubmitError::Refused(refused)) => undone.push(refused.into_io()),
            Err(lost) => panic!("the device gives everything back: {lost}"),
        }
    }
    assert_eq!(undone.last(), Some(&parts(4, 2)));
    let done = block_on(held).expect("the device gives it back");
    assert_eq!(done.result, Err(IoError::POISONED));
    drop(reactor);
}
