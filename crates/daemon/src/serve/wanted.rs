//! The settings of a server, from the command line or a file, and the parsing of values that both share: of devices, of
//! HTTP, of the permissions of sockets and of the bounds on clients.

use super::process::LogFormat;
use blkmq_core::Nanos;
use blkmq_engine::{DeviceDepth, DeviceDepthError};
use blkmq_server::{Address, Allow, Bounds, Counting, Export, Rights};
use blkmq_terminal::units::{KbBase, TimeUnit};
use blkmq_terminal::{SchedulerChoice, UsageError, units};
use nix::unistd::{Group, User};
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
pub fn seconds(text: &str) -> Result<Nanos, UsageError> {
    units::time(text, TimeUnit::Seconds)
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

/// The default port, which follows that of NBD.
const PORT: u16 = 10810;
/// The keys, on the command line and in a file.
pub const HTTP_KEYS: [&str; 3] = ["http", "http-public", "http-name"];
/// The maximum length of a host name.
const LONGEST: usize = 253;

/// The configuration of HTTP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Http {
    /// The listening address.
    pub address: Address,
    /// Accepted host names of the server, besides `localhost`.
    pub names: Vec<String>,
}

impl Http {
    /// Configures HTTP at `address`, or returns `None` without an address. An address reachable by other machines
    /// requires `is_public`.
    ///
    /// # Errors
    /// If other machines could reach the address without `is_public`, or other settings are given without an address.
    pub fn new(
        address: Option<Address>,
        is_public: bool,
        names: Vec<String>,
    ) -> Result<Option<Self>, UsageError> {
        match address {
            None if is_public || !names.is_empty() => {
                Err(UsageError::new("http-public and http-name are settings of http, which is off"))
            }
            Some(address) if address.is_remote() && !is_public => Err(UsageError::new(format!(
                "{address} is open to other machines, without encryption or passwords; accepted: tcp:127.0.0.1, \
                 tcp:[::1], unix:PATH, or http-public beside it"
            ))),
            address => Ok(address.map(|address| Self { address, names })),
        }
    }

    /// The address of the page for browsers, with the key that its switches need.
    pub fn page(at: &Address, key: &str) -> String {
        match at {
            Address::Tcp(at) => format!("http://{at}/#key={key}"),
            Address::Unix(path) => format!("{} (key {key})", path.display()),
        }
    }
}

/// Parses an address for HTTP.
pub fn http_address(text: &str) -> Result<Address, UsageError> {
    Address::with_port(text, PORT).map_err(|error| UsageError::new(error.to_string()))
}

/// Parses a boolean in the form used in a file.
pub fn yes(text: &str) -> Result<bool, UsageError> {
    match text {
        "1" => Ok(true),
        "0" => Ok(false),
        _ => Err(UsageError::new(format!("'{text}' is neither; accepted: true, false"))),
    }
}

/// Parses a host name.
pub fn host_name(text: &str) -> Result<String, UsageError> {
    let is_part = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    if text.len() <= LONGEST && text.split('.').all(is_part) {
        return Ok(text.to_ascii_lowercase());
    }
    Err(UsageError::new(format!(
        "'{text}' is no host name; accepted: letters, digits, - and ., as disks.example.org"
    )))
}

/// The settings, on the command line and in a file.
pub const RIGHTS_KEYS: [&str; 3] = ["socket-mode", "socket-owner", "socket-group"];

/// Sets `key` to the value `text`.
///
/// # Errors
/// If the mode is invalid, or there is no such user or group.
pub fn set_right(rights: &mut Rights, key: &str, text: &str) -> Result<(), UsageError> {
    match key {
        "socket-mode" => mode(text).map(|mode| rights.mode = mode),
        "socket-owner" => {
            let found = User::from_name(text).ok().flatten().map(|user| user.uid.as_raw());
            number(text, found, "user").map(|id| rights.owner = Some(id))
        }
        _ => {
            let found = Group::from_name(text).ok().flatten().map(|group| group.gid.as_raw());
            number(text, found, "group").map(|id| rights.group = Some(id))
        }
    }
}

fn mode(text: &str) -> Result<u32, UsageError> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| {
        UsageError::new(format!("'{text}' is no mode; accepted: octal, 0 to 0777, as 0660"))
    })
}

/// Returns `found`, or else parses `text` as a number.
fn number(text: &str, found: Option<u32>, what: &str) -> Result<u32, UsageError> {
    found.or_else(|| text.parse().ok()).ok_or_else(|| {
        UsageError::new(format!("there is no {what} '{text}'; accepted: a name or a number"))
    })
}

/// Sets a bound to the value of a text.
///
/// # Errors
/// If the value is invalid.
type SetBound = fn(&mut Bounds, &str) -> Result<(), UsageError>;

/// The settings, in the order of [`Bounds`]: counts, amounts of bytes, and times in seconds.
pub const BOUNDS: [(&str, SetBound); 15] = [
    ("connections", |it, text| count(text).map(|n| it.connections = n)),
    ("connections-per-export", |it, text| count(text).map(|n| it.connections_per_export = n)),
    ("connections-per-identity", |it, text| count(text).map(|n| it.connections_per_identity = n)),
    ("connections-per-peer", |it, text| count(text).map(|n| it.connections_per_peer = n)),
    ("connections-per-second", |it, text| {
        count(text).map(|n| it.connections_per_second = n as u32)
    }),
    ("handshakes", |it, text| count(text).map(|n| it.handshakes = n)),
    ("handshake", |it, text| seconds(text).map(|t| it.handshake = t)),
    ("requests", |it, text| count(text).map(|n| it.requests = n)),
    // A connection must be able to have the largest request in flight.
    ("bytes", |it, text| bytes(text, 64 << 20).map(|n| it.bytes = n)),
    ("bytes-per-worker", |it, text| bytes(text, 64 << 20).map(|n| it.bytes_per_worker = n)),
    ("replies", |it, text| bytes(text, 64 << 10).map(|n| it.replies = n)),
    ("bytes-per-turn", |it, text| bytes(text, 4 << 10).map(|n| it.bytes_per_turn = n)),
    ("silence", |it, text| seconds(text).map(|t| it.silence = t)),
    ("drain", |it, text| seconds(text).map(|t| it.drain = t)),
    ("devices", |it, text| units::count(text, 0..=256, KbBase::Binary).map(|n| it.devices = n)),
];

fn count(text: &str) -> Result<usize, UsageError> {
    units::count(text, 1..=1 << 20, KbBase::Binary)
}

fn bytes(text: &str, least: usize) -> Result<usize, UsageError> {
    units::count(text, least..=1 << 40, KbBase::Binary)
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::Nanos;

    #[test]
    fn other_machines_reach_it_only_if_that_is_asked_for() {
        let http =
            |text: &str, is_public| Http::new(http_address(text).ok(), is_public, Vec::new());
        for text in ["tcp:127.0.0.1", "tcp:[::1]:99", "unix:/run/page"] {
            assert!(http(text, false).expect(text).is_some());
        }
        let refused = http("tcp:0.0.0.0", false).expect_err("open to all").to_string();
        assert!(refused.starts_with("tcp:0.0.0.0:10810 is open"), "{refused}");
        assert!(http("tcp:0.0.0.0", true).expect("it was asked for").is_some());
        assert_eq!(Http::new(None, false, Vec::new()), Ok(None));
        assert!(Http::new(None, true, Vec::new()).is_err());
    }

    #[test]
    fn names_are_those_of_hosts() {
        assert_eq!(host_name("Disks.example.org"), Ok("disks.example.org".to_owned()));
        for text in ["", "a..b", "a/b", "a:1", "*", "a b"] {
            assert!(host_name(text).expect_err(text).to_string().contains("accepted: letters"));
        }
    }

    #[test]
    fn names_and_numbers_are_rights() {
        let mut names = Rights::default();
        for (key, text) in RIGHTS_KEYS.into_iter().zip(["0660", "root", "0"]) {
            set_right(&mut names, key, text).expect(key);
        }
        assert_eq!(names, Rights { mode: 0o660, owner: Some(0), group: Some(0) });
    }

    #[test]
    fn a_refusal_says_what_is_accepted() {
        for (key, text) in
            [("socket-mode", "rw"), ("socket-mode", "1777"), ("socket-owner", "no such user")]
        {
            let error = set_right(&mut Rights::default(), key, text).expect_err(text).to_string();
            assert!(error.contains("accepted: "), "{error}");
        }
    }

    #[test]
    fn every_bound_can_be_set_and_has_a_unit() {
        let mut bounds = Bounds::default();
        for (key, set) in BOUNDS {
            let before = bounds;
            let value = if key.starts_with("bytes") || key == "replies" { "100m" } else { "7" };
            set(&mut bounds, value).expect(key);
            assert_ne!(bounds, before, "{key}");
        }
        assert_eq!((bounds.handshake, bounds.bytes), (Nanos::from_millis(7000), 100 << 20));
        let refused = bytes("1k", 64 << 20).expect_err("too few").to_string();
        assert!(refused.contains("accepted"), "{refused}");
    }
}
