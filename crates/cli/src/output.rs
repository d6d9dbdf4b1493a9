//! Text for standard output and standard error. A reader that has closed the pipe has read enough: that is no error, and
//! nothing here panics because of it.

use crate::error::Failure;
use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};

/// Writes to standard output.
///
/// # Errors
/// If it cannot be written; not if its reader has closed the pipe.
pub fn print(text: &str) -> Result<(), Failure> {
    quietly(write(io::stdout().lock(), text)).map_err(Failure::Output)
}

/// Writes to standard output, and returns false if its reader has closed the pipe: more of the same has no reader.
///
/// # Errors
/// If it cannot be written.
pub fn reaches(text: &str) -> Result<bool, Failure> {
    match write(io::stdout().lock(), text) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::Output(error)),
    }
}

/// Writes results to standard output and, where that is impossible, to standard error: a full disk loses no measurement.
///
/// # Errors
/// If standard output cannot be written; not if its reader has closed the pipe.
pub fn print_results(text: &str) -> Result<(), Failure> {
    let printed = print(text);
    if printed.is_err() {
        // If this fails as well, there is no place left; the error of standard output says so.
        let _ = write(io::stderr().lock(), text);
    }
    printed
}

/// Writes a line of the program's own to standard error.
pub fn complain(line: Arguments<'_>) {
    // Without standard error there is no place to report that.
    let _ = write(io::stderr().lock(), &format!("blkmq: {line}\n"));
}

/// No error where the reader has closed the pipe.
pub fn quietly(result: io::Result<()>) -> io::Result<()> {
    result.or_else(|e| if e.kind() == ErrorKind::BrokenPipe { Ok(()) } else { Err(e) })
}

fn write(mut to: impl Write, text: &str) -> io::Result<()> {
    to.write_all(text.as_bytes())?;
    to.flush()
}
