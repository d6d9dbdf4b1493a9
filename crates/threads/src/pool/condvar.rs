//! [`Bell`] on systems where clients cannot sleep on a descriptor: they poll at the times given by
//! [`next_look`](Bell::next_look).

use blkmq_core::{Instant, Nanos};
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The polling interval of a sleeping client: a few reads of an SSD.
const LOOK: Nanos = Nanos::from_micros(200);

pub(crate) struct Bell {
    rings: Mutex<bool>,
    rung: Condvar,
}

impl Bell {
    /// # Errors
    /// Never.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { rings: Mutex::new(false), rung: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ring(&self) {
        *self.lock() = true;
        self.rung.notify_all();
    }

    pub(super) fn silence(&self) {
        *self.lock() = false;
    }

    /// Sleeps until the bell rings. Returns immediately if it rings already.
    pub(super) fn wait(&self) {
        let rings = self.rung.wait_while(self.lock(), |rings| !*rings);
        drop(rings.unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns the time of the poll after one at `now`.
    pub(crate) fn next_look(&self, now: Instant) -> Instant {
        now + LOOK
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_ring_before_the_sleep_ends_it_and_so_does_one_of_another_thread() {
        let bell = Arc::new(Bell::new().expect("never"));
        bell.ring();
        bell.wait();
        bell.silence();
        let other = Arc::clone(&bell);
        let ringer = std::thread::spawn(move || other.ring());
        bell.wait();
        ringer.join().expect("it rang");
        assert!(bell.next_look(Instant::ZERO) > Instant::ZERO);
    }
}
