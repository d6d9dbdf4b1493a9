//! Listening addresses: `unix:PATH`, `tcp:HOST[:PORT]`.

use blkmq_nbd::magic::PORT;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

/// An address to listen on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// A socket in the file system.
    Unix(PathBuf),
    /// A TCP port of one interface.
    Tcp(SocketAddr),
}

/// The reason why a text is not an address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "'{text}' is no address; accepted are unix:PATH and tcp:IP[:PORT], for example tcp:127.0.0.1:{port} or \
     tcp:[::1]"
)]
pub struct AddressError {
    text: String,
    port: u16,
}

impl FromStr for Address {
    type Err = AddressError;

    /// Parses an address; the default port is that of NBD.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        Self::with_port(text, PORT)
    }
}

/// Parses an IP address; `port` is the default port.
fn tcp(place: &str, port: u16) -> Option<SocketAddr> {
    let host = place.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(place);
    let alone = host.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, port));
    alone.or_else(|| place.parse().ok())
}

impl Address {
    /// Parses an address; `port` is the default port.
    ///
    /// # Errors
    /// If `text` is not an address; the error lists the accepted forms.
    pub fn with_port(text: &str, port: u16) -> Result<Self, AddressError> {
        let error = || AddressError { text: text.to_owned(), port };
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Self::Unix(path.into())),
            Some(("tcp", place)) => tcp(place, port).map(Self::Tcp).ok_or_else(error),
            _ => Err(error()),
        }
    }

    /// Returns whether other machines can reach the address.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        matches!(self, Self::Tcp(at) if !at.ip().is_loopback())
    }

    /// The URI of an export for clients: `nbd+unix:///NAME?socket=PATH` or `nbd://HOST:PORT/NAME`, with the scheme
    /// `nbds` for a server with TLS.
    pub(crate) fn uri(&self, scheme: &str, export: &str) -> String {
        let export = encoded(export, "-._~");
        match self {
            Self::Unix(path) => {
                format!(
                    "{scheme}+unix:///{export}?socket={}",
                    encoded(&path.to_string_lossy(), "-._~/")
                )
            }
            Self::Tcp(at) => format!("{scheme}://{at}/{export}"),
        }
    }
}

/// Percent-encodes everything but letters, digits and the characters in `plain`.
fn encoded(text: &str, plain: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        let c = char::from(byte);
        if c.is_ascii_alphanumeric() || plain.contains(c) {
            out.push(c);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(at) => write!(f, "tcp:{at}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown_alike() {
        for text in ["unix:/run/blkmq.sock", "tcp:127.0.0.1:10809", "tcp:[::1]:99"] {
            let address: Address = text.parse().expect("an address");
            assert_eq!(address.to_string(), text);
        }
        let short: Address = "tcp:[::1]".parse().expect("an address");
        assert_eq!(short.to_string(), "tcp:[::1]:10809");
        assert_eq!("tcp:::1".parse(), Ok(short));
        let other = Address::with_port("tcp:::1", 7).expect("an address");
        assert_eq!(other.to_string(), "tcp:[::1]:7");
    }

    #[test]
    fn an_error_says_what_is_accepted() {
        for text in ["", "unix:", "tcp:", "tcp:host", "/run/x", "udp:1.2.3.4", "tcp:1.2.3.4:x"] {
            let error = text.parse::<Address>().expect_err(text);
            assert!(error.to_string().contains("unix:PATH and tcp:IP[:PORT]"), "{error}");
        }
    }

    #[test]
    fn an_address_is_remote_unless_it_is_loopback_or_a_file() {
        let remote = |text: &str| text.parse::<Address>().expect("an address").is_remote();
        assert!(remote("tcp:0.0.0.0") && remote("tcp:10.0.0.1:7"));
        assert!(!remote("tcp:127.0.0.1") && !remote("tcp:::1") && !remote("unix:/x"));
    }

    #[test]
    fn uris_are_those_that_clients_take() {
        let unix: Address = "unix:/run/a b.sock".parse().expect("an address");
        assert_eq!(unix.uri("nbd", "disk"), "nbd+unix:///disk?socket=/run/a%20b.sock");
        assert_eq!(unix.uri("nbd", ""), "nbd+unix:///?socket=/run/a%20b.sock");
        let tcp: Address = "tcp:127.0.0.1".parse().expect("an address");
        assert_eq!(tcp.uri("nbd", "a/\u{e4}"), "nbd://127.0.0.1:10809/a%2F%C3%A4");
        assert_eq!(tcp.uri("nbds", "a"), "nbds://127.0.0.1:10809/a");
        assert_eq!(unix.uri("nbds", "a"), "nbds+unix:///a?socket=/run/a%20b.sock");
    }
}
