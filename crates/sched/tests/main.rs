//! All files of tests in this folder, in one program. `cargo test -p blkmq-sched --test all kyber::` runs one folder.

mod bfq;
mod differential;
mod kyber;
mod mclock;
mod mq_deadline;
mod naive;
