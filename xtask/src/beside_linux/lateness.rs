//! Stalls of the machine: a thread sleeps for a millisecond at a time, and records how late it wakes.
//!
//! The thread has no special priority, like the workers of a loop device, so it is delayed when they are. A run in
//! which it was very late says nothing about a scheduler.

use crate::shell::timed;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const PERIOD: Duration = Duration::from_millis(1);

/// How late the thread was.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Lateness {
    /// Milliseconds: the worst time.
    pub(super) worst: f64,
    /// The sum in milliseconds, without wake-ups that are less than a period late.
    pub(super) sum: f64,
}

impl Lateness {
    fn note(&mut self, took: Duration) {
        let late = took.saturating_sub(PERIOD);
        let ms = late.as_secs_f64() * 1e3;
        self.worst = self.worst.max(ms);
        if late > PERIOD {
            self.sum += ms;
        }
    }
}

/// The thread, until [`Watch::end`].
pub(super) struct Watch {
    end: Sender<()>,
    thread: JoinHandle<Lateness>,
}

impl Watch {
    pub(super) fn begin() -> Self {
        let (end, ended) = channel();
        let thread = thread::spawn(move || {
            let mut lateness = Lateness::default();
            loop {
                let (woken, took) = timed(|| ended.recv_timeout(PERIOD));
                if woken != Err(RecvTimeoutError::Timeout) {
                    return lateness;
                }
                lateness.note(took);
            }
        });
        Self { end, thread }
    }

    pub(super) fn end(self) -> Lateness {
        // Dropping the sender also ends the thread.
        drop(self.end);
        self.thread.join().unwrap_or(Lateness { worst: f64::INFINITY, sum: f64::INFINITY })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_late_is_noted() {
        let mut lateness = Lateness::default();
        for us in [900, 1_000, 1_500, 31_000, 6_000] {
            lateness.note(Duration::from_micros(us));
        }
        assert!((lateness.worst - 30.0).abs() < 1e-6, "{lateness:?}");
        assert!((lateness.sum - 35.0).abs() < 1e-6, "{lateness:?}");
    }

    #[test]
    fn the_thread_ends_when_it_is_told() {
        let lateness = Watch::begin().end();
        assert!(lateness.worst.is_finite());
    }
}
