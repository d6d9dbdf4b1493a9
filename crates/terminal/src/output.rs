//! Text for standard output and standard error. A reader that has closed the pipe has read enough: that is no error, and
//! nothing here panics because of it.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::sync::OnceLock;

/// Standard output cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("standard output: {0}")]
pub struct OutputError(pub io::Error);

/// The word before each line of the program's own.
static NAME: OnceLock<&'static str> = OnceLock::new();

/// Lets `name` begin the lines of [`complain`]. The first name stays.
pub fn speak_as(name: &'static str) {
    NAME.get_or_init(|| name);
}

/// Writes to standard output.
///
/// # Errors
/// If it cannot be written; not if its reader has closed the pipe.
pub fn print(text: &str) -> Result<(), OutputError> {
    quietly(write(io::stdout().lock(), text)).map_err(OutputError)
}

/// Writes to standard output, and returns false if its reader has closed the pipe: more of the same has no reader.
///
/// # Errors
/// If it cannot be written.
pub fn reaches(text: &str) -> Result<bool, OutputError> {
    match write(io::stdout().lock(), text) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(OutputError(error)),
    }
}

/// Writes results to standard output and, where that is impossible, to standard error: a full disk loses no measurement.
///
/// # Errors
/// If standard output cannot be written; not if its reader has closed the pipe.
pub fn print_results(text: &str) -> Result<(), OutputError> {
    let printed = print(text);
    if printed.is_err() {
        // If this fails as well, there is no place left; the error of standard output says so.
        let _ = write(io::stderr().lock(), text);
    }
    printed
}

/// Writes a line of the program's own to standard error, behind the name of the program.
pub fn complain(line: Arguments<'_>) {
    // Without standard error there is no place to report that.
    let name = NAME.get().unwrap_or(&"blkmq");
    let _ = write(io::stderr().lock(), &format!("{name}: {line}\n"));
}

/// No error where the reader has closed the pipe.
///
/// # Errors
/// Any other error of `result`.
pub fn quietly(result: io::Result<()>) -> io::Result<()> {
    result.or_else(|e| if e.kind() == ErrorKind::BrokenPipe { Ok(()) } else { Err(e) })
}

fn write(mut to: impl Write, text: &str) -> io::Result<()> {
    to.write_all(text.as_bytes())?;
    to.flush()
}
