//! Exports as disks of virtual machines: vhost-user-blk, with a thread for each.
//!
//! A [`VhostUser`](crate::VhostUser) presents an export of the server on a separate socket, to one front end at a time,
//! with the same disk, group, promises and counts as for its NBD clients. The thread owns the rings of all queues of
//! the guest and a client of the disk. In a turn it takes requests from the rings, pushes their I/Os as one plug, reaps
//! the completed I/Os, and answers with at most one notification for each queue.
//!
//! | file | step |
//! |---|---|
//! | `backend/mod.rs` | the thread: turns, connections, drains |
//! | `front.rs` | a connection: messages, and the memory and rings that they set up |
//! | `backend/serve.rs` | converts requests to I/Os, completions to answers |
//!
//! The data of a request is copied between the guest's memory and the buffers of the disk.

mod backend;
mod front;

pub(crate) use backend::Backend;
