//! Exports as disks of virtual machines: vhost-user-blk, a thread for each.
//!
//! A [`VhostUser`](crate::VhostUser) shows an export of the server on a socket of its own, to one front end at a time: the same disk, group,
//! promises and counts as its NBD clients have. The thread owns the rings of all queues of the guest and a client of the
//! disk. In a turn it takes requests from the rings, pushes their I/Os as one plug, reaps the completed I/Os, and
//! answers with at most one notification for each queue.
//!
//! | file | step |
//! |---|---|
//! | `backend/mod.rs` | the thread: turns, connections, drains |
//! | `front.rs` | a connection: messages, and the memory and rings that they build |
//! | `backend/serve.rs` | requests become I/Os, completions become answers |
//!
//! The data of a request is copied between the guest's memory and the buffers of the disk.

mod backend;
mod front;

pub(crate) use backend::Backend;
