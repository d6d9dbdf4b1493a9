//! Text for standard output and standard error, and properties of the terminal: its width, and whether it shows more
//! than ASCII. A closed pipe is not an error: the reader has read enough. Nothing here panics because of it.

use std::borrow::Cow;
use std::env;
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

/// The minimum width of the layout, also on narrower terminals.
const NARROWEST: usize = 60;
/// The maximum width of the layout, also on wider terminals.
const WIDEST: usize = 200;
/// The width if the terminal's is unknown.
const USUAL: usize = 80;

/// The width for text: `COLUMNS`, else the terminal's own, else 80; clamped to 60..=200.
pub fn width() -> usize {
    known_width().unwrap_or(USUAL)
}

/// Like [`width`], but `None` if neither `COLUMNS` nor the terminal gives a width.
pub fn known_width() -> Option<usize> {
    let terminal = terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
    chosen(env::var("COLUMNS").ok().as_deref(), terminal)
}

fn chosen(columns: Option<&str>, terminal: Option<usize>) -> Option<usize> {
    let columns = columns.and_then(|text| text.trim().parse().ok());
    let known = [columns, terminal].into_iter().flatten().find(|width| *width > 0)?;
    Some(known.clamp(NARROWEST, WIDEST))
}

/// The text with `?` for characters beyond ASCII if the locale is not UTF-8 or the terminal is dumb.
pub fn shown(text: &str) -> Cow<'_, str> {
    if text.is_ascii() || is_rich(|name| env::var(name).ok()) {
        return Cow::Borrowed(text);
    }
    text.chars().map(|c| if c.is_ascii() { c } else { '?' }).collect()
}

/// Returns whether the terminal shows more than ASCII, judged by these environment variables.
fn is_rich(variable: impl Fn(&str) -> Option<String>) -> bool {
    // As in setlocale(3), the first variable that is set decides.
    let mut locales = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(&variable);
    let locale = locales.find(|value| !value.is_empty()).unwrap_or_default().to_ascii_lowercase();
    let is_utf8 = locale.contains("utf-8") || locale.contains("utf8");
    is_utf8 && variable("TERM").is_none_or(|term| term != "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_win_over_the_terminal_and_both_have_bounds() {
        assert_eq!(chosen(None, None), None);
        assert_eq!(chosen(None, Some(132)), Some(132));
        assert_eq!(chosen(Some("100"), Some(132)), Some(100));
        assert_eq!((chosen(Some("9"), None), chosen(Some("999"), None)), (Some(60), Some(200)));
        for unknown in ["", "wide", "0", "-1"] {
            assert_eq!(chosen(Some(unknown), Some(90)), Some(90), "{unknown}");
        }
        assert_eq!(chosen(None, Some(0)), None, "a terminal that does not know its size");
    }

    #[test]
    fn the_locale_and_the_terminal_decide_about_letters() {
        let rich = |set: &[(&str, &str)]| {
            let find = |name: &str| set.iter().find(|(known, _)| *known == name);
            is_rich(|name| find(name).map(|(_, value)| (*value).to_owned()))
        };
        assert!(rich(&[("LANG", "en_GB.UTF-8")]) && rich(&[("LC_CTYPE", "C.utf8")]));
        assert!(!rich(&[]) && !rich(&[("LANG", "C")]));
        assert!(!rich(&[("LC_ALL", "C"), ("LANG", "en_GB.UTF-8")]));
        assert!(rich(&[("LC_ALL", ""), ("LANG", "en_GB.UTF-8")]));
        assert!(!rich(&[("LANG", "en_GB.UTF-8"), ("TERM", "dumb")]));
    }
}
