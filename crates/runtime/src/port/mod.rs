//! The threads, the locks and the system calls by which this crate waits. Under shuttle, `model.rs` replaces them, so
//! the loops of clients, reactors and pump threads run there unchanged.
//!
//! The model uses real descriptors, and asks the kernel whether they are readable; only the waiting is modelled.
//!
//! The clock is not part of the port (`clock.rs`), nor is a berth, which is a port itself (`blkmq_engine::Berth`).

#[cfg(all(test, shuttle))]
pub(crate) mod model;

#[cfg(all(not(all(test, shuttle)), target_os = "linux"))]
pub(crate) use kernel::{drain, poll, ring};
#[cfg(not(all(test, shuttle)))]
pub(crate) use {
    crate::placement::available_cpus,
    kernel::park,
    std::hint::spin_loop,
    std::sync::{Mutex, MutexGuard, atomic::AtomicBool},
    std::thread,
};

#[cfg(all(test, shuttle))]
pub(crate) use {
    model::{available_cpus, drain, park, poll, ring, thread},
    shuttle::hint::spin_loop,
    shuttle::sync::{Mutex, MutexGuard, atomic::AtomicBool},
};

/// The system calls by which a thread sleeps and is woken.
#[cfg(not(all(test, shuttle)))]
mod kernel {
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
        use nix::poll::{PollFd, ppoll};
        use nix::sys::eventfd::EventFd;
        use std::time::Duration;

        /// Sleeps until one of `fds` is ready, for `left` at most. Returns the number of ready ones.
        pub(crate) fn poll(fds: &mut [PollFd<'_>], left: Option<Nanos>) -> nix::Result<usize> {
            let left = left.map(|Nanos(ns)| Duration::from_nanos(ns).into());
            ppoll(fds, left, None).map(|ready| ready as usize)
        }

        /// Makes an eventfd readable.
        pub(crate) fn ring(fd: &EventFd) {
            // Fails only at a count of 2^64 - 2, and then the descriptor is readable anyway.
            let _ = fd.write(1);
        }

        /// Makes an eventfd unreadable.
        pub(crate) fn drain(fd: &EventFd) {
            // The read fails if the count is zero already.
            let _ = fd.read();
        }
    }
}
