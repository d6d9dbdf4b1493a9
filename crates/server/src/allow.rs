//! [`Allow`]: the clients that may use a server or an export, as rules on their identities.
//!
//! An [`Identity`] is everything known about a client, for the rules and for the log. Its parts come from the kernel
//! (an address, the process of a local socket) and from the certificate verified by TLS. Unverified claims of a client
//! are not included. A [`Gate`] has the present rules of the server or of an export, which a reload may change.

use crate::locked;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// The forms of a rule, for messages.
const FORMS: &str = "cn:NAME, san:NAME, uid:NUMBER, gid:NUMBER, net:ADDRESS[/BITS]";

/// A condition on the identity of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Rule {
    /// The common name of its certificate, compared byte by byte. A certificate with several common names matches none.
    CommonName(String),
    /// A subject alternative name of its certificate: a DNS name, an e-mail address, a URI or an IP address.
    AlternativeName(String),
    /// The effective user of its process, as numbered by the server's user namespace.
    User(u32),
    /// The effective group of its process. Supplementary groups do not count.
    Group(u32),
    /// Its IP address.
    Network(Network),
}

/// A range of IP addresses with a common prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network {
    first: IpAddr,
    bits: u8,
}

/// The reason why a text is not a rule.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RuleError {
    /// The text begins with an unknown word.
    #[error("'{}' is no rule; accepted: {FORMS}", shown(.0))]
    Form(String),
    /// The name is empty, too long, or contains control characters.
    #[error("'{}' has no name; accepted: 1 to {MOST} bytes without control characters", shown(.0))]
    Name(String),
    /// The number of a user or group is invalid.
    #[error("'{}' has no number; accepted: 0 to 4294967294", shown(.0))]
    Number(String),
    /// The address is invalid.
    #[error("'{}' has no IP address; accepted: as net:10.0.0.0/8, net:192.0.2.7 or net:2001:db8::/32", shown(.0))]
    Address(String),
    /// The prefix is longer than the address.
    #[error("'{}' has no number of bits; accepted: 0 to {most}", shown(.0), most = .1)]
    Bits(String, u8),
    /// The address has bits set beyond the prefix.
    #[error("'{}' has bits beyond its first {bits}; accepted: net:{net}", shown(.0), bits = .1.bits, net = .1)]
    Beyond(String, Network),
    /// An IPv4 address mapped to IPv6. Such clients are compared as IPv4 over either kind of socket.
    #[error("'{}' is an address of IPv4 in the form of IPv6; accepted: its form of IPv4", shown(.0))]
    Mapped(String),
    /// The list has no rule.
    #[error("no rule, so that no client could connect; accepted: {FORMS}, or no list at all")]
    Empty,
    /// The list has too many rules.
    #[error("{0} rules; accepted: up to {MOST_RULES}")]
    Many(usize),
}

/// The maximum length of a name in bytes.
const MOST: usize = 256;
/// The maximum number of rules in a list.
const MOST_RULES: usize = 256;

/// The beginning of a text that may be long, for a message.
fn shown(text: &str) -> String {
    let begin = text.chars().take(64).collect::<String>();
    begin.escape_debug().to_string()
}

impl Rule {
    /// Returns whether the rule refers to the client's certificate.
    #[must_use]
    pub fn is_of_certificate(&self) -> bool {
        matches!(self, Self::CommonName(_) | Self::AlternativeName(_))
    }

    /// Returns whether the rule refers to the client's process, which is known only for sockets in the file system.
    #[must_use]
    pub fn is_of_process(&self) -> bool {
        matches!(self, Self::User(_) | Self::Group(_))
    }

    fn allows(&self, identity: &Identity) -> bool {
        match self {
            Self::CommonName(name) => identity.common_name() == Some(name),
            Self::AlternativeName(name) => identity.has_alternative_name(name),
            Self::User(number) => identity.process.is_some_and(|(user, _)| user == *number),
            Self::Group(number) => identity.process.is_some_and(|(_, group)| group == *number),
            Self::Network(network) => identity.address.is_some_and(|it| network.contains(it)),
        }
    }
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let (kind, value) = text.split_once(':').ok_or_else(|| RuleError::Form(text.to_owned()))?;
        match kind {
            "cn" => name(text, value).map(Self::CommonName),
            "san" => name(text, value).map(Self::AlternativeName),
            "uid" => number(text, value).map(Self::User),
            "gid" => number(text, value).map(Self::Group),
            "net" => Network::read(text, value).map(Self::Network),
            _ => Err(RuleError::Form(text.to_owned())),
        }
    }
}

fn name(text: &str, value: &str) -> Result<String, RuleError> {
    let is_one = (1..=MOST).contains(&value.len()) && !value.contains(char::is_control);
    if is_one { Ok(value.to_owned()) } else { Err(RuleError::Name(text.to_owned())) }
}

/// Parses an unsigned number. The largest value means "no user" in system calls, and is refused.
fn number(text: &str, value: &str) -> Result<u32, RuleError> {
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    let number = value.parse().ok().filter(|number| digits && *number != u32::MAX);
    number.ok_or_else(|| RuleError::Number(text.to_owned()))
}

impl Network {
    fn read(text: &str, value: &str) -> Result<Self, RuleError> {
        let (address, bits) = match value.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (value, None),
        };
        let first: IpAddr = address.parse().map_err(|_| RuleError::Address(text.to_owned()))?;
        if first.to_canonical() != first {
            return Err(RuleError::Mapped(text.to_owned()));
        }
        let most = width(first);
        let bits = match bits {
            None => most,
            Some(bits) => {
                let digits = bits.bytes().all(|byte| byte.is_ascii_digit());
                let bits = bits.parse().ok().filter(|bits| digits && *bits <= most);
                bits.ok_or_else(|| RuleError::Bits(text.to_owned(), most))?
            }
        };
        let network = Self { first: masked(first, bits), bits };
        if network.first == first {
            Ok(network)
        } else {
            Err(RuleError::Beyond(text.to_owned(), network))
        }
    }

    /// Returns whether the range contains `address`. An IPv4 address mapped to IPv6 counts as IPv4.
    fn contains(&self, address: IpAddr) -> bool {
        masked(address.to_canonical(), self.bits) == self.first
    }
}

/// The number of bits of an address.
fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The address with all but its first `bits` bits cleared.
fn masked(address: IpAddr, bits: u8) -> IpAddr {
    let bits = u32::from(bits.min(width(address)));
    match address {
        IpAddr::V4(at) => {
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            IpAddr::V4((at.to_bits() & mask).into())
        }
        IpAddr::V6(at) => {
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            IpAddr::V6((at.to_bits() & mask).into())
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.bits)
    }
}

impl fmt::Display for Rule {
    /// Formats the range in the form that is parsed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CommonName(name) => write!(f, "cn:{name}"),
            Self::AlternativeName(name) => write!(f, "san:{name}"),
            Self::User(number) => write!(f, "uid:{number}"),
            Self::Group(number) => write!(f, "gid:{number}"),
            Self::Network(network) => write!(f, "net:{network}"),
        }
    }
}

/// A list of rules, of which a client must satisfy one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Allow(Vec<Rule>);

impl Allow {
    /// Creates a list of 1 to 256 rules.
    ///
    /// # Errors
    /// If there is no rule, or there are too many.
    pub fn new(rules: Vec<Rule>) -> Result<Self, RuleError> {
        match rules.len() {
            0 => Err(RuleError::Empty),
            1..=MOST_RULES => Ok(Self(rules)),
            many => Err(RuleError::Many(many)),
        }
    }

    /// The rules, in the order given.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.0
    }

    pub(crate) fn allows(&self, identity: &Identity) -> bool {
        self.0.iter().any(|rule| rule.allows(identity))
    }
}

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

    fn common_name(&self) -> Option<&String> {
        self.certificate.as_ref()?.common.as_ref()
    }

    /// Returns whether the certificate has this alternative name. Host names are compared case-insensitively; URIs and
    /// e-mail addresses are not host names.
    fn has_alternative_name(&self, name: &str) -> bool {
        let is_host = !name.contains(['/', '@']);
        let same = |it: &String| it == name || is_host && it.eq_ignore_ascii_case(name);
        self.certificate.as_ref().is_some_and(|names| names.alternative.iter().any(same))
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

/// Rules, or none. A mutex, locked by handshakes and once a second for each connection, but never for an I/O.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    rules: Mutex<Option<Arc<Allow>>>,
    /// The number of changes, which wraps around.
    version: AtomicU32,
}

impl Gate {
    pub(crate) fn new(allow: Option<Allow>) -> Self {
        Self { rules: Mutex::new(allow.map(Arc::new)), version: AtomicU32::new(0) }
    }

    /// The present rules; `None` if every client may pass.
    fn rules(&self) -> Option<Arc<Allow>> {
        locked(&self.rules).clone()
    }

    pub(crate) fn set(&self, allow: Option<Allow>) {
        *locked(&self.rules) = allow.map(Arc::new);
        // Incremented after the change: a reader that sees the new version finds the new rules.
        self.version.fetch_add(1, Ordering::Release);
    }

    /// A number that differs after each change. Cheap enough to be read in every turn.
    pub(crate) fn version(&self) -> u32 {
        // Pairs with the end of `set`.
        self.version.load(Ordering::Acquire)
    }

    /// Returns whether every client may pass.
    pub(crate) fn is_open(&self) -> bool {
        self.rules().is_none()
    }

    pub(crate) fn allows(&self, identity: &Identity) -> bool {
        self.rules().is_none_or(|rules| rules.allows(identity))
    }

    /// Returns whether a client of this identity may pass once it has shown a certificate.
    pub(crate) fn may_allow(&self, identity: &Identity) -> bool {
        let by_certificate = |rules: Arc<Allow>| rules.rules().iter().any(Rule::is_of_certificate);
        self.allows(identity) || self.rules().is_some_and(by_certificate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq::core::Rng;

    fn rule(text: &str) -> Rule {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn rules_are_read_and_shown_alike() {
        for text in [
            "cn:gold.example",
            "cn:a name: with, all",
            "san:gold.example",
            "san:spiffe://a.example/b",
            "uid:0",
            "gid:4294967294",
            "net:10.0.0.0/8",
            "net:0.0.0.0/0",
            "net:192.0.2.7/32",
            "net:2001:db8::/32",
            "net:::/0",
            "net:::1/128",
        ] {
            assert_eq!(rule(text).to_string(), text);
        }
        assert_eq!(rule("net:192.0.2.7"), rule("net:192.0.2.7/32"));
        assert_eq!(rule("net:::1"), rule("net:::1/128"));
    }

    #[test]
    fn a_refusal_says_what_is_accepted() {
        for (text, accepted) in [
            ("", "cn:NAME, san:NAME"),
            ("gold", "cn:NAME, san:NAME"),
            ("CN:gold", "cn:NAME"),
            ("cn:", "1 to 256 bytes"),
            ("san:a\nb", "1 to 256 bytes"),
            ("uid:", "0 to 4294967294"),
            ("uid:+1", "0 to 4294967294"),
            ("uid:-1", "0 to 4294967294"),
            ("gid:4294967295", "0 to 4294967294"),
            ("uid:root", "0 to 4294967294"),
            ("net:", "net:10.0.0.0/8"),
            ("net:10.0.0.0/", "0 to 32"),
            ("net:10.0.0.0/33", "0 to 32"),
            ("net:::/129", "0 to 128"),
            ("net:::/+1", "0 to 128"),
            ("net:10.1.2.3/8", "net:10.0.0.0/8"),
            ("net:::ffff:10.0.0.1", "its form of IPv4"),
        ] {
            let error = text.parse::<Rule>().expect_err(text).to_string();
            assert!(error.contains("accepted: ") && error.contains(accepted), "{text}: {error}");
        }
        let long = format!("cn:{}", "x".repeat(MOST + 1));
        let error = long.parse::<Rule>().expect_err("too long").to_string();
        assert!(error.len() < 200, "{error}");
        assert_eq!(Allow::new(Vec::new()), Err(RuleError::Empty));
        assert_eq!(Allow::new(vec![Rule::User(1); 257]), Err(RuleError::Many(257)));
    }

    #[test]
    fn a_client_has_to_satisfy_one_rule() {
        let allows = |rules: &[&str], identity: &Identity| {
            let rules = rules.iter().map(|text| rule(text)).collect();
            Allow::new(rules).expect("some rules").allows(identity)
        };
        let local = Identity::of_process(1001, 50);
        assert!(allows(&["uid:1", "uid:1001"], &local) && allows(&["gid:50"], &local));
        assert!(!allows(&["uid:50", "gid:1001", "net:0.0.0.0/0", "net:::/0"], &local));
        let remote = Identity::of_address("10.200.1.2".parse().expect("an address"));
        assert!(allows(&["net:10.0.0.0/8"], &remote) && allows(&["net:0.0.0.0/0"], &remote));
        assert!(!allows(&["net:10.0.0.0/9", "net:::/0", "uid:0", "gid:0", "cn:a"], &remote));
        let mapped = Identity::of_address("::ffff:10.0.0.1".parse().expect("an address"));
        assert!(allows(&["net:10.0.0.0/8"], &mapped) && !allows(&["net:::/0"], &mapped));
        let mut known = remote;
        let alternative = vec!["Gold.Example".to_owned(), "spiffe://a/b".to_owned()];
        known.certify(Names { common: Some("gold".to_owned()), alternative });
        assert!(
            allows(&["cn:gold"], &known) && !allows(&["cn:Gold", "san:gold", "cn:gol"], &known)
        );
        assert!(allows(&["san:gold.example"], &known) && allows(&["san:spiffe://a/b"], &known));
        assert!(!allows(&["san:spiffe://a/B"], &known), "only names of hosts have no case");
        assert!(allows(&["net:10.200.1.2"], &known), "it still has its address");
    }

    /// Texts close to the grammar are refused with the accepted forms, or parsed to a rule that is formatted
    /// identically.
    #[test]
    fn any_text_is_a_rule_or_a_refusal() {
        const PIECES: [&str; 24] = [
            "cn",
            "san",
            "uid",
            "gid",
            "net",
            ":",
            "::",
            "/",
            ".",
            "0",
            "1",
            "8",
            "32",
            "128",
            "255",
            "4294967295",
            "10",
            "ffff",
            "a",
            "-",
            "+",
            " ",
            "\0",
            "\u{e4}",
        ];
        let (mut rng, mut read) = (Rng::new(7), 0);
        for round in 0..200_000 {
            let count = 1 + rng.below(9);
            let pieces = (0..count).map(|_| PIECES[rng.below(PIECES.len() as u64) as usize]);
            let text = pieces.collect::<String>();
            match text.parse::<Rule>() {
                Ok(rule) => {
                    read += 1;
                    assert_eq!(rule.to_string().parse(), Ok(rule), "round {round}: {text:?}");
                }
                Err(error) => {
                    let error = error.to_string();
                    assert!(error.contains("accepted: "), "round {round}: {text:?}: {error}");
                }
            }
        }
        assert!(read > 1000, "{read} rules");
    }

    /// Compares the mask with a comparison bit by bit.
    #[test]
    fn networks_compare_their_first_bits() {
        let mut rng = Rng::new(11);
        for _ in 0..20_000 {
            let (first, bits) = (rng.next_u64() as u32, rng.below(33) as u8);
            let network = Network { first: masked(IpAddr::V4(first.into()), bits), bits };
            let other = first ^ (1_u32 << rng.below(32));
            let same = (0..bits).all(|at| (first ^ other) & (1 << (31 - at)) == 0);
            assert_eq!(network.contains(IpAddr::V4(other.into())), same, "{network} {other:#x}");
        }
    }

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

    #[test]
    fn rules_are_changed_while_clients_come() {
        let gate = Gate::default();
        let client = Identity::of_process(7, 7);
        assert!(gate.is_open() && gate.allows(&client));
        let rules =
            |text: &str| Some(Allow::new(vec![text.parse().expect("a rule")]).expect("one"));
        gate.set(rules("uid:8"));
        assert!(!gate.is_open() && !gate.allows(&client) && !gate.may_allow(&client));
        gate.set(rules("cn:a"));
        assert!(!gate.allows(&client) && gate.may_allow(&client));
        gate.set(rules("uid:7"));
        assert!(gate.allows(&client));
    }
}
