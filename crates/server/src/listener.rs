//! A listening socket of any family.

use crate::address::Address;
use crate::rights::{Rights, check, listen_on};
use crate::stream::Stream;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV6, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

/// A listening socket, bound here or inherited from the program that started this one.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    address: Address,
    /// The socket's file, if the socket was bound here.
    _file: Option<File>,
}

#[derive(Debug)]
enum Socket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// A socket's file, removed on drop.
#[derive(Debug)]
struct File(PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        // The file may have been removed already.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The maximum number of connections that the kernel queues until they are accepted.
const BACKLOG: i32 = 1024;

/// Listens for IPv6 connections only.
fn v6_only(at: SocketAddrV6) -> io::Result<TcpListener> {
    let flags = SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::INET6, SocketType::STREAM, flags, None)?;
    net::sockopt::set_socket_reuseaddr(&socket, true)?;
    net::sockopt::set_ipv6_v6only(&socket, true)?;
    net::bind(&socket, &at)?;
    net::listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

impl Listener {
    /// Listens on `address`, with these permissions if it is in the file system. For port 0 the system chooses a port.
    /// The file of a socket is removed on drop.
    ///
    /// # Errors
    /// If the address is in use or not permitted, or the owner of the file cannot be changed.
    pub fn bind(address: &Address, rights: &Rights) -> io::Result<Self> {
        Self::bind_beside(address, rights, &[])
    }

    /// Like [`bind`](Self::bind), for one of several addresses of a server, `all`. The address `[::]` accepts both
    /// families, unless 0.0.0.0 with the same port is among them.
    ///
    /// # Errors
    /// See [`bind`](Self::bind).
    pub fn bind_beside(address: &Address, rights: &Rights, all: &[Address]) -> io::Result<Self> {
        match address {
            Address::Unix(path) => {
                Self::unix(listen_on(path, rights)?, path.clone(), Some(File(path.clone())))
            }
            Address::Tcp(SocketAddr::V6(at)) if at.ip().is_unspecified() => {
                let other = SocketAddr::from((Ipv4Addr::UNSPECIFIED, at.port()));
                if all.contains(&Address::Tcp(other)) {
                    v6_only(*at)?.try_into()
                } else {
                    TcpListener::bind(at)?.try_into()
                }
            }
            Address::Tcp(at) => TcpListener::bind(at)?.try_into(),
        }
    }

    /// Checks an address before a socket is bound there.
    ///
    /// # Errors
    /// If the path is too long for a socket, is a file other than a socket, or is in a missing folder.
    pub fn check(address: &Address) -> io::Result<()> {
        match address {
            Address::Unix(path) => check(path),
            Address::Tcp(_) => Ok(()),
        }
    }

    fn unix(socket: UnixListener, path: PathBuf, file: Option<File>) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { socket: Socket::Unix(socket), address: Address::Unix(path), _file: file })
    }

    /// Returns the listening address.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    pub(crate) fn accept(&self) -> io::Result<Stream> {
        Ok(match &self.socket {
            Socket::Unix(socket) => socket.accept()?.0.into(),
            Socket::Tcp(socket) => socket.accept()?.0.into(),
        })
    }
}

/// An inherited socket. Its file is kept on drop.
impl TryFrom<UnixListener> for Listener {
    type Error = io::Error;

    /// # Errors
    /// If the socket has no path, so that clients cannot address it.
    fn try_from(socket: UnixListener) -> io::Result<Self> {
        let address = socket.local_addr()?;
        let no_path = || io::Error::new(io::ErrorKind::InvalidInput, "the socket has no path");
        let path = address.as_pathname().ok_or_else(no_path)?.to_owned();
        Self::unix(socket, path, None)
    }
}

impl TryFrom<TcpListener> for Listener {
    type Error = io::Error;

    /// # Errors
    /// If the socket has no address.
    fn try_from(socket: TcpListener) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let address = Address::Tcp(socket.local_addr()?);
        Ok(Self { socket: Socket::Tcp(socket), address, _file: None })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Unix(socket) => socket.as_fd(),
            Socket::Tcp(socket) => socket.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    /// Regression test: [::] accepts both families, so that it conflicted with 0.0.0.0.
    #[test]
    fn both_families_listen_on_one_port_in_either_order() {
        for order in [[0, 1], [1, 0]] {
            let free = TcpListener::bind("0.0.0.0:0").and_then(|it| it.local_addr());
            let port = free.expect("a port is free").port();
            let address = |text: &str| format!("tcp:{text}:{port}").parse().expect("an address");
            let all: [Address; 2] = [address("0.0.0.0"), address("[::]")];
            let bind = |at: usize| Listener::bind_beside(&all[at], &Rights::default(), &all);
            let bound = order.map(bind);
            if bound.iter().flatten().count() == 1 {
                println!("skipped: no IPv6 here");
                return;
            }
            bound.into_iter().for_each(|it| drop(it.expect("the port is free")));
            assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "both are gone");
        }
        let alone = Listener::bind(&"tcp:[::]:0".parse().expect("valid"), &Rights::default());
        let Ok(Address::Tcp(at)) = alone.as_ref().map(|it| it.address().clone()) else { return };
        TcpStream::connect(("127.0.0.1", at.port())).expect("it takes both families");
    }
}
