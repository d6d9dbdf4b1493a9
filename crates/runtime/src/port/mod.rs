//! The threads, the locks and the system calls by which this crate waits. Under shuttle, `model.rs` replaces them, so
//! the loops of clients, reactors and pump threads run there unchanged.
//!
//! The model uses real descriptors, and asks the kernel whether they are readable; only the waiting is modelled.
//!
//! The clock is not part of the port (`clock.rs`), nor is a berth, which is a port itself (`blkmq_engine::Berth`).

#[cfg(not(all(test, shuttle)))]
mod kernel;
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
