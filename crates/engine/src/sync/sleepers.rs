//! How many submitters of a shard are asleep or about to sleep: is there any sleeper to wake at all?
//!
//! Which submitters sleep is recorded elsewhere, one line each ([`completion_ring`](super::completion_ring)). This is
//! one line for all of them. A thread that goes to sleep writes it; a thread that has work for a sleeper reads it.
//! While no thread sleeps, it is not written, so that it stays in every reader's cache.
//!
//! | asleep | `lie_down` | `get_up` | `any` |
//! |---|---|---|---|
//! | 0 | 1: look for work once more, then sleep | a bug | false: none is asleep, one that is about to will look |
//! | n > 0 | n + 1: likewise | n - 1 | true: *you* find out which, and wake one |
//!
//! Invariant: a sleeper is counted from before its last look for work until after it has woken up. A counted thread
//! need not be asleep.
//!
//! # Why the orderings are enough
//!
//! Going to sleep is count, full fence, look; having work is make it visible, full fence, `any`. One of the two
//! fences is first, and the reader behind the other one sees the write ahead of it. The fences are the callers',
//! which know what is made visible. The word orders nothing else, so relaxed accesses do.

use super::{AtomicU32, Ordering};
use crossbeam_utils::CachePadded;

/// The word, with a line of its own.
#[derive(Default)]
pub(crate) struct Sleepers(CachePadded<AtomicU32>);

impl Sleepers {
    /// The caller is about to sleep. It has a full fence and looks once more before it does. One read-modify-write.
    #[inline]
    pub(crate) fn lie_down(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// The caller has woken up, or stays awake. One read-modify-write.
    #[inline]
    pub(crate) fn get_up(&self) {
        let before = self.0.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "somebody gets up who has not lain down");
    }

    /// Is any thread asleep? For a caller that has work for a sleeper, and has had a full fence since. One load.
    #[inline]
    #[must_use]
    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn who_lies_down_is_counted_until_up() {
        let sleepers = Sleepers::default();
        assert!(!sleepers.any());
        sleepers.lie_down();
        sleepers.lie_down();
        sleepers.get_up();
        assert!(sleepers.any());
        sleepers.get_up();
        assert!(!sleepers.any());
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "who has not lain down")]
    fn who_is_up_does_not_get_up() {
        Sleepers::default().get_up();
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use crate::sync::{Arc, AtomicBool, fence};
    use loom::thread;

    struct Bed {
        sleepers: Sleepers,
        something: AtomicBool,
    }

    /// One thread goes to sleep unless there is work, while another one makes work visible and looks for sleepers.
    fn nobody_sleeps_through_it(sleep: fn(&Bed) -> bool, wake: fn(&Bed) -> bool) {
        loom::model(move || {
            let bed =
                Arc::new(Bed { sleepers: Sleepers::default(), something: AtomicBool::new(false) });
            let sleeper = {
                let bed = Arc::clone(&bed);
                thread::spawn(move || sleep(&bed))
            };
            let woken = wake(&bed);
            let sleeps = sleeper.join().expect("the sleeper does not panic");
            assert!(!sleeps || woken, "somebody sleeps, and nobody knows");
            bed.sleepers.get_up();
            assert!(!bed.sleepers.any(), "everybody is up");
        });
    }

    fn sleep(bed: &Bed) -> bool {
        bed.sleepers.lie_down();
        fence(Ordering::SeqCst);
        !bed.something.load(Ordering::Relaxed)
    }

    fn wake(bed: &Bed) -> bool {
        bed.something.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        bed.sleepers.any()
    }

    #[test]
    fn loom_nobody_sleeps_through_it() {
        nobody_sleeps_through_it(sleep, wake);
    }

    #[test]
    #[should_panic(expected = "nobody knows")]
    fn loom_planted_counted_after_the_last_look() {
        let sleep = |bed: &Bed| {
            let sleeps = !bed.something.load(Ordering::Relaxed);
            bed.sleepers.lie_down();
            fence(Ordering::SeqCst);
            sleeps
        };
        nobody_sleeps_through_it(sleep, wake);
    }

    #[test]
    #[should_panic(expected = "nobody knows")]
    fn loom_planted_a_waker_without_a_fence() {
        let wake = |bed: &Bed| {
            bed.something.store(true, Ordering::Relaxed);
            bed.sleepers.any()
        };
        nobody_sleeps_through_it(sleep, wake);
    }
}
