//! The listening sockets of a server: named, inherited from the program that started it, or the default one. They are
//! bound when the server can answer, and only checked before that. [`patient`] waits for resources that another program
//! still holds.
//!
//! Sockets are inherited as from systemd (`LISTEN_FDS`, `LISTEN_PID`), `systemfd`, or libnbd. A client that connects
//! while no server runs waits in the socket, so a restart refuses no client.

use super::wanted::{Listen, Wanted, default_socket};
use blkmq_server::{Address, Listener};
use listenfd::ListenFd;
use std::borrow::Cow;
use std::fmt::Display;
use std::io;
use std::time::Duration;

/// Checks the addresses before a device is opened, which may take long.
///
/// # Errors
/// If a path cannot be used for a socket.
pub fn check(wanted: &Wanted, handed_over: &ListenFd) -> Result<(), String> {
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
    let bound = patient(bind, |error| error.kind() == io::ErrorKind::AddrInUse);
    bound.map_err(|e| refused(address, &e))
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
