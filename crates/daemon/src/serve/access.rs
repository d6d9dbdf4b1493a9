//! The ways to a server: its listening sockets, and the access rules (`allow`) of the server and of exports, with a
//! check whether a rule can match any client at all.
//!
//! The sockets are named, inherited from the program that started the server, or the default one. They are bound when
//! the server can answer, and only checked before that. Sockets are inherited as from systemd (`LISTEN_FDS`,
//! `LISTEN_PID`), `systemfd`, or libnbd. A client that connects while no server runs waits in the socket, so a restart
//! refuses no client. [`patient`] waits for resources that another program still holds.
//!
//! The grammar of a rule is in `blkmq_server`. A rule that cannot match any client is a fault: it would silently refuse
//! all.

use super::wanted::{Listen, Wanted, default_socket};
use blkmq_server::{Address, Allow, Export, Listener, Rule, Tls};
use blkmq_terminal::UsageError;
use blkmq_terminal::table::{Faults, Span, Table};
use listenfd::ListenFd;
use std::borrow::Cow;
use std::fmt::Display;
use std::io;
use std::time::Duration;

/// Checks the addresses before a device is opened, which may take long.
///
/// # Errors
/// If a path cannot be used for a socket.
pub fn check_sockets(wanted: &Wanted, handed_over: &ListenFd) -> Result<(), String> {
    let named = if handed_over.len() > 0 { Cow::Borrowed(&[][..]) } else { named(wanted) };
    let control = wanted.control.path(&named).map(Address::Unix);
    let http = wanted.http.as_ref().map(|http| &http.address);
    let machines = wanted.exports.iter().filter_map(|export| export.vhost_user.as_ref());
    let machines = Vec::from_iter(machines.map(|it| Address::Unix(it.path.clone())));
    let all = Vec::from_iter(named.iter().chain(http).chain(&control).chain(&machines));
    for (at, address) in all.iter().enumerate() {
        let is_control = control.as_ref() == Some(address);
        Listener::check(address).map_err(|e| {
            let hint = if is_control { "; --control=PATH names another one" } else { "" };
            format!("{}{hint}", refused(address, &e))
        })?;
        // Each port 0 stands for a different free port.
        let is_free = matches!(address, Address::Tcp(at) if at.port() == 0);
        if !is_free && all[..at].contains(address) {
            let text = format!("{address} is named twice; accepted: an address for each purpose");
            return Err(text);
        }
    }
    Ok(())
}

/// The addresses to listen on if no socket is inherited.
fn named(wanted: &Wanted) -> Cow<'_, [Address]> {
    match &wanted.listen {
        Listen::Default => Cow::Owned(vec![Address::Unix(default_socket())]),
        Listen::At(named) => Cow::Borrowed(named),
        Listen::Nowhere => Cow::Borrowed(&[]),
    }
}

fn refused(address: &Address, error: &io::Error) -> String {
    format!("cannot listen on {address}: {error}")
}

/// The listening sockets.
///
/// # Errors
/// If an address cannot be listened on, or addresses are named although sockets are inherited.
pub fn listeners(wanted: &Wanted, mut handed_over: ListenFd) -> Result<Vec<Listener>, String> {
    match (handed_over.len(), &wanted.listen) {
        (0, _) => {
            let all = named(wanted);
            all.iter().map(|address| bind(address, &all, wanted)).collect()
        }
        (count, Listen::Default) => (0..count).map(|at| take(&mut handed_over, at)).collect(),
        (count, _) => Err(format!(
            "sockets are handed over to the server ({count}), and others are named to listen on; accepted: one of both"
        )),
    }
}

/// Listens on an address, retrying like for a device while it is in use: the sockets of a killed server live as long as
/// its files.
fn bind(address: &Address, all: &[Address], wanted: &Wanted) -> Result<Listener, String> {
    let bind = || Listener::bind_beside(address, &wanted.rights, all);
    patient(bind, is_in_use).map_err(|e| refused(address, &e))
}

/// Takes the inherited socket number `at`.
fn take(handed_over: &mut ListenFd, at: usize) -> Result<Listener, String> {
    let unix = handed_over.take_unix_listener(at).ok().flatten();
    let listener = match unix {
        Some(socket) => Listener::try_from(socket),
        None => handed_over
            .take_tcp_listener(at)
            .and_then(|socket| socket.ok_or_else(|| io::ErrorKind::NotFound.into()))
            .and_then(Listener::try_from),
    };
    listener.map_err(|e| {
        format!(
            "socket {at} of those handed over: {e}; accepted: stream sockets of TCP or with a path"
        )
    })
}

/// How long the server waits for a device or an address that is in use.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Whether another server still has the address.
pub fn is_in_use(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrInUse
}

/// Retries until `attempt` succeeds, fails with an error that `is_busy` rejects, or [`PATIENCE`] is over. Logs the
/// first failure. The kernel frees the files and sockets of a killed process only after its last I/O. Without retries,
/// a server restarted immediately would be refused.
///
/// # Errors
/// The last error.
pub fn patient<T, E: Display>(
    mut attempt: impl FnMut() -> Result<T, E>,
    is_busy: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let mut waited = Duration::ZERO;
    loop {
        match attempt() {
            Err(error) if is_busy(&error) && waited < PATIENCE => {
                if waited.is_zero() {
                    tracing::warn!("{error}; trying again for {} s", PATIENCE.as_secs());
                }
                waited += PAUSE;
                std::thread::park_timeout(PAUSE);
            }
            done => return done,
        }
    }
}

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
    fn only_what_is_busy_is_tried_again() {
        let mut left = 3;
        let mut attempt = || {
            left -= 1;
            if left > 0 { Err("busy") } else { Ok(left) }
        };
        assert_eq!(patient(&mut attempt, |error| *error == "busy"), Ok(0));
        let mut tries = 0;
        let refused = patient(
            || {
                tries += 1;
                Err::<(), _>("broken")
            },
            |error| *error == "busy",
        );
        assert_eq!((refused, tries), (Err("broken"), 1));
    }

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
