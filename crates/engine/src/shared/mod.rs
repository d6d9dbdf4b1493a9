//! The words and tables that the threads of a queue share. The code that acts on them is in the other folders. The
//! settings that all parts of the engine use are here.

pub(crate) mod common;
pub(crate) mod hctx;
pub(crate) mod hub;
pub(crate) mod modes;
pub(crate) mod slots;
pub(crate) mod stats;

/// Which kinds of merging are allowed; sysfs `nomerges`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum NoMerges {
    /// 0: every kind of merge.
    #[default]
    All = 0,
    /// 1: only the one-hit cache is tried.
    Simple = 1,
    /// 2: no merge.
    None = 2,
}

/// Which threads pump requests from outboxes to the device and back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PumpMode {
    /// The threads that submit, poll or wait, without a hand-over to another thread.
    #[default]
    Inline,
    /// A thread per hardware queue, woken through [`Host::wake_pump`](crate::Host::wake_pump), that calls
    /// [`Queue::pump`](crate::Queue::pump).
    Thread,
    /// Each submitter has its own lane to the only hardware queue of the device, and pumps it: a request leaves by the
    /// lane of the submitter of its first I/O, and its completion wakes that submitter
    /// ([`Config::own_lanes`](crate::Config::own_lanes)). All lanes share the driver tags.
    Owner,
}

impl PumpMode {
    /// Returns whether threads that submit, poll or wait run pumps.
    pub(crate) fn is_inline(self) -> bool {
        !matches!(self, Self::Thread)
    }
}

/// The device's write cache, which decides what flushes and [`FUA`](blkmq_core::IoFlags::FUA) require
/// (`spec/framework.md` section 12). The two values of sysfs `queue/write_cache`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WriteCache {
    /// No cache, or a non-volatile one: a write is durable when it is done. The device gets no flushes; bare flushes
    /// are answered immediately, and flags on data that ask for a flush are ignored.
    #[default]
    Through,
    /// A volatile cache: a write is durable once a flush is done that began after the write was done. Any hardware
    /// queue may be given the flush, which must cover the writes through all of them.
    Back {
        /// The device itself makes writes with `FUA` durable, and any other operation with the flag. If false, a flush
        /// follows instead.
        fua: bool,
    },
}

/// A smaller `nr_requests` is raised to this (`spec/framework.md` section 3).
pub const MIN_NR_REQUESTS: u32 = 4;

/// The largest `nr_requests` with a scheduler.
pub const MAX_NR_REQUESTS: u32 = 2048;

/// The deepest hardware queue.
pub const MAX_HW_QUEUE_DEPTH: u32 = 10240;

/// The default number of submitters of a queue: a client for each thread of most programs, in half a megabyte.
pub const DEFAULT_SUBMITTERS: u16 = 16;

/// The most submitters with their own lanes to a device.
pub const MAX_OWN_LANES: u16 = 256;

/// The largest bound on the number of requests that a device holds.
pub const MAX_DEVICE_DEPTH: u32 = 10240;
