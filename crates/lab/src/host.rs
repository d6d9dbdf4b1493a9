//! Wake-ups, recorded instead of carried out: the engine's [`Host`] in virtual time.
//!
//! A wake-up must not call back into the engine, and a real one takes its time, so the world looks here after each
//! call and wakes the recorded threads some time later.

use blkmq_core::{HwQueue, SubmitterId};
use blkmq_engine::Host;
use std::sync::{Arc, Mutex};

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
        self.0.lock().expect("nobody panics while holding the list").push(wake);
    }

    /// Takes all wake-ups, in the order in which they came, into an empty list.
    pub(crate) fn take_into(&self, list: &mut Vec<Wake>) {
        debug_assert!(list.is_empty(), "what was taken before has been seen to");
        std::mem::swap(list, &mut *self.0.lock().expect("nobody panics while holding the list"));
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
