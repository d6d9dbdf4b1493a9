//! The command `blkmq trace`: its page, its options, and their meaning.

use super::source::{self, Source};
use blkmq_recording::Form;
use blkmq_terminal::UsageError;
use blkmq_terminal::page::Page;
use clap::builder::ValueHint;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use std::path::PathBuf;

const PAGE: Page = Page {
    name: "trace",
    summary: "what is in a recording of I/Os, or the recording in another form",
    description: "\
Reads a recording that another program has made. The first word behind the command says what is done with it: info shows \
rates, sizes, the mix, order, bursts, the working set and tenants; convert writes it in another form. Formats are told by \
content. The memory that is needed does not depend on the length of a trace.",
    examples: &[
        "blkmq trace info trace.csv.gz",
        "blkmq trace info trace.csv --page=trace.html",
        "blkmq trace info trace.csv --json",
        "blkmq trace info own.csv --format='time=us,1 offset=bytes,3 size=bytes,4 op=word,2'",
        "blkmq trace convert trace.csv --to=iolog3 --output=trace.log",
    ],
};

/// The task.
pub enum Wanted {
    /// `info`.
    Info {
        /// The trace.
        source: Source,
        /// The file for a page with plots.
        page: Option<PathBuf>,
        /// The facts are printed as JSON.
        json: bool,
    },
    /// `convert`.
    Convert {
        /// The trace.
        source: Source,
        /// The form.
        form: Form,
        /// The file; `None` is standard output.
        output: Option<String>,
    },
}

/// The command.
pub fn definition() -> Command {
    let option = |name, value| Arg::new(name).long(name).value_name(value);
    let task = Arg::new("task").value_name("TASK").required(true).value_parser(["info", "convert"]);
    PAGE.command("")
        .arg(task.help("info or convert"))
        .arg(source::path())
        .args(source::options())
        .args([
        option("page", "FILE.html")
            .value_hint(ValueHint::FilePath)
            .help("info: a page with plots as well"),
        Arg::new("json").long("json").action(ArgAction::SetTrue).help("info: as JSON"),
        option("to", "FORM").value_parser(form).help(
            "convert: the form, which is csv (every field), iolog2, iolog3 or mqsim (default: csv)",
        ),
        option("output", "FILE")
            .value_hint(ValueHint::FilePath)
            .help("convert: the file (default: standard output)"),
    ])
}

fn form(text: &str) -> Result<Form, UsageError> {
    let known = Form::NAMES.into_iter().find(|(_, name)| *name == text);
    known.map(|(form, _)| form).ok_or_else(|| {
        let names = Vec::from_iter(Form::NAMES.iter().map(|it| it.1)).join(", ");
        UsageError::new(format!("{text}; accepted: {names}"))
    })
}

impl Wanted {
    /// Converts the arguments that clap has parsed.
    ///
    /// # Errors
    /// If an option belongs to the other task.
    pub fn of(found: &ArgMatches) -> Result<Self, UsageError> {
        let source = Source::of(found);
        let text = |name| found.get_one::<String>(name).cloned();
        let task = text("task");
        let (task, others) = match task.as_deref() {
            Some("convert") => ("convert", &["page", "json"][..]),
            _ => ("info", &["to", "output"][..]),
        };
        let is_given = |name: &&&str| found.value_source(name) == Some(ValueSource::CommandLine);
        if let Some(name) = others.iter().find(is_given) {
            let of = if task == "info" { "convert" } else { "info" };
            return Err(UsageError::new(format!("--{name} is an option of {of}, not of {task}")));
        }
        Ok(match task {
            "convert" => {
                let form = found.get_one("to").copied().unwrap_or(Form::Csv);
                Self::Convert { source, form, output: text("output") }
            }
            _ => {
                let page = text("page").map(PathBuf::from);
                Self::Info { source, page, json: found.get_flag("json") }
            }
        })
    }
}
