//! A pool of tokens that elevators take from and pumps return to, with the elevators that wait for a token: those of a
//! policy, and the budgets of a queue, which limit the requests outside its elevators over all hardware queues
//! (`spec/framework.md` section 8.3).
//!
//! The word holds the number of tokens that are out (low half) and the limit (high half), which may change.
//!
//! | state | `take(want)` | `put(n)` | `set_limit(to)` |
//! |---|---|---|---|
//! | out >= limit | 0: *you* wait | out - n; *you* kick the waiters, if out < limit now | limit = to; *you* kick them |
//! | out < limit | `want` or the rest, if less: *yours* | out - n; *you* kick the waiters | as above |
//!
//! Invariant: the tokens out are those taken and not put back. They exceed the limit only after it was lowered; then no
//! token is given until enough are back. An elevator that [`take_or_wait`](TokenPool::take_or_wait) refused is kicked
//! after the next moment at which a token may be available.
//!
//! # Why the orderings are enough
//!
//! A refused elevator sets its bit and tries again. A thread that returns tokens, or raises the limit, changes the word
//! and then checks the bits. Between the two, on both sides, is a full fence ([`Pending::set`] has one, and
//! `fence_after_rmw`). So at least one of them sees the other: the elevator sees the token, or the thread sees the bit.
//! A kicked elevator takes again and may be refused again; then its bit is set anew.
//!
//! Put releases and take acquires, so a taker sees the writes of the token's last holder; a changed limit orders nothing
//! else. Taking is a compare-and-exchange and not an optimistic addition. An addition that overshoots and is undone makes
//! other callers fail in the meantime, although tokens are free, and no thread would kick them.

use super::{AtomicU64, Ordering, Pending, fence_after_rmw, looks_again};
use crossbeam_utils::CachePadded;

/// Tokens, and the elevators that wait for one.
pub(crate) struct TokenPool {
    word: CachePadded<AtomicU64>,
    waiting: Pending,
}

const fn split(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

const fn join(out: u32, limit: u32) -> u64 {
    out as u64 | (limit as u64) << 32
}

impl TokenPool {
    /// A pool of `limit` tokens, for waiters below `waiters`.
    pub(crate) fn new(limit: u32, waiters: u16) -> Self {
        let word = CachePadded::new(AtomicU64::new(join(0, limit)));
        Self { word, waiting: Pending::new(waiters) }
    }

    /// Takes up to `want` tokens, and returns their number. One read-modify-write; none if no token is left.
    #[inline]
    #[must_use = "what was taken has to be put back"]
    pub(crate) fn take(&self, want: u32) -> u32 {
        let mut seen = self.word.load(Ordering::Relaxed);
        loop {
            let (out, limit) = split(seen);
            let got = want.min(limit.saturating_sub(out));
            if got == 0 {
                return 0;
            }
            let next = join(out + got, limit);
            match self.word.compare_exchange_weak(seen, next, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => return got,
                Err(now) => seen = now,
            }
        }
    }

    /// Like [`take`](Self::take), but if there is no token, `id` is kicked when one may be available.
    #[inline]
    #[must_use = "what was taken has to be put back"]
    pub(crate) fn take_or_wait(&self, want: u32, id: u16) -> u32 {
        match self.take(want) {
            0 => {
                self.waiting.set(id);
                if looks_again() { self.take(want) } else { 0 }
            }
            got => got,
        }
    }

    /// Puts `n` back, and passes the waiters to `tell`. One read-modify-write.
    #[inline]
    pub(crate) fn put(&self, n: u32, tell: impl FnMut(u16)) {
        // The low half cannot borrow from the high half: no more is put back than was taken.
        let (out, limit) = split(self.word.fetch_sub(n.into(), Ordering::Release));
        debug_assert!(out >= n, "{n} put back, {out} taken");
        fence_after_rmw();
        if out - n < limit {
            self.tell(tell);
        }
    }

    /// Sets the number of tokens to `limit`, and passes the waiters to `tell`.
    pub(crate) fn set_limit(&self, limit: u32, tell: impl FnMut(u16)) {
        self.limit_to(limit);
        fence_after_rmw();
        self.tell(tell);
    }

    /// Sets the number of tokens to `limit`, which must not be 0. The waiters are kicked when a token is put back.
    pub(crate) fn limit_to(&self, limit: u32) {
        let mut seen = self.word.load(Ordering::Relaxed);
        loop {
            let (out, _) = split(seen);
            let next = join(out, limit);
            match self.word.compare_exchange_weak(seen, next, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    #[inline]
    fn tell(&self, tell: impl FnMut(u16)) {
        if self.waiting.any() {
            self.waiting.take(tell);
        }
    }

    /// The number of tokens that are out.
    #[must_use]
    pub(crate) fn out(&self) -> u32 {
        split(self.word.load(Ordering::Relaxed)).0
    }

    /// The number of tokens that may be out.
    #[must_use]
    pub(crate) fn limit(&self) -> u32 {
        split(self.word.load(Ordering::Relaxed)).1
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn told(f: impl FnOnce(&mut dyn FnMut(u16))) -> Vec<u16> {
        let mut ids = Vec::new();
        f(&mut |id| ids.push(id));
        ids
    }

    #[test]
    fn no_more_than_there_are_is_out_at_once() {
        let pool = TokenPool::new(10, 1);
        assert_eq!((pool.take(8), pool.take(8), pool.take(1)), (8, 2, 0));
        pool.put(3, |_| panic!("no elevator waits"));
        assert_eq!((pool.take(1), pool.out(), pool.limit()), (1, 8, 10));
    }

    #[test]
    fn a_lowered_limit_lets_nothing_out_until_enough_is_back() {
        let pool = TokenPool::new(4, 1);
        assert_eq!(pool.take(4), 4);
        pool.set_limit(2, |_| panic!("no elevator waits"));
        pool.put(2, |_| {});
        assert_eq!((pool.take(1), pool.out()), (0, 2));
        pool.put(1, |_| {});
        assert_eq!(pool.take(9), 1);
    }

    #[test]
    fn who_was_refused_is_told_once_there_is_something() {
        let pool = TokenPool::new(2, 3);
        assert_eq!(pool.take(2), 2);
        assert_eq!((pool.take_or_wait(1, 2), pool.take_or_wait(1, 0)), (0, 0));
        pool.set_limit(1, |_| {});
        // The waiters were kicked for the change, and tried again.
        assert_eq!((pool.take_or_wait(1, 2), pool.take_or_wait(1, 0)), (0, 0));
        assert_eq!(told(|tell| pool.put(1, tell)), [], "there is none yet");
        assert_eq!(told(|tell| pool.put(1, tell)), [2, 0]);
        assert_eq!(pool.take(1), 1);
        assert_eq!(pool.take_or_wait(1, 1), 0);
        assert_eq!(told(|tell| pool.set_limit(2, tell)), [1]);
    }

    #[test]
    #[should_panic(expected = "2 put back, 1 taken")]
    #[cfg(debug_assertions)]
    fn putting_back_too_much_is_a_bug() {
        let pool = TokenPool::new(10, 1);
        let taken = pool.take(1);
        pool.put(taken + 1, |_| {});
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use crate::sync::{Arc, Gate, UnsafeCell};
    use loom::thread;

    type TakeOrWait = fn(&TokenPool, u32, u16) -> u32;

    /// One token, and elevators with one request each that needs it.
    struct World {
        pool: TokenPool,
        /// For each elevator, whether its request is still held.
        elevators: Vec<Gate<bool>>,
    }

    /// Runs an elevator as the engine does, or leaves the pass to its runner: takes a token for the elevator's request.
    /// The request is served immediately, which returns the token and kicks other elevators.
    fn call(world: &World, id: u16, take: TakeOrWait) {
        let Some(mut guard) = world.elevators[usize::from(id)].run_or_owe() else { return };
        let mut served = 0;
        loop {
            if *guard && take(&world.pool, 1, id) == 1 {
                *guard = false;
                served += 1;
            }
            match guard.finish() {
                None => break,
                Some(again) => guard = again,
            }
        }
        if served > 0 {
            world.pool.put(served, |other| call(world, other, take));
        }
    }

    /// Every elevator is kicked once, and later only by other threads (`spec/kyber.md` section 8, point 2).
    fn no_elevator_is_left_with_a_request(elevators: u16, take: TakeOrWait) {
        let mut model = loom::model::Builder::new();
        if elevators > 3 {
            // With a third preemption, four threads take a minute.
            model.preemption_bound = model.preemption_bound.map(|bound| bound.min(2));
        }
        model.check(move || {
            let world = Arc::new(World {
                pool: TokenPool::new(1, elevators),
                elevators: (0..elevators).map(|_| Gate::of_run(true)).collect(),
            });
            let others: Vec<_> = (1..elevators)
                .map(|id| {
                    let world = Arc::clone(&world);
                    thread::spawn(move || call(&world, id, take))
                })
                .collect();
            call(&world, 0, take);
            others.into_iter().for_each(|other| other.join().expect("no elevator panics"));
            assert_eq!(world.pool.out(), 0);
            for elevator in &world.elevators {
                let guard = elevator.try_run().expect("no thread runs any more");
                assert!(!*guard, "a request is held, the token is there, and no thread comes");
                assert!(guard.finish().is_none());
            }
        });
    }

    #[test]
    fn loom_two_elevators_and_one_token() {
        no_elevator_is_left_with_a_request(2, TokenPool::take_or_wait);
    }

    #[test]
    fn loom_three_elevators_and_one_token() {
        no_elevator_is_left_with_a_request(3, TokenPool::take_or_wait);
    }

    #[test]
    fn loom_four_elevators_and_one_token() {
        no_elevator_is_left_with_a_request(4, TokenPool::take_or_wait);
    }

    /// The bug that the second check prevents.
    #[test]
    #[should_panic(expected = "no thread comes")]
    fn loom_planted_wait_without_a_second_look() {
        no_elevator_is_left_with_a_request(4, |pool, want, id| match pool.take(want) {
            0 => {
                pool.waiting.set(id);
                0
            }
            got => got,
        });
    }

    /// One token, and a cell that only its holder touches, while the limit is set anew.
    fn who_takes_it_sees_what_was_done_with_it(put: fn(&TokenPool, u32)) {
        loom::model(move || {
            let shared = Arc::new((TokenPool::new(1, 1), UnsafeCell::new(0)));
            let work = |shared: Arc<(TokenPool, UnsafeCell<u32>)>| {
                move || {
                    if shared.0.take(1) == 1 {
                        // SAFETY: the token is ours, and there is one; loom checks it.
                        shared.1.with_mut(|cell| unsafe { *cell += 1 });
                        put(&shared.0, 1);
                    }
                }
            };
            let other = thread::spawn(work(Arc::clone(&shared)));
            let governor = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.0.set_limit(1, |_| {}))
            };
            work(shared)();
            other.join().expect("no thread panics");
            governor.join().expect("the governor does not panic");
        });
    }

    #[test]
    fn loom_who_takes_it_sees_what_was_done_with_it() {
        who_takes_it_sees_what_was_done_with_it(|pool, n| pool.put(n, |_| {}));
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_planted_put_without_release() {
        who_takes_it_sees_what_was_done_with_it(|pool, n| {
            pool.word.fetch_sub(n.into(), Ordering::Relaxed);
        });
    }

    /// The limit is raised while an elevator is being refused.
    fn a_raised_limit_is_noticed(set_limit: fn(&TokenPool, u32, &mut dyn FnMut(u16))) {
        loom::model(move || {
            let pool = Arc::new(TokenPool::new(0, 1));
            let governor = {
                let pool = Arc::clone(&pool);
                thread::spawn(move || {
                    let mut told = false;
                    set_limit(&pool, 1, &mut |_| told = true);
                    told
                })
            };
            let got = pool.take_or_wait(1, 0);
            let told = governor.join().expect("the governor does not panic");
            assert!(got == 1 || told, "there is a token and no thread knows");
            assert_eq!(pool.limit(), 1);
        });
    }

    #[test]
    fn loom_a_raised_limit_is_noticed() {
        a_raised_limit_is_noticed(|pool, limit, tell| pool.set_limit(limit, tell));
    }

    #[test]
    #[should_panic(expected = "no thread knows")]
    fn loom_planted_tells_before_it_raises() {
        a_raised_limit_is_noticed(|pool, limit, tell| {
            pool.tell(tell);
            pool.set_limit(limit, |_| {});
        });
    }

    type Take = fn(&TokenPool, u32) -> u32;

    fn the_limit_holds(take: Take) {
        loom::model(move || {
            let pool = Arc::new(TokenPool::new(2, 1));
            let other = {
                let pool = Arc::clone(&pool);
                thread::spawn(move || take(&pool, 2))
            };
            let got = take(&pool, 1) + other.join().expect("no thread panics");
            assert_eq!(got, 2, "what was taken of a pool of 2");
            pool.put(got, |_| {});
            assert_eq!(pool.out(), 0);
        });
    }

    #[test]
    fn loom_the_limit_holds() {
        the_limit_holds(TokenPool::take);
    }

    #[test]
    #[should_panic(expected = "taken of a pool")]
    fn loom_planted_take_that_stores() {
        the_limit_holds(|pool, want| {
            let (out, limit) = split(pool.word.load(Ordering::Acquire));
            let got = want.min(limit - out);
            pool.word.store(join(out + got, limit), Ordering::Release);
            got
        });
    }

    /// One token is put back and taken again, while another caller wants both.
    fn what_is_there_is_not_refused(take: Take) {
        loom::model(move || {
            let pool = Arc::new(TokenPool::new(2, 1));
            assert_eq!(pool.take(1), 1);
            let other = {
                let pool = Arc::clone(&pool);
                thread::spawn(move || take(&pool, 2))
            };
            pool.put(1, |_| {});
            let got = take(&pool, 1) + other.join().expect("no thread panics");
            assert_eq!(got, 2, "one was there and was refused");
        });
    }

    #[test]
    fn loom_what_is_there_is_not_refused() {
        what_is_there_is_not_refused(TokenPool::take);
    }

    #[test]
    #[should_panic(expected = "was refused")]
    fn loom_planted_take_that_overshoots() {
        what_is_there_is_not_refused(|pool, want| {
            let (before, limit) = split(pool.word.fetch_add(want.into(), Ordering::AcqRel));
            let got = want.min(limit.saturating_sub(before));
            pool.word.fetch_sub((want - got).into(), Ordering::AcqRel);
            got
        });
    }

    /// The limit is lowered while another caller has tokens, or takes some.
    fn a_limit_is_lowered(lower: fn(&TokenPool, u32)) {
        loom::model(move || {
            let pool = Arc::new(TokenPool::new(2, 1));
            let other = {
                let pool = Arc::clone(&pool);
                thread::spawn(move || pool.put(pool.take(2), |_| {}))
            };
            lower(&pool, 1);
            assert_eq!(pool.limit(), 1);
            let got = pool.take(2);
            assert!(got <= 1, "{got} of a pool of 1");
            pool.put(got, |_| {});
            other.join().expect("the other thread does not panic");
            assert_eq!(pool.out(), 0, "all are back");
        });
    }

    #[test]
    fn loom_a_limit_is_lowered_and_nothing_is_lost() {
        a_limit_is_lowered(TokenPool::limit_to);
    }

    #[test]
    #[should_panic(expected = "put back, 1 taken")]
    fn loom_planted_limit_that_cuts_what_is_out() {
        a_limit_is_lowered(|pool, limit| {
            pool.limit_to(limit);
            let mut seen = pool.word.load(Ordering::Relaxed);
            while let Err(now) = pool.word.compare_exchange(
                seen,
                join(split(seen).0.min(limit), limit),
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                seen = now;
            }
        });
    }
}
