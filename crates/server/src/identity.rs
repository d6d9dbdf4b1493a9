//! [`Identity`]: everything known about a client, for the rules of exports and for the log.
//!
//! The parts come from the kernel (an address, the process of a local socket) and from the certificate verified by TLS.
//! Unverified claims of a client are not included.

use std::fmt;
use std::net::IpAddr;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Names {
    /// The common name, if there is exactly one.
    pub(crate) common: Option<String>,
    /// DNS names, e-mail addresses, URIs, and IP addresses as text.
    pub(crate) alternative: Vec<String>,
}

/// A client.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Identity {
    address: Option<IpAddr>,
    /// The effective user and group of its process.
    process: Option<(u32, u32)>,
    certificate: Option<Names>,
}

impl Identity {
    pub(crate) fn of_address(address: IpAddr) -> Self {
        Self { address: Some(address.to_canonical()), ..Self::default() }
    }

    pub(crate) fn of_process(user: u32, group: u32) -> Self {
        Self { process: Some((user, group)), ..Self::default() }
    }

    /// Adds the names of a verified certificate.
    pub(crate) fn certify(&mut self, names: Names) {
        self.certificate = Some(names);
    }

    pub(crate) fn common_name(&self) -> Option<&String> {
        self.certificate.as_ref()?.common.as_ref()
    }

    /// Returns whether the certificate has this alternative name. Host names are compared case-insensitively; URIs and
    /// e-mail addresses are not host names.
    pub(crate) fn has_alternative_name(&self, name: &str) -> bool {
        let is_host = !name.contains(['/', '@']);
        let same = |it: &String| it == name || is_host && it.eq_ignore_ascii_case(name);
        self.certificate.as_ref().is_some_and(|names| names.alternative.iter().any(same))
    }

    pub(crate) fn user(&self) -> Option<u32> {
        self.process.map(|(user, _)| user)
    }

    pub(crate) fn group(&self) -> Option<u32> {
        self.process.map(|(_, group)| group)
    }

    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.address
    }
}

impl fmt::Display for Identity {
    /// The rule that identifies the client best, by which its connections are counted.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.certificate.as_ref();
        let common = names.and_then(|names| names.common.as_ref());
        let alternative = names.and_then(|names| names.alternative.first());
        match (common, alternative, self.process, self.address) {
            (Some(name), ..) => write!(f, "cn:{name}"),
            (None, Some(name), ..) => write!(f, "san:{name}"),
            (None, None, Some((user, _)), _) => write!(f, "uid:{user}"),
            (None, None, None, Some(address)) => write!(f, "net:{address}"),
            (None, None, None, None) => f.write_str("unknown"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_called_by_the_part_that_is_hardest_to_have() {
        let mut identity = Identity::of_process(7, 8);
        assert_eq!(identity.to_string(), "uid:7");
        identity.certify(Names::default());
        assert_eq!(identity.to_string(), "uid:7", "a certificate without names");
        let alternative = vec!["a.example".to_owned(), "b".to_owned()];
        identity.certify(Names { common: None, alternative: alternative.clone() });
        assert_eq!(identity.to_string(), "san:a.example");
        identity.certify(Names { common: Some("gold".to_owned()), alternative });
        assert_eq!(identity.to_string(), "cn:gold");
        let mapped = Identity::of_address("::ffff:10.0.0.1".parse().expect("an address"));
        assert_eq!(mapped.to_string(), "net:10.0.0.1");
        assert_eq!(Identity::default().to_string(), "unknown");
    }
}
