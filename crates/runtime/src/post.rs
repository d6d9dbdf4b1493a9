//! [`Post`]: which of the sleeping clients of a queue watch its devices.
//!
//! A device's descriptor wakes all threads that watch it, and most completions are for one of them. So where many
//! sleep, one watches, and the others sleep on their own bells: a completion wakes the thread that watches, which reaps
//! it, and rings the client that it is for. As many threads as there are CPUs may watch as long as no thread sleeps
//! without watching: each then wakes by itself, without another thread in between.
//!
//! # No lost wake-up
//!
//! A thread that has watched, or was called, and is awake has the *duty*: it lies down again, or it leaves, and then calls
//! a sleeper if no thread watches. So while a thread sleeps without watching, another one watches, has the duty, or is
//! called. Every change is one critical section, in which a thread that lies down watches if no thread does; the test
//! below goes through all orders of them.
//!
//! Not in here: clients with a lane of their own, which sleep there; threads that wait outside of the client, which watch by
//! themselves; and pump threads.

use crate::port::{Mutex, MutexGuard};
use blkmq_core::SubmitterId;

/// How a client sleeps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
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
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Places {
    at_once: u16,
    watching: u16,
    /// A bit for each client that sleeps without watching, and their number.
    asleep: Box<[u64]>,
    sleepers: u16,
    /// A sleeper that was told to get up for the duty.
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
mod tests {
    use super::*;
    use std::collections::BTreeSet;

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

    /// A client in the model: it submits an I/O, waits for it, and is gone.
    #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
    struct Thread {
        at: At,
        /// The engine knows that it parks, and the bell rings when its I/O is reaped by another thread.
        parked: bool,
        rung: bool,
        duty: bool,
        io: Io,
    }

    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
    enum At {
        Awake,
        /// The client has parked, and looks a last time.
        Looking,
        /// The client found nothing, and is about to lie down.
        Tired,
        Down(Place),
        Gone,
    }

    /// Where the I/O is.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
    enum Io {
        Device,
        /// In the device's completion ring, which makes its descriptor readable.
        Posted,
        /// In the client's own.
        Reaped,
    }

    #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
    struct Model {
        places: Places,
        threads: Vec<Thread>,
    }

    impl Model {
        fn new(threads: u16, at_once: u16) -> Self {
            let (at, io) = (At::Awake, Io::Device);
            let thread = Thread { at, parked: false, rung: false, duty: false, io };
            let threads = vec![thread; threads.into()];
            Self { places: Places::new(threads.len() as u16, at_once), threads }
        }

        /// All states that follow; `leaves` is what a thread does that goes with the duty.
        fn next(&self, leaves: fn(&mut Places) -> Option<SubmitterId>) -> Vec<Self> {
            let readable = self.threads.iter().any(|thread| thread.io == Io::Posted);
            let mut next = Vec::new();
            for at in 0..self.threads.len() {
                let id = SubmitterId(at as u16);
                let mut model = self.clone();
                let thread = &mut model.threads[at];
                if thread.io == Io::Device {
                    let mut done = self.clone();
                    done.threads[at].io = Io::Posted;
                    next.push(done);
                }
                match thread.at {
                    At::Awake if thread.io == Io::Reaped => {
                        (thread.at, thread.parked) = (At::Gone, false);
                        let called = thread.duty.then(|| leaves(&mut model.places)).flatten();
                        if let Some(called) = called {
                            model.threads[usize::from(called.0)].rung = true;
                        }
                    }
                    At::Awake => {
                        (thread.at, thread.parked) = (At::Looking, true);
                    }
                    At::Looking => {
                        model.reap(at);
                        let found = model.threads[at].io == Io::Reaped;
                        model.threads[at].at = if found { At::Awake } else { At::Tired };
                    }
                    At::Tired => {
                        thread.duty = false;
                        model.threads[at].at = At::Down(model.places.lie_down(id));
                    }
                    At::Down(place) => {
                        if !(thread.rung || place == Place::Watching && readable) {
                            continue;
                        }
                        (thread.at, thread.parked, thread.rung) = (At::Awake, false, false);
                        thread.duty = model.places.get_up(id, place);
                    }
                    At::Gone => continue,
                }
                next.push(model);
            }
            next
        }

        /// Thread `by` takes everything from the device, and wakes those that park.
        fn reap(&mut self, by: usize) {
            for (at, thread) in self.threads.iter_mut().enumerate() {
                if thread.io == Io::Posted {
                    thread.io = Io::Reaped;
                    thread.rung |= at != by && thread.parked;
                }
            }
        }

        /// The number of states, or one from which nothing goes on though threads wait.
        fn explore(self, leaves: fn(&mut Places) -> Option<SubmitterId>) -> Result<usize, Self> {
            let mut seen = BTreeSet::from([self.clone()]);
            let mut open = vec![self];
            while let Some(model) = open.pop() {
                let next = model.next(leaves);
                if next.is_empty() && model.threads.iter().any(|thread| thread.at != At::Gone) {
                    return Err(model);
                }
                open.extend(next.into_iter().filter(|model| seen.insert(model.clone())));
            }
            Ok(seen.len())
        }
    }

    #[test]
    fn no_thread_sleeps_for_ever_in_any_order() {
        for (threads, at_once) in [(2, 1), (3, 1), (3, 2), (4, 1)] {
            let states = Model::new(threads, at_once).explore(Places::leave);
            assert!(states.as_ref().is_ok_and(|states| *states > 20), "{states:?}");
        }
    }

    /// The bug put back: a thread that watched goes, and calls none of those that rely on it.
    #[test]
    fn a_thread_that_leaves_without_a_call_strands_the_others() {
        let stuck = Model::new(3, 1).explore(|_| None).unwrap_err();
        assert!(stuck.threads.iter().any(|it| it.at == At::Down(Place::Asleep)), "{stuck:?}");
    }
}
