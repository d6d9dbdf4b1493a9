//! [`Bell`] on Linux: a descriptor on which clients sleep.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

pub(crate) struct Bell(EventFd);

impl Bell {
    /// # Errors
    /// If the system refuses a descriptor.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?))
    }

    pub(super) fn ring(&self) {
        // The counter is 0, so that the write cannot block.
        let _ = self.0.write(1);
    }

    pub(super) fn silence(&self) {
        let _ = self.0.read();
    }

    /// Sleeps until the bell rings. Returns immediately if it rings already.
    pub(super) fn wait(&self) {
        // Errors and interruptions are ignored: the caller checks again.
        let _ = poll(&mut [PollFd::new(self.fd(), PollFlags::POLLIN)], PollTimeout::NONE);
    }

    /// Readable while the bell rings.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
