use super::*;

#[test]
fn values_come_out_in_order_round_and_round() {
    let (mut tx, mut rx) = ring(3);
    assert_eq!(tx.capacity(), 4);
    for lap in 0..10 {
        for n in 0..4 {
            assert_eq!(tx.push(lap * 4 + n), Ok(()));
        }
        assert_eq!(tx.push(99), Err(99), "full gives the value back");
        assert_eq!((tx.len(), rx.peek()), (4, Some(&(lap * 4))));
        for n in 0..4 {
            assert_eq!(rx.pop(), Some(lap * 4 + n));
        }
        assert!(rx.is_empty() && rx.pop().is_none() && rx.peek().is_none());
    }
}

#[test]
fn staged_values_are_seen_when_they_are_published() {
    let (mut tx, mut rx) = ring(4);
    for n in 0..4 {
        assert_eq!(tx.stage(n), Ok(()));
    }
    assert_eq!((tx.stage(4), tx.len()), (Err(4), 4));
    assert!(rx.is_empty());
    tx.publish();
    assert_eq!(std::iter::from_fn(|| rx.pop()).collect::<Vec<_>>(), [0, 1, 2, 3]);
}

#[test]
fn counters_wrap_around() {
    let (mut tx, mut rx) = ring(2);
    let near = u32::MAX - 1;
    tx.shared.head.store(near, Ordering::Relaxed);
    tx.shared.tail.store(near, Ordering::Relaxed);
    (tx.tail, tx.published, tx.head, rx.head, rx.tail) = (near, near, near, near, near);
    for n in 0..8 {
        assert_eq!(tx.push(n), Ok(()));
        assert_eq!(tx.push(n + 100), Ok(()));
        assert_eq!(tx.push(0), Err(0));
        assert_eq!((rx.pop(), rx.pop(), rx.pop()), (Some(n), Some(n + 100), None));
    }
}

#[test]
fn what_is_left_is_dropped_once_staged_values_included() {
    let counted = Arc::new(());
    let (mut tx, mut rx) = ring(4);
    for _ in 0..3 {
        assert!(tx.stage(Arc::clone(&counted)).is_ok());
    }
    drop(tx);
    assert!(rx.pop().is_some());
    assert_eq!(Arc::strong_count(&counted), 3);
    drop(rx);
    assert_eq!(Arc::strong_count(&counted), 1);
}

#[test]
fn a_million_values_through_a_small_ring() {
    const VALUES: u64 = 1_000_000;
    let (mut tx, mut rx) = ring(8);
    let producer = std::thread::spawn(move || {
        for mut n in 0..VALUES {
            while let Err(back) = tx.push(n) {
                n = back;
                std::thread::yield_now();
            }
        }
    });
    for expected in 0..VALUES {
        let n = loop {
            match rx.pop() {
                Some(n) => break n,
                None => std::thread::yield_now(),
            }
        };
        assert_eq!(n, expected);
    }
    producer.join().unwrap();
}
