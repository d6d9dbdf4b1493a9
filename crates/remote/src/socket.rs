//! [`Socket`]: the system calls of a connected socket.

use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A non-blocking socket. If the peer has closed it, a write returns an error and raises no signal.
#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

impl From<OwnedFd> for Socket {
    fn from(socket: OwnedFd) -> Self {
        Self(socket)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::retry_on_intr(|| rustix::io::read(&self.0, &mut *into))?)
    }

    fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Ok(rustix::io::retry_on_intr(|| rustix::io::readv(&self.0, into))?)
    }
}

impl Write for Socket {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(from)])
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        let send =
            || sendmsg(&self.0, from, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL);
        Ok(rustix::io::retry_on_intr(send)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
