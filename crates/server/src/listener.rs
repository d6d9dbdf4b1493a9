//! A listening socket of any family.

use crate::address::Address;
use crate::rights::{Rights, listen_on};
use crate::stream::Stream;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

/// A socket that listens. Dropping one in the file system removes its file.
#[derive(Debug)]
pub(crate) enum Listener {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener),
}

impl Listener {
    /// Listens on `address`, with these rights if it is in the file system.
    ///
    /// # Errors
    /// As [`listen_on`].
    pub(crate) fn bind(address: &Address, rights: &Rights) -> io::Result<Self> {
        let listener = match address {
            Address::Unix(path) => Self::Unix(listen_on(path, rights)?, path.clone()),
            Address::Tcp(at) => Self::Tcp(TcpListener::bind(at)?),
        };
        match &listener {
            Self::Unix(socket, _) => socket.set_nonblocking(true)?,
            Self::Tcp(socket) => socket.set_nonblocking(true)?,
        }
        Ok(listener)
    }

    /// The address with the port that the system chose, if it was asked to choose.
    pub(crate) fn address(&self) -> io::Result<Address> {
        Ok(match self {
            Self::Unix(_, path) => Address::Unix(path.clone()),
            Self::Tcp(socket) => Address::Tcp(socket.local_addr()?),
        })
    }

    pub(crate) fn accept(&self) -> io::Result<Stream> {
        Ok(match self {
            Self::Unix(socket, _) => socket.accept()?.0.into(),
            Self::Tcp(socket) => socket.accept()?.0.into(),
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            // It may be gone already.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(socket, _) => socket.as_fd(),
            Self::Tcp(socket) => socket.as_fd(),
        }
    }
}
