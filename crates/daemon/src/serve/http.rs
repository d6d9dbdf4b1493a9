//! The settings of HTTP: the address, and the host names under which users reach it.

use blkmq_server::Address;
use blkmq_terminal::UsageError;

/// The default port, which follows that of NBD.
const PORT: u16 = 10810;
/// The keys, on the command line and in a file.
pub const KEYS: [&str; 3] = ["http", "http-public", "http-name"];
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
pub fn address(text: &str) -> Result<Address, UsageError> {
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
pub fn name(text: &str) -> Result<String, UsageError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_machines_reach_it_only_if_that_is_asked_for() {
        let http = |text: &str, is_public| Http::new(address(text).ok(), is_public, Vec::new());
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
        assert_eq!(name("Disks.example.org"), Ok("disks.example.org".to_owned()));
        for text in ["", "a..b", "a/b", "a:1", "*", "a b"] {
            assert!(name(text).expect_err(text).to_string().contains("accepted: letters"));
        }
    }
}
