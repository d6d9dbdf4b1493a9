//! The form of all pages of help: a sentence, paragraphs, the usage, the options, notes, and examples; and the commands
//! that generate scripts for shells and manual pages from the same definition.
//!
//! A page is a [`clap::Command`], so that help, shell completion and the manual share one definition. Clap wraps
//! paragraphs to the width of the terminal; indented lines are not wrapped, so they have at most 80 columns. A page
//! does not run its command.

use crate::paper::{Paper, push_command};
use crate::program::output;
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

pub mod completions {
    //! The command `completions`: scripts by which shells complete commands and options.

    use super::Page;
    use clap::builder::EnumValueParser;
    use clap::{Arg, ArgMatches, Command};
    use clap_complete::Shell;

    /// Defines the command.
    #[must_use]
    pub fn definition(examples: &'static [&'static str]) -> Command {
        let page = Page {
            name: "completions",
            summary: "print a script by which a shell completes commands and options",
            description: "",
            examples,
        };
        let shell = Arg::new("shell").value_name("SHELL").required(true);
        let shell = shell.value_parser(EnumValueParser::<Shell>::new());
        page.command("").arg(shell.help("the shell that is to read the script"))
    }

    /// The script for `program`, which is the complete definition.
    pub fn script(found: &ArgMatches, program: Command) -> String {
        let shell = *found.get_one::<Shell>("shell").expect("clap refuses a line without it");
        let name = program.get_name().to_owned();
        let mut program = program.mut_subcommands(|command| command.mut_args(without_colons));
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut program, name, &mut script);
        String::from_utf8(script).expect("scripts are text")
    }

    /// Gives `arg` a value name that zsh understands: colons separate the parts of zsh's descriptions, and the
    /// generator does not escape them.
    fn without_colons(arg: Arg) -> Arg {
        let has_colon =
            arg.get_value_names().is_some_and(|names| names.iter().any(|it| it.contains(':')));
        if has_colon { arg.value_name("VALUE") } else { arg }
    }
}

pub mod man {
    //! The command `man`: manual pages for the program and each command, generated from the definition of the commands.
    //!
    //! Clap's own generator renders options. Notes and examples are rendered here, because it would join their lines.

    use super::Page;
    use crate::UsageError;
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

    /// Writes the manual of all `programs` (complete definitions), or renders the first page. Returns the text to
    /// print.
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

    /// The command without its notes, with its paragraphs where the generator looks for them, and with the aliases of
    /// its options visible.
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
}
