//! No wake-up is lost and no payload is read before it is written.

use super::super::{AtomicBool, UnsafeCell, fence};
use super::*;
use loom::thread;

type Push = fn(&CompletionSender, u64) -> bool;
type Park = fn(&mut CompletionReceiver) -> bool;

fn push(tx: &CompletionSender, payload: u64) -> bool {
    tx.push(&[payload])
}

/// Two senders, and a receiver that sleeps as soon as it may. The wake-up itself is left out: the model checks whether
/// a sender was told to wake the sleeping receiver.
fn a_sleeper_is_woken(push: Push, park: Park) {
    loom::model(move || {
        let (tx, mut rx) = completion_ring(2);
        let senders: Vec<_> = (0..2)
            .map(|n| {
                let tx = tx.clone();
                thread::spawn(move || push(&tx, n))
            })
            .collect();
        let mut popped = 0;
        while rx.pop().is_some() {
            popped += 1;
        }
        let asleep = popped < 2 && park(&mut rx);
        let woken = senders.into_iter().map(|sender| sender.join().expect("no sender panics"));
        let woken = woken.filter(|woken| *woken).count();
        assert!(!asleep || woken == 1, "{woken} were told to wake a sleeper");
        assert!(asleep || woken == 0, "{woken} were told to wake a receiver that is awake");
        while rx.pop().is_some() {
            popped += 1;
        }
        assert_eq!(popped, 2);
    });
}

#[test]
fn loom_a_sleeper_is_woken() {
    a_sleeper_is_woken(push, CompletionReceiver::prepare_park);
}

#[test]
#[should_panic(expected = "0 were told")]
fn loom_planted_park_without_looking_again() {
    a_sleeper_is_woken(push, |rx| {
        if rx.shared.tail.load(Ordering::Relaxed) / ONE != rx.head {
            return false;
        }
        rx.shared.tail.fetch_or(PARKED, Ordering::Relaxed);
        true
    });
}

#[test]
#[should_panic(expected = "0 were told")]
fn loom_planted_look_before_reserving() {
    a_sleeper_is_woken(
        |tx, payload| {
            let parked = tx.shared.tail.load(Ordering::Relaxed) & PARKED != 0;
            let before = tx.shared.tail.fetch_add(ONE, Ordering::Relaxed);
            tx.publish(before / ONE, &[payload]);
            parked && tx.unpark()
        },
        CompletionReceiver::prepare_park,
    );
}

/// Two senders both saw the receiver parked: it is woken once, not once by each.
#[test]
#[should_panic(expected = "2 were told")]
fn loom_planted_wake_without_claiming_it() {
    a_sleeper_is_woken(
        |tx, payload| {
            let before = tx.shared.tail.fetch_add(ONE, Ordering::Relaxed);
            tx.publish(before / ONE, &[payload]);
            tx.shared.tail.fetch_and(!PARKED, Ordering::Relaxed);
            before & PARKED != 0
        },
        CompletionReceiver::prepare_park,
    );
}

/// A sender's writes before its push are visible to the receiver after the pop.
fn a_completion_carries_its_cell(push: Push) {
    loom::model(move || {
        let (tx, mut rx) = completion_ring(1);
        let cell = Arc::new(UnsafeCell::new(0));
        let sender = {
            let cell = Arc::clone(&cell);
            thread::spawn(move || {
                // SAFETY: no other thread touches the cell before the payload arrives; loom checks it.
                cell.with_mut(|cell| unsafe { *cell = 5 });
                push(&tx, 0)
            })
        };
        if rx.pop() == Some(0) {
            // SAFETY: the sender is done with the cell; loom checks it.
            assert_eq!(cell.with(|cell| unsafe { *cell }), 5);
        }
        let _ = sender.join().expect("the sender does not panic");
    });
}

#[test]
fn loom_a_completion_carries_its_cell() {
    a_completion_carries_its_cell(push);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_planted_publish_without_release() {
    a_completion_carries_its_cell(|tx, payload| {
        let before = tx.shared.tail.fetch_add(ONE, Ordering::Relaxed);
        let entry = tx.shared.lap(before / ONE) | payload;
        tx.shared.entry(before / ONE).store(entry, Ordering::Relaxed);
        false
    });
}

/// Like [`a_completion_carries_its_cell`], for a receiver that sees the entry written without taking it, as when it
/// decides whether to reap.
fn what_is_reached_carries_its_cell(reaches: fn(&CompletionReceiver, u32) -> bool) {
    loom::model(move || {
        let (tx, rx) = completion_ring(2);
        let cell = Arc::new(UnsafeCell::new(0));
        let sender = {
            let cell = Arc::clone(&cell);
            thread::spawn(move || {
                // SAFETY: no other thread touches the cell before the payload arrives; loom checks it.
                cell.with_mut(|cell| unsafe { *cell = 5 });
                tx.push(&[0, 1])
            })
        };
        if reaches(&rx, 2) {
            // SAFETY: the sender is done with the cell; loom checks it.
            assert_eq!(cell.with(|cell| unsafe { *cell }), 5);
        }
        assert!(!sender.join().expect("the sender does not panic"), "nobody parks");
        assert!(reaches(&rx, 2) && reaches(&rx, 1) && !rx.is_empty());
    });
}

#[test]
fn loom_what_is_reached_carries_its_cell() {
    what_is_reached_carries_its_cell(CompletionReceiver::reaches);
}

/// Treats a reserved entry as written.
#[test]
#[should_panic(expected = "Causality violation")]
fn loom_planted_reach_of_what_is_reserved() {
    what_is_reached_carries_its_cell(|rx, n| {
        rx.shared.tail.load(Ordering::Acquire) / ONE >= rx.head + u64::from(n)
    });
}

/// A ring of one entry, used twice: the second payload is sent when the credit has been returned, and neither is
/// mistaken for the other.
fn an_entry_is_reused(pop: fn(&mut CompletionReceiver) -> Option<u64>) {
    loom::model(move || {
        let (tx, mut rx) = completion_ring(1);
        let credit = Arc::new(AtomicU64::new(1));
        let sender = {
            let credit = Arc::clone(&credit);
            thread::spawn(move || {
                for n in 0..2 {
                    while credit.load(Ordering::Acquire) <= n {
                        thread::yield_now();
                    }
                    assert!(!push(&tx, n), "nobody parks");
                }
            })
        };
        for n in 0..2 {
            let payload = loop {
                match pop(&mut rx) {
                    Some(payload) => break payload,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(payload, n, "an old payload was taken for a new one");
            credit.fetch_add(1, Ordering::Release);
        }
        sender.join().expect("the sender does not panic");
    });
}

#[test]
fn loom_an_entry_is_reused() {
    an_entry_is_reused(CompletionReceiver::pop);
}

/// Treats every non-zero entry as written.
#[test]
#[should_panic(expected = "an old payload")]
fn loom_planted_pop_that_ignores_the_lap() {
    an_entry_is_reused(|rx| {
        let entry = rx.shared.entry(rx.head).load(Ordering::Acquire);
        let written = entry != 0;
        rx.head += u64::from(written);
        #[cfg(debug_assertions)]
        rx.shared.taken.store(rx.head, Ordering::Release);
        written.then_some(entry & PAYLOAD_MASK)
    });
}

/// A sender has other work for the receiver while a payload arrives: a sleeping receiver is woken, once.
fn a_sleeper_hears_of_other_work(fence: fn()) {
    loom::model(move || {
        let (tx, mut rx) = completion_ring(1);
        let due = Arc::new(AtomicBool::new(false));
        let waker = {
            let (tx, due) = (tx.clone(), Arc::clone(&due));
            thread::spawn(move || {
                due.store(true, Ordering::Relaxed);
                fence();
                tx.take_parked()
            })
        };
        let sender = thread::spawn(move || tx.push(&[1]));
        let mut asleep = rx.prepare_park();
        fence();
        if asleep && due.load(Ordering::Relaxed) {
            rx.cancel_park();
            asleep = false;
        }
        let told = [waker, sender].map(|thread| thread.join().expect("nobody panics"));
        let told = told.into_iter().filter(|told| *told).count();
        assert!(!asleep || told == 1, "{told} were told to wake a sleeper");
    });
}

#[test]
fn loom_a_sleeper_hears_of_other_work() {
    a_sleeper_hears_of_other_work(|| fence(Ordering::SeqCst));
}

/// Like [`a_sleeper_hears_of_other_work`], but no payload comes.
fn other_work_alone(fence: fn()) {
    loom::model(move || {
        let (tx, mut rx) = completion_ring(1);
        let due = Arc::new(AtomicBool::new(false));
        let waker = {
            let due = Arc::clone(&due);
            thread::spawn(move || {
                due.store(true, Ordering::Relaxed);
                fence();
                tx.take_parked()
            })
        };
        let asleep = rx.prepare_park();
        fence();
        let seen = due.load(Ordering::Relaxed);
        let told = waker.join().expect("the waker does not panic");
        assert!(!asleep || seen || told, "a receiver sleeps and nobody wakes it");
    });
}

#[test]
fn loom_other_work_alone() {
    other_work_alone(|| fence(Ordering::SeqCst));
}

#[test]
#[should_panic(expected = "nobody wakes it")]
fn loom_planted_park_without_a_fence() {
    other_work_alone(|| ());
}
