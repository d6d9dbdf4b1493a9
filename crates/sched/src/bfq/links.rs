//! The ways in which queues and processes refer to each other.

/// A reference to a queue that may have been freed since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct QueueRef {
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// The senders of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Senders {
    /// A process, or async I/O of a group; the number of its record.
    One(u32),
    /// Several processes, after a merge.
    Many,
}
