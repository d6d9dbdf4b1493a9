//! Gates: how a thread enters a value, an elevator or a pump, and how requests for a pass over it are kept.
//!
//! # Runs
//!
//! Only the runner touches the value; [`RunState`] says whether there is one. Entering never waits. A caller that finds
//! a runner leaves its work where the runner will find it, marks that a pass is owed, and continues. Kicks and timers go
//! to the same word.
//!
//! *Invariant: while the state of a gate without a lock is `RUNNING` or `RERUN` there is exactly one [`RunGuard`] or
//! [`Kept`], and the value is reached only through the former.* A guard comes from a successful `begin`, which does not
//! succeed a second time before the guard's `finish` or `hand_over`; both consume the guard. `finish` and `hand_over`
//! release, `begin` acquires, so successive guards see each other's changes.
//!
//! Threads that kick write the state all the time, so it has a separate cache line; the value begins another one.
//!
//! # Locks
//!
//! The kernel's way, for comparison: the value is reached under a lock, the word only keeps kicks and timers, and kicks
//! may go to a work item like the kernel's instead.
//!
//! *Invariant: a [`LockGuard`] exists only while the lock of its gate is held, the value of a gate with a lock is
//! reached only through such guards, and that of a gate without one through none.* Acquiring and releasing orders
//! successive holders, as in any lock.
//!
//! | lock | `lock(who)` | `try_lock(who)` | guard dropped |
//! |---|---|---|---|
//! | free | *you* hold | *you* hold | - |
//! | held | waits: spinning in line, or parked | refused | the next in line, or a parked caller, holds |
//!
//! # Panics
//!
//! A gate remembers that a thread panicked while it changed the value, so that no other thread trusts the value, and
//! raises an [`Alarm`], so that no thread continues to wait for it. [`Orphans`] are the tokens on the stack of that
//! thread.

use super::queued_lock::{Lock, LockKind, Release};
use super::{AtomicBool, COMPARE, DelayedWork, Kick, Ordering, RunState, UnsafeCell, fence};
use blkmq_core::Instant;
use crossbeam_utils::CachePadded;
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::ops::{Deref, DerefMut};
// `std` types under the model checkers too: theirs cannot hold a trait object or be in a static. The reference count
// orders nothing, and the mutex only a list.
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The parts from which a gate is built, besides its value.
#[derive(Clone, Default)]
pub(crate) struct GateShape {
    /// The kind of lock; `None` for a run.
    pub(crate) lock: Option<LockKind>,
    /// The work item to which kicks go; `None` for the word of the run.
    pub(crate) work: Option<fn() -> DelayedWork>,
    /// Callers of [`lock`](Gate::lock) identify themselves with numbers below this.
    pub(crate) threads: usize,
    /// Raised when a holder panics.
    pub(crate) alarm: AlarmRef,
}

/// A value with one kind of entrance, and a word that says whether a pass over it is due.
pub(crate) struct Gate<T> {
    state: CachePadded<RunState>,
    /// Protects the value in place of the run.
    lock: Option<Lock>,
    /// Takes the kicks in place of the word. The word still keeps the run and the timers.
    work: Option<DelayedWork>,
    held: CachePadded<Held<T>>,
}

struct Held<T> {
    poison: Poison,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by one guard at a time (module invariants), so sharing the gate amounts to sending the
// value from holder to holder.
unsafe impl<T: Send> Sync for Gate<T> {}

/// The run. Ends with [`finish`](Self::finish) or [`hand_over`](Self::hand_over); dropping it hands over.
#[must_use = "dropping the guard leaves a pass that a thread has to begin"]
pub(crate) struct RunGuard<'a, T> {
    gate: &'a Gate<T>,
    unwinding: Unwinding,
    /// As `&mut T`: the guard is `Sync` only if `T` is.
    _value: PhantomData<&'a mut T>,
}

/// The right to the value under a lock; dropping it releases the lock.
pub(crate) struct LockGuard<'a, T> {
    held: &'a Held<T>,
    unwinding: Unwinding,
    /// Dropped after `drop` has run, that is, after the poison has been noted.
    release: Release<'a>,
    /// As `&mut T`: the guard is `Sync` only if `T` is.
    _value: PhantomData<&'a mut T>,
}

/// The right to the value behind a gate, by either kind of entrance.
pub(crate) enum Entered<'a, T> {
    Run(RunGuard<'a, T>),
    Lock(LockGuard<'a, T>),
}

/// A right like [`Entered`], but kept for a while without borrowing the gate. Its owner returns it by
/// [`Gate::resume`].
#[must_use = "no other thread can enter until it is given back"]
pub(crate) struct Kept {
    /// The address of the gate, to identify it; never dereferenced.
    gate: usize,
    unwinding: Unwinding,
    /// The number of the holder of a lock; `None` for a run.
    who: Option<usize>,
}

impl<T> Gate<T> {
    pub(crate) fn new(shape: &GateShape, value: T) -> Self {
        let lock = shape.lock.filter(|_| COMPARE).map(|kind| Lock::new(kind, shape.threads));
        let held = Held { poison: Poison::new(shape.alarm.clone()), value: UnsafeCell::new(value) };
        Self {
            state: CachePadded::new(RunState::new()),
            lock,
            work: shape.work.map(|new| new()),
            held: CachePadded::new(held),
        }
    }

    /// A gate that is entered by a run.
    #[cfg(test)]
    pub(crate) fn of_run(value: T) -> Self {
        Self::new(&GateShape::default(), value)
    }

    /// The lock of a gate that is entered by one.
    fn by_lock(&self) -> &Lock {
        self.lock.as_ref().expect("a queue is driven by the access it was built with")
    }

    /// Must be called before the run begins.
    #[inline]
    fn must_have_no_lock(&self) {
        assert!(!self.has_lock(), "a queue is driven by the access it was built with");
    }

    /// The work item like the kernel's; `None` if kicks do not go to one.
    #[inline]
    fn work(&self) -> Option<&DelayedWork> {
        if COMPARE { self.work.as_ref() } else { None }
    }

    /// Enters by combining: takes the run, if it is free and no earlier runner panicked. Leaves no mark otherwise.
    #[inline]
    pub(crate) fn try_run(&self) -> Option<RunGuard<'_, T>> {
        self.must_have_no_lock();
        if self.state.try_begin() { self.begun() } else { None }
    }

    /// Like [`try_run`](Self::try_run), but if the run is taken, its holder owes another pass.
    #[inline]
    pub(crate) fn run_or_owe(&self) -> Option<RunGuard<'_, T>> {
        self.must_have_no_lock();
        if self.state.begin_or_owe() { self.begun() } else { None }
    }

    /// Must be called once after each successful begin of a pass.
    #[inline]
    fn begun(&self) -> Option<RunGuard<'_, T>> {
        let guard = self.guard()?;
        if let Some(work) = self.work() {
            // The pass serves the kicks so far.
            work.begin();
        }
        Some(guard)
    }

    /// Must be called once after each successful begin.
    #[inline]
    fn guard(&self) -> Option<RunGuard<'_, T>> {
        match self.held.poison.check() {
            Ok(unwinding) => Some(self.run(unwinding)),
            Err(_) => {
                self.state.hand_over();
                None
            }
        }
    }

    #[inline]
    fn run(&self, unwinding: Unwinding) -> RunGuard<'_, T> {
        RunGuard { gate: self, unwinding, _value: PhantomData }
    }

    /// Enters by the lock, waiting for it. `None` if an earlier holder panicked. `who` is the caller's number, which
    /// must not be in use twice at a time.
    ///
    /// # Panics
    /// If the number is out of range.
    #[inline]
    pub(crate) fn lock(&self, who: usize) -> Option<LockGuard<'_, T>> {
        let release = self.by_lock().lock(who);
        Some(self.locked(release, self.held.poison.check().ok()?))
    }

    /// Enters by the lock; `None` if it is taken, or if an earlier holder panicked.
    #[inline]
    pub(crate) fn try_lock(&self, who: usize) -> Option<LockGuard<'_, T>> {
        let release = self.by_lock().try_lock(who)?;
        Some(self.locked(release, self.held.poison.check().ok()?))
    }

    /// Must be called right after the lock was taken.
    #[inline]
    fn locked<'a>(&'a self, release: Release<'a>, unwinding: Unwinding) -> LockGuard<'a, T> {
        LockGuard { held: &self.held, unwinding, release, _value: PhantomData }
    }

    /// Enters by either kind, for a caller that makes no pass. Waits for a lock; `None` if a run is taken.
    pub(crate) fn enter(&self, who: usize) -> Option<Entered<'_, T>> {
        match &self.lock {
            None if self.state.try_begin() => self.guard().map(Entered::Run),
            None => None,
            Some(_) => self.lock(who).map(Entered::Lock),
        }
    }

    /// Enters by either kind, even if an earlier holder panicked or closed the gate. `None` if the gate is taken.
    pub(crate) fn seize(&self, who: usize) -> Option<Entered<'_, T>> {
        let poison = &self.held.poison;
        match &self.lock {
            None => self.state.try_begin().then(|| Entered::Run(self.run(poison.ignore()))),
            Some(lock) => Some(Entered::Lock(self.locked(lock.try_lock(who)?, poison.ignore()))),
        }
    }

    /// Keeps the right without the borrow; the gate must not move until the right is [resumed](Self::resume). A lock
    /// that parks its waiters cannot be kept: then this releases it and returns `None`.
    pub(crate) fn keep(&self, entered: Entered<'_, T>) -> Option<Kept> {
        let (held, unwinding, who) = match &entered {
            Entered::Run(guard) => (&*guard.gate.held, guard.unwinding, None),
            Entered::Lock(guard) => (guard.held, guard.unwinding, Some(guard.release.who()?)),
        };
        assert!(std::ptr::eq(held, &raw const *self.held), "a guard of another gate");
        std::mem::forget(entered);
        Some(Kept { gate: self.name(), unwinding, who })
    }

    /// Turns a kept right into a guard again.
    ///
    /// # Panics
    /// If it is the right to another gate.
    #[allow(clippy::needless_pass_by_value, reason = "the kept right is given up")]
    pub(crate) fn resume(&self, kept: Kept) -> Entered<'_, T> {
        let Kept { gate, unwinding, who } = kept;
        assert!(gate == self.name(), "a right to another gate");
        // There is no guard now: `keep` consumed the guard, and this call consumes what `keep` returned.
        match who {
            None => Entered::Run(self.run(unwinding)),
            Some(who) => Entered::Lock(self.locked(self.by_lock().release(who), unwinding)),
        }
    }

    fn name(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Requests a pass. After `Queued` the caller must make sure that a thread begins it.
    pub(crate) fn kick(&self) -> Kick {
        match self.work() {
            Some(work) => work.run_now(),
            None => self.state.kick(),
        }
    }

    /// Marks a pass as due that the caller is about to begin, or that the runner makes. If the caller loses its CPU
    /// before, another thread begins it. A work item like the kernel's has no such mark, because it would count as a
    /// kick there; nor has a lock, which the caller waits for.
    pub(crate) fn owe(&self) {
        if self.work().is_none() && !self.has_lock() {
            let _ = self.state.kick();
        }
    }

    #[inline]
    fn has_lock(&self) -> bool {
        COMPARE && self.lock.is_some()
    }

    /// Requests a pass no later than `at`.
    pub(crate) fn arm(&self, at: Instant) {
        self.state.arm(at);
    }

    /// Requests a pass at `at`, as the kernel requests a delayed run of a hardware queue. With a work item like the
    /// kernel's, this postpones a pass that is due earlier.
    pub(crate) fn run_later(&self, at: Instant) {
        match self.work() {
            Some(work) => work.run_later(at),
            None => self.arm(at),
        }
    }

    /// Returns whether a pass is due by `now`.
    #[inline]
    pub(crate) fn due(&self, now: Instant) -> bool {
        match self.work() {
            None => self.state.due(now),
            Some(work) => self.due_with(work, now),
        }
    }

    #[inline(never)]
    fn due_with(&self, work: &DelayedWork, now: Instant) -> bool {
        // A runner checks this after it has finished, and a thread that finds a runner active checks it after its kick.
        // With a fence in between on both sides, one of the two sees the other.
        fence(Ordering::SeqCst);
        self.state.due(now) || work.due(now) && !self.is_running()
    }

    /// Returns whether there is a runner. A hint.
    #[inline]
    pub(crate) fn is_running(&self) -> bool {
        // A thread that finds a lock taken waits for it.
        !self.has_lock() && self.state.is_running()
    }

    /// Makes an active runner owe another pass if a timer has expired; that pass serves the timer. A thread that is
    /// about to sleep calls this, because its wake-up time would otherwise be in the past as long as the runner is
    /// active.
    pub(crate) fn owe_expired(&self, now: Instant) {
        if self.is_running() && self.state.deadline().is_some_and(|at| at <= now) {
            // If the runner has finished in the meantime, the pass is due and the caller does not sleep.
            let _ = self.state.kick();
        }
    }

    /// Returns whether a pass was postponed after a thread had been woken for it. True only with a work item like the
    /// kernel's.
    pub(crate) fn is_put_off(&self, now: Instant) -> bool {
        self.work().is_some() && !self.due(now)
    }

    /// The time at which a pass is due without a further kick; zero if one was requested. `None` if no pass is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        if self.due(Instant::ZERO) {
            return Some(Instant::ZERO);
        }
        // An active runner serves the remaining work.
        let work = self.work().filter(|_| !self.is_running()).and_then(DelayedWork::deadline);
        self.state.deadline().into_iter().chain(work).min()
    }

    /// For gates with a lock: clears the kicks and timers that are due, which the caller is about to serve.
    pub(crate) fn take_due(&self) {
        if self.has_lock() && self.state.try_begin() {
            // The caller also serves a kick that came in the meantime.
            while !self.state.finish() {}
        }
        if let Some(work) = self.work() {
            work.begin();
        }
    }

    /// The value, without entering: `&mut self` shows that no thread is inside.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        // SAFETY: `&mut self` excludes guards, which borrow the gate.
        self.held.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> RunGuard<'_, T> {
    /// Ends the pass. `None` if that is all; otherwise another pass is owed and has begun.
    #[inline]
    #[must_use = "if another pass is owed, it has to take place"]
    pub(crate) fn finish(self) -> Option<Self> {
        if self.gate.state.finish() {
            // The state is no longer ours to hand over.
            std::mem::forget(self);
            return None;
        }
        Some(self)
    }

    /// Leaves although more work may be pending: a pass is then due, and the caller must make sure that a thread begins
    /// it.
    #[inline]
    pub(crate) fn hand_over(self) {
        drop(self);
    }
}

impl<T> Drop for RunGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let poisoned = self.gate.held.poison.note(self.unwinding);
        self.gate.state.hand_over();
        if poisoned {
            self.gate.held.poison.raise();
        }
    }
}

impl<T> Deref for RunGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the only guard (module invariant), and it is borrowed, so no `&mut` exists.
        self.gate.held.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for RunGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the only guard (module invariant), and it is borrowed mutably.
        self.gate.held.value.with_mut(|value| unsafe { &mut *value })
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

impl<T> Entered<'_, T> {
    fn poison(&self) -> &Poison {
        match self {
            Self::Run(guard) => &guard.gate.held.poison,
            Self::Lock(guard) => &guard.held.poison,
        }
    }

    /// Returns whether an earlier holder has panicked or closed the gate. True is possible only if the gate was
    /// [seized](Gate::seize).
    pub(crate) fn is_poisoned(&self) -> bool {
        self.poison().is_poisoned()
    }

    /// Closes the gate. Afterwards it can only be [seized](Gate::seize).
    pub(crate) fn close(&self) {
        self.poison().close();
    }

    /// Releases the right without work left. Hands over a pass that became owed in the meantime.
    pub(crate) fn finish(self) {
        if let Self::Run(guard) = self
            && let Some(owed) = guard.finish()
        {
            owed.hand_over();
        }
    }
}

impl<T> Deref for Entered<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        match self {
            Self::Run(guard) => guard,
            Self::Lock(guard) => guard,
        }
    }
}

impl<T> DerefMut for Entered<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match self {
            Self::Run(guard) => guard,
            Self::Lock(guard) => guard,
        }
    }
}

/// A shared alarm; `None` for a value without one.
pub(crate) type AlarmRef = Option<Arc<dyn Alarm>>;

/// The reaction to a poisoned value.
pub(crate) trait Alarm: Send + Sync {
    /// Called when the value has been released, or is about to be, on a thread that unwinds. Must not panic.
    fn raise(&self);
}

/// | state | `note`, unwinding | `note`, as usual | `check` |
/// |---|---|---|---|
/// | clean | poisoned, true: *you* raise the alarm | clean | continues |
/// | poisoned | poisoned | poisoned | refuses |
///
/// Relaxed throughout: the word lies beside the value and is only used by the holder of the value, so the path that
/// orders accesses to the value also orders these.
pub(crate) struct Poison {
    here: AtomicBool,
    alarm: AlarmRef,
}

/// Whether the thread was already unwinding when it took the value. If true, this value is not the cause.
#[derive(Clone, Copy)]
pub(crate) struct Unwinding(bool);

impl Poison {
    pub(crate) fn new(alarm: AlarmRef) -> Self {
        Self { here: AtomicBool::new(false), alarm }
    }

    /// Must be called when the value is taken; the result goes to [`note`](Self::note).
    ///
    /// # Errors
    /// If a thread panicked while it held the value.
    #[inline]
    pub(crate) fn check(&self) -> Result<Unwinding, Poisoned> {
        if self.here.load(Ordering::Relaxed) {
            return Err(Poisoned);
        }
        Ok(self.ignore())
    }

    /// Like [`check`](Self::check), for a thread that takes the value whatever its state.
    #[inline]
    pub(crate) fn ignore(&self) -> Unwinding {
        Unwinding(std::thread::panicking())
    }

    /// Returns whether the value is poisoned. For its holder.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.here.load(Ordering::Relaxed)
    }

    /// Must be called before the value is released. Returns whether the caller has to [`raise`](Self::raise) the alarm.
    #[inline]
    #[must_use = "if it says true, no other thread raises the alarm"]
    pub(crate) fn note(&self, before: Unwinding) -> bool {
        let panics = !before.0 && std::thread::panicking();
        if panics {
            self.here.store(true, Ordering::Relaxed);
        }
        panics
    }

    /// Keeps every other thread out, without an alarm. For the holder of the value.
    pub(crate) fn close(&self) {
        self.here.store(true, Ordering::Relaxed);
    }

    /// Raises the alarm. Best after the value has been released.
    #[cold]
    pub(crate) fn raise(&self) {
        if let Some(alarm) = &self.alarm {
            alarm.raise();
        }
    }
}

/// The value cannot be trusted.
#[derive(Debug)]
pub(crate) struct Poisoned;

/// Tokens that were dropped instead of being consumed: pairs of a table's number and an index.
///
/// Not on the path of an I/O: a stack that unwinds leaves tokens here, and so does a device that drops one. A queue
/// takes its own when it has failed, and when it ends. Entries of dropped tables remain, a few bytes each.
pub(crate) struct Orphans(Mutex<Vec<(NonZeroU32, u32)>>);

impl Orphans {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    fn list(&self) -> MutexGuard<'_, Vec<(NonZeroU32, u32)>> {
        // A push or a removal cannot panic: running out of memory ends the process.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn leave(&self, table: NonZeroU32, index: u32) {
        self.list().push((table, index));
    }

    /// Takes out all indices of `table`.
    pub(crate) fn take(&self, table: NonZeroU32) -> Vec<u32> {
        let mut list = self.list();
        let mut taken = Vec::new();
        list.retain(|(of, index)| {
            let mine = *of == table;
            if mine {
                taken.push(*index);
            }
            !mine
        });
        taken
    }
}

/// A gate that is entered by a lock, for callers numbered `0..waiters`.
#[cfg(all(test, not(shuttle)))]
fn of_lock<T>(kind: LockKind, waiters: usize, value: T) -> Gate<T> {
    let shape = GateShape { lock: Some(kind), threads: waiters, ..GateShape::default() };
    Gate { lock: Some(Lock::new(kind, waiters)), ..Gate::new(&shape, value) }
}

#[cfg(all(test, not(shuttle)))]
fn waiting<T>(gate: &Gate<T>, who: usize) -> LockGuard<'_, T> {
    gate.lock(who).expect("no holder has panicked")
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::sync::Arc;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn the_state_and_the_value_are_on_different_lines() {
        let gate = Gate::of_run(0u64);
        let state = std::ptr::from_ref(&*gate.state).addr();
        let value = gate.held.value.with(<*const u64>::addr);
        assert!(state.abs_diff(value) >= 64);
    }

    #[test]
    fn one_runner_at_a_time_and_the_other_is_owed_a_pass() {
        let mut gate = Gate::of_run(0);
        let mut run = gate.try_run().expect("no thread runs");
        assert!(gate.try_run().is_none());
        *run += 1;
        assert!(run.finish().is_none(), "try_enter leaves no mark");

        let run = gate.run_or_owe().expect("no thread runs");
        assert!(gate.run_or_owe().is_none());
        let mut run = run.finish().expect("another pass is owed");
        *run += 1;
        assert!(run.finish().is_none());
        assert!(!gate.is_running());
        assert_eq!(*gate.get_mut(), 2);
    }

    #[test]
    fn handing_over_and_dropping_leave_a_pass_that_is_due() {
        let gate = Gate::of_run(());
        gate.try_run().expect("no thread runs").hand_over();
        assert!(gate.due(Instant::ZERO));
        assert_eq!(gate.kick(), Kick::Coalesced);
        drop(gate.try_run().expect("no thread runs"));
        assert!(gate.due(Instant::ZERO));
        assert!(gate.try_run().expect("no thread runs").finish().is_none());
        assert!(!gate.due(Instant::MAX));
        assert!(gate.state.arm(Instant::from_nanos(5)));
        assert_eq!(gate.deadline(), Some(Instant::from_nanos(5)));
    }

    #[test]
    fn after_a_panic_in_a_pass_the_alarm_is_raised_and_the_run_can_only_be_seized() {
        struct Raised(crate::sync::AtomicU32);
        impl Alarm for Raised {
            fn raise(&self) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let raised = Arc::new(Raised(crate::sync::AtomicU32::new(0)));
        let gate = Gate::new(&GateShape { alarm: Some(raised.clone()), ..GateShape::default() }, 0);
        let pass = catch_unwind(AssertUnwindSafe(|| {
            let mut run = gate.try_run().expect("the run is free");
            *run = 1;
            panic!("in the middle of it");
        }));
        assert!(pass.is_err());
        for _ in 0..2 {
            assert!(gate.run_or_owe().is_none() && gate.try_run().is_none());
            let run = gate.seize(0).expect("the run is free");
            assert!(run.is_poisoned() && *run == 1);
        }
        assert_eq!(raised.0.load(Ordering::Relaxed), 1);
    }

    /// Real threads, more than CPUs: no staged work is lost, and no two passes overlap.
    #[test]
    fn threads_combine_without_losing_anything() {
        const THREADS: u64 = 4;
        const EACH: u64 = if cfg!(miri) { 8 } else { 20_000 };
        let gate = Arc::new(Gate::of_run(0u64));
        let staged: Arc<Vec<_>> =
            Arc::new((0..THREADS).map(|_| crate::sync::AtomicU64::new(0)).collect());
        let threads: Vec<_> = (0..THREADS as usize)
            .map(|who| {
                let (gate, staged) = (Arc::clone(&gate), Arc::clone(&staged));
                std::thread::spawn(move || {
                    for _ in 0..EACH {
                        staged[who].fetch_add(1, Ordering::Relaxed);
                        let mut run = gate.run_or_owe();
                        while let Some(mut pass) = run {
                            for inbox in &*staged {
                                *pass += inbox.swap(0, Ordering::Relaxed);
                            }
                            run = pass.finish();
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no thread panics"));
        let mut gate = Arc::into_inner(gate).expect("all threads are gone");
        assert_eq!(*gate.get_mut(), THREADS * EACH);
    }

    const KINDS: [LockKind; 2] = [LockKind::Spin, LockKind::Mutex];

    #[test]
    fn threads_add_up_under_either_kind() {
        const THREADS: usize = 4;
        const EACH: usize = if cfg!(miri) { 5 } else { 5_000 };
        for kind in KINDS {
            let mut gate = of_lock(kind, THREADS, 0);
            std::thread::scope(|scope| {
                for who in 0..THREADS {
                    let gate = &gate;
                    scope.spawn(move || (0..EACH).for_each(|_| *waiting(gate, who) += 1));
                }
            });
            assert_eq!(*gate.get_mut(), THREADS * EACH);
        }
    }

    #[test]
    fn who_only_tries_is_refused_under_either_kind() {
        for kind in KINDS {
            let gate = of_lock(kind, 2, 7);
            let held = waiting(&gate, 0);
            assert!(gate.try_lock(1).is_none());
            drop(held);
            assert_eq!(gate.try_lock(1).map(|guard| *guard), Some(7));
        }
    }

    #[test]
    fn a_lock_that_is_kept_stays_held() {
        let gate = of_lock(LockKind::Spin, 2, 0);
        let mut held = waiting(&gate, 0);
        *held += 1;
        let kept = gate.keep(Entered::Lock(held)).expect("it spins");
        assert!(gate.try_lock(1).is_none());
        let mut held = gate.resume(kept);
        *held += 1;
        drop(held);
        assert_eq!(*waiting(&gate, 1), 2);
        let parked = of_lock(LockKind::Mutex, 1, 0);
        assert!(parked.keep(Entered::Lock(waiting(&parked, 0))).is_none());
        assert!(parked.try_lock(0).is_some(), "and it was let go of");
    }

    #[test]
    #[should_panic(expected = "a right to another gate")]
    fn a_kept_lock_opens_no_other_cell() {
        let (one, other) = (of_lock(LockKind::Spin, 1, 0), of_lock(LockKind::Spin, 1, 0));
        let kept = one.keep(Entered::Lock(waiting(&one, 0))).expect("it spins");
        drop(other.resume(kept));
    }

    #[test]
    fn after_a_panic_under_the_lock_it_can_only_be_seized() {
        for kind in KINDS {
            let gate = of_lock(kind, 1, 0);
            let hold = || {
                let mut guard = waiting(&gate, 0);
                *guard = 1;
                panic!("in the middle of it");
            };
            assert!(catch_unwind(AssertUnwindSafe(hold)).is_err());
            for _ in 0..2 {
                assert!(gate.lock(0).is_none() && gate.try_lock(0).is_none());
                let seized = gate.seize(0).expect("the lock is free");
                assert!(seized.is_poisoned() && *seized == 1);
            }
        }
    }
}

/// No two threads touch the value at the same time, and every runner sees the writes of the last one: loom watches the
/// `UnsafeCell`.
#[cfg(all(test, loom))]
mod model {
    use super::super::{Arc, AtomicU32, Ordering};
    use super::*;
    use crate::sync::queued_lock::QueuedLock;
    use loom::thread;

    type Shared = (Gate<u32>, AtomicU32);

    fn submit(shared: &Shared, enter: fn(&Gate<u32>) -> Option<RunGuard<'_, u32>>) {
        let (gate, staged) = shared;
        staged.fetch_add(1, Ordering::Relaxed);
        let mut run = enter(gate);
        while let Some(mut pass) = run {
            *pass += staged.swap(0, Ordering::Relaxed);
            run = pass.finish();
        }
    }

    fn runs_do_not_overlap(enter: fn(&Gate<u32>) -> Option<RunGuard<'_, u32>>) {
        loom::model(move || {
            let shared = Arc::new((Gate::of_run(0), AtomicU32::new(0)));
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || submit(&shared, enter))
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().expect("no submitter panics"));
            assert_eq!(*shared.0.try_run().expect("no thread runs"), 2, "work was left behind");
        });
    }

    #[test]
    fn loom_runs_do_not_overlap() {
        runs_do_not_overlap(Gate::run_or_owe);
    }

    #[test]
    #[should_panic(expected = "left behind")]
    fn loom_planted_refusal_without_a_mark() {
        runs_do_not_overlap(Gate::try_run);
    }

    /// Checks first and begins afterwards.
    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_planted_entry_without_a_compare() {
        runs_do_not_overlap(|gate| {
            if gate.is_running() {
                return gate.run_or_owe();
            }
            let _ = gate.state.begin_or_owe();
            gate.guard()
        });
    }

    /// The writes of a run that was handed over are seen by the next runner.
    #[test]
    fn loom_a_hand_over_publishes_the_value() {
        loom::model(|| {
            let gate = Arc::new(Gate::of_run(0));
            let first = {
                let gate = Arc::clone(&gate);
                thread::spawn(move || {
                    let mut run = gate.try_run().expect("the other waits for this one");
                    *run = 7;
                    run.hand_over();
                })
            };
            while !gate.due(Instant::ZERO) {
                thread::yield_now();
            }
            let run = gate.try_run().expect("it was handed over");
            assert_eq!(*run, 7);
            assert!(run.finish().is_none());
            first.join().expect("the first runner does not panic");
        });
    }

    type Due = fn(&Gate<()>, &DelayedWork) -> bool;

    /// A kick goes to the work item while the runner finishes: one of the two threads finds the pass due.
    fn a_kick_is_noticed(due: Due) {
        loom::model(move || {
            let gate = Arc::new((Gate::of_run(()), DelayedWork::always()));
            let run = gate.0.try_run().expect("no thread runs");
            let kicker = {
                let gate = Arc::clone(&gate);
                thread::spawn(move || {
                    let _ = gate.1.run_now();
                    due(&gate.0, &gate.1)
                })
            };
            assert!(run.finish().is_none());
            let is_seen = due(&gate.0, &gate.1);
            let is_left = kicker.join().expect("the kicker does not panic");
            assert!(is_seen || is_left, "a pass is due and no thread knows");
        });
    }

    #[test]
    fn loom_a_kick_of_a_work_item_is_noticed() {
        a_kick_is_noticed(|gate, work| gate.due_with(work, Instant::ZERO));
    }

    #[test]
    #[should_panic(expected = "no thread knows")]
    fn loom_planted_look_at_a_work_item_without_a_fence() {
        a_kick_is_noticed(|gate, work| {
            let now = Instant::ZERO;
            gate.state.due(now) || work.due(now) && !gate.is_running()
        });
    }

    fn holders_exclude_each_other(
        kind: LockKind,
        enter: fn(&Gate<u32>, usize) -> LockGuard<'_, u32>,
    ) {
        loom::model(move || {
            let gate = Arc::new(of_lock(kind, 2, 0));
            let other = {
                let gate = Arc::clone(&gate);
                thread::spawn(move || *enter(&gate, 1) += 1)
            };
            *enter(&gate, 0) += 1;
            other.join().expect("no holder panics");
            assert_eq!(*waiting(&gate, 0), 2);
        });
    }

    #[test]
    fn loom_holders_exclude_each_other() {
        holders_exclude_each_other(LockKind::Spin, waiting);
        holders_exclude_each_other(LockKind::Mutex, waiting);
    }

    #[test]
    fn loom_who_tries_excludes_who_waits() {
        fn enter(gate: &Gate<u32>, who: usize) -> LockGuard<'_, u32> {
            if who == 0 {
                return waiting(gate, who);
            }
            loop {
                match gate.try_lock(who) {
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
        holders_exclude_each_other(LockKind::Spin, |gate, _| {
            let own = Box::leak(Box::new(QueuedLock::new(1)));
            own.lock(0);
            LockGuard {
                held: &gate.held,
                unwinding: gate.held.poison.check().expect("no thread panics"),
                release: Release::Spin(own, 0),
                _value: PhantomData,
            }
        });
    }
}
