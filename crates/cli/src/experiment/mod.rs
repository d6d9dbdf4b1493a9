//! `blkmq experiment`: a grid of runs, and the comparison of one of its axes.
//!
//! [`Points`] are the points of a study as runs: the requirements of each run, and its result.

pub mod answer;
pub mod rows;
pub mod study;

pub use rows::{Row, Shard, Store};

use crate::args::{self, Request};
use crate::bench::status::Progress;
use crate::plan::{Plan, Time, quote};
use crate::{Failure, bench, replay};
use answer::Answers;
use blkmq_terminal::output::{complain, print_results, shown, width};
use blkmq_terminal::page::Page;
use blkmq_terminal::program::Stop;
use blkmq_terminal::{UsageError, bounded};
use clap::builder::ValueHint;
use clap::{Arg, ArgMatches, Command, value_parser};
use rows::INVERSIONS;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use study::{Axis, Point, Program, Study};

/// The longest file of a study.
const MAX_BYTES: u64 = 16 << 20;

/// Runs `blkmq experiment` with its arguments.
///
/// # Errors
/// If the study is invalid, a run fails, or a result cannot be written.
pub fn run(found: &ArgMatches) -> Result<(), Failure> {
    let file = found.get_one::<String>("file").expect("clap refuses a line without it");
    let out = found.get_one::<String>("out").map(PathBuf::from);
    if file == "merge" {
        if let Some(name) = ["shard", "threads"].into_iter().find(|it| found.contains_id(it)) {
            let text = format!("--{name}: not of merge, which makes no run; accepted: --out");
            return Err(UsageError::new(text).into());
        }
        let out = out.unwrap_or_else(|| ".".into());
        let points = Points::of(rows::study_of(&out)?)?;
        return finish(&points, &out, rows::rows_of(&out)?);
    }
    let bytes = bounded::read(file, "an experiment", MAX_BYTES)?;
    let text = String::from_utf8(bytes).map_err(|e| UsageError::new(e.to_string()));
    let study = text.and_then(|text| Study::parse(&text)).map_err(|e| e.at(file))?;
    let points = Points::of(study)?;
    points.check().map_err(|e| e.at(file))?;
    let out = out.unwrap_or_else(|| Path::new(file).with_extension(""));
    let shard = found.get_one("shard").copied().unwrap_or(Shard::ALL);
    let threads = found.get_one::<u16>("threads").copied();
    let threads = threads.unwrap_or_else(blkmq_runtime::available_cpus).into();
    carry_out(&points, &out, shard, threads)
}

/// Makes the runs that are missing, and the results if all points are in the shard.
fn carry_out(points: &Points, out: &Path, shard: Shard, threads: usize) -> Result<(), Failure> {
    let (store, mut rows) = Store::open(out, &points.study, shard)?;
    let mine = Vec::from_iter((0..points.len()).filter(|index| shard.has(*index)));
    let is_missing = |index: &usize| !rows.contains_key(&points.id(*index));
    let missing = Vec::from_iter(mine.iter().copied().filter(is_missing));
    let (known, all) = (mine.len() - missing.len(), mine.len());
    if known > 0 {
        complain(format_args!("{known} of {all} points are in {} already", out.display()));
    }
    // Runs in real time disturb one another.
    let threads = if points.is_real() { 1 } else { threads };
    let stop = Stop::on_signals();
    let done = side_by_side(points, &missing, threads, &stop, store)?;
    let failed = missing.len() - done.len();
    rows.extend(done.into_iter().map(|row| (row.id.clone(), row)));
    if let Some(signal) = stop.signal() {
        let (done, place) = (all - failed, out.display());
        let text = format!("{done} of {all} points are in {place}; the same command continues");
        return Err(Failure::Interrupted(signal, text));
    }
    if failed > 0 {
        return Err(Failure::Results(format!("{failed} of {} runs failed", missing.len())));
    }
    if shard == Shard::ALL {
        return finish(points, out, rows);
    }
    let (all, place) = (points.len(), out.display());
    let text = format!(
        "{} of {all} points are in {place}; with those of all shards there: blkmq experiment merge --out={place}\n",
        mine.len()
    );
    Ok(print_results(&shown(&text))?)
}

/// Runs the points in `missing`, and passes each row to `store` as it ends. Prints failures.
fn side_by_side(
    points: &Points,
    missing: &[usize],
    threads: usize,
    stop: &Stop,
    store: Store,
) -> Result<Vec<Row>, Failure> {
    let next = AtomicUsize::new(0);
    let progress = Progress::new(missing.len(), None, true);
    let kept = Mutex::new((progress, store, Vec::with_capacity(missing.len()), Ok(())));
    let work = || {
        // Relaxed: each index is taken once, and no other data is published with it.
        while let Some(index) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
            if stop.is_set() {
                return;
            }
            let row = points.run(*index, stop);
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            let (progress, store, rows, written) = &mut *kept;
            progress.begin(&points.label(*index));
            progress.end();
            match row {
                _ if stop.is_set() => return,
                Ok(row) => {
                    if written.is_ok() {
                        *written = store.add(&row);
                    }
                    rows.push(row);
                    if written.is_err() {
                        return;
                    }
                }
                Err(e) => {
                    progress.aside(|| complain(format_args!("{}: {e}", points.label(*index))));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let handles = Vec::from_iter((0..threads.min(missing.len())).map(|_| scope.spawn(work)));
        for handle in handles {
            if let Err(panic) = handle.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
    let kept = kept.into_inner().unwrap_or_else(PoisonError::into_inner);
    let (progress, store, rows, written) = kept;
    progress.finish();
    written?;
    store.sync()?;
    Ok(rows)
}

/// Writes the results of all points, and prints the answers.
fn finish(points: &Points, out: &Path, rows: BTreeMap<String, Row>) -> Result<(), Failure> {
    let is_found = |index: &usize| rows.contains_key(&points.id(*index));
    let (known, found) = (rows.len(), (0..points.len()).filter(is_found).count());
    let (others, missing) = (known - found, points.len() - found);
    let text = answers(points, &Vec::from_iter(rows.into_values()), Some(out))?;
    let place = out.display();
    print_results(&shown(&text))?;
    print_results(&format!(
        "\nThe results: {place}/runs.jsonl, runs.csv; with plots: {place}/page.html\n"
    ))?;
    if others > 0 {
        complain(format_args!("{others} rows in {place} are of no point of the study"));
    }
    if missing > 0 {
        let text = format!("{missing} of {} points are missing", points.len());
        return Err(Failure::Results(text));
    }
    Ok(())
}

/// The answers of `rows` as text. Writes the results to files in `folder`, if given.
///
/// # Errors
/// If a figure of the comparison does not exist, or a result cannot be written.
pub fn answers(points: &Points, rows: &[Row], folder: Option<&Path>) -> Result<String, Failure> {
    let rows = BTreeMap::from_iter(rows.iter().map(|row| (&row.id, row)));
    // In the order of the grid.
    let rows = (0..points.len()).filter_map(|index| rows.get(&points.id(index)).copied());
    let rows = Vec::from_iter(rows);
    let questions = answer::questions(&points.study, &points.axes, &rows)?;
    let result = Answers { points, rows: rows.len(), questions: &questions };
    if let Some(folder) = folder {
        let lines: String = rows.iter().map(|row| row.line()).collect();
        rows::write(folder, "runs.jsonl", &lines)?;
        rows::write(folder, "runs.csv", &answer::csv(&points.axes, &rows))?;
        let name = folder.file_name().map_or_else(|| "results".into(), |it| it.to_string_lossy());
        rows::write(folder, "page.html", &result.page(&name))?;
    }
    Ok(result.text(width()))
}

/// The most values of an axis that are checked before the first run.
const MOST_CHECKED: usize = 200;

/// The points of a study.
pub struct Points {
    /// The study.
    pub study: Study,
    /// The axes of its grid.
    pub axes: Vec<Axis>,
    /// The digests of traces by their paths.
    traces: BTreeMap<String, String>,
}

impl Points {
    /// The points of `study`, reading each trace once.
    ///
    /// # Errors
    /// If an axis is invalid, or a trace cannot be read.
    pub fn of(study: Study) -> Result<Self, UsageError> {
        let axes = study.axes()?;
        let on_axis = axes.iter().filter(|axis| axis.name == "trace").flat_map(|axis| &axis.values);
        let paths = study.trace.iter().cloned().chain(on_axis.map(ToString::to_string));
        let traces = paths.map(|path| Ok((path.clone(), digest(&path)?)));
        let traces = traces.collect::<Result<_, UsageError>>()?;
        Ok(Self { study, axes, traces })
    }

    /// Their number.
    pub fn len(&self) -> usize {
        self.axes.iter().map(|axis| axis.values.len()).product()
    }

    fn point(&self, index: usize) -> Point {
        Study::point(&self.axes, index)
    }

    /// The identity of a point.
    pub fn id(&self, index: usize) -> String {
        let point = self.point(index);
        let trace = self.study.trace_of(&point).map(|path| self.traces[&path].as_str());
        rows::id(&self.study, &point, trace)
    }

    /// The values of a point as text.
    pub fn label(&self, index: usize) -> String {
        let point = self.point(index);
        let values = point.iter().map(|(name, value)| format!("{name}={value}"));
        Vec::from_iter(values).join(" ")
    }

    /// The command that runs only this point.
    pub fn command(&self, index: usize) -> String {
        quote(self.study.program.word(), &self.study.words(&self.point(index)))
    }

    /// Returns whether runs take real time.
    pub fn is_real(&self) -> bool {
        let word = |index| self.study.words(&self.point(index)).iter().any(|it| it == "--real");
        self.study.program == Program::Bench
            || (self.study.program == Program::Replay && (0..self.len()).any(word))
    }

    /// Checks the values of each axis, combined with the first values of the others. On a long axis, such as seeds,
    /// only some values are checked.
    ///
    /// # Errors
    /// If one of these runs is impossible.
    pub fn check(&self) -> Result<(), UsageError> {
        let mut stride = self.len();
        for axis in &self.axes {
            stride /= axis.values.len();
            for at in (0..axis.values.len()).step_by(axis.values.len().div_ceil(MOST_CHECKED)) {
                let index = at * stride;
                let says = |e: Failure| UsageError::new(format!("{}: {e}", self.label(index)));
                self.plan(index).map(drop).map_err(says)?;
            }
        }
        Ok(())
    }

    /// Returns the plan of a point, which has one run and writes nothing.
    fn plan(&self, index: usize) -> Result<Plan, Failure> {
        let words = self.study.words(&self.point(index));
        let time = match self.study.program {
            Program::Replay => return only(replay::plan_of(&words)?),
            Program::Bench => Time::Real,
            Program::Sim => Time::Virtual { seed: 0 },
        };
        match args::parse(&words, time)? {
            Request::Plan(plan) => only(*plan),
            Request::Help | Request::Command(_) => {
                let text = "an option prints something; accepted: options of a run";
                Err(UsageError::new(text).into())
            }
        }
    }

    /// Runs a point.
    ///
    /// # Errors
    /// If the run is impossible or fails.
    pub fn run(&self, index: usize, stop: &Stop) -> Result<Row, Failure> {
        let mut plan = self.plan(index)?;
        plan.bound();
        plan.eta = false;
        plan.quiet = true;
        plan.inversions = self.study.compare.metrics.iter().any(|name| name == INVERSIONS);
        let report = bench::report(&plan, stop)?;
        Ok(Row::of(self.id(index), &self.point(index), &report))
    }
}

/// Refuses a plan of several runs, and of files that runs side by side would overwrite.
fn only(plan: Plan) -> Result<Plan, Failure> {
    let refuse = |text: String| Err(UsageError::new(text).into());
    if plan.default_matrix || plan.jobs.is_empty() {
        return refuse("no job; accepted: options of one, such as rw".into());
    }
    if plan.cases() != 1 {
        let text = format!(
            "{} runs in one point; accepted: one device, scheduler, access and threads, \
                            and lists in [grid]",
            plan.cases()
        );
        return refuse(text);
    }
    let logs = plan.jobs.iter().any(|job| job.logs.any());
    let writes = [
        (plan.output.is_some(), "output"),
        (plan.report.is_some(), "report"),
        (plan.trace.is_some(), "trace"),
        (plan.elevator_log.is_some(), "elevator_log"),
        (plan.status_interval.is_some(), "status_interval"),
        (plan.dry_run, "dry_run"),
        (logs, "write_*_log"),
    ];
    match writes.into_iter().find(|(is_on, _)| *is_on) {
        Some((_, name)) => {
            refuse(format!("{name}: of a single run; accepted: the results of the experiment"))
        }
        None => Ok(plan),
    }
}

/// The digest of a file.
fn digest(path: &str) -> Result<String, UsageError> {
    let refuse = |e: std::io::Error| UsageError::new(e.to_string()).at(path);
    let mut file = std::fs::File::open(path).map_err(refuse)?;
    let (mut digest, mut part) = (Sha256::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut part).map_err(refuse)? {
            0 => return Ok(rows::hex(&digest.finalize())),
            length => digest.update(&part[..length]),
        }
    }
}

const PAGE: Page = Page {
    name: "experiment",
    summary: "run a grid of simulations, benchmarks or replays, and compare",
    description: "\
Makes a run at each point of a grid of options, and compares one axis: for each job and figure the difference of each value \
from the first one, over pairs of runs with the same seed, with a 95 % interval, or that there is none. Simulations run on \
all CPUs, benchmarks in real time one after the other.

The results are a folder: a line of JSON for each point as soon as it is done, and at the end all of them in the order of \
the grid (runs.jsonl), a table (runs.csv) and a page with plots (page.html). The same command continues where a run was \
ended, however it was. --shard divides the points among machines or the tasks of a batch system; the word merge instead of \
a file puts the shards of a folder together.",
    examples: &[
        "blkmq experiment study.toml",
        "blkmq experiment study.toml --shard=2/3 --out=results",
        "blkmq experiment merge --out=results",
    ],
};

/// The form of the file.
const NOTES: &str = "\
The file is TOML. Options are those of the command, and an axis JOB.OPTION is of one job:
  program = \"sim\"                  # or bench, or replay with trace = \"FILE\"
  options = { device = \"disk\", runtime = \"10s\", time_based = true }
  job = [
      { name = \"reader\", rw = \"randread\", bs = \"4k\" },
      { name = \"writers\", rw = \"write\", bs = \"128k\", iodepth = 16 },
  ]
  [grid]
  scheduler = [\"none\", \"mq-deadline\", \"bfq\"]
  seed = \"1..10\"
  [compare]                        # may be left out
  axis = \"scheduler\"               # what is compared (default: scheduler)
  with = \"none\"                    # with this value (default: the first)
  pair = \"seed\"                    # over pairs with the same value (default: seed)
  metrics = [\"reader.read_p99\", \"iops\"]
  least = 1                        # percent; smaller differences are none
  names = { bfq = \"proposed\" }     # of values, for the results (default: none)
A figure of a job is iops, bytes_per_s, or one of read, write, trim and sync with _iops, _mean, _max or a percentile, as \
read_p99.9. A figure of the whole run is merged (the share of I/Os), request_bytes, cpu_per_io, kicks_per_io, waiting (the \
share of the threads' time for a lock) or inversions (of a thousand requests).";

/// The command.
pub fn definition() -> Command {
    let option = |name, value| Arg::new(name).long(name).value_name(value);
    PAGE.command(NOTES).args([
        Arg::new("file")
            .value_name("FILE.toml|merge")
            .required(true)
            .value_hint(ValueHint::FilePath)
            .help("the experiment, or the word merge"),
        option("out", "DIR").value_hint(ValueHint::DirPath).help(
            "the folder of the results (default: the name of the file without its ending; of merge, .)",
        ),
        option("shard", "I/N")
            .value_parser(Shard::parse)
            .help("only the I-th of N parts of the points; they are put together by merge"),
        option("threads", "N")
            .value_parser(value_parser!(u16).range(1..=1024))
            .help("simulations at a time (default: as many as there are CPUs)"),
    ])
}
