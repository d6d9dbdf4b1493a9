//! Limits how many requests may be outside the elevators at a time, over all hardware queues (`spec/framework.md`
//! section 8.3). The limit may change while permissions are in use ([`Lever`]).
//!
//! | in use | `take(want)` | `put(n)` |
//! |---|---|---|
//! | limit | 0: *you* register (`Pending`) and try again | in use - n: *you* kick the registered elevators |
//! | below | `want` or the rest, if less: *yours* | likewise |
//! | above: the limit was lowered | 0, as at the limit | likewise |
//!
//! Invariant: no take brings the number in use above the limit that it reads, and the number is the sum of the
//! permissions taken and not put back.
//!
//! Taking is a compare-and-exchange and not an optimistic addition. An addition that overshoots and is undone makes
//! other callers fail in the meantime, although permissions are free, and no thread would kick them. Put releases and
//! take acquires, so a taker sees the writes of the permission's last holder. Without a limit there is no shared word.

use super::{Arc, AtomicU32, Ordering};
use crossbeam_utils::CachePadded;

/// A counter of permissions.
pub(crate) struct Budget(Option<Limited>);

struct Limited {
    /// Relaxed throughout: it guards nothing, and a taker may read either value.
    limit: Arc<AtomicU32>,
    in_use: CachePadded<AtomicU32>,
}

/// Moves the limit of a budget. After the limit is lowered, nothing is taken until enough permissions have been
/// returned. Raising it wakes no elevator: the caller continues to take, or kicks the elevators itself.
pub(crate) struct Lever(Arc<AtomicU32>);

impl Lever {
    /// Moves the limit. At least 1, so that the return of a permission kicks the waiting elevators.
    pub(crate) fn set(&self, limit: u32) {
        self.0.store(limit.max(1), Ordering::Relaxed);
    }
}

impl Budget {
    /// `limit` permissions; any number if `None`.
    pub(crate) fn new(limit: Option<u32>) -> Self {
        let in_use = || CachePadded::new(AtomicU32::new(0));
        Self(
            limit.map(|limit| Limited { limit: Arc::new(AtomicU32::new(limit)), in_use: in_use() }),
        )
    }

    /// Takes up to `want` permissions, and returns their number. One read-modify-write; none if no permission is left,
    /// or without a limit.
    #[inline]
    #[must_use = "what was taken has to be put back"]
    pub(crate) fn take(&self, want: u32) -> u32 {
        let Some(Limited { limit, in_use }) = &self.0 else { return want };
        let mut seen = in_use.load(Ordering::Relaxed);
        loop {
            let got = want.min(limit.load(Ordering::Relaxed).saturating_sub(seen));
            if got == 0 {
                return 0;
            }
            match in_use.compare_exchange_weak(
                seen,
                seen + got,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return got,
                Err(now) => seen = now,
            }
        }
    }

    /// Puts `n` back. One read-modify-write; none without a limit.
    #[inline]
    pub(crate) fn put(&self, n: u32) {
        if let (Some(Limited { in_use, .. }), 1..) = (&self.0, n) {
            let before = in_use.fetch_sub(n, Ordering::Release);
            debug_assert!(before >= n, "{n} put back, {before} taken");
        }
    }

    #[inline]
    #[must_use]
    pub(crate) fn limit(&self) -> Option<u32> {
        self.0.as_ref().map(|limited| limited.limit.load(Ordering::Relaxed))
    }

    /// The lever of the limit; `None` without a limit.
    pub(crate) fn lever(&self) -> Option<Lever> {
        self.0.as_ref().map(|limited| Lever(Arc::clone(&limited.limit)))
    }

    #[inline]
    #[must_use]
    pub(crate) fn is_limited(&self) -> bool {
        self.0.is_some()
    }

    /// The number taken; 0 without a limit, because they are not counted then.
    #[must_use]
    pub(crate) fn in_use(&self) -> u32 {
        self.0.as_ref().map_or(0, |limited| limited.in_use.load(Ordering::Relaxed))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_limit_is_out_at_once() {
        let budget = Budget::new(Some(10));
        assert_eq!((budget.take(8), budget.take(8), budget.take(1)), (8, 2, 0));
        assert_eq!(budget.in_use(), 10);
        budget.put(3);
        assert_eq!((budget.take(1), budget.in_use()), (1, 8));
    }

    #[test]
    fn a_limit_that_is_moved_holds_for_what_is_taken_from_then_on() {
        let budget = Budget::new(Some(10));
        let lever = budget.lever().expect("it has a limit");
        assert_eq!(budget.take(8), 8);
        lever.set(4);
        assert_eq!((budget.take(1), budget.limit()), (0, Some(4)));
        budget.put(5);
        assert_eq!((budget.take(3), budget.in_use()), (1, 4));
        lever.set(6);
        assert_eq!(budget.take(9), 2);
        lever.set(0);
        assert_eq!(budget.limit(), Some(1), "else nothing would ever come back");
        assert!(Budget::new(None).lever().is_none());
    }

    #[test]
    fn without_a_limit_every_caller_gets_all() {
        let budget = Budget::new(None);
        assert_eq!(budget.take(u32::MAX), u32::MAX);
        budget.put(u32::MAX);
        assert_eq!((budget.limit(), budget.in_use()), (None, 0));
    }

    #[test]
    #[should_panic(expected = "4 put back, 3 taken")]
    #[cfg(debug_assertions)]
    fn putting_back_too_much_is_a_bug() {
        let budget = Budget::new(Some(10));
        let taken = budget.take(3);
        budget.put(taken + 1);
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use crate::sync::{Arc, UnsafeCell};
    use loom::thread;

    type Take = fn(&Budget, u32) -> u32;

    fn the_limit_holds(take: Take) {
        loom::model(move || {
            let budget = Arc::new(Budget::new(Some(2)));
            let other = {
                let budget = Arc::clone(&budget);
                thread::spawn(move || take(&budget, 2))
            };
            let got = take(&budget, 1) + other.join().expect("no thread panics");
            assert_eq!(got, 2, "what was taken of a budget of 2");
            budget.put(got);
            assert_eq!(budget.in_use(), 0);
        });
    }

    #[test]
    fn loom_the_limit_holds() {
        the_limit_holds(Budget::take);
    }

    #[test]
    #[should_panic(expected = "taken of a budget")]
    fn loom_planted_take_that_stores() {
        the_limit_holds(|budget, want| {
            let Some(Limited { limit, in_use }) = &budget.0 else { return want };
            let seen = in_use.load(Ordering::Acquire);
            let got = want.min(limit.load(Ordering::Relaxed) - seen);
            in_use.store(seen + got, Ordering::Release);
            got
        });
    }

    /// A budget of one, and a cell that only its holder touches.
    fn who_takes_it_sees_what_was_done_with_it(take: Take, put: fn(&Budget, u32)) {
        loom::model(move || {
            let shared = Arc::new((Budget::new(Some(1)), UnsafeCell::new(0)));
            let work = |shared: Arc<(Budget, UnsafeCell<u32>)>| {
                move || {
                    if take(&shared.0, 1) == 1 {
                        // SAFETY: the budget is ours, and there is one; loom checks it.
                        shared.1.with_mut(|cell| unsafe { *cell += 1 });
                        put(&shared.0, 1);
                    }
                }
            };
            let other = thread::spawn(work(Arc::clone(&shared)));
            work(shared)();
            other.join().expect("no thread panics");
        });
    }

    #[test]
    fn loom_who_takes_it_sees_what_was_done_with_it() {
        who_takes_it_sees_what_was_done_with_it(Budget::take, Budget::put);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_planted_put_without_release() {
        who_takes_it_sees_what_was_done_with_it(Budget::take, |budget, n| {
            let Some(Limited { in_use, .. }) = &budget.0 else { return };
            in_use.fetch_sub(n, Ordering::Relaxed);
        });
    }

    /// One permission is put back and taken again, while another caller wants both.
    fn what_is_there_is_not_refused(take: Take) {
        loom::model(move || {
            let budget = Arc::new(Budget::new(Some(2)));
            assert_eq!(budget.take(1), 1);
            let other = {
                let budget = Arc::clone(&budget);
                thread::spawn(move || take(&budget, 2))
            };
            budget.put(1);
            let got = take(&budget, 1) + other.join().expect("no thread panics");
            assert_eq!(got, 2, "one was there and was refused");
        });
    }

    #[test]
    fn loom_what_is_there_is_not_refused() {
        what_is_there_is_not_refused(Budget::take);
    }

    #[test]
    #[should_panic(expected = "was refused")]
    fn loom_planted_take_that_overshoots() {
        what_is_there_is_not_refused(|budget, want| {
            let Some(Limited { limit, in_use }) = &budget.0 else { return want };
            let before = in_use.fetch_add(want, Ordering::AcqRel);
            let got = want.min(limit.load(Ordering::Relaxed).saturating_sub(before));
            in_use.fetch_sub(want - got, Ordering::AcqRel);
            got
        });
    }

    /// The limit is lowered while another caller has permissions, or takes some.
    fn a_limit_is_lowered(lower: fn(&Budget, &Lever, u32)) {
        loom::model(move || {
            let budget = Arc::new(Budget::new(Some(2)));
            let other = {
                let budget = Arc::clone(&budget);
                thread::spawn(move || budget.put(budget.take(2)))
            };
            let lever = budget.lever().expect("it has a limit");
            lower(&budget, &lever, 1);
            assert_eq!(budget.limit(), Some(1));
            let got = budget.take(2);
            assert!(got <= 1, "{got} of a budget of 1");
            budget.put(got);
            other.join().expect("the other thread does not panic");
            assert_eq!(budget.in_use(), 0, "all came back");
        });
    }

    #[test]
    fn loom_a_limit_is_lowered_and_nothing_is_lost() {
        a_limit_is_lowered(|_, lever, limit| lever.set(limit));
    }

    #[test]
    #[should_panic(expected = "put back, 1 taken")]
    fn loom_planted_lever_that_cuts_what_is_out() {
        a_limit_is_lowered(|budget, lever, limit| {
            lever.set(limit);
            let Some(Limited { in_use, .. }) = &budget.0 else { return };
            in_use.fetch_min(limit, Ordering::Relaxed);
        });
    }
}
