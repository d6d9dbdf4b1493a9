//! A value under a lock: the kernel's way, with which `RunCell` is compared.
//!
//! *Invariant: a [`LockGuard`] exists only while its lock is held, and the value is reached only through guards.*
//! Acquiring and releasing orders successive holders, as in any lock.
//!
//! | lock | `enter(who)` | `try_enter(who)` | guard dropped |
//! |---|---|---|---|
//! | free | *you* hold | *you* hold | - |
//! | held | waits: spinning in line, or parked | refused | the next in line, or a parked caller, holds |
//!
//! A guard of the spinning kind can be kept for a while without borrowing the cell ([`LockCell::detach`]); the lock is
//! then held.
//!
//! The lock has separate cache lines, so that waiters do not disturb the holder.

use super::run_cell::{AlarmRef, Poison, Unwinding};
use super::{Mutex, MutexGuard, PoisonError, QueuedLock, TryLockError, UnsafeCell};
use crossbeam_utils::CachePadded;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// How a caller waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LockKind {
    /// Spinning in a queue, as in the kernel.
    Spin,
    /// Parked.
    Mutex,
}

/// A value under a lock.
pub(crate) struct LockCell<T> {
    lock: Lock,
    held: CachePadded<Held<T>>,
}

enum Lock {
    Spin(QueuedLock),
    Mutex(CachePadded<Mutex<()>>),
}

struct Held<T> {
    poison: Poison,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by one guard at a time (module invariant), so sharing the cell amounts to
// sending the value from holder to holder.
unsafe impl<T: Send> Sync for LockCell<T> {}

/// The right to the value; dropping it releases the lock.
pub(crate) struct LockGuard<'a, T> {
    held: &'a Held<T>,
    unwinding: Unwinding,
    /// Dropped after `drop` has run, that is, after the poison has been noted.
    _release: Release<'a>,
    /// As `&mut T`: the guard is `Sync` only if `T` is.
    _value: PhantomData<&'a mut T>,
}

/// Releases the lock when dropped.
enum Release<'a> {
    Spin(&'a QueuedLock, usize),
    Mutex { _guard: MutexGuard<'a, ()> },
}

impl Drop for Release<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Self::Spin(lock, who) = self {
            lock.unlock(*who);
        }
    }
}

/// A held lock that is kept for a while without borrowing its cell. Its owner returns it with [`LockCell::attach`].
#[must_use = "no other thread can enter until it is given back"]
pub(crate) struct DetachedLock {
    /// The address of the cell, to identify it; never dereferenced.
    cell: usize,
    who: usize,
    unwinding: Unwinding,
}

impl<T> LockCell<T> {
    /// A free lock, for callers numbered `0..waiters`.
    #[cfg(test)]
    pub(crate) fn new(kind: LockKind, waiters: usize, value: T) -> Self {
        Self::with_alarm(kind, waiters, value, None)
    }

    /// A free lock, for callers numbered `0..waiters`. `alarm` is raised when a holder panics.
    pub(crate) fn with_alarm(kind: LockKind, waiters: usize, value: T, alarm: AlarmRef) -> Self {
        let lock = match kind {
            LockKind::Spin => Lock::Spin(QueuedLock::new(waiters)),
            LockKind::Mutex => Lock::Mutex(CachePadded::new(Mutex::new(()))),
        };
        let held = Held { poison: Poison::new(alarm), value: UnsafeCell::new(value) };
        Self { lock, held: CachePadded::new(held) }
    }

    /// Waits for the lock. `who` is the caller's number, which must not be in use twice at a time. `None` if an earlier
    /// holder panicked.
    ///
    /// # Panics
    /// If the number is out of range.
    #[inline]
    pub(crate) fn enter(&self, who: usize) -> Option<LockGuard<'_, T>> {
        let release = match &self.lock {
            Lock::Spin(lock) => {
                lock.lock(who);
                Release::Spin(lock, who)
            }
            // The cell's own poison covers both kinds.
            Lock::Mutex(mutex) => {
                Release::Mutex { _guard: mutex.lock().unwrap_or_else(PoisonError::into_inner) }
            }
        };
        self.guard(release)
    }

    /// Takes the lock, if it is free and no earlier holder panicked. `who` as for [`enter`](Self::enter).
    ///
    /// # Panics
    /// As [`enter`](Self::enter).
    #[inline]
    pub(crate) fn try_enter(&self, who: usize) -> Option<LockGuard<'_, T>> {
        self.guard(self.try_lock(who)?)
    }

    /// Takes the lock, if it is free, even if an earlier holder panicked.
    pub(crate) fn seize(&self, who: usize) -> Option<LockGuard<'_, T>> {
        let release = self.try_lock(who)?;
        let unwinding = self.held.poison.ignore();
        Some(LockGuard { held: &self.held, unwinding, _release: release, _value: PhantomData })
    }

    #[inline]
    fn try_lock(&self, who: usize) -> Option<Release<'_>> {
        let release = match &self.lock {
            Lock::Spin(lock) => lock.try_lock(who).then(|| Release::Spin(lock, who))?,
            Lock::Mutex(mutex) => match mutex.try_lock() {
                Ok(guard) => Release::Mutex { _guard: guard },
                Err(TryLockError::Poisoned(e)) => Release::Mutex { _guard: e.into_inner() },
                Err(TryLockError::WouldBlock) => return None,
            },
        };
        Some(release)
    }

    /// Must be called right after the lock was taken.
    #[inline]
    fn guard<'a>(&'a self, release: Release<'a>) -> Option<LockGuard<'a, T>> {
        let unwinding = self.held.poison.check().ok()?;
        Some(LockGuard { held: &self.held, unwinding, _release: release, _value: PhantomData })
    }

    /// The guard of a lock that was detached from this cell.
    ///
    /// # Panics
    /// If it was detached from another cell.
    #[allow(clippy::needless_pass_by_value, reason = "the detached lock is given up")]
    pub(crate) fn attach(&self, detached: DetachedLock) -> LockGuard<'_, T> {
        let DetachedLock { cell, who, unwinding } = detached;
        let (Lock::Spin(lock), true) = (&self.lock, cell == self.name()) else {
            panic!("a lock of another cell");
        };
        // There is no guard now: `detach` consumed the guard, and this call consumes what `detach` returned.
        let release = Release::Spin(lock, who);
        LockGuard { held: &self.held, unwinding, _release: release, _value: PhantomData }
    }

    /// Keeps the lock without borrowing the cell, which must not move until the lock is attached again. `None` if the
    /// lock is not of the spinning kind.
    pub(crate) fn detach(&self, guard: LockGuard<'_, T>) -> Option<DetachedLock> {
        assert!(std::ptr::eq(guard.held, &raw const *self.held), "a guard of another cell");
        let Release::Spin(_, who) = guard._release else { return None };
        let detached = DetachedLock { cell: self.name(), who, unwinding: guard.unwinding };
        std::mem::forget(guard);
        Some(detached)
    }

    fn name(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// The value, without the lock: `&mut self` shows that there is no holder.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        // SAFETY: `&mut self` excludes guards, which borrow the cell.
        self.held.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> LockGuard<'_, T> {
    /// Returns whether an earlier holder has panicked. True is possible only for the guard of a
    /// [seized](LockCell::seize) lock.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.held.poison.is_poisoned()
    }

    /// Closes the cell: afterwards the lock can only be [seized](LockCell::seize).
    pub(crate) fn close(&self) {
        self.held.poison.close();
    }
}

impl<T> Drop for LockGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.held.poison.note(self.unwinding) {
            // The lock is released right after this; a thread that wakes earlier waits for it.
            self.held.poison.raise();
        }
    }
}

impl<T> Deref for LockGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held (module invariant), and the guard is borrowed, so no `&mut` exists.
        self.held.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for LockGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held (module invariant), and the guard is borrowed mutably.
        self.held.value.with_mut(|value| unsafe { &mut *value })
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn enter<T>(cell: &LockCell<T>, who: usize) -> LockGuard<'_, T> {
        cell.enter(who).expect("no holder has panicked")
    }

    const KINDS: [LockKind; 2] = [LockKind::Spin, LockKind::Mutex];

    #[test]
    fn threads_add_up_under_either_kind() {
        const THREADS: usize = 4;
        const EACH: usize = if cfg!(miri) { 5 } else { 5_000 };
        for kind in KINDS {
            let mut cell = LockCell::new(kind, THREADS, 0);
            std::thread::scope(|scope| {
                for who in 0..THREADS {
                    let cell = &cell;
                    scope.spawn(move || (0..EACH).for_each(|_| *enter(cell, who) += 1));
                }
            });
            assert_eq!(*cell.get_mut(), THREADS * EACH);
        }
    }

    #[test]
    fn who_only_tries_is_refused_under_either_kind() {
        for kind in KINDS {
            let cell = LockCell::new(kind, 2, 7);
            let held = enter(&cell, 0);
            assert!(cell.try_enter(1).is_none());
            drop(held);
            assert_eq!(cell.try_enter(1).map(|guard| *guard), Some(7));
        }
    }

    #[test]
    fn a_lock_that_is_kept_stays_held() {
        let cell = LockCell::new(LockKind::Spin, 2, 0);
        let mut held = enter(&cell, 0);
        *held += 1;
        let kept = cell.detach(held).expect("it spins");
        assert!(cell.try_enter(1).is_none());
        let mut held = cell.attach(kept);
        *held += 1;
        drop(held);
        assert_eq!(*enter(&cell, 1), 2);
        let parked = LockCell::new(LockKind::Mutex, 1, 0);
        assert!(parked.detach(enter(&parked, 0)).is_none());
        assert!(parked.try_enter(0).is_some(), "and it was let go of");
    }

    #[test]
    #[should_panic(expected = "a lock of another cell")]
    fn a_kept_lock_opens_no_other_cell() {
        let (one, other) =
            (LockCell::new(LockKind::Spin, 1, 0), LockCell::new(LockKind::Spin, 1, 0));
        let kept = one.detach(enter(&one, 0)).expect("it spins");
        drop(other.attach(kept));
    }

    #[test]
    fn after_a_panic_under_the_lock_it_can_only_be_seized() {
        for kind in KINDS {
            let cell = LockCell::new(kind, 1, 0);
            let hold = || {
                let mut guard = enter(&cell, 0);
                *guard = 1;
                panic!("in the middle of it");
            };
            assert!(catch_unwind(AssertUnwindSafe(hold)).is_err());
            for _ in 0..2 {
                assert!(cell.enter(0).is_none() && cell.try_enter(0).is_none());
                let seized = cell.seize(0).expect("the lock is free");
                assert!(seized.is_poisoned() && *seized == 1);
            }
        }
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use crate::sync::Arc;
    use loom::thread;

    fn waiting(cell: &LockCell<u32>, who: usize) -> LockGuard<'_, u32> {
        cell.enter(who).expect("no holder has panicked")
    }

    fn holders_exclude_each_other(
        kind: LockKind,
        enter: fn(&LockCell<u32>, usize) -> LockGuard<'_, u32>,
    ) {
        loom::model(move || {
            let cell = Arc::new(LockCell::new(kind, 2, 0));
            let other = {
                let cell = Arc::clone(&cell);
                thread::spawn(move || *enter(&cell, 1) += 1)
            };
            *enter(&cell, 0) += 1;
            other.join().expect("no holder panics");
            assert_eq!(*waiting(&cell, 0), 2);
        });
    }

    #[test]
    fn loom_holders_exclude_each_other() {
        holders_exclude_each_other(LockKind::Spin, waiting);
        holders_exclude_each_other(LockKind::Mutex, waiting);
    }

    #[test]
    fn loom_who_tries_excludes_who_waits() {
        fn enter(cell: &LockCell<u32>, who: usize) -> LockGuard<'_, u32> {
            if who == 0 {
                return waiting(cell, who);
            }
            loop {
                match cell.try_enter(who) {
                    Some(guard) => return guard,
                    None => thread::yield_now(),
                }
            }
        }
        holders_exclude_each_other(LockKind::Spin, enter);
        holders_exclude_each_other(LockKind::Mutex, enter);
    }

    /// Each thread takes its own lock, which the other does not know.
    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_planted_lock_of_ones_own() {
        holders_exclude_each_other(LockKind::Spin, |cell, _| {
            let own = Box::leak(Box::new(QueuedLock::new(1)));
            own.lock(0);
            LockGuard {
                held: &cell.held,
                unwinding: cell.held.poison.check().expect("no thread panics"),
                _release: Release::Spin(own, 0),
                _value: PhantomData,
            }
        });
    }
}
