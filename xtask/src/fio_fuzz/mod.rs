//! `fio-fuzz`: draws job files, runs them with the installed fio and with `blkmq bench`, each in its own folder, and
//! compares the outcomes.
//!
//! `draw.rs` draws a file from a seed, `compare.rs` finds differences, and `reasons.rs` has the known ones. A file that
//! shows a new one is shrunk: the options that the difference does not need are removed. A planted [`Fault`], which the
//! comparison must find, gives blkmq another job file or changes its outcome.

mod compare;
mod draw;
mod reasons;

use crate::Result;
use crate::shell::{BLKMQ, Cmd, build_program, target_dir};
use compare::{Difference, compare};
use draw::{DATA, JobFile, NEEDED};
use reasons::{REASONS, reason};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};

pub(crate) const HELP: &str = "usage: cargo xtask fio-fuzz [OPTION]...

  --seed S       the seed of the first job file (1); the next one has the seed after it
  --jobs N       try so many job files (500)
  --whole        leave a job file that shows a difference as it was drawn
  --canary       plant faults in place of that, and see that each is found
  --keep DIR     leave each shrunk file there, with the differences and what both programs said
  --blkmq PATH   run this program instead of building one
  --help         this";

/// Job files that run at a time: a run of fio waits most of the time.
const AT_ONCE: usize = 4;
/// Job files between two lines of progress: half a minute.
const STEP: u64 = 250;
/// After this many job files with differences, more of them give no information.
const ENOUGH: usize = 60;

/// The chosen work.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Options {
    seed: u64,
    jobs: u64,
    is_whole: bool,
    is_canary: bool,
    keep: Option<PathBuf>,
    blkmq: Option<String>,
}

impl Options {
    fn of_help() -> Self {
        Self { seed: 1, jobs: 500, is_whole: false, is_canary: false, keep: None, blkmq: None }
    }

    /// Returns `None` if the help is requested.
    fn parse(args: &[String]) -> Result<Option<Self>> {
        let mut options = Self::of_help();
        let mut args = args.iter();
        while let Some(word) = args.next() {
            if word == "--help" {
                return Ok(None);
            }
            match word.as_str() {
                "--whole" => options.is_whole = true,
                "--canary" => options.is_canary = true,
                _ => {}
            }
            if ["--whole", "--canary"].contains(&word.as_str()) {
                continue;
            }
            let value = args.next().ok_or_else(|| format!("{word} needs a value\n{HELP}"))?;
            let number =
                || value.parse::<u64>().map_err(|_| format!("{value} is no number\n{HELP}"));
            match word.as_str() {
                "--seed" => options.seed = number()?,
                "--jobs" => options.jobs = number()?,
                "--keep" => options.keep = Some(value.into()),
                "--blkmq" => options.blkmq = Some(value.clone()),
                other => return Err(format!("fio-fuzz does not know {other}\n{HELP}").into()),
            }
        }
        if options.jobs == 0 { Err("0 job files show nothing".into()) } else { Ok(Some(options)) }
    }
}

/// `cargo xtask fio-fuzz`, see [`HELP`].
///
/// # Errors
/// If fio and blkmq differ without a reason, or the words are not understood.
pub(crate) fn main(args: &[String]) -> Result<()> {
    let Some(options) = Options::parse(args)? else {
        println!("{HELP}");
        return Ok(());
    };
    run(&options)
}

/// The version of fio whose faults `reasons.rs` has.
const VERSION: &str = "fio-3.33";

/// The part for CI's soak: the planted faults, and 500 job files. Without the fio of [`VERSION`] both are skipped.
///
/// # Errors
/// As [`main`].
pub(crate) fn soak() -> Result<()> {
    let options = Options::of_help();
    let found = Cmd::new("fio --version").output().unwrap_or_default();
    if found.trim() != VERSION {
        let (jobs, faults) = (options.jobs, FAULTS.len());
        println!("fio-fuzz: SKIPPED {jobs} job files and {faults} planted faults: no {VERSION}");
        return Ok(());
    }
    run(&Options { is_canary: true, ..options.clone() })?;
    run(&options)
}

fn run(options: &Options) -> Result<()> {
    let blkmq = match &options.blkmq {
        Some(path) => fs::canonicalize(path)?.to_string_lossy().into_owned(),
        None => {
            build_program()?;
            BLKMQ.to_owned()
        }
    };
    let folder = target_dir().join(format!("fio-fuzz-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let programs = Programs { blkmq, folder: folder.clone() };
    let result =
        if options.is_canary { canary(options, &programs) } else { seeds(options, &programs) };
    // The leftover files belong to this run only.
    let _ = fs::remove_dir_all(&folder);
    result
}

/// Each planted fault must be found in one of the first job files, which show no difference without it.
fn canary(options: &Options, programs: &Programs) -> Result<()> {
    let help = Cmd::new("").arg(&programs.blkmq).arg("bench").arg("--help").output()?;
    let forgotten = draw::forgotten(&help);
    if !forgotten.is_empty() {
        let text = format!("options that are neither drawn nor left out: {}", forgotten.join(", "));
        return Err(text.into());
    }
    for fault in FAULTS {
        let mut seeds = (0..options.jobs).map(|at| options.seed.wrapping_add(at));
        let found = seeds.find_map(|seed| match finds(programs, seed, fault) {
            Ok(false) => None,
            found => Some(found.map(|_| seed)),
        });
        let seed = found.ok_or_else(|| format!("{fault:?} is not found"))??;
        println!("fio-fuzz: {fault:?} is found by seed {seed}");
    }
    Ok(())
}

fn finds(programs: &Programs, seed: u64, fault: Fault) -> Result<bool> {
    let file = JobFile::draw(seed);
    let mut tally = Tally { explained: vec![0; REASONS.len()], ..Tally::default() };
    let mut count = |ours: &JobFile, fault: Option<Fault>| -> Result<usize> {
        let mut both = programs.start("canary", &file, ours)?.finish()?;
        if let Some(fault) = fault {
            fault.in_outcome(&file, &mut both);
        }
        let found = judge(&file, &both, &mut tally);
        Ok(found.iter().filter(|it| it.kind != compare::Kind::Options).count())
    };
    Ok(count(&fault.in_file(&file), Some(fault))? > 0 && count(&file, None)? == 0)
}

/// Counts of job files.
#[derive(Default)]
struct Tally {
    accepted: u64,
    refused: u64,
    explained: Vec<u64>,
    differ: usize,
}

fn seeds(options: &Options, programs: &Programs) -> Result<()> {
    let mut tally = Tally { explained: vec![0; REASONS.len()], ..Tally::default() };
    let mut waiting = (0..options.jobs).map(|at| options.seed.wrapping_add(at));
    let mut running: VecDeque<(u64, JobFile, Running)> = VecDeque::new();
    let mut done: u64 = 0;
    loop {
        while running.len() < AT_ONCE && tally.differ < ENOUGH {
            let Some(seed) = waiting.next() else { break };
            let file = JobFile::draw(seed);
            let run = programs.start(&seed.to_string(), &file, &file)?;
            running.push_back((seed, file, run));
        }
        let Some((seed, file, run)) = running.pop_front() else { break };
        let both = run.finish()?;
        let found = judge(&file, &both, &mut tally);
        if !found.is_empty() {
            tally.differ += 1;
            tell(options, programs, seed, &file, &found)?;
        }
        done += 1;
        if done.is_multiple_of(STEP) {
            println!("fio-fuzz: {done} of {} job files, {} differ", options.jobs, tally.differ);
        }
    }
    println!(
        "fio-fuzz: {} job files accepted by both, {} refused by both",
        tally.accepted, tally.refused
    );
    for (reason, files) in REASONS.iter().zip(&tally.explained) {
        println!("  {files:>5} differ: {}", reason.text);
    }
    if tally.differ > 0 {
        Err(format!("{} job files differ without a reason", tally.differ).into())
    } else {
        Ok(())
    }
}

/// The differences without a reason.
fn judge(file: &JobFile, both: &Both, tally: &mut Tally) -> Vec<Difference> {
    match [both.fio.code, both.ours.code] {
        [Some(0), Some(0)] => tally.accepted += 1,
        [Some(0), _] | [_, Some(0)] => {}
        _ => tally.refused += 1,
    }
    let mut is_explained = vec![false; REASONS.len()];
    let mut found = compare(file, both);
    found.retain(|difference| match reason(file, both, difference) {
        Some(at) => {
            is_explained[at] = true;
            false
        }
        None => true,
    });
    tally.explained.iter_mut().zip(is_explained).for_each(|(files, is)| *files += u64::from(is));
    found
}

/// Shrinks `file`, and prints the smaller file with its differences.
fn tell(
    options: &Options,
    programs: &Programs,
    seed: u64,
    file: &JobFile,
    found: &[Difference],
) -> Result<()> {
    let run = |file: &JobFile| -> Result<(Both, Vec<Difference>)> {
        let both = programs.start("shrunk", file, file)?.finish()?;
        let mut tally = Tally { explained: vec![0; REASONS.len()], ..Tally::default() };
        let found = judge(file, &both, &mut tally);
        Ok((both, found))
    };
    let kind = found[0].kind;
    if options.is_whole {
        let lines = Vec::from_iter(found.iter().map(ToString::to_string));
        println!("\nseed {seed}\n{file}\n{}", lines.join("\n"));
        return Ok(());
    }
    let least = shrink(file, |smaller| Ok(run(smaller)?.1.iter().any(|it| it.kind == kind)))?;
    let (both, left) = run(&least)?;
    // A difference that cannot be reproduced is reported as it was found.
    let lines =
        Vec::from_iter(if left.is_empty() { found } else { &left }.iter().map(ToString::to_string));
    let mut text = format!("seed {seed}\n{least}\n{}\n", lines.join("\n"));
    println!("\n{text}");
    if let Some(folder) = &options.keep {
        for (name, outcome) in [("fio", &both.fio), ("blkmq", &both.ours)] {
            text += &format!(
                "\n== {name}: exit {:?}\n{}\n{:#}\n{:#?}\n",
                outcome.code, outcome.said, outcome.report, outcome.places
            );
        }
        keep(folder, seed, &text)?;
    }
    Ok(())
}

fn keep(folder: &Path, seed: u64, text: &str) -> Result<()> {
    fs::create_dir_all(folder)?;
    Ok(fs::write(folder.join(format!("{seed}.txt")), text)?)
}

/// The smallest file that still `fails`, found by removing jobs and options one at a time.
///
/// # Errors
/// Those of `fails`.
fn shrink(file: &JobFile, mut fails: impl FnMut(&JobFile) -> Result<bool>) -> Result<JobFile> {
    let mut least = file.clone();
    'again: loop {
        for smaller in smaller(&least) {
            if fails(&smaller)? {
                least = smaller;
                continue 'again;
            }
        }
        return Ok(least);
    }
}

/// The files with one job less, then those with one option less.
fn smaller(file: &JobFile) -> Vec<JobFile> {
    let mut all = Vec::new();
    let without = |change: &dyn Fn(&mut JobFile)| {
        let mut smaller = file.clone();
        change(&mut smaller);
        smaller
    };
    for at in 0..file.jobs.len() {
        if file.jobs.len() > 1 {
            all.push(without(&|file| drop(file.jobs.remove(at))));
        }
    }
    if file.laid.is_some() {
        all.push(without(&|file| file.laid = None));
    }
    for at in 0..file.global.len() {
        if !NEEDED.contains(&file.global[at].name) {
            all.push(without(&|file| drop(file.global.remove(at))));
        }
    }
    for job in 0..file.jobs.len() {
        for at in 0..file.jobs[job].settings.len() {
            all.push(without(&|file| drop(file.jobs[job].settings.remove(at))));
        }
    }
    all
}

/// Seconds after which a run is killed: some combinations of options make fio 3.33 hang.
const LIMIT: u32 = 30;
/// The exit code of a program that took too long; higher codes mean that a signal ended it.
const TIMED_OUT: i32 = 124;
const SECTOR: usize = 512;
/// The bytes of a file that exists beforehand. Neither program writes such a sector.
const BACKGROUND: u8 = 0x5a;

#[derive(Clone, Default, Debug)]
struct Outcome {
    /// `None`: it was ended by a signal.
    code: Option<i32>,
    report: Value,
    /// Standard error, and the output before the report.
    said: String,
    /// The I/Os of each log, as they were issued, or as they were completed if a job has several threads.
    places: BTreeMap<String, Vec<Io>>,
    /// The remaining files.
    files: BTreeMap<String, Left>,
}

/// An I/O of a log.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Io {
    /// `read`, `write`, `trim` or `sync`.
    action: &'static str,
    /// The file, if the log names one.
    file: String,
    offset: u64,
    bytes: u64,
}

/// A remaining file.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Left {
    bytes: u64,
    /// The sectors that are not as they were; of a file that was there beforehand.
    changed: Vec<u64>,
}

/// The outcomes of fio and of `blkmq bench`.
#[derive(Clone, Default, Debug)]
struct Both {
    fio: Outcome,
    ours: Outcome,
}

/// The programs, and the folder in which they run.
struct Programs {
    blkmq: String,
    folder: PathBuf,
}

/// Runs that were started.
struct Running {
    sides: [(Child, PathBuf); 2],
}

impl Programs {
    /// Starts both programs in folders named after `name`; `theirs` and `ours` are equal unless a fault is planted.
    ///
    /// # Errors
    /// If a file cannot be written or a program cannot be started.
    fn start(&self, name: &str, theirs: &JobFile, ours: &JobFile) -> Result<Running> {
        let place = self.folder.join(name);
        // Files of an earlier run would be counted.
        let _ = fs::remove_dir_all(&place);
        let fio = format!("timeout -k 5 {LIMIT} fio");
        let blkmq = format!("timeout {LIMIT} {} bench --scheduler=none", self.blkmq);
        Ok(Running {
            sides: [
                start(&place.join("fio"), &fio, theirs)?,
                start(&place.join("ours"), &blkmq, ours)?,
            ],
        })
    }
}

fn start(folder: &Path, program: &str, file: &JobFile) -> Result<(Child, PathBuf)> {
    fs::create_dir_all(folder)?;
    if let Some(bytes) = file.laid {
        fs::write(folder.join(DATA), vec![BACKGROUND; bytes as usize])?;
    }
    fs::write(folder.join("job.fio"), with_logs(file))?;
    let [out, said] = ["out.json", "said.txt"].map(|name| File::create(folder.join(name)));
    let line = format!("{program} --output-format=json job.fio");
    Ok((Cmd::new(&line).start_in(folder, out?, said?)?, folder.to_owned()))
}

/// Returns whether the I/Os of the job at `at` are logged when they complete. Threads would share a log of I/Os as they
/// are issued, and fio's null engine issues some twice.
fn by_completion(file: &JobFile, at: usize) -> bool {
    let settings = file.effective(at);
    let is_above_one = |name: &str| settings.get(name).is_some_and(|value| *value != "1");
    is_above_one("numjobs")
        || (settings.get("ioengine") == Some(&"null") && is_above_one("iodepth"))
}

/// The job file with logs of the offsets: by job as they are issued, or by thread if there are several.
fn with_logs(file: &JobFile) -> String {
    let mut text = file.to_string();
    for (at, job) in file.jobs.iter().enumerate() {
        let name = &job.name;
        let logs = if !by_completion(file, at) {
            format!("write_iolog={name}.iolog")
        } else {
            format!("write_lat_log={name}\nlog_offset=1")
        };
        let header = format!("[{name}]\n");
        text = text.replacen(&header, &format!("{header}{logs}\n"), 1);
    }
    text
}

impl Running {
    /// Waits for the end of both, and removes the files they leave.
    ///
    /// # Errors
    /// If the kernel does not report how a program ended, or a file cannot be read.
    fn finish(self) -> Result<Both> {
        let [fio, ours] = self.sides.map(|(mut child, folder)| -> Result<Outcome> {
            let code = code(child.wait()?);
            if code.is_some_and(|code| code >= TIMED_OUT) {
                end_those_in(&folder)?;
            }
            let outcome = collect(&folder, code)?;
            fs::remove_dir_all(&folder)?;
            Ok(outcome)
        });
        Ok(Both { fio: fio?, ours: ours? })
    }
}

/// The exit code as a shell has it: 128 and the number of the signal that ended the program.
fn code(status: ExitStatus) -> Option<i32> {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal))
}

/// Kills the programs whose working directory is `folder`: the jobs of a fio that was killed.
fn end_those_in(folder: &Path) -> Result<()> {
    let folder = fs::canonicalize(folder)?;
    for entry in fs::read_dir("/proc")? {
        let path = entry?.path();
        if fs::read_link(path.join("cwd")).is_ok_and(|cwd| cwd == folder)
            && let Some(id) = path.file_name()
        {
            // It may have ended in the meantime.
            let _ = Cmd::new("kill -9").arg(id.to_string_lossy()).run();
        }
    }
    Ok(())
}

fn collect(folder: &Path, code: Option<i32>) -> Result<Outcome> {
    let text = |name: &str| -> Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(folder.join(name))?).into_owned())
    };
    let (out, mut said) = (text("out.json")?, text("said.txt")?);
    // fio puts its remarks in front of the report.
    let at = out.find("{\n").unwrap_or(out.len());
    said += &out[..at];
    let report = serde_json::from_str(&out[at..]).unwrap_or_default();
    let mut outcome = Outcome { code, report, said, ..Outcome::default() };
    let is_laid = text("job.fio")?.starts_with(';');
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if ["out.json", "said.txt", "job.fio"].contains(&name.as_str()) || name.ends_with(".state")
        {
            continue;
        }
        if name.ends_with(".iolog") {
            outcome.places.insert(name.clone(), text(&name)?.lines().filter_map(issued).collect());
        } else if name.ends_with(".log") {
            if let Some(name) = name.strip_suffix(".log").filter(|name| name.contains("_lat.")) {
                let lines = text(&format!("{name}.log"))?;
                outcome
                    .places
                    .insert(name.to_owned(), lines.lines().filter_map(completed).collect());
            }
        } else {
            let left = if is_laid && name == DATA {
                compared(&fs::read(entry.path())?)
            } else {
                Left { bytes: entry.metadata()?.len(), changed: Vec::new() }
            };
            outcome.files.insert(name, left);
        }
    }
    // Logs of submission and completion latencies repeat the same I/Os.
    outcome.places.retain(|name, _| !name.contains("_slat.") && !name.contains("_clat."));
    Ok(outcome)
}

fn compared(bytes: &[u8]) -> Left {
    let is_changed = |(_, sector): &(usize, &[u8])| sector.iter().any(|byte| *byte != BACKGROUND);
    let changed = bytes.chunks(SECTOR).enumerate().filter(is_changed).map(|(at, _)| at as u64);
    Left { bytes: bytes.len() as u64, changed: changed.collect() }
}

const ACTIONS: [&str; 4] = ["read", "write", "trim", "sync"];

/// A line of an iolog: time, file, action, offset, length.
fn issued(line: &str) -> Option<Io> {
    let words = Vec::from_iter(line.split(' '));
    let [_, file, action, offset, bytes] = words[..] else { return None };
    // fio says `datasync` for fdatasync. Both flush.
    let action = if action == "datasync" { "sync" } else { action };
    let action = ACTIONS.into_iter().find(|known| *known == action)?;
    // The programs name the files of the null engine and of a folder differently.
    let file = file.rsplit('/').next().unwrap_or_default().to_owned();
    let is_sync = action == "sync";
    let [offset, bytes] = [offset, bytes].map(|word| word.parse().ok().filter(|_| !is_sync));
    let io = Io { action, file, offset: offset.unwrap_or(0), bytes: bytes.unwrap_or(0) };
    Some(io)
}

/// A line of a latency log: time, latency, direction, length, offset. A flush has none.
fn completed(line: &str) -> Option<Io> {
    let fields = Vec::from_iter(line.split(',').map(|field| field.trim().parse::<u64>().ok()));
    let [_, _, Some(direction), Some(bytes), Some(offset), ..] = fields[..] else { return None };
    let action = *ACTIONS[..3].get(usize::try_from(direction).ok()?)?;
    Some(Io { action, file: String::new(), offset, bytes })
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// An option is missing in blkmq.
    OptionDropped,
    /// Each offset is a block too far.
    BlockOff,
    /// The row of a group has the I/Os of one thread.
    OneThread,
}

const FAULTS: [Fault; 3] = [Fault::OptionDropped, Fault::BlockOff, Fault::OneThread];

/// Options that change the I/Os in every section.
const DROPPED: [&str; 4] = ["io_size", "number_ios", "bs", "loops"];
const BLOCK: u64 = 4096;

impl Fault {
    /// The job file that blkmq gets.
    fn in_file(self, file: &JobFile) -> JobFile {
        let mut changed = file.clone();
        if self == Self::OptionDropped {
            for job in &mut changed.jobs {
                job.settings.retain(|it| !DROPPED.contains(&it.name));
            }
        }
        changed
    }

    /// Changes the outcome of blkmq.
    fn in_outcome(self, file: &JobFile, both: &mut Both) {
        match self {
            Self::OptionDropped => {}
            Self::BlockOff => {
                both.ours.places.values_mut().flatten().for_each(|io| io.offset += BLOCK);
            }
            Self::OneThread => {
                let threads = |at: usize| -> u64 {
                    file.effective(at).get("numjobs").and_then(|it| it.parse().ok()).unwrap_or(1)
                };
                let all = (0..file.jobs.len()).map(threads).max().unwrap_or(1);
                let is_sum = (0..file.jobs.len()).any(|at| {
                    file.effective(at).get("group_reporting").is_some_and(|it| *it != "0")
                });
                if is_sum {
                    divide(&mut both.ours.report, all);
                }
            }
        }
    }
}

/// Leaves the share of one of `threads` in each row.
fn divide(report: &mut Value, threads: u64) {
    for row in report["jobs"].as_array_mut().into_iter().flatten() {
        for direction in ["read", "write", "trim"] {
            for key in ["total_ios", "io_bytes"] {
                let count = row[direction][key].as_u64().unwrap_or(0);
                row[direction][key] = json!(count / threads);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fio_fuzz::compare::{Kind, compare};
    use crate::fio_fuzz::draw::{Job, Setting};

    fn parse(line: &str) -> Result<Option<Options>> {
        Options::parse(&Vec::from_iter(line.split_whitespace().map(str::to_owned)))
    }

    #[test]
    fn options_are_understood_or_explained() {
        assert_eq!(parse("").unwrap(), Some(Options::of_help()));
        let line = "--seed 7 --jobs 2000 --whole --keep /k --blkmq target/debug/blkmq";
        let all = Options {
            seed: 7,
            jobs: 2_000,
            is_whole: true,
            is_canary: false,
            keep: Some("/k".into()),
            blkmq: Some("target/debug/blkmq".to_owned()),
        };
        assert_eq!(parse(line).unwrap(), Some(all));
        assert!(parse("--canary").unwrap().is_some_and(|it| it.is_canary));
        assert_eq!(parse("--help").unwrap(), None);
        for line in ["--seed", "--seed many", "--jobs 0", "--faster 2"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn only_what_a_failure_needs_is_left() {
        let file = (1..).map(JobFile::draw).find(|file| {
            let has = |name| {
                file.jobs.last().is_some_and(|job| job.settings.iter().any(|it| it.name == name))
            };
            file.jobs.len() == 3 && has("rw") && has("bs") && file.len() > 15
        });
        let file = file.expect("some seed has three jobs");
        let fails = |file: &JobFile| {
            let job = file.jobs.iter().find(|job| job.name == "third");
            Ok(job.is_some_and(|job| job.settings.iter().any(|it| it.name == "bs")))
        };
        let least = shrink(&file, fails).unwrap();
        assert_eq!(least.jobs.len(), 1);
        assert!(least.jobs[0].settings.iter().all(|it| it.name == "bs"), "{least}");
        assert!(least.global.iter().all(|it| NEEDED.contains(&it.name)), "{least}");
        assert_eq!(least.laid, None);
    }

    #[test]
    fn a_failure_that_needs_everything_keeps_everything() {
        let file = JobFile::draw(7);
        let whole = file.to_string();
        assert_eq!(shrink(&file, |smaller| Ok(smaller.to_string() == whole)).unwrap(), file);
    }

    #[test]
    fn logs_are_read() {
        let io =
            |action, file: &str, offset, bytes| Io { action, file: file.to_owned(), offset, bytes };
        assert_eq!(issued("151 data write 98304 16384"), Some(io("write", "data", 98_304, 16_384)));
        assert_eq!(issued("9 ./data datasync 0 0"), Some(io("sync", "data", 0, 0)));
        assert_eq!(issued("0 data add"), None);
        assert_eq!(issued("fio version 3 iolog"), None);
        assert_eq!(completed("1, 20, 1, 1024, 512, 0"), Some(io("write", "", 512, 1_024)));
        assert_eq!(completed("1, 20, 3, 0, 0"), None);
    }

    #[test]
    fn changed_sectors_are_found() {
        let mut bytes = vec![BACKGROUND; 2_000];
        assert_eq!(compared(&bytes), Left { bytes: 2_000, changed: Vec::new() });
        (bytes[512], bytes[1_999]) = (0, 1);
        assert_eq!(compared(&bytes).changed, [1, 3]);
    }

    #[test]
    fn each_job_has_a_log_of_its_own() {
        let mut file = JobFile::draw(1);
        file.global.retain(|it| it.name != "numjobs");
        file.jobs.truncate(1);
        file.jobs[0].settings.retain(|it| it.name != "numjobs");
        assert!(with_logs(&file).contains("[first]\nwrite_iolog=first.iolog\n"));
        file.jobs[0].settings.push(Setting { name: "numjobs", value: "2".to_owned() });
        assert!(with_logs(&file).contains("[first]\nwrite_lat_log=first\nlog_offset=1\n"));
    }

    /// 16 reads of each of two threads, and a log of one of them.
    fn both() -> (JobFile, Both) {
        let setting = |name, value: &str| Setting { name, value: value.to_owned() };
        let settings = vec![setting("rw", "read"), setting("number_ios", "16")];
        let job = Job { name: "first".to_owned(), settings };
        let global = vec![setting("numjobs", "2"), setting("group_reporting", "")];
        let file = JobFile { laid: None, global, jobs: vec![job] };
        let read = json!({ "total_ios": 32, "io_bytes": 131_072, "short_ios": 0, "drop_ios": 0 });
        let row = json!({ "jobname": "first", "groupid": 0, "error": 0, "read": read });
        let io =
            |at: u64| Io { action: "read", file: String::new(), offset: at * BLOCK, bytes: BLOCK };
        let outcome = Outcome {
            code: Some(0),
            report: json!({ "jobs": [row] }),
            places: [("first_lat.1".to_owned(), (0..16).map(io).collect())].into(),
            ..Outcome::default()
        };
        (file, Both { fio: outcome.clone(), ours: outcome })
    }

    #[test]
    fn equal_outcomes_do_not_differ() {
        let (file, both) = both();
        assert_eq!(compare(&file, &both), []);
    }

    #[test]
    fn each_planted_fault_is_found() {
        let kinds = |fault: Fault| {
            let (file, mut both) = both();
            fault.in_outcome(&file, &mut both);
            Vec::from_iter(compare(&file, &both).into_iter().map(|it| it.kind))
        };
        assert_eq!(kinds(Fault::BlockOff), [Kind::Places]);
        assert_eq!(kinds(Fault::OneThread), [Kind::Work]);
        let (file, _) = both();
        let dropped = Fault::OptionDropped.in_file(&file);
        assert_eq!((file.len() - dropped.len(), dropped.jobs[0].settings.len()), (1, 1));
        assert_eq!(Fault::BlockOff.in_file(&file), file);
    }

    #[test]
    fn a_side_that_refuses_or_leaves_something_else_is_found() {
        let kinds = |change: fn(&mut Outcome)| {
            let (file, mut both) = both();
            change(&mut both.ours);
            Vec::from_iter(compare(&file, &both).into_iter().map(|it| it.kind))
        };
        assert_eq!(kinds(|it| it.code = Some(2)), [Kind::Status]);
        assert_eq!(kinds(|it| it.report["jobs"][0]["jobname"] = json!("second")), [Kind::Rows]);
        assert_eq!(kinds(|it| it.report["jobs"][0]["sync"]["total_ios"] = json!(3)), [Kind::Syncs]);
        assert_eq!(
            kinds(|it| it.report["global options"] = json!({ "bs": "4k" })),
            [Kind::Options]
        );
        assert_eq!(
            kinds(|it| drop(it.files.insert("x".to_owned(), Default::default()))),
            [Kind::Files]
        );
        assert_eq!(kinds(|it| drop(it.places.remove("first_lat.1"))), [Kind::Places; 2]);
    }
}
