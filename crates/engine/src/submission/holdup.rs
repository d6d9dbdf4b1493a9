//! Noticing that the thread which runs an elevator or a pump has lost its CPU (decision 0025).
//!
//! A pass takes microseconds. If an elevator is taken for longer, and no other pass has begun in the meantime, its
//! runner is not running: the kernel has given the CPU to another thread, perhaps to the very one that looks. Nothing
//! tells user space so; two looks at a counter do.

use blkmq_core::{Instant, Nanos};

/// A thread in an elevator or at a pump that has come no further for so long has no CPU. Several times the duration of
/// a long pass, and a twentieth of the time that an I/O may lie (decision 0025).
const HELD_UP: Nanos = Nanos::from_micros(50);

/// One submitter's view of the threads that run its elevator and the pumps.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Holdup {
    /// How far they had come, and since when they had come no further.
    seen: Option<(u64, Instant)>,
}

impl Holdup {
    /// `progress` is how far these threads have come by `now`; `None` if there are none. True if they are held up; then
    /// not again for as long.
    #[inline]
    pub(crate) fn look(&mut self, progress: Option<u64>, now: Instant) -> bool {
        let Some(progress) = progress else {
            self.seen = None;
            return false;
        };
        match self.seen {
            Some((seen, since)) if seen == progress && now - since < HELD_UP => false,
            seen => {
                self.seen = Some((progress, now));
                seen.is_some_and(|(seen, _)| seen == progress)
            }
        }
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_nanos(1_000);

    #[test]
    fn a_runner_that_gets_no_further_is_held_up_once_in_a_while() {
        let mut holdup = Holdup::default();
        let later = |n: u64| NOW + Nanos(n * HELD_UP.0);
        assert!(!holdup.look(Some(7), NOW));
        assert!(!holdup.look(Some(7), NOW + Nanos(HELD_UP.0 - 1)));
        assert!(holdup.look(Some(7), later(1)));
        assert!(!holdup.look(Some(7), later(1)), "it was told");
        assert!(holdup.look(Some(7), later(2)));
    }

    #[test]
    fn a_runner_that_gets_on_is_not() {
        let mut holdup = Holdup::default();
        let later = |n: u64| NOW + Nanos(n * HELD_UP.0);
        assert!(!(0..9).any(|n| holdup.look(Some(n), later(n))));
        assert!(!holdup.look(None, later(9)), "there is none");
        assert!(!holdup.look(Some(8), later(20)), "another run");
    }
}
