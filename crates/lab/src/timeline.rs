//! Virtual time: the schedule of turns of CPUs, pump threads and the operator of the queue, the agenda behind it, and
//! the wake-ups that the engine requests.
//!
//! The timeline does not know the work of a turn. A turn that is rescheduled leaves an obsolete event in the agenda.
//! The agenda orders events by time, and events of the same time by entry.
//!
//! A wake-up is recorded instead of carried out: it must not call back into the engine, and a real one takes time, so
//! the world checks the record after each call and wakes the threads some time later.

use blkmq_core::{HwQueue, Instant, Nanos, SubmitterId};
use blkmq_engine::Host;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex};

/// The next turn of a participant, unless it was rescheduled since.
#[derive(Clone, Copy)]
struct Event {
    who: Who,
    epoch: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Who {
    Cpu(usize),
    /// A pump thread.
    Pump(HwQueue),
    /// The operator, which changes the queue.
    Operator,
}

/// The time of a participant's next turn.
#[derive(Clone, Copy, Default)]
struct Scheduled {
    at: Option<Instant>,
    /// Events of earlier epochs are obsolete.
    epoch: u64,
}

/// The virtual time, the number of past turns, and the turns to come.
pub(crate) struct Timeline {
    now: Instant,
    agenda: Agenda<Event>,
    cpus: Vec<Scheduled>,
    pumps: Vec<Scheduled>,
    operator: Scheduled,
    events: u64,
}

impl Timeline {
    /// A timeline at time `now`, without any turn scheduled.
    pub(crate) fn new(now: Instant, cpus: usize, pumps: u16) -> Self {
        Self {
            now,
            agenda: Agenda::new(),
            cpus: vec![Scheduled::default(); cpus],
            pumps: vec![Scheduled::default(); pumps.into()],
            operator: Scheduled::default(),
            events: 0,
        }
    }

    /// The virtual time.
    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    /// Turns so far.
    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    fn scheduled(&mut self, who: Who) -> &mut Scheduled {
        match who {
            Who::Cpu(at) => &mut self.cpus[at],
            Who::Pump(hw) => &mut self.pumps[usize::from(hw.0)],
            Who::Operator => &mut self.operator,
        }
    }

    /// The participant with the next turn; the time advances to that turn.
    pub(crate) fn next_turn(&mut self) -> Option<Who> {
        loop {
            let (at, Event { who, epoch }) = self.agenda.pop()?;
            if self.scheduled(who).epoch == epoch {
                self.now = at;
                self.events += 1;
                return Some(who);
            }
        }
    }

    /// Schedules the next turn of `who` at `at`, or when it is woken, and at no other time.
    pub(crate) fn schedule(&mut self, who: Who, at: Option<Instant>) {
        let scheduled = self.scheduled(who);
        scheduled.at = at;
        scheduled.epoch += 1;
        let epoch = scheduled.epoch;
        if let Some(at) = at {
            self.agenda.enter(at, Event { who, epoch });
        }
    }

    /// Wakes the sleeping `who`, which takes `takes`. A participant already on its way comes no later.
    pub(crate) fn wake(&mut self, who: Who, takes: Nanos) {
        let at = self.now + takes;
        if self.scheduled(who).at.is_none_or(|before| before > at) {
            self.schedule(who, Some(at));
        }
    }
}

/// Events still to come.
struct Agenda<E> {
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
    fn enter(&mut self, at: Instant, what: E) {
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

/// A thread to wake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wake {
    Submitter(SubmitterId),
    Pump(HwQueue),
}

/// A list of wake-ups; clones are the same list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wakes(Arc<Mutex<Vec<Wake>>>);

impl Wakes {
    fn push(&self, wake: Wake) {
        self.0.lock().expect("no panic happens under this lock").push(wake);
    }

    /// Takes all wake-ups, in the order in which they came, into an empty list.
    pub(crate) fn take_into(&self, list: &mut Vec<Wake>) {
        debug_assert!(list.is_empty(), "what was taken before has been seen to");
        std::mem::swap(list, &mut *self.0.lock().expect("no panic happens under this lock"));
    }
}

impl Host for Wakes {
    fn wake_submitter(&self, submitter: SubmitterId) {
        self.push(Wake::Submitter(submitter));
    }

    fn wake_pump(&self, hw: HwQueue) {
        self.push(Wake::Pump(hw));
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
