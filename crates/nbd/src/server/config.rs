//! The configuration of a server's handshakes.

use crate::limits::Limits;
use crate::style::HeaderStyle;

/// TLS on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Tls {
    /// There is none.
    #[default]
    Off,
    /// It has to come first: options outside of it are refused.
    Required,
    /// The bytes come out of it.
    Established,
}

/// Whether clients may see the names of exports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Listing {
    /// LIST is answered.
    #[default]
    Shown,
    /// LIST is refused; a client has to know a name.
    Hidden,
}

/// The configuration of a handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Bounds on bytes.
    pub limits: Limits,
    /// TLS at the beginning.
    pub tls: Tls,
    /// Whether LIST is answered.
    pub listing: Listing,
    /// The most able form of headers that is offered; options for more are unknown to this server. It is there for
    /// tests of the fallbacks of clients.
    pub most: HeaderStyle,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            tls: Tls::Off,
            listing: Listing::Shown,
            most: HeaderStyle::Extended,
        }
    }
}
