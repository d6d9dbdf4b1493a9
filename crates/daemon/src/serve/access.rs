//! Access rules: `allow` of the server and of exports, and whether a rule can match any client at all.
//!
//! The grammar of a rule is in `blkmq_server`. A rule that cannot match any client is a fault: it would silently refuse
//! all.

use super::wanted::{Listen, Wanted};
use blkmq_server::{Address, Allow, Export, Rule, Tls};
use blkmq_terminal::UsageError;
use blkmq_terminal::table::Faults;
use blkmq_terminal::table::{Span, Table};

/// The setting.
pub const KEY: &str = "allow";

/// The rules of a list in a file, each with its span.
pub type Rules = Vec<(Rule, Span)>;

/// The transports by which clients reach the server.
#[derive(Clone, Copy, Debug)]
pub struct Ways {
    /// TLS.
    has_tls: bool,
    /// A socket in the file system.
    is_local: bool,
    /// TCP.
    is_remote: bool,
}

impl Ways {
    /// The transports of a server that listens on `listen`. Inherited sockets may be of either kind.
    pub fn new(listen: &Listen, has_tls: bool) -> Self {
        let all = match listen {
            Listen::Default => return Self { has_tls, is_local: true, is_remote: true },
            Listen::At(all) => &all[..],
            Listen::Nowhere => &[],
        };
        let is_local = all.iter().any(|address| matches!(address, Address::Unix(_)));
        let is_remote = all.iter().any(|address| matches!(address, Address::Tcp(_)));
        Self { has_tls, is_local, is_remote }
    }

    /// Checks a rule of the server.
    ///
    /// # Errors
    /// If the rule cannot match any client; the message names the remedy.
    pub fn check(self, rule: &Rule) -> Result<(), UsageError> {
        let remedy = if rule.is_of_certificate() && !self.has_tls {
            "tls-certificates=DIR, with ca-cert.pem in it"
        } else if rule.is_of_process() && !self.is_local {
            "a socket in the file system to listen on, as unix:PATH"
        } else if matches!(rule, Rule::Network(_)) && !self.is_remote {
            "a port to listen on, as tcp:IP"
        } else {
            return Ok(());
        };
        Err(UsageError::new(format!("'{rule}' can never match; accepted with {remedy}")))
    }

    /// Checks a rule of an export.
    ///
    /// # Errors
    /// See [`check`](Self::check). The socket of a virtual machine only identifies the process of the monitor.
    pub fn check_of(self, export: &Export, rule: &Rule) -> Result<(), UsageError> {
        if export.vhost_user.is_none() {
            return self.check(rule);
        }
        if rule.is_of_process() {
            return Ok(());
        }
        Err(UsageError::new(format!(
            "'{rule}' can never match the monitor of a virtual machine; accepted with vhost-user: uid:NUMBER, gid:NUMBER"
        )))
    }

    /// Checks all rules of settings that have no spans.
    ///
    /// # Errors
    /// For the first rule that cannot match any client.
    pub fn check_all(self, allow: Option<&Allow>, exports: &[Export]) -> Result<(), UsageError> {
        for rule in allow.into_iter().flat_map(Allow::rules) {
            self.check(rule).map_err(|e| e.at(format!("--{KEY}")))?;
        }
        for export in exports {
            for rule in export.allow.iter().flat_map(Allow::rules) {
                let at = format!("export '{}'", export.name);
                self.check_of(export, rule).map_err(|e| e.at(KEY).at(at))?;
            }
        }
        Ok(())
    }
}

/// Reads the list of a table: each rule with its span, and all rules. Returns `None` if there is no list, or it has a
/// fault.
pub fn read(table: &mut Table<'_>, faults: &mut Faults) -> Option<(Rules, Allow)> {
    let before = faults.len();
    let (texts, span) = table.list(KEY, faults)?;
    let mut rules = Rules::new();
    for (text, at) in texts {
        match text.parse::<Rule>() {
            Ok(rule) => rules.push((rule, at)),
            Err(error) => faults.add(&at, UsageError::new(error.to_string()).at(KEY)),
        }
    }
    if faults.len() > before {
        return None;
    }
    match Allow::new(rules.iter().map(|(rule, _)| rule.clone()).collect()) {
        Ok(allow) => Some((rules, allow)),
        Err(error) => {
            faults.add(&span, UsageError::new(error.to_string()).at(KEY));
            None
        }
    }
}

/// Checks the rules against the loaded certificates.
///
/// # Errors
/// If rules refer to certificates, but clients need none.
pub fn check_certificates(wanted: &Wanted, tls: &Tls) -> Result<(), String> {
    if tls.needs_certificates() {
        return Ok(());
    }
    let exports = wanted.exports.iter().filter_map(|export| export.allow.as_ref());
    let mut rules = wanted.allow.iter().chain(exports).flat_map(Allow::rules);
    match rules.find(|rule| rule.is_of_certificate()) {
        None => Ok(()),
        Some(rule) => Err(format!(
            "{KEY}: '{rule}' can never match, since clients need no certificate; accepted with ca-cert.pem in tls-certificates"
        )),
    }
}

/// Checks the rules against the certificates that a reload would load. If the certificates cannot be read, the present
/// ones stay in force, and the check passes.
///
/// # Errors
/// As [`check_certificates`].
pub fn check_files(wanted: &Wanted) -> Result<(), String> {
    match wanted.tls.as_ref().map(|folder| Tls::load(folder)) {
        Some(Ok(tls)) => check_certificates(wanted, &tls),
        Some(Err(_)) | None => Ok(()),
    }
}

/// Formats the rules for the log.
pub fn shown(allow: Option<&Allow>) -> String {
    let Some(allow) = allow else { return "all clients".to_owned() };
    Vec::from_iter(allow.rules().iter().map(Rule::to_string)).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_server::VhostUser;

    #[test]
    fn a_rule_that_can_match_no_client_is_refused_with_the_remedy() {
        let at = |text: &str| Listen::At(vec![text.parse().expect("an address")]);
        let check = |listen: &Listen, has_tls, rule: &str| {
            let rule = rule.parse().expect("a rule");
            Ways::new(listen, has_tls).check(&rule).err().map(|error| error.to_string())
        };
        let (local, remote) = (at("unix:/x"), at("tcp:127.0.0.1"));
        for (listen, has_tls, rule, remedy) in [
            (&local, false, "cn:a", "ca-cert.pem"),
            (&remote, false, "san:a", "ca-cert.pem"),
            (&remote, true, "uid:0", "unix:PATH"),
            (&remote, false, "gid:0", "unix:PATH"),
            (&local, true, "net:::/0", "tcp:IP"),
        ] {
            let refused = check(listen, has_tls, rule).unwrap_or_else(|| panic!("{rule}"));
            assert!(refused.contains("can never match; accepted with "), "{refused}");
            assert!(refused.contains(remedy), "{refused}");
        }
        for (listen, has_tls, rule) in [
            (&local, true, "cn:a"),
            (&remote, true, "san:a"),
            (&local, false, "uid:0"),
            (&remote, false, "net:::/0"),
            (&Listen::Default, false, "net:::/0"),
            (&Listen::Default, false, "gid:0"),
        ] {
            assert_eq!(check(listen, has_tls, rule), None, "{rule}");
        }
    }

    #[test]
    fn the_socket_of_a_machine_knows_users_and_groups() {
        let ways = Ways::new(&Listen::At(vec!["tcp:127.0.0.1".parse().expect("valid")]), true);
        let machine = Some(VhostUser::new("/x".into()));
        let export = Export { vhost_user: machine, ..Export::new("a", 0) };
        let check = |rule: &str| ways.check_of(&export, &rule.parse().expect("a rule"));
        assert_eq!((check("uid:7"), check("gid:7")), (Ok(()), Ok(())));
        for rule in ["cn:a", "san:a", "net:127.0.0.1"] {
            let refused = check(rule).expect_err(rule).to_string();
            assert!(refused.contains("accepted with vhost-user: uid:NUMBER"), "{refused}");
        }
    }
}
