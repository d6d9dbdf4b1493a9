//! Control of a running server, over a socket of its own, apart from the data.
//!
//! A client sends one line of JSON, a [`Request`], and gets one line of JSON, an [`Answer`]. The thread behind the
//! socket serves one client at a time and touches no connection for data: it reads and sets attributes of queues and
//! settings of groups, which take effect while I/O goes on. The socket can be reached by its user only.
//!
//! A request for a recording ([`Request::Trace`], [`Request::ElevatorLog`]) keeps its connection, and has a thread of
//! its own: [`record`] asks for one.

mod answer;
mod counts;
mod figures;
mod message;
mod program;
mod recording;
mod socket;
mod waits;

pub(crate) use answer::to as respond;
pub(crate) use counts::{begin, counts};
pub use figures::{DeviceStat, ExportStat, Figures, FloorStat, Stages, Stat, Times};
pub use message::{Answer, CallError, DeviceState, ExportSettings, ExportState, Request, call};
pub use program::Program;
pub use recording::{Ended, RecordError, Why, record};
pub(crate) use socket::Control;
pub use waits::{ExportWait, Waits};
