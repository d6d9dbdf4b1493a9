//! The messages of control, and the call of a client.

use super::program::Saved;
use super::waits::Waits;
use crate::clients::ClientState;
use crate::figures::{FloorStat, GoalStat, Stat};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The request of a client.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The devices and exports.
    List,
    /// The connections that have agreed on an export.
    Clients,
    /// Ends connections: their requests are answered, within [`Bounds::drain`](crate::Bounds::drain), and their sockets
    /// closed. One of the three is given.
    Disconnect {
        /// The number in [`ClientState::number`].
        #[serde(default)]
        number: Option<u64>,
        /// The name of an export: all of its connections.
        #[serde(default)]
        export: Option<String>,
        /// An identity, as [`ClientState::identity`] spells it: all of its connections.
        #[serde(default)]
        identity: Option<String>,
    },
    /// The value of an attribute of a device, or, without a path, all of them.
    Get {
        /// The number of the device, from 1.
        device: usize,
        /// The path, as `queue/scheduler`.
        path: Option<String>,
    },
    /// Sets an attribute of a device, and waits until it is in force.
    Set {
        /// The number of the device, from 1.
        device: usize,
        /// The path, as `queue/scheduler`.
        path: String,
        /// The value, as text.
        value: String,
    },
    /// Changes the settings of an export.
    Export {
        /// Its name.
        name: String,
        /// The settings to change.
        settings: ExportSettings,
    },
    /// Adds an export, spelled as on the command line of the program, with its block device if it has one.
    Add {
        /// Its name and its settings.
        export: String,
    },
    /// Removes an export, and waits for the end of its block device, if it has one. Its requests in flight are answered.
    Remove {
        /// Its name.
        name: String,
    },
    /// The counts of devices and exports so far. Counting begins with the first such request, if the server's
    /// [`Counting`](crate::Counting) does not say otherwise.
    Stat,
    /// Which export waited behind which so far. Counting begins as with [`Request::Stat`].
    Waits,
    /// A trace of a device, as blktrace's records, on this connection; while it runs, a second trace of the device is
    /// refused.
    Trace {
        /// The number of the device, from 1.
        device: usize,
        /// When it ends, in seconds; `None` if the client ends it.
        #[serde(default)]
        seconds: Option<u32>,
        /// Memory for each elevator in KiB, 1 to 163840. Events for which there is no room are dropped and counted.
        buffer_kib: u32,
        /// It ends with so many bytes of records.
        #[serde(default)]
        bytes: Option<u64>,
    },
    /// The calls of a device's scheduler and its answers, as an elevator log, on this connection; a second log of the
    /// device is refused while this one runs. For the log, the device gets a new instance of its scheduler, as if the
    /// scheduler were changed.
    ElevatorLog {
        /// The number of the device, from 1.
        device: usize,
        /// When it ends, in seconds; `None` if the client ends it.
        #[serde(default)]
        seconds: Option<u32>,
        /// It ends with so many bytes, 4096 to 268435456; the server has as much memory for it, and twice at its end.
        bytes: u64,
    },
    /// As SIGHUP: reads the configuration again.
    Reload,
    /// The settings in force that differ from the configuration.
    Diff,
    /// The configuration file with the settings in force.
    Save,
    /// As SIGTERM: answers the requests in flight, refuses others, and ends.
    Drain,
}

/// Settings of an export that can be changed; `None` leaves one as it is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExportSettings {
    /// Its weight, 1 to 1000.
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
        /// In the order of their numbers.
        devices: Vec<DeviceState>,
        /// In the order given.
        exports: Vec<ExportState>,
    },
    /// To [`Request::Clients`], in the order of their beginnings.
    Clients(Vec<ClientState>),
    /// To [`Request::Disconnect`]: the numbers of the connections that end.
    Disconnecting(Vec<u64>),
    /// To [`Request::Get`]: paths and values.
    Attributes(Vec<(String, String)>),
    /// To [`Request::Set`] and [`Request::Export`]: it is in force, after this many nanoseconds.
    Done(u64),
    /// To [`Request::Stat`].
    Stat(Stat),
    /// To [`Request::Waits`].
    Waits(Waits),
    /// To [`Request::Reload`], [`Request::Add`] and [`Request::Remove`]: the changes made and the changes that need a restart, a
    /// line each.
    Reloaded(Vec<String>),
    /// To [`Request::Diff`]: a line for each setting.
    Differences(Vec<String>),
    /// To [`Request::Save`]: the file to write; `None` if its settings are in force.
    Saved(Option<Saved>),
    /// To [`Request::Trace`] and [`Request::ElevatorLog`]: it has begun, and its bytes follow in frames.
    Recording,
    /// To [`Request::Drain`].
    Draining,
    /// The request cannot be carried out; the text lists the accepted values.
    Refused(String),
}

impl Answer {
    /// As it is sent.
    pub(crate) fn line(&self) -> String {
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
    /// Its first byte on the device.
    pub offset: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// Clients may not write.
    pub read_only: bool,
    /// Its weight.
    pub weight: u32,
    /// Its limits, as [`ExportSettings::max`].
    pub max: String,
    /// Its floor and its ceiling, as [`ExportSettings::promise`].
    #[serde(default)]
    pub promise: String,
    /// Its latency goals, and how they stand.
    #[serde(default)]
    pub goals: Vec<GoalStat>,
    /// Its floor, and how it stands.
    #[serde(default)]
    pub floor: FloorStat,
    /// Its priority class: `rt`, `be` or `idle`.
    pub class: String,
    /// `writeback` or `writethrough`.
    pub cache: String,
    /// Connections that have agreed on it.
    pub connections: usize,
    /// The number of its block device, as in `/dev/ublkb0`; `None` if it has none.
    #[serde(default)]
    pub ublk: Option<u32>,
}

/// The reason why a call had no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No server answers at the socket.
    #[error("no server with control answers there: {0}")]
    Socket(io::Error),
    /// The answer is not understood: the server is of another version.
    #[error("the server is of another version: {0}")]
    Answer(serde_json::Error),
}

/// Asks the server whose control listens on `socket`, and waits for the answer.
///
/// # Errors
/// If no server answers, or not in this form.
pub fn call(socket: &Path, request: &Request) -> Result<Answer, CallError> {
    let mut stream = UnixStream::connect(socket).map_err(CallError::Socket)?;
    let mut line = serde_json::to_string(request).expect("requests have a form in JSON");
    line.push('\n');
    stream.write_all(line.as_bytes()).map_err(CallError::Socket)?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).map_err(CallError::Socket)?;
    serde_json::from_str(&answer).map_err(CallError::Answer)
}
