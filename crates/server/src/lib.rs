//! A block server: devices, each under a scheduler, shared by clients that speak NBD.
//!
//! A [`Server`] opens its [`Disk`]s, and serves [`Export`]s of them: a whole disk or a region, each in a group with a
//! weight and limits. Its data path has one thread for each core and no executor: a worker owns its connections and a
//! client of every disk. It parses all requests returned by a read of the socket, submits them as one plug, and sends
//! the available replies with one write.
//!
//! This crate has the sockets and the threads. The wire protocol is in `blkmq-nbd`, the I/O in `blkmq`.

#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

mod allow;
mod carrier;
mod clients;
pub mod control;
mod disk;
mod export;
mod figures;
mod flight;
mod http;
mod listener;
mod log;
mod metrics;
mod server;
mod stream;
mod threads;
mod tls;
mod ublk;
mod vhost;
mod watch;
mod worker;

pub use allow::{Allow, Network, Rule, RuleError};
pub use blkmq_ublk::control::UblkError;
pub use clients::Bounds;
pub use disk::Disk;
pub use export::{Cache, Export, ExportError, GuestIoprio, MOST_QUEUES, Region, Ublk, VhostUser};
pub use figures::Counting;
pub use listener::{Address, AddressError, Listener, Rights};
pub use metrics::Format;
pub use server::{Handle, Server, ServerError, Settings};
pub use tls::{Tls, TlsError};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. The guarded value is consistent between statements, so a panic of another thread does not matter.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
