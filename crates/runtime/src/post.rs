//! [`Post`]: which of the sleeping clients of a queue watch its devices.
//!
//! A device's descriptor wakes all threads that watch it, and most completions are for one of them. So where many
//! sleep, one watches, and the others sleep on their own bells: a completion wakes the thread that watches, which reaps
//! it, and rings the client that it is for. As many threads as there are CPUs may watch as long as no thread sleeps
//! without watching: each then wakes directly, without another thread in between.
//!
//! # No lost wake-up
//!
//! A thread that has watched, or was called, and is awake has the *duty*: it lies down again, or it leaves, and then calls
//! a sleeper if no thread watches. So while a thread sleeps without watching, another one watches, has the duty, or is
//! called. Every change is one critical section, in which a thread that lies down watches if no thread does. The models
//! in `shuttle_tests/shared.rs` look for an order in which a thread sleeps for ever.
//!
//! Not in here: clients with a lane of their own, which sleep there; threads that wait outside of the client, which watch by
//! themselves; and pump threads.

use crate::port::{Mutex, MutexGuard};
use blkmq_core::SubmitterId;

/// How a client sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// On its bell and on the devices.
    Watching,
    /// On its bell alone.
    Asleep,
}

/// The places of all clients of a queue.
#[derive(Debug)]
pub(crate) struct Post(Mutex<Places>);

impl Post {
    /// For submitters with numbers below `submitters`, of which `at_once` may watch while no other sleeps.
    pub(crate) fn new(submitters: u16, at_once: u16) -> Self {
        Self(Mutex::new(Places::new(submitters, at_once)))
    }

    /// A client is about to sleep; it has announced that it parks, and has looked for work after that.
    pub(crate) fn lie_down(&self, id: SubmitterId) -> Place {
        self.places().lie_down(id)
    }

    /// The client has slept in that place. True if it has the duty now.
    pub(crate) fn get_up(&self, id: SubmitterId, place: Place) -> bool {
        self.places().get_up(id, place)
    }

    /// A client that has the duty does not lie down again for now. Returns the client whose bell the caller must ring.
    pub(crate) fn leave(&self) -> Option<SubmitterId> {
        self.places().leave()
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.0.lock().expect("no code of others runs under the lock")
    }
}

/// The state behind the mutex. Allocates nothing after creation.
#[derive(PartialEq, Eq, Debug)]
struct Places {
    at_once: u16,
    watching: u16,
    /// A bit for each client that sleeps without watching, and their number.
    asleep: Box<[u64]>,
    sleepers: u16,
    /// A sleeper that was called to get up for the duty.
    called: Option<SubmitterId>,
}

impl Places {
    fn new(submitters: u16, at_once: u16) -> Self {
        let words = usize::from(submitters).div_ceil(64);
        let asleep = vec![0; words].into_boxed_slice();
        Self { at_once, watching: 0, asleep, sleepers: 0, called: None }
    }

    fn lie_down(&mut self, id: SubmitterId) -> Place {
        if self.watching == 0 || (self.sleepers == 0 && self.watching < self.at_once) {
            self.watching += 1;
            return Place::Watching;
        }
        self.asleep[usize::from(id.0 / 64)] |= 1 << (id.0 % 64);
        self.sleepers += 1;
        Place::Asleep
    }

    fn get_up(&mut self, id: SubmitterId, place: Place) -> bool {
        if place == Place::Watching {
            self.watching -= 1;
            return true;
        }
        self.asleep[usize::from(id.0 / 64)] &= !(1 << (id.0 % 64));
        self.sleepers -= 1;
        let was_called = self.called == Some(id);
        if was_called {
            self.called = None;
        }
        was_called
    }

    fn leave(&mut self) -> Option<SubmitterId> {
        if self.watching > 0 || self.called.is_some() {
            return None;
        }
        let (at, word) = self.asleep.iter().enumerate().find(|(_, word)| **word != 0)?;
        self.called = Some(SubmitterId(at as u16 * 64 + word.trailing_zeros() as u16));
        self.called
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;

    const A: SubmitterId = SubmitterId(0);
    const B: SubmitterId = SubmitterId(70);
    const C: SubmitterId = SubmitterId(3);

    #[test]
    fn with_no_more_threads_than_cpus_each_watches() {
        let mut places = Places::new(80, 2);
        let mut lie_down = |id| places.lie_down(id);
        assert_eq!((lie_down(A), lie_down(B)), (Place::Watching, Place::Watching));
        assert_eq!(lie_down(C), Place::Asleep);
        // From now on one of them does.
        assert!(places.get_up(A, Place::Watching));
        assert_eq!(places.lie_down(A), Place::Asleep);
        assert_eq!(places.leave(), None, "B watches");
        assert!(places.get_up(B, Place::Watching));
        assert_eq!(places.lie_down(B), Place::Watching);
    }

    #[test]
    fn one_that_leaves_calls_a_sleeper_if_no_thread_watches() {
        let mut places = Places::new(80, 1);
        assert_eq!(places.lie_down(A), Place::Watching);
        assert_eq!((places.lie_down(B), places.lie_down(C)), (Place::Asleep, Place::Asleep));
        assert!(places.get_up(A, Place::Watching));
        assert_eq!(places.leave(), Some(C));
        assert_eq!(places.leave(), None, "one is enough");
        assert!(!places.get_up(B, Place::Asleep), "it was woken for something else");
        assert!(places.get_up(C, Place::Asleep));
        assert_eq!(places.leave(), None, "no thread sleeps");
        assert_eq!(places, Places::new(80, 1));
    }
}
