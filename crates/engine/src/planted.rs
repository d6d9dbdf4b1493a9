//! Bugs that the models in `shuttle_tests` plant, to prove that they would be found. Everywhere else
//! [`is`] is the constant `false`, and the steps that ask it are what they were.

/// A step left out or done wrongly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Planted {
    /// Something becomes due and nobody looks whom to wake for it.
    ForgetsParked,
    /// A budget comes back and the elevators that wait for one are not told.
    ForgetsBudgetWaiters,
    /// A token comes back and the elevators that wait for one are not told.
    ForgetsTokenWaiters,
    /// An elevator goes away without asking to be told of what comes back.
    ForgetsRestart,
    /// A run ends although another pass is owed.
    LosesOwedPass,
    /// A queue that is rebuilt does not look at what was staged before.
    ForgetsStaged,
    /// A submitter stages something and does not look whether that is still the queue.
    ForgetsVersion,
    /// A submitter goes away and does not hand on what it alone would have come back for.
    ForgetsToHandOn,
    /// A flush under way serves also those who begin to wait for one.
    ServesLateComers,
    /// A pump hands something back and calls nobody for it.
    ForgetsHandedBack,
    /// A request that its device gave up is still taken to be there.
    KeepsExpired,
    /// Nobody is told when to come back for what the device may lose.
    ForgetsTimer,
    /// An I/O is given up for a submitter that sleeps, and nobody wakes it.
    CancelsInSilence,
    /// An ask is for whoever has the cookie when it is answered.
    ForgetsMarks,
    /// A request is given up, and the policy is not told.
    ForgetsToWithdraw,
    /// Requests that were parked while the lock was taken are not taken over.
    ForgetsParkedRequests,
    /// Somebody is sent away by a dispatcher who does not come again for it.
    ForgetsSentAway,
}

/// Is this bug planted?
#[cfg(not(all(test, shuttle)))]
#[inline(always)]
pub(crate) const fn is(_: Planted) -> bool {
    false
}

#[cfg(all(test, shuttle))]
pub(crate) use models::{is, plant};

#[cfg(all(test, shuttle))]
mod models {
    use super::Planted;
    use std::cell::Cell;

    thread_local! {
        // All threads of a model are coroutines on the thread of its test.
        static PLANTED: Cell<Option<Planted>> = const { Cell::new(None) };
    }

    pub(crate) fn is(bug: Planted) -> bool {
        PLANTED.get() == Some(bug)
    }

    /// From now on `bug` is planted, and no other.
    pub(crate) fn plant(bug: Option<Planted>) {
        PLANTED.set(bug);
    }
}
