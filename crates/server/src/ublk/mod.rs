//! Exports as block devices of this machine: ublk, a thread for each.
//!
//! A [`Ublk`](crate::Ublk) shows an export of the server as `/dev/ublkbN`: the same disk, group, promises and counts as its
//! NBD clients have. The thread owns the queues of the device and a client of the disk. In a turn it takes requests from
//! the kernel, pushes their I/Os as one plug, reaps completions, and gives all answers to the kernel with one call.
//!
//! | file | step |
//! |---|---|
//! | `backend/mod.rs` | the thread: turns, and the end of the device |
//! | `backend/serve.rs` | requests become I/Os, completions become answers |
//! | `keeper.rs` | a second thread for commands that wait for the first |
//! | `params.rs` | the limits of the disk in the words of the kernel |

mod backend;
mod keeper;
mod params;

pub(crate) use backend::Backend;
