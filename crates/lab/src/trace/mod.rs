//! Traces in the format of blktrace: the events of every I/O, as `blkparse` and `btt` read them.
//!
//! [`record`] is the format, without I/O: bytes to records and back. A [`Tracer`] gathers events while a queue is
//! used, in real or virtual time; a [`Traced`] port traces a client, and [`Observation`](crate::observe::Observation)
//! puts observers beside policies and devices.
//!
//! Letters are blktrace's. `Q` is an I/O as its client has it, whole; an `X` follows for each cut. `M` and `F` are
//! I/Os that joined a request, in a plug or in an elevator, and requests that were fused (`M`). `G` and `I` are one
//! moment here: a request takes its tag when it is inserted. `D` is for requests that a device has accepted. The
//! process number is that of the thread at work, as in Linux.

mod client;
mod tracer;

pub use blkmq_trace::record;
pub use client::{ClientTrace, Plugged, Traced};
pub(crate) use tracer::Event;
pub use tracer::{Buffer, Tracer, on_cpu};
