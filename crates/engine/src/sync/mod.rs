//! All the protocols between the engine's threads, independent of requests.
//!
//! One mechanism per file; those of a few lines are here. Each word has a table, at the head of its file or of its type: a row per state, a column per
//! call, and in the cells the effect and the thread that acts next (*you* is the caller). The argument that each
//! ordering is enough follows. The rest of the engine has no atomics but flags and hints, and no `unsafe` outside
//! `slots.rs`.
//!
//! | file | mechanism | read-modify-writes on the hot path |
//! |---|---|---|
//! | [`run_state`] | whether a runner is active, and whether another pass is owed | begin 1, finish 1, kick 1 or 0 |
//! | [`gate`] | a value that only the runner touches; its entrance, and the requests for a pass over it | as above |
//! | [`queued_lock`] | the kernel's way, for comparison: a lock around the same value | lock 1, unlock 1 |
//! | [`dispatch_gate`], [`insert_lists`], [`delayed_work`] | proposed relief for that lock | as proposed |
//! | [`mod@ring`] | staging: one producer, one consumer | 0 |
//! | [`mod@completion_ring`] | many producers, one consumer, sized so that it cannot overflow | 1 per batch |
//! | [`bitmap`] | tags without a lock | get 1 per batch, put 1 per word |
//! | [`tag_set`], [`fair_share`] | tags with waiters, divided among users | as `bitmap` while no elevator waits |
//! | [`marks`] | which submitters have staged work | set 1, take 1 per non-empty word |
//! | | a request to be kicked when the next tag is free | mark 1, take 0 or 1 |
//! | | which submitters sleep and may be woken | 0 while none sleeps |
//! | | which thread pumps the lane of a submitter | 0 |
//! | [`meter`] | a rate that several threads share | reserve 1 |
//! | [`tokens`] | how many requests may have left the elevators, or use another resource; with waiters | take 1, put 1, none if unlimited |
//! | [`control`] | freeze, quiesce, version of the queue | 0 |
//! | [`Counter`] | statistics | 0, or 1 if shared |
//!
//! # The facade
//!
//! Only this file names `std::sync`: the same code compiles against loom, which checks memory orderings exhaustively,
//! and shuttle, which runs whole queues under random schedules.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 cargo test -p blkmq-engine --lib --release loom_
//! RUSTFLAGS="--cfg shuttle" cargo test -p blkmq-engine --lib --release shuttle_
//! ```
//!
//! The first takes a few seconds with three preemptions; use four after a change in this folder. Every model has a
//! sibling, marked `should_panic`, in which one step is replaced by a subtly wrong one; it proves that the model can
//! detect that bug. `cargo xtask orderings` weakens every ordering here and leaves out every fence and every second
//! look in turn; a model must fail, or `orderings.md` says why none does.
//!
//! Loom explores acquire, release and relaxed orderings and `SeqCst` fences, but treats a `SeqCst` load or store as
//! weaker. The protocols use neither: where a total order is needed, there is a fence.

pub(crate) mod bitmap;
pub(crate) mod completion_ring;
pub(crate) mod control;
pub(crate) mod delayed_work;
pub(crate) mod dispatch_gate;
pub(crate) mod fair_share;
pub(crate) mod gate;
pub(crate) mod insert_lists;
pub(crate) mod marks;
pub(crate) mod meter;
pub(crate) mod queued_lock;
pub(crate) mod ring;
pub(crate) mod run_state;
pub(crate) mod tag_set;
pub(crate) mod tokens;

pub(crate) use bitmap::{BitBatch, Bitmap};
pub(crate) use completion_ring::{CompletionReceiver, CompletionSender, completion_ring};
pub(crate) use control::Control;
pub(crate) use delayed_work::DelayedWork;
pub(crate) use dispatch_gate::DispatchGate;
pub(crate) use fair_share::FairShare;
pub(crate) use gate::{
    Alarm, AlarmRef, Entered, Gate, GateShape, Kept, LockGuard, Orphans, RunGuard,
};
pub(crate) use insert_lists::InsertLists;
pub(crate) use marks::{Attendance, Pending, Restart, Sleepers};
pub(crate) use queued_lock::LockKind;
pub(crate) use ring::{Consumer, Level, Mark, Producer, ring};
pub(crate) use run_state::{Kick, RunState};
pub(crate) use tag_set::{TagBatch, TagSet, TagSetShape};
pub(crate) use tokens::TokenPool;

/// Whether this build has the comparison modes. Without the feature the compiler removes their code, and their names are
/// not public: a program that does I/O links no lock and no published variant.
pub(crate) const COMPARE: bool = cfg!(feature = "compare");

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    hint::spin_loop as spin_hint,
    sync::{Arc, Mutex, MutexGuard},
    thread::yield_now,
};
#[cfg(loom)]
pub(crate) mod mutable;
#[cfg(loom)]
pub(crate) use mutable as atomic;
#[cfg(loom)]
pub(crate) use mutable::{fence_after_rmw, looks_again};

#[cfg(shuttle)]
pub(crate) use shuttle::{
    hint::spin_loop as spin_hint,
    sync::{Arc, Mutex, MutexGuard, atomic},
    thread::yield_now,
};

#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::{
    hint::spin_loop as spin_hint,
    sync::{Arc, Mutex, MutexGuard, atomic},
    thread::yield_now,
};

pub(crate) use atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

// The model checkers use the standard types as well.
pub(crate) use std::sync::{OnceLock, PoisonError, TryLockError, Weak};
// Theirs cannot be in a static.
use std::sync::atomic::AtomicU64 as StdAtomicU64;
// Loom's pointers do not support trait objects. No protocol depends on the object behind this one.
pub(crate) use std::sync::Arc as ArcDyn;

/// `std::cell::UnsafeCell` in loom's shape, so that loom sees every access begin and end.
#[cfg(not(loom))]
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    #[inline(always)]
    pub(crate) const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Calls `f` with a pointer that may be read through while no writable one exists.
    #[inline(always)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    /// Calls `f` with a pointer that may be written through while no other one exists.
    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// A full fence that directly follows an atomic read-modify-write (Linux: `smp_mb__after_atomic`).
///
/// On x86-64 every read-modify-write is `lock`-prefixed and orders everything before it against everything after it,
/// loads included, so only the compiler has to be held back. That saves a second locked instruction in each pass.
/// Elsewhere, under the model checkers, and under Miri, which runs the C++ model and not the processor's, it is the
/// fence on which the arguments in this folder rely.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn fence_after_rmw() {
    #[cfg(all(target_arch = "x86_64", not(any(shuttle, miri))))]
    atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(all(target_arch = "x86_64", not(any(shuttle, miri)))))]
    fence(Ordering::SeqCst);
}

/// Always true. Marks where a protocol looks a second time, or checks whether another claim came first, so that `cargo
/// xtask orderings` can leave that out and see whether a model fails.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) const fn looks_again() -> bool {
    true
}

/// Begins to fetch a line that is about to be read. A hint: without effect where the target has no prefetch.
#[inline(always)]
pub(crate) fn prefetch<T>(line: *const T) {
    #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
    // SAFETY: a prefetch accesses nothing, so any address is valid.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(line.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(loom, shuttle)))))]
    let _ = line;
}

/// A counter for statistics with one writer at a time, which a run, a lock or ownership ensures. Adding costs as much
/// as with a plain integer.
///
/// Relaxed throughout: a statistic orders no other access. A reader never sees one writer's values run backwards
/// (coherence).
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Two threads that add at the same time lose one of the additions.
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        let sum = self.0.load(Ordering::Relaxed).wrapping_add(n);
        self.0.store(sum, Ordering::Relaxed);
    }

    /// Raises the counter to `n` if it is lower: for a maximum.
    #[inline]
    pub(crate) fn raise(&self, n: u64) {
        if n > self.get() {
            self.0.store(n, Ordering::Relaxed);
        }
    }

    /// The sum so far.
    #[inline]
    #[must_use]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A counter that any number of threads may add to concurrently: the correct twin, for the model below.
#[cfg(test)]
#[derive(Debug, Default)]
pub(crate) struct SharedCounter(AtomicU64);

#[cfg(test)]
impl SharedCounter {
    /// Adds `n`. One read-modify-write.
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The sum so far.
    #[inline]
    #[must_use]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A count that outlives every queue, or a source of numbers that are unique in the process. A `std` atomic under the
/// model checkers too, because theirs cannot be in a static; it orders nothing.
pub(crate) struct GlobalCount(StdAtomicU64);

impl GlobalCount {
    pub(crate) const fn new(value: u64) -> Self {
        Self(StdAtomicU64::new(value))
    }

    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Returns the count so far, which no other call returns, and increments it.
    pub(crate) fn take_one(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn load(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How a spinning waiter waits: it spins on its own line. After longer than any hold should last, it yields the CPU,
/// because the thread that it waits for may need it.
pub(crate) struct Backoff(u32);

impl Backoff {
    /// Spins before the first yield; about a microsecond.
    const SPINS: u32 = 128;

    pub(crate) const fn new() -> Self {
        Self(0)
    }

    #[inline]
    pub(crate) fn wait(&mut self) {
        // Under a model checker, spinning without yielding is a schedule that never ends.
        if cfg!(any(loom, shuttle)) || self.0 >= Self::SPINS {
            yield_now();
        } else {
            self.0 += 1;
            spin_hint();
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn sums_and_maxima() {
        let (one, shared, largest) =
            (Counter::default(), SharedCounter::default(), Counter::default());
        for n in [3, 9, 4] {
            one.add(n);
            shared.add(n);
            largest.raise(n);
        }
        assert_eq!((one.get(), shared.get(), largest.get()), (16, 16, 9));
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use crate::sync::Arc;
    use loom::thread;

    #[test]
    fn loom_a_reader_never_sees_a_counter_run_backwards() {
        loom::model(|| {
            let counter = Arc::new(Counter::default());
            let writer = {
                let counter = Arc::clone(&counter);
                thread::spawn(move || (0..3).for_each(|_| counter.add(1)))
            };
            let (first, second) = (counter.get(), counter.get());
            assert!(first <= second);
            writer.join().expect("the writer does not panic");
            assert_eq!(counter.get(), 3);
        });
    }

    /// The maximum, while another thread reads it.
    fn a_maximum_never_falls(raise: fn(&Counter, u64)) {
        loom::model(move || {
            let largest = Arc::new(Counter::default());
            let writer = {
                let largest = Arc::clone(&largest);
                thread::spawn(move || [2, 1, 3].map(|n| raise(&largest, n)))
            };
            let (first, second) = (largest.get(), largest.get());
            assert!(first <= second, "a maximum has fallen");
            writer.join().expect("the writer does not panic");
            assert_eq!(largest.get(), 3);
        });
    }

    #[test]
    fn loom_a_maximum_never_falls() {
        a_maximum_never_falls(Counter::raise);
    }

    #[test]
    #[should_panic(expected = "a maximum has fallen")]
    fn loom_planted_raise_without_a_comparison() {
        a_maximum_never_falls(|largest, n| largest.0.store(n, Ordering::Relaxed));
    }

    fn nothing_is_lost<C: Default + Send + Sync + 'static>(add: fn(&C, u64), get: fn(&C) -> u64) {
        loom::model(move || {
            let counter = Arc::new(C::default());
            let other = {
                let counter = Arc::clone(&counter);
                thread::spawn(move || add(&counter, 1))
            };
            add(&counter, 1);
            other.join().expect("no writer panics");
            assert_eq!(get(&counter), 2, "an addition was lost");
        });
    }

    #[test]
    fn loom_a_shared_counter_loses_nothing() {
        nothing_is_lost(SharedCounter::add, SharedCounter::get);
    }

    #[test]
    #[should_panic(expected = "an addition was lost")]
    fn loom_planted_two_writers_of_a_single_writer_counter() {
        nothing_is_lost(Counter::add, Counter::get);
    }
}
