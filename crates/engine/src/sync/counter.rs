//! Counters for statistics: written on the hot path, read by any thread, ordered with nothing.
//!
//! | word | `add` | `get` |
//! |---|---|---|
//! | [`Counter`] | load, then store: one writer at a time | an earlier value or the current one |
//!
//! Relaxed throughout: a statistic orders no other access. A reader never sees one writer's values run backwards
//! (coherence).

use super::{AtomicU64, Ordering};

/// A counter with one writer at a time, which a run, a lock or ownership ensures. Adding costs as much as with a
/// plain integer.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Two threads that add at the same time lose one of the additions.
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        let sum = self.0.load(Ordering::Relaxed).wrapping_add(n);
        self.0.store(sum, Ordering::Relaxed);
    }

    /// Raises the counter to `n` if it is lower: for a maximum.
    #[inline]
    pub(crate) fn raise(&self, n: u64) {
        if n > self.get() {
            self.0.store(n, Ordering::Relaxed);
        }
    }

    /// The sum so far.
    #[inline]
    #[must_use]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A counter that any number of threads may add to concurrently: the correct twin, for the model below.
#[cfg(test)]
#[derive(Debug, Default)]
pub(crate) struct SharedCounter(AtomicU64);

#[cfg(test)]
impl SharedCounter {
    /// Adds `n`. One read-modify-write.
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The sum so far.
    #[inline]
    #[must_use]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn sums_and_maxima() {
        let (one, shared, largest) =
            (Counter::default(), SharedCounter::default(), Counter::default());
        for n in [3, 9, 4] {
            one.add(n);
            shared.add(n);
            largest.raise(n);
        }
        assert_eq!((one.get(), shared.get(), largest.get()), (16, 16, 9));
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use crate::sync::Arc;
    use loom::thread;

    #[test]
    fn loom_a_reader_never_sees_a_counter_run_backwards() {
        loom::model(|| {
            let counter = Arc::new(Counter::default());
            let writer = {
                let counter = Arc::clone(&counter);
                thread::spawn(move || (0..3).for_each(|_| counter.add(1)))
            };
            let (first, second) = (counter.get(), counter.get());
            assert!(first <= second);
            writer.join().expect("the writer does not panic");
            assert_eq!(counter.get(), 3);
        });
    }

    /// The maximum, while another thread reads it.
    fn a_maximum_never_falls(raise: fn(&Counter, u64)) {
        loom::model(move || {
            let largest = Arc::new(Counter::default());
            let writer = {
                let largest = Arc::clone(&largest);
                thread::spawn(move || [2, 1, 3].map(|n| raise(&largest, n)))
            };
            let (first, second) = (largest.get(), largest.get());
            assert!(first <= second, "a maximum has fallen");
            writer.join().expect("the writer does not panic");
            assert_eq!(largest.get(), 3);
        });
    }

    #[test]
    fn loom_a_maximum_never_falls() {
        a_maximum_never_falls(Counter::raise);
    }

    #[test]
    #[should_panic(expected = "a maximum has fallen")]
    fn loom_planted_raise_without_a_comparison() {
        a_maximum_never_falls(|largest, n| largest.0.store(n, Ordering::Relaxed));
    }

    fn nothing_is_lost<C: Default + Send + Sync + 'static>(add: fn(&C, u64), get: fn(&C) -> u64) {
        loom::model(move || {
            let counter = Arc::new(C::default());
            let other = {
                let counter = Arc::clone(&counter);
                thread::spawn(move || add(&counter, 1))
            };
            add(&counter, 1);
            other.join().expect("no writer panics");
            assert_eq!(get(&counter), 2, "an addition was lost");
        });
    }

    #[test]
    fn loom_a_shared_counter_loses_nothing() {
        nothing_is_lost(SharedCounter::add, SharedCounter::get);
    }

    #[test]
    #[should_panic(expected = "an addition was lost")]
    fn loom_planted_two_writers_of_a_single_writer_counter() {
        nothing_is_lost(Counter::add, Counter::get);
    }
}
