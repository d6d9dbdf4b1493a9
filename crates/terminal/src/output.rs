//! Text for standard output and standard error. A closed pipe is not an error: the reader has read enough. Nothing here
//! panics because of it.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::sync::OnceLock;

/// Standard output could not be written.
#[derive(Debug, thiserror::Error)]
#[error("standard output: {0}")]
pub struct OutputError(pub io::Error);

/// The program name that begins each line of [`complain`].
static NAME: OnceLock<&'static str> = OnceLock::new();

/// Sets the name that begins the lines of [`complain`]. Later calls have no effect.
pub fn speak_as(name: &'static str) {
    NAME.get_or_init(|| name);
}

/// Writes to standard output.
///
/// # Errors
/// If the write fails for any reason other than a closed pipe.
pub fn print(text: &str) -> Result<(), OutputError> {
    quietly(write(io::stdout().lock(), text)).map_err(OutputError)
}

/// Writes to standard output. Returns false if the reader has closed the pipe, so that the caller can stop writing.
///
/// # Errors
/// If the write fails.
pub fn reaches(text: &str) -> Result<bool, OutputError> {
    match write(io::stdout().lock(), text) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(OutputError(error)),
    }
}

/// Writes results to standard output, or to standard error if that fails: a full disk must not lose a measurement.
///
/// # Errors
/// If standard output cannot be written, for any reason other than a closed pipe.
pub fn print_results(text: &str) -> Result<(), OutputError> {
    let printed = print(text);
    if printed.is_err() {
        // If this fails too, no stream is left; the error of standard output is reported.
        let _ = write(io::stderr().lock(), text);
    }
    printed
}

/// Writes a line to standard error, prefixed with the name of the program.
pub fn complain(line: Arguments<'_>) {
    // A failure of standard error cannot be reported anywhere.
    let name = NAME.get().unwrap_or(&"blkmq");
    let _ = write(io::stderr().lock(), &format!("{name}: {line}\n"));
}

/// Turns the error of a closed pipe into success.
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
