//! Every file of tests here, in one program: the engine's generic code is compiled and linked once for all of them.
//! `cargo test -p blkmq-engine --test all attributes::` runs one file.

mod attributes;
mod before;
mod bypass;
mod cancel;
mod change;
mod common;
mod contention;
mod dispatch;
mod flush;
mod goals;
mod group_stats;
mod groups;
mod poison;
mod shared_tags;
mod splitting;
mod submission;
mod timeouts;
mod trace;
mod wakeups;
