//! Bugs that the models in `shuttle_tests` plant, to prove that they would be found. In every other build [`is`] is
//! the constant `false`, and the code that asks it is unchanged.

/// A step left out or done wrongly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Planted {
    /// Work becomes due, and the thread that finds it looks for no parked submitter to wake.
    ForgetsParked,
    /// A budget is returned, and the elevators that wait for one are not kicked.
    ForgetsBudgetWaiters,
    /// A token is returned, and the elevators that wait for one are not kicked.
    ForgetsTokenWaiters,
    /// A runner leaves for want of a resource and does not ask to be kicked when one is returned.
    ForgetsRestart,
    /// A run ends although another pass is owed.
    LosesOwedPass,
    /// A request is put into the outbox of a sleeping owner, and the owner is not woken.
    ForgetsOwner,
    /// A client whose I/Os are held looks after its own lane only.
    LooksAtItsOwn,
    /// A thread pumps the lane of another one, which sleeps and is not told that it has to look earlier.
    KeepsDeadline,
    /// A queue is rebuilt and does not look at the bios that were staged before.
    ForgetsStaged,
    /// A submitter stages bios and does not check whether the queue is still current.
    ForgetsVersion,
    /// A submitter goes to sleep and does not check whether a limit of its groups has been changed.
    ForgetsLimits,
    /// A limit of groups is changed, and the submitters that sleep are not woken.
    ChangesInSilence,
    /// A thread that may run a pump does not look for requests that a runner has left for it.
    LeavesOutboxes,
    /// A pump gives back a resource that an elevator waits for, and only the thread that knows it runs the elevator.
    LeavesPasses,
    /// A submitter leaves and wakes no other one for the work that it alone would have returned to.
    ForgetsToWakeSuccessor,
    /// A sleeper gets up and leaves its alarm set.
    KeepsAlarm,
    /// A flush under way also serves requests that became pending after it began.
    ServesLateComers,
    /// A pump hands a request back to its elevator and kicks no runner for it.
    ForgetsHandedBack,
    /// A pump keeps the deadline of a request that its device has given up.
    KeepsExpired,
    /// Waiters are not told the deadline of a request that the device may lose.
    ForgetsTimer,
    /// An I/O of a sleeping submitter is cancelled, and the submitter is not woken.
    CancelsInSilence,
    /// An ask cancels the I/O that has the cookie when the ask is answered, even one pushed after the ask.
    ForgetsMarks,
    /// A request is cancelled, and the policy is not told.
    ForgetsToWithdraw,
    /// Requests that were parked while the lock was taken are not taken over.
    #[cfg(feature = "compare")]
    ForgetsParkedRequests,
    /// A dispatcher does not come again for a thread that it has sent away.
    #[cfg(feature = "compare")]
    ForgetsSentAway,
    /// A driver tag for which the policy has no request is returned after the lock of the elevator is released.
    #[cfg(feature = "compare")]
    ReturnsTagLate,
    /// After such a tag is returned, requests that were parked under the lock are not looked for.
    #[cfg(feature = "compare")]
    ForgetsLateComers,
}

/// A place at which a thread may lose its CPU, between two steps that no lock holds together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// A runner has filled outboxes and let go of the elevator; it will run the pumps next.
    BeforePump,
    /// A thread has let go of a pump; it will wake submitters, and run the elevator if that is due.
    BeforePass,
    /// A thread holds the elevator's lock and a tag, and the policy has no request for it.
    #[cfg(feature = "compare")]
    PicksInVain,
    /// Such a thread has released the lock.
    #[cfg(feature = "compare")]
    PickedInVain,
}

/// The calling thread is at this place.
#[cfg(not(all(test, shuttle)))]
#[inline(always)]
pub(crate) const fn stop(_: Stop) {}

/// Returns whether this bug is planted.
#[cfg(not(all(test, shuttle)))]
#[inline(always)]
pub(crate) const fn is(_: Planted) -> bool {
    false
}

#[cfg(all(test, shuttle))]
pub(crate) use models::{is, plant, stop, stop_with};

#[cfg(all(test, shuttle))]
mod models {
    use super::{Planted, Stop};
    use std::cell::{Cell, RefCell};

    thread_local! {
        // All threads of a model are coroutines on the thread of its test.
        static PLANTED: Cell<Option<Planted>> = const { Cell::new(None) };
        static STOP: RefCell<Option<Stopped>> = const { RefCell::new(None) };
    }

    /// The action of a thread at the place.
    type Stopped = (Stop, std::rc::Rc<dyn Fn()>);

    /// Has the first thread that comes to `place` do `then` there, or none.
    pub(crate) fn stop_with(at: Option<Stopped>) {
        STOP.set(at);
    }

    pub(crate) fn stop(place: Stop) {
        let found = STOP.with_borrow_mut(|stop| stop.take_if(|(at, _)| *at == place));
        if let Some((_, then)) = found {
            then();
        }
    }

    pub(crate) fn is(bug: Planted) -> bool {
        PLANTED.get() == Some(bug)
    }

    /// Plants `bug` and no other.
    pub(crate) fn plant(bug: Option<Planted>) {
        PLANTED.set(bug);
    }
}
