//! Entries are handed over without accesses by both sides: loom watches the `UnsafeCell`s.

use super::*;
use loom::thread;

type Publish = fn(&mut Producer<u32>);
type Pop = fn(&mut Consumer<u32>) -> Option<u32>;

/// Three values through a ring of two, the first two published together.
fn values_arrive_in_order(publish: Publish, pop: Pop) {
    loom::model(move || {
        let (mut tx, mut rx) = ring(2);
        let producer = thread::spawn(move || {
            assert!(tx.stage(0).is_ok() && tx.stage(1).is_ok());
            publish(&mut tx);
            while tx.stage(2).is_err() {
                thread::yield_now();
            }
            publish(&mut tx);
        });
        let mut expected = 0;
        while expected < 3 {
            match pop(&mut rx) {
                Some(n) => {
                    assert_eq!(n, expected);
                    expected += 1;
                }
                None => thread::yield_now(),
            }
        }
        producer.join().expect("the producer does not panic");
    });
}

#[test]
fn loom_values_arrive_in_order() {
    values_arrive_in_order(Producer::publish, Consumer::pop);
}

/// Two values together, twice, through a ring of two.
fn all_arrive_in_order(take_all: fn(&mut Consumer<u32>, &mut u32)) {
    loom::model(move || {
        let (mut tx, mut rx) = ring(2);
        let producer = thread::spawn(move || {
            for n in 0..4 {
                while tx.stage(n).is_err() {
                    thread::yield_now();
                }
                if n % 2 == 1 {
                    tx.publish();
                }
            }
        });
        let mut expected = 0;
        while expected < 4 {
            take_all(&mut rx, &mut expected);
            thread::yield_now();
        }
        producer.join().expect("the producer does not panic");
    });
}

#[test]
fn loom_all_arrive_in_order() {
    all_arrive_in_order(|rx, expected| {
        for n in rx.take_all().into_iter().flatten() {
            assert_eq!(n, *expected);
            *expected += 1;
        }
    });
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_planted_all_given_back_before_they_are_read() {
    all_arrive_in_order(|rx, expected| {
        if rx.is_empty() {
            return;
        }
        rx.shared.head.store(rx.tail, Ordering::Release);
        while rx.head != rx.tail {
            // SAFETY: none; that is the bug.
            assert_eq!(unsafe { rx.shared.take(rx.head) }, *expected);
            rx.head = rx.head.wrapping_add(1);
            *expected += 1;
        }
    });
}

/// Reads up to two values, and takes them.
fn take_portion(rx: &mut Consumer<u32>, available: u32, expected: &mut u32) {
    let seen: Vec<u32> = rx.front(available).copied().collect();
    for n in seen {
        assert_eq!((rx.take(), n), (*expected, *expected));
        *expected += 1;
    }
}

#[test]
fn loom_a_portion_arrives_in_order() {
    all_arrive_in_order(|rx, expected| {
        let available = rx.available(2);
        take_portion(rx, available, expected);
    });
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_planted_a_portion_without_acquire() {
    all_arrive_in_order(|rx, expected| {
        rx.tail = rx.shared.tail.load(Ordering::Relaxed);
        let available = rx.tail.wrapping_sub(rx.head);
        take_portion(rx, available, expected);
    });
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_planted_publish_without_release() {
    let publish: Publish = |tx| {
        tx.shared.tail.store(tx.tail, Ordering::Relaxed);
        tx.published = tx.tail;
    };
    values_arrive_in_order(publish, Consumer::pop);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_planted_entry_given_back_without_release() {
    let pop: Pop = |rx| {
        if rx.is_empty() {
            return None;
        }
        // SAFETY: none; that is the bug.
        let value = unsafe { rx.shared.take(rx.head) };
        rx.head = rx.head.wrapping_add(1);
        rx.shared.head.store(rx.head, Ordering::Relaxed);
        Some(value)
    };
    values_arrive_in_order(Producer::publish, pop);
}

/// The values in the ring are dropped after both ends, whichever end is dropped last.
#[test]
fn loom_what_is_left_is_dropped() {
    loom::model(|| {
        let counted = Arc::new(());
        let (mut tx, mut rx) = ring(2);
        let value = Arc::clone(&counted);
        let producer = thread::spawn(move || {
            assert!(tx.stage(value).is_ok());
        });
        let popped = rx.pop();
        drop(rx);
        producer.join().expect("the producer does not panic");
        drop(popped);
        assert_eq!(Arc::strong_count(&counted), 1);
    });
}

type Remove = fn(&mut Consumer<u32>, Mark) -> Option<u32>;

/// The second of two values is taken out while the producer waits for room for a third.
fn a_value_is_taken_out_of_order(remove: Remove) {
    loom::model(move || {
        let (mut tx, mut rx) = ring(2);
        assert!(tx.push(0).is_ok() && tx.push(1).is_ok());
        let mark = tx.mark();
        let producer = thread::spawn(move || {
            while tx.push(2).is_err() {
                thread::yield_now();
            }
        });
        assert_eq!(remove(&mut rx, mark), Some(1));
        let mut left = Vec::new();
        while left.len() < 2 {
            match rx.pop() {
                Some(n) => left.push(n),
                None => thread::yield_now(),
            }
        }
        assert_eq!(left, [0, 2]);
        producer.join().expect("the producer does not panic");
    });
}

#[test]
fn loom_a_value_is_taken_out_of_order() {
    a_value_is_taken_out_of_order(|rx, mark| rx.remove_before(mark, |n| *n == 1));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_planted_entry_given_back_before_it_is_moved() {
    a_value_is_taken_out_of_order(|rx, _| {
        assert!(!rx.is_empty(), "two were published");
        rx.shared.head.store(rx.head.wrapping_add(1), Ordering::Release);
        let (first, second) = (rx.head, rx.head.wrapping_add(1));
        // SAFETY: none; that is the bug.
        let (kept, value) = unsafe { (rx.shared.take(first), rx.shared.take(second)) };
        rx.shared.entry(second).with_mut(|entry| {
            // SAFETY: none, as above.
            unsafe { (*entry).write(kept) };
        });
        rx.head = second;
        Some(value)
    });
}

/// Values constructed in the ring, and taken after they are read: the variants of the hot path.
fn what_is_put_is_taken(put: fn(&mut Producer<u32>, u32), take: Pop) {
    loom::model(move || {
        let (mut tx, mut rx) = ring(2);
        let producer = thread::spawn(move || {
            for n in 0..3 {
                // The producer knows that there is room, by a path that need not order anything.
                while tx.len() == tx.capacity() {
                    thread::yield_now();
                }
                put(&mut tx, n);
                tx.publish();
            }
        });
        for expected in 0..3 {
            while rx.is_empty() {
                thread::yield_now();
            }
            assert_eq!(take(&mut rx), Some(expected));
        }
        producer.join().expect("the producer does not panic");
    });
}

fn put(tx: &mut Producer<u32>, value: u32) {
    tx.put_with(|| value);
}

fn take(rx: &mut Consumer<u32>) -> Option<u32> {
    let seen = *rx.peek()?;
    assert_eq!(rx.take(), seen);
    Some(seen)
}

#[test]
fn loom_what_is_put_is_taken() {
    what_is_put_is_taken(put, take);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_planted_put_that_trusts_a_relaxed_look() {
    let put = |tx: &mut Producer<u32>, value| {
        tx.head = tx.shared.head.load(Ordering::Relaxed);
        tx.put_with(|| value);
    };
    what_is_put_is_taken(put, take);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_planted_take_without_release() {
    let take: Pop = |rx| {
        let seen = *rx.peek()?;
        // SAFETY: none; that is the bug.
        let value = unsafe { rx.shared.take(rx.head) };
        assert_eq!(value, seen);
        rx.head = rx.head.wrapping_add(1);
        rx.shared.head.store(rx.head, Ordering::Relaxed);
        Some(seen)
    };
    what_is_put_is_taken(put, take);
}

/// A value before a mark is taken out while another one is published behind the mark, which is then taken as well.
fn what_came_meanwhile_is_whole(remove: Remove) {
    loom::model(move || {
        let (mut tx, mut rx) = ring(2);
        assert!(tx.push(0).is_ok());
        let mark = tx.mark();
        let producer = thread::spawn(move || assert!(tx.push(1).is_ok()));
        assert_eq!(remove(&mut rx, mark), Some(0));
        if let Some(n) = rx.pop() {
            assert_eq!(n, 1);
        }
        producer.join().expect("the producer does not panic");
    });
}

#[test]
fn loom_what_came_meanwhile_is_whole() {
    what_came_meanwhile_is_whole(|rx, mark| rx.remove_before(mark, |_| true));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_planted_remove_that_remembers_a_relaxed_look() {
    what_came_meanwhile_is_whole(|rx, _| {
        rx.tail = rx.shared.tail.load(Ordering::Relaxed);
        rx.pop()
    });
}

type Waits = fn(&Level<u32>) -> bool;
type Show = fn(&mut Producer<u32>, &AtomicU32);

/// A producer publishes and announces it, while the consumer takes and a third thread checks the level.
fn what_waits_is_seen(show: Show, waits: Waits) {
    loom::model(move || {
        let (mut tx, mut rx) = ring(2);
        let (level, done) = (tx.level(), Arc::new(AtomicU32::new(0)));
        let producer = {
            let done = Arc::clone(&done);
            thread::spawn(move || {
                assert!(tx.stage(7).is_ok());
                show(&mut tx, &done);
            })
        };
        if done.load(Ordering::Acquire) == 1 {
            assert!(waits(&level), "published, and nobody sees it");
        }
        producer.join().expect("the producer does not panic");
        assert!(waits(&level), "published, and nobody sees it");
        assert_eq!(rx.pop(), Some(7));
        assert!(!waits(&level), "it was taken");
    });
}

#[test]
fn loom_what_waits_is_seen() {
    let show: Show = |tx, done| {
        tx.publish();
        done.store(1, Ordering::Release);
    };
    what_waits_is_seen(show, Level::waits);
}

#[test]
#[should_panic(expected = "nobody sees it")]
fn loom_planted_published_after_the_announcement() {
    let show: Show = |tx, done| {
        done.store(1, Ordering::Release);
        tx.publish();
    };
    what_waits_is_seen(show, Level::waits);
}

/// A length counts only published values, and every value that it counts can be taken.
#[test]
fn loom_a_length_is_what_was_published_or_a_few_fewer() {
    loom::model(|| {
        let (mut tx, mut rx) = ring(2);
        let producer = thread::spawn(move || {
            assert!(tx.stage(0).is_ok() && tx.push(1).is_ok());
        });
        let seen = rx.len();
        assert!(seen == 0 || seen == 2, "{seen}: they are published together");
        let popped = u32::from(rx.pop().is_some());
        let left = rx.len();
        assert!(seen <= left + popped && left + popped <= 2, "{seen}, then {popped} and {left}");
        producer.join().expect("the producer does not panic");
        assert_eq!(rx.len() + popped, 2);
    });
}
