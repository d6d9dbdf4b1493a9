//! Control of a running server, over a socket of its own, apart from the data.
//!
//! A client sends one line of JSON, a [`Request`], and gets one line of JSON, an [`Answer`]. Each client has a thread, which
//! touches no connection for data: it reads and sets attributes of queues and settings of groups, which take effect while
//! I/O continues. The socket can be reached by its user only.
//!
//! A change that waits for I/Os in flight is given up after ten seconds, when its client leaves, and when the server ends;
//! then nothing is changed. Nothing is done for a client that has left.
//!
//! A request for a recording ([`Request::Trace`], [`Request::ElevatorLog`]) keeps its connection: [`record`] asks for one.

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
