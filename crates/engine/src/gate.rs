//! How an elevator or a pump is entered: by combining, or by a lock as the kernel does it.

use crate::sync::{Kick, LockCell, LockGuard, LockKind, RunCell, RunGuard, RunState};
use blkmq_core::Instant;
use std::ops::{Deref, DerefMut};

/// Access to the elevator. An option, so that before and after run in the same binary.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Access {
    /// Whoever holds the run serves everybody; others leave their work and go on (design decision D3).
    #[default]
    Combining,
    /// A fair queued spin lock, taken for each bio's merge attempt, once per inserted plug, and once per
    /// dispatched request, as in the kernel.
    Spin,
    /// The same with a lock that parks: the honest comparison where threads outnumber cores.
    Mutex,
}

impl Access {
    /// Every choice, with the name that the command line knows it by.
    pub const ALL: [(&'static str, Self); 3] =
        [("combining", Self::Combining), ("spin", Self::Spin), ("mutex", Self::Mutex)];
}

/// A value behind one of the ways in, with a word that says whether a pass is due.
pub(crate) enum Gate<T> {
    Run(RunCell<T>),
    /// The lock has no word for kicks and timers, so one stands beside it.
    Lock(LockCell<T>, RunState),
}

/// The right to what is behind a gate, whichever way it was entered.
pub(crate) enum Entered<'a, T> {
    /// Given back by handing over: a pass is due, which somebody has to begin.
    Run(RunGuard<'a, T>),
    Lock(LockGuard<'a, T>),
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

impl<T> Gate<T> {
    /// `waiters` bounds the numbers that callers of [`lock`](Self::lock) identify themselves with.
    pub(crate) fn new(access: Access, waiters: usize, value: T) -> Self {
        let lock = |kind, value| Self::Lock(LockCell::new(kind, waiters, value), RunState::new());
        match access {
            Access::Combining => Self::Run(RunCell::new(value)),
            Access::Spin => lock(LockKind::Spin, value),
            Access::Mutex => lock(LockKind::Mutex, value),
        }
    }

    /// The combining way in.
    #[inline]
    pub(crate) fn run(&self) -> &RunCell<T> {
        match self {
            Self::Run(cell) => cell,
            Self::Lock(..) => unreachable!("a queue is driven by the access it was built with"),
        }
    }

    /// The locked way in.
    #[inline]
    pub(crate) fn lock(&self, who: usize) -> LockGuard<'_, T> {
        match self {
            Self::Lock(cell, _) => cell.enter(who),
            Self::Run(_) => unreachable!("a queue is driven by the access it was built with"),
        }
    }

    /// Either way in, for whoever changes a queue: `None` if somebody runs; waits for a lock.
    pub(crate) fn enter(&self, who: usize) -> Option<Entered<'_, T>> {
        match self {
            Self::Run(cell) => cell.try_enter().map(Entered::Run),
            Self::Lock(cell, _) => Some(Entered::Lock(cell.enter(who))),
        }
    }

    /// Asks for a pass. `Queued`: the caller sees to it that somebody begins.
    pub(crate) fn kick(&self) -> Kick {
        match self {
            Self::Run(cell) => cell.kick(),
            Self::Lock(_, due) => due.kick(),
        }
    }

    /// Asks for a pass no later than `at`.
    pub(crate) fn arm(&self, at: Instant) {
        match self {
            Self::Run(cell) => cell.arm(at),
            Self::Lock(_, due) => due.arm(at),
        };
    }

    /// Is a pass due by now?
    #[inline]
    pub(crate) fn due(&self, now: Instant) -> bool {
        match self {
            Self::Run(cell) => cell.due(now),
            Self::Lock(_, due) => due.due(now),
        }
    }

    /// When a pass is due without anybody asking again; time zero if it has been asked for.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        if self.due(Instant::ZERO) {
            return Some(Instant::ZERO);
        }
        match self {
            Self::Run(cell) => cell.deadline(),
            Self::Lock(_, due) => due.deadline(),
        }
    }

    /// For the locked ways: what was due is about to be done by the caller.
    pub(crate) fn take_due(&self) {
        if let Self::Lock(_, due) = self
            && due.try_begin()
        {
            // A kick that came in between is for this caller too.
            while !due.finish() {}
        }
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        match self {
            Self::Run(cell) => cell.get_mut(),
            Self::Lock(cell, _) => cell.get_mut(),
        }
    }
}
