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
}
