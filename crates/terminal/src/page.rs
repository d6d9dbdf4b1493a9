//! The form of all pages of help: a sentence, paragraphs, the usage, the options, notes, and examples.
//!
//! A page is a [`clap::Command`], so that help, shell completion and the manual share one definition. Clap wraps
//! paragraphs to the width of the terminal; indented lines are not wrapped, so they have at most 80 columns. A page
//! does not run its command.

use crate::output;
use crate::paper::{Paper, push_command};
use clap::Command;

/// The maximum width of a page, however wide the terminal is.
const WIDEST: usize = 100;
/// The maximum width of an example, so that the manual shows the same examples on every terminal of at least this
/// width.
const EXAMPLE: usize = 80;

/// The summary, the paragraphs, the usage; then everything that clap knows about the arguments.
const LAYOUT: &str = "\
{about-with-newline}
{before-help}{usage-heading} {usage}

{all-args}{after-help}";

/// The texts of a command's page.
pub struct Page {
    /// The name of the command.
    pub name: &'static str,
    /// The summary line, also shown in lists of commands.
    pub summary: &'static str,
    /// The description in paragraphs; may be empty.
    pub description: &'static str,
    /// Complete command lines. Lines continued with a backslash are broken to fit the terminal; other lines are kept as
    /// they are.
    pub examples: &'static [&'static str],
}

impl Page {
    /// The command, without arguments. `notes` are paragraphs, and lists below lines that end in a colon; they appear
    /// between the options and the examples.
    pub fn command(&self, notes: &str) -> Command {
        let width = output::width();
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
