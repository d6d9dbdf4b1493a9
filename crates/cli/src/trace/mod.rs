//! `blkmq trace`: the contents of a recording, and the recording in the form of another program.

pub mod args;
mod info;
mod page;
pub mod source;
pub mod tapes;

use crate::error::Failure;
use args::Wanted;
use blkmq_recording::{Form, Reader, Summary, Writer};
use blkmq_terminal::output::{OutputError, complain, print, quietly};
use blkmq_terminal::screen::{shown, width};
use blkmq_terminal::{UsageError, program};
use clap::ArgMatches;
pub use info::cautions;
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

fn info(source: &source::Source, page: Option<PathBuf>, json: bool) -> Result<(), Failure> {
    let (summary, reader) = summed(source)?;
    if let Some(path) = page {
        let text = page::render(&source.file, &summary, &reader);
        let written = std::fs::write(&path, text);
        written.map_err(|e| Failure::Results(format!("{}: {e}", path.display())))?;
    }
    let text = match json {
        true => info::json(&summary, &reader),
        false => shown(&info::render(&source.file, &summary, &reader, width())).into_owned(),
    };
    Ok(print(&text)?)
}

/// The facts about a trace as JSON; `words` are the arguments of `blkmq trace info`.
///
/// # Errors
/// If they cannot be understood, or the trace cannot be read.
pub fn info_of(words: &[String]) -> Result<String, Failure> {
    let words: Vec<String> = ["info".to_owned()].iter().chain(words).cloned().collect();
    let Some(found) = program::understood::<Failure>(&args::definition, &words)? else {
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
fn summed(source: &source::Source) -> Result<(Summary, Reader), Failure> {
    let mut reader = source.open()?;
    let mut summary = Summary::default();
    while let Some(record) = reader.next_record().map_err(|e| source.fault(&e))? {
        summary.add(&record);
    }
    Ok((summary, reader))
}

fn convert(source: &source::Source, form: Form, output: Option<String>) -> Result<(), Failure> {
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
    source: &source::Source,
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
