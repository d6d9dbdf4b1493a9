//! [`Uri`]: the address of an export, as libnbd, QEMU and nbdkit write it (NBD URI specification).

use percent_encoding::percent_decode_str;
use std::fmt;
use std::path::PathBuf;

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
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UriError {
    /// The scheme is not one of NBD.
    Scheme(String),
    /// The host is missing or not terminated, or the port is not a number.
    Host(String),
    /// The path of a local socket is missing, or a host has a socket path.
    Socket(&'static str),
    /// A key of the query is unknown.
    Query(String),
    /// The percent-encoding of this part is invalid.
    Encoding(String),
    /// TLS without trusted certificates.
    Certificates,
}

impl fmt::Display for UriError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scheme(text) => write!(f, "'{text}' is no URI of NBD; accepted: {FORMS}"),
            Self::Host(text) => write!(
                f,
                "'{text}' is no host and port; accepted: HOST, HOST:PORT, [IPV6], [IPV6]:PORT"
            ),
            Self::Socket(why) => write!(f, "{why}; accepted: {FORMS}"),
            Self::Query(word) => write!(
                f,
                "'{word}' is not understood; accepted: socket=, tls-certificates=, tls-hostname="
            ),
            Self::Encoding(text) => write!(f, "'{text}' is not text in UTF-8 behind its percent signs"),
            Self::Certificates => f.write_str(
                "TLS needs certificates to trust; accepted: ?tls-certificates=DIR with ca-cert.pem, and client-cert.pem \
                 and client-key.pem if the server asks for them",
            ),
        }
    }
}

impl std::error::Error for UriError {}

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

#[cfg(test)]
mod tests {
    use super::*;

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
