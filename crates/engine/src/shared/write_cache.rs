//! A device's write cache, as it announces it.

/// The device's write cache, which decides what flushes and [`FUA`](blkmq_core::IoFlags::FUA) require
/// (`spec/framework.md` section 12). The two values of sysfs `queue/write_cache`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WriteCache {
    /// No cache, or a non-volatile one: a write is durable when it is done. The device gets no flushes;
    /// bare flushes are answered at once, and flags on data that ask for one mean nothing.
    #[default]
    Through,
    /// A volatile cache: a write is durable once a flush is done that began after the write was done. Any hardware
    /// queue may be given the flush, and the flush has to cover the writes through all of them.
    Back {
        /// The device itself makes a write with `FUA` durable, and any other operation that carries the flag. If
        /// false, a flush follows instead.
        fua: bool,
    },
}
