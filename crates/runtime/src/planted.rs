//! Bugs that the models in `shuttle_tests` plant, to prove that they would be found. In every other build [`is`] is the
//! constant `false`, and the code that asks it is unchanged.

/// A step that is left out or done wrongly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "some are steps on descriptors"))]
pub(crate) enum Planted {
    /// A client sleeps without a last check for work.
    SleepsWithoutALook,
    /// A client whose I/Os are held up does not check the lanes of other clients.
    LooksAtItsOwn,
    /// A client that watched the devices leaves, and wakes none of the clients that rely on it.
    ForgetsDuty,
    /// A client disables the rings after its last check.
    SilencesLate,
    /// A client with its own lane sleeps outside before wake-ups can reach it.
    SleepsUnattended,
    /// A client that waits outside does its own work, but does not announce that it parks.
    SleepsOutsideUnannounced,
    /// An idle reactor enrols after its last check of the inbox.
    EnrolsLate,
    /// An idle client on its own lane ignores wake-ups.
    KeepsCalls,
    /// A reactor sleeps without announcing it.
    SleepsSilently,
    /// A reactor without credit sleeps without announcing it.
    ParksSilently,
    /// A caller puts an I/O in without waking the reactor.
    PutsInSilently,
    /// A canceller marks the call without waking the client.
    CancelsInSilence,
    /// Pump threads are woken before the flag that stops them is set.
    StopsAfterTheCall,
}

/// Returns whether this bug is planted.
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

    /// Plants `bug` and no other.
    pub(crate) fn plant(bug: Option<Planted>) {
        PLANTED.set(bug);
    }
}
