//! A fair spin lock like the kernel's: waiters queue up, and each spins on its own cache line.
//!
//! The algorithm is that of Mellor-Crummey and Scott, with numbered nodes in place of pointers: every possible waiter
//! has a node, named by the number `who` with which it calls. The engine uses the lock for the kernel's way in
//! comparisons, so it is meant to be a good spin lock. No spin lock is good where threads outnumber CPUs; this one at
//! least yields after a while.
//!
//! # States
//!
//! `tail` holds the number of the last waiter in line, plus one; `next` holds the number of the next waiter, plus one;
//! 0 means none. `waiting` is set until it is the node's turn.
//!
//! | `tail` | own `next` | `lock(who)` | `try_lock(who)` | `unlock(who)` by the holder |
//! |---|---|---|---|---|
//! | 0, free | - | `tail` = caller: *you* hold | `tail` = caller: *you* hold | - |
//! | holder | 0 | `tail` = caller, then the holder's `next` = caller; wait | same, refused | `tail` = 0: free |
//! | another caller | 0 | the same behind the last in line | same, refused | wait: that caller is about to set `next` |
//! | another caller | set | the same behind the last in line | same, refused | clears `waiting` of the next |
//!
//! Invariant: from `tail` to the holder the nodes are linked, or the caller that swapped `tail` last is about to make
//! the missing link.
//!
//! # Why the orderings are enough
//!
//! The hand-over is `waiting`: the old holder stores false with release, the new one loads it with acquire. A free
//! lock is `tail`: written 0 with release, read by an acquiring swap. A caller resets its own `next` and `waiting`
//! before the releasing swap, which its successor acquires before it writes `next`.
//!
//! Read-modify-writes: one to lock, one to unlock if no caller waits, none to hand over.

use super::{
    AtomicBool, AtomicU32, Backoff, Mutex, MutexGuard, Ordering, PoisonError, TryLockError,
};
use crossbeam_utils::CachePadded;

const NOBODY: u32 = 0;

/// The lock. It protects no data itself; a [`Gate`](super::Gate) puts a value under it.
pub(crate) struct QueuedLock {
    tail: CachePadded<AtomicU32>,
    nodes: Box<[CachePadded<Node>]>,
}

struct Node {
    next: AtomicU32,
    waiting: AtomicBool,
    #[cfg(debug_assertions)]
    used: AtomicBool,
}

/// In debug builds, detects a number that two callers use at the same time.
impl Node {
    #[inline]
    fn begin_use(&self, who: usize) {
        #[cfg(debug_assertions)]
        assert!(!self.used.swap(true, Ordering::Relaxed), "waiter {who} waits or holds already");
        let _ = who;
    }

    #[inline]
    fn end_use(&self, who: usize) {
        #[cfg(debug_assertions)]
        assert!(self.used.swap(false, Ordering::Relaxed), "waiter {who} does not hold the lock");
        let _ = who;
    }
}

impl QueuedLock {
    /// A free lock, for callers numbered `0..waiters`.
    pub(crate) fn new(waiters: usize) -> Self {
        assert!(waiters < u32::MAX as usize, "{waiters} waiters do not fit into 32 bits");
        let node = |_| {
            CachePadded::new(Node {
                next: AtomicU32::new(NOBODY),
                waiting: AtomicBool::new(false),
                #[cfg(debug_assertions)]
                used: AtomicBool::new(false),
            })
        };
        let nodes = (0..waiters).map(node).collect();
        Self { tail: CachePadded::new(AtomicU32::new(NOBODY)), nodes }
    }

    /// Waits until the caller has the lock. First come, first served.
    ///
    /// # Panics
    /// If the number is not below the number of waiters; in debug builds also if two callers use it at the same time.
    #[inline]
    pub(crate) fn lock(&self, who: usize) {
        let node = &self.nodes[who];
        node.begin_use(who);
        node.next.store(NOBODY, Ordering::Relaxed);
        node.waiting.store(true, Ordering::Relaxed);
        let me = who as u32 + 1;
        let ahead = self.tail.swap(me, Ordering::AcqRel);
        if ahead != NOBODY {
            self.node(ahead).next.store(me, Ordering::Release);
            let mut backoff = Backoff::new();
            while node.waiting.load(Ordering::Acquire) {
                backoff.wait();
            }
        }
    }

    /// Takes the lock, if no caller holds it or waits for it. One read-modify-write, none if the lock looks taken.
    ///
    /// # Panics
    /// As [`lock`](Self::lock).
    #[inline]
    #[must_use = "if it is yours it has to be unlocked"]
    pub(crate) fn try_lock(&self, who: usize) -> bool {
        if self.tail.load(Ordering::Relaxed) != NOBODY {
            return false;
        }
        let node = &self.nodes[who];
        node.begin_use(who);
        // A caller that queues behind finds the node reset.
        node.next.store(NOBODY, Ordering::Relaxed);
        let me = who as u32 + 1;
        let taken =
            self.tail.compare_exchange(NOBODY, me, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if !taken {
            node.end_use(who);
        }
        taken
    }

    /// Passes the lock to the next in line.
    ///
    /// The caller must be the holder.
    #[inline]
    pub(crate) fn unlock(&self, who: usize) {
        let node = &self.nodes[who];
        // Before the lock is released, because the caller's number may be reused afterwards.
        node.end_use(who);
        let next = self.next_of(node, who as u32 + 1);
        if next != NOBODY {
            self.node(next).waiting.store(false, Ordering::Release);
        }
    }

    /// The waiter behind `me`; `None` if there is none, and then the lock has become free.
    #[inline]
    fn next_of(&self, node: &Node, me: u32) -> u32 {
        let next = node.next.load(Ordering::Acquire);
        if next != NOBODY {
            return next;
        }
        let free = self.tail.compare_exchange(me, NOBODY, Ordering::Release, Ordering::Relaxed);
        if free.is_ok() {
            return NOBODY;
        }
        let mut backoff = Backoff::new();
        loop {
            let next = node.next.load(Ordering::Acquire);
            if next != NOBODY {
                return next;
            }
            backoff.wait();
        }
    }

    fn node(&self, number: u32) -> &Node {
        &self.nodes[number as usize - 1]
    }
}

/// How a caller waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LockKind {
    /// Spinning in a queue, as in the kernel.
    Spin,
    /// Parked.
    Mutex,
}

/// A lock of either kind.
pub(crate) enum Lock {
    Spin(QueuedLock),
    Mutex(CachePadded<Mutex<()>>),
}

/// A held lock. Releases it when dropped.
pub(crate) enum Release<'a> {
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

impl Release<'_> {
    /// The number of the holder; `None` if the lock is not of the spinning kind.
    pub(crate) fn who(&self) -> Option<usize> {
        match self {
            Self::Spin(_, who) => Some(*who),
            Self::Mutex { .. } => None,
        }
    }
}

impl Lock {
    /// A free lock, for callers numbered `0..waiters`.
    pub(crate) fn new(kind: LockKind, waiters: usize) -> Self {
        match kind {
            LockKind::Spin => Self::Spin(QueuedLock::new(waiters)),
            LockKind::Mutex => Self::Mutex(CachePadded::new(Mutex::new(()))),
        }
    }

    /// Waits for the lock.
    ///
    /// # Panics
    /// As [`QueuedLock::lock`].
    #[inline]
    pub(crate) fn lock(&self, who: usize) -> Release<'_> {
        match self {
            Self::Spin(lock) => {
                lock.lock(who);
                Release::Spin(lock, who)
            }
            // The poison beside the value covers both kinds.
            Self::Mutex(mutex) => {
                Release::Mutex { _guard: mutex.lock().unwrap_or_else(PoisonError::into_inner) }
            }
        }
    }

    /// Takes the lock, if it is free.
    ///
    /// # Panics
    /// As [`QueuedLock::lock`].
    #[inline]
    pub(crate) fn try_lock(&self, who: usize) -> Option<Release<'_>> {
        match self {
            Self::Spin(lock) => lock.try_lock(who).then(|| Release::Spin(lock, who)),
            Self::Mutex(mutex) => match mutex.try_lock() {
                Ok(guard) => Some(Release::Mutex { _guard: guard }),
                Err(TryLockError::Poisoned(e)) => Some(Release::Mutex { _guard: e.into_inner() }),
                Err(TryLockError::WouldBlock) => None,
            },
        }
    }

    /// The release of a spinning lock that `who` holds, whose own release was forgotten.
    ///
    /// # Panics
    /// If the lock is not of the spinning kind.
    pub(crate) fn release(&self, who: usize) -> Release<'_> {
        let Self::Spin(lock) = self else { unreachable!("a lock that parks is not kept") };
        Release::Spin(lock, who)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn it_can_be_locked_again_by_anybody() {
        let lock = QueuedLock::new(2);
        for who in [0, 1, 1, 0] {
            lock.lock(who);
            lock.unlock(who);
        }
        assert_eq!(lock.tail.load(Ordering::Relaxed), NOBODY);
    }

    #[test]
    fn who_only_tries_is_refused_while_it_is_held() {
        let lock = QueuedLock::new(2);
        assert!(lock.try_lock(0));
        assert!(!lock.try_lock(1));
        lock.unlock(0);
        assert!(lock.try_lock(1));
        lock.unlock(1);
        lock.lock(0);
        assert!(!lock.try_lock(1));
        lock.unlock(0);
        assert_eq!(lock.tail.load(Ordering::Relaxed), NOBODY);
    }

    #[test]
    fn waiters_are_served_in_the_order_in_which_they_came() {
        let lock = QueuedLock::new(3);
        let served = Mutex::new(Vec::new());
        lock.lock(0);
        std::thread::scope(|scope| {
            for who in 1..3 {
                let (lock, served) = (&lock, &served);
                scope.spawn(move || {
                    lock.lock(who);
                    served.lock().unwrap().push(who);
                    lock.unlock(who);
                });
                while lock.tail.load(Ordering::Relaxed) != who as u32 + 1 {
                    std::thread::yield_now();
                }
            }
            lock.unlock(0);
        });
        assert_eq!(*served.lock().unwrap(), [1, 2]);
    }

    #[test]
    #[should_panic(expected = "already")]
    #[cfg(debug_assertions)]
    fn a_number_is_for_one_caller_at_a_time() {
        let lock = QueuedLock::new(1);
        lock.lock(0);
        lock.lock(0);
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use crate::sync::{Arc, UnsafeCell};
    use loom::thread;

    type Call = fn(&QueuedLock, usize);

    fn holders_exclude_each_other(times: usize, lock: Call, unlock: Call) {
        loom::model(move || {
            let shared = Arc::new((QueuedLock::new(2), UnsafeCell::new(0)));
            let add = |who: usize, shared: Arc<(QueuedLock, UnsafeCell<usize>)>| {
                move || {
                    for _ in 0..times {
                        lock(&shared.0, who);
                        // SAFETY: the lock is held; loom checks that this is exclusive.
                        shared.1.with_mut(|n| unsafe { *n += 1 });
                        unlock(&shared.0, who);
                    }
                }
            };
            let other = thread::spawn(add(1, Arc::clone(&shared)));
            add(0, Arc::clone(&shared))();
            other.join().expect("no holder panics");
            // SAFETY: the other thread has ended.
            assert_eq!(shared.1.with(|n| unsafe { *n }), 2 * times);
        });
    }

    #[test]
    fn loom_holders_exclude_each_other() {
        holders_exclude_each_other(2, QueuedLock::lock, QueuedLock::unlock);
    }

    /// One caller tries until it succeeds, while another waits.
    #[test]
    fn loom_who_tries_excludes_who_waits() {
        let lock: Call = |lock, who| match who {
            0 => lock.lock(who),
            _ => {
                while !lock.try_lock(who) {
                    thread::yield_now();
                }
            }
        };
        holders_exclude_each_other(1, lock, QueuedLock::unlock);
    }

    /// `try_lock` without acquire: the caller does not see the value written by the last holder.
    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_planted_try_without_acquire() {
        let lock: Call = |lock, who| {
            let (node, me) = (&lock.nodes[who], who as u32 + 1);
            node.begin_use(who);
            node.next.store(NOBODY, Ordering::Relaxed);
            let swap =
                || lock.tail.compare_exchange(NOBODY, me, Ordering::Release, Ordering::Relaxed);
            while swap().is_err() {
                thread::yield_now();
            }
        };
        holders_exclude_each_other(1, lock, QueuedLock::unlock);
    }

    /// `lock` loads whether the lock is free, and then takes it with a store.
    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_planted_lock_without_a_swap() {
        let lock: Call = |lock, who| {
            if lock.tail.load(Ordering::Acquire) != NOBODY {
                return lock.lock(who);
            }
            let node = &lock.nodes[who];
            node.begin_use(who);
            node.next.store(NOBODY, Ordering::Relaxed);
            lock.tail.store(who as u32 + 1, Ordering::Release);
        };
        holders_exclude_each_other(1, lock, QueuedLock::unlock);
    }

    /// `unlock` without release: the next holder does not see the value.
    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_planted_hand_over_without_release() {
        let unlock: Call = |lock, who| {
            let node = &lock.nodes[who];
            node.end_use(who);
            let next = lock.next_of(node, who as u32 + 1);
            if next != NOBODY {
                lock.node(next).waiting.store(false, Ordering::Relaxed);
            }
        };
        holders_exclude_each_other(1, QueuedLock::lock, unlock);
    }
}

/// Loom cannot run two waiters beside a holder: it lets them yield to each other for ever.
#[cfg(all(test, shuttle))]
mod random {
    use super::*;
    use crate::sync::Arc;
    use shuttle::thread;

    #[test]
    fn shuttle_a_line_of_four() {
        let line = || {
            let shared = Arc::new((QueuedLock::new(4), AtomicBool::new(false), AtomicU32::new(0)));
            let work = |who| {
                let shared = Arc::clone(&shared);
                move || {
                    let (lock, inside, total) = &*shared;
                    for _ in 0..3 {
                        lock.lock(who);
                        assert!(!inside.swap(true, Ordering::SeqCst), "two hold it");
                        total.fetch_add(1, Ordering::SeqCst);
                        inside.store(false, Ordering::SeqCst);
                        lock.unlock(who);
                    }
                }
            };
            let threads: Vec<_> = (0..4).map(|who| thread::spawn(work(who))).collect();
            threads.into_iter().for_each(|thread| thread.join().expect("no holder panics"));
            assert_eq!(shared.2.load(Ordering::SeqCst), 12);
        };
        shuttle::check_random(line, 2000);
    }
}
