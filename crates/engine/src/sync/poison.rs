//! Remembers that somebody panicked while changing a value, so that nobody trusts what it left behind.

use super::{AtomicBool, Ordering};

/// | state | `note`, unwinding | `note`, as usual | `check` |
/// |---|---|---|---|
/// | clean | poisoned | clean | goes on |
/// | poisoned | poisoned | poisoned | panics |
///
/// Relaxed throughout: the word lies beside the value and is only used while holding it, so whatever orders
/// the accesses to the value orders these.
pub(crate) struct Poison(AtomicBool);

/// Was the thread unwinding already when it got hold of the value? Then it is not this value's fault.
#[derive(Clone, Copy)]
pub(crate) struct Unwinding(bool);

impl Poison {
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// To be called when the value is taken hold of; the answer goes to [`note`](Self::note).
    ///
    /// # Errors
    /// Somebody panicked while holding the value.
    #[inline]
    pub(crate) fn check(&self) -> Result<Unwinding, Poisoned> {
        if self.0.load(Ordering::Relaxed) {
            return Err(Poisoned);
        }
        Ok(Unwinding(std::thread::panicking()))
    }

    /// To be called before the value is let go of.
    #[inline]
    pub(crate) fn note(&self, before: Unwinding) {
        if !before.0 && std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// The value cannot be trusted.
#[derive(Debug)]
pub(crate) struct Poisoned;
