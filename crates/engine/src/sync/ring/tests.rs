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
        let mark = tx.mark();
        assert_eq!(tx.push(n), Ok(()));
        assert_eq!(rx.remove_before(mark, |_| true), None);
        assert_eq!(rx.remove_before(tx.mark(), |_| true), Some(n));
        assert!(rx.has_passed(mark));
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
    const VALUES: u64 = if cfg!(miri) { 20 } else { 1_000_000 };
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

#[test]
fn a_value_ahead_of_a_mark_is_taken_out_of_order() {
    let (mut tx, mut rx) = ring(4);
    let all = |rx: &mut Consumer<u32>| std::iter::from_fn(|| rx.pop()).collect::<Vec<_>>();
    // Also where the entries in question lie across the end of the ring.
    for lap in 0..4 {
        (0..lap).for_each(|_| assert_eq!((tx.push(9), rx.pop()), (Ok(()), Some(9))));
        for (even, left) in [(true, [1, 2, 3]), (false, [0, 2, 3])] {
            (0..3).for_each(|n| assert_eq!(tx.push(n), Ok(())));
            let mark = tx.mark();
            assert_eq!(tx.push(3), Ok(()));
            assert_eq!(rx.remove_before(mark, |n| *n == 3), None, "it lies behind the mark");
            let expected = u32::from(!even);
            assert_eq!(rx.remove_before(mark, |n| (*n % 2 == 0) == even), Some(expected));
            assert!(!rx.has_passed(mark));
            assert_eq!(tx.push(4), Ok(()), "there is room for one");
            assert_eq!((tx.push(5), all(&mut rx)), (Err(5), [&left[..], &[4]].concat()));
            assert!(rx.has_passed(mark));
            assert_eq!(rx.remove_before(mark, |_| true), None, "what it lay behind is gone");
        }
    }
}

#[test]
fn a_mark_is_passed_when_something_behind_it_is_taken() {
    let (mut tx, mut rx) = ring(4);
    let start = tx.mark();
    assert!(tx.stage(0).is_ok());
    tx.publish();
    let mark = tx.mark();
    assert!(!rx.has_passed(start) && !rx.has_passed(mark));
    assert_eq!(rx.pop(), Some(0));
    assert!(rx.has_passed(start) && !rx.has_passed(mark));
    assert_eq!(rx.remove_before(mark, |_| true), None);
}

#[test]
fn a_portion_is_looked_at_before_it_is_taken() {
    let (mut tx, mut rx) = ring(4);
    for n in 0..3 {
        tx.push(n).expect("there is room");
        assert_eq!(rx.pop(), Some(n));
    }
    for n in 3..7 {
        tx.stage(n).expect("there is room");
    }
    assert_eq!(rx.available(8), 0, "nothing is published");
    tx.publish();
    assert_eq!((rx.available(2), rx.available(8)), (2, 4));
    assert!(rx.front(3).eq(&[3, 4, 5]), "over the end of the list of entries");
    assert_eq!((rx.take(), rx.available(8)), (3, 3));
}

#[test]
#[should_panic(expected = "nothing was seen")]
fn no_more_is_looked_at_than_is_there() {
    let (mut tx, mut rx) = ring(4);
    tx.push(1).expect("there is room");
    assert_eq!(rx.available(8), 1);
    let _ = rx.front(2);
}
