//! Remembers that a thread panicked while it changed a value, so that no other thread trusts the value; and raises an
//! alarm, so that no thread continues to wait for it. [`Orphans`] are the tokens on the stack of that thread.

use super::{AtomicBool, Ordering};
use std::num::NonZeroU32;
// `std` types under the model checkers too: theirs cannot hold a trait object or be in a static. The reference count
// orders nothing, and the mutex only a list.
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
