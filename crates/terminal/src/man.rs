//! The command `man`: manual pages for the program and each command, generated from the definition of the commands.
//!
//! Clap's own generator renders options. Notes and examples are rendered here, because it would join their lines.

use crate::UsageError;
use crate::page::Page;
use clap::builder::{PathBufValueParser, ValueHint};
use clap::{Arg, ArgMatches, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use std::io;
use std::path::{Path, PathBuf};

/// Defines the command. `files` names some of the pages.
#[must_use]
pub fn definition(files: &str, examples: &'static [&'static str]) -> Command {
    let page = Page {
        name: "man",
        summary: "print the manual page, or write one for each command",
        description: "",
        examples,
    };
    let dir = Arg::new("dir").long("dir").value_name("DIR").value_hint(ValueHint::DirPath);
    let dir = dir.value_parser(PathBufValueParser::new());
    page.command("").arg(dir.help(format!("write {files} and so on there; print nothing")))
}

/// Writes the manual of all `programs` (complete definitions), or renders the first page. Returns the text to print.
///
/// # Errors
/// If a file cannot be written.
pub fn run(found: &ArgMatches, programs: Vec<Command>) -> Result<String, UsageError> {
    let mut pages = programs.into_iter().flat_map(pages);
    match found.get_one::<PathBuf>("dir") {
        Some(dir) => {
            pages.try_for_each(|page| page.write(dir))?;
            Ok(String::new())
        }
        None => Ok(pages.next().map_or(String::new(), |page| page.text)),
    }
}

/// A manual page.
pub struct ManualPage {
    /// The file name, such as `blkmq-bench.1`.
    pub file: String,
    /// The roff source, for `man`.
    pub text: String,
}

impl ManualPage {
    fn write(&self, dir: &Path) -> Result<(), UsageError> {
        let path = dir.join(&self.file);
        let refuse = |e: io::Error| {
            let text = format!("{e}; accepted: a folder in which files can be made");
            UsageError::new(text).at(path.display())
        };
        std::fs::write(&path, &self.text).map_err(refuse)
    }
}

/// The page of the program and the pages of its commands.
pub fn pages(program: Command) -> Vec<ManualPage> {
    let mut program = program.disable_help_subcommand(true);
    program.build();
    let version = program.get_version().unwrap_or_default();
    let source = format!("{} {version}", program.get_name());
    let commands = [&program].into_iter().chain(program.get_subcommands());
    commands.map(|command| page(command, &source)).collect()
}

fn page(command: &Command, source: &str) -> ManualPage {
    let man = Man::new(described(command)).source(source);
    let notes = notes(&command.get_after_help().map_or(String::new(), ToString::to_string));
    let mut text = Vec::new();
    let rendered = man.render(&mut text).and_then(|()| notes.to_writer(&mut text));
    rendered.expect("a vector takes every byte");
    let text = String::from_utf8(text).expect("definitions are text");
    ManualPage { file: man.get_filename(), text }
}

/// The command without its notes, with its paragraphs where the generator looks for them, and with the aliases of its
/// options visible.
fn described(command: &Command) -> Command {
    let (paragraphs, notes) = (command.get_before_help().cloned(), None::<&str>);
    let command = command.clone().after_help(notes).mut_args(|arg| {
        let also = Vec::from_iter(arg.get_visible_aliases().into_iter().flatten()).join(", ");
        let help = arg.get_help().map_or(String::new(), ToString::to_string);
        if also.is_empty() { arg } else { arg.help(format!("{help} [also {also}]")) }
    });
    match paragraphs {
        Some(paragraphs) => command.long_about(paragraphs),
        None => command,
    }
}

/// Renders the notes that follow the options: paragraphs, headings (lines that end in a colon), and indented lines,
/// which are kept as they are.
fn notes(text: &str) -> Roff {
    let mut roff = Roff::new();
    if text.is_empty() {
        return roff;
    }
    roff.control("SH", ["NOTES"]);
    let mut is_indented = false;
    for line in text.lines() {
        if line.starts_with(' ') != is_indented {
            is_indented = !is_indented;
            roff.control(if is_indented { "nf" } else { "fi" }, []);
        }
        match line.strip_suffix(':') {
            _ if line.is_empty() => roff.control("PP", []),
            Some(heading) if !is_indented => roff.control("SS", [heading]),
            _ => roff.text([roman(line)]),
        };
    }
    if is_indented {
        roff.control("fi", []);
    }
    roff
}
