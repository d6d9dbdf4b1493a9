//! The dimensions of a policy.

/// The dimensions that a policy is built for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Request indices are below this. Side tables of this size never grow.
    pub slots: u32,
    /// Scheduler tags per hardware queue (`nr_requests`).
    pub nr_requests: u32,
    /// Driver tags per hardware queue (`hw_queue_depth`).
    pub hw_depth: u32,
    /// The hardware queues that this instance serves.
    pub hw_queues: u16,
    /// The device reports itself as rotational.
    pub rotational: bool,
}
