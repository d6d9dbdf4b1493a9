//! Models of the whole queue under random schedules: real submitters, elevators and pumps around a small
//! device, with a virtual clock that moves only when everybody sleeps.
//!
//! Loom proves the protocols of `sync/` one by one; here is looked for what goes wrong *between* them: work
//! that nobody comes back for, a sleeper that nobody wakes, a request that two threads end. Shuttle takes
//! every atomic access for sequentially consistent, so it says nothing about orderings; that is loom's part.
//!
//! A model is a [`Model`](model::Model): what the queue is built from, what its device does, what its clients
//! submit. Each schedule ends with everything completed and nothing in use, or panics. The files are families
//! of models; each has twins with a bug planted in host, device or engine ([`planted`](crate::planted)),
//! which the same models must find.
//!
//! Schedules come from a fixed seed; another one is tried with `SHUTTLE_RANDOM_SEED`, and more of them with
//! `BLKMQ_SHUTTLE_TIMES`. A failure prints its schedule, to be replayed with `shuttle::replay`.

mod cancel;
mod change;
mod complete;
mod device;
mod drawn;
mod durable;
mod flush;
mod leader;
mod locked;
mod model;
mod order;
mod park;
mod pump_threads;
mod shared;
mod timeouts;
mod world;

/// Has the queue changed to `to`.
fn replan<P: Send + 'static>(
    queue: &crate::Queue<P>,
    to: crate::Plan,
) -> Result<crate::Change<P>, crate::ChangeError> {
    queue.change_by(|_| Ok(to))
}
