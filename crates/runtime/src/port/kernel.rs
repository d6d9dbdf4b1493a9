//! The calls of the system by which a thread sleeps and is woken.

use blkmq_core::Nanos;
use std::thread;
use std::time::Duration;

#[cfg(target_os = "linux")]
pub(crate) use linux::{drain, poll, ring};

/// Parks the thread, for `left` at most.
pub(crate) fn park(left: Option<Nanos>) {
    match left {
        None => thread::park(),
        Some(Nanos(ns)) => thread::park_timeout(Duration::from_nanos(ns)),
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use blkmq_core::Nanos;
    use rustix::event::{PollFd, Timespec};
    use std::os::fd::OwnedFd;

    /// Sleeps until one of `fds` is ready, for `left` at most. Returns how many are.
    pub(crate) fn poll(fds: &mut [PollFd<'_>], left: Option<Nanos>) -> rustix::io::Result<usize> {
        let left = left.map(|Nanos(ns)| Timespec {
            tv_sec: (ns / 1_000_000_000) as i64,
            tv_nsec: (ns % 1_000_000_000) as i64,
        });
        rustix::event::poll(fds, left.as_ref())
    }

    /// Makes an eventfd readable.
    pub(crate) fn ring(fd: &OwnedFd) {
        // Fails only at a count of 2^64 - 2, and then the descriptor is readable anyway.
        let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
    }

    /// Makes an eventfd unreadable.
    pub(crate) fn drain(fd: &OwnedFd) {
        // If there is nothing to read, it fails with an error that says so.
        let _ = rustix::io::read(fd, &mut [0; 8]);
    }
}
