use super::*;

fn drain(rx: &mut CompletionReceiver) -> Vec<u64> {
    std::iter::from_fn(|| rx.pop()).collect()
}

#[test]
fn payloads_come_out_in_order_round_and_round() {
    let (tx, mut rx) = completion_ring(3);
    assert!(rx.is_empty());
    for lap in 0..10 {
        assert!(!tx.push(&[lap, 0]));
        assert!(!tx.clone().push(&[PAYLOAD_MASK, lap]));
        assert!(!rx.is_empty());
        assert_eq!(drain(&mut rx), [lap, 0, PAYLOAD_MASK, lap]);
    }
    assert!(!tx.push(&[]));
    assert!(rx.is_empty());
}

#[test]
fn laps_wrap_around() {
    let (tx, mut rx) = completion_ring(1);
    for n in 0..(1 << 17) {
        assert_eq!(rx.pop(), None, "lap {n}");
        assert!(!tx.push(&[n & 1]));
        assert_eq!(rx.pop(), Some(n & 1), "lap {n}");
    }
}

#[test]
fn one_sender_wakes_a_parked_receiver() {
    let (tx, mut rx) = completion_ring(4);
    assert!(rx.prepare_park());
    assert!(tx.push(&[1]));
    assert!(!tx.push(&[2]), "the first one does it");
    assert!(rx.cancel_park(), "a sender was quicker");
    assert!(!rx.prepare_park(), "there is something");
    assert_eq!(drain(&mut rx), [1, 2]);
    assert!(rx.prepare_park());
    assert!(!rx.cancel_park());
    assert!(!tx.push(&[3]));
}

#[test]
fn nobody_parks_on_an_entry_that_is_reserved() {
    let (tx, mut rx) = completion_ring(2);
    let before = tx.shared.tail.fetch_add(ONE, Ordering::Relaxed);
    assert!(rx.is_empty());
    assert!(!rx.prepare_park());
    tx.publish(before / ONE, &[7]);
    assert_eq!(drain(&mut rx), [7]);
}

#[test]
#[should_panic(expected = "exceeded its credit")]
#[cfg(debug_assertions)]
fn more_than_the_credit_is_a_bug() {
    let (tx, _rx) = completion_ring(2);
    let _ = tx.push(&[1, 2, 3]);
}

/// Each sender's payloads arrive once and in order, with a receiver that parks.
#[test]
fn senders_and_a_receiver_that_parks() {
    const SENDERS: u64 = 3;
    const EACH: u64 = if cfg!(miri) { 8 } else { 50_000 };
    const CREDIT: u32 = 64;
    let (tx, mut rx) = completion_ring(CREDIT);
    let budget = crate::sync::Budget::new(Some(CREDIT));
    let receiver = std::thread::current();
    let mut next = [0; SENDERS as usize];
    std::thread::scope(|scope| {
        for sender in 0..SENDERS {
            let (tx, budget, receiver) = (tx.clone(), &budget, receiver.clone());
            scope.spawn(move || {
                let mut n = 0;
                while n < EACH {
                    let got = u64::from(budget.take(2)).min(EACH - n);
                    let batch = [sender << 32 | n, sender << 32 | (n + 1)];
                    if got == 0 {
                        std::thread::yield_now();
                    } else if tx.push(&batch[..got as usize]) {
                        receiver.unpark();
                    }
                    n += got;
                }
            });
        }
        let mut left = SENDERS * EACH;
        while left > 0 {
            if let Some(payload) = rx.pop() {
                let expected = &mut next[(payload >> 32) as usize];
                assert_eq!(payload & 0xffff_ffff, *expected);
                *expected += 1;
                left -= 1;
                budget.put(1);
            } else if rx.prepare_park() {
                std::thread::park();
                rx.cancel_park();
            } else {
                std::thread::yield_now();
            }
        }
    });
}
