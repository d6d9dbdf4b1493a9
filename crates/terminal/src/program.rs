//! The frame of a program: its arguments, its exit code, and one line on standard error for each error.
//!
//! Clap's errors are converted to the common form: one line that names the refused word and the accepted ones.

use crate::error::UsageError;
use crate::output::OutputError;
use crate::{interrupt, output};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgMatches, Command, Error};
use std::fmt::Display;
use std::process::ExitCode;

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
    interrupt::outlive_the_limit_of_files();
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
