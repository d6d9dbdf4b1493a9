//! The settings of a server, from the command line or a file, and the parsing of values that both share.

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
    /// The devices, in the order given.
    pub disks: Vec<DiskChoice>,
    /// The exports.
    pub exports: Vec<Export>,
    /// The addresses for NBD clients.
    pub listen: Listen,
    /// The number of worker threads.
    pub workers: u16,
    /// The control socket.
    pub control: Control,
    /// HTTP, or `None` to disable it.
    pub http: Option<Http>,
    /// The minimum level of logged lines.
    pub log: LevelFilter,
    /// The format of logged lines.
    pub log_format: LogFormat,
    /// Limits on clients.
    pub bounds: Bounds,
    /// The folder of the certificates, or `None` to disable TLS.
    pub tls: Option<PathBuf>,
    /// The clients that may use the server, or `None` for all.
    pub allow: Option<Allow>,
    /// The permissions of the sockets in the file system.
    pub rights: Rights,
    /// Which requests are counted.
    pub counting: Counting,
    /// I/Os that take longer than this are logged; zero disables that.
    pub slow: Nanos,
}

/// The addresses on which a server listens for NBD clients.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Listen {
    /// The inherited sockets, or else [`default_socket`].
    Default,
    /// Sockets at the given addresses.
    At(Vec<Address>),
    /// None: all exports are disks of virtual machines.
    Nowhere,
}

impl From<Vec<Address>> for Listen {
    fn from(all: Vec<Address>) -> Self {
        if all.is_empty() { Self::Default } else { Self::At(all) }
    }
}

/// The choice of a control socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Control {
    /// No control socket.
    None,
    /// A path derived from the first listening socket in the file system; no control socket if there is none.
    Beside,
    /// A socket at the given path.
    At(PathBuf),
}

/// A device to serve.
#[derive(Clone)]
pub struct DiskChoice {
    /// The name in messages.
    pub name: String,
    /// The description.
    pub device: String,
    /// The scheduler; by default chosen by the exports of the device.
    pub scheduler: SchedulerChoice,
    /// The number of requests that the device may hold.
    pub device_depth: DeviceDepth,
}

/// Parses a number of threads.
pub fn workers(text: &str) -> Result<u16, UsageError> {
    units::count(text, 1..=256, KbBase::Binary)
}

/// Parses a log level.
pub fn level(text: &str) -> Result<LevelFilter, UsageError> {
    let known = ["error", "warn", "info", "debug"].contains(&text);
    let level = text.parse().ok().filter(|_| known);
    level.ok_or_else(|| {
        UsageError::new(format!("'{text}' is no level; accepted: error, warn, info, debug"))
    })
}

/// Parses which requests are counted.
pub fn counting(text: &str) -> Result<Counting, UsageError> {
    match text {
        "asked" => Ok(Counting::Asked),
        "always" => Ok(Counting::Always),
        "never" => Ok(Counting::Never),
        _ => Err(UsageError::new(format!("'{text}': accepted: asked, always, never"))),
    }
}

/// Parses the duration beyond which an I/O is slow.
pub fn slow(text: &str) -> Result<Nanos, UsageError> {
    units::time(text, units::TimeUnit::Seconds)
}

/// Parses a log format.
pub fn log_format(text: &str) -> Result<LogFormat, UsageError> {
    let accepted = || LogFormat::NAMES.join(", ");
    LogFormat::named(text)
        .ok_or_else(|| UsageError::new(format!("'{text}' is no form; accepted: {}", accepted())))
}

/// Parses the number of requests that a device may hold.
pub fn device_depth(text: &str) -> Result<DeviceDepth, UsageError> {
    text.parse().map_err(|e: DeviceDepthError| UsageError::new(e.to_string()))
}

/// Checks that the kind of device named at the beginning of a description exists. The rest is checked when the device
/// is opened.
///
/// # Errors
/// If there is no such kind of device.
pub fn check_device(text: &str) -> Result<(), UsageError> {
    let name = text.split([',', ':']).next().unwrap_or_default().trim();
    if blkmq::device_names().any(|known| known == name) {
        return Ok(());
    }
    let accepted = blkmq::accepted_devices(text);
    Err(UsageError::new(format!("there is no device '{name}'; accepted: {accepted}")))
}

/// Parses one scheduler with its options.
pub fn scheduler(text: &str) -> Result<SchedulerChoice, UsageError> {
    let one = SchedulerChoice::parse(text)?;
    let accepted = || UsageError::new(format!("'{text}' names several; accepted: one scheduler"));
    <[_; 1]>::try_from(one).map(|[one]| one).map_err(|_| accepted())
}

impl Control {
    /// The named socket; an empty name means none.
    pub fn named(name: Option<&str>) -> Self {
        match name {
            None => Self::Beside,
            Some("") => Self::None,
            Some(path) => Self::At(path.into()),
        }
    }

    /// The control socket of a server that listens on these addresses.
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

/// The exports of a server configured without any: one for each device, covering all of it.
pub fn by_default(disks: usize) -> Vec<Export> {
    if disks == 1 {
        return vec![Export::new("disk", 0)];
    }
    (0..disks).map(|at| Export::new(&format!("disk{}", at + 1), at)).collect()
}

/// The control socket of a server that listens on `socket`.
fn beside(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".control");
    name.into()
}

/// The control socket of a server without `--listen`.
pub fn default_control() -> PathBuf {
    beside(&default_socket())
}

/// The default listening socket: in the user's runtime directory, or else in the directory for temporary files.
pub fn default_socket() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    runtime.filter(|path| path.is_dir()).unwrap_or_else(std::env::temp_dir).join("blkmq.sock")
}
