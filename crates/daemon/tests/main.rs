//! All test files in one program, so that the engine's generic code is compiled and linked only once. `cargo test -p
//! blkmq-daemon --test all serve::` runs one file.

#![cfg(target_os = "linux")]

#[path = "../../server/tests/guest.rs"]
#[allow(dead_code, reason = "the tests of the server use it, too, and other parts of it")]
mod guest;
#[path = "../../cli/tests/pty.rs"]
#[allow(dead_code, reason = "the tests of the laboratory use it, too, and other parts of it")]
mod pty;
mod serve;
mod serving;
mod terminals;

const BLKMQD: &str = env!("CARGO_BIN_EXE_blkmqd");
/// The client, used in most tests of terminals.
const BIN: &str = env!("CARGO_BIN_EXE_blkmqctl");
