//! `blkmq repro`: the published claims that this project grew out of, measured again on this machine.
//!
//! A [`Claim`] is a data file in `claims`: the published figures, and the studies of `blkmq experiment` that show it
//! here. [`measure`] runs the points of the studies, and the [`pages`] show the answers beside the published figures.
//! Points that are compared follow each other, and each is run once before any is repeated, so that a drift of the
//! machine affects all alike.
//!
//! Runs go to a [`MemoryDisk`]: a file read through the page cache behind io_uring, created for the runs of one command
//! and removed after them. On any machine, this comes closest to the virtual disk of seed 002: its threads sleep on
//! descriptors, so each unnecessary wake-up is a system call. If io_uring is unavailable, the null device is used
//! instead.

mod pages;

use crate::bench::status::Progress;
use crate::experiment::answer::{Answers, LEAST_PAIRS, Question, questions};
use crate::experiment::study::{Study, Value, Values};
use crate::experiment::{Points, Row};
use crate::report::model::{Machine, Partial};
use crate::report::wording::{distinct, nanos};
use crate::report::{self, Format};
use crate::{Failure, plan};
use blkmq_core::{Instant, Nanos};
use blkmq_engine::KickMode;
use blkmq_engine::calls::{self, Call};
use blkmq_terminal::page::Page;
use blkmq_terminal::program::Stop;
use blkmq_terminal::units::{self, KbBase, TimeUnit};
use blkmq_terminal::{UsageError, output};
use clap::builder::{PossibleValuesParser, TypedValueParser, ValueHint};
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::PathBuf;
#[cfg(target_os = "linux")]
use std::sync::atomic::{AtomicU32, Ordering};

/// Measures the claims of `wanted`, and writes the page if requested. Returns the text to print, and the verdict: an
/// error if the page could not be written, or a signal ended the measurement.
///
/// # Errors
/// If a claim cannot be measured here, or the page cannot be opened.
pub fn run(wanted: &Wanted, command: String) -> Result<(String, Result<(), Failure>), Failure> {
    let stop = Stop::on_signals();
    // The page is opened before the minutes of measuring are spent.
    let page = wanted.report.as_deref().map(report::open).transpose()?;
    let repro = measure(wanted, command, &stop)?;
    let mut text = render(&repro, wanted.format);
    if let (Some(mut file), Some(path)) = (page, &wanted.report) {
        if let Err(e) = file.write_text(&render(&repro, Format::Html)) {
            return Ok((text, Err(Failure::Results(e.to_string()))));
        }
        if wanted.format == Format::Normal {
            text.push_str(&format!("\nThe same with plots: {}\n", path.display()));
        }
    }
    Ok((text, Failure::of_partial(repro.partial)))
}

/// Formats the results, ending in a newline; as text for formats that `blkmq repro` does not support.
fn render(repro: &Repro, format: Format) -> String {
    match format {
        Format::Json => pages::render_json(repro),
        Format::Html => pages::render_html(repro),
        Format::Normal | Format::JsonPlus | Format::Csv | Format::Terse(_) => {
            pages::render_text(repro, output::width())
        }
    }
}

const PAGE: Page = Page {
    name: "repro",
    summary: "measure again what was published about the kernel's schedulers",
    description: "\
Measures again, on this machine, what was published about the block layer's schedulers, and puts it beside the \
published figures and the hardware that those are from. Every step is run as the kernel does it (before), as it was \
proposed for the kernel, and as it is done here (ours), in one program and one after the other, so that ratios mean \
something on any machine; rates do not. Each row can be repeated alone: --output-format=json has its command. Without a \
CLAIM all of them are measured, in a few minutes; with a shorter --runtime in less, and with more noise.",
    examples: &[
        "blkmq repro --runtime=100ms",
        "blkmq repro contention batch --runtime=300ms --report=locks.html",
        "blkmq repro contention --threads=1,2,4,8,16,32 --runtime=100ms",
        "blkmq repro stats --runtime=500ms --output-format=json",
    ],
};

/// The most threads of a run.
const MAX_THREADS: u32 = 4096;

/// The claims to measure, and the options.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// The names of the claims.
    pub names: Vec<String>,
    /// The time of each row, all repetitions together.
    pub runtime: Nanos,
    /// Thread counts; empty for the defaults of each claim.
    pub threads: Vec<u32>,
    /// The file for an additional page with plots.
    pub report: Option<PathBuf>,
    /// The format of the result.
    pub format: Format,
}

/// The command.
pub fn definition() -> Command {
    let mut claims = String::from("Claims:\n");
    for Claim { name, summary, .. } in Claim::all() {
        claims.push_str(&format!("  {name:<10}  {summary}\n"));
    }
    let names = PossibleValuesParser::new(Claim::all().into_iter().map(|claim| claim.name));
    let claim = Arg::new("claim").value_name("CLAIM").num_args(0..).action(ArgAction::Append);
    let claim = claim.value_parser(names).hide_possible_values(true);
    let option = |name, value| Arg::new(name).long(name).value_name(value);
    let formats = PossibleValuesParser::new(["normal", "json"]);
    let formats = formats.map(|word| word.parse::<Format>().expect("it is a format"));
    let format = option("output-format", "FORMAT").alias("output_format");
    PAGE.command(&claims).args([
        claim.help("what to measure; all claims without any"),
        option("runtime", "TIME").value_parser(runtime).default_value("2").help(
            "how long each row is measured, in five runs that take turns with those of the rows that it is compared \
             with; seconds unless a unit is given",
        ),
        option("threads", "COUNT,...").value_parser(threads).help(
            "thread counts of contention (default 1, 2, 4 and so on to twice the cores), batch, order (default 16) \
             and stats (default 1 and as many as cores)",
        ),
        option("report", "FILE.html")
            .value_parser(report)
            .value_hint(ValueHint::FilePath)
            .help("a page with plots besides"),
        format
            .value_parser(formats)
            .default_value("normal")
            .help("the form of the result"),
    ])
}

impl Wanted {
    /// The arguments that clap has read.
    pub fn of(found: &ArgMatches) -> Self {
        let default = "it has a default";
        let names = found.get_many::<String>("claim").map(|names| names.cloned().collect());
        let all = || Claim::all().into_iter().map(|claim| claim.name.into()).collect();
        Self {
            names: names.unwrap_or_else(all),
            runtime: *found.get_one("runtime").expect(default),
            threads: found.get_one("threads").cloned().unwrap_or_default(),
            report: found.get_one("report").cloned(),
            format: *found.get_one("output-format").expect(default),
        }
    }
}

fn runtime(text: &str) -> Result<Nanos, UsageError> {
    match units::time(text, TimeUnit::Seconds)? {
        Nanos::ZERO => Err(UsageError::new("accepted: a time above 0, such as 5 or 500ms")),
        runtime => Ok(runtime),
    }
}

/// Parses a list of thread counts, without duplicates and in ascending order.
fn threads(text: &str) -> Result<Vec<u32>, UsageError> {
    let count = |text: &str| units::count(text.trim(), 1..=MAX_THREADS, KbBase::Binary);
    let threads = text.split(',').map(count).collect::<Result<BTreeSet<u32>, _>>()?;
    Ok(threads.into_iter().collect())
}

fn report(text: &str) -> Result<PathBuf, UsageError> {
    let path = PathBuf::from(text);
    if Format::of_path(&path) == Some(Format::Html) {
        Ok(path)
    } else {
        Err(UsageError::new("a page; accepted: a name that ends in .html"))
    }
}

/// The claims by name, in the order of display.
const FILES: [(&str, &str); 7] = [
    ("contention", include_str!("claims/contention.toml")),
    ("batch", include_str!("claims/batch.toml")),
    ("order", include_str!("claims/order.toml")),
    ("merge", include_str!("claims/merge.toml")),
    ("kick", include_str!("claims/kick.toml")),
    ("depth", include_str!("claims/depth.toml")),
    ("stats", include_str!("claims/stats.toml")),
];

/// A claim.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Claim {
    /// The name on the command line.
    #[serde(skip_deserializing)]
    name: &'static str,
    /// The subject of the measurement, in a line.
    #[serde(skip_serializing)]
    summary: String,
    /// The claim as a heading.
    title: String,
    /// The claim in a few sentences, in our own words.
    claim: String,
    /// The numbers of threads on the axis `numjobs`, where they depend on the machine.
    #[serde(default, skip_serializing)]
    threads: Option<Threads>,
    /// The workload here, in words.
    workload: String,
    /// Calls in quick succession are a part of it.
    #[serde(default, skip_serializing)]
    calls: bool,
    /// The limits of this machine and of the workload, a sentence each.
    limits: Vec<String>,
    /// The published figures, a table for each source.
    published: Vec<Source>,
    /// The studies, whose first figures are those of the claim.
    #[serde(skip_serializing)]
    part: Vec<Part>,
}

/// Numbers of threads.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Threads {
    /// 1, 2, 4 and so on to twice the cores.
    Doubling,
    /// 1 and the number of cores.
    Ends,
}

/// Figures from one source, as published by its authors, and not ours.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Source {
    /// The authors, the publication and the date.
    by: String,
    /// The hardware of the measurement.
    hardware: String,
    /// The workload.
    workload: String,
    /// The figures.
    figures: Vec<Published>,
    /// A remark about the figures; may be empty.
    #[serde(default)]
    remark: String,
}

/// A quantity before the change and with it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Published {
    /// The configuration.
    what: String,
    /// The quantity, a figure of an experiment.
    metric: String,
    /// The value before the change.
    before: f64,
    /// The value with the proposed change.
    proposed: f64,
}

/// A study of a claim.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    /// The subject, if a claim has several.
    #[serde(default)]
    of: String,
    /// The study.
    study: Study,
}

impl Claim {
    /// Every claim, in the order of display.
    fn all() -> Vec<Self> {
        let of =
            |(name, text)| Self { name, ..toml::from_str(text).expect("a claim of this program") };
        FILES.map(of).into()
    }

    /// Returns whether a part of it reads a disk in memory.
    fn reads_disk(&self) -> bool {
        let disk = Values::One(Value::Text("{disk}".into()));
        self.part.iter().any(|part| part.study.options.get("device") == Some(&disk))
    }

    /// Sets the total time of the runs of a row and the thread counts, if any are `asked` for, and fills in the
    /// properties of a machine with this many cores and a `disk` in memory.
    fn prepare(&mut self, runtime: Nanos, asked: &[u32], (cores, disk): (u32, &str)) {
        let here = |text: &str| text.replace("{cores}", &cores.to_string()).replace("{disk}", disk);
        self.limits.iter_mut().for_each(|text| *text = here(text));
        let usual = match self.threads {
            Some(Threads::Doubling) => {
                let most = (2 * cores).max(1);
                let powers = (0..31).map(|n| 1 << n).take_while(|power| *power < most);
                powers.chain([most]).collect()
            }
            Some(Threads::Ends) if cores > 1 => vec![1, cores],
            Some(Threads::Ends) | None => Vec::new(),
        };
        let threads = if asked.is_empty() { &usual[..] } else { asked };
        let threads = Vec::from_iter(threads.iter().map(|count| Value::Integer((*count).into())));
        let each = Nanos::from_millis((runtime.0 / 1_000_000 / LEAST_PAIRS as u64).max(1));
        let each = plan::time(each);
        self.workload.push_str(&format!("; {LEAST_PAIRS} runs of {each} each"));
        for part in &mut self.part {
            if let Some(Values::One(Value::Text(device))) = part.study.options.get_mut("device") {
                *device = here(device);
            }
            part.study.options.insert("runtime".into(), Values::One(Value::Text(each.clone())));
            let axis = part.study.grid.get_mut("numjobs").filter(|_| !threads.is_empty());
            if let Some(axis) = axis {
                *axis = Values::Many(threads.clone());
            }
        }
    }
}

/// The results of one `blkmq repro`.
#[derive(Default)]
struct Repro {
    /// The command line as typed, which repeats the measurement.
    pub command: String,
    /// When the first run began: milliseconds since the epoch, UTC.
    pub time_ms: u64,
    /// The machine of the runs.
    pub machine: Machine,
    /// The claims for which something was measured.
    pub claims: Vec<Measured>,
    /// The number of missing runs, if a signal ended the measurement.
    pub partial: Option<Partial>,
}

/// A claim and its results.
struct Measured {
    /// The claim.
    pub claim: Claim,
    /// The results of its studies.
    pub found: Vec<Found>,
    /// The outcome of calls in quick succession, if they are a part of the claim.
    pub calls: Option<String>,
    /// Notes for the reader, a sentence each.
    pub notes: Vec<String>,
}

/// A study and its results.
struct Found {
    /// The subject, if a claim has several.
    pub of: String,
    /// Its points.
    pub points: Points,
    /// The rows of the first points, in order.
    pub rows: Vec<Row>,
    /// The answers.
    pub questions: Vec<Question>,
}

impl Found {
    /// Adds the answers of all rows.
    ///
    /// # Errors
    /// If no row has a compared figure.
    pub fn answer(&mut self) -> Result<(), Failure> {
        let rows = Vec::from_iter(&self.rows);
        self.questions = questions(&self.points.study, &self.points.axes, &rows)?;
        Ok(())
    }

    /// The results for display.
    pub fn result(&self) -> Answers<'_> {
        Answers { points: &self.points, rows: self.rows.len(), questions: &self.questions }
    }
}

impl Measured {
    /// `claim` before the first run.
    ///
    /// # Errors
    /// If a study has an axis without values.
    pub fn of(mut claim: Claim) -> Result<Self, Failure> {
        let mut found = Vec::new();
        for part in std::mem::take(&mut claim.part) {
            let points = Points::of(part.study)?;
            found.push(Found { of: part.of, points, rows: Vec::new(), questions: Vec::new() });
        }
        let calls = claim.calls.then(kicks);
        Ok(Self { claim, found, calls, notes: Vec::new() })
    }

    /// Runs all points, or the first of them until `stop` is set.
    fn run(&mut self, progress: &mut Progress, stop: &Stop) -> Result<(), Failure> {
        for found in &mut self.found {
            for index in 0..found.points.len() {
                progress.begin(&format!("{}: {}", self.claim.name, found.points.label(index)));
                let row = found.points.run(index, stop);
                if stop.is_set() {
                    break;
                }
                let row = row?;
                progress.end();
                self.notes.extend(row.notes.iter().cloned());
                found.rows.push(row);
            }
            found.answer()?;
            if stop.is_set() {
                break;
            }
        }
        self.notes = distinct(self.notes.drain(..));
        Ok(())
    }
}

/// Measures the claims of `wanted` until `stop` is set. `command` is the command line.
///
/// # Errors
/// If a point cannot be run on this machine.
fn measure(wanted: &Wanted, command: String, stop: &Stop) -> Result<Repro, Failure> {
    let machine = Machine::detect();
    let time_ms = blkmq_runtime::wall_clock_millis();
    let mut claims = Claim::all();
    claims.retain(|claim| wanted.names.iter().any(|name| name == claim.name));
    let disk = claims.iter().any(Claim::reads_disk).then(MemoryDisk::new);
    let mut planned = Vec::new();
    for mut claim in claims {
        let disk = disk.as_ref().filter(|_| claim.reads_disk());
        let here = (machine.cores, disk.map_or("", |disk| &disk.device));
        claim.prepare(wanted.runtime, &wanted.threads, here);
        let mut measured = Measured::of(claim)?;
        measured.notes.extend(disk.and_then(|disk| disk.note.clone()));
        planned.push(measured);
    }
    let runs: usize = planned.iter().flat_map(|it| &it.found).map(|found| found.points.len()).sum();
    let mut progress = Progress::new(runs, None, true);
    let mut claims = Vec::new();
    for mut measured in planned.into_iter().take_while(|_| !stop.is_set()) {
        measured.run(&mut progress, stop)?;
        claims.push(measured);
    }
    progress.finish();
    let done = claims.iter().flat_map(|it| &it.found).map(|found| found.rows.len()).sum();
    let partial = Partial { done, planned: runs, signal: stop.signal() };
    let partial = (done < runs).then_some(partial);
    Ok(Repro { command, time_ms, machine, claims, partial })
}

/// The time until a worker arrives.
const COMES: Nanos = Nanos::from_micros(50);
/// The delays that calls a microsecond apart allow for their pass, in nanoseconds: now, in 3 ms and now.
const DELAYS: [u64; 3] = [0, 3_000_000, 0];
const WAYS: [(&str, KickMode); 3] =
    [("before", KickMode::Always), ("as proposed", KickMode::Flag), ("ours", KickMode::Coalesced)];

/// The outcome for each way, as a sentence.
fn kicks() -> String {
    let calls = Vec::from_iter(
        (0..)
            .zip(DELAYS)
            .map(|(n, delay)| Call { at: Instant::from_nanos(n * 1_000), delay: Nanos(delay) }),
    );
    let last = calls[DELAYS.len() - 1].at;
    let clauses = WAYS.map(|(word, kick)| {
        let passes = calls::passes(kick, &calls, COMES);
        let times = passes.iter().map(|at| nanos(at.as_nanos() as f64));
        let times = Vec::from_iter(times).join(" and ");
        let answer = match passes.iter().find(|at| **at >= last) {
            Some(at) => format!("{} later", nanos((*at - last).0 as f64)),
            None => "never".into(),
        };
        format!("{word} (kick={kick}) {answer}, with passes after {times}")
    });
    format!(
        "Where a pass is called for now, in 3 ms and now, a microsecond apart, the last call is answered: {}.",
        clauses.join("; ")
    )
}

/// In MiB; entirely in the page cache, and half the size of `/dev/shm` usual in containers.
#[cfg(target_os = "linux")]
const SIZE: u64 = 32;

/// The device that runs of `kick` read from, with 8 hardware queues of depth 16.
struct MemoryDisk {
    path: Option<PathBuf>,
    /// The value of `--device`.
    device: String,
    /// A note about it.
    note: Option<String>,
}

impl MemoryDisk {
    /// A device that can be read from.
    fn new() -> Self {
        match Self::make() {
            Ok(disk) => disk,
            Err(why) => Self {
                path: None,
                device: "null,irqmode=2,completion_nsec=10000,submit_queues=8,hw_queue_depth=16"
                    .into(),
                note: Some(format!(
                    "There is no disk in memory here ({why}), so kick is shown on the null device: waking a thread that \
                     is awake costs next to nothing there."
                )),
            },
        }
    }

    #[cfg(target_os = "linux")]
    fn make() -> Result<Self, String> {
        // `/dev/shm` is always memory.
        let folder = Some(PathBuf::from("/dev/shm")).filter(|folder| folder.is_dir());
        let folder = folder.unwrap_or_else(std::env::temp_dir);
        // Each disk of a process has its own file.
        static MADE: AtomicU32 = AtomicU32::new(0);
        let nth = MADE.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("blkmq-repro-{}-{nth}", std::process::id()));
        let words = format!("{},size={SIZE},direct=0", path.display());
        let device = format!("uring:{words},hw_queues=8,hw_queue_depth=16");
        let disk = Self { path: Some(path), device, note: None };
        let opened = blkmq_uring::UringDevice::parse(&words).map_err(|error| error.to_string())?;
        opened.queues::<blkmq_buf::AlignedBuf>().map_err(|error| error.to_string())?;
        Ok(disk)
    }

    #[cfg(not(target_os = "linux"))]
    fn make() -> Result<Self, String> {
        Err("io_uring is Linux's".into())
    }
}

impl Drop for MemoryDisk {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // The file may not have been created.
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::pages::tests::{both, hostile};
    use super::*;
    use crate::experiment::Points;
    use crate::experiment::answer::percent;
    use crate::report::Format;

    #[test]
    fn every_format_is_another_text_that_ends_in_a_newline() {
        let formats = [Format::Normal, Format::Json, Format::Html];
        for repro in [Repro::default(), both(), hostile()] {
            let texts = formats.map(|format| render(&repro, format));
            for text in &texts {
                assert!(text.ends_with('\n') && !text.ends_with("\n\n"), "{text:?}");
            }
            let starts = texts.map(|text| text.chars().next());
            assert!(starts[1] == Some('{') && starts[2] == Some('<'));
        }
    }

    /// The arguments of a command line, which is valid.
    pub fn wanted(line: &str) -> Wanted {
        let words = ["repro"].into_iter().chain(line.split_whitespace());
        Wanted::of(&definition().try_get_matches_from(words).expect(line))
    }

    #[test]
    fn without_a_word_everything_is_measured() {
        let all = wanted("");
        assert_eq!(all.names.len(), 7);
        assert_eq!((all.runtime, all.format), (Nanos::from_secs(2), Format::Normal));
        assert!(all.threads.is_empty() && all.report.is_none());
    }

    #[test]
    fn claims_are_words_and_options_have_fios_spelling() {
        let some = wanted(
            "stats batch stats --runtime=500ms --threads 8,2,2 --report=a.html --output_format=json",
        );
        assert_eq!(some.names, ["stats", "batch", "stats"]);
        assert_eq!((some.runtime, some.threads), (Nanos::from_millis(500), vec![2, 8]));
        assert_eq!((some.report, some.format), (Some(PathBuf::from("a.html")), Format::Json));
        assert_eq!(wanted("--runtime=1 --runtime=3").runtime, Nanos::from_secs(3));
    }

    #[test]
    fn the_examples_of_the_page_are_understood() {
        let examples = PAGE.examples.iter().filter_map(|line| line.strip_prefix("blkmq repro"));
        assert_eq!(examples.map(wanted).count(), 4);
    }

    /// The claims on a machine with `cores` cores.
    fn prepared(ms: u64, threads: &[u32], cores: u32) -> Vec<Claim> {
        let mut claims = Claim::all();
        let disk = "null,irqmode=2,submit_queues=8,hw_queue_depth=16";
        claims
            .iter_mut()
            .for_each(|claim| claim.prepare(Nanos::from_millis(ms), threads, (cores, disk)));
        claims
    }

    #[test]
    fn every_claim_has_words_and_says_where_its_figures_are_from() {
        for claim in prepared(2_500, &[], 4) {
            let Claim { name, title, claim, workload, limits, published, .. } = &claim;
            assert!(!title.ends_with('.') && claim.ends_with('.'), "{name}");
            assert!(workload.ends_with("; 5 runs of 500ms each"), "{name}: {workload}");
            assert!(!published.is_empty() && limits.iter().all(|it| it.ends_with('.')), "{name}");
            let text = format!("{claim}{workload}{}", limits.concat());
            assert!(text.is_ascii() && !text.contains('{'), "{text}");
            for source in published {
                let year = source.by.split(|c: char| !c.is_ascii_digit()).any(|it| it.len() == 4);
                assert!(year, "{name}: {}", source.by);
                assert!(!source.hardware.is_empty() && !source.workload.is_empty(), "{name}");
                let text = format!("{}{}{}", source.by, source.hardware, source.remark);
                assert!(text.is_ascii() && !text.contains("http") && !text.contains("www"));
            }
        }
        let said = |at: usize| prepared(2_000, &[], 2)[at].limits.concat();
        assert!(said(0).contains("cores here: 2.") && said(3).contains("5 ms"));
    }

    #[test]
    fn differences_are_those_of_the_published_figures() {
        let differences = |name: &str, metric: &str| -> Vec<String> {
            let claim = Claim::all().into_iter().find(|claim| claim.name == name).expect("a claim");
            let rows = claim.published.into_iter().flat_map(|source| source.figures);
            rows.filter(|row| row.metric == metric)
                .map(|row| percent(row.proposed / row.before - 1.0))
                .collect()
        };
        assert_eq!(differences("contention", "iops"), ["2.63x", "2.90x", "3.26x", "3.51x"]);
        assert_eq!(differences("contention", "waiting"), ["-77.5 %", "-74.0 %"]);
        assert_eq!(differences("kick", "iops"), ["+0.0 %", "+2.1 %", "+42.2 %", "+60.3 %"]);
        assert_eq!(differences("merge", "merged"), ["+0.0 %"]);
        assert_eq!(differences("stats", "iops"), ["+24.0 %", "+29.0 %", "+25.0 %", "+42.9 %"]);
    }

    #[test]
    fn every_point_is_a_run_of_bench_and_every_way_has_its_name() {
        for claim in prepared(1_250, &[], 4) {
            for Part { study, .. } in claim.part {
                let points = Points::of(Study::of_json(&study.json()).expect("a study"));
                let points = points.expect("points");
                points.check().expect("they can be run");
                let command = points.command(0);
                assert!(command.starts_with("blkmq bench --") && command.contains("=250ms"));
                let axis = |name: Option<&str>| {
                    let axis = points.axes.iter().find(|axis| Some(axis.name.as_str()) == name);
                    axis.expect("an axis").values.clone()
                };
                assert_eq!(axis(study.pair()).len(), LEAST_PAIRS);
                let ways = axis(study.compared());
                let names = ways.iter().map(|way| study.shown(way));
                assert!(names.zip(&ways).all(|(name, way)| name != way.to_string()));
            }
        }
    }

    #[test]
    fn threads_go_to_twice_the_cores_unless_they_are_given() {
        let counts = |threads: &[u32], cores, claim: usize| {
            let study =
                prepared(2_000, threads, cores).swap_remove(claim).part.swap_remove(0).study;
            study.grid.get("numjobs").cloned()
        };
        let many = |counts: &[i64]| {
            Some(Values::Many(counts.iter().map(|count| Value::Integer(*count)).collect()))
        };
        assert_eq!(counts(&[], 1, 0), many(&[1, 2]));
        assert_eq!(counts(&[], 6, 0), many(&[1, 2, 4, 8, 12]));
        assert_eq!(counts(&[3, 32], 6, 0), many(&[3, 32]));
        assert_eq!((counts(&[], 6, 1), counts(&[3], 6, 2)), (many(&[16]), many(&[3])));
        assert_eq!((counts(&[], 1, 6), counts(&[], 6, 6)), (many(&[1]), many(&[1, 6])));
        assert_eq!(counts(&[3], 6, 3), None);
    }

    #[test]
    fn after_a_signal_there_is_what_was_measured_until_then() {
        let stop = Stop::after_ctrl_c();
        let repro = measure(&wanted("batch"), "blkmq repro".into(), &stop).expect("it ends");
        assert!(repro.claims.is_empty());
        let partial = repro.partial.expect("everything is missing");
        assert!(partial.done == 0 && partial.planned > 0 && partial.signal == Some(2));
        for format in [Format::Normal, Format::Json, Format::Html] {
            assert!(render(&repro, format).to_lowercase().contains("partial"), "{format:?}");
        }
    }

    #[test]
    fn every_claim_can_be_run() {
        let mut wanted = wanted("--runtime=25ms --threads=2");
        // Merge and depth need seconds for any result at all.
        wanted.names.retain(|name| !["merge", "depth"].contains(&name.as_str()));
        let repro = measure(&wanted, "blkmq repro".into(), &Stop::default());
        let repro = repro.expect("it can be measured");
        assert_eq!(repro.claims.len(), 5);
        for Measured { claim, found, .. } in &repro.claims {
            let found = &found[0];
            assert_eq!(found.rows.len(), found.points.len(), "{}", claim.name);
            for metric in &found.points.study.compare.metrics {
                let of = |it: &&Question| it.metric.to_string() == *metric;
                let question = found.questions.iter().find(of).expect(metric);
                let median = question.answers[0].median.expect(metric);
                assert!(median > 0.0 || !metric.ends_with("iops"), "{}: {metric}", claim.name);
            }
        }
        let order = &repro.claims[2].found[0].questions;
        let ours = order.iter().filter(|question| question.metric.name == "inversions");
        let ours = ours.map(|question| question.answers.last().and_then(|answer| answer.median));
        assert!(ours.clone().count() == 2 && ours.into_iter().all(|median| median == Some(0.0)));
    }

    #[test]
    fn only_the_flag_lets_the_last_call_wait() {
        let text = kicks();
        for clause in [
            "before (kick=always) 48.0 us later",
            "as proposed (kick=flag) 3.05 ms later",
            "ours (kick=coalesced) 48.0 us later",
        ] {
            assert!(text.contains(clause), "{text}");
        }
    }

    #[test]
    fn it_is_gone_with_whoever_made_it() {
        let disk = MemoryDisk::new();
        assert_eq!(disk.path.is_some(), disk.note.is_none());
        let path = disk.path.clone();
        assert!(path.as_ref().is_none_or(|path| path.is_file()));
        drop(disk);
        assert!(path.is_none_or(|path| !path.exists()));
    }
}
