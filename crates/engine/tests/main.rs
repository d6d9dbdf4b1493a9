//! Every file of tests here, in one program: the engine's generic code is compiled and linked once for all of them.
//! `cargo test -p blkmq-engine --test all attributes::` runs one file.

mod attributes;
mod before;
mod bypass;
mod cancel;
mod ceilings;
mod change;
mod common;
mod contention;
mod deadlines;
mod departed;
mod dispatch;
mod event_fd;
mod flush;
mod goals;
mod group_stats;
mod groups;
mod interleavings;
mod lists;
mod outstanding;
mod owners;
mod poison;
mod pump_thread;
mod shared_tags;
mod splitting;
mod submission;
mod timeouts;
mod times;
mod tokens;
mod trace;
mod waiting;
mod waits;
mod wakeups;
