//! `blkmq trace`: the contents of a recording, and the recording in the form of another program.
//!
//! A [`Source`] is a trace named on a command line, with the options for reading it; `blkmq replay` and `blkmq bench`
//! read traces through it, too.

mod info;
pub mod tapes;

pub use info::cautions;

use crate::Failure;
use blkmq_recording::{Error, Event, Form, Format, Options, PRESETS, Reader, Summary, Writer};
use blkmq_terminal::output::{OutputError, complain, print, quietly, shown, width};
use blkmq_terminal::page::Page;
use blkmq_terminal::{UsageError, program};
use clap::builder::ValueHint;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

/// Runs `blkmq trace` with its arguments.
///
/// # Errors
/// If the trace cannot be read, or a result cannot be written.
pub fn run(found: &ArgMatches) -> Result<(), Failure> {
    match Wanted::of(found)? {
        Wanted::Info { source, page, json } => info(&source, page, json),
        Wanted::Convert { source, form, output } => convert(&source, form, output),
    }
}

fn info(source: &Source, page: Option<PathBuf>, json: bool) -> Result<(), Failure> {
    let (summary, reader) = summed(source)?;
    if let Some(path) = page {
        let text = info::render_page(&source.file, &summary, &reader);
        let written = std::fs::write(&path, text);
        written.map_err(|e| Failure::Results(format!("{}: {e}", path.display())))?;
    }
    let text = match json {
        true => info::json(&summary, &reader),
        false => shown(&info::render_text(&source.file, &summary, &reader, width())).into_owned(),
    };
    Ok(print(&text)?)
}

/// The facts about a trace as JSON; `words` are the arguments of `blkmq trace info`.
///
/// # Errors
/// If they cannot be understood, or the trace cannot be read.
pub fn info_of(words: &[String]) -> Result<String, Failure> {
    let words: Vec<String> = ["info".to_owned()].iter().chain(words).cloned().collect();
    let Some(found) = program::understood::<Failure>(&definition, &words)? else {
        return Err(
            UsageError::new("--help: prints something; accepted: options of a trace").into()
        );
    };
    match Wanted::of(&found)? {
        Wanted::Info { source, page: None, .. } => {
            let (summary, reader) = summed(&source)?;
            Ok(info::json(&summary, &reader))
        }
        _ => Err(UsageError::new("--page: of the command").into()),
    }
}

/// The facts about a whole trace.
fn summed(source: &Source) -> Result<(Summary, Reader), Failure> {
    let mut reader = source.open()?;
    let mut summary = Summary::default();
    while let Some(record) = reader.next_record().map_err(|e| source.fault(&e))? {
        summary.add(&record);
    }
    Ok((summary, reader))
}

fn convert(source: &Source, form: Form, output: Option<String>) -> Result<(), Failure> {
    let mut reader = source.open()?;
    match output {
        Some(path) => {
            let refuse = |e: io::Error| Failure::Results(format!("{path}: {e}"));
            let file = File::create(&path).map_err(refuse)?;
            pour(source, &mut reader, form, file, &refuse)
        }
        None => pour(source, &mut reader, form, io::stdout().lock(), &|e| OutputError(e).into()),
    }
}

/// Writes all records to `to`, and reports on standard error how many were omitted.
fn pour(
    source: &Source,
    reader: &mut Reader,
    form: Form,
    to: impl Write,
    refuse: &impl Fn(io::Error) -> Failure,
) -> Result<(), Failure> {
    let write = |result: io::Result<()>| quietly(result).map_err(refuse);
    let mut writer = Writer::new(form, BufWriter::new(to)).map_err(refuse)?;
    while let Some(record) = reader.next_record().map_err(|e| source.fault(&e))? {
        write(writer.write(&record, reader.tenants(), reader.volumes()))?;
    }
    let left_out = match writer.finish() {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => 0,
        finished => finished.map_err(refuse)?,
    };
    let before = reader.stamps().unordered;
    if left_out > 0 {
        complain(format_args!("{left_out} I/Os are left out: the form has reads and writes only"));
    }
    if before > 0 {
        complain(format_args!("{before} I/Os are not in the order of their times; it is kept"));
    }
    for line in info::skipped(reader) {
        complain(format_args!("{line}"));
    }
    Ok(())
}

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
enum Wanted {
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
    PAGE.command("").arg(task.help("info or convert")).arg(path()).args(options()).args([
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
    fn of(found: &ArgMatches) -> Result<Self, UsageError> {
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

/// A trace, and the options for reading it.
#[derive(Debug)]
pub struct Source {
    /// The path.
    pub file: String,
    options: Options,
}

/// The options of a trace, without its path.
pub fn options() -> Vec<Arg> {
    let option = |name, value| Arg::new(name).long(name).value_name(value);
    let names = Vec::from_iter(PRESETS.iter().map(|preset| preset.name)).join(", ");
    let format = format!(
        "the format of a trace: {names}, blktrace, blkparse, iolog2, iolog3, vscsi1, vscsi2, or columns such as \
         'time=us,1 offset=bytes,2 size=bytes,3 op=word,4 group=5' (default: by content)"
    );
    vec![
        option("format", "FORMAT")
            .value_parser(|text: &str| Format::parse(text).map_err(|e| UsageError::new(e.to_string())))
            .help(format),
        option("group-by", "COLUMN").help("the column of a trace that is the tenant: its name, or its number from 1"),
        option("class-by", "COLUMN").help("the column of a trace that is the priority class: rt, be, idle, none"),
        option("skip-bad", "N")
            .value_parser(value_parser!(u64))
            .help("rows of a trace that are skipped if they are no I/O (default: 0)"),
        Arg::new("issued")
            .long("issued")
            .action(ArgAction::SetTrue)
            .help("of blktrace and blkparse, count requests as they were issued (D), not I/Os as they were queued (Q)"),
    ]
}

/// The path of a trace.
fn path() -> Arg {
    let help = "a trace; gzip and zstd are read as well, and - is standard input";
    Arg::new("file").value_name("TRACE").required(true).value_hint(ValueHint::FilePath).help(help)
}

impl Source {
    /// The trace of a command that has [`path`] and [`options`].
    pub fn of(found: &ArgMatches) -> Self {
        let text = |name| found.get_one::<String>(name).cloned();
        let options = Options {
            format: found.get_one("format").cloned(),
            group_by: text("group-by"),
            class_by: text("class-by"),
            skip_bad: found.get_one("skip-bad").copied().unwrap_or(0),
            event: if found.get_flag("issued") { Event::Issued } else { Event::Queued },
        };
        Self { file: text("file").expect("clap refuses a line without it"), options }
    }

    /// The trace in a file whose format is detected from its content.
    pub fn in_file(file: &str) -> Self {
        Self { file: file.into(), options: Options::default() }
    }

    /// Opens the trace.
    ///
    /// # Errors
    /// If it does not exist, or its format is not recognised.
    pub fn open(&self) -> Result<Reader, UsageError> {
        let reader = if self.file == "-" {
            Reader::new(io::stdin(), &self.options)
        } else {
            let file = File::open(&self.file);
            let file = file.map_err(|e| UsageError::new(e.to_string()).at(&self.file))?;
            Reader::new(file, &self.options)
        };
        reader.map_err(|e| self.fault(&e))
    }

    /// An error prefixed with the name of the trace.
    pub fn fault(&self, error: &Error) -> UsageError {
        let remedy = match error {
            Error::Row { .. } | Error::Place { .. } => {
                "; accepted with --skip-bad=N: up to N such rows"
            }
            _ => "",
        };
        UsageError::new(format!("{error}{remedy}")).at(&self.file)
    }
}
