//! All test files in one program, so that the engine's generic code is compiled and linked only once. `cargo test -p
//! blkmq-cli --test all command_line::` runs one file.

mod as_fio;
mod command_line;
#[cfg(target_os = "linux")]
mod documented;
mod failures;
mod measured;
#[cfg(target_os = "linux")]
#[allow(
    dead_code,
    reason = "the tests of the server's programs use it, too, and other parts of it"
)]
mod pty;
mod schedulers;
#[cfg(target_os = "linux")]
mod terminal;
mod traces;
mod workload;

/// The program under test.
#[cfg(target_os = "linux")]
const BIN: &str = env!("CARGO_BIN_EXE_blkmq");

/// The program for long tests: the one built with the tests, or a faster build named by the environment.
fn program() -> std::ffi::OsString {
    std::env::var_os("BLKMQ_PROGRAM").unwrap_or_else(|| env!("CARGO_BIN_EXE_blkmq").into())
}
