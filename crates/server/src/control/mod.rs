//! Control of a running server, over a separate socket.
//!
//! A client sends one line of JSON, a [`Request`], and gets one line of JSON, an [`Answer`]; [`call`] does both. Each
//! client has a thread that does not touch data connections: it reads and sets attributes of queues and settings of
//! groups, which take effect while I/O continues. Only the socket's user can connect. A [`Program`] handles requests
//! that the server cannot handle itself.
//!
//! A change that waits for I/Os in flight is given up after ten seconds, when its client disconnects, and when the
//! server ends; then nothing is changed. Requests of clients that have disconnected are dropped.
//!
//! A request for a recording ([`Request::Trace`], [`Request::ElevatorLog`]) keeps its connection open; [`record`] sends
//! one.

mod answer;
mod recording;

pub use crate::clients::ClientState;
pub use crate::figures::{
    Bounded, Condition, DeviceStat, ExportStat, Figures, FloorStat, GoalStat, Held, Stages, Stat,
    State, Times, time,
};
pub(crate) use answer::{Control, Origin, audited, begin, counts, patient, to as respond};
pub use answer::{ExportWait, Waits};
pub use recording::{Ended, RecordError, Why, record};

use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// The request of a client.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The devices and exports.
    List,
    /// The connections that have agreed on an export.
    Clients,
    /// Closes connections: their requests are answered, within [`Bounds::drain`](crate::Bounds::drain), and their
    /// sockets closed. Exactly one of the three fields must be given.
    Disconnect {
        /// The number in [`ClientState::number`].
        #[serde(default)]
        number: Option<u64>,
        /// The name of an export, all of whose connections are closed.
        #[serde(default)]
        export: Option<String>,
        /// An identity in the form of [`ClientState::identity`], all of whose connections are closed.
        #[serde(default)]
        identity: Option<String>,
    },
    /// Gets an attribute of a device, or all of them.
    Get {
        /// The number of the device, from 1.
        device: usize,
        /// The path, such as `queue/scheduler`; `None` for all attributes.
        path: Option<String>,
    },
    /// Sets an attribute of a device, and waits until it takes effect.
    Set {
        /// The number of the device, from 1.
        device: usize,
        /// The path, such as `queue/scheduler`.
        path: String,
        /// The value, as text.
        value: String,
    },
    /// Changes the settings of an export.
    Export {
        /// The name of the export.
        name: String,
        /// The settings to change.
        settings: ExportSettings,
    },
    /// Adds an export, described as on the command line of the program, with its block device if it has one.
    Add {
        /// The name and the settings of the export.
        export: String,
    },
    /// Removes an export, and waits for the end of its block device if it has one. Requests in flight are answered.
    Remove {
        /// The name of the export.
        name: String,
    },
    /// Returns the counts of devices and exports so far. Counting begins with the first such request, unless the
    /// server's [`Counting`](crate::Counting) says otherwise.
    Stat,
    /// Returns which export has waited behind which so far. Counting begins as for [`Request::Stat`].
    Waits,
    /// Sends a trace of a device as blktrace's records over this connection. While it runs, a second trace of the
    /// device is refused.
    Trace {
        /// The number of the device, from 1.
        device: usize,
        /// The duration in seconds; `None` if the client ends it.
        #[serde(default)]
        seconds: Option<u32>,
        /// Memory for each elevator in KiB, 1 to 163840. Events that do not fit are dropped and counted.
        buffer_kib: u32,
        /// The maximum length of the records in bytes; `None` for no limit.
        #[serde(default)]
        bytes: Option<u64>,
    },
    /// Sends the calls of a device's scheduler and its answers as an elevator log over this connection. While it runs,
    /// a second log of the device is refused. For the log, the device gets a new instance of its scheduler, as if the
    /// scheduler were changed.
    ElevatorLog {
        /// The number of the device, from 1.
        device: usize,
        /// The duration in seconds; `None` if the client ends it.
        #[serde(default)]
        seconds: Option<u32>,
        /// The maximum length in bytes, 4096 to 268435456; the server uses this much memory for it, and twice as much
        /// at its end.
        bytes: u64,
    },
    /// Reloads the configuration, like SIGHUP.
    Reload,
    /// Returns the current settings that differ from the configuration.
    Diff,
    /// Returns the configuration file with the current settings.
    Save,
    /// Answers the requests in flight, refuses others, and ends the server, like SIGTERM.
    Drain,
}

/// Changeable settings of an export; `None` leaves a setting unchanged.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExportSettings {
    /// The weight, 1 to 1000.
    pub weight: Option<u32>,
    /// The limits to change, spelled as cgroup v2 spells `io.max`: `rbps=1048576 wiops=max`.
    pub max: Option<String>,
    /// The words of its floor and its ceiling to change: `reserve_iops=200 limit_percent=0`.
    pub promise: Option<String>,
}

/// The answer to a client.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// To [`Request::List`].
    List {
        /// Devices, by number.
        devices: Vec<DeviceState>,
        /// Exports, in the order given.
        exports: Vec<ExportState>,
    },
    /// The answer to [`Request::Clients`], in the order of the connections' beginnings.
    Clients(Vec<ClientState>),
    /// The answer to [`Request::Disconnect`]: the numbers of the connections being closed.
    Disconnecting(Vec<u64>),
    /// The answer to [`Request::Get`]: paths and values.
    Attributes(Vec<(String, String)>),
    /// The answer to [`Request::Set`] and [`Request::Export`]: nanoseconds until the change took effect.
    Done(u64),
    /// To [`Request::Stat`].
    Stat(Stat),
    /// To [`Request::Waits`].
    Waits(Waits),
    /// The answer to [`Request::Reload`], [`Request::Add`] and [`Request::Remove`]: one line for each change made, and
    /// for each change that needs a restart.
    Reloaded(Vec<String>),
    /// The answer to [`Request::Diff`]: a line for each setting.
    Differences(Vec<String>),
    /// The answer to [`Request::Save`]: the file to write, or `None` if it has the current settings.
    Saved(Option<Saved>),
    /// The answer to [`Request::Trace`] and [`Request::ElevatorLog`]: the recording has begun, and its bytes follow in
    /// frames.
    Recording,
    /// The answer to [`Request::Drain`].
    Draining,
    /// The request was refused; the text lists the accepted values.
    Refused(String),
}

impl Answer {
    /// Encodes the answer as it is sent.
    fn line(&self) -> String {
        serde_json::to_string(self).expect("answers have a form in JSON") + "\n"
    }
}

/// A device of the server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceState {
    /// Its description.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// The name of its scheduler.
    pub scheduler: String,
}

/// An export of the server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExportState {
    /// Its name.
    pub name: String,
    /// The number of its device, from 1.
    pub device: usize,
    /// The first byte on the device.
    pub offset: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether clients are refused writes.
    pub read_only: bool,
    /// Its weight.
    pub weight: u32,
    /// Its limits, as [`ExportSettings::max`].
    pub max: String,
    /// Its floor and its ceiling, as [`ExportSettings::promise`].
    #[serde(default)]
    pub promise: String,
    /// The latency goals and their state.
    #[serde(default)]
    pub goals: Vec<GoalStat>,
    /// The floor and its state.
    #[serde(default)]
    pub floor: FloorStat,
    /// Its priority class: `rt`, `be` or `idle`.
    pub class: String,
    /// `writeback` or `writethrough`.
    pub cache: String,
    /// The number of connections that have agreed on the export.
    pub connections: usize,
    /// The number of its block device, as in `/dev/ublkb0`; `None` if it has none.
    #[serde(default)]
    pub ublk: Option<u32>,
}

/// The reason why a call got no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No server answers at the socket.
    #[error("no server with control answers there: {0}")]
    Socket(io::Error),
    /// The answer cannot be parsed: the server has another version.
    #[error("the server is of another version: {0}")]
    Answer(serde_json::Error),
}

/// Sends a request to the server with its control socket at `socket`, and waits for the answer.
///
/// # Errors
/// If no server answers, or the answer cannot be parsed.
pub fn call(socket: &Path, request: &Request) -> Result<Answer, CallError> {
    let stream = asked(socket, request)?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).map_err(CallError::Socket)?;
    serde_json::from_str(&answer).map_err(CallError::Answer)
}

/// Sends a request over a new connection.
fn asked(socket: &Path, request: &Request) -> Result<UnixStream, CallError> {
    let mut stream = UnixStream::connect(socket).map_err(CallError::Socket)?;
    let line = serde_json::to_string(request).expect("requests have a form in JSON") + "\n";
    stream.write_all(line.as_bytes()).map_err(CallError::Socket)?;
    Ok(stream)
}

/// Returns whether a change is still wanted: its client waits, its time is not over, and the server is not ending.
pub type GoesOn<'a> = &'a dyn Fn() -> bool;

/// A configuration file with the current settings.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Saved {
    /// The path of the file.
    pub path: PathBuf,
    /// The new text of the file.
    pub text: String,
}

/// The program around a server, called from the threads of control clients.
pub trait Program: Send + Sync {
    /// Causes [`Server::drain`](crate::Server::drain) to be called, without waiting for it.
    fn drain(&self);

    /// Reloads the configuration, and applies the possible changes while `goes_on` is true. Returns a line for each
    /// change, whether applied or left for a restart.
    ///
    /// # Errors
    /// If the configuration is invalid, or the program has none. Then nothing is changed.
    fn reload(&self, goes_on: GoesOn<'_>) -> Result<Vec<String>, String>;

    /// Adds an export, described as on the program's command line, while `goes_on` is true. Returns a message.
    ///
    /// # Errors
    /// If the description is invalid, or the server refuses.
    fn add(&self, export: &str, goes_on: GoesOn<'_>) -> Result<String, String>;

    /// Removes the export `name`. Returns a message.
    ///
    /// # Errors
    /// If there is no such export.
    fn remove(&self, name: &str) -> Result<String, String>;

    /// A line for each current setting that differs from the configuration.
    ///
    /// # Errors
    /// If the configuration is invalid.
    fn diff(&self) -> Result<Vec<String>, String>;

    /// The configuration file with the current settings, or `None` if nothing differs. The client writes it.
    ///
    /// # Errors
    /// If there is no file, or it cannot be edited.
    fn save(&self) -> Result<Option<Saved>, String>;
}
