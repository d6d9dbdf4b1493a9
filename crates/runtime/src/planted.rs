//! Bugs that the models in `shuttle_tests` plant, to prove that they would be found. In every other build [`is`] is the
//! constant `false`, and the code that asks it is unchanged.

/// A step left out or done wrongly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "some are steps on descriptors"))]
pub(crate) enum Planted {
    /// A client sleeps without a last look for work.
    SleepsWithoutALook,
    /// A client whose I/Os are held does not look after the lanes of others.
    LooksAtItsOwn,
    /// A client that watched the devices leaves, and calls none of those that rely on it.
    ForgetsDuty,
    /// A client takes rings away after its last look.
    SilencesLate,
    /// A client with a lane of its own sleeps outside before calls reach it.
    SleepsUnattended,
    /// A client that waits outside looks after its own work and does not say that it parks.
    SleepsOutsideUnannounced,
    /// An idle reactor enrols after it has listened.
    EnrolsLate,
    /// An idle client on its own lane takes no notice of calls.
    KeepsCalls,
    /// A reactor sleeps and does not say so.
    SleepsSilently,
    /// A reactor without credit sleeps and does not say so.
    ParksSilently,
    /// A caller puts an I/O in, and does not wake the reactor.
    PutsInSilently,
    /// A canceller marks the call, and does not wake the client.
    CancelsInSilence,
    /// Pump threads are woken, and then told to stop.
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
