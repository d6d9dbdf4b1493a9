//! The threads that run pumps.

/// Which threads pump requests from outboxes to the device and back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PumpMode {
    /// The threads that submit, poll or wait: no hand-over to another thread.
    #[default]
    Inline,
    /// A thread per hardware queue, woken through [`Host::wake_pump`](crate::Host::wake_pump), that calls
    /// [`Queue::pump`](crate::Queue::pump).
    Thread,
    /// Each submitter has a lane of its own to the only hardware queue of the device, and pumps it: a request leaves by the
    /// lane of the submitter of its first I/O, and its completion wakes that submitter
    /// ([`Config::own_lanes`](crate::Config::own_lanes)). All lanes share the driver tags.
    Owner,
}

impl PumpMode {
    /// Do the threads that submit, poll or wait run pumps?
    #[cfg(feature = "compare")]
    pub(crate) fn is_inline(self) -> bool {
        self != Self::Thread
    }
}
