//! The frame of a program: its arguments, its [`output`], its exit code, and one line on standard error for each error.
//!
//! Clap's errors are converted to the common form: one line that names the refused word and the accepted ones.
//!
//! After the first signal, runs stop cleanly and print their results; a second one ends the program immediately. This
//! module stops nothing: runs poll their [`Stop`]. The server handles these signals separately.

use crate::UsageError;
use blkmq_core::{Instant, Nanos};
use blkmq_runtime::Clock;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgMatches, Command, Error};
use output::OutputError;
use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use signal_hook::{flag, low_level};
use std::fmt::Display;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Builder;

/// The reason why a program ends early. Its text has one line for each fault.
pub trait Failure: Display + From<UsageError> {
    /// The exit code: 1 for a failure of the work, 2 for a command line that cannot be understood, and 128 (as in fio)
    /// if a signal ended the work.
    fn exit_code(&self) -> u8;
}

/// Runs `work` with the command-line arguments and returns the exit code. `name` begins each line on standard error,
/// whatever the executable is called.
#[must_use]
pub fn run<F: Failure>(
    name: &'static str,
    work: impl FnOnce(&[String]) -> Result<(), F>,
) -> ExitCode {
    output::speak_as(name);
    outlive_the_limit_of_files();
    match arguments().map_err(F::from).and_then(|words| work(&words)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::complain(format_args!("{failure}"));
            failure.exit_code().into()
        }
    }
}

/// Parses the command-line arguments by `definition`, the complete definition of the program. Returns `None` if they
/// ask for help or the version, which is then printed.
///
/// # Errors
/// If the arguments are not a valid command line, or standard output cannot be written.
pub fn understood<F: From<UsageError> + From<OutputError>>(
    definition: &dyn Fn() -> Command,
    words: &[String],
) -> Result<Option<ArgMatches>, F> {
    let program = definition();
    let line = [program.get_name().to_owned()].into_iter().chain(words.iter().cloned());
    match program.try_get_matches_from(line) {
        Ok(found) => Ok(Some(found)),
        Err(e) if e.use_stderr() => Err(of(&e, definition(), words).into()),
        Err(e) => {
            output::print(&e.render().to_string())?;
            Ok(None)
        }
    }
}

/// The command-line arguments without the program's name.
fn arguments() -> Result<Vec<String>, UsageError> {
    let text = |arg: std::ffi::OsString| {
        let refuse = |arg| UsageError::new(format!("{arg:?}: not UTF-8; accepted is UTF-8 text"));
        arg.into_string().map_err(refuse)
    };
    std::env::args_os().skip(1).map(text).collect()
}

/// The error for `words`, which `definition` does not accept.
pub fn of(e: &Error, mut definition: Command, words: &[String]) -> UsageError {
    definition.build();
    // Options of the program may precede the command.
    let named = words.iter().find_map(|name| definition.find_subcommand(name));
    let command = named.unwrap_or(&definition);
    let guess =
        [ContextKind::SuggestedArg, ContextKind::SuggestedValue, ContextKind::SuggestedSubcommand];
    let guess = guess.into_iter().find_map(|kind| text(e, kind));
    let guess = guess.map_or(String::new(), |guess| format!("nearest: {guess}; "));
    let message = match e.kind() {
        ErrorKind::MissingSubcommand => format!("no command; accepted: {}", accepted(command)),
        ErrorKind::InvalidSubcommand => {
            let name = text(e, ContextKind::InvalidSubcommand).unwrap_or_default();
            format!("{name}: no such command; {guess}accepted: {}", accepted(&definition))
        }
        ErrorKind::UnknownArgument => {
            let word = text(e, ContextKind::InvalidArg).unwrap_or_default();
            let what =
                if word.starts_with('-') { "no such option" } else { "one argument too many" };
            format!("{word}: {what}; {guess}accepted: {}", accepted(command))
        }
        ErrorKind::MissingRequiredArgument => {
            let missing = command.get_arguments().find(|arg| arg.is_required_set());
            let missing = missing.map_or(String::new(), |arg| {
                format!("{} is missing: {}", value_name(arg), arg.get_help().unwrap_or_default())
            });
            format!("{missing}; accepted: {}", accepted(command))
        }
        ErrorKind::ValueValidation | ErrorKind::InvalidValue => value(e, command, &guess),
        // The definition has no conflicts, counted values or similar constraints.
        _ => {
            let text = e.render().to_string();
            text.lines().next().map_or("", |line| line.trim_start_matches("error: ")).to_owned()
        }
    };
    UsageError::new(message)
}

/// The message for a value that an argument refuses.
fn value(e: &Error, command: &Command, guess: &str) -> String {
    // Clap names the argument as its usage does: `--runtime <TIME>`, `[CLAIM]...`.
    let shown = text(e, ContextKind::InvalidArg).unwrap_or_default();
    let option = shown.split([' ', '=']).next().filter(|word| word.starts_with("--"));
    let arg = command.get_arguments().find(|arg| arg.to_string() == shown);
    let name = arg.map_or("value", value_name);
    let word = text(e, ContextKind::InvalidValue).unwrap_or_default();
    let place = option.map_or(word.to_owned(), |option| format!("{option}={word}"));
    if let Some(cause) = std::error::Error::source(e) {
        return format!("{place}: {cause}");
    }
    if word.is_empty() {
        return format!("{}: needs a value; accepted: {name}", option.unwrap_or(shown));
    }
    let known = match e.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(known)) => known.join(", "),
        _ => name.to_owned(),
    };
    format!("{place}: no such {}; {guess}accepted: {known}", name.to_lowercase())
}

fn text(e: &Error, kind: ContextKind) -> Option<&str> {
    match e.get(kind)? {
        ContextValue::String(text) => Some(text),
        ContextValue::Strings(texts) => texts.first().map(String::as_str),
        _ => None,
    }
}

/// Lists the words that a command accepts: commands, arguments, options.
fn accepted(command: &Command) -> String {
    let commands = command.get_subcommands().map(|command| command.get_name().to_owned());
    let positionals = command.get_positionals().map(|arg| value_name(arg).to_owned());
    let options = command.get_arguments().filter_map(|arg| {
        let long = arg.get_long()?;
        let takes = arg.get_num_args().is_some_and(|range| range.takes_values());
        Some(if takes { format!("--{long}={}", value_name(arg)) } else { format!("--{long}") })
    });
    Vec::from_iter(commands.chain(positionals).chain(options)).join(", ")
}

fn value_name(arg: &Arg) -> &str {
    arg.get_value_names().and_then(|names| names.first()).map_or(arg.get_id().as_str(), |it| it)
}

/// The exit code of a program that a signal has ended, as in fio.
pub const EXIT: u8 = 128;

/// Signals less than this apart count as one: `timeout` signals the program and then its whole process group.
const ONE: Nanos = Nanos::from_millis(500);

/// Makes writes beyond the file size limit (`ulimit -f`, `LimitFSIZE=`) fail with EFBIG. By default SIGXFSZ would end
/// the program, and with it all connections of a server.
pub fn outlive_the_limit_of_files() {
    // A handler that only sets a flag suppresses the default action of the signal.
    let _ = flag::register(SIGXFSZ, Arc::default());
}

/// Says whether a run is to end. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    /// The signal number; 0 if none has arrived.
    signal: Arc<AtomicUsize>,
}

impl Stop {
    /// Returns a stop that is set by the first signal that asks the program to end. A later signal ends the program
    /// immediately.
    pub fn on_signals() -> Self {
        let (stop, asked) = (Self::default(), [SIGINT, SIGTERM]);
        // If no handler can be installed, signals end the program as they do by default.
        let Ok(signals) = Signals::new(asked) else { return stop };
        let watched = stop.clone();
        let watcher = Builder::new().name("signals".into()).spawn(move || watched.watch(signals));
        if watcher.is_err() {
            // Without a thread the first signal has to end the program, since nothing else would notice it.
            for signal in asked {
                let at_once = Arc::new(AtomicBool::new(true));
                let _ = flag::register_conditional_shutdown(signal, EXIT.into(), at_once);
            }
        }
        stop
    }

    fn watch(&self, mut signals: Signals) {
        let clock = Clock::start();
        let mut first: Option<Instant> = None;
        for signal in signals.forever() {
            let now = clock.now();
            if now - *first.get_or_insert(now) >= ONE {
                low_level::exit(EXIT.into());
            }
            // Relaxed: no other data is published with the signal.
            self.signal.store(signal as usize, Ordering::Relaxed);
        }
    }

    /// The signal, or `None` if none has arrived.
    pub fn signal(&self) -> Option<i32> {
        match self.signal.load(Ordering::Relaxed) {
            0 => None,
            signal => Some(signal as i32),
        }
    }

    /// Returns whether the run must end.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.signal().is_some()
    }

    /// Ends the runs, as Ctrl-C does.
    pub fn set(&self) {
        // Relaxed: no other data is published with the signal.
        self.signal.store(SIGINT as usize, Ordering::Relaxed);
    }

    /// A stop that is already set, as after Ctrl-C.
    #[must_use]
    pub fn after_ctrl_c() -> Self {
        Self { signal: Arc::new(AtomicUsize::new(SIGINT as usize)) }
    }
}

pub mod output {
    //! Text for standard output and standard error, and properties of the terminal: its width, and whether it shows
    //! more than ASCII. A closed pipe is not an error: the reader has read enough. Nothing here panics because of it.

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
        reaches(text).map(drop)
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
        let locale =
            locales.find(|value| !value.is_empty()).unwrap_or_default().to_ascii_lowercase();
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
}
