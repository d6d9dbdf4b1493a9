//! How an elevator or a pump is entered: by combining, or by a lock as the kernel does it; and what becomes of kicks.

use crate::modes::{Access, EffectiveModes, KickMode};
use crate::sync::{
    AlarmRef, DelayedWork, Detached, DetachedLock, Kick, LockCell, LockGuard, LockKind, Ordering,
    RunCell, RunGuard, RunState, fence,
};
use blkmq_core::Instant;
use std::ops::{Deref, DerefMut};

/// A value behind one of the ways in, with a word that says whether a pass is due.
pub(crate) enum Gate<T> {
    Run(RunCell<T>),
    /// Kicks go to the kernel's kind of work, and the word of the run keeps who runs, and timers.
    RunWork(RunCell<T>, DelayedWork),
    /// The lock has no word for kicks and timers, so one stands beside it.
    Lock(LockCell<T>, RunState),
    /// The same with the kernel's kind of work.
    LockWork(LockCell<T>, RunState, DelayedWork),
}

/// The right to what is behind a gate, whichever way it was entered.
pub(crate) enum Entered<'a, T> {
    /// Given back by handing over: a pass is due, which somebody has to begin.
    Run(RunGuard<'a, T>),
    Lock(LockGuard<'a, T>),
}

/// The same, kept for a while without borrowing the gate.
pub(crate) enum Kept {
    Run(Detached),
    Lock(DetachedLock),
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

impl<T> Entered<'_, T> {
    /// Has an earlier holder panicked, or closed it?
    pub(crate) fn is_poisoned(&self) -> bool {
        match self {
            Self::Run(guard) => guard.is_poisoned(),
            Self::Lock(guard) => guard.is_poisoned(),
        }
    }

    /// From now on it can only be [seized](Gate::seize).
    pub(crate) fn close(&self) {
        match self {
            Self::Run(guard) => guard.close(),
            Self::Lock(guard) => guard.close(),
        }
    }

    /// Lets go; nothing is left to do. If a pass is owed meanwhile, it is handed over.
    pub(crate) fn finish(self) {
        if let Self::Run(guard) = self
            && let Some(owed) = guard.finish()
        {
            owed.hand_over();
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
    /// `alarm` is raised when a holder panics.
    pub(crate) fn new(modes: EffectiveModes, waiters: usize, value: T, alarm: AlarmRef) -> Self {
        let work = match modes.kick {
            KickMode::Coalesced => None,
            KickMode::Always => Some(DelayedWork::always()),
            KickMode::Flag => Some(DelayedWork::with_flag()),
        };
        let kind = match modes.access {
            Access::Combining => None,
            Access::Spin | Access::Serialised => Some(LockKind::Spin),
            Access::Mutex => Some(LockKind::Mutex),
        };
        match (kind, work) {
            (None, None) => Self::Run(RunCell::with_alarm(value, alarm)),
            (None, Some(work)) => Self::RunWork(RunCell::with_alarm(value, alarm), work),
            (Some(kind), None) => {
                Self::Lock(LockCell::with_alarm(kind, waiters, value, alarm), RunState::new())
            }
            (Some(kind), Some(work)) => {
                let cell = LockCell::with_alarm(kind, waiters, value, alarm);
                Self::LockWork(cell, RunState::new(), work)
            }
        }
    }

    /// The combining way in: the run, if nobody has it.
    #[inline]
    pub(crate) fn try_run(&self) -> Option<RunGuard<'_, T>> {
        match self {
            Self::Run(cell) => cell.try_enter(),
            _ => self.begun(RunCell::try_enter),
        }
    }

    /// The same; whoever has the run owes another pass.
    #[inline]
    pub(crate) fn run_or_owe(&self) -> Option<RunGuard<'_, T>> {
        match self {
            Self::Run(cell) => cell.enter_or_owe(),
            _ => self.begun(RunCell::enter_or_owe),
        }
    }

    /// A pass that begins is what kicks were for.
    #[cold]
    fn begun<'a>(
        &'a self,
        enter: impl FnOnce(&'a RunCell<T>) -> Option<RunGuard<'a, T>>,
    ) -> Option<RunGuard<'a, T>> {
        let Self::RunWork(cell, work) = self else {
            unreachable!("a queue is driven by the access it was built with")
        };
        let guard = enter(cell)?;
        work.begin();
        Some(guard)
    }

    fn cell(&self) -> &LockCell<T> {
        match self {
            Self::Lock(cell, _) | Self::LockWork(cell, ..) => cell,
            Self::Run(_) | Self::RunWork(..) => {
                unreachable!("a queue is driven by the access it was built with")
            }
        }
    }

    /// The locked way in. `None` if an earlier holder panicked.
    #[inline]
    pub(crate) fn lock(&self, who: usize) -> Option<LockGuard<'_, T>> {
        self.cell().enter(who)
    }

    /// The same, unless the lock is taken.
    #[inline]
    pub(crate) fn try_lock(&self, who: usize) -> Option<LockGuard<'_, T>> {
        self.cell().try_enter(who)
    }

    /// Either way in, for whoever does no pass: `None` if somebody runs; waits for a lock.
    pub(crate) fn enter(&self, who: usize) -> Option<Entered<'_, T>> {
        match self {
            Self::Run(cell) | Self::RunWork(cell, _) => cell.try_enter().map(Entered::Run),
            Self::Lock(cell, _) | Self::LockWork(cell, ..) => cell.enter(who).map(Entered::Lock),
        }
    }

    /// Either way in, whatever an earlier holder left behind: `None` if it is taken.
    pub(crate) fn seize(&self, who: usize) -> Option<Entered<'_, T>> {
        match self {
            Self::Run(cell) | Self::RunWork(cell, _) => cell.seize().map(Entered::Run),
            Self::Lock(cell, _) | Self::LockWork(cell, ..) => cell.seize(who).map(Entered::Lock),
        }
    }

    /// Keeps what was entered, if it can be kept; if not, it is let go of.
    pub(crate) fn keep(&self, entered: Entered<'_, T>) -> Option<Kept> {
        match entered {
            Entered::Run(guard) => Some(Kept::Run(guard.detach())),
            Entered::Lock(guard) => self.cell().detach(guard).map(Kept::Lock),
        }
    }

    /// What was kept, again.
    pub(crate) fn resume(&self, kept: Kept) -> Entered<'_, T> {
        match (self, kept) {
            (Self::Run(cell) | Self::RunWork(cell, _), Kept::Run(run)) => {
                Entered::Run(cell.attach(run))
            }
            (_, Kept::Lock(lock)) => Entered::Lock(self.cell().attach(lock)),
            _ => unreachable!("what is kept was entered here"),
        }
    }

    fn state(&self) -> Option<&RunState> {
        match self {
            Self::Run(_) | Self::RunWork(..) => None,
            Self::Lock(_, state) | Self::LockWork(_, state, _) => Some(state),
        }
    }

    /// The kernel's kind of work, if that is what kicks go to.
    #[inline]
    fn work(&self) -> Option<&DelayedWork> {
        match self {
            Self::Run(_) | Self::Lock(..) => None,
            Self::RunWork(_, work) | Self::LockWork(.., work) => Some(work),
        }
    }

    /// Asks for a pass. `Queued`: the caller sees to it that somebody begins.
    pub(crate) fn kick(&self) -> Kick {
        match self {
            Self::Run(cell) => cell.kick(),
            Self::Lock(_, due) => due.kick(),
            Self::RunWork(_, work) | Self::LockWork(.., work) => work.run_now(),
        }
    }

    /// Asks for a pass no later than `at`.
    pub(crate) fn arm(&self, at: Instant) {
        match self {
            Self::Run(cell) | Self::RunWork(cell, _) => cell.arm(at),
            Self::Lock(_, due) | Self::LockWork(_, due, _) => due.arm(at),
        };
    }

    /// Asks for a pass at `at`, as the kernel asks for a delayed run of a hardware queue: where kicks are the kernel's,
    /// that puts off one that is due earlier.
    pub(crate) fn run_later(&self, at: Instant) {
        match self.work() {
            Some(work) => work.run_later(at),
            None => self.arm(at),
        }
    }

    /// Is a pass due by now?
    #[inline]
    pub(crate) fn due(&self, now: Instant) -> bool {
        match self {
            Self::Run(cell) => cell.due(now),
            _ => self.due_otherwise(now),
        }
    }

    #[inline(never)]
    fn due_otherwise(&self, now: Instant) -> bool {
        match self {
            Self::Run(cell) => cell.due(now),
            Self::Lock(_, due) => due.due(now),
            Self::RunWork(cell, work) => {
                // Who runs looks at this when it has finished, and whoever finds it running looks after it has kicked:
                // with a fence in between on both sides, one of them sees the other.
                fence(Ordering::SeqCst);
                cell.due(now) || work.due(now) && !cell.is_running()
            }
            Self::LockWork(_, due, work) => due.due(now) || work.due(now),
        }
    }

    /// Makes an active runner owe another pass if a timer has expired: that pass serves the timer. For a thread that is
    /// about to sleep, and would be told a time in the past for as long as the runner takes.
    pub(crate) fn owe_expired(&self, now: Instant) {
        let (Self::Run(cell) | Self::RunWork(cell, _)) = self else { return };
        if cell.is_running() && cell.deadline().is_some_and(|at| at <= now) {
            // If the runner has finished in the meantime, the pass is due and the caller does not sleep.
            let _ = cell.kick();
        }
    }

    /// Was somebody called for a pass that has been put off since? Only where kicks are the kernel's.
    pub(crate) fn is_put_off(&self, now: Instant) -> bool {
        self.work().is_some() && !self.due(now)
    }

    /// When a pass is due without anybody asking again; time zero if it has been asked for.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        if self.due(Instant::ZERO) {
            return Some(Instant::ZERO);
        }
        let (timer, work) = match self {
            Self::Run(cell) => (cell.deadline(), None),
            // Who runs sees to the work that is left.
            Self::RunWork(cell, _) if cell.is_running() => (cell.deadline(), None),
            Self::RunWork(cell, work) => (cell.deadline(), work.deadline()),
            Self::Lock(_, due) => (due.deadline(), None),
            Self::LockWork(_, due, work) => (due.deadline(), work.deadline()),
        };
        timer.into_iter().chain(work).min()
    }

    /// For the locked ways: what was due is about to be done by the caller.
    pub(crate) fn take_due(&self) {
        if let Some(due) = self.state()
            && due.try_begin()
        {
            // A kick that came in between is for this caller too.
            while !due.finish() {}
        }
        if let Some(work) = self.work() {
            work.begin();
        }
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        match self {
            Self::Run(cell) | Self::RunWork(cell, _) => cell.get_mut(),
            Self::Lock(cell, _) | Self::LockWork(cell, ..) => cell.get_mut(),
        }
    }
}
