//! Models of the whole queue under random schedules: real submitters, elevators and pumps around a small device, with
//! a virtual clock that moves only when all threads sleep.
//!
//! Loom proves the protocols of `sync/` one by one. These models look for faults *between* them: work that every thread
//! leaves undone, a sleeper that no thread wakes, a request that two threads end. Shuttle treats every atomic access as
//! sequentially consistent, so it does not check orderings; loom does.
//!
//! A [`Model`](model::Model) has the configuration of the queue, the script of the device, and the I/Os of the clients.
//! Each schedule ends with every I/O completed and nothing in use, or panics. Each file is a family of models. Its
//! twins plant a bug in host, device or engine ([`planted`](crate::planted)), which the same models must find.
//!
//! Schedules come from a fixed seed. `SHUTTLE_RANDOM_SEED` sets another one, and `BLKMQ_SHUTTLE_TIMES` multiplies
//! their number. A failure prints its schedule, which `shuttle::replay` replays.

mod cancel;
mod change;
mod complete;
mod device;
mod drawn;
mod durable;
mod flush;
mod in_vain;
mod leader;
mod locked;
mod lost_cpu;
mod model;
mod order;
mod owners;
mod park;
mod shared;
mod timeouts;
mod world;

/// Begins to change the queue to `to`.
fn replan<P: Send + 'static>(
    queue: &crate::Queue<P>,
    to: crate::Plan,
) -> Result<crate::Change<P>, crate::ChangeError> {
    queue.change_by(|_| Ok(to))
}
