//! The sockets that a server listens on: named, handed over by the program that started it, or the default one.
//!
//! Handed over as systemd does it (`LISTEN_FDS`, `LISTEN_PID`), and `systemfd`, and libnbd for servers that it starts. A
//! client that connects while no server runs waits in the socket, so a restart refuses nothing.

use super::wanted::{Wanted, default_socket};
use blkmq_server::{Address, Listener};
use listenfd::ListenFd;
use std::io;

/// The sockets to serve on.
///
/// # Errors
/// If a socket cannot be listened on, or some are named and others are handed over.
pub fn listeners(wanted: &Wanted, mut handed_over: ListenFd) -> Result<Vec<Listener>, String> {
    match (handed_over.len(), &wanted.listen[..]) {
        (0, []) => Ok(vec![bind(&Address::Unix(default_socket()), wanted)?]),
        (0, named) => named.iter().map(|address| bind(address, wanted)).collect(),
        (count, []) => (0..count).map(|at| take(&mut handed_over, at)).collect(),
        (count, _) => Err(format!(
            "sockets are handed over to the server ({count}), and others are named to listen on; accepted: one of both"
        )),
    }
}

fn bind(address: &Address, wanted: &Wanted) -> Result<Listener, String> {
    Listener::bind(address, &wanted.rights).map_err(|e| format!("cannot listen on {address}: {e}"))
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
