//! Control of a running server, over a separate socket.
//!
//! A client sends one line of JSON, a [`Request`], and gets one line of JSON, an [`Answer`]. Each client has a thread
//! that does not touch data connections: it reads and sets attributes of queues and settings of groups, which take
//! effect while I/O continues. Only the socket's user can connect.
//!
//! A change that waits for I/Os in flight is given up after ten seconds, when its client disconnects, and when the
//! server ends; then nothing is changed. Requests of clients that have disconnected are dropped.
//!
//! A request for a recording ([`Request::Trace`], [`Request::ElevatorLog`]) keeps its connection open; [`record`] sends
//! one.

mod answer;
mod audit;
mod counts;
mod message;
mod program;
mod recording;
mod socket;
mod waits;

pub use crate::clients::ClientState;
pub use crate::figures::{
    Bounded, Condition, DeviceStat, ExportStat, Figures, FloorStat, GoalStat, Held, Stages, Stat,
    State, Times, time,
};
pub(crate) use answer::{patient, to as respond};
pub(crate) use audit::{Origin, audited};
pub(crate) use counts::{begin, counts};
pub use message::{Answer, CallError, DeviceState, ExportSettings, ExportState, Request, call};
pub use program::{GoesOn, Program, Saved};
pub use recording::{Ended, RecordError, Why, record};
pub(crate) use socket::Control;
pub use waits::{ExportWait, Waits};
