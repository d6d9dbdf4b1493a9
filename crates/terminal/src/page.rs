//! The form of all pages of help: a sentence, paragraphs, the usage, the options, notes, and examples.
//!
//! A page is a [`clap::Command`], so that the screen, the shells' completion and the manual show one definition. In
//! paragraphs a line has no end: clap breaks it at the width of the terminal. Indented lines stay as they are, so they
//! have at most 80 columns. A page does not run its command.

use crate::paper::{Paper, push_command};
use crate::screen;
use clap::Command;

/// The widest page, on however wide a terminal.
const WIDEST: usize = 100;
/// The widest example: those of the manual are the same on every terminal that is as wide.
const EXAMPLE: usize = 80;

/// The sentence, the paragraphs, the usage; then everything that clap knows of the arguments.
const LAYOUT: &str = "\
{about-with-newline}
{before-help}{usage-heading} {usage}

{all-args}{after-help}";

/// The texts of a command's page.
pub struct Page {
    /// The word for the command.
    pub name: &'static str,
    /// Its effect in a line, which lists of commands show, too.
    pub summary: &'static str,
    /// Its effect in paragraphs; may be empty.
    pub description: &'static str,
    /// Whole command lines. One that is continued behind a backslash is broken where the terminal needs it; any other
    /// stays as it is.
    pub examples: &'static [&'static str],
}

impl Page {
    /// The command, still without arguments. `notes` are paragraphs, and lists below lines that end in a colon; they
    /// stand between the options and the examples.
    pub fn command(&self, notes: &str) -> Command {
        let width = screen::width();
        let mut examples = Paper::new(width.min(EXAMPLE));
        for example in self.examples {
            match example.split_once("\\\n") {
                Some(_) => push_command(&mut examples, 2, &example.replace("\\\n", "")),
                None if example.contains("  ") => examples.push_str(&format!("  {example}\n")),
                None => push_command(&mut examples, 2, example),
            }
        }
        let notes =
            if notes.is_empty() { String::new() } else { format!("{}\n\n", notes.trim_end()) };
        let command = Command::new(self.name)
            .about(self.summary)
            .after_help(format!("{notes}Examples:\n{}", examples.finish().trim_end()))
            .help_template(LAYOUT)
            .term_width(width.min(WIDEST))
            .args_override_self(true);
        if self.description.is_empty() { command } else { command.before_help(self.description) }
    }
}
