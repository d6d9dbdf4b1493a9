//! The bounds of numbers that users set.

/// A smaller `nr_requests` is raised to this (`spec/framework.md` section 3).
pub const MIN_NR_REQUESTS: u32 = 4;
/// The largest `nr_requests` with a scheduler.
pub const MAX_NR_REQUESTS: u32 = 2048;
/// The deepest hardware queue.
pub const MAX_HW_QUEUE_DEPTH: u32 = 10240;
/// The submitters that a queue is built for unless their number is set: a client for each thread of most programs, in half
/// a megabyte.
pub const DEFAULT_SUBMITTERS: u16 = 16;
/// The most submitters that have a lane of their own to a device.
pub const MAX_OWN_LANES: u16 = 256;
/// The largest bound of what a device holds.
pub const MAX_DEVICE_DEPTH: u32 = 10240;
