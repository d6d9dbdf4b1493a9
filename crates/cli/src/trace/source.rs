//! A trace named on a command line, and the options for reading it.

use blkmq_recording::{Error, Event, Format, Options, PRESETS, Reader};
use blkmq_terminal::UsageError;
use clap::builder::ValueHint;
use clap::{Arg, ArgAction, ArgMatches, value_parser};
use std::fs::File;

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
pub fn path() -> Arg {
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
            Reader::new(std::io::stdin(), &self.options)
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
