//! How many of those who share something are asleep, or about to be: "is there anybody to wake at all?"
//!
//! Who is asleep stands elsewhere, one line each ([`completion_ring`](super::completion_ring)). Here is one line for
//! all of them, which is written by whoever goes to sleep and read by whoever has something for a sleeper. While
//! everybody is awake nobody writes it, so that it stays with every reader.
//!
//! | asleep | `lie_down` | `get_up` | `any` |
//! |---|---|---|---|
//! | 0 | 1: look once more whether something is there, then sleep | a bug | false: nobody is asleep, and whoever is about to be will look |
//! | n > 0 | n + 1: likewise | n - 1 | true: *you* look who, and wake one |
//!
//! Invariant: whoever sleeps is counted, from before it looks for the last time until after it has woken up. Who is
//! counted need not be asleep.
//!
//! # Why the orderings are enough
//!
//! Going to sleep is count, full fence, look; having something is make it visible, full fence, `any`. One of the two
//! fences is first, and the reader behind the other one sees the write ahead of it. The fences are the callers', who
//! know what is made visible. Nothing else hangs on the word, so relaxed will do.

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

    /// Is anybody asleep? For who has something to do for a sleeper, and has had a full fence since. One load.
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

    /// Somebody goes to sleep unless there is something, while another one has something and looks for sleepers.
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
