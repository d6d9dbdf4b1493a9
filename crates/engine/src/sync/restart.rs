//! A request to be kicked when a tag has been freed: Linux's `SCHED_RESTART`, one bit per hardware queue
//! (`spec/framework.md` section 8.4).
//!
//! A dispatcher that found no driver tag marks the bit and *tries once more*; only then does it leave. A thread that
//! frees a tag of that hardware queue takes the bit *afterwards* and, if it was set, runs the queue.
//!
//! | state | `mark`, then a retry | free, then `take` |
//! |---|---|---|
//! | clear | set: a completer will run the queue, or the retry finds the tag | false: no dispatcher waits |
//! | set | set | clear, true: *you* run the queue |
//!
//! Invariant: the completer sees the bit, or the retry of the dispatcher that marked it sees the freed tag, or both.
//!
//! # Why the orderings are enough
//!
//! A marker writes the bit, has a full fence, and reads the tags. A completer writes the tags, has a full fence, and
//! reads the bit. One of the two fences is first, and the read behind the second fence sees the write ahead of the
//! first. `mark` is a read-modify-write even if the bit is set. If a completer is about to take the bit, it either
//! reads from this mark, and then its run sees the marker's leftovers (mark releases, take acquires), or the bit stays
//! set behind it.

use super::{AtomicBool, Ordering, fence, fence_after_rmw, looks_again};
use crate::planted::{self, Planted};

#[derive(Debug)]
pub(crate) struct Restart(AtomicBool);

impl Restart {
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Requests a kick. The caller must try again before it relies on that. One read-modify-write.
    #[inline]
    pub(crate) fn mark(&self) {
        if planted::is(Planted::ForgetsRestart) {
            return;
        }
        self.0.swap(true, Ordering::Release);
        fence_after_rmw();
    }

    /// Must be called after freeing. Returns whether a dispatcher requested a kick; then the caller has to run the
    /// queue. A fence and a load, and one read-modify-write if the bit is set.
    #[inline]
    #[must_use = "whoever marked the bit relies on it"]
    pub(crate) fn take(&self) -> bool {
        fence(Ordering::SeqCst);
        self.take_fenced()
    }

    /// Like [`take`](Self::take), for a caller whose last write to a shared word was a read-modify-write.
    #[inline]
    #[must_use = "whoever marked the bit relies on it"]
    pub(crate) fn take_after_rmw(&self) -> bool {
        fence_after_rmw();
        self.take_fenced()
    }

    #[inline]
    fn take_fenced(&self) -> bool {
        self.0.load(Ordering::Relaxed) && (self.0.swap(false, Ordering::Acquire) || !looks_again())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_taken_once() {
        let restart = Restart::new();
        assert!(!restart.take());
        restart.mark();
        restart.mark();
        assert!(restart.take());
        assert!(!restart.take());
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use crate::sync::Arc;
    use loom::thread;

    /// One tag, in use. It is freed while a dispatcher that could not get it marks the bit and tries again.
    fn somebody_notices(mark: fn(&Restart), take: fn(&Restart) -> bool) {
        notices(mark, |tag| tag.store(true, Ordering::Relaxed), take);
    }

    /// Like [`somebody_notices`], but with a way to free the tag.
    fn notices(mark: fn(&Restart), free: fn(&AtomicBool), take: fn(&Restart) -> bool) {
        loom::model(move || {
            let shared = Arc::new((Restart::new(), AtomicBool::new(false)));
            let completer = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    free(&shared.1);
                    take(&shared.0)
                })
            };
            mark(&shared.0);
            let retried = shared.1.load(Ordering::Relaxed);
            let told = completer.join().expect("the completer does not panic");
            assert!(retried || told, "the tag is free and nobody knows");
        });
    }

    #[test]
    fn loom_somebody_notices() {
        somebody_notices(Restart::mark, Restart::take);
    }

    #[test]
    fn loom_somebody_notices_a_tag_freed_by_a_read_modify_write() {
        let free = |tag: &AtomicBool| assert!(!tag.swap(true, Ordering::Relaxed));
        notices(Restart::mark, free, Restart::take_after_rmw);
    }

    #[test]
    #[should_panic(expected = "nobody knows")]
    fn loom_planted_take_after_a_read_modify_write_without_a_fence() {
        let free = |tag: &AtomicBool| assert!(!tag.swap(true, Ordering::Relaxed));
        notices(Restart::mark, free, Restart::take_fenced);
    }

    #[test]
    #[should_panic(expected = "nobody knows")]
    fn loom_planted_mark_without_a_fence() {
        somebody_notices(|restart| restart.0.store(true, Ordering::Release), Restart::take);
    }

    #[test]
    #[should_panic(expected = "nobody knows")]
    fn loom_planted_take_without_a_fence() {
        somebody_notices(Restart::mark, |restart| {
            restart.0.load(Ordering::Relaxed) && restart.0.swap(false, Ordering::AcqRel)
        });
    }

    #[test]
    #[should_panic(expected = "nobody knows")]
    fn loom_planted_try_before_the_mark() {
        loom::model(|| {
            let shared = Arc::new((Restart::new(), AtomicBool::new(false)));
            let completer = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    shared.1.store(true, Ordering::Relaxed);
                    shared.0.take()
                })
            };
            let tried = shared.1.load(Ordering::Relaxed);
            shared.0.mark();
            let told = completer.join().expect("the completer does not panic");
            assert!(tried || told, "the tag is free and nobody knows");
        });
    }

    /// Two completers, and one dispatcher that requested a kick: one completer runs the queue.
    fn one_is_told(take: fn(&Restart) -> bool) {
        loom::model(move || {
            let restart = Arc::new(Restart::new());
            restart.mark();
            let other = {
                let restart = Arc::clone(&restart);
                thread::spawn(move || take(&restart))
            };
            let mine = take(&restart);
            let theirs = other.join().expect("the completer does not panic");
            assert!(mine != theirs, "one mark is for one run");
        });
    }

    #[test]
    fn loom_one_is_told() {
        one_is_told(Restart::take);
    }

    #[test]
    #[should_panic(expected = "one mark is for one run")]
    fn loom_planted_take_that_does_not_claim() {
        one_is_told(|restart| {
            let marked = restart.0.load(Ordering::Acquire);
            restart.0.store(false, Ordering::Relaxed);
            marked
        });
    }

    /// A second dispatcher marks a bit that is set already while it is being taken. The completer that takes it sees
    /// the leftovers of both, or the bit is still set.
    fn a_second_mark_counts(mark: fn(&Restart)) {
        loom::model(move || {
            let shared = Arc::new((Restart::new(), AtomicBool::new(false)));
            shared.0.mark();
            let completer = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    assert!(shared.0.take());
                    shared.1.load(Ordering::Relaxed)
                })
            };
            shared.1.store(true, Ordering::Relaxed);
            mark(&shared.0);
            let seen = completer.join().expect("the completer does not panic");
            assert!(seen || shared.0.take(), "a mark was swallowed");
        });
    }

    #[test]
    fn loom_a_second_mark_counts() {
        a_second_mark_counts(Restart::mark);
    }

    #[test]
    #[should_panic(expected = "a mark was swallowed")]
    fn loom_planted_mark_that_skips_a_set_bit() {
        a_second_mark_counts(|restart| {
            if !restart.0.load(Ordering::Relaxed) {
                restart.mark();
            }
        });
    }
}
