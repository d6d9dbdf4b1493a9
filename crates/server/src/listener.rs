//! A listening socket of any family.

use crate::address::Address;
use crate::rights::{Rights, listen_on};
use crate::stream::Stream;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

/// A socket that listens, bound here or handed over by the program that started this one.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    address: Address,
    /// The file that goes with the socket: that of a socket that was bound here.
    _file: Option<File>,
}

#[derive(Debug)]
enum Socket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// A socket's file, which is removed when this is dropped.
#[derive(Debug)]
struct File(PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Listener {
    /// Listens on `address`, with these rights if it is in the file system. A port 0 becomes one that the system
    /// chooses. The file of a socket is removed when the listener is dropped.
    ///
    /// # Errors
    /// If the address is taken or not allowed, or the owner of the file cannot be changed.
    pub fn bind(address: &Address, rights: &Rights) -> io::Result<Self> {
        match address {
            Address::Unix(path) => {
                Self::unix(listen_on(path, rights)?, path.clone(), Some(File(path.clone())))
            }
            Address::Tcp(at) => TcpListener::bind(at)?.try_into(),
        }
    }

    fn unix(socket: UnixListener, path: PathBuf, file: Option<File>) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { socket: Socket::Unix(socket), address: Address::Unix(path), _file: file })
    }

    /// Where it listens.
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

/// A socket that was handed over. Its file stays when the listener is dropped.
impl TryFrom<UnixListener> for Listener {
    type Error = io::Error;

    /// # Errors
    /// If the socket has no path, so that no address leads to it.
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
    /// If the socket has no address any more.
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
