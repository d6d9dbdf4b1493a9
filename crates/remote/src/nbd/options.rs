//! The typed options of an NBD device, their parsing from text, and the entry for programs that offer devices by name.

use super::error::OpenError;
use super::uri::Uri;
use blkmq_core::{Given, Nanos, Parameter, RealDevice};

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
pub const NBD_PAGE: &str = include_str!("../../doc/nbd.md");

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
}
