//! Refuses requests that pages of other sites make through a user's browser, and changes without the key.
//!
//! - If a page's host name is made to resolve to this machine (DNS rebinding), the browser sees the same origin. The
//!   name is in `Host`, so only IP addresses, `localhost` and configured names are served.
//! - A page of another site cannot read answers, since none permits that, but it could cause changes. A browser sends
//!   the page's site in `Origin` and `Sec-Fetch-Site`, and sends JSON across sites only after a preflight, which is
//!   refused, too.
//! - Other users of the machine can reach its ports without a browser, but lack the key.

use super::Site;
use super::connection::{JSON, Method, Refusal, Request};
use rustix::rand::{GetRandomFlags, getrandom};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr};

/// Checks a request before it is handled.
///
/// # Errors
/// The answer, if the request is refused.
pub(super) fn check(request: &Request, site: &Site) -> Result<(), Refusal> {
    if !is_known(name(&request.host), &site.names) {
        let why = "this host name is not known; accepted: an IP address, localhost, and names of --http-name";
        return Err(Refusal::new(421, why));
    }
    if let Some(origin) = &request.origin
        && !is_own(origin, &request.host)
    {
        return Err(Refusal::new(403, "a page of another site asks"));
    }
    // A link from another site may lead to the page, but not to figures or switches.
    let foreign = matches!(request.fetch_site.as_deref(), Some("cross-site" | "same-site"));
    if foreign && (request.method == Method::Post || request.path != "/") {
        return Err(Refusal::new(403, "a page of another site asks"));
    }
    if request.method != Method::Post {
        return Ok(());
    }
    let kind = request.content_type.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case(JSON) {
        return Err(Refusal::new(415, format!("accepted: {JSON}")));
    }
    match &request.key {
        Some(key) if site.key.is(key) => Ok(()),
        _ => Err(Refusal::new(401, "a change needs the key that the server printed as it started")),
    }
}

/// A host without its port.
fn name(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split(']').next().unwrap_or_default();
    }
    host.split(':').next().unwrap_or_default()
}

fn is_known(name: &str, names: &[String]) -> bool {
    let is_address = name.parse::<IpAddr>().is_ok() || name.parse::<Ipv6Addr>().is_ok();
    is_address || name == "localhost" || names.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// Returns whether `origin` is the site of the page served by `host`. A proxy may have terminated TLS.
fn is_own(origin: &str, host: &str) -> bool {
    let origin = origin.to_ascii_lowercase();
    ["http://", "https://"].iter().any(|scheme| origin.strip_prefix(scheme) == Some(host))
}

/// 128 random bits, in hexadecimal.
///
/// All users of this machine can reach its ports, and are not trusted to change settings.
pub(super) struct Key(String);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    /// Generates a key.
    ///
    /// # Errors
    /// If the system cannot provide random numbers.
    pub(super) fn new() -> io::Result<Self> {
        random().map(Self)
    }

    pub(super) fn text(&self) -> &str {
        &self.0
    }

    /// Returns whether `text` is this key. The duration does not reveal the position of the first difference.
    fn is(&self, text: &str) -> bool {
        let different = self.0.bytes().zip(text.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
        self.0.len() == text.len() && std::hint::black_box(different) == 0
    }
}

/// 128 random bits, in hexadecimal.
pub(super) fn random() -> io::Result<String> {
    let mut bytes = [0; 16];
    // Up to 256 bytes are returned completely, or not at all.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_addresses_and_names_that_are_known() {
        let known = |host: &str| is_known(name(host), &["disks.example".to_owned()]);
        for host in ["127.0.0.1:10810", "[::1]:10810", "10.0.0.7", "localhost:1", "DISKS.example"] {
            assert!(known(host), "{host}");
        }
        for host in ["evil.example:10810", "", "localhost.evil.example", "127.0.0.1.nip.io", "[]"] {
            assert!(!known(host), "{host}");
        }
    }

    #[test]
    fn an_origin_is_own_with_the_same_host_and_port() {
        assert!(is_own("http://localhost:1", "localhost:1"));
        assert!(is_own("https://disks.example", "disks.example"));
        for origin in ["http://localhost:2", "null", "http://evil.example", "localhost:1", ""] {
            assert!(!is_own(origin, "localhost:1"), "{origin}");
        }
    }

    #[test]
    fn only_the_key_is_the_key() {
        let key = Key::new().expect("the system has random numbers");
        assert_eq!(key.text().len(), 32);
        assert!(key.is(key.text()));
        let other = Key::new().expect("again");
        let short = &key.text()[..31];
        assert!(![other.text(), "", short].iter().any(|text| key.is(text)));
        assert_eq!(format!("{key:?}"), "Key(..)", "it is not logged by accident");
    }
}
