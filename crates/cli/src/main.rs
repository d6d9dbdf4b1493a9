//! The command `blkmq`. All of it is in the library.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    blkmq_cli::main()
}
