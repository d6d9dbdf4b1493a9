//! The agenda of virtual time: events by time, and at one time in the order in which they were entered.
//!
//! The agenda only keeps them; the [`World`](crate::World) gives an event its meaning.

use blkmq_core::Instant;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// Events still to come.
pub(crate) struct Agenda<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    /// Events entered so far: the sequence number of the next one.
    entered: u64,
}

struct Entry<E> {
    at: Instant,
    sequence: u64,
    what: E,
}

impl<E> Agenda<E> {
    /// An agenda without events.
    pub(crate) fn new() -> Self {
        Self { heap: BinaryHeap::new(), entered: 0 }
    }

    /// Enters the event `what` at time `at`, behind all events already entered for that time. O(log n).
    pub(crate) fn enter(&mut self, at: Instant, what: E) {
        self.heap.push(Reverse(Entry { at, sequence: self.entered, what }));
        self.entered += 1;
    }

    /// Takes the next event. O(log n).
    pub(crate) fn pop(&mut self) -> Option<(Instant, E)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.what))
    }
}

impl<E> Entry<E> {
    fn key(&self) -> (Instant, u64) {
        (self.at, self.sequence)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_as_they_were_entered() {
        let mut agenda = Agenda::new();
        for (at, what) in [(5, 'a'), (3, 'b'), (5, 'c'), (0, 'd'), (3, 'e')] {
            agenda.enter(Instant::from_nanos(at), what);
        }
        let order: String = std::iter::from_fn(|| agenda.pop()).map(|(_, what)| what).collect();
        assert_eq!(order, "dbeac");
    }
}
