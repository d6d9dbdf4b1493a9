//! The settings of a server, whichever way they were given, and the values that the command line and a file have in common.

use super::http::Http;
use super::log::LogFormat;
use blkmq_core::Nanos;
use blkmq_engine::{DeviceDepth, DeviceDepthError};
use blkmq_server::{Address, Allow, Bounds, Counting, Export, Rights};
use blkmq_terminal::SchedulerChoice;
use blkmq_terminal::UsageError;
use blkmq_terminal::units::{self, KbBase};
use std::path::{Path, PathBuf};
use tracing_subscriber::filter::LevelFilter;

/// The settings of a server.
#[derive(Clone)]
pub struct Wanted {
    /// In the order given.
    pub disks: Vec<DiskChoice>,
    /// All exports.
    pub exports: Vec<Export>,
    /// Where to listen for clients of NBD.
    pub listen: Listen,
    /// Threads that serve.
    pub workers: u16,
    /// The socket for control.
    pub control: Control,
    /// HTTP; `None` for none.
    pub http: Option<Http>,
    /// The level from which lines are logged.
    pub log: LevelFilter,
    /// The form of its lines.
    pub log_format: LogFormat,
    /// Bounds against clients that ask for too much.
    pub bounds: Bounds,
    /// The folder of the certificates; `None` for no TLS.
    pub tls: Option<PathBuf>,
    /// The clients that may use the server; `None` for all that reach it.
    pub allow: Option<Allow>,
    /// The rights of the sockets in the file system.
    pub rights: Rights,
    /// When requests are counted.
    pub counting: Counting,
    /// I/Os that take longer are logged; zero for none.
    pub slow: Nanos,
}

/// Where a server listens for clients of NBD.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Listen {
    /// On the sockets that were handed over, or else on [`default_socket`].
    Default,
    /// On these.
    At(Vec<Address>),
    /// Nowhere: its exports are disks of virtual machines.
    Nowhere,
}

impl From<Vec<Address>> for Listen {
    fn from(all: Vec<Address>) -> Self {
        if all.is_empty() { Self::Default } else { Self::At(all) }
    }
}

/// The choice of a socket for control.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Control {
    /// No control.
    None,
    /// Beside the first socket in the file system that the server listens on; without one there is no control.
    Beside,
    /// At this path.
    At(PathBuf),
}

/// A device to serve.
#[derive(Clone)]
pub struct DiskChoice {
    /// Its name in messages.
    pub name: String,
    /// Its description.
    pub device: String,
    /// Its scheduler; by default, the one that goes with its exports.
    pub scheduler: SchedulerChoice,
    /// How many requests it may hold.
    pub device_depth: DeviceDepth,
}

/// A number of threads.
pub fn workers(text: &str) -> Result<u16, UsageError> {
    units::count(text, 1..=256, KbBase::Binary)
}

/// A level of the log.
pub fn level(text: &str) -> Result<LevelFilter, UsageError> {
    let known = ["error", "warn", "info", "debug"].contains(&text);
    let level = text.parse().ok().filter(|_| known);
    level.ok_or_else(|| {
        UsageError::new(format!("'{text}' is no level; accepted: error, warn, info, debug"))
    })
}

/// When requests are counted.
pub fn counting(text: &str) -> Result<Counting, UsageError> {
    match text {
        "asked" => Ok(Counting::Asked),
        "always" => Ok(Counting::Always),
        "never" => Ok(Counting::Never),
        _ => Err(UsageError::new(format!("'{text}': accepted: asked, always, never"))),
    }
}

/// The time beyond which an I/O is slow.
pub fn slow(text: &str) -> Result<Nanos, UsageError> {
    units::time(text, units::TimeUnit::Seconds)
}

/// A form of the log.
pub fn log_format(text: &str) -> Result<LogFormat, UsageError> {
    let accepted = || LogFormat::NAMES.join(", ");
    LogFormat::named(text)
        .ok_or_else(|| UsageError::new(format!("'{text}' is no form; accepted: {}", accepted())))
}

/// How many requests a device may hold.
pub fn device_depth(text: &str) -> Result<DeviceDepth, UsageError> {
    text.parse().map_err(|e: DeviceDepthError| UsageError::new(e.to_string()))
}

/// Checks that there are devices such as this description begins with. The rest is checked when the device is opened.
///
/// # Errors
/// If there are none.
pub fn check_device(text: &str) -> Result<(), UsageError> {
    let name = text.split([',', ':']).next().unwrap_or_default().trim();
    if blkmq::device_names().any(|known| known == name) {
        return Ok(());
    }
    let accepted = blkmq::accepted_devices(text);
    Err(UsageError::new(format!("there is no device '{name}'; accepted: {accepted}")))
}

/// One scheduler, with its options.
pub fn scheduler(text: &str) -> Result<SchedulerChoice, UsageError> {
    let one = SchedulerChoice::parse(text)?;
    let accepted = || UsageError::new(format!("'{text}' names several; accepted: one scheduler"));
    <[_; 1]>::try_from(one).map(|[one]| one).map_err(|_| accepted())
}

impl Control {
    /// As named; an empty name is none.
    pub fn named(name: Option<&str>) -> Self {
        match name {
            None => Self::Beside,
            Some("") => Self::None,
            Some(path) => Self::At(path.into()),
        }
    }

    /// The socket for control of a server that listens there.
    pub fn path(&self, listening: &[Address]) -> Option<PathBuf> {
        match self {
            Self::None => None,
            Self::At(path) => Some(path.clone()),
            Self::Beside => listening.iter().find_map(|address| match address {
                Address::Unix(path) => Some(beside(path)),
                Address::Tcp(_) => None,
            }),
        }
    }
}

/// Exports of a server that is configured with none: all of each device.
pub fn by_default(disks: usize) -> Vec<Export> {
    if disks == 1 {
        return vec![Export::new("disk", 0)];
    }
    (0..disks).map(|at| Export::new(&format!("disk{}", at + 1), at)).collect()
}

/// The socket for control of a server that listens on `socket`.
fn beside(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".control");
    name.into()
}

/// The socket for control of a server without `--listen`.
pub fn default_control() -> PathBuf {
    beside(&default_socket())
}

/// The runtime directory of the user, or, without one, the directory for temporary files.
pub fn default_socket() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    runtime.filter(|path| path.is_dir()).unwrap_or_else(std::env::temp_dir).join("blkmq.sock")
}
