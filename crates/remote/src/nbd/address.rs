//! Sockets to a server that are made without waiting.

use super::uri::Server;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt,
};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;

/// Bytes that the kernel keeps in each direction for a local socket. The default of 208 KiB holds less than one merged
/// request.
const LOCAL_BUFFER: usize = 2 << 20;

/// An address that sockets connect to.
#[derive(Clone, Debug)]
pub(crate) enum Address {
    Unix(SocketAddrUnix),
    Tcp(SocketAddr),
}

impl Address {
    /// The addresses of a server. A name of a host is looked up once, here, and this call may block for that.
    pub(crate) fn all(server: &Server) -> io::Result<Vec<Self>> {
        match server {
            Server::Unix(path) => Ok(vec![Self::Unix(SocketAddrUnix::new(path)?)]),
            Server::Tcp(host, port) => {
                let all = Vec::from_iter((host.as_str(), *port).to_socket_addrs()?.map(Self::Tcp));
                if all.is_empty() {
                    return Err(io::Error::new(io::ErrorKind::NotFound, "the host has no address"));
                }
                Ok(all)
            }
        }
    }

    /// A socket on its way to this address. Once it is writable, [`outcome`] tells whether it has arrived.
    pub(crate) fn connect(&self) -> io::Result<OwnedFd> {
        let family = match self {
            Self::Unix(_) => AddressFamily::UNIX,
            Self::Tcp(SocketAddr::V4(_)) => AddressFamily::INET,
            Self::Tcp(SocketAddr::V6(_)) => AddressFamily::INET6,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        let connected = match self {
            Self::Unix(address) => {
                // A smaller buffer costs throughput and no correctness.
                let _ = sockopt::set_socket_send_buffer_size(&socket, LOCAL_BUFFER);
                let _ = sockopt::set_socket_recv_buffer_size(&socket, LOCAL_BUFFER);
                connect(&socket, address)
            }
            Self::Tcp(address) => {
                sockopt::set_tcp_nodelay(&socket, true)?;
                sockopt::set_socket_keepalive(&socket, true)?;
                connect(&socket, address)
            }
        };
        match connected {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket),
            Err(error) => Err(error.into()),
        }
    }
}

/// Whether a socket that became writable has arrived.
pub(crate) fn outcome(socket: &OwnedFd) -> io::Result<()> {
    sockopt::socket_error(socket)?.map_err(Into::into)
}
