//! The sockets that a server listens on: named, handed over by the program that started it, or the default one. They are
//! bound when the server can answer; before, they are only checked.
//!
//! Handed over as systemd does it (`LISTEN_FDS`, `LISTEN_PID`), and `systemfd`, and libnbd for servers that it starts. A
//! client that connects while no server runs waits in the socket, so a restart refuses nothing.

use super::patience::patient;
use super::wanted::{Listen, Wanted, default_socket};
use blkmq_server::{Address, Listener};
use listenfd::ListenFd;
use std::borrow::Cow;
use std::io;

/// Checks the addresses before a device is opened, which may take long.
///
/// # Errors
/// If a path cannot be that of a socket.
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
        // Each port 0 is another one.
        let is_free = matches!(address, Address::Tcp(at) if at.port() == 0);
        if !is_free && all[..at].contains(address) {
            let text = format!("{address} is named twice; accepted: an address for each purpose");
            return Err(text);
        }
    }
    Ok(())
}

/// The addresses to listen on, if no socket is handed over.
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

/// The sockets to serve on.
///
/// # Errors
/// If a socket cannot be listened on, or some are named and others are handed over.
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

/// An address that is in use gets the patience of a device: a server that was killed has its sockets as long as its files.
fn bind(address: &Address, all: &[Address], wanted: &Wanted) -> Result<Listener, String> {
    let bind = || Listener::bind_beside(address, &wanted.rights, all);
    let bound = patient(bind, |error| error.kind() == io::ErrorKind::AddrInUse);
    bound.map_err(|e| refused(address, &e))
}

/// The socket number `at` of those that were handed over.
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
