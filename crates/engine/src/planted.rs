//! Bugs that the models in `shuttle_tests` plant, to prove that they would be found. In every other build [`is`] is
//! the constant `false`, and the code that asks it is unchanged.

/// A step that is left out or done wrongly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Planted {
    /// A thread finds that work has become due, and wakes no parked submitter for it.
    ForgetsParked,
    /// A budget is returned, and the elevators that wait for one are not kicked.
    ForgetsBudgetWaiters,
    /// A token is returned, and the elevators that wait for one are not kicked.
    ForgetsTokenWaiters,
    /// A runner leaves for lack of a resource without asking to be kicked when one is returned.
    ForgetsRestart,
    /// A run ends although another pass is owed.
    LosesOwedPass,
    /// A request is put into the outbox of a sleeping owner, and the owner is not woken.
    ForgetsOwner,
    /// A client whose I/Os are held up checks only its own lane.
    LooksAtItsOwn,
    /// A thread pumps the lane of a sleeping submitter, which is not woken for its earlier deadline.
    KeepsDeadline,
    /// A queue is rebuilt without checking for bios that were staged before.
    ForgetsStaged,
    /// A submitter stages bios without checking whether the queue is still current.
    ForgetsVersion,
    /// A submitter goes to sleep without checking whether a limit of its groups has changed.
    ForgetsLimits,
    /// A limit of groups is changed without waking the sleeping submitters.
    ChangesInSilence,
    /// A thread that may run a pump does not check for requests that a runner has left for it.
    LeavesOutboxes,
    /// A pump returns a resource that an elevator waits for, and does not mark the pass as due for other threads.
    LeavesPasses,
    /// A submitter leaves and wakes no other one for the work that it alone would have come back for.
    ForgetsToWakeSuccessor,
    /// A thread that has read from an elevator leaves the work that came in the meantime, and wakes no thread for it.
    LeavesAVisitInSilence,
    /// A thread that is not about to make a pass takes slots back, and the next pass does not know of them.
    ForgetsFreedSlots,
    /// A sleeper wakes and leaves its alarm set.
    KeepsAlarm,
    /// A flush in flight also serves requests that became pending after it began.
    ServesLateComers,
    /// A pump hands a request back to its elevator and kicks no runner for it.
    ForgetsHandedBack,
    /// A pump keeps the deadline of a request that its device has given up.
    KeepsExpired,
    /// Waiting threads do not learn the deadline of a request that the device may lose.
    ForgetsTimer,
    /// An I/O of a sleeping submitter is cancelled without waking the submitter.
    CancelsInSilence,
    /// An ask cancels the I/O that has the cookie when the ask is served, even one pushed after the ask.
    ForgetsMarks,
    /// A request is cancelled without notifying the policy.
    ForgetsToWithdraw,
    /// Requests that were parked while the lock was taken are not taken in.
    ForgetsParkedRequests,
    /// A dispatcher does not dispatch again for a thread that it has turned away.
    ForgetsSentAway,
    /// A driver tag for which the policy has no request is returned after the lock of the elevator is released.
    ReturnsTagLate,
    /// After such a tag is returned, requests that were parked under the lock are not checked for.
    ForgetsLateComers,
}

/// A place at which a thread may lose its CPU, between two steps that no lock holds together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// A runner has filled outboxes and released the elevator; it will run the pumps next.
    BeforePump,
    /// A thread has released a pump; it will wake submitters, and run the elevator if that is due.
    BeforePass,
    /// A thread holds the elevator's lock and a tag, and the policy has no request for it.
    PicksInVain,
    /// Such a thread has released the lock.
    PickedInVain,
}

/// Marks that the calling thread is at this place.
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

    /// A place in the code, and the function that a thread calls there.
    type Stopped = (Stop, std::rc::Rc<dyn Fn()>);

    /// Makes the first thread that reaches the place call the function; `None` for no thread.
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
