//! The description of an NBD device: the typed options and their parsing from text, the entry for programs that offer
//! devices by name, and the address of an export ([`Uri`]), as libnbd, QEMU and nbdkit write it (NBD URI
//! specification); and the reasons why an export cannot be opened ([`OpenError`]).

use blkmq_core::{Given, Nanos, PairError, Parameter, RealDevice};
use blkmq_nbd::client::BrokenHandshake;
use percent_encoding::percent_decode_str;
use std::io;
use std::path::PathBuf;

/// The most hardware queues: more connections to a server gain nothing.
const MAX_HW_QUEUES: u16 = 64;
/// The maximum depth. Servers in use accept 16 to 128 requests from a connection before they stop reading.
const MAX_DEPTH: u32 = 1024;
/// One day, in seconds.
const MAX_SECONDS: u64 = 86_400;

const fn parameter(name: &'static str, default: &'static str, help: &'static str) -> Parameter {
    Parameter { name, default, help }
}

/// All parameters, for help and for the parser below.
const PARAMETERS: &[Parameter] = &[
    parameter("uri", "", "the export; in URI[,KEY=VALUE]... the first word"),
    parameter(
        "hw_queues",
        "1",
        "connections, 1 to 64; one if the server does not announce multi-conn",
    ),
    parameter("hw_queue_depth", "128", "requests in flight per connection, 1 to 1024"),
    parameter("readonly", "0", "everything but reads is answered with EROFS"),
    parameter(
        "reconnect_delay",
        "60",
        "seconds for which requests wait for a lost connection before they fail, 0 to 86400; QEMU's reconnect-delay",
    ),
    parameter(
        "timeout",
        "0",
        "seconds without an answer to a request after which the connection is given up, 1 to 86400; 0: never",
    ),
];

/// The options of an NBD device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The number of connections, one for each hardware queue; at least 1.
    pub hw_queues: u16,
    /// Requests in flight per connection, at least 1.
    pub hw_queue_depth: u32,
    /// Answers everything but reads with EROFS, whatever the server permits.
    pub readonly: bool,
    /// How long requests wait for a lost connection before they fail.
    pub reconnect_delay: Nanos,
    /// How long the server may take for a request before the connection is given up; `None` for no limit.
    pub timeout: Option<Nanos>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            hw_queues: 1,
            hw_queue_depth: 128,
            readonly: false,
            reconnect_delay: Nanos::from_secs(60),
            timeout: None,
        }
    }
}

impl Options {
    /// Parses `URI[,KEY=VALUE]...`. A comma in the URI is written `%2C`.
    ///
    /// # Errors
    /// For the first word that is not understood; the error names the accepted words.
    pub fn parse(text: &str) -> Result<(Uri, Self), OpenError> {
        let (uri, rest) = text.split_once(',').unwrap_or((text, ""));
        let mut pairs = vec![("uri".to_owned(), uri.trim().to_owned())];
        for word in rest.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let (key, value) =
                word.split_once('=').ok_or_else(|| OpenError::Syntax(word.to_owned()))?;
            pairs.push((key.trim().to_owned(), value.trim().to_owned()));
        }
        Self::from_pairs(&pairs)
    }

    /// Parses pairs of names and values; if a name is repeated, the last value counts.
    ///
    /// # Errors
    /// For the first pair with an unknown name or an invalid value, or if none of them is `uri`.
    pub fn from_pairs(pairs: &[(String, String)]) -> Result<(Uri, Self), OpenError> {
        let (mut options, mut uri) = (Self::default(), None);
        for (name, value) in pairs {
            let given = Given::find(PARAMETERS, name, value)?;
            let seconds = || given.number(0..=MAX_SECONDS).map(Nanos::from_secs);
            match given.name {
                "uri" => uri = Some(Uri::parse(given.value)?),
                "hw_queues" => options.hw_queues = given.number(1..=MAX_HW_QUEUES)?,
                "hw_queue_depth" => options.hw_queue_depth = given.number(1..=MAX_DEPTH)?,
                "readonly" => options.readonly = given.flag()?,
                "reconnect_delay" => options.reconnect_delay = seconds()?,
                "timeout" => options.timeout = Some(seconds()?).filter(|time| *time > Nanos(0)),
                name => unreachable!("{name} is in the table and not read"),
            }
        }
        Ok((uri.ok_or(OpenError::NoUri)?, options))
    }
}

/// The help page of [`NBD`].
pub const NBD_PAGE: &str = include_str!("../doc/nbd.md");

/// The entry for programs that offer devices by name.
pub const NBD: RealDevice = RealDevice {
    name: "nbd",
    target: "URI",
    summary: "an export of an NBD server: nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH, nbds://...",
    parameters: PARAMETERS,
};

/// The description of the export in `text`, `URI[,KEY=VALUE]...`, which may begin with `nbd:`. Returns `None` if `text`
/// describes another kind of device.
#[must_use]
pub fn description(text: &str) -> Option<&str> {
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    match scheme {
        Some("nbd" | "nbds" | "nbd+unix" | "nbds+unix") => Some(text),
        _ => NBD.description(text),
    }
}

/// The default port of NBD.
const PORT: u16 = 10809;

/// The accepted forms, for messages.
const FORMS: &str = "nbd://HOST[:PORT]/EXPORT, nbds://HOST[:PORT]/EXPORT?tls-certificates=DIR, \
                     nbd+unix:///EXPORT?socket=PATH, nbds+unix:///EXPORT?socket=PATH&tls-certificates=DIR";

/// The place where a server listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Server {
    /// A socket in the file system.
    Unix(PathBuf),
    /// A host, by name or address, and a port.
    Tcp(String, u16),
}

/// The address of an export.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Uri {
    /// The address on which the server listens.
    pub server: Server,
    /// The name of the export; empty for the default one.
    pub export: String,
    /// Whether the connection must use TLS.
    pub tls: bool,
    /// The directory with `ca-cert.pem` and, if the server requires them, `client-cert.pem` and `client-key.pem`.
    pub certificates: Option<PathBuf>,
    /// The name in the server's certificate, or `None` if it is the host name.
    pub tls_hostname: Option<String>,
}

/// The reason why a text is not the address of an export.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UriError {
    /// The scheme is not one of NBD.
    #[error("'{0}' is no URI of NBD; accepted: {FORMS}")]
    Scheme(String),
    /// The host is missing or not terminated, or the port is not a number.
    #[error("'{0}' is no host and port; accepted: HOST, HOST:PORT, [IPV6], [IPV6]:PORT")]
    Host(String),
    /// The path of a local socket is missing, or a host has a socket path.
    #[error("{0}; accepted: {FORMS}")]
    Socket(&'static str),
    /// A key of the query is unknown.
    #[error("'{0}' is not understood; accepted: socket=, tls-certificates=, tls-hostname=")]
    Query(String),
    /// The percent-encoding of this part is invalid.
    #[error("'{0}' is not text in UTF-8 behind its percent signs")]
    Encoding(String),
    /// TLS without trusted certificates.
    #[error(
        "TLS needs certificates to trust; accepted: ?tls-certificates=DIR with ca-cert.pem, and \
         client-cert.pem and client-key.pem if the server asks for them"
    )]
    Certificates,
}

impl Uri {
    /// Parses an address: `nbd://`, `nbds://`, `nbd+unix://` or `nbds+unix://`.
    ///
    /// # Errors
    /// If the text is not an address; the error names the accepted forms.
    pub fn parse(text: &str) -> Result<Self, UriError> {
        let (scheme, rest) =
            text.split_once("://").ok_or_else(|| UriError::Scheme(text.to_owned()))?;
        let (tls, is_unix) = match scheme {
            "nbd" => (false, false),
            "nbds" => (true, false),
            "nbd+unix" => (false, true),
            "nbds+unix" => (true, true),
            _ => return Err(UriError::Scheme(text.to_owned())),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
        let query = Query::parse(query)?;
        let server = match (is_unix, query.socket) {
            (true, Some(path)) if authority.is_empty() => Server::Unix(path),
            (true, Some(_)) => return Err(UriError::Socket("a local socket has no host")),
            (true, None) => return Err(UriError::Socket("a local socket needs its path")),
            (false, Some(_)) => return Err(UriError::Socket("a host has no path of a socket")),
            (false, None) => host(authority)?,
        };
        if tls && query.certificates.is_none() {
            return Err(UriError::Certificates);
        }
        let (certificates, tls_hostname) = (query.certificates, query.hostname);
        Ok(Self { server, export: decode(export)?, tls, certificates, tls_hostname })
    }

    /// The name that the server's certificate must have.
    #[must_use]
    pub fn expected_name(&self) -> &str {
        match (&self.tls_hostname, &self.server) {
            (Some(name), _) => name,
            (None, Server::Tcp(host, _)) => host,
            (None, Server::Unix(_)) => "localhost",
        }
    }
}

#[derive(Default)]
struct Query {
    socket: Option<PathBuf>,
    certificates: Option<PathBuf>,
    hostname: Option<String>,
}

impl Query {
    fn parse(text: &str) -> Result<Self, UriError> {
        let mut query = Self::default();
        for word in text.split('&').filter(|word| !word.is_empty()) {
            match word.split_once('=') {
                Some(("socket", value)) => query.socket = Some(decode(value)?.into()),
                Some(("tls-certificates", value)) => {
                    query.certificates = Some(decode(value)?.into());
                }
                Some(("tls-hostname", value)) => query.hostname = Some(decode(value)?),
                _ => return Err(UriError::Query(word.to_owned())),
            }
        }
        Ok(query)
    }
}

fn decode(text: &str) -> Result<String, UriError> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| UriError::Encoding(text.to_owned()))
}

fn host(authority: &str) -> Result<Server, UriError> {
    let wrong = || UriError::Host(authority.to_owned());
    let (name, port) = match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or_else(wrong)?,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let port = match port.strip_prefix(':') {
        Some(port) => port.parse().map_err(|_| wrong())?,
        None if port.is_empty() => PORT,
        None => return Err(wrong()),
    };
    if name.is_empty() { Err(wrong()) } else { Ok(Server::Tcp(name.to_owned(), port)) }
}

/// The reason why an export cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The description has no URI.
    #[error("no uri; accepted: nbd:URI[,KEY=VALUE]...")]
    NoUri,
    /// A word of the description is not a pair.
    #[error("'{0}' is no KEY=VALUE; accepted: nbd:URI[,KEY=VALUE]...")]
    Syntax(String),
    /// A parameter is unknown, or has an impossible value.
    #[error("{0}")]
    Parameter(#[from] PairError),
    /// The URI is not understood.
    #[error("{0}")]
    Uri(#[from] UriError),
    /// The server cannot be reached, or closed the connection during the handshake.
    #[error("the NBD server cannot be reached: {0}")]
    Server(#[from] io::Error),
    /// The server did not answer in time.
    #[error("the NBD server does not answer")]
    Silent,
    /// The handshake failed.
    #[error("{0}")]
    Handshake(#[source] BrokenHandshake),
    /// The certificates cannot be used.
    #[error("{0}")]
    Tls(String),
    /// The scheme `nbds:` in a build without the feature `tls`.
    #[error(
        "nbds: this program is built without TLS; accepted: nbd:, or a build with --features=tls"
    )]
    NoTls,
    /// The export cannot be a device, for the reason given.
    #[error("{0}")]
    Unfit(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_is_read() {
        let text =
            "nbd://h/x, hw_queues=4,hw_queue_depth=32,readonly=y,reconnect_delay=5,timeout=7";
        let (uri, options) = Options::parse(text).expect("valid");
        assert_eq!(uri.export, "x");
        let expected = Options {
            hw_queues: 4,
            hw_queue_depth: 32,
            readonly: true,
            reconnect_delay: Nanos::from_secs(5),
            timeout: Some(Nanos::from_secs(7)),
        };
        assert_eq!(options, expected);
    }

    #[test]
    fn defaults_are_those_of_the_table() {
        let given = PARAMETERS.iter().filter(|p| !p.default.is_empty());
        let words = Vec::from_iter(given.map(|p| format!("{}={}", p.name, p.default)));
        let (_, options) = Options::parse(&format!("nbd://h,{}", words.join(","))).expect("valid");
        assert_eq!(options, Options::default());
    }

    #[test]
    fn refusals_list_what_is_accepted() {
        for (text, part) in [
            ("nbd://h,depth=1", "no parameter 'depth'; accepted: uri, hw_queues"),
            ("nbd://h,hw_queues=65", "a whole number from 1 to 64"),
            ("nbd://h,timeout=-1", "a whole number from 0 to 86400"),
            ("nbd://h,fast", "'fast' is no KEY=VALUE"),
            ("", "accepted: nbd://HOST[:PORT]/EXPORT"),
        ] {
            let error = Options::parse(text).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(matches!(Options::from_pairs(&[]), Err(OpenError::NoUri)));
    }

    #[test]
    fn an_export_is_known_by_its_scheme_or_by_the_name_of_the_device() {
        for (text, expected) in [
            ("nbd://h/x,hw_queues=2", Some("nbd://h/x,hw_queues=2")),
            ("nbd:nbds://h", Some("nbds://h")),
            ("nbds+unix:///?socket=s", Some("nbds+unix:///?socket=s")),
            ("nbd", Some("")),
            ("nbdx", None),
            ("null", None),
            ("uring:/a/nbd://", None),
        ] {
            assert_eq!(description(text), expected, "{text}");
        }
    }

    #[test]
    fn the_page_names_every_parameter() {
        assert_eq!(NBD.undocumented(NBD_PAGE), None);
    }

    fn plain(server: Server, export: &str) -> Uri {
        let export = export.to_owned();
        Uri { server, export, tls: false, certificates: None, tls_hostname: None }
    }

    fn tcp(host: &str, port: u16) -> Server {
        Server::Tcp(host.to_owned(), port)
    }

    #[test]
    fn addresses_are_read_as_libnbd_reads_them() {
        for (text, expected) in [
            ("nbd://localhost", plain(tcp("localhost", 10809), "")),
            ("nbd://localhost/", plain(tcp("localhost", 10809), "")),
            ("nbd://127.0.0.1:7/a/b%20c", plain(tcp("127.0.0.1", 7), "a/b c")),
            ("nbd://[::1]:7/a", plain(tcp("::1", 7), "a")),
            (
                "nbd+unix:///gold?socket=/run/d%2Csock",
                plain(Server::Unix("/run/d,sock".into()), "gold"),
            ),
        ] {
            assert_eq!(Uri::parse(text), Ok(expected), "{text}");
        }
        let uri =
            Uri::parse("nbds://host/x?tls-certificates=/pki&tls-hostname=other").expect("good");
        assert!(uri.tls && uri.certificates == Some("/pki".into()));
        assert_eq!(uri.expected_name(), "other");
    }

    #[test]
    fn what_is_no_address_is_refused_with_what_is_one() {
        for (text, part) in [
            ("http://x", "accepted: nbd://HOST[:PORT]/EXPORT"),
            ("nbd:x", "is no URI of NBD"),
            ("nbd://", "'' is no host and port"),
            ("nbd://a:b/", "accepted: HOST, HOST:PORT"),
            ("nbd://[::1", "is no host and port"),
            ("nbd://a:70000/", "is no host and port"),
            ("nbd+unix:///x", "needs its path"),
            ("nbd+unix://h/x?socket=/s", "has no host"),
            ("nbd://h/x?socket=/s", "a host has no path"),
            ("nbd://h/x?color=red", "'color=red' is not understood"),
            ("nbd://h/%ff", "not text"),
            ("nbds://h/x", "ca-cert.pem"),
        ] {
            let error = Uri::parse(text).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
