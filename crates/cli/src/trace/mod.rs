//! `blkmq trace`: the contents of a recording, and the recording in the form of another program. The facts about a
//! trace are shown as text, as JSON, and as a page with plots.
//!
//! A [`Source`] is a trace named on a command line, with the options for reading it; `blkmq replay` and `blkmq bench`
//! read traces through it, too.

pub mod tapes;

use crate::Failure;
use crate::report::html::{list, page, table};
use crate::report::svg::rows::{Axis, LEFT, RIGHT, Row, rows};
use crate::report::svg::{Linear, Markup, bar};
use crate::report::wording::{bytes, count, nanos, percent};
use blkmq_core::Histogram;
use blkmq_recording::{
    Error, Event, Form, Format, MOST_NAMES, Options, PRESETS, Reader, Summary, Writer,
};
use blkmq_terminal::output::{OutputError, complain, print, quietly, shown, width};
use blkmq_terminal::page::Page;
use blkmq_terminal::paper::{Align, Paper, TextTable, push_line};
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
        let text = render_page(&source.file, &summary, &reader);
        let written = std::fs::write(&path, text);
        written.map_err(|e| Failure::Results(format!("{}: {e}", path.display())))?;
    }
    let text = match json {
        true => to_json(&summary, &reader),
        false => shown(&render_text(&source.file, &summary, &reader, width())).into_owned(),
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
            Ok(to_json(&summary, &reader))
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
    for line in skipped(reader) {
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

/// The maximum number of tenants shown.
const TENANTS: usize = 20;

const TENANT_COLUMNS: [(&str, Align); 4] = [
    ("tenant", Align::Left),
    ("I/Os", Align::Right),
    ("reads", Align::Right),
    ("bytes", Align::Right),
];
const OPS: [&str; 5] = ["reads", "writes", "flushes", "discards", "writes of zeroes"];

/// Formats the facts as text of at most `width` columns.
fn render_text(name: &str, summary: &Summary, reader: &Reader, width: usize) -> String {
    let mut out = Paper::new(width);
    push_line(&mut out, 0, &format!("{name}: {}", reader.format().name()));
    cautions(reader).iter().for_each(|line| push_line(&mut out, 0, line));
    out.push('\n');
    let mut table =
        TextTable::new(vec![(String::new(), Align::Left), (String::new(), Align::Right)]);
    for [what, figure] in facts(summary) {
        table.row(&[what, figure]);
    }
    out.table(&table);
    if summary.tenants.len() > 1 {
        out.push('\n');
        let mut table =
            TextTable::new(TENANT_COLUMNS.map(|(name, align)| (name.to_owned(), align)).to_vec());
        let (rows, more) = tenants(summary, reader);
        rows.iter().for_each(|row| table.row(row));
        out.table(&table);
        if more > 0 {
            push_line(&mut out, 0, &format!("and {more} more tenants"));
        }
    }
    out.finish()
}

/// The facts as a line of JSON: counts, bytes and nanoseconds, and all tenants, those with the most I/Os first.
fn to_json(summary: &Summary, reader: &Reader) -> String {
    const NAMES: [&str; 5] = ["read", "write", "flush", "discard", "write_zeroes"];
    let by_kind = |of: &[u64; 5]| -> serde_json::Map<String, serde_json::Value> {
        NAMES.iter().zip(of).map(|(name, count)| ((*name).to_owned(), (*count).into())).collect()
    };
    let percentiles = |histogram: &Histogram| -> serde_json::Map<String, serde_json::Value> {
        let used = [1u64, 5, 25, 50, 75, 95, 99, 100];
        let used = used.into_iter().filter(|_| histogram.count() > 0);
        used.map(|p| (p.to_string(), histogram.quantile(p, 100).into())).collect()
    };
    let mut order: Vec<usize> = (0..summary.tenants.len()).collect();
    order.sort_by_key(|tenant| std::cmp::Reverse(summary.tenants[*tenant].ios));
    let tenant = |tenant: &usize| {
        let counts = summary.tenants[*tenant];
        let name = reader.tenants().name(*tenant as u32);
        serde_json::json!({ "name": name, "ios": counts.ios, "reads": counts.reads, "bytes": counts.bytes })
    };
    let (course, bin_ns) = summary.course();
    let facts = serde_json::json!({
        "format": reader.format().name(),
        "ios": by_kind(&summary.ios),
        "bytes": by_kind(&summary.bytes),
        "span_ns": summary.span(),
        "peak_ios_per_s": summary.peak,
        "sequential": summary.sequential,
        "working_set_bytes": summary.working_set() * 4096,
        "burstiness": summary.burstiness(),
        "size_bytes": percentiles(&summary.sizes),
        "latency_ns": percentiles(&summary.latencies),
        "volume_bytes": summary.ends,
        "tenants": order.iter().map(tenant).collect::<Vec<_>>(),
        "course": { "bin_ns": bin_ns, "ios": course },
        "skipped": reader.skipped().bad,
        "cautions": cautions(reader),
    });
    format!("{facts}\n")
}

/// The facts, each with its name.
fn facts(summary: &Summary) -> Vec<[String; 2]> {
    let total = summary.total();
    let seconds = summary.span() as f64 / 1e9;
    let moved: u64 = summary.bytes[..2].iter().sum();
    let mut facts =
        vec![["I/Os".to_owned(), total.to_string()], ["time".into(), nanos(summary.span() as f64)]];
    for (kind, name) in OPS.iter().enumerate().filter(|(kind, _)| summary.ios[*kind] > 0) {
        let share = percent(summary.ios[kind] as f64 / total.max(1) as f64);
        facts.push([format!("  {name}"), format!("{} ({share})", summary.ios[kind])]);
    }
    if seconds > 0.0 {
        facts.push(["I/Os per second".into(), count(total as f64 / seconds)]);
        facts.push(["  in the busiest second".into(), count(summary.peak as f64)]);
        facts.push(["bytes per second".into(), bytes(moved as f64 / seconds)]);
    }
    if let Some(burstiness) = summary.burstiness() {
        facts.push(["deviation of gaps over their mean".into(), format!("{burstiness:.2}")]);
    }
    let mut times = |name: &str, histogram: &Histogram, show: fn(f64) -> String| {
        if histogram.count() > 0 {
            for (what, percent) in [("median", 50), ("99 %", 99)] {
                facts.push([
                    format!("{name}, {what}"),
                    show(histogram.quantile(percent, 100) as f64),
                ]);
            }
            facts.push([format!("{name}, largest"), show(histogram.max() as f64)]);
        }
    };
    times("size", &summary.sizes, bytes);
    times("latency", &summary.latencies, nanos);
    let placed = total - summary.ios[2];
    facts.push(["sequential".into(), percent(summary.sequential as f64 / placed.max(1) as f64)]);
    facts.push([
        "working set, in blocks of 4 KiB".into(),
        bytes((summary.working_set() * 4096) as f64),
    ]);
    let reach: u64 = summary.ends.iter().fold(0, |sum, end| sum.saturating_add(*end));
    facts.push(["volumes".into(), summary.ends.len().to_string()]);
    facts.push(["  up to their last I/Os".into(), bytes(reach as f64)]);
    facts
}

/// The largest tenants as rows, and the number of the others.
fn tenants(summary: &Summary, reader: &Reader) -> (Vec<Vec<String>>, usize) {
    let mut order: Vec<usize> = (0..summary.tenants.len()).collect();
    order.sort_by_key(|tenant| std::cmp::Reverse(summary.tenants[*tenant].ios));
    let row = |tenant: &usize| {
        let counts = summary.tenants[*tenant];
        let name = reader.tenants().name(*tenant as u32);
        let reads = percent(counts.reads as f64 / counts.ios.max(1) as f64);
        vec![name.to_owned(), counts.ios.to_string(), reads, bytes(counts.bytes as f64)]
    };
    let rows = order.iter().take(TENANTS).map(row).collect();
    (rows, order.len().saturating_sub(TENANTS))
}

/// Sentences about misleading properties of the recording.
pub fn cautions(reader: &Reader) -> Vec<String> {
    let mut lines = skipped(reader);
    let stamps = reader.stamps();
    if stamps.is_coarse(reader.records()) {
        let unit = nanos(stamps.unit as f64);
        lines.push(format!(
            "Stamps are whole multiples of {unit}, and {} I/Os have that of the one before: the order and the gaps within \
             one are not in the trace.",
            stamps.same
        ));
    }
    if stamps.unordered > 0 {
        let back = nanos(stamps.most_back as f64);
        lines.push(format!(
            "{} I/Os are not in the order of their times, by up to {back}.",
            stamps.unordered
        ));
    }
    if reader.lacks_event() {
        lines.push(
            "No I/O was queued (Q) or issued (D), whichever counts; --issued counts requests as they were issued."
                .into(),
        );
    }
    let shared = reader.volumes().shared();
    if shared > 0 {
        lines.push(format!(
            "{shared} I/Os are of volumes beyond the first {MOST_NAMES}, and have the places of those."
        ));
    }
    if let Format::Preset(preset) = reader.format() {
        lines.extend(preset.caution.map(|caution| format!("Caution: {caution}.")));
    }
    lines
}

/// Sentences about rows that were skipped.
fn skipped(reader: &Reader) -> Vec<String> {
    let skipped = reader.skipped();
    if skipped.bad == 0 {
        return Vec::new();
    }
    let rows = match skipped.bad {
        1 => "1 row is no I/O and was skipped".to_owned(),
        rows => format!("{rows} rows are no I/Os and were skipped"),
    };
    let first =
        skipped.first.first().map(|(place, fault)| format!("; the first, at {place}: {fault}"));
    vec![format!("{rows}{}.", first.unwrap_or_default())]
}

const BARS: usize = 24;

/// The page.
fn render_page(name: &str, summary: &Summary, reader: &Reader) -> String {
    let title = format!("blkmq trace: {name}");
    page(&title, |m| {
        m.leaf("h1", &[], &title);
        m.leaf("p", &[("class", &"soft")], reader.format().name());
        list(m, "warnings", &cautions(reader));
        course(m, summary);
        sizes(m, "Sizes", &summary.sizes, bytes);
        sizes(m, "Latencies", &summary.latencies, nanos);
        m.leaf("h2", &[], "All figures");
        let cells: Vec<Vec<String>> =
            facts(summary).into_iter().map(|fact| fact.to_vec()).collect();
        table(m, &[("figure", "", Align::Left), ("value", "", Align::Right)], &cells);
        if summary.tenants.len() > 1 {
            let (cells, more) = tenants(summary, reader);
            m.leaf("h2", &[], "Tenants");
            if more > 0 {
                m.leaf(
                    "p",
                    &[("class", &"soft")],
                    &format!("The largest; {more} more have fewer I/Os."),
                );
            }
            table(m, &TENANT_COLUMNS.map(|(name, align)| (name, "", align)), &cells);
        }
    })
}

/// Adds a bar for each part, with its name and figure.
fn bars(m: &mut Markup, title: &str, says: &str, parts: &[(String, f64)]) {
    m.leaf("h2", &[], title);
    m.leaf("p", &[("class", &"soft")], says);
    let most = parts.iter().map(|(_, value)| *value).fold(0.0, f64::max);
    let scale = Linear::covering(most, LEFT, RIGHT);
    let axis =
        Axis { ticks: scale.ticks().map(|v| (scale.at(v), count(v))).collect(), figures: "I/Os" };
    let named: Vec<Row> = parts
        .iter()
        .map(|(name, value)| Row { name: name.clone(), figure: count(*value) })
        .collect();
    rows(m, title, &axis, &named, |m, index, y| {
        let (name, value) = &parts[index];
        let size = (scale.at(*value) - LEFT, 16.0);
        bar(m, "fill c0", (LEFT, y - 8.0), size, &format!("{name}: {}", count(*value)));
    });
}

fn course(m: &mut Markup, summary: &Summary) {
    let (course, width) = summary.course();
    let merged = course.len().div_ceil(BARS).max(1);
    let parts = course.chunks(merged).enumerate().map(|(at, part)| {
        let start = (at * merged) as f64 * width as f64;
        let seconds = (part.len() as u64 * width) as f64 / 1e9;
        (format!("from {}", nanos(start)), part.iter().sum::<u64>() as f64 / seconds)
    });
    let parts: Vec<_> = parts.collect();
    if !parts.is_empty() {
        bars(m, "I/Os per second over time", "The mean of each part of the time.", &parts);
    }
}

fn sizes(m: &mut Markup, title: &str, histogram: &Histogram, show: fn(f64) -> String) {
    if histogram.count() == 0 {
        return;
    }
    let mut powers: Vec<(u32, u64)> = Vec::new();
    for (value, ios) in histogram.buckets() {
        let power = value.max(1).ilog2();
        match powers.last_mut().filter(|(last, _)| *last == power) {
            Some((_, sum)) => *sum += ios,
            None => powers.push((power, ios)),
        }
    }
    let name = |power: u32| format!("from {}", show((1u64 << power) as f64));
    let parts: Vec<_> = powers.iter().map(|(power, ios)| (name(*power), *ios as f64)).collect();
    bars(m, title, "I/Os from each power of two to the next.", &parts);
}
