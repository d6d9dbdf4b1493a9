//! The comparison modes: an elevator behind a lock, as the kernel has it (the *before*) and as patches proposed it.
//!
//! Faithful where contention depends on it. As in the kernel, the lock is taken for each bio's merge attempt, once per
//! inserted plug, and once per dispatched request. Each thread collects its own list and issues it after it has
//! released the elevator, so the order between threads is arbitrary (`spec/framework.md` sections 8 and 15). A hardware
//! queue has its own lock, taken once per issued list, as NVMe's submission queues have.
//!
//! | option | before | as proposed |
//! |---|---|---|
//! | merge | waits for the lock | gives up if the lock is taken: `locked.rs` |
//! | insert | waits for the lock | parks the requests: `locked.rs`, `shared/parking.rs` |
//! | dispatch | one at a time: `collect.rs` | a batch: `collect.rs` |
//! | access | every thread dispatches | one thread at a time: `sync/dispatch_gate.rs`, asked in `Locked::collect` |
//! | kick | each kick wakes | a flag: `sync/delayed_work.rs`, behind every gate (`gate.rs`) |
//!
//! The combining elevator, which replaces all of this, is in `dispatch/drive.rs` and `elevator/runner.rs`. The two
//! share only the code behind the gates. This folder is compiled only with the feature `compare`, and so are the hooks
//! by which drivers in virtual time delay a thread (`run.rs`).

pub mod calls;
mod collect;
pub(crate) mod gate;
pub(crate) mod locked;
pub(crate) mod run;
